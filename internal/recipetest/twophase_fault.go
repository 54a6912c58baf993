package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// twophaseFaultTests are tests of TwoPhase on each service.
type twophaseFaultTests struct{ Services }

// Half of the sites are prepared when the coordinator dies. They do not wait for
// it: at the deadline one of them decides.
func (on twophaseFaultTests) SitesDoNotWaitForADeadCoordinator(t *testing.T) {
	on.each(t, func(w *world) {
		list := w.accounts("a", "b")
		list[1].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		c := w.Open("co", nil)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(4 * time.Second)
		if !w.Fake {
			p.Deadline = p.Deadline.Add(10 * time.Second) // a busy machine asks the sites later
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, p)
			done <- err
		}()
		w.Eventually("the sites are asked", func() bool { return list[0].did() != "[]" && list[1].did() != "[]" })
		w.Link("co").Partition()
		cancel()
		coordtest.WantErr(w.T, <-done, context.Canceled)
		for _, a := range list {
			w.Eventually("aborted", func() bool { return a.did() == "[prepare t1:p abort t1:p]" })
		}
		if late := time.Since(p.Deadline); w.Fake && late > w.Timeout {
			w.T.Errorf("decided %v after the deadline", late)
		}
		// The decision is kept for a proposer that proposes the transaction again.
		w.Link("co").Heal()
		d := mustPropose(w.T, coord.NewCoordinator[string](w.Open("co again", nil), "/tx", nil), p)
		if d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("a", "b")
	})
}

// The coordinator dies after its decision is committed and before Propose returns it.
func (on twophaseFaultTests) ADecisionOutlivesItsCoordinator(t *testing.T) {
	t.Parallel()
	for _, retry := range []bool{false, true} {
		t.Run(fmt.Sprintf("retry=%v", retry), func(t *testing.T) {
			on.each(t, func(w *world) {
				list := w.accounts("a", "b")
				var x coordtest.Nth
				c := w.Open("co", &backendtest.Hooks{After: x.After})
				ctx, cancel := context.WithCancel(context.Background())
				x.Arm(1, func(c backendtest.Call) bool {
					return c.Op == "commit" && len(c.Ops) == 3 && c.Ops[2].Kind == backend.OpCreate && c.Ops[0].Kind == backend.OpCheck
				}, func(_ context.Context, _ backendtest.Call, err error) error {
					if err != nil {
						w.T.Error(err)
					}
					w.Link("co").Partition()
					cancel()
					return backend.Uncertain(context.Canceled)
				})
				p := w.proposal("t1", "a", "b")
				d, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, p)
				coordtest.WantErr(w.T, err, context.Canceled)
				if d.ID != "t1" {
					w.T.Errorf("%+v", d)
				}
				for _, a := range list {
					w.Eventually("committed", func() bool { return a.did() == "[prepare t1:p commit t1:p]" })
				}
				co := coord.NewCoordinator[string](w.Open("co again", nil), "/tx", nil)
				if retry {
					d = mustPropose(w.T, co, p)
				} else {
					list, err := co.Recover(context.Background())
					if err != nil || len(list) != 1 {
						w.T.Fatal(list, err)
					}
					d = list[0]
				}
				if !d.Commit || d.ID != "t1" {
					w.T.Errorf("%+v", d)
				}
				w.Link("co").Heal()
				if retry { // the live node of the dead proposer is removed with its session
					if _, err := co.Recover(context.Background()); err != nil {
						w.T.Error(err)
					}
				}
				w.over("a", "b")
				for _, a := range list {
					if got := a.did(); got != "[prepare t1:p commit t1:p]" {
						w.T.Errorf("%s: %s", a.name, got)
					}
				}
			})
		})
	}
}

// A site loses its session between its vote and the decision.
func (on twophaseFaultTests) ASiteThatExpiresWhilePreparedLearnsTheDecision(t *testing.T) {
	on.each(t, func(w *world) {
		list := w.accounts("a", "b")
		a, b := list[0], list[1]
		let := make(chan struct{})
		b.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		result := make(chan coord.Decision)
		go func() {
			d, err := co.Propose(context.Background(), w.proposal("t1", "a", "b"))
			if err != nil {
				w.T.Error(err)
			}
			result <- d
		}()
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(context.Background(), "t1")
			return err == nil && st.Sites[0].Yes
		})
		stat, err := w.stat("/tx/serving/a/" + w.Children("/tx/serving/a")[0])
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("site a").Expire(stat.EphemeralOwner)
		close(let)
		if d := <-result; !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("a", "b")
		for _, a := range []*account{a, b} {
			if got := a.did(); got != "[prepare t1:p commit t1:p]" {
				w.T.Errorf("%s: %s", a.name, got)
			}
		}
	})
}

