package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
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

// twophaseTests are tests of TwoPhase on each service.
type twophaseTests struct{ Services }

func (on twophaseTests) ATransactionCommitsAtAllSites(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on twophaseTests) ATransactionAbortsOnTheFirstNo(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on twophaseTests) TheSameProposalIsTheSameTransaction(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on twophaseTests) AProposerThatGivesUpAborts(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on twophaseTests) OneProcessServesASite(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on twophaseTests) ADestroyedRecordLeavesTheSiteInDoubt(t *testing.T) {
	on.each(t, func(w *world) {
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

func nothing(context.Context, coord.Branch[string]) error { return nil }
