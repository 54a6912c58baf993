// Package outbox hands values to a function of the user's, such as a Logger, in
// order and on a goroutine of its own. A library that keeps leases must not wait
// for such a function: it can be slow, it can block, and it can call back.
package outbox

import (
	"sync"
	"time"
)

// limit is how many values can wait in a Box. It bounds the memory that a
// function which blocks costs. It is large, since the end of a session is told
// with one value for each of its holds.
const limit = 1 << 14

// Box is a bounded queue of values for one function. Put never waits. While there
// are values, one goroutine of the Box calls the function, so calls do not
// overlap. A panic of the function is not recovered: it ends the program.
type Box[T any] struct {
	deliver func(T)
	dropped func(n int) // is told, in its place in the order, that n values were dropped

	mu     sync.Mutex
	queue  []entry[T]
	taken  int           // of the batch that is being delivered, what still waits
	lost   int           // dropped since the last entry of queue
	idle   chan struct{} // closed when the goroutine ends, nil while there is none
	closed bool          // nothing is delivered any more
}

type entry[T any] struct {
	v    T
	lost int // dropped just before it
}

// New returns a Box for the function deliver. Where values had to be dropped, it
// calls dropped with their number.
func New[T any](deliver func(T), dropped func(n int)) *Box[T] {
	return &Box[T]{deliver: deliver, dropped: dropped}
}

// Put has v delivered. It drops v, and counts it, while the Box is full.
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

// run delivers until nothing is left. So an idle Box has no goroutine.
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

// Drain waits until everything is delivered, but no longer than the bound, and
// reports whether it is. A function that takes longer is given up: the goroutine
// ends as soon as the call returns that it is in, and the function is not called
// again. Otherwise the Box goes on: calls of the user's can outlast the Drain.
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
