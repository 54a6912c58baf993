package recipetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/layout"
)

// overwrite has an outsider write a node of a recipe.
func (w *world) overwrite(path, data string) {
	w.T.Helper()
	if _, err := w.Session("outsider").Commit(context.Background(), backend.SetData(w.Path(path), []byte(data), backend.AnyVersion)); err != nil {
		w.T.Fatal(err)
	}
}

// doubtful serves the site a with an InDoubt.
func (w *world) doubtful() (a *account, stop func()) {
	a = &account{w: w, name: "a", doubts: make(chan error, 10)}
	stop = a.serve(w.Open("site a", nil))
	w.served("a")
	return a, stop
}

// inDoubtAbout receives the error of a call of InDoubt, which must name the node.
func (a *account) inDoubtAbout(node string) {
	a.w.T.Helper()
	select {
	case err := <-a.doubts:
		coordtest.WantErr(a.w.T, err, coord.ErrInDoubt)
		var e *backend.Error
		if !errors.As(err, &e) || e.Path != a.w.Path(node) {
			a.w.T.Errorf("in doubt about %v, want %s", err, node)
		}
	case <-time.After(time.Minute):
		a.w.T.Fatal("InDoubt is not called")
	}
}

const orphanMark = "00000000-0000-8000-8000-000000000001"

// orphan creates a transaction of one site whose proposer is dead, together with ops.
func (w *world) orphan(id, site string, ops ...backend.Op) {
	w.T.Helper()
	s, ctx := w.Session("dead proposer"), context.Background()
	_, err := s.Commit(ctx, backend.Create(w.Path("/tx/tx"), nil, backend.Persistent))
	if err != nil && !errors.Is(err, coord.ErrExists) {
		w.T.Fatal(err)
	}
	record := `{"mark":"` + orphanMark + `","sites":["` + site + `"],"deadline":99999999999999,"payload":"InAi"}`
	if _, err := s.Commit(ctx, append([]backend.Op{
		backend.Create(w.Path("/tx/tx/"+id), []byte(record), backend.Persistent),
		backend.Create(w.Path("/tx/tx/"+id+"/open-"+orphanMark), nil, backend.Persistent),
		backend.Create(w.Path("/tx/sites/"+site+"/"+id+"~"+orphanMark), nil, backend.Persistent),
	}, ops...)...); err != nil {
		w.T.Fatal(err)
	}
}

// twophaseDoubtTests are tests of TwoPhase on each service.
type twophaseDoubtTests struct{ Services }

// The sites of a transaction with a bad decision are in doubt about it, and serve other
// transactions. List and Recover work too.
func (on twophaseDoubtTests) ABadDecisionCostsItsTransactionOnly(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, stop := w.doubtful()
		b := w.accounts("b")[0]
		b.votes(func(ctx context.Context, tx coord.Branch[string]) error {
			if tx.ID == "bad" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		result := make(chan error, 1)
		go func() {
			_, err := co.Propose(ctx, w.proposal("bad", "a", "b"))
			result <- err
		}()
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(ctx, "bad")
			return err == nil && st.Sites[0].Yes
		})
		st, err := co.Status(ctx, "bad")
		if err != nil {
			w.T.Fatal(err)
		}
		decision := "/tx/tx/bad/" + layout.DecisionName(st.Zxid)
		if _, err := w.Session("outsider").Commit(ctx, backend.Create(w.Path(decision), []byte("{}"), backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, <-result, coord.ErrInDoubt, coord.ErrDecode)
		a.inDoubtAbout(decision)
		// b has not voted, so there can have been no commit.
		w.Eventually("b aborts", func() bool { return b.did() == "[prepare bad:p abort bad:p]" })

		check := func(id string) {
			w.T.Helper()
			if d := mustPropose(w.T, co, w.proposal(id, "a", "b")); !d.Commit {
				w.T.Errorf("%+v", d)
			}
			w.Eventually("it is finished", func() bool { return slices.Equal(w.Children("/tx/tx"), []string{"bad"}) })
			list, err := co.List(ctx)
			if err != nil || len(list) != 1 || !list[0].InDoubt || list[0].Decided {
				w.T.Errorf("%+v, %v", list, err)
			}
			if list, err := co.Recover(ctx); err != nil || len(list) != 0 {
				w.T.Errorf("%+v, %v", list, err)
			}
			coordtest.WantErr(w.T, co.Forget(ctx, "bad"), coord.ErrInDoubt)
		}
		check("t1")
		stop()
		stop = a.serve(w.Open("site a again", nil))
		w.served("a")
		a.inDoubtAbout(decision)
		check("t2")
		if n := len(a.doubts); n > 0 {
			w.T.Errorf("InDoubt was called %d times more", n)
		}
		// An operator determines the decision, and repairs the node, with coordctl's value set.
		operator := coord.NewValue(w.Open("operator", nil), decision, &coord.ValueOptions[string]{Codec: coord.Text()})
		if _, err := operator.Set(ctx, `{"commit":false}`); err != nil {
			w.T.Fatal(err)
		}
		w.Eventually("a aborts", func() bool { return strings.Contains(a.did(), "abort bad:p") })
		if list, err := co.Recover(ctx); err != nil || len(list) != 1 || list[0].ID != "bad" || list[0].Commit {
			w.T.Errorf("%+v, %v", list, err)
		}
		w.over("a", "b")
		stop()
	})
}

