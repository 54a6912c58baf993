package coord_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// siteScene is one site whose handler the test makes, and a coordinator.
type siteScene struct {
	t      *testing.T
	st     *memory.Store
	co     *coord.Coordinator[string]
	events []coord.ProposalDecided
	stop   func()
}

func newSiteScene(t *testing.T, h coord.Handler[string]) *siteScene {
	x := &siteScene{t: t, st: memory.New(nil)}
	x.co = coord.NewCoordinator[string](open(t, x.st.Link("co"), nil), "/tx", nil)
	c := open(t, x.st.Link("site"), &coord.Options{Trace: func(_ context.Context, e coord.Event) {
		if e, ok := e.(coord.ProposalDecided); ok {
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

func nothing(context.Context, coord.Ballot[string]) error { return nil }

func TestADecisionIsCarriedOutUntilThatSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, gone := 0, time.Time{}
		x := newSiteScene(t, coord.Handler[string]{
			Prepare: nothing, Abort: nothing,
			Commit: func(context.Context, coord.Ballot[string]) error {
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
		if left := children(t, x.st, "/tx/tx"); len(left) > 0 || calls != 4 || gone.IsZero() {
			t.Errorf("%v left after %d calls", left, calls)
		}
		x.stop()
	})
}

func TestTheTimeInDoubtIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}
		x := newSiteScene(t, h)
		slow := h
		slow.Prepare = func(context.Context, coord.Ballot[string]) error { time.Sleep(3 * time.Second); return nil }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- coord.NewParticipant(open(t, x.st.Link("slow"), nil), "/tx", "b", slow).Serve(ctx)
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

// A vote and an abort of a transaction that is over land while another one with its
// id is under way. Not even without the guard of the site's lock do they do anything.
func TestWhatLandsLateLandsNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		var vote, abort []backend.Op
		h := coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}
		serve := func(link *memory.Link, before func(context.Context, backendtest.Call) error) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			c := open(t, backendtest.Intercept(link, backendtest.Hooks{Before: before}), nil)
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
			if vote == nil && commits(c, backend.OpSetData) && commits(c, backend.OpCheck) && len(c.Ops) == 4 {
				vote = c.Ops
				dying.Partition() // for good
			}
			if vote != nil {
				return silence(ctx, c)
			}
			return nil
		})
		co := coord.NewCoordinator(open(t, backendtest.Intercept(st, backendtest.Hooks{
			After: func(_ context.Context, c backendtest.Call, err error) error {
				if abort == nil && len(c.Ops) == 2 && c.Ops[0].Kind == backend.OpCheck && c.Ops[1].Kind == backend.OpCreate {
					abort = c.Ops
				}
				return err
			},
		}), nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		first, err := co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
		if err != nil || first.Commit || vote == nil || abort == nil {
			t.Fatal(first, err, vote, abort)
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
		before := children(t, st, "/tx/tx/t")
		if left := children(t, st, "/tx/sites/a"); len(left) != 2 {
			t.Fatalf("ballots: %v", left)
		}
		s, err := st.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, late := range [][]backend.Op{vote, vote[1:], abort} {
			_, err := s.Commit(t.Context(), late...)
			wantErr(t, err, coord.ErrNotFound)
		}
		if after := children(t, st, "/tx/tx/t"); !slices.Equal(before, after) {
			t.Errorf("%v after late writes, before %v", after, before)
		}
		stop = serve(st.Link("new"), nil)
		if d := <-told; !d.Commit || d.Zxid <= first.Zxid {
			t.Errorf("%+v after %+v", d, first)
		}
		synctest.Wait()
		if left := children(t, st, "/tx/sites/a"); len(left) != 0 {
			t.Errorf("ballots: %v", left)
		}
		stop()
	})
}

// Containers that are empty go, and come back when they are needed.
func TestEmptyDirectoriesOfTransactionsMayGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x *siteScene
		reap := func(context.Context, coord.Ballot[string]) error { x.st.ReapContainers(); return nil }
		x = newSiteScene(t, coord.Handler[string]{Prepare: reap, Commit: reap, Abort: reap})
		for i := range 3 {
			d, err := x.co.Propose(t.Context(), coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
			if err != nil || !d.Commit {
				t.Fatal(i, d, err)
			}
			synctest.Wait()
			x.st.ReapContainers()
			if left := children(t, x.st, "/tx"); len(left) != 3 {
				t.Errorf("%v stand, want the inboxes, the locks and who is present", left)
			}
		}
		x.stop()
		x.st.ReapContainers()
		if left := children(t, x.st, "/tx"); len(left) != 1 {
			t.Errorf("%v stand, want the inboxes", left)
		}
	})
}

// Transactions of which Propose was told, and whose sites acknowledged, can still
// stand for the live node of a proposer that died. Recover removes them.
func TestRecoverWaitsForProposersThatMayLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		x := newSiteScene(t, coord.Handler[string]{
			Prepare: func(ctx context.Context, _ coord.Ballot[string]) error { <-let; return nil },
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
		c := open(t, x.st.Link("recovery"), nil)
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
		// The proposer was told, so Recover has nothing to tell.
		if list := <-recovered; len(list) != 0 {
			t.Errorf("%+v", list)
		}
		synctest.Wait()
		if left := children(t, x.st, "/tx/tx"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		x.stop()
	})
}
