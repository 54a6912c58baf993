package coordtest

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/go-coord/coord"
)

// A Ledger records the items that were put, delivered and acknowledged.
type Ledger struct {
	mu        sync.Mutex
	put       map[int]bool // for certain
	maybe     map[int]bool
	Delivered map[int]int
	acked     map[int]int64 // the token of the claim whose Ack returned nil
	unsure    map[int]bool  // an Ack was uncertain
	pops      int           // whose outcome is uncertain: each may have deleted an item
	wrong     []string
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{put: make(map[int]bool), maybe: make(map[int]bool), Delivered: make(map[int]int), acked: make(map[int]int64), unsure: make(map[int]bool)}
}

// Did records a Put of n and its result.
func (l *Ledger) Did(n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.put[n] = true
	case errors.Is(err, coord.ErrUncertain):
		l.maybe[n] = true
	}
}

// Took records a delivery.
func (l *Ledger) Took(it *coord.Item[int]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Delivered[it.Value]++
	if at, ok := l.acked[it.Value]; ok && it.Token() > at {
		l.wrong = append(l.wrong, fmt.Sprintf("%d came again after its Ack", it.Value))
	}
}

// Ended records the result of an Ack.
func (l *Ledger) Ended(it *coord.Item[int], err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		if _, ok := l.acked[it.Value]; ok {
			l.wrong = append(l.wrong, fmt.Sprintf("%d was acknowledged twice", it.Value))
		}
		l.acked[it.Value] = it.Token()
	case errors.Is(err, coord.ErrUncertain):
		l.unsure[it.Value] = true
	}
}

// Popped records the result of a Pop, which has deleted n if it has no error.
func (l *Ledger) Popped(n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.Delivered[n]++
		l.gone(n)
	case errors.Is(err, coord.ErrUncertain):
		l.pops++
	}
}

// Removed records the result of a Remove of n.
func (l *Ledger) Removed(n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.gone(n)
	case errors.Is(err, coord.ErrUncertain):
		l.unsure[n] = true
	}
}

// gone records that n was deleted without an Ack. The token of the deletion is not known, so Took
// cannot distinguish a later delivery from the late report of an earlier one. Ended finds the later one.
func (l *Ledger) gone(n int) {
	if _, ok := l.acked[n]; ok {
		l.wrong = append(l.wrong, fmt.Sprintf("%d was deleted again", n))
	}
	l.acked[n] = math.MaxInt64
}

// Check returns what is wrong at the end, when the queue is empty.
func (l *Ledger) Check() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	wrong := l.wrong
	var lost []string
	for n := range l.put {
		if _, ok := l.acked[n]; !ok && !l.unsure[n] {
			lost = append(lost, fmt.Sprintf("%d was put, delivered %d times, and is lost", n, l.Delivered[n]))
		}
	}
	if len(lost) > l.pops {
		wrong = append(wrong, lost...)
	}
	for n := range l.Delivered {
		if !l.put[n] && !l.maybe[n] {
			wrong = append(wrong, fmt.Sprintf("%d was delivered, and its Put had failed", n))
		}
	}
	return wrong
}
