package zkproxy

import (
	"sync"
	"time"
)

// An item is one element of a line: bytes, the end of the stream, or the place where a fault
// cuts the connection.
type item struct {
	due     time.Time       // zero: at once
	data    []byte          // nil for the end and for a cut
	wait    <-chan struct{} // held back until this is closed, if not nil
	cut     *Fault          // cut the connection here
	isEnd   bool
	refused bool // the stream is malformed from here on: cut
}

// A line is the queue from one socket to the other. It is unbounded, so that a delay or a
// hold does not stop the sender.
type line struct {
	mu    sync.Mutex
	items []item
	more  chan struct{} // capacity 1: something was added
}

func newLine() *line { return &line{more: make(chan struct{}, 1)} }

func (l *line) push(it item) {
	l.mu.Lock()
	l.items = append(l.items, it)
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// pop waits for the next item. It returns false when done is closed.
func (l *line) pop(done <-chan struct{}) (item, bool) {
	for {
		l.mu.Lock()
		if len(l.items) > 0 {
			it := l.items[0]
			l.items[0] = item{}
			l.items = l.items[1:]
			l.mu.Unlock()
			return it, true
		}
		l.mu.Unlock()
		select {
		case <-l.more:
		case <-done:
			return item{}, false
		}
	}
}

// unpop returns an item that was not forwarded to the front of the line.
func (l *line) unpop(it item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append([]item{it}, l.items...)
}

// rest returns the remaining items when no goroutine pushes or pops any more.
func (l *line) rest() []item {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.items
}

// waitUntil returns true at due, or false when done is closed earlier.
func waitUntil(due time.Time, done <-chan struct{}) bool {
	if due.IsZero() {
		return true
	}
	t := time.NewTimer(time.Until(due))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}
