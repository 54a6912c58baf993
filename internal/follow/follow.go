// Package follow has loops over changes: what is read is read again when a watch fires, over sessions.
package follow

import (
	"context"
	"errors"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/nodepath"
)

// Loop is the part of one session in following changes: a set of watches, those that
// have fired, and a watch of a tree. Armed watches stay armed from one look to the next.
type Loop struct {
	S     *core.Session
	Ws    *backend.WatchSet
	Tree  *backend.TreeWatch // or nil
	Fired []*backend.Watch   // since the previous look
	First bool               // the first look of this session: no watch is armed, and earlier reads may be stale
}

// Renew stops all watches, before a look that reads everything again.
func (v *Loop) Renew() {
	v.Ws.Stop()
	v.Ws = backend.NewWatchSet()
}

// Live calls look at the beginning of each session, and again whenever one of the
// watches that look has armed fires or the tree reports something, until ctx ends or look
// fails for good. It returns the reason: the error of ctx, ErrClosed, or look's. Every
// reconnection fires all watches and ends the tree, so no stale read stays.
func Live(ctx context.Context, c *core.Client, look func(ctx context.Context, v *Loop) error) error {
	_, err := core.OnSession(ctx, c, func(s *core.Session) (struct{}, error) { return struct{}{}, once(ctx, s, look) })
	switch {
	case ctx.Err() != nil:
		return c.ContextError(ctx)
	case errs.IsClosed(err):
		return backend.ErrClosed
	}
	return err
}

// once is the part of Live on one session.
func once(ctx context.Context, s *core.Session, look func(ctx context.Context, v *Loop) error) error {
	v := &Loop{S: s, Ws: backend.NewWatchSet(), First: true}
	defer func() { // stops what the last look has armed
		v.Ws.Stop()
		v.Tree.Stop()
	}()
	for {
		if err := look(ctx, v); err != nil {
			return err
		}
		v.First = false
		select {
		case <-v.Ws.Ready():
		case <-v.Tree.Ready():
		case <-s.Backend().Done():
			return s.Backend().Err()
		case <-ctx.Done():
			return s.ContextError(ctx)
		}
		v.Fired = v.Ws.Take()
	}
}

// ReadOrAwait calls read, which reads the node at path with a watch of the set ws. If
// the node is missing, it arms a watch on its creation instead, unless ws is nil. It
// returns the armed watch. It calls read again if the node is created in between.
func ReadOrAwait(ctx context.Context, s *core.Session, ws *backend.WatchSet, path string, read func(w *backend.Watch) error) (*backend.Watch, error) {
	for {
		w := ws.New()
		err := read(w)
		if err == nil {
			return w, nil
		}
		w.Stop()
		if errs.IsNotFound(err) && ws == nil {
			return nil, nil
		}
		if !errs.IsNotFound(err) {
			return nil, err
		}
		w = ws.New()
		_, err = s.Backend().Exists(ctx, path, w)
		if errs.IsNotFound(err) {
			return w, nil
		}
		w.Stop() // created just now
		if err != nil {
			return nil, err
		}
	}
}

// Observe returns a latest-wins channel that look feeds, called as by Live. The
// channel is closed when ctx ends. If following fails for good, the last element is
// failed(err), and then the channel is closed. over, if it is not nil, is called before.
func Observe[T any](ctx context.Context, c *core.Client, op string, p *nodepath.Path, failed func(error) T, over func(), look func(ctx context.Context, v *Loop, out latest.Signal[T]) error) <-chan T {
	core.NeedContext(ctx)
	out := latest.NewSignal[T]()
	end := func(err error) {
		if over != nil {
			over()
		}
		if ctx.Err() == nil {
			if !errors.Is(err, backend.ErrClosed) {
				c.Log().Error("coord: watching failed, closing the channel", "operation", op, "path", p.Full(), "error", err)
			}
			out.Put(failed(errs.Op(op, p.Full(), err)))
		}
		close(out.Ch)
	}
	if err := p.Check(op); err != nil {
		out.Put(failed(err))
		close(out.Ch)
		return out.Ch
	}
	if !c.GoWork(func() {
		end(Live(ctx, c, func(ctx context.Context, v *Loop) error { return look(ctx, v, out) }))
	}) {
		end(backend.ErrClosed)
	}
	return out.Ch
}
