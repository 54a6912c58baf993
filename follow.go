package coord

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/go-coord/coord/backend"
)

// watchLoop is the part of one session in following changes: a set of watches, those that
// have fired, and a watch of a tree. Armed watches stay armed from one look to the next.
type watchLoop struct {
	s     *session
	ws    *backend.WatchSet
	tree  *backend.TreeWatch // or nil
	fired []*backend.Watch   // since the previous look
	first bool               // the first look of this session: no watch is armed, and earlier reads may be stale
}

// renew stops all watches, before a look that reads everything again.
func (v *watchLoop) renew() {
	v.ws.Stop()
	v.ws = backend.NewWatchSet()
}

// followLive calls look at the beginning of each session, and again whenever one of the
// watches that look has armed fires or the tree reports something, until ctx ends or look
// fails for good. It returns the reason: the error of ctx, ErrClosed, or look's. Every
// reconnection fires all watches and ends the tree, so no stale read stays.
func (c *Client) followLive(ctx context.Context, look func(ctx context.Context, v *watchLoop) error) error {
	_, err := onSession(ctx, c, func(s *session) (struct{}, error) { return struct{}{}, s.followOnce(ctx, look) })
	switch {
	case ctx.Err() != nil:
		return c.contextError(ctx)
	case isClosed(err):
		return ErrClosed
	}
	return err
}

func (s *session) followOnce(ctx context.Context, look func(ctx context.Context, v *watchLoop) error) error {
	v := &watchLoop{s: s, ws: backend.NewWatchSet(), first: true}
	defer func() { // stops what the last look has armed
		v.ws.Stop()
		v.tree.Stop()
	}()
	for {
		if err := look(ctx, v); err != nil {
			return err
		}
		v.first = false
		select {
		case <-v.ws.Ready():
		case <-v.tree.Ready():
		case <-s.b.Done():
			return s.b.Err()
		case <-ctx.Done():
			return s.contextError(ctx)
		}
		v.fired = v.ws.Take()
	}
}

// readOrAwait calls read, which reads the node at path with a watch of the set ws. If
// the node is missing, it arms a watch on its creation instead, unless ws is nil. It
// returns the armed watch. It calls read again if the node is created in between.
func (s *session) readOrAwait(ctx context.Context, ws *backend.WatchSet, path string, read func(w *backend.Watch) error) (*backend.Watch, error) {
	for {
		w := ws.New()
		err := read(w)
		if err == nil {
			return w, nil
		}
		w.Stop()
		if isNotFound(err) && ws == nil {
			return nil, nil
		}
		if !isNotFound(err) {
			return nil, err
		}
		w = ws.New()
		_, err = s.b.Exists(ctx, path, w)
		if isNotFound(err) {
			return w, nil
		}
		w.Stop() // created just now
		if err != nil {
			return nil, err
		}
	}
}

// signal is the sending side of a latest-wins channel, with capacity 1 and one sender.
// A slow reader misses intermediate values, never the newest.
type signal[T any] struct{ ch chan T }

func newSignal[T any]() signal[T] { return signal[T]{make(chan T, 1)} }

// put sends v in place of a value that was not received.
func (g signal[T]) put(v T) {
	select {
	case <-g.ch:
	default:
	}
	g.ch <- v
}

// untaken takes back a value that the reader has not received.
func (g signal[T]) untaken() (v T, ok bool) {
	select {
	case v = <-g.ch:
		return v, true
	default:
		return v, false
	}
}

// observe returns a latest-wins channel that look feeds, called as by followLive. The
// channel is closed when ctx ends. If following fails for good, the last element is
// failed(err), and then the channel is closed. over, if it is not nil, is called before.
func observe[T any](ctx context.Context, c *Client, op string, p *recipePath, failed func(error) T, over func(), look func(ctx context.Context, v *watchLoop, out signal[T]) error) <-chan T {
	needContext(ctx)
	out := newSignal[T]()
	end := func(err error) {
		if over != nil {
			over()
		}
		if ctx.Err() == nil {
			if !errors.Is(err, ErrClosed) {
				c.log.Error("coord: watching failed, closing the channel", "operation", op, "path", p.full, "error", err)
			}
			out.put(failed(opError(op, p.full, err)))
		}
		close(out.ch)
	}
	if err := p.check(op); err != nil {
		out.put(failed(err))
		close(out.ch)
		return out.ch
	}
	if !c.goWork(func() {
		end(c.followLive(ctx, func(ctx context.Context, v *watchLoop) error { return look(ctx, v, out) }))
	}) {
		end(ErrClosed)
	}
	return out.ch
}

// each returns an iterator over the elements of a watch. The end of the loop ends the watch,
// and waits for that.
func each[T any](ctx context.Context, watch func(context.Context) <-chan T) iter.Seq[T] {
	needContext(ctx)
	return func(yield func(T) bool) {
		ctx, cancel := context.WithCancel(ctx)
		ch := watch(ctx)
		defer func() {
			cancel()
			for range ch { // it is closed when the watch has ended
			}
		}()
		for x := range ch {
			if !yield(x) {
				return
			}
		}
	}
}

// latest is a changing value that any number of readers follow. A slow reader misses
// intermediate values, never the newest. Signal channels that queue, drop the newest,
// or block their sender have all been shipped elsewhere, and each was a bug.
type latest[T any] struct {
	mu      sync.Mutex
	value   T
	final   bool          // no further value comes
	changed chan struct{} // closed and replaced at each change
}

func newLatest[T any](v T) *latest[T] {
	return &latest[T]{value: v, changed: make(chan struct{})}
}

// set publishes v. After the final value it has no effect.
func (l *latest[T]) set(v T, final bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.final {
		return
	}
	l.value, l.final = v, final
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *latest[T]) get() (v T, changed <-chan struct{}, final bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.changed, l.final
}

// follow sends the present value and then every newer one on ch, which must have
// capacity 1 and no other sender. A newer value replaces one that was not received. It
// closes ch and returns when ctx ends, or after the final value.
func (l *latest[T]) follow(ctx context.Context, ch chan T) {
	defer close(ch)
	for {
		v, changed, final := l.get()
		select {
		case <-ch:
		default:
		}
		ch <- v
		if final {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
