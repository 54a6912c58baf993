package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// account is a site that records its callbacks.
type account struct {
	w       *world
	name    string
	mu      sync.Mutex
	log     []string
	prepare func(ctx context.Context, tx coord.Branch[string]) error
	doubts  chan error
	codec   coord.Codec[string]
}

func (a *account) note(what string, tx coord.Branch[string]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, what+" "+tx.ID+":"+tx.Payload)
}

func (a *account) did() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprint(a.log)
}

// votes sets the account's Prepare.
func (a *account) votes(f func(ctx context.Context, tx coord.Branch[string]) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.prepare = f
}

// serve serves the account over c until the function that it returns is called.
func (a *account) serve(c *coord.Client) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	h := coord.Handler[string]{
		Prepare: func(ctx context.Context, tx coord.Branch[string]) error {
			a.note("prepare", tx)
			a.mu.Lock()
			prepare := a.prepare
			a.mu.Unlock()
			if prepare == nil {
				return nil
			}
			return prepare(ctx, tx)
		},
		Commit: func(_ context.Context, tx coord.Branch[string]) error { a.note("commit", tx); return nil },
		Abort:  func(_ context.Context, tx coord.Branch[string]) error { a.note("abort", tx); return nil },
		Codec:  a.codec,
	}
	if a.doubts != nil {
		h.InDoubt = func(_ context.Context, tx coord.Branch[string], err error) { a.doubts <- err }
	}
	go func() { ended <- coord.NewParticipant(c, "/tx", a.name, h).Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
			a.w.T.Errorf("Serve of %s: %v", a.name, err)
		}
	})
	a.w.T.Cleanup(stop)
	return stop
}

// accounts serves sites of these names, each over a client and link of its own, and returns
// when they are served.
func (w *world) accounts(names ...string) []*account {
	w.T.Helper()
	var list []*account
	for _, name := range names {
		a := &account{w: w, name: name}
		a.serve(w.Open("site "+name, nil))
		list = append(list, a)
	}
	w.served(names...)
	return list
}

func (w *world) served(names ...string) {
	w.T.Helper()
	w.Eventually("the sites are served", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			return !slices.Contains(w.Children("/tx/present"), name)
		})
	})
}

// over waits until nothing is left of any transaction.
func (w *world) over(names ...string) {
	w.T.Helper()
	w.Empty("/tx/tx")
	for _, name := range names {
		w.Empty("/tx/sites/" + name)
	}
}

func (w *world) proposal(id string, sites ...string) coord.Proposal[string] {
	return coord.Proposal[string]{ID: id, Sites: sites, Payload: "p", Deadline: time.Now().Add(2 * time.Minute)}
}

func mustPropose(t *testing.T, co *coord.Coordinator[string], p coord.Proposal[string]) coord.Decision {
	t.Helper()
	d, err := co.Propose(context.Background(), p)
	if err != nil || d.ID != p.ID || d.Zxid == 0 {
		t.Fatal(d, err)
	}
	return d
}

func TestATransactionCommitsAtAllSites(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a", "b", "c")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		d := mustPropose(w.T, co, w.proposal("t1", "c", "a", "b"))
		if !d.Commit || d.By != "proposer" || d.Reason != "" {
			w.T.Errorf("%+v", d)
		}
		w.over("a", "b", "c")
		for _, a := range list {
			if got := a.did(); got != "[prepare t1:p commit t1:p]" {
				w.T.Errorf("%s: %s", a.name, got)
			}
		}
		if _, err := co.Status(context.Background(), "t1"); !errors.Is(err, coord.ErrNotFound) {
			w.T.Errorf("status of a finished transaction: %v", err)
		}
	})
}

func TestATransactionAbortsOnTheFirstNo(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a", "b")
		asked := make(chan struct{})
		list[0].votes(func(ctx context.Context, _ coord.Branch[string]) error {
			close(asked)
			<-ctx.Done() // until the other has voted
			return ctx.Err()
		})
		list[1].votes(func(context.Context, coord.Branch[string]) error {
			<-asked
			return errors.New("no money")
		})
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		start := time.Now()
		d := mustPropose(w.T, co, w.proposal("t1", "a", "b"))
		if d.Commit || d.By != "site b" || d.Reason != "no money" {
			w.T.Errorf("%+v", d)
		}
		if took := time.Since(start); w.Fake && took > 0 {
			w.T.Errorf("took %v", took)
		}
		w.over("a", "b")
		for _, a := range list {
			if got := a.did(); got != "[prepare t1:p abort t1:p]" && got != "[prepare t1:p abort t1:]" {
				w.T.Errorf("%s: %s", a.name, got)
			}
		}
	})
}

