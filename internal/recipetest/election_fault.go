package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/pace"
)

// electionFaultTests are tests of Election on each service.
type electionFaultTests struct{ Services }

// Curator-620, -653, -696: after a reconnection the node of the previous session was first in
// the queue, and there were two leaders.
func (on electionFaultTests) ACandidateWaitsForTheEndOfItsOwnLostTerm(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		e := w.candidate("a", nil)
		first := mustLead(t, e)
		w.Link("a").Partition()
		<-first.Done() // by the lease; the service still has the session
		w.Link("a").Heal()
		second := mustLead(t, e)
		if second.Session() == first.Session() || second.Token() <= first.Token() {
			t.Errorf("session %x token %d after %x, %d", second.Session(), second.Token(), first.Session(), first.Token())
		}
		if _, err := w.Session("x").Exists(context.Background(), first.Path(), nil); !errors.Is(err, coord.ErrNotFound) {
			t.Errorf("the node of the lost term still exists: %v", err)
		}
	})
}

// Curator-247, -405, -460, -561: the loss was reported too late, or too early.
func (on electionFaultTests) ALeaderThatIsCutOffLosesItsTermBeforeAnotherLeads(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		a, b := w.candidate("a", nil), w.candidate("b", nil)
		first := mustLead(t, a)
		done := make(chan time.Time, 1)
		go func() {
			<-first.Done()
			done <- time.Now()
		}()
		w.Link("a").Partition()
		w.Link("a").Heal()
		if err := first.Verify(t.Context()); err != nil {
			t.Errorf("lost by a blip: %v", err)
		}
		m := pace.Start(t, nil)
		w.Link("a").Partition()
		second := mustLead(t, b)
		led := time.Now()
		m.Judge(next(t, done).Sub(led), 0, "the report of the loss after another led")
		m.Stop()
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
	})
}

// Curator-644, -645, -724: candidates that reconnect at the same time reset each other forever,
// or do not campaign again after the directory was deleted.
func (on electionFaultTests) CandidatesThatReconnectAtOnceSettle(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		a, b := w.candidate("a", nil), w.candidate("b", nil)
		la, lb := a.Leadership(ctx), b.Leadership(ctx)
		var term *coord.Term
		receive := func() {
			select {
			case term = <-la:
			case term = <-lb:
			case <-time.After(coordtest.Limit):
				t.Fatal("no candidate leads")
			}
		}
		receive()
		for range 3 {
			old := term
			w.Link("a").Partition()
			w.Link("b").Partition()
			<-old.Done()
			w.Link("a").Heal()
			w.Link("b").Heal()
			for term.Err() != nil {
				receive()
			}
			if term.Token() <= old.Token() {
				t.Errorf("token %d after %d", term.Token(), old.Token())
			}
			w.Eventually("two nodes", func() bool { return len(w.Children("/e")) == 2 })
		}
		// The directory is deleted with all nodes in it.
		s := w.Session("x")
		w.Eventually("the directory deleted", func() bool {
			for _, name := range w.Children("/e") {
				s.Commit(context.Background(), backend.Delete(w.Path("/e/"+name), backend.AnyVersion))
			}
			_, err := s.Commit(context.Background(), backend.Delete(w.Path("/e"), backend.AnyVersion))
			return err == nil
		})
		old := term
		for term.Token() <= old.Token() || term.Err() != nil {
			receive()
		}
		w.Eventually("two nodes", func() bool { return len(w.Children("/e")) == 2 })
	})
}

// etcd #19597, #16221: a waiter whose own node was deleted waits forever.
func (on electionFaultTests) ACandidateWhoseNodeIsDeletedTakesANewPlace(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		first := mustLead(t, w.candidate("a", nil))
		waits := w.candidate("b", nil).Leadership(ctx)
		w.candidates(2)
		list, err := w.candidate("c", nil).Contenders(ctx)
		if err != nil || len(list) != 2 {
			t.Fatal(list, err)
		}
		if _, err := w.Session("x").Commit(ctx, backend.Delete(list[1].Path, backend.AnyVersion)); err != nil {
			t.Fatal(err)
		}
		w.candidates(2)
		first.Release()
		if term := next(t, waits); term.Err() != nil || term.Path() == list[1].Path {
			t.Errorf("leads at %s: %v", term.Path(), term.Err())
		}
	})
}

