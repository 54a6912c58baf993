package coord_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// released waits for the end of leadership, and releases what is still received.
func released(t *testing.T, leadership <-chan *coord.Term) {
	t.Helper()
	for _, term := range closed(t, leadership) {
		term.Release()
	}
}

// client-go's leaderelection, and others after it: a standby that stops
// campaigning after its first loss.
func TestLeadershipCampaignsAgainAfterEveryLossAndRelease(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
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
				wantErr(t, term.Err(), coord.ErrLost)
			case 2:
				w.Link("a").Partition()
				<-term.Done()
				wantErr(t, term.Err(), coord.ErrSessionLost)
				w.Link("a").Heal()
			}
		}
		cancel()
		released(t, leadership)
		w.empty("/e")
	})
}

func TestATermThatNobodyReceivesIsResignedAfterOneSessionTimeout(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		start := time.Now()
		ignored := w.candidate("a", nil).Leadership(ctx)
		w.candidates(1)
		b := w.candidate("b", nil)
		term := mustLead(t, b)
		if d := time.Since(start); d < w.timeout || d > w.timeout+time.Second/2 {
			t.Errorf("led by another after %v, want about %v", d, w.timeout)
		}
		// The one who was not there stands in line again.
		w.candidates(2)
		if err := term.Release(); err != nil {
			t.Error(err)
		}
		again := next(t, ignored)
		if again.Err() != nil || again.Token() <= term.Token() {
			t.Errorf("a leads again with %d, %v", again.Token(), again.Err())
		}
		// Received, it is his who received it, however long he takes.
		time.Sleep(10 * w.timeout)
		if again.Err() != nil {
			t.Errorf("a term that was received ended: %v", again.Err())
		}
		again.Release()
	})
}

func TestALateReceiverGetsATermThatIsDoneNeverAStaleOne(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		late := w.candidate("a", nil).Leadership(ctx)
		w.candidates(1)
		w.settle()
		w.Link("a").Partition() // before the term was received
		time.Sleep(2 * w.timeout)
		term := next(t, late)
		select {
		case <-term.Done():
		default:
			t.Error("a term that is lost seems to stand")
		}
		wantErr(t, term.Err(), coord.ErrLost)
		w.Link("a").Heal()
		if term := next(t, late); term.Err() != nil {
			t.Errorf("the next term: %v", term.Err())
		}
	})
}

func TestTheEndOfTheContextResignsOnlyWhatWasNotReceived(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		ctx, cancel := context.WithCancel(context.Background())
		e := w.candidate("a", nil)
		leadership := e.Leadership(ctx)
		w.candidates(1)
		w.settle() // the term is offered
		cancel()
		w.settle() // a term that no receiver takes has been resigned by now
		released(t, leadership)
		w.empty("/e")

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
		w.empty("/e")
	})
}

func TestCloseEndsLeadershipWithTheReason(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		c := w.open("a", nil)
		e := coord.NewElection(c, "/e", nil)
		leads, seen := e.Leadership(context.Background()), e.Observe(context.Background())
		term := next(t, leads)
		waits := coord.NewElection(c, "/e", nil).Leadership(context.Background())
		w.candidates(2)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wantErr(t, term.Err(), coord.ErrLost, coord.ErrClosed)
		for _, terms := range [][]*coord.Term{closed(t, leads), closed(t, waits), closed(t, e.Leadership(context.Background()))} {
			if len(terms) != 1 || !errors.Is(terms[0].Err(), coord.ErrClosed) {
				t.Errorf("at the end: %v", terms)
			}
		}
		for _, leaders := range [][]coord.Leader{closed(t, seen), closed(t, e.Observe(context.Background()))} {
			if n := len(leaders); n == 0 || !errors.Is(leaders[n-1].Err, coord.ErrClosed) {
				t.Errorf("observed at the end: %v", leaders)
			}
		}
		w.empty("/e")
	})
}

func TestACandidateThatStepsDownEndsItsTermWithTheContact(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stays := coord.NewElection(w.open("a", nil), "/stays", nil)
		steps := coord.NewElection(w.open("b", nil), "/steps", &coord.ElectionOptions{StepDown: true})
		hold := mustLead(t, stays)
		leadership := steps.Leadership(ctx)
		first := next(t, leadership)
		w.Link("a").Partition()
		w.Link("b").Partition()
		<-first.Done()
		wantErr(t, first.Err(), coord.ErrLost, coord.ErrSuspended)
		if errors.Is(first.Err(), coord.ErrSessionLost) {
			t.Errorf("it was told with the session's loss, not before: %v", first.Err())
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
		w.empty("/steps")
		w.empty("/stays")
	})
}

// Curator-16, -54, -73, -518, -671: an interrupted term took a later one with it,
// or the candidate never led again.
func TestInterruptingATermTwiceTouchesNoLaterTerm(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
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
					t.Errorf("the context of term %d goes on in term %d", j, i)
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

// HashiCorp's raft, consul #6852, vault #8547: a leadership channel that nobody
// reads blocks its sender, or drops the newest.
func TestChannelsThatNobodyReadsBlockNobodyAndKeepTheNewest(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		watcher := w.candidate("watcher", nil)
		unread := watcher.Observe(context.Background())
		a, b := w.candidate("a", nil), w.candidate("b", nil)
		var last *coord.Term
		for range 20 {
			mustLead(t, a).Release()
			mustLead(t, b).Release()
		}
		last = mustLead(t, a)
		if err := last.Announce(t.Context(), []byte("ready")); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if l := next(t, unread); l.Token != last.Token() || !l.Ready {
			t.Errorf("the newest is %v, got %v", last.Token(), l)
		}
		select {
		case l := <-unread:
			t.Errorf("more than the newest: %v", l)
		default:
		}
	})
}
