package line

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
)

// localQueue is the queue of the callers of one client on one path. One caller at a
// time has a node in the queue on the service. The others wait here, in the order of
// arrival. So a contended lock inside one process costs one request a cycle: the commit
// that deletes the node of the releasing holder creates the node of the next caller.
// The new node has a new czxid, and it is at the tail, behind all contenders of
// other clients. (If the next caller kept the place of the old node with a new token, the token could exceed
// that of a waiter of another client that is in the queue already, and the fence would refuse that waiter.)
//
// A localQueue exists as long as a caller has or wants the lock, or the client keeps its
// node: see keptLock.
//
// The following rules make this safe. Model checking (internal/model/local_test.go) found, for
// each rule left out, two turns, a caller that waits for a turn that nobody has, or a node that
// nobody removes.
//   - A caller looks for the queue, and joins it, under the mutex under which the queue ends.
//   - Whatever ends a turn passes it on, once: a release, the loss of a hold, or a call that fails, also if
//     the ctx of the call had ended before the call was served. A hold is either released or lost.
//   - A waiter that gives up leaves the list, or, if it was called, is marked as gone. In the second case the
//     holder passes the turn on, and removes the node that it has created for that waiter. It notes the
//     removal first, so that no caller of the client creates a node behind that node.
//   - The hand-over deletes the holder's node in the same commit that creates the next node. The client
//     repeats it until the holder's node is gone or the service refuses; then the service applies no earlier
//     attempt any more. If an earlier attempt may have been applied, the next caller looks for the node of that
//     attempt, also if its ctx has ended. It takes no node of another session.
type localQueue struct {
	l Line

	mu      sync.Mutex
	waiting []*localWaiter
	idle    *keptLock // the node that the client keeps though no caller has the lock, or nil
}

// localWaiter is a caller that waits for its turn to have a node.
type localWaiter struct {
	data []byte

	// Guarded by the queue's mu until turn is closed.
	state    waiterState
	turn     chan struct{} // closed exactly when the state becomes served
	reserved reservedNode  // the reserved node of a served waiter
}

// waiterState is the state of a localWaiter. Only queued waiters are in the list of
// their queue.
//
//	queued: a releasing holder calls it             -> called
//	        a releasing holder passes its node on   -> served, with that node
//	        a caller without a node passes the turn -> served, without a reserved node
//	        its ctx ends, or the client closes      -> left
//	called: the holder has tried to create its node -> served, with the reserved node, if any
//	        its ctx ends, or the client closes      -> gone; the holder passes the turn on
//	served: final; if its ctx has ended, its call fails and passes the turn on
type waiterState int8

const (
	waiterQueued waiterState = iota
	waiterCalled
	waiterServed
	waiterGone
	waiterLeft
)

// waiterEvent is an event in the life of a localWaiter.
type waiterEvent int8

const (
	waiterCall waiterEvent = iota
	waiterServe
	waiterGiveUp
)

// move moves w to the state that e leads to. The caller holds q.mu.
func (q *localQueue) move(w *localWaiter, e waiterEvent) waiterState {
	if w.state == waiterQueued {
		i := slices.Index(q.waiting, w)
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	switch {
	case w.state == waiterQueued && e == waiterCall:
		w.state = waiterCalled
	case (w.state == waiterQueued || w.state == waiterCalled) && e == waiterServe:
		w.state = waiterServed
		close(w.turn)
	case w.state == waiterQueued && e == waiterGiveUp:
		w.state = waiterLeft
	case w.state == waiterCalled && e == waiterGiveUp:
		w.state = waiterGone
	}
	return w.state
}

// join gives the caller of r the turn to have a node, or queues it. A nil waiter means that
// the caller has the turn at once. If the client has kept a node, that is the caller's reserved node.
func (x *clientLines) join(l Line, r *request) (*localQueue, *localWaiter, error) {
	if l.c.IsClosing() {
		return nil, nil, backend.ErrClosed
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	q := x.queues[l.dir]
	if q == nil {
		if x.queues == nil {
			x.queues = make(map[string]*localQueue)
		}
		q = &localQueue{l: l}
		x.queues[l.dir] = q
		return q, nil, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if k := q.take(); k != nil {
		r.reserved = reservedNode{state: reservedKept, kept: k}
		return q, nil, nil
	}
	if r.try {
		return nil, nil, errBehindOwn
	}
	w := &localWaiter{data: r.data, turn: make(chan struct{})}
	q.waiting = append(q.waiting, w)
	return q, w, nil
}

// errBehindOwn is the ErrLocked of a try that fails without a request: another caller of the same client has
// the turn.
var errBehindOwn = fmt.Errorf("%w: another caller of this client holds it or waits ahead", errs.ErrLocked)

// call takes the first waiter off the queue, or returns nil.
func (q *localQueue) call() *localWaiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil
	}
	w := q.waiting[0]
	q.move(w, waiterCall)
	return w
}

// wait waits for the caller's turn.
func (q *localQueue) wait(ctx context.Context, w *localWaiter) error {
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
	case <-q.l.c.Closing():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.move(w, waiterGiveUp) == waiterServed {
		return nil
	}
	if err := q.l.c.ContextError(ctx); err != nil {
		return err
	}
	return backend.ErrClosed
}

// pass gives the turn to a called waiter, with the reserved node that was created for it. It
// reports false if the waiter is gone.
func (q *localQueue) pass(w *localWaiter, b reservedNode) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.reserved = b
	return q.move(w, waiterServe) == waiterServed
}

// advance passes on the turn of a caller that has no node. It does no I/O. If there is
// no waiter, the queue ceases to exist.
func (q *localQueue) advance() {
	x := linesOf(q.l.c)
	x.mu.Lock()
	defer x.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		delete(x.queues, q.l.dir)
		return
	}
	q.move(q.waiting[0], waiterServe)
}
