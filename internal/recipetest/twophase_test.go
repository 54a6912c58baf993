package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

func TestTwoPhase_BadProposalsAreRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		w.accounts("a")
		ctx := context.Background()
		c := w.Open("co", nil)
		co := coord.NewCoordinator[string](c, "/tx", nil)
		many := make([]string, coord.MaxSites+1)
		for i := range many {
			many[i] = fmt.Sprint("s", i)
		}
		for name, tt := range map[string]struct {
			p    coord.Proposal[string]
			want error
		}{
			"no id":            {coord.Proposal[string]{Sites: []string{"a"}}, coord.ErrInvalid},
			"a path as id":     {coord.Proposal[string]{ID: "a/b", Sites: []string{"a"}}, coord.ErrInvalid},
			"no site":          {coord.Proposal[string]{ID: "t"}, coord.ErrInvalid},
			"too many sites":   {coord.Proposal[string]{ID: "t", Sites: many}, coord.ErrInvalid},
			"a site twice":     {coord.Proposal[string]{ID: "t", Sites: []string{"a", "b", "a"}}, coord.ErrInvalid},
			"a bad site":       {coord.Proposal[string]{ID: "t", Sites: []string{".."}}, coord.ErrInvalid},
			"an unknown site":  {coord.Proposal[string]{ID: "t", Sites: []string{"a", "b"}}, coord.ErrNotFound},
			"too much payload": {coord.Proposal[string]{ID: "t", Sites: []string{"a"}, Payload: string(make([]byte, 900_000))}, coord.ErrTooLarge},
		} {
			d, err := co.Propose(ctx, tt.p)
			if coordtest.WantErr(w.T, err, tt.want); w.T.Failed() || d.ID != tt.p.ID {
				w.T.Fatal(name, d)
			}
		}
		_, err := coord.NewCoordinator[string](c, "bad", nil).Propose(ctx, coord.Proposal[string]{})
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		_, err = coord.NewCoordinator(c, "/tx", &coord.CoordinatorOptions[string]{Timeout: -1}).Recover(ctx)
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		_, err = co.Status(ctx, "a/b")
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		coordtest.WantErr(w.T, coord.NewParticipant(c, "/tx", "a", coord.Handler[string]{}).Serve(ctx), coord.ErrInvalid)
		w.over("a")
		// A site that cannot decode the payload votes no.
		n := coord.NewCoordinator[int](c, "/tx", nil)
		d, err := n.Propose(ctx, coord.Proposal[int]{ID: "t", Sites: []string{"a"}, Payload: 7})
		if err != nil || d.Commit || d.By != "site a" {
			w.T.Error(d, err)
		}
		w.over("a")
		c.Close()
		_, err = co.Propose(ctx, w.proposal("t", "a"))
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

// siteScene is one site with the test's handler, and a coordinator.
type siteScene struct {
	t      *testing.T
	st     *memory.Store
	co     *coord.Coordinator[string]
	events []trace.ProposalDecided
	stop   func()
}

func newSiteScene(t *testing.T, h coord.Handler[string]) *siteScene {
	x := &siteScene{t: t, st: memory.New(nil)}
	x.co = coord.NewCoordinator[string](coordtest.Open(t, x.st.Link("co"), nil), "/tx", nil)
	c := coordtest.Open(t, x.st.Link("site"), &coord.Options{Trace: func(_ context.Context, e trace.Event) {
		if e, ok := e.(trace.ProposalDecided); ok {
			x.events = append(x.events, e)
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := coord.NewParticipant(c, "/tx", "a", h).Serve(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	}()
	x.stop = func() { cancel(); <-ended }
	synctest.Wait()
	return x
}

func TestTwoPhase_ADecisionIsRetriedUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, gone := 0, time.Time{}
		x := newSiteScene(t, coord.Handler[string]{
			Prepare: nothing, Abort: nothing,
			Commit: func(context.Context, coord.Branch[string]) error {
				if calls++; calls < 4 {
					return errors.New("disk full")
				}
				gone = time.Now()
				return nil
			},
		})
		d, err := x.co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
		if err != nil || !d.Commit {
			t.Fatal(d, err)
		}
		synctest.Wait()
		if st, err := x.co.Status(t.Context(), "t"); err != nil || st.Sites[0].Acknowledged || !st.Told {
			t.Errorf("%+v, %v", st, err)
		}
		time.Sleep(5 * time.Second)
		if left := coordtest.Children(t, x.st, "/tx/tx"); len(left) > 0 || calls != 4 || gone.IsZero() {
			t.Errorf("%v left after %d calls", left, calls)
		}
		x.stop()
	})
}

func TestTwoPhase_TheTimeInDoubtIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}
		x := newSiteScene(t, h)
		slow := h
		slow.Prepare = func(context.Context, coord.Branch[string]) error { time.Sleep(3 * time.Second); return nil }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- coord.NewParticipant(coordtest.Open(t, x.st.Link("slow"), nil), "/tx", "b", slow).Serve(ctx)
		}()
		synctest.Wait()
		d, err := x.co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a", "b"}})
		if err != nil || !d.Commit {
			t.Fatal(d, err)
		}
		synctest.Wait()
		if len(x.events) != 1 || x.events[0].Proposal != "t" || x.events[0].Site != "a" || !x.events[0].Commit || x.events[0].InDoubt != 3*time.Second {
			t.Errorf("%+v", x.events)
		}
		cancel()
		<-ended
		x.stop()
	})
}

