// Package fence is the resource that locks protect in tests. It runs in another process than
// its writers, behind a unix socket.
//
// Every write goes to two registers. The fenced one refuses a token lower than the highest
// that it has seen. The unfenced one is the control: it accepts every write, ignores tokens,
// and counts overlapping holds. A test whose control counts none has not tested the fence.
package fence

import (
	"fmt"
	"sync"
)

// A Write is one write as a register received it.
type Write struct {
	Register string
	Token    int64
	Hold     string // names the hold under which it was written
	Accepted bool   // by the fenced register
	Overlap  bool   // in the unfenced register
}

// A Register is one resource: the fenced register and its control. The zero value
// is ready. It is safe for concurrent use.
type Register struct {
	mu       sync.Mutex
	highest  int64
	accepted int
	refused  int
	overlaps int
	seen     map[string]bool // the holds that wrote
	latest   string          // the hold that wrote last
	writes   []Write
}

// Write writes under a hold and its token, and reports the result.
func (r *Register) Write(token int64, hold string) Write {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := Write{Token: token, Hold: hold, Accepted: token >= r.highest, Overlap: r.unfenced(hold)}
	r.writes = append(r.writes, w)
	if w.Accepted {
		r.highest = token
		r.accepted++
	} else {
		r.refused++
	}
	return w
}

// unfenced is the control. The writes of one hold must be contiguous: if a hold writes again after
// another hold has written, both were held at once.
func (r *Register) unfenced(hold string) (overlap bool) {
	if r.seen[hold] {
		overlap = hold != r.latest
		if overlap {
			r.overlaps++
		}
		return overlap
	}
	if r.seen == nil {
		r.seen = make(map[string]bool)
	}
	r.seen[hold] = true
	r.latest = hold
	return false
}

// Counts returns the accepted and refused writes of the fenced register, and the overlaps
// that the control counted.
func (r *Register) Counts() (accepted, refused, overlaps int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted, r.refused, r.overlaps
}

// Writes returns all writes, in order.
func (r *Register) Writes() []Write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Write(nil), r.writes...)
}

// Check finds writes that a fenced register accepted with a token lower than an earlier one, or
// refused although no earlier token is higher. overlaps is the number of overlaps that the controls counted.
func Check(writes []Write) (wrong []string, overlaps, refused int) {
	highest := make(map[string]int64)
	for _, w := range writes {
		did := "refused"
		if w.Accepted {
			did = "accepted"
		}
		if before := highest[w.Register]; w.Accepted == (w.Token < before) {
			wrong = append(wrong, fmt.Sprintf("%s with %#x after %#x: %+v", did, w.Token, before, w))
		}
		if w.Accepted {
			highest[w.Register] = max(highest[w.Register], w.Token)
		} else {
			refused++
		}
		if w.Overlap {
			overlaps++
		}
	}
	return wrong, overlaps, refused
}
