// Package follow has loops over changes: a function reads state and arms watches, and is called again when a
// watch fires or a session begins.
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

// Loop is the state of Live on one session, for its calls of look. Watches that a call has armed stay armed
// for the next calls.
type Loop struct {
	S     *core.Session
	Ws    *backend.WatchSet
	Tree  *backend.TreeWatch // or nil
	Fired []*backend.Watch   // the watches of Ws that have fired since the previous call
	First bool               // the first call on this session: no watch is armed, and earlier reads may be stale
}

// Renew stops the watches of Ws, for a call of look that reads everything again.
func (v *Loop) Renew() {
	v.Ws.Stop()
	v.Ws = backend.NewWatchSet()
}

// Live calls look at the beginning of each session, and again whenever one of the
// watches that look has armed fires or the tree reports a change, until ctx ends or look returns an error
// other than the loss of the session. It returns the error of ctx, ErrClosed, or that of look. Every
// reconnection fires all watches and ends the tree, so look reads again after each.
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
	defer func() {
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
// the node is missing, it arms a watch on the creation of the node instead, unless ws is nil. It
// returns the armed watch. If the node is created between the two requests, it calls read again.
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

// Observe returns a latest-wins channel, out, to which look sends. Live calls look. When ctx ends, Observe
// closes the channel. If the path is invalid or Live returns an error before, the last element is
// failed(err). over, if it is not nil, is called when Live has returned, before that element is sent.
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
