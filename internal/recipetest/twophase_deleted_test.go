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

// A site without a yes has no part in a commit, so it aborts although the decision is deleted.
func TestTwoPhase_ASiteWithoutAYesAbortsIfTheDecisionIsDeleted(t *testing.T) {
	for _, tt := range []struct {
		name, vote string
		record     string // what an outsider has written into the record, if anything
		want       string
	}{
		{"no vote", "", "", "[prepare t1:p abort t1:p]"},
		{"no vote at the deadline", "", `{"mark":"` + orphanMark + `","sites":["a"],"deadline":1,"payload":"InAi"}`, "[abort t1:p]"},
		{"no vote, a record that cannot be read", "", "{", "[abort t1:]"},
		{"no", "no", "", "[abort t1:p]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				a := &account{w: w, name: "a", doubts: make(chan error, 10)}
				stop := a.serve(w.Open("site a", nil))
				w.served("a")
				stop()
				w.orphan("t1", "a")
				ops := []backend.Op{backend.Delete("/tx/tx/t1/open-"+orphanMark, backend.AnyVersion)}
				if tt.vote != "" {
					ops = append(ops, backend.SetData("/tx/sites/a/t1~"+orphanMark, []byte(tt.vote), 0))
				}
				if tt.record != "" {
					ops = append(ops, backend.SetData("/tx/tx/t1", []byte(tt.record), backend.AnyVersion))
				}
				_, err := w.Session("outsider").Commit(context.Background(), ops...)
				w.must(err)
				a.serve(w.Open("site a again", nil))
				time.Sleep(time.Minute)
				if got := a.did(); got != tt.want || len(a.doubts) > 0 {
					w.T.Errorf("a did %s, want %s; %d times in doubt", got, tt.want, len(a.doubts))
				}
				if left := w.Children("/tx/sites/a"); len(left) > 0 {
					w.T.Errorf("branches left: %v", left)
				}
			})
		})
	}
}

// A site learns at the deadline at the latest that the decision was made and deleted while it had no
// contact. The proposer's part of the record is gone by then.
func TestTwoPhase_ADecisionThatIsDeletedWhileItsSiteWaitsLeavesItInDoubt(t *testing.T) {
	onMemory(t, func(w *world) {
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		a, stop := w.doubtful()
		defer stop()
		b := w.accounts("b")[0]
		let := make(chan struct{})
		b.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		result := make(chan coord.Decision, 1)
		go func() { result <- mustPropose(w.T, co, w.proposal("t1", "a", "b")) }()
		w.Settle() // a waits for the decision
		w.Link("site a").Partition()
		close(let)
		decision := w.deleteDecision(co, <-result)
		w.Link("site a").Heal()
		a.inDoubtAbout(decision)
		if got := a.did(); got != "[prepare t1:p]" {
			w.T.Error(got)
		}
	})
}

// The decision is made, and the proposer leaves, between two reads of a site.
func TestTwoPhase_ADecisionMadeBetweenTheReadsOfASiteLeavesItNotInDoubt(t *testing.T) {
	onMemory(t, func(w *world) {
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		a, _, let := w.votedAway(co)
		var x coordtest.Nth
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" && c.Path == "/tx/tx/t1" },
			func(context.Context, backendtest.Call, error) error {
				let()
				time.Sleep(time.Second) // the proposer leaves
				return nil
			})
		a.serve(w.Open("site a again", &backendtest.Hooks{Before: x.Before}))
		w.over("a", "b")
		if !x.Idle() || len(a.doubts) > 0 {
			w.T.Errorf("looked: %v, %d times in doubt", x.Idle(), len(a.doubts))
		}
		if got := a.did(); got != "[prepare t1:p commit t1:p]" {
			w.T.Error(got)
		}
	})
}
