package coord

import "testing"

// Whoever ends a hold marks it first, and then tells the set. Who asks the set in
// between gets the same answers as afterwards.
func TestASetThatKnowsOfALossHasEnded(t *testing.T) {
	for name, ask := range map[string]func(*HoldSet){
		"Err":  func(s *HoldSet) { s.Err() },
		"Done": func(s *HoldSet) { s.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := &loss{"/x", ErrDeleted}, &loss{"/y", ErrSessionLost}
			s := &HoldSet{holds: []*Hold{{err: first}, {}}, done: make(chan struct{})}
			ask(s)
			select {
			case <-s.Done():
			default:
				t.Error("Done is open")
			}
			s.end(second) // another hold's end is told before the first one's
			if err := s.Err(); err != first {
				t.Errorf("%v, want the reason that was told first, %v", err, first)
			}
		})
	}
}
