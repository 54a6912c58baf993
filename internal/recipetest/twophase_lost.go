package recipetest

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// twophaseLostTests are tests of TwoPhase on each service.
type twophaseLostTests struct{ Services }

// The ctx of the call that serves the site, or removes it, ends while the last acknowledgement is in
// flight. Close right after that call leaves no record.
func (on twophaseLostTests) TheEndOfServeAtTheLastAcknowledgementLeavesNoRecord(t *testing.T) {
	for _, tt := range []struct {
		name    string
		removes bool
		reply   error // of the acknowledgement, which is applied
	}{
		{"Serve", false, nil},
		{"Serve, without a reply", false, backend.Uncertain(context.Canceled)},
		{"RemoveSite", true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			on.each(t, func(w *world) {
				co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
				_, _, let := w.votedAway(co)
				let()
				w.Empty("/tx/sites/b")
				w.left(co, "t1")
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var x coordtest.Nth
				x.Arm(1, func(c backendtest.Call) bool {
					return c.Op == "commit" && len(c.Ops) == 3 && c.Ops[1].Kind == backend.OpDelete && c.Ops[2].Kind == backend.OpDelete
				}, func(_ context.Context, _ backendtest.Call, err error) error {
					cancel()
					if err != nil {
						w.T.Errorf("the acknowledgement: %v", err)
					}
					return tt.reply
				})
				c := w.Open("last", &backendtest.Hooks{After: x.After})
				var err error
				if tt.removes {
					_, err = coord.NewCoordinator[string](c, "/tx", nil).RemoveSite(ctx, "a")
				} else {
					err = coord.NewParticipant(c, "/tx", "a", coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}).Serve(ctx)
				}
				coordtest.WantErr(w.T, err, context.Canceled)
				began := time.Now()
				if err := c.Close(); err != nil {
					w.T.Error(err)
				}
				if !w.Fake && time.Since(began) >= 2*time.Second {
					_, err = co.Recover(context.Background()) // a busy machine: Close does not wait for longer
					w.must(err)
				}
				w.over("a", "b")
			})
		})
	}
}
