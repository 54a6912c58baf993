package coord

import (
	"context"
	"sync"
)

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
