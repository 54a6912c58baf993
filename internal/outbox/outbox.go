// Package outbox hands values to a function of the user, such as a Logger, in order and on a
// goroutine of its own. A library that keeps leases must not wait for such a function: it can
// be slow, it can block, and it can call back.
package outbox

import (
	"sync"
	"time"
)

// limit is the number of values that can wait in a Box. It bounds the memory that a blocking
// function costs. It is large, since the end of a session is reported with one value for each
// of its holds.
const limit = 1 << 14

// Box is a bounded queue of values for one function. Put never waits. While values wait, one
// goroutine of the Box calls the function, so calls do not overlap. A panic of the function
// is not recovered: it ends the program.
type Box[T any] struct {
	deliver func(T)
	dropped func(n int) // called, at the right place in the order, when n values were dropped

	mu     sync.Mutex
	queue  []entry[T]
	taken  int           // values of the current batch that still wait
	lost   int           // dropped since the last entry of queue
	idle   chan struct{} // closed when the goroutine ends, nil while there is none
	closed bool          // no value is delivered any more
}

type entry[T any] struct {
	v    T
	lost int // dropped just before it
}

// New returns a Box for the function deliver. If values had to be dropped, the Box calls
// dropped with their number.
func New[T any](deliver func(T), dropped func(n int)) *Box[T] {
	return &Box[T]{deliver: deliver, dropped: dropped}
}

// Put queues v for delivery. While the Box is full it drops and counts v.
func (b *Box[T]) Put(v T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if len(b.queue)+b.taken >= limit {
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
	var batch []entry[T]
	for {
		b.mu.Lock()
		clear(batch)
		batch, b.queue = b.queue, batch[:0]
		b.taken = len(batch)
		lost := 0
		if len(batch) == 0 {
			lost, b.lost = b.lost, 0
		}
		if b.closed || len(batch)+lost == 0 {
			b.queue = nil
			close(b.idle)
			b.idle = nil
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		if lost > 0 {
			b.dropped(lost)
		}
		for _, x := range batch {
			if x.lost > 0 {
				b.dropped(x.lost)
			}
			b.deliver(x.v)
			b.mu.Lock()
			b.taken--
			closed := b.closed
			b.mu.Unlock()
			if closed {
				break
			}
		}
	}
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
