package core

import (
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
)

// Of several refusals of one removal the first is the answer, and what comes after the end of the
// removal is none.
func TestCleanUp_FirstAnswerCounts(t *testing.T) {
	c := &Client{leftBehind: make(map[string][]*CleanUp)}
	u := c.BeginCleanUp()
	u.refuse(backend.ErrDenied)
	u.refuse(errs.ErrLimit)
	if err := u.Outcome(); err != backend.ErrDenied {
		t.Errorf("%v, want the first refusal", err)
	}
	u.End()
	u = c.BeginCleanUp()
	u.End()
	u.refuse(backend.ErrDenied)
	if err := u.Outcome(); err != nil {
		t.Errorf("%v after the end", err)
	}
}
