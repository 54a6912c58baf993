package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

func (w *world) candidate(name string, o *coord.ElectionOptions) *coord.Election {
	w.T.Helper()
	opts := coord.ElectionOptions{ID: name}
	if o != nil {
		opts = *o
		opts.ID = name
	}
	return coord.NewElection(w.Open(name, nil), "/e", &opts)
}

func mustLead(t *testing.T, e *coord.Election) *coord.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
	defer cancel()
	term, err := e.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// next receives from a channel, and fails if nothing comes soon.
func next[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return v
	case <-time.After(coordtest.Limit):
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
		case <-time.After(coordtest.Limit):
			t.Fatal("the channel was not closed")
		}
	}
}

func (w *world) candidates(n int) {
	w.T.Helper()
	w.Eventually(fmt.Sprint(n, " candidates"), func() bool { return len(w.Children("/e")) == n })
}

// electionTests are tests of Election on each service.
type electionTests struct{ Services }

func (on electionTests) CandidatesLeadInOrderAndTokensGrow(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		a, b := w.candidate("a", &coord.ElectionOptions{Data: []byte("addr-a")}), w.candidate("b", nil)
		if l, err := b.Leader(t.Context()); err != nil || !l.Vacant() {
			t.Errorf("before the first candidate: %v, %v", l, err)
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
		coordtest.WantErr(t, first.Err(), coord.ErrReleased)
		after := next(t, second)
		if after.Token() <= first.Token() {
			t.Errorf("token %d after %d", after.Token(), first.Token())
		}
		w.resource("/r")
		coordtest.WantErr(t, w.guarded(first.Hold, "/r", "late"), coord.ErrNotFound)
		if err := w.guarded(after.Hold, "/r", "now"); err != nil {
			t.Error(err)
		}
		if err := after.Release(); err != nil {
			t.Error(err)
		}
		w.Empty("/e")
	})
}

func (on electionTests) RunLeadsAgainAfterEachLossAndReturnsTheErrorOfTheFunction(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
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
		coordtest.WantErr(t, err, failure)
		if len(tokens) != 3 || !slices.IsSorted(tokens) {
			t.Errorf("tokens %v", tokens)
		}
		w.Empty("/e")
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
		coordtest.WantErr(t, e.Run(ctx, func(context.Context, *coord.Term) error { return nil }), context.Canceled)
		w.Empty("/e")
	})
}

// released waits for the end of leadership, and releases the terms that it still receives.
func released(t *testing.T, leadership <-chan *coord.Term) {
	t.Helper()
	for _, term := range closed(t, leadership) {
		term.Release()
	}
}

// client-go's leaderelection and others after it: a standby stops campaigning after its first
// loss.
func (on electionTests) LeadershipCampaignsAgainAfterEveryLossAndRelease(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		e := w.candidate("a", nil)
		leadership := e.Leadership(ctx)
		last := int64(0)
		for i := range 6 {
			term := next(t, leadership)
			if term.Err() != nil || term.Token() <= last {
				t.Fatalf("round %d: token %d after %d, %v", i, term.Token(), last, term.Err())
			}
			last = term.Token()
			switch i % 3 {
			case 0:
				if err := term.Release(); err != nil {
					t.Error(err)
				}
			case 1:
				w.Link("a").Expire(term.Session())
				<-term.Done()
				coordtest.WantErr(t, term.Err(), coord.ErrLost)
			case 2:
				w.Link("a").Partition()
				<-term.Done()
				coordtest.WantErr(t, term.Err(), coord.ErrSessionLost)
				w.Link("a").Heal()
			}
		}
		cancel()
		released(t, leadership)
		w.Empty("/e")
	})
}

