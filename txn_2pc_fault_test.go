package coord_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// Half of the sites are prepared when the coordinator dies. They do not wait for
// it: at the deadline one of them decides.
func TestSitesDoNotWaitForADeadCoordinator(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a", "b")
		list[1].votes(func(ctx context.Context, _ coord.Ballot[string]) error { <-ctx.Done(); return ctx.Err() })
		c := w.open("co", nil)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(4 * time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, p)
			done <- err
		}()
		w.eventually("the sites are asked", func() bool { return list[0].did() != "[]" && list[1].did() != "[]" })
		w.Link("co").Partition()
		cancel()
		wantErr(w.t, <-done, context.Canceled)
		for _, a := range list {
			w.eventually("aborted", func() bool { return a.did() == "[prepare t1:p abort t1:p]" })
		}
		if late := time.Since(p.Deadline); late > w.timeout {
			w.t.Errorf("decided %v after the deadline", late)
		}
		// Its decision is still owed to who proposes it again.
		w.Link("co").Heal()
		d := mustPropose(w.t, coord.NewCoordinator[string](w.open("co again", nil), "/tx", nil), p)
		if d.Commit {
			w.t.Errorf("%+v", d)
		}
		w.over("a", "b")
	})
}

// The coordinator dies when it has decided and before it has said so.
func TestADecisionOutlivesItsCoordinator(t *testing.T) {
	for _, retry := range []bool{false, true} {
		t.Run(fmt.Sprintf("retry=%v", retry), func(t *testing.T) {
			onEach(t, func(w *world) {
				list := w.accounts("a", "b")
				var x nth
				c := w.open("co", &backendtest.Hooks{After: x.after})
				ctx, cancel := context.WithCancel(context.Background())
				x.arm(1, func(c backendtest.Call) bool {
					return c.Op == "commit" && len(c.Ops) == 3 && c.Ops[2].Kind == backend.OpCreate && c.Ops[0].Kind == backend.OpCheck
				}, func(_ context.Context, _ backendtest.Call, err error) error {
					if err != nil {
						w.t.Error(err)
					}
					w.Link("co").Partition()
					cancel()
					return backend.Uncertain(context.Canceled)
				})
				p := w.proposal("t1", "a", "b")
				d, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, p)
				wantErr(w.t, err, context.Canceled)
				if d.ID != "t1" {
					w.t.Errorf("%+v", d)
				}
				for _, a := range list {
					w.eventually("committed", func() bool { return a.did() == "[prepare t1:p commit t1:p]" })
				}
				co := coord.NewCoordinator[string](w.open("co again", nil), "/tx", nil)
				if retry {
					d = mustPropose(w.t, co, p)
				} else {
					list, err := co.Recover(context.Background())
					if err != nil || len(list) != 1 {
						w.t.Fatal(list, err)
					}
					d = list[0]
				}
				if !d.Commit || d.ID != "t1" {
					w.t.Errorf("%+v", d)
				}
				w.Link("co").Heal()
				if retry { // the live node of the dead one goes with its session
					if _, err := co.Recover(context.Background()); err != nil {
						w.t.Error(err)
					}
				}
				w.over("a", "b")
				for _, a := range list {
					if got := a.did(); got != "[prepare t1:p commit t1:p]" {
						w.t.Errorf("%s: %s", a.name, got)
					}
				}
			})
		})
	}
}

// A site loses its session between its vote and the decision.
func TestASiteThatExpiresWhilePreparedLearnsTheDecision(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a", "b")
		a, b := list[0], list[1]
		let := make(chan struct{})
		b.votes(func(context.Context, coord.Ballot[string]) error { <-let; return nil })
		co := coord.NewCoordinator[string](w.open("co", nil), "/tx", nil)
		result := make(chan coord.Decision)
		go func() {
			d, err := co.Propose(context.Background(), w.proposal("t1", "a", "b"))
			if err != nil {
				w.t.Error(err)
			}
			result <- d
		}()
		w.eventually("a has voted", func() bool {
			st, err := co.Status(context.Background(), "t1")
			return err == nil && st.Sites[0].Yes
		})
		stat, err := w.stat("/tx/serving/a/" + w.children("/tx/serving/a")[0])
		if err != nil {
			w.t.Fatal(err)
		}
		w.Link("site a").Expire(stat.EphemeralOwner)
		close(let)
		if d := <-result; !d.Commit {
			w.t.Errorf("%+v", d)
		}
		w.over("a", "b")
		for _, a := range []*account{a, b} {
			if got := a.did(); got != "[prepare t1:p commit t1:p]" {
				w.t.Errorf("%s: %s", a.name, got)
			}
		}
	})
}

