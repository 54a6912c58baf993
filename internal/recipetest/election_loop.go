package recipetest

import (
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// electionLoopTests are tests of Election on each service.
type electionLoopTests struct{ Services }

func (on electionLoopTests) RevokeHandsLeadershipOver(t *testing.T) {
	on.each(t, func(w *world) {
		a, b, op := w.Open("a", nil), w.Open("b", nil), w.Open("operator", nil)
		first, err := coord.NewElection(a, "/e", &coord.ElectionOptions{ID: "a", Data: []byte("x")}).Campaign(w.T.Context())
		if err != nil {
			w.T.Fatal(err)
		}
		if err := first.Announce(w.T.Context(), []byte("ready")); err != nil {
			w.T.Fatal(err)
		}
		second := make(chan *coord.Term, 1)
		go func() {
			t, err := coord.NewElection(b, "/e", &coord.ElectionOptions{ID: "b"}).Campaign(w.T.Context())
			if err != nil {
				w.T.Error(err)
			}
			second <- t
		}()
		e := coord.NewElection(op, "/e", nil)
		w.Eventually("both are candidates", func() bool {
			list, err := e.Contenders(w.T.Context())
			return err == nil && len(list) == 2
		})
		revoked := make(chan error, 1)
		go func() { revoked <- e.Revoke(w.T.Context(), &coord.RevokeOptions{By: "operator", Reason: "upgrade"}) }()
		<-first.Revoked()
		if l, err := e.Leader(w.T.Context()); err != nil || l.ID != "a" || !l.Ready {
			w.T.Errorf("while it is asked: %+v, %v", l, err)
		}
		select {
		case err := <-revoked:
			w.T.Errorf("Revoke has returned %v, and the leader has not resigned", err)
		default:
		}
		if err := first.Release(); err != nil {
			w.T.Error(err)
		}
		if err := <-revoked; err != nil {
			w.T.Error(err)
		}
		next := <-second
		if next == nil || next.Token() <= first.Token() {
			w.T.Fatalf("the next term: %v", next)
		}
		// By force, and its announcement goes too.
		if err := next.Announce(w.T.Context(), nil); err != nil {
			w.T.Fatal(err)
		}
		if err := e.Revoke(w.T.Context(), &coord.RevokeOptions{ForceAfter: time.Millisecond}); err != nil {
			w.T.Error(err)
		}
		<-next.Done()
		if err := next.Err(); !errors.Is(err, coord.ErrLost) {
			w.T.Errorf("after force: %v", err)
		}
		w.Eventually("nothing is left", func() bool { return len(w.Children("/e")) == 0 })
		if err := e.Revoke(w.T.Context(), nil); err != nil {
			w.T.Errorf("without a leader: %v", err)
		}
	})
}
