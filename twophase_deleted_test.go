package coord_test

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
	"github.com/go-coord/coord/backend/backendtest"
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

// A transaction whose decision was deleted after its proposer received it is in doubt, as one with a
// bad decision.
func TestADeletedDecisionLeavesItsSiteInDoubt(t *testing.T) {
	onEach(t, func(w *world) {
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

// A site without a yes has no part in a commit, so it aborts although the decision is deleted.
func TestASiteWithoutAYesAbortsIfTheDecisionIsDeleted(t *testing.T) {
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
func TestADecisionThatIsDeletedWhileItsSiteWaitsLeavesItInDoubt(t *testing.T) {
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
func TestADecisionMadeBetweenTheReadsOfASiteLeavesItNotInDoubt(t *testing.T) {
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