// A site is dead when a commit is decided, and commits when it is served again.
func TestACommitWaitsForEverySite(t *testing.T) {
	onEach(t, func(w *world) {
		b := w.accounts("b")[0]
		a := &account{w: w, name: "a"}
		stop := a.serve(w.open("site a", nil))
		w.served("a", "b")
		let := make(chan struct{})
		b.votes(func(context.Context, coord.Ballot[string]) error { <-let; return nil })
		co := coord.NewCoordinator[string](w.open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Keep: true})
		result := make(chan coord.Decision)
		go func() {
			d, err := co.Propose(context.Background(), w.proposal("t1", "a", "b"))
			if err != nil {
				w.t.Error(err)
			}
			result <- d
		}()
		status := func() coord.ProposalStatus {
			st, err := co.Status(context.Background(), "t1")
			if err != nil && !errors.Is(err, coord.ErrNotFound) {
				w.t.Error(err)
			}
			return st
		}
		w.eventually("a has voted", func() bool { st := status(); return len(st.Sites) == 2 && st.Sites[0].Yes })
		if st := status(); st.Decided || st.Told || !st.Proposed || !st.Sites[0].Voted || st.Sites[1].Voted || st.Since.IsZero() || !st.Sites[0].Served {
			w.t.Errorf("%+v", st)
		}
		wantErr(w.t, co.Forget(context.Background(), "t1"), coord.ErrInvalid)
		stop()
		close(let)
		if d := <-result; !d.Commit {
			w.t.Errorf("%+v", d)
		}
		w.eventually("b is done", func() bool { return status().Sites[1].Acknowledged })
		w.eventually("the proposer has left", func() bool { return !status().Proposed })
		if st := status(); !st.Decided || !st.Decision.Commit || st.Sites[0].Acknowledged || !st.Sites[0].Yes || st.Sites[0].Served {
			w.t.Errorf("%+v", st)
		}
		// The record is kept: proposing it again is no new transaction.
		d := mustPropose(w.t, co, w.proposal("t1", "a", "b"))
		if list, err := co.Recover(context.Background()); err != nil || len(list) != 1 || list[0] != d || !d.Commit {
			w.t.Error(list, err)
		}
		if err := co.Forget(context.Background(), "t1"); err != nil {
			w.t.Error(err)
		}
		if list, err := co.List(context.Background()); err != nil || len(list) != 1 || !list[0].Told {
			w.t.Errorf("%+v, %v", list, err)
		}
		a.serve(w.open("site a", nil))
		w.over("a", "b")
		if got := a.did(); got != "[prepare t1:p commit t1:p]" {
			w.t.Error(got)
		}
		if err := co.Forget(context.Background(), "t1"); err != nil {
			w.t.Error(err)
		}
	})
}

// A dead site holds up nothing, and an abort does not wait for it. It learns of
// it later.
func TestAnAbortDoesNotWaitForASiteThatDidNotVote(t *testing.T) {
	onEach(t, func(w *world) {
		w.accounts("b")
		a := &account{w: w, name: "a"}
		stop := a.serve(w.open("site a", nil))
		w.served("a")
		stop()
		co := coord.NewCoordinator(w.open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Second)
		if d := mustPropose(w.t, co, p); d.Commit {
			w.t.Errorf("%+v", d)
		}
		w.over("b")
		a.serve(w.open("site a", nil))
		w.over("a")
		if got := a.did(); got != "[abort t1:]" {
			w.t.Error(got)
		}
	})
}
