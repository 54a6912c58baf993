package recipetest

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/layout"
)

// votedAway serves a and b, and proposes t1 until a has voted yes and is served no more. b votes when
// let is called.
func (w *world) votedAway(co *coord.Coordinator[string]) (a, b *account, let func() coord.Decision) {
	w.T.Helper()
	a, stop := w.doubtful()
	b = w.accounts("b")[0]
	asked := make(chan struct{})
	b.votes(func(ctx context.Context, _ coord.Branch[string]) error {
		select {
		case <-asked:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	p := w.proposal("t1", "a", "b")
	p.Deadline = time.Now().Add(time.Hour)
	result := make(chan proposed, 1)
	go func() {
		d, err := co.Propose(context.Background(), p)
		result <- proposed{d, err}
	}()
	w.Eventually("a has voted", func() bool {
		st, err := co.Status(context.Background(), "t1")
		return err == nil && st.Sites[0].Yes
	})
	stop()
	return a, b, func() coord.Decision {
		close(asked)
		r := <-result
		if r.err != nil {
			w.T.Error(r.err)
		}
		return r.d
	}
}

// left waits until no proposer of the transaction keeps its record.
func (w *world) left(co *coord.Coordinator[string], id string) {
	w.T.Helper()
	w.Eventually("the proposer has left", func() bool {
		st, err := co.Status(context.Background(), id)
		return err == nil && st.Told && !st.Proposed
	})
}

// deleteDecision has an outsider delete the decision of t1 once its proposer has left, and returns the
// node.
func (w *world) deleteDecision(co *coord.Coordinator[string], d coord.Decision) (node string) {
	w.T.Helper()
	w.left(co, d.ID)
	node = "/tx/tx/" + d.ID + "/" + layout.DecisionName(d.Zxid)
	if _, err := w.Session("outsider").Commit(context.Background(), backend.Delete(w.Path(node), backend.AnyVersion)); err != nil {
		w.T.Fatal(err)
	}
	return node
}

// twophaseDeletedTests are tests of TwoPhase on each service.
type twophaseDeletedTests struct{ Services }

// A transaction whose decision was deleted after its proposer received it is in doubt, as one with a
// bad decision.
func (on twophaseDeletedTests) ADeletedDecisionLeavesItsSiteInDoubt(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		a, b, let := w.votedAway(co)
		d := let()
		w.Eventually("b commits", func() bool { return b.did() == "[prepare t1:p commit t1:p]" })
		w.Empty("/tx/sites/b")
		decision := w.deleteDecision(co, d)
		b.votes(nil)

		var log bytes.Buffer
		var mu sync.Mutex
		r := coordtest.Open(w.T, w.Link("recovery"), &coord.Options{Namespace: w.Path(""),
			Logger: slog.New(slog.NewTextHandler(&lockedWriter{mu: &mu, to: &log}, nil))})
		check := func() {
			w.T.Helper()
			list, err := co.List(ctx)
			if err != nil || len(list) != 1 || !list[0].InDoubt || list[0].Decided {
				w.T.Errorf("%+v, %v", list, err)
			}
			if list, err := coord.NewCoordinator[string](r, "/tx", nil).Recover(ctx); err != nil || len(list) != 0 {
				w.T.Errorf("%+v, %v", list, err)
			}
			coordtest.WantErr(w.T, co.Forget(ctx, "t1"), coord.ErrInDoubt)
			pctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err = co.Propose(pctx, w.proposal("t1", "a", "b"))
			coordtest.WantErr(w.T, err, coord.ErrInDoubt)
		}
		check()
		w.Eventually("Recover has logged it", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(log.String(), "in doubt") && strings.Contains(log.String(), w.Path("/tx/tx/t1"))
		})
		for _, id := range []string{"t2", "t3"} {
			stop := a.serve(w.Open("site a for "+id, nil))
			w.served("a")
			a.inDoubtAbout(decision)
			if d := mustPropose(w.T, co, w.proposal(id, "a", "b")); !d.Commit {
				w.T.Errorf("%+v", d)
			}
			w.Eventually("it is finished", func() bool { return len(w.Children("/tx/tx")) == 1 })
			check()
			stop()
		}
		if n := len(a.doubts); n > 0 {
			w.T.Errorf("InDoubt was called %d times more", n)
		}
		// An operator determines the decision, and creates the node again, with coordctl's value set.
		a.serve(w.Open("site a again", nil))
		a.inDoubtAbout(decision)
		operator := coord.NewValue(w.Open("operator", nil), decision, &coord.ValueOptions[string]{Codec: coord.Text()})
		if _, err := operator.Set(ctx, `{"commit":true}`); err != nil {
			w.T.Fatal(err)
		}
		w.over("a", "b")
		if got := a.did(); got != "[prepare t1:p prepare t2:p commit t2:p prepare t3:p commit t3:p commit t1:p]" {
			w.T.Error(got)
		}
	})
}
