package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

func (w *world) candidate(name string, o *coord.ElectionOptions) *coord.Election {
	w.t.Helper()
	opts := coord.ElectionOptions{ID: name}
	if o != nil {
		opts = *o
		opts.ID = name
	}
	return coord.NewElection(w.open(name, nil), "/e", &opts)
}

func mustLead(t *testing.T, e *coord.Election) *coord.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	term, err := e.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// next receives from a channel that must have something soon.
func next[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came")
	}
	panic("unreachable")
}

// closed waits for the end of a channel, and returns what was on it.
func closed[T any](t *testing.T, ch <-chan T) (rest []T) {
	t.Helper()
	for {
		select {
		case v, ok := <-ch:
			if !ok {
				return rest
			}
			rest = append(rest, v)
		case <-time.After(30 * time.Second):
			t.Fatal("the channel was not closed")
		}
	}
}

func (w *world) candidates(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprint(n, " candidates"), func() bool { return len(w.children("/e")) == n })
}

func TestCandidatesLeadInOrderAndTokensGrow(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		a, b := w.candidate("a", &coord.ElectionOptions{Data: []byte("addr-a")}), w.candidate("b", nil)
		if l, err := b.Leader(t.Context()); err != nil || !l.Vacant() {
			t.Errorf("before anybody came: %v, %v", l, err)
		}
		first := mustLead(t, a)
		second := make(chan *coord.Term)
		go func() {
			term, err := b.Campaign(context.Background())
			if err != nil {
				t.Error(err)
			}
			second <- term
		}()
		w.candidates(2)
		l, err := b.Leader(t.Context())
		if err != nil || l.ID != "a" || string(l.Data) != "addr-a" || l.Token != first.Token() || l.Path != first.Path() || l.Session != first.Session() || l.Ready {
			t.Errorf("leader %+v, %v", l, err)
		}
		list, err := a.Contenders(t.Context())
		if err != nil || len(list) != 2 || list[0].ID != "a" || list[1].ID != "b" || list[0].Token >= list[1].Token {
			t.Errorf("contenders %+v, %v", list, err)
		}
		if err := first.Release(); err != nil {
			t.Error(err)
		}
		wantErr(t, first.Err(), coord.ErrReleased)
		after := next(t, second)
		if after.Token() <= first.Token() {
			t.Errorf("token %d after %d", after.Token(), first.Token())
		}
		w.resource("/r")
		wantErr(t, w.guarded(first.Hold, "/r", "late"), coord.ErrNotFound)
		if err := w.guarded(after.Hold, "/r", "now"); err != nil {
			t.Error(err)
		}
		if err := after.Release(); err != nil {
			t.Error(err)
		}
		w.empty("/e")
	})
}

func TestRunLeadsAgainAfterEachLossAndReturnsWhatTheFunctionReturned(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		e := w.candidate("a", nil)
		failure := errors.New("the work failed")
		var tokens []int64
		err := e.Run(t.Context(), func(ctx context.Context, term *coord.Term) error {
			tokens = append(tokens, term.Token())
			if len(tokens) <= 2 {
				w.Link("a").Expire(term.Session())
				<-ctx.Done()
				if err := context.Cause(ctx); !errors.Is(err, coord.ErrLost) {
					t.Errorf("the context ended with %v", err)
				}
				return ctx.Err()
			}
			return failure
		})
		wantErr(t, err, failure)
		if len(tokens) != 3 || !slices.IsSorted(tokens) {
			t.Errorf("tokens %v", tokens)
		}
		w.empty("/e")
		ctx, cancel := context.WithCancel(t.Context())
		err = e.Run(ctx, func(ctx context.Context, term *coord.Term) error {
			cancel()
			<-ctx.Done()
			if term.Err() != nil {
				t.Errorf("the end of the caller's context ended the term: %v", term.Err())
			}
			return nil
		})
		if err != nil {
			t.Errorf("the function returned nil, Run %v", err)
		}
		wantErr(t, e.Run(ctx, nil), context.Canceled)
		w.empty("/e")
	})
}

func TestRunResignsWhenTheFunctionPanics(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		e := w.candidate("a", nil)
		func() {
			defer func() { recover() }()
			e.Run(t.Context(), func(context.Context, *coord.Term) error { panic("work") })
		}()
		w.empty("/e")
	})
}

