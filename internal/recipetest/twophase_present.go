package recipetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

func unserved(u coord.Unserved) *coord.CoordinatorOptions[string] {
	return &coord.CoordinatorOptions[string]{Unserved: u}
}

// isAskedForEver is a Prepare that ends with its context.
func isAskedForEver(ctx context.Context, _ coord.Branch[string]) error {
	<-ctx.Done()
	return ctx.Err()
}

// proposed is the result of a Propose.
type proposed struct {
	d   coord.Decision
	err error
}

// proposeLater proposes in the background.
func proposeLater(co *coord.Coordinator[string], p coord.Proposal[string]) <-chan proposed {
	ch := make(chan proposed, 1)
	go func() {
		d, err := co.Propose(context.Background(), p)
		ch <- proposed{d, err}
	}()
	return ch
}

// twophasePresentTests are tests of TwoPhase on each service.
type twophasePresentTests struct{ Services }

// A site was stopped before it is proposed to.
func (on twophasePresentTests) ASiteThatIsNotServedIsNamed(t *testing.T) {
	on.each(t, func(w *world) {
		list := w.accounts("a")
		b := &account{w: w, name: "b"}
		stop := b.serve(w.Open("site b", nil))
		w.served("b")
		stop()
		if left := w.Children("/tx/present"); !slices.Equal(left, []string{"a"}) {
			w.T.Errorf("present after Serve has returned: %v", left)
		}
		c := w.Open("co", nil)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		d, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), p)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if d.ID != "t1" || d.Zxid != 0 || err == nil || !strings.Contains(err.Error(), `site "b" is not served`) {
			w.T.Errorf("%+v, %v", d, err)
		}
		if left := w.Children("/tx/tx"); len(left) > 0 || len(w.Children("/tx/sites/a")) > 0 || list[0].did() != "[]" {
			w.T.Errorf("created nevertheless: %v; a did %s", left, list[0].did())
		}
		_, err = coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), w.proposal("t1", "a", "nobody"))
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if err == nil || !strings.Contains(err.Error(), `site "nobody" was never served`) {
			w.T.Error(err)
		}
		d = mustPropose(w.T, coord.NewCoordinator(c, "/tx", unserved(coord.AbortUnserved)), p)
		if d.Commit || d.By != "proposer" || d.Reason != `site "b" is not served` {
			w.T.Errorf("%+v", d)
		}
		_, err = coord.NewCoordinator(c, "/tx", unserved(3)).Propose(context.Background(), p)
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
	})
}

// A site is cut off before it has voted: its session ends, an hour before the deadline.
func (on twophasePresentTests) ASiteThatDiesBeforeItsVoteAborts(t *testing.T) {
	on.each(t, func(w *world) {
		list := w.accounts("a", "b")
		list[1].votes(isAskedForEver)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		result := proposeLater(coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), p)
		w.Eventually("b is asked", func() bool { return list[1].did() == "[prepare t1:p]" })
		began := time.Now()
		w.Link("site b").Partition()
		r := <-result
		if r.err != nil || r.d.Commit || r.d.By != "proposer" || r.d.Reason != `site "b" is not served` {
			w.T.Errorf("%+v", r)
		}
		if took := time.Since(began); w.Fake && took > w.Timeout {
			w.T.Errorf("took %v", took)
		}
		if left := w.Children("/tx/serving/b"); len(left) > 0 {
			w.T.Errorf("its session has not ended: %v", left)
		}
		w.Eventually("a aborts", func() bool { return list[0].did() == "[prepare t1:p abort t1:p]" })
		w.Link("site b").Heal()
		w.over("a", "b")
	})
}

// Another process waits for the site when the session of the first one ends: it votes.
func (on twophasePresentTests) ASiteThatIsTakenOverDoesNotAbort(t *testing.T) {
	on.each(t, func(w *world) {
		first, second := &account{w: w, name: "b"}, &account{w: w, name: "b"}
		first.votes(isAskedForEver)
		first.serve(w.Open("first", nil))
		w.served("b")
		second.serve(w.Open("second", nil))
		w.Eventually("the second waits", func() bool { return len(w.Children("/tx/serving/b")) == 2 })
		p := w.proposal("t1", "b")
		p.Deadline = time.Now().Add(time.Hour)
		result := proposeLater(coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), p)
		w.Eventually("the first is asked", func() bool { return first.did() == "[prepare t1:p]" })
		w.Link("first").Partition()
		if r := <-result; r.err != nil || !r.d.Commit {
			w.T.Errorf("%+v", r)
		}
		w.over("b")
		w.Link("first").Heal()
	})
}

