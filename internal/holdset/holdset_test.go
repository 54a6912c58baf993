package holdset

import (
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
)

// A hold that ends is marked first, and then its set is notified. A call of the set in between
// returns the same as afterwards.
func TestLockAll_ASetThatKnowsOfALossHasEnded(t *testing.T) {
	for name, ask := range map[string]func(*Set){
		"Err":  func(s *Set) { s.Err() },
		"Done": func(s *Set) { s.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := &errs.Loss{Path: "/x", Cause: errs.ErrDeleted}, &errs.Loss{Path: "/y", Cause: backend.ErrSessionLost}
			s := &Set{holds: []*core.Hold{core.EndedHold(first), {}}, done: make(chan struct{})}
			ask(s)
			select {
			case <-s.Done():
			default:
				t.Error("Done is open")
			}
			s.end(second) // the end of another hold is notified before that of the first
			if err := s.Err(); err != first {
				t.Errorf("%v, want the reason that was reported first, %v", err, first)
			}
		})
	}
}