// A vote and an abort of a finished transaction arrive while another one with its id is under
// way. They have no effect, not even without the guard of the site's lock.
func TestTwoPhase_LateWritesOfAnEarlierTransactionHaveNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		var vote, abort atomic.Pointer[[]backend.Op]
		h := coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}
		serve := func(link *memory.Link, before func(context.Context, backendtest.Call) error) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			c := coordtest.Open(t, backendtest.Intercept(link, backendtest.Hooks{Before: before}), nil)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				coord.NewParticipant(c, "/tx", "a", h).Serve(ctx)
			}()
			synctest.Wait()
			return func() { cancel(); <-ended }
		}
		dying := st.Link("dying")
		stop := serve(dying, func(ctx context.Context, c backendtest.Call) error {
			if coordtest.Commits(c, backend.OpSetData) && coordtest.Commits(c, backend.OpCheck) && len(c.Ops) == 4 && vote.CompareAndSwap(nil, &c.Ops) {
				dying.Partition() // for good
			}
			if vote.Load() != nil {
				return coordtest.Silence(ctx, c)
			}
			return nil
		})
		co := coord.NewCoordinator(coordtest.Open(t, backendtest.Intercept(st, backendtest.Hooks{
			After: func(_ context.Context, c backendtest.Call, err error) error {
				if len(c.Ops) == 2 && c.Ops[0].Kind == backend.OpCheck && c.Ops[1].Kind == backend.OpCreate {
					abort.CompareAndSwap(nil, &c.Ops)
				}
				return err
			},
		}), nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		first, err := co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
		voted, aborted := vote.Load(), abort.Load()
		if err != nil || first.Commit || voted == nil || aborted == nil {
			t.Fatal(first, err, voted, aborted)
		}
		stop()
		synctest.Wait()
		told := make(chan coord.Decision, 1)
		go func() {
			d, err := co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
			if err != nil {
				t.Error(err)
			}
			told <- d
		}()
		synctest.Wait()
		before := coordtest.Children(t, st, "/tx/tx/t")
		if left := coordtest.Children(t, st, "/tx/sites/a"); len(left) != 2 {
			t.Fatalf("branches: %v", left)
		}
		s, err := st.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, late := range [][]backend.Op{*voted, (*voted)[1:], *aborted} {
			_, err := s.Commit(t.Context(), late...)
			coordtest.WantErr(t, err, coord.ErrNotFound)
		}
		if after := coordtest.Children(t, st, "/tx/tx/t"); !slices.Equal(before, after) {
			t.Errorf("%v after late writes, before %v", after, before)
		}
		stop = serve(st.Link("new"), nil)
		if d := <-told; !d.Commit || d.Zxid <= first.Zxid {
			t.Errorf("%+v after %+v", d, first)
		}
		synctest.Wait()
		if left := coordtest.Children(t, st, "/tx/sites/a"); len(left) != 0 {
			t.Errorf("branches: %v", left)
		}
		stop()
	})
}

// Empty containers are removed, and created again when they are needed.
func TestTwoPhase_EmptyDirectoriesOfTransactionsMayBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x *siteScene
		reap := func(context.Context, coord.Branch[string]) error { x.st.ReapContainers(); return nil }
		x = newSiteScene(t, coord.Handler[string]{Prepare: reap, Commit: reap, Abort: reap})
		for i := range 3 {
			d, err := x.co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
			if err != nil || !d.Commit {
				t.Fatal(i, d, err)
			}
			synctest.Wait()
			x.st.ReapContainers()
			if left := coordtest.Children(t, x.st, "/tx"); len(left) != 3 {
				t.Errorf("%v exist, want the inboxes, the locks and the presence", left)
			}
		}
		x.stop()
		x.st.ReapContainers()
		if left := coordtest.Children(t, x.st, "/tx"); len(left) != 1 {
			t.Errorf("%v exist, want the inboxes", left)
		}
	})
}

// Recover waits for a Propose that is under way in another process. That proposer receives the
// decision, so Recover does not return it.
func TestTwoPhase_RecoverWaitsForProposersThatMayLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		x := newSiteScene(t, coord.Handler[string]{
			Prepare: func(ctx context.Context, _ coord.Branch[string]) error { <-let; return nil },
			Commit:  nothing, Abort: nothing,
		})
		told := make(chan coord.Decision, 1)
		go func() {
			d, err := x.co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
			if err != nil {
				t.Error(err)
			}
			told <- d
		}()
		synctest.Wait()
		recovered := make(chan []coord.Decision, 1)
		c := coordtest.Open(t, x.st.Link("recovery"), nil)
		go func() {
			list, err := coord.NewCoordinator[string](c, "/tx", nil).Recover(t.Context())
			if err != nil {
				t.Error(err)
			}
			recovered <- list
		}()
		synctest.Wait()
		if len(recovered) > 0 {
			t.Fatal("Recover ended while a Propose was under way")
		}
		close(let)
		if d := <-told; !d.Commit {
			t.Errorf("%+v", d)
		}
		// The proposer has received the decision, so Recover does not return it.
		if list := <-recovered; len(list) != 0 {
			t.Errorf("%+v", list)
		}
		synctest.Wait()
		if left := coordtest.Children(t, x.st, "/tx/tx"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		x.stop()
	})
}