// A site is dead when a commit is decided, and commits when it is served again.
func (on twophaseFaultTests) ACommitWaitsForEverySite(t *testing.T) {
	on.each(t, func(w *world) {
		b := w.accounts("b")[0]
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a", "b")
		let := make(chan struct{})
		b.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", &coord.CoordinatorOptions[string]{KeepRecords: true})
		result := make(chan coord.Decision)
		go func() {
			d, err := co.Propose(context.Background(), w.proposal("t1", "a", "b"))
			if err != nil {
				w.T.Error(err)
			}
			result <- d
		}()
		status := func() coord.ProposalStatus {
			st, err := co.Status(context.Background(), "t1")
			if err != nil && !errors.Is(err, coord.ErrNotFound) {
				w.T.Error(err)
			}
			return st
		}
		w.Eventually("a has voted", func() bool { st := status(); return len(st.Sites) == 2 && st.Sites[0].Yes })
		if st := status(); st.Decided || st.Told || !st.Proposed || !st.Sites[0].Voted || st.Sites[1].Voted || st.Since.IsZero() || !st.Sites[0].Served {
			w.T.Errorf("%+v", st)
		}
		coordtest.WantErr(w.T, co.Forget(context.Background(), "t1"), coord.ErrInvalid)
		stop()
		close(let)
		if d := <-result; !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.Eventually("b is done", func() bool { return status().Sites[1].Acknowledged })
		w.Eventually("the proposer has left", func() bool { return !status().Proposed })
		if st := status(); !st.Decided || !st.Decision.Commit || st.Sites[0].Acknowledged || !st.Sites[0].Yes || st.Sites[0].Served {
			w.T.Errorf("%+v", st)
		}
		// The record is kept: proposing it again is no new transaction.
		d := mustPropose(w.T, co, w.proposal("t1", "a", "b"))
		if list, err := co.Recover(context.Background()); err != nil || len(list) != 1 || list[0] != d || !d.Commit {
			w.T.Error(list, err)
		}
		if err := co.Forget(context.Background(), "t1"); err != nil {
			w.T.Error(err)
		}
		if list, err := co.List(context.Background()); err != nil || len(list) != 1 || !list[0].Told {
			w.T.Errorf("%+v, %v", list, err)
		}
		a.serve(w.Open("site a", nil))
		w.over("a", "b")
		if got := a.did(); got != "[prepare t1:p commit t1:p]" {
			w.T.Error(got)
		}
		if err := co.Forget(context.Background(), "t1"); err != nil {
			w.T.Error(err)
		}
	})
}

// An abort does not wait for a dead site. The site learns of it later.
func (on twophaseFaultTests) AnAbortDoesNotWaitForASiteThatDidNotVote(t *testing.T) {
	on.each(t, func(w *world) {
		w.accounts("b")
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a")
		stop()
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Second)
		if d := mustPropose(w.T, co, p); d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("b")
		a.serve(w.Open("site a", nil))
		w.over("a")
		if got := a.did(); got != "[abort t1:]" {
			w.T.Error(got)
		}
	})
}

// The codec of a site panics at the payload of one transaction. The site votes no, as for any payload
// that it cannot decode, and continues to serve.
func (on twophaseFaultTests) APayloadAtWhichTheCodecPanicsIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		a := &account{w: w, name: "a", codec: panicAt("secret")}
		a.serve(w.Open("site a", nil))
		w.served("a")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		p := w.proposal("t1", "a")
		p.Payload = "secret"
		if d := mustPropose(w.T, co, p); d.Commit || d.By != "site a" || !strings.Contains(d.Reason, "panicked") || strings.Contains(d.Reason, "secret") {
			w.T.Errorf("%+v", d)
		}
		w.over("a") // else t2 can be prepared before the abort of t1
		if d := mustPropose(w.T, co, w.proposal("t2", "a")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("a")
		if got := a.did(); got != "[abort t1: prepare t2:p commit t2:p]" {
			w.T.Error(got)
		}
	})
}

// A site is started again with a codec that panics at the payload of a transaction that it has to
// commit. Other transactions continue, and this one when the codec is mended.
func (on twophaseFaultTests) ACodecThatPanicsAtACommitDelaysItsTransactionOnly(t *testing.T) {
	on.each(t, func(w *world) {
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		a, b, let := w.votedAway(co)
		let()
		b.votes(nil)
		a.codec = panicAt("p")
		stop := a.serve(w.Open("site a again", nil))
		w.served("a")
		p := w.proposal("t2", "a", "b")
		p.Payload = "q"
		if d := mustPropose(w.T, co, p); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		// When the record is removed, a has acknowledged; before that a commit may be repeated.
		w.Eventually("t2 is over", func() bool {
			_, err := co.Status(context.Background(), "t2")
			return errors.Is(err, coord.ErrNotFound)
		})
		if got := a.did(); got != "[prepare t1:p prepare t2:q commit t2:q]" {
			w.T.Error(got)
		}
		stop()
		a.codec = coord.Codec[string]{}
		a.serve(w.Open("site a with another codec", nil))
		w.over("a", "b")
		if got := a.did(); got != "[prepare t1:p prepare t2:q commit t2:q commit t1:p]" {
			w.T.Error(got)
		}
	})
}

// panicAt is JSON, and panics at one value.
func panicAt(value string) coord.Codec[string] {
	k := coord.JSON[string]()
	return coord.Codec[string]{Encode: k.Encode, Decode: func(data []byte) (string, error) {
		v, err := k.Decode(data)
		if v == value {
			panic("not this one: " + v)
		}
		return v, err
	}}
}

// Two clients forget a transaction at once.
func (on twophaseFaultTests) AForgetWhoseRecordAnotherOneRemoves(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		w.accounts("a")
		keep := &coord.CoordinatorOptions[string]{KeepRecords: true}
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", keep)
		mustPropose(w.T, co, w.proposal("t1", "a"))
		var read coordtest.Nth
		read.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && c.Path == w.Path("/tx/tx/t1") }, func(_ context.Context, _ backendtest.Call, err error) error {
			w.must(co.Forget(ctx, "t1"))
			w.over("a")
			return err
		})
		other := coord.NewCoordinator(w.Open("other", &backendtest.Hooks{After: read.After}), "/tx", keep)
		if err := other.Forget(ctx, "t1"); err != nil || !read.Idle() {
			w.T.Error(err, read.Idle())
		}
	})
}
