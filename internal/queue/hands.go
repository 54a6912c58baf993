package queue

import "sync"

// hands calls functions on goroutines that it keeps. A new goroutine begins with a small stack, and would have to grow it for
// each item.
type hands struct {
	running sync.WaitGroup

	mu   sync.Mutex
	idle []*hand // the latest one is called first
	over bool
}

// hand is one goroutine. If a function ends it, another goroutine takes its place.
type hand struct {
	all  *hands
	next chan func(*hand) // of capacity 1; closed when the hand is dismissed

	resting bool // only used by the goroutine
}

// do calls f on an idle hand, or on a new one.
func (h *hands) do(f func(*hand)) {
	h.mu.Lock()
	last := len(h.idle) - 1
	if last < 0 {
		h.mu.Unlock()
		w := &hand{all: h, next: make(chan func(*hand), 1)}
		h.running.Go(func() { w.work(f) })
		return
	}
	w := h.idle[last]
	h.idle = h.idle[:last]
	h.mu.Unlock()
	w.next <- f
}

// wait waits for the functions that were called, and ends the goroutines. No other call of do may follow.
func (h *hands) wait() {
	h.mu.Lock()
	idle := h.idle
	h.idle, h.over = nil, true
	h.mu.Unlock()
	for _, w := range idle {
		close(w.next)
	}
	h.running.Wait()
}

// rest makes the hand idle. A function of the hand may call it before it returns, if it is about to.
func (w *hand) rest() {
	if w.resting {
		return
	}
	w.resting = true
	h := w.all
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		close(w.next)
		return
	}
	h.idle = append(h.idle, w)
}

// work calls f and all that follow.
func (w *hand) work(f func(*hand)) {
	dismissed := false
	defer func() {
		if !dismissed { // f has ended the goroutine
			w.all.running.Go(func() { w.work((*hand).rest) })
		}
	}()
	for ok := true; ok; {
		f(w)
		w.rest()
		f = nil // it refers to the item
		f, ok = <-w.next
		w.resting = false
	}
	dismissed = true
}
