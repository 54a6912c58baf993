package coord

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/go-coord/coord/backend"
)

// localQueue is the callers of one client on one path. One of them at a time
// has a node in the line on the service, the others wait here, in order of
// arrival. So a contended lock inside one process costs one request a cycle: the
// commit that deletes the node of the one who leaves makes the next one's. That
// node is a new one with a new czxid. (A token taken otherwise could pass that of
// a waiter outside who is queued already, and the fence would refuse him.) It
// stands at the tail, behind everybody outside.
//
// A localQueue exists while somebody has or wants the lock.
type localQueue struct {
	l line

	mu      sync.Mutex
	waiting []*localWaiter
}

// localWaiter waits for its turn to have a node.
type localWaiter struct {
	data []byte

	// Guarded by the queue's mu until turn is closed.
	turn   chan struct{}
	called bool   // taken off the queue; pass comes
	passed bool   // turn is closed
	gone   bool   // its ctx ended after it was called and before it was passed the turn
	made   *place // a node that was made for it
	maybe  string // the prefix of a node that may have been made for it
}

// join makes the caller the one with a node, or queues it. A nil waiter means
// that it is the caller's turn at once.
func (c *Client) join(l line, data []byte, try bool) (*localQueue, *localWaiter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	q, _ := c.locals[l.dir].(*localQueue)
	if q == nil {
		q = &localQueue{l: l}
		c.locals[l.dir] = q
		return q, nil, nil
	}
	if try {
		return nil, nil, ErrLocked
	}
	w := &localWaiter{data: data, turn: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	q.mu.Unlock()
	return q, w, nil
}

// call takes the first waiter off the queue, or returns nil.
func (q *localQueue) call() *localWaiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil
	}
	w := q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	w.called = true
	return w
}

// wait waits for the caller's turn.
func (q *localQueue) wait(ctx context.Context, w *localWaiter) error {
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
	case <-q.l.c.closing:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !w.called:
		i := slices.Index(q.waiting, w)
		q.waiting = slices.Delete(q.waiting, i, i+1)
	case w.passed:
		return nil // it counts: the caller goes on, finds its ctx ended and passes the turn on
	default:
		w.gone = true // whoever called it passes the turn on
	}
	if err := backend.ContextError(ctx); err != nil {
		return err
	}
	return ErrClosed
}

// pass gives the turn to a waiter that was called, with the node made for it or
// the prefix of one that may have been made. It reports false if the waiter has
// gone.
func (q *localQueue) pass(w *localWaiter, made *place, maybe string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.gone {
		return false
	}
	w.made, w.maybe, w.passed = made, maybe, true
	close(w.turn)
	return true
}

// advance passes the turn of a caller that has no node. It does no I/O. If no other
// waits the queue ceases to exist.
func (q *localQueue) advance() {
	c := q.l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		delete(c.locals, q.l.dir)
		return
	}
	w := q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	w.called, w.passed = true, true
	close(w.turn)
}

// release ends the turn of a holder: its node goes, in one commit with the
// creation of the next one's if somebody waits here.
func (q *localQueue) release(h *Hold) error {
	w := q.call()
	if w == nil {
		err := q.l.release(h)
		q.advance() // a caller may have come meanwhile
		return err
	}
	made, maybe, err := q.l.handOver(h, w.data)
	if !q.pass(w, made, maybe) {
		switch {
		case made != nil:
			h.s.removeLater(made.path)
		case maybe != "":
			h.s.disown(spec{ground: q.l.ground(), kind: lockKind, prefix: maybe}).note(q.l.dir)
		}
		q.advance()
	}
	return err
}

// lost passes the turn of a holder whose hold ended early.
func (q *localQueue) lost(*Hold) { q.advance() }

// handOver removes the node of a hold and makes one for the next caller. made and
// maybe are for pass: the new node; or the prefix of one whose making is uncertain;
// or neither, and the next caller makes its own. The error is that of Hold.remove.
func (l *line) handOver(h *Hold, data []byte) (made *place, maybe string, err error) {
	s := h.s
	own, _ := l.kinds.parse(base(h.Path()))
	f, _ := s.c.known(l.ground())
	if f.mark == nil || f.version != backend.AnyVersion || isHigh(own.seq) {
		return nil, "", l.release(h)
	}
	sp := newSpec(l.c, l.ground(), lockKind, data)
	err = h.remove(func(ctx context.Context, del backend.Op) error {
		res, err := s.b.Commit(ctx, del,
			backend.Create(sp.prefix, data, backend.EphemeralSequential),
			backend.SetData(l.dir, f.mark, backend.AnyVersion))
		var e *backend.Error
		switch {
		case err == nil:
			if n, err := s.made(ctx, &sp, res[1].Path, res[2].Stat); err == nil {
				made = &place{s: s, node: n}
			}
		case isUncertain(err) && !isOver(err):
			// If the commit was applied, the node is found by its name. A later
			// attempt fails then, since the node that it deletes is gone.
			maybe = sp.prefix
		case errors.Is(err, backend.ErrDenied) && errors.As(err, &e) && e.Index == 2:
			s.c.leaveAlone(l.ground())
		}
		return err
	})
	if made != nil {
		maybe = ""
	}
	return made, maybe, err
}
