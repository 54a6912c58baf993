// Package outbox hands values to a function of the user, such as a Logger, in order and on a
// goroutine of its own. A library that keeps leases must not wait for such a function: it can
// be slow, it can block, and it can call back.
package outbox

import (
	"sync"
	"time"

	"github.com/go-coord/coord/internal/usercode"
)

// limit is the number of values that can wait in a Box. It bounds the memory that a blocking
// function costs. It is large, since the end of a session is reported with one value for each
// of its holds.
const limit = 1 << 14

// tellFailures is the least time between two reports that the function does not return.
const tellFailures = time.Minute

// Box is a bounded queue of values for one function. Put never waits. While values wait, one
// goroutine of the Box calls the function, so calls do not overlap. If a call panics or ends
// its goroutine, its value is lost, and the Box continues with the next value.
type Box[T any] struct {
	deliver func(T)
	dropped func(n int)                      // called, at the right place in the order, when n values were dropped
	failed  func(f *usercode.Failure, n int) // called when n calls did not return; f is of the latest

	mu     sync.Mutex
	queue  []entry[T]
	lost   int           // dropped since the last entry of queue
	idle   chan struct{} // closed when the goroutine ends, nil while there is none
	closed bool          // no value is delivered any more

	// The batch that the goroutine delivers.
	batch   []entry[T]
	at      int  // the next entry of batch
	calling bool // that entry was passed to deliver

	failure  *usercode.Failure // to be reported, or nil
	failures int               // calls that did not return since the last report
	reported time.Time         // when failure was last set
}

type entry[T any] struct {
	v    T
	lost int // dropped just before it
}

// New returns a Box for the function deliver. If the Box has dropped values, it calls
// dropped with their number. After a call of any of these functions that did not return, it calls failed, at
// most once a minute.
func New[T any](deliver func(T), dropped func(n int), failed func(f *usercode.Failure, n int)) *Box[T] {
	return &Box[T]{deliver: deliver, dropped: dropped, failed: failed}
}

// Put queues v for delivery. While the Box is full it drops and counts v.
func (b *Box[T]) Put(v T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if len(b.queue)+len(b.batch)-b.at >= limit {
		b.lost++
		return
	}
	b.queue = append(b.queue, entry[T]{v, b.lost})
	b.lost = 0
	if b.idle == nil {
		b.idle = make(chan struct{})
		go b.run()
	}
}

// run delivers until the queue is empty. So an idle Box has no goroutine.
func (b *Box[T]) run() {
	ended := false
	defer func() {
		if !ended {
			b.fail(usercode.Of(recover()))
			go b.run()
		}
	}()
	for b.step() {
	}
	ended = true
}

// fail notes a call that has not returned.
func (b *Box[T]) fail(f *usercode.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	if now := time.Now(); b.reported.IsZero() || now.Sub(b.reported) >= tellFailures {
		b.failure, b.reported = f, now
	}
}

// step makes the next call. It reports false if there is none. If a call does not return, the next step does
// not repeat it.
func (b *Box[T]) step() bool {
	b.mu.Lock()
	if b.calling {
		b.calling = false
		b.batch[b.at] = entry[T]{}
		b.at++
	}
	if b.at == len(b.batch) {
		b.batch, b.queue, b.at = b.queue, b.batch[:0], 0
	}
	switch lost := &b.lost; {
	case b.closed, len(b.batch)+b.lost == 0 && b.failure == nil:
		b.batch, b.queue, b.at = nil, nil, 0
		close(b.idle)
		b.idle = nil
		b.mu.Unlock()
		return false
	case b.failure != nil:
		f, n := b.failure, b.failures
		b.failure, b.failures = nil, 0
		b.mu.Unlock()
		b.failed(f, n)
		return true
	default:
		if len(b.batch) > 0 {
			lost = &b.batch[b.at].lost
		}
		if n := *lost; n > 0 {
			*lost = 0
			b.mu.Unlock()
			b.dropped(n)
			return true
		}
	}
	b.calling = true
	v := b.batch[b.at].v
	b.mu.Unlock()
	b.deliver(v)
	return true
}

// Drain waits until every value is delivered, at most for the bound, and reports whether that
// succeeded. If not, the Box abandons the function: the goroutine ends as soon as the current
// call returns, and the function is not called again. Otherwise the Box stays open: calls of
// the user can outlast the Drain.
func (b *Box[T]) Drain(bound time.Duration) bool {
	b.mu.Lock()
	idle := b.idle
	b.mu.Unlock()
	if idle == nil {
		return true
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = b.idle != nil
	return !b.closed
}
