package sweep

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// The sweep found a Downgrade whose session ends under way that reported the loss of the
// session, and not that of the hold.
func TestADowngradeThatLosesItsSessionReportsTheLossOfTheHold(t *testing.T) {
	link := memory.New(nil).Link("a")
	c, err := coord.Open(t.Context(), backendtest.Intercept(link, backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			if len(c.Ops) > 1 && slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
				return op.Kind == backend.OpDelete && strings.Contains(op.Path, "__WRIT__")
			}) {
				link.Expire(c.Session.ID())
			}
			return nil
		},
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rw := coord.NewRWMutex(c, "/rw", nil)
	h, err := rw.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = rw.Downgrade(t.Context(), h)
	if !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrSessionLost) {
		t.Errorf("downgrade: %v, want one that matches %q and %q", err, coord.ErrLost, coord.ErrSessionLost)
	}
	if err := h.Err(); !errors.Is(err, coord.ErrLost) {
		t.Errorf("the hold: %v", err)
	}
}
