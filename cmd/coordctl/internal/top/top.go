// Package top shows the view of package live in a terminal.
package top

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// Options may be nil.
type Options struct {
	Live   live.Options
	Colour bool // without it the page has bold and reversed text only
}

// ErrInterrupted is the error of Run when the operator has typed Ctrl-C.
var ErrInterrupted = errors.New("interrupted")

// Run shows what is at and below the path until the operator quits, which is no error, or ctx
// ends. The terminal is as before when it returns. In and out must be terminals.
func Run(ctx context.Context, c *coord.Client, path string, in, out *os.File, o *Options) error {
	if o == nil {
		o = &Options{}
	}
	m, err := live.New(c, path, &o.Live)
	if err != nil {
		return err
	}
	t, err := openTerminal(ctx, in, out)
	if err != nil {
		return err
	}
	defer t.close()
	ctx, cancel := context.WithCancelCause(ctx)
	var follow sync.WaitGroup
	defer follow.Wait()
	defer cancel(nil)
	follow.Go(func() { cancel(m.Run(ctx)) })

	s := newScreen(m.Rel, o.Colour)
	keys := t.keys(ctx)
	second := time.NewTicker(time.Second) // the ages grow
	defer second.Stop()
	for {
		v, changed := m.Snapshot()
		width, height := t.size()
		if err := t.show(ctx, s.draw(v, time.Now(), width, height)); err != nil {
			return err
		}
		select {
		case k, ok := <-keys:
			switch {
			case !ok:
				return errors.New("the terminal was closed")
			case k == "ctrl-c":
				return ErrInterrupted
			case k == "ctrl-z":
				if err := t.suspend(ctx); err != nil {
					return err
				}
			case k == "ctrl-l":
				t.forget()
			case s.press(k, v):
				return nil
			}
		case <-changed:
		case <-t.resized:
			t.forget()
		case <-second.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Follow calls f with each view of what is at and below the path, from the first whole one on,
// until f returns false or an error, or ctx ends. If the client has no permission to read the
// path, Follow returns that error, since no whole view can come.
func Follow(ctx context.Context, c *coord.Client, path string, o *live.Options, f func(*live.Model, *live.Snapshot) (more bool, err error)) error {
	m, err := live.New(c, path, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var follow sync.WaitGroup
	defer follow.Wait()
	defer cancel(nil)
	follow.Go(func() { cancel(m.Run(ctx)) })
	for {
		v, changed := m.Snapshot()
		switch {
		case v.Ready:
			if more, err := f(m, v); err != nil || !more {
				return err
			}
		case errors.Is(v.Cause, coord.ErrDenied):
			return v.Cause
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Page returns the table as text of any width, without colours and keys.
func Page(m *live.Model, v *live.Snapshot) string {
	return newScreen(m.Rel, false).whole(v)
}
