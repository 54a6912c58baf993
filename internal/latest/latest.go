// Package latest has channels and values whose readers need only the newest element: a slow reader misses
// older elements, never the newest. A Signal sends to one reader, a Value to any number of readers.
package latest

import (
	"context"
	"sync"
)

// Signal is the sending side of a channel with capacity 1 and one sender. A new element replaces an
// element that the reader has not received yet.
type Signal[T any] struct{ Ch chan T }

// NewSignal returns a Signal whose channel is empty.
func NewSignal[T any]() Signal[T] { return Signal[T]{make(chan T, 1)} }

// Put sends v. It replaces an element that the reader has not received.
func (g Signal[T]) Put(v T) {
	select {
	case <-g.Ch:
	default:
	}
	g.Ch <- v
}

// Untaken takes back the element that the reader has not received. It reports false if there is none.
func (g Signal[T]) Untaken() (v T, ok bool) {
	select {
	case v = <-g.Ch:
		return v, true
	default:
		return v, false
	}
}

// Value is a changing value that any number of readers follow. Set never blocks, whatever the readers do.
type Value[T any] struct {
	mu      sync.Mutex
	value   T
	final   bool          // no further value comes
	changed chan struct{} // closed and replaced at each change
}

// NewValue returns a Value that is v at first.
func NewValue[T any](v T) *Value[T] {
	return &Value[T]{value: v, changed: make(chan struct{})}
}

// Set publishes v. After the final value it has no effect.
func (l *Value[T]) Set(v T, final bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.final {
		return
	}
	l.value, l.final = v, final
	close(l.changed)
	l.changed = make(chan struct{})
}

// Get returns the present value, a channel that is closed when the value changes, and whether the value is
// final, so that it does not change any more.
func (l *Value[T]) Get() (v T, changed <-chan struct{}, final bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.changed, l.final
}

// Follow sends the present value and then every newer one on ch, converted by as. ch must have
// capacity 1 and no other sender. A newer element replaces an element that was not received. Follow
// closes ch and returns when ctx ends, or after the final value.
func Follow[T, U any](ctx context.Context, l *Value[T], ch chan U, as func(T) U) {
	defer close(ch)
	for {
		v, changed, final := l.Get()
		select {
		case <-ch:
		default:
		}
		ch <- as(v)
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