// An outsider deletes the node that says that a site is served.
func (on twophasePresentTests) AServedSiteRecreatesItsPresence(t *testing.T) {
	on.each(t, func(w *world) {
		w.accounts("a")
		s := w.Session("outsider")
		for range 2 {
			if _, err := s.Commit(context.Background(), backend.Delete(w.Path("/tx/present/a"), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			w.served("a")
		}
		if d := mustPropose(w.T, coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), w.proposal("t1", "a")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("a")
	})
}

func (on twophasePresentTests) ASiteThatIsGoneForGoodIsRemoved(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		b := w.accounts("b")[0]
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a")
		let := make(chan struct{})
		b.votes(func(ctx context.Context, tx coord.Branch[string]) error {
			select {
			case <-let:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", unserved(coord.AwaitUnserved))
		commit := proposeLater(co, w.proposal("commit", "a", "b"))
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(ctx, "commit")
			return err == nil && st.Sites[0].Yes
		})
		_, err := co.RemoveSite(ctx, "a")
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		_, err = co.RemoveSite(ctx, "nobody")
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		stop()
		w.orphan("doubt", "a", backend.SetData(w.Path("/tx/sites/a/doubt~"+orphanMark), []byte("yes"), 0))
		w.Destroy(w.Path("/tx/tx/doubt"))
		undecided := proposeLater(co, w.proposal("undecided", "a", "b"))
		close(let)
		d := <-commit
		if d.err != nil || !d.d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.Eventually("the other transaction is created", func() bool { return len(w.Children("/tx/sites/a")) == 3 })
		list, err := co.RemoveSite(ctx, "a")
		if err != nil || len(list) != 1 || list[0].ID != "commit" || list[0].Zxid != d.d.Zxid || !list[0].Commit {
			w.T.Errorf("%+v, %v", list, err)
		}
		if r := <-undecided; r.err != nil || r.d.Commit || r.d.Reason != "the site was removed" {
			w.T.Errorf("%+v", r)
		}
		w.over("b")
		if slices.Contains(w.Children("/tx/sites"), "a") {
			w.T.Error("the inbox still exists")
		}
		_, err = co.Propose(ctx, w.proposal("t1", "a", "b"))
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if got := a.did(); got != "[prepare commit:p]" {
			w.T.Error(got)
		}
		// The site can be served again.
		a.serve(w.Open("site a again", nil))
		w.served("a")
		if d := mustPropose(w.T, co, w.proposal("t1", "a", "b")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("a", "b")
	})
}

// A branch is created between RemoveSite's look at the inbox and its removal.
func (on twophasePresentTests) ASiteIsRemovedWhileItIsProposedTo(t *testing.T) {
	on.each(t, func(w *world) {
		stop := (&account{w: w, name: "a"}).serve(w.Open("site a", nil))
		w.served("a")
		stop()
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", unserved(coord.AwaitUnserved))
		var result <-chan proposed
		var x coordtest.Nth
		x.Arm(1, func(c backendtest.Call) bool {
			return coordtest.Deletes(c) && c.Ops[len(c.Ops)-1].Path == w.Path("/tx/sites/a")
		},
			func(context.Context, backendtest.Call, error) error {
				result = proposeLater(co, w.proposal("t1", "a"))
				w.Eventually("it is made", func() bool { return len(w.Children("/tx/sites/a")) == 1 })
				return nil
			})
		remover := coord.NewCoordinator[string](w.Open("remover", &backendtest.Hooks{Before: x.Before}), "/tx", nil)
		list, err := remover.RemoveSite(context.Background(), "a")
		if len(list) > 0 || err != nil {
			w.T.Errorf("%+v, %v", list, err)
		}
		if r := <-result; r.err != nil || r.d.Commit || r.d.Reason != "the site was removed" {
			w.T.Errorf("%+v", r)
		}
		w.over()
		// A foreign node is not removed.
		if _, err := w.Session("operator").Commit(context.Background(),
			backend.Create(w.Path("/tx/sites/a"), nil, backend.Persistent),
			backend.Create(w.Path("/tx/sites/a/README"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		_, err = remover.RemoveSite(context.Background(), "a")
		coordtest.WantErr(w.T, err, backend.ErrNotEmpty)
	})
}

// A proposer that gives up does not abort a transaction that another one proposes too.
func (on twophasePresentTests) AProposerThatGivesUpDoesNotAbortForAnother(t *testing.T) {
	on.each(t, func(w *world) {
		a := w.accounts("a")[0]
		let := make(chan struct{})
		a.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		p := w.proposal("t1", "a")
		p.Deadline = time.Now().Add(time.Hour)
		first, giveUp := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		c := w.Open("first", nil)
		go func() {
			_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(first, p)
			gone <- err
		}()
		result := proposeLater(coord.NewCoordinator[string](w.Open("second", nil), "/tx", nil), p)
		live := func() (n int) {
			for _, name := range w.Children("/tx/tx/t1") {
				if strings.HasPrefix(name, "live-") {
					n++
				}
			}
			return n
		}
		w.Eventually("both propose", func() bool { return live() == 2 })
		giveUp()
		coordtest.WantErr(w.T, <-gone, context.Canceled)
		c.Close() // waits for the clean-up of the first one
		if live() != 1 {
			w.T.Errorf("%d live nodes", live())
		}
		close(let)
		if r := <-result; r.err != nil || !r.d.Commit {
			w.T.Errorf("%+v", r)
		}
		w.over("a")
	})
}

// A persistent node in the place of a site's presence, as a restored backup or a copied tree has
// it, does not serve the site.
func (on twophasePresentTests) AForeignNodeServesNoSite(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a")
		stop()
		w.commit(backend.Create(w.Path("/tx/present/a"), nil, backend.Persistent))
		w.orphan("t", "a")
		c := w.Open("c", nil)
		st, err := coord.NewCoordinator[string](c, "/tx", nil).Status(ctx, "t")
		if err != nil || st.Sites[0].Served {
			w.T.Errorf("Status: %+v, %v", st, err)
		}
		in, err := inspect.Path(ctx, c, "/tx", nil)
		if err != nil || in.TwoPhase.Sites[0].Served || in.TwoPhase.Transactions[0].Votes[0].Served {
			w.T.Errorf("%v\n%s", err, in)
		}
		in, err = inspect.Path(ctx, c, "/tx/sites/a", nil)
		if err != nil || in.Inbox.Served {
			w.T.Errorf("%v\n%s", err, in)
		}
		// A process that serves the site replaces the node.
		a.serve(w.Open("site a again", nil))
		w.Eventually("the site is served", func() bool {
			st, err := coord.NewCoordinator[string](c, "/tx", nil).List(ctx)
			return err == nil && st[0].Sites[0].Served
		})
	})
}