func (on electionTests) TheEndOfTheContextResignsOnlyATermThatWasNotReceived(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		e := w.candidate("a", nil)
		leadership := e.Leadership(ctx)
		w.candidates(1)
		w.Settle() // the term is offered
		cancel()
		w.Settle() // a term that no receiver takes has been resigned by now
		released(t, leadership)
		w.Empty("/e")

		ctx, cancel = context.WithCancel(context.Background())
		defer cancel()
		leadership = e.Leadership(ctx)
		term := next(t, leadership)
		cancel()
		if rest := closed(t, leadership); len(rest) != 0 {
			t.Errorf("after the end: %v", rest)
		}
		if err := term.Verify(context.Background()); err != nil {
			t.Errorf("the received term: %v", err)
		}
		if err := term.Release(); err != nil {
			t.Error(err)
		}
		w.Empty("/e")
	})
}

func (on electionTests) CloseEndsLeadershipWithTheReason(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		c := w.Open("a", nil)
		e := coord.NewElection(c, "/e", nil)
		leads, seen := e.Leadership(context.Background()), e.WatchLeader(context.Background())
		term := next(t, leads)
		waits := coord.NewElection(c, "/e", nil).Leadership(context.Background())
		w.candidates(2)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		coordtest.WantErr(t, term.Err(), coord.ErrLost, coord.ErrClosed)
		for _, terms := range [][]*coord.Term{closed(t, leads), closed(t, waits), closed(t, e.Leadership(context.Background()))} {
			if len(terms) != 1 || !errors.Is(terms[0].Err(), coord.ErrClosed) {
				t.Errorf("at the end: %v", terms)
			}
		}
		for _, leaders := range [][]coord.Leader{closed(t, seen), closed(t, e.WatchLeader(context.Background()))} {
			if n := len(leaders); n == 0 || !errors.Is(leaders[n-1].Err, coord.ErrClosed) {
				t.Errorf("observed at the end: %v", leaders)
			}
		}
		w.Empty("/e")
	})
}

func (on electionTests) ACandidateThatStepsDownEndsItsTermWithTheContact(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stays := coord.NewElection(w.Open("a", nil), "/stays", nil)
		steps := coord.NewElection(w.Open("b", nil), "/steps", &coord.ElectionOptions{StepDownOnSuspend: true})
		hold := mustLead(t, stays)
		leadership := steps.Leadership(ctx)
		first := next(t, leadership)
		w.Link("a").Partition()
		w.Link("b").Partition()
		<-first.Done()
		coordtest.WantErr(t, first.Err(), coord.ErrLost, coord.ErrSuspended)
		if errors.Is(first.Err(), coord.ErrSessionLost) {
			t.Errorf("the term ended with the session, not before: %v", first.Err())
		}
		w.Link("a").Heal()
		w.Link("b").Heal()
		second := next(t, leadership)
		if second.Token() <= first.Token() || second.Session() != first.Session() {
			t.Errorf("the next term %d in %x, after %d in %x", second.Token(), second.Session(), first.Token(), first.Session())
		}
		if err := hold.Verify(context.Background()); err != nil {
			t.Errorf("a blip ended the term of a candidate that stays: %v", err)
		}
		second.Release()
		hold.Release()
		cancel()
		released(t, leadership)
		w.Empty("/steps")
		w.Empty("/stays")
	})
}

// Curator-16, -54, -73, -518, -671: an interrupted term ended a later one as well, or the
// candidate never led again.
func (on electionTests) InterruptingATermTwiceTouchesNoLaterTerm(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		leadership := w.candidate("a", nil).Leadership(ctx)
		var before []*coord.Term
		var contexts []context.Context
		for i := range 4 {
			term := next(t, leadership)
			held := term.Context(ctx)
			for _, old := range before {
				old.Release()
				old.Release()
			}
			if err := term.Verify(ctx); err != nil || held.Err() != nil {
				t.Fatalf("term %d, after releasing the earlier ones again: %v, %v", i, err, held.Err())
			}
			for j, c := range contexts {
				if c.Err() == nil {
					t.Errorf("the context of term %d is live in term %d", j, i)
				}
			}
			before, contexts = append(before, term), append(contexts, held)
			if i%2 == 0 {
				term.Release()
				term.Release()
			} else {
				w.Link("a").Expire(term.Session())
				<-held.Done()
			}
		}
	})
}
