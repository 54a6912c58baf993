package recipetest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestElection_RunResignsWhenTheFunctionPanics(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		e := w.candidate("a", nil)
		func() {
			defer func() { recover() }()
			e.Run(t.Context(), func(context.Context, *coord.Term) error { panic("work") })
		}()
		w.Empty("/e")
	})
}

func TestElection_BadCandidatesAreRefusedAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		c := w.Open("a", nil)
		for name, x := range map[string]struct {
			e    *coord.Election
			want error
		}{
			"path": {coord.NewElection(c, "e", nil), coord.ErrBadPath},
			"id":   {coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "\xff"}), coord.ErrInvalid},
			"data": {coord.NewElection(c, "/e", &coord.ElectionOptions{Data: make([]byte, 1<<20)}), coord.ErrTooLarge},
		} {
			_, err := x.e.Campaign(t.Context())
			coordtest.WantErr(t, err, x.want)
			coordtest.WantErr(t, x.e.Run(t.Context(), func(context.Context, *coord.Term) error { return nil }), x.want)
			terms := closed(t, x.e.Leadership(t.Context()))
			if len(terms) != 1 {
				t.Fatalf("%s: %d terms", name, len(terms))
			}
			term := terms[0]
			<-term.Done()
			<-term.Context(t.Context()).Done()
			coordtest.WantErr(t, term.Err(), x.want)
			coordtest.WantErr(t, term.Release(), x.want)
			coordtest.WantErr(t, term.Verify(t.Context()), x.want)
			coordtest.WantErr(t, term.Announce(t.Context(), nil), x.want)
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
		seen := closed(t, bad.WatchLeader(t.Context()))
		if len(seen) != 1 || !errors.Is(seen[0].Err, coord.ErrBadPath) {
			t.Errorf("observed %v", seen)
		}
		if left := w.Children("/e"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// An ID is returned unchanged, whatever it looks like.
func TestElection_IDsThatLookLikeControlDataComeBackUnchanged(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		c := w.Open("a", nil)
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

// The memory backend works under fake time: a user's test can cut the leader off, let the time
// of its session pass, and see the hand-over.
func TestElection_ExampleOfLeadershipUnderFakeTime(t *testing.T) {
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

		store.Link("a").Partition() // a has lost contact
		select {
		case second := <-b:
			if second.Token() <= first.Token() || !errors.Is(first.Err(), coord.ErrLost) {
				t.Errorf("b leads with token %d after %d, the term of a ended with %v", second.Token(), first.Token(), first.Err())
			}
		case <-time.After(time.Minute):
			t.Error("b did not take over")
		}
	})
}

func TestElection_ATermThatIsNotReceivedIsResignedAfterOneSessionTimeout(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		start := time.Now()
		ignored := w.candidate("a", nil).Leadership(ctx)
		w.candidates(1)
		b := w.candidate("b", nil)
		term := mustLead(t, b)
		if d := time.Since(start); d < w.Timeout || d > w.Timeout+time.Second/2 {
			t.Errorf("led by another after %v, want about %v", d, w.Timeout)
		}
		// The candidate whose term was not received is in the queue again.
		w.candidates(2)
		if err := term.Release(); err != nil {
			t.Error(err)
		}
		again := next(t, ignored)
		if again.Err() != nil || again.Token() <= term.Token() {
			t.Errorf("a leads again with %d, %v", again.Token(), again.Err())
		}
		// Once received, a term lasts, however long its receiver takes.
		time.Sleep(10 * w.Timeout)
		if again.Err() != nil {
			t.Errorf("a term that was received ended: %v", again.Err())
		}
		again.Release()
	})
}

// The removal of the node needs contact; the end of the channel does not.
func TestElection_EndOfTheContextClosesTheChannelWithoutContact(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		terms := w.candidate("a", nil).Leadership(ctx)
		w.candidates(1)
		w.Settle()
		w.Link("a").Partition()
		cancel()
		w.Settle()
		select {
		case term, open := <-terms:
			if open {
				w.T.Errorf("a term that was not received is still there: %v", term.Err())
			}
		default:
			w.T.Error("the channel is open")
		}
		w.Link("a").Heal()
		w.Empty("/e")
	})
}

func TestElection_TheDataOfACandidateIsCopied(t *testing.T) {
	onMemory(t, func(w *world) {
		data := []byte("before")
		e := w.candidate("a", &coord.ElectionOptions{Data: data})
		copy(data, "after!")
		term := mustLead(w.T, e)
		if l, err := e.Leader(w.T.Context()); err != nil || string(l.Data) != "before" {
			w.T.Errorf("the data %q, %v", l.Data, err)
		}
		coordtest.MustRelease(w.T, term.Hold)
	})
}

func TestElection_ALateReceiverGetsATermThatIsDoneNeverAStaleOne(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		late := w.candidate("a", nil).Leadership(ctx)
		w.candidates(1)
		w.Settle()
		w.Link("a").Partition() // before the term was received
		time.Sleep(2 * w.Timeout)
		term := next(t, late)
		select {
		case <-term.Done():
		default:
			t.Error("a lost term is not done")
		}
		coordtest.WantErr(t, term.Err(), coord.ErrLost)
		w.Link("a").Heal()
		if term := next(t, late); term.Err() != nil {
			t.Errorf("the next term: %v", term.Err())
		}
	})
}

// HashiCorp's raft, consul #6852, vault #8547: a leadership channel without a reader blocks its
// sender, or drops the newest element.
func TestElection_UnreadChannelsBlockNothingAndKeepTheNewest(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		watcher := w.candidate("watcher", nil)
		unread := watcher.WatchLeader(context.Background())
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
		w.Settle()
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

// A candidate that has stepped down does not queue beside its own node, which is being
// removed.
func TestElection_ACandidateThatSteppedDownWaitsForTheRemovalOfItsNode(t *testing.T) {
	onMemory(t, func(w *world) {
		let := make(chan struct{})
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if coordtest.Deletes(c) {
				<-let
			}
			return nil
		}})
		e := coord.NewElection(c, "/e", &coord.ElectionOptions{StepDownOnSuspend: true})
		first := mustLead(w.T, e)
		w.Link("a").Partition()
		<-first.Done()
		w.Link("a").Heal()
		second := make(chan *coord.Term)
		go func() { second <- mustLead(w.T, e) }()
		w.Settle()
		time.Sleep(time.Second) // of fake time, enough for a campaign that does not wait
		w.Settle()
		if names := w.Children("/e"); len(names) != 1 {
			w.T.Errorf("%q, want the node of the first term alone", names)
		}
		close(let)
		term := <-second
		if term.Session() != first.Session() {
			w.T.Error("the session was lost: there was nothing to remove")
		}
		coordtest.MustRelease(w.T, term.Hold)
	})
}

// A program can put a Term together from a Hold: in a test of its own, say.
func TestElection_ATermThatNoCampaignHasReturned(t *testing.T) {
	onMemory(t, func(w *world) {
		led := mustLead(w.T, w.candidate("a", nil))
		term := &coord.Term{Hold: led.Hold}
		coordtest.MustRelease(w.T, term.Hold)
		coordtest.WantErr(w.T, term.Announce(context.Background(), nil), coord.ErrReleased)
		w.Empty("/e")
	})
}
