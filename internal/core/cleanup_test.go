package core

import "testing"

// Of several refusals of one removal the first is the answer, and what comes after the end of the
// removal is none.
func TestCleanUp_FirstAnswerCounts(t *testing.T) {
	c := &Client{leftBehind: make(map[string][]*CleanUp)}
	u := c.BeginCleanUp()
	u.refuse(ErrDenied)
	u.refuse(ErrLimit)
	if err := u.Outcome(); err != ErrDenied {
		t.Errorf("%v, want the first refusal", err)
	}
	u.End()
	u = c.BeginCleanUp()
	u.End()
	u.refuse(ErrDenied)
	if err := u.Outcome(); err != nil {
		t.Errorf("%v after the end", err)
	}
}