func TestTheSameProposalIsTheSameTransaction(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a")
		let := make(chan struct{})
		list[0].votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		p := w.proposal("t1", "a")
		results := make(chan coord.Decision, 3)
		for i := range 3 {
			co := coord.NewCoordinator[string](w.Open(fmt.Sprint("co", i), nil), "/tx", nil)
			go func() {
				d, err := co.Propose(context.Background(), p)
				if err != nil {
					w.T.Error(err)
				}
				results <- d
			}()
		}
		w.Eventually("all three wait", func() bool {
			live := 0
			for _, name := range w.Children("/tx/tx/t1") {
				if len(name) > 5 && name[:5] == "live-" {
					live++
				}
			}
			return live == 3
		})
		co := coord.NewCoordinator[string](w.Open("other", nil), "/tx", nil)
		other := p
		other.Payload = "another"
		d, err := co.Propose(context.Background(), other)
		coordtest.WantErr(w.T, err, coord.ErrDuplicate)
		other = p
		other.Sites = []string{"a", "b"}
		_, err = co.Propose(context.Background(), other)
		coordtest.WantErr(w.T, err, coord.ErrDuplicate)
		if d.ID != "t1" {
			w.T.Errorf("%+v", d)
		}
		close(let)
		first := <-results
		for range 2 {
			if d := <-results; d != first || !d.Commit {
				w.T.Errorf("%+v, want %+v", d, first)
			}
		}
		w.over("a")
		if got := list[0].did(); got != "[prepare t1:p commit t1:p]" {
			w.T.Error(got)
		}
		// All proposers have received the decision, so the id is free.
		list[0].votes(nil)
		if again := mustPropose(w.T, co, p); again.Zxid <= first.Zxid {
			w.T.Errorf("%+v after %+v", again, first)
		}
		w.over("a")
	})
}

// A proposer that gives up aborts, so that no site waits for the deadline.
func TestAProposerThatGivesUpAborts(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a", "b")
		list[1].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		result := make(chan error, 1)
		go func() {
			_, err := co.Propose(ctx, p)
			result <- err
		}()
		w.Eventually("a has voted, and b is asked", func() bool {
			st, err := co.Status(context.Background(), "t1")
			return err == nil && st.Sites[0].Yes && list[1].did() == "[prepare t1:p]"
		})
		cancel()
		coordtest.WantErr(w.T, <-result, context.Canceled)
		for _, a := range list {
			w.Eventually("aborted", func() bool { return a.did() == "[prepare t1:p abort t1:p]" })
		}
		if d := mustPropose(w.T, co, p); d.Commit || d.Reason != "given up by its proposer" {
			w.T.Errorf("%+v", d)
		}
		w.over("a", "b")
	})
}

func TestOneProcessServesASite(t *testing.T) {
	onEach(t, func(w *world) {
		first, second := &account{w: w, name: "a"}, &account{w: w, name: "a"}
		stop := first.serve(w.Open("first", nil))
		w.served("a")
		second.serve(w.Open("second", nil))
		w.Eventually("the second waits", func() bool { return len(w.Children("/tx/serving/a")) == 2 })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		mustPropose(w.T, co, w.proposal("t1", "a"))
		w.over("a")
		stop()
		mustPropose(w.T, co, w.proposal("t2", "a"))
		w.over("a")
		if a, b := first.did(), second.did(); a != "[prepare t1:p commit t1:p]" || b != "[prepare t2:p commit t2:p]" {
			w.T.Error(a, b)
		}
	})
}

// An outsider destroys the record of a transaction that a site has voted yes for.
func TestADestroyedRecordLeavesTheSiteInDoubt(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("b")
		a := &account{w: w, name: "a", doubts: make(chan error, 10)}
		stop := a.serve(w.Open("site a", nil))
		w.served("a", "b")
		list[0].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		result := make(chan error)
		go func() {
			p := w.proposal("t1", "a", "b")
			p.Deadline = time.Now().Add(time.Hour)
			_, err := co.Propose(context.Background(), p)
			result <- err
		}()
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(context.Background(), "t1")
			return err == nil && st.Sites[0].Yes
		})
		s := w.Session("outsider")
		var ops []backend.Op
		for _, name := range w.Children("/tx/tx/t1") {
			ops = append(ops, backend.Delete(w.Path("/tx/tx/t1/"+name), backend.AnyVersion))
		}
		if _, err := s.Commit(context.Background(), append(ops, backend.Delete(w.Path("/tx/tx/t1"), backend.AnyVersion))...); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, <-result, coord.ErrInDoubt)
		err := <-a.doubts
		coordtest.WantErr(w.T, err, coord.ErrInDoubt)
		var e *backend.Error
		if !errors.As(err, &e) || e.Path == "" {
			w.T.Fatal(err)
		}
		w.over("b")
		// An operator that has determined the outcome deletes the branch.
		if _, err := s.Commit(context.Background(), backend.Delete(e.Path, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		w.over("a", "b")
		stop()
		if got := a.did(); got != "[prepare t1:p]" {
			w.T.Error(got)
		}
	})
}

func TestBadProposalsAreRefused(t *testing.T) {
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

func nothing(context.Context, coord.Branch[string]) error { return nil }

func TestADecisionIsRetriedUntilItSucceeds(t *testing.T) {
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

func TestTheTimeInDoubtIsReported(t *testing.T) {
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
func TestLateWritesOfAnEarlierTransactionHaveNoEffect(t *testing.T) {
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
func TestEmptyDirectoriesOfTransactionsMayBeRemoved(t *testing.T) {
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
func TestRecoverWaitsForProposersThatMayLive(t *testing.T) {
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