// Curator-358: the leader's node vanishes between the listing and the read of it.
func (on electionFaultTests) ALeaderThatVanishesWhileBeingLookedUpIsPassedOver(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		var x coordtest.Nth
		first := mustLead(t, w.candidate("a", nil))
		b := w.candidate("b", nil)
		second := make(chan *coord.Term, 1)
		go func() { second <- mustLead(t, b) }()
		w.candidates(2)
		e := coord.NewElection(w.Open("c", &backendtest.Hooks{Before: x.Before}), "/e", nil)
		vanish := func(_ context.Context, _ backendtest.Call, err error) error {
			first.Release()
			<-first.Done()
			return err
		}
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" }, vanish)
		l, err := e.Leader(t.Context())
		if err != nil || l.ID != "b" {
			t.Errorf("leader %v, %v", l, err)
		}
		term := next(t, second)
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" }, func(_ context.Context, _ backendtest.Call, err error) error {
			term.Release()
			return err
		})
		if list, err := e.Contenders(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("contenders %v, %v", list, err)
		}
		if l, err := e.Leader(t.Context()); err != nil || !l.Vacant() {
			t.Errorf("leader %v, %v", l, err)
		}
	})
}

// etcd #18163, trillian: an observer never sees a vacancy, or its channel closes without
// notice.
func (on electionFaultTests) ObserveReportsVacancyAndContinuesOverLostSessions(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := w.Open("observer", nil)
		seen := coord.NewElection(c, "/e", nil).WatchLeader(ctx)
		if l := next(t, seen); !l.Vacant() {
			t.Errorf("at first %v", l)
		}
		a := w.candidate("a", nil)
		for i := range 4 {
			term := mustLead(t, a)
			if l := next(t, seen); l.Token != term.Token() || l.ID != "a" {
				t.Errorf("round %d: %v, want token %d", i, l, term.Token())
			}
			switch i {
			case 1: // contact breaks and returns: nothing to report
				w.Link("observer").Partition()
				w.Link("observer").Heal()
			case 2: // the observer's session is lost
				st := next(t, c.WatchState(ctx))
				w.Link("observer").Expire(st.Session)
				w.Eventually("the next session", func() bool {
					now := next(t, c.WatchState(ctx))
					return now.Session != st.Session && now.Phase == coord.PhaseConnected
				})
			}
			if i == 3 {
				w.Link("a").Expire(term.Session())
			} else {
				term.Release()
			}
			if l := next(t, seen); !l.Vacant() || l.Err != nil {
				t.Errorf("round %d: after the end %v", i, l)
			}
		}
		// The leader changes while the observer is cut off: the observer must not keep the old
		// one.
		old := mustLead(t, a)
		next(t, seen)
		w.Link("observer").Partition()
		old.Release()
		now := mustLead(t, a)
		w.Link("observer").Heal()
		for l := next(t, seen); l.Token != now.Token(); l = next(t, seen) {
			if !l.Vacant() {
				t.Errorf("after the reconnection: %v, want %d", l, now.Token())
			}
		}
		cancel()
		for _, l := range closed(t, seen) {
			t.Errorf("at the end: %v", l)
		}
	})
}

func (on electionFaultTests) ForeignNodesBlockNoCandidate(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		s := w.Session("x")
		for _, p := range []string{"/e", "/e/README", "/e/_c_s1", "/e/x-99999999999", "/e/-1", "/e/latch-", "/e/_c_0-lock-000000000"} {
			if _, err := s.Commit(t.Context(), backend.Create(w.Path(p), nil, backend.Persistent)); err != nil {
				t.Fatal(err)
			}
		}
		e := w.candidate("a", nil)
		seen := e.WatchLeader(t.Context())
		if l := next(t, seen); !l.Vacant() {
			t.Errorf("at first %v", l)
		}
		term := mustLead(t, e)
		if l := next(t, seen); l.Token != term.Token() {
			t.Errorf("%v, want token %d", l, term.Token())
		}
		term.Release()
		if l := next(t, seen); !l.Vacant() {
			t.Errorf("after it %v", l)
		}
	})
}