func TestTermsResignsAtTheEndOfEachBody(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		e := w.candidate("a", nil)
		var terms []*coord.Term
		for term, err := range e.Terms(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			for _, before := range terms {
				if before.Err() == nil || before.Token() >= term.Token() {
					t.Errorf("term %d begins, %d before it: %v", term.Token(), before.Token(), before.Err())
				}
			}
			terms = append(terms, term)
			if len(terms) == 3 {
				break
			}
		}
		wantErr(t, terms[2].Err(), coord.ErrReleased)
		w.empty("/e")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		for term, err := range e.Terms(ctx) {
			if n++; n == 2 {
				wantErr(t, err, context.Canceled)
				if term != nil {
					t.Errorf("a term with an error: %v", term)
				}
				continue
			}
			cancel()
		}
		if n != 2 {
			t.Errorf("%d passes, want 2", n)
		}
	})
}

func TestBadCandidatesAreRefusedAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		c := w.open("a", nil)
		for name, x := range map[string]struct {
			e    *coord.Election
			want error
		}{
			"path": {coord.NewElection(c, "e", nil), coord.ErrBadPath},
			"id":   {coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "\xff"}), coord.ErrInvalid},
			"data": {coord.NewElection(c, "/e", &coord.ElectionOptions{Data: make([]byte, 1<<20)}), coord.ErrTooLarge},
		} {
			_, err := x.e.Campaign(t.Context())
			wantErr(t, err, x.want)
			wantErr(t, x.e.Run(t.Context(), nil), x.want)
			terms := closed(t, x.e.Leadership(t.Context()))
			if len(terms) != 1 {
				t.Fatalf("%s: %d terms", name, len(terms))
			}
			term := terms[0]
			<-term.Done()
			<-term.Context(t.Context()).Done()
			wantErr(t, term.Err(), x.want)
			wantErr(t, term.Release(), x.want)
			wantErr(t, term.Verify(t.Context()), x.want)
			wantErr(t, term.Announce(t.Context(), nil), x.want)
			if term.Token() != 0 || term.Session() != 0 || errors.Is(term.Err(), coord.ErrLost) {
				t.Errorf("%s: token %d, session %d, %v", name, term.Token(), term.Session(), term.Err())
			}
		}
		bad := coord.NewElection(c, "e", nil)
		if _, err := bad.Leader(t.Context()); !errors.Is(err, coord.ErrBadPath) {
			t.Error(err)
		}
		if _, err := bad.Contenders(t.Context()); !errors.Is(err, coord.ErrBadPath) {
			t.Error(err)
		}
		seen := closed(t, bad.Observe(t.Context()))
		if len(seen) != 1 || !errors.Is(seen[0].Err, coord.ErrBadPath) {
			t.Errorf("observed %v", seen)
		}
		if left := w.children("/e"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// What a candidate says of itself comes back, whatever it looks like.
func TestIDsThatLookLikeSomethingElseComeBack(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		c := w.open("a", nil)
		for _, id := range []string{"", "unlock", "__REVOKE__", `{"coord-revoke":{"at":1}}`, `{"coord-candidate":{"id":"x"}}`, "kärnten", "a/b"} {
			e := coord.NewElection(c, "/e", &coord.ElectionOptions{ID: id})
			term := mustLead(t, e)
			l, err := e.Leader(t.Context())
			if err != nil || l.ID != id || l.Ready {
				t.Errorf("%q came back as %+v, %v", id, l, err)
			}
			time.Sleep(time.Second) // of fake time: the watch on the own node is armed
			if _, ok := term.Revocation(); ok {
				t.Errorf("%q was read as a request to give up", id)
			}
			if err := term.Release(); err != nil {
				t.Error(err)
			}
		}
	})
}

// The memory backend works under fake time: a test of one's own code can cut the
// leader off, let the time of its session pass, and see the hand-over.
func TestExampleOfLeadershipUnderFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(&memory.Options{SessionTimeout: 30 * time.Second})
		lead := func(name string) <-chan *coord.Term {
			c, err := coord.Open(t.Context(), store.Link(name), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return coord.NewElection(c, "/leader", &coord.ElectionOptions{ID: name}).Leadership(t.Context())
		}
		a := lead("a")
		first := <-a
		b := lead("b")

		store.Link("a").Partition() // a has no contact any more
		select {
		case second := <-b:
			if second.Token() <= first.Token() || !errors.Is(first.Err(), coord.ErrLost) {
				t.Errorf("b leads with token %d after %d, a was told %v", second.Token(), first.Token(), first.Err())
			}
		case <-time.After(time.Minute):
			t.Error("nobody took over")
		}
	})
}