// The record of a committed transaction is overwritten before a site has read it.
func (on twophaseDoubtTests) ACommittedRecordThatIsOverwrittenLeavesItsSiteInDoubt(t *testing.T) {
	on.each(t, func(w *world) {
		a, stop := w.doubtful()
		b := w.accounts("b")[0]
		let := make(chan struct{})
		b.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		result := make(chan coord.Decision, 1)
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
		stop()
		close(let)
		if d := <-result; !d.Commit {
			w.T.Errorf("%+v", d)
		}
		record, _, err := w.Session("reader").Get(context.Background(), w.Path("/tx/tx/t1"), nil)
		if err != nil {
			w.T.Fatal(err)
		}
		w.overwrite("/tx/tx/t1", "vandal was here")
		stop = a.serve(w.Open("site a again", nil))
		w.served("a")
		a.inDoubtAbout("/tx/tx/t1")
		b.votes(nil)
		if d := mustPropose(w.T, co, w.proposal("t2", "a", "b")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.Eventually("a continues", func() bool { return a.did() == "[prepare t1:p prepare t2:p commit t2:p]" })
		w.overwrite("/tx/tx/t1", string(record))
		w.over("a", "b")
		if got := a.did(); got != "[prepare t1:p prepare t2:p commit t2:p commit t1:p]" {
			w.T.Error(got)
		}
		stop()
	})
}

// The record is destroyed while its sites wait for the decision, an hour before their
// deadline.
func (on twophaseDoubtTests) ASiteInDoubtIsCalledAtOnce(t *testing.T) {
	on.each(t, func(w *world) {
		a, stop := w.doubtful()
		w.accounts("b")[0].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		result := make(chan error, 1)
		go func() {
			_, err := co.Propose(context.Background(), p)
			result <- err
		}()
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(context.Background(), "t1")
			return err == nil && st.Sites[0].Yes
		})
		w.Settle()
		branch := "/tx/sites/a/" + w.Children("/tx/sites/a")[0]
		began := time.Now()
		w.Destroy(w.Path("/tx/tx/t1"))
		coordtest.WantErr(w.T, <-result, coord.ErrInDoubt)
		a.inDoubtAbout(branch)
		if took := time.Since(began); w.Fake && took > 0 {
			w.T.Errorf("called after %v", took)
		}
		// An operator removes the branch, with coordctl's value delete.
		operator := coord.NewValue(w.Open("operator", nil), branch, &coord.ValueOptions[string]{Codec: coord.Text()})
		yes, err := operator.Get(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		if err := operator.Delete(context.Background(), yes); err != nil {
			w.T.Fatal(err)
		}
		w.over("a")
		stop()
	})
}
