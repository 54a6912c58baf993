// Package latest has the channels and values of which only the latest element counts.
package latest

import (
	"context"
	"sync"
)

// Signal is the sending side of a latest-wins channel, with capacity 1 and one sender.
// A slow reader misses intermediate values, never the newest.
type Signal[T any] struct{ Ch chan T }

func NewSignal[T any]() Signal[T] { return Signal[T]{make(chan T, 1)} }

// Put sends v in place of a value that was not received.
func (g Signal[T]) Put(v T) {
	select {
	case <-g.Ch:
	default:
	}
	g.Ch <- v
}

// Untaken takes back a value that the reader has not received.
func (g Signal[T]) Untaken() (v T, ok bool) {
	select {
	case v = <-g.Ch:
		return v, true
	default:
		return v, false
	}
}

// Value is a changing value that any number of readers follow. A slow reader misses
// intermediate values, never the newest. Signal channels that queue, drop the newest,
// or block their sender have all been shipped elsewhere, and each was a bug.
type Value[T any] struct {
	mu      sync.Mutex
	value   T
	final   bool          // no further value comes
	changed chan struct{} // closed and replaced at each change
}

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

func (l *Value[T]) Get() (v T, changed <-chan struct{}, final bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.changed, l.final
}

// Follow sends the present value and then every newer one on ch, which must have
// capacity 1 and no other sender. A newer value replaces one that was not received. It
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
