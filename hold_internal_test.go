package coord

import "testing"

// A hold that ends is marked first, and then its set is notified. A call of the set in between
// returns the same as afterwards.
func TestLockAll_ASetThatKnowsOfALossHasEnded(t *testing.T) {
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
			s.end(second) // the end of another hold is notified before that of the first
			if err := s.Err(); err != first {
				t.Errorf("%v, want the reason that was reported first, %v", err, first)
			}
		})
	}
}

// Of several refusals of one removal the first is the answer, and what comes after the end of the
// removal is none.
func TestCleanUp_FirstAnswerCounts(t *testing.T) {
	c := &Client{leftBehind: make(map[string][]*cleanUp)}
	u := c.beginCleanUp()
	u.refuse(ErrDenied)
	u.refuse(ErrLimit)
	if err := u.outcome(); err != ErrDenied {
		t.Errorf("%v, want the first refusal", err)
	}
	u.end()
	u = c.beginCleanUp()
	u.end()
	u.refuse(ErrDenied)
	if err := u.outcome(); err != nil {
		t.Errorf("%v after the end", err)
	}
}
