package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// However a loop over Terms ends, no candidate is left when it has ended.
func TestElection_EndOfALoopOverTermsEndsTheCandidacy(t *testing.T) {
	for _, how := range []string{"break", "panic", "ctx"} {
		onMemory(t, func(w *world) {
			e := coord.NewElection(w.Open("a", nil), "/e", nil)
			ctx, cancel := context.WithCancel(w.T.Context())
			defer cancel()
			var terms []*coord.Term
			func() {
				defer func() { recover() }()
				for term, err := range e.Terms(ctx) {
					if err != nil {
						w.T.Fatalf("%s: %v", how, err)
					}
					if len(terms) > 0 && terms[len(terms)-1].Err() == nil {
						w.T.Errorf("%s: an earlier term stands", how)
					}
					terms = append(terms, term)
					switch {
					case len(terms) < 3: // the term is released, and the candidate campaigns again
					case how == "break":
						return
					case how == "panic":
						panic(how)
					default:
						cancel()
					}
				}
			}()
			if len(terms) != 3 {
				w.T.Fatalf("%s: %d terms, want 3", how, len(terms))
			}
			for i, term := range terms {
				if !errors.Is(term.Err(), coord.ErrReleased) || i > 0 && term.Token() <= terms[i-1].Token() {
					w.T.Errorf("%s: term %d: token %d, %v", how, i, term.Token(), term.Err())
				}
			}
			if left := w.Children("/e"); len(left) > 0 {
				w.T.Errorf("%s: the loop has ended, and there is %q", how, left)
			}
			time.Sleep(time.Minute)
			if left := w.Children("/e"); len(left) > 0 {
				w.T.Errorf("%s: a minute after the loop there is %q", how, left)
			}
		})
	}
}

func TestElection_LoopOverTermsYieldsTheErrorOfCampaign(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		n := 0
		for term, err := range coord.NewElection(c, "bad", nil).Terms(w.T.Context()) {
			n++
			if term != nil || !errors.Is(err, coord.ErrBadPath) {
				w.T.Errorf("yielded %v, %v", term, err)
			}
		}
		c.Close()
		for term, err := range coord.NewElection(c, "/e", nil).Terms(w.T.Context()) {
			n++
			if term != nil || !errors.Is(err, coord.ErrClosed) {
				w.T.Errorf("yielded %v, %v", term, err)
			}
		}
		if n != 2 {
			w.T.Errorf("%d pairs, want 2", n)
		}
	})
}

// The end of the ctx during a campaign is no pair, as the caller has caused it.
func TestElection_EndOfTheContextDuringACampaignIsNoPair(t *testing.T) {
	onMemory(t, func(w *world) {
		mustLead(w.T, w.candidate("leader", nil))
		ctx, cancel := context.WithCancel(w.T.Context())
		waits := w.candidate("waits", nil)
		go func() {
			w.candidates(2)
			w.Settle()
			cancel()
		}()
		for term, err := range waits.Terms(ctx) {
			w.T.Errorf("yielded %v, %v", term, err)
		}
		w.candidates(1)
	})
}

// A lost term ends neither the loop nor the candidacy.
func TestElection_LoopOverTermsGoesOnAfterALoss(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		n := 0
		for term, err := range coord.NewElection(c, "/e", nil).Terms(w.T.Context()) {
			if err != nil {
				w.T.Fatal(err)
			}
			if n++; n == 2 {
				break
			}
			s, err := c.Session(w.T.Context())
			if err != nil {
				w.T.Fatal(err)
			}
			w.Link("a").Expire(s.ID())
			<-term.Done()
		}
		if n != 2 {
			w.T.Errorf("%d terms, want 2", n)
		}
	})
}

// The elements are those of the channels, and a loop that ends leaves no goroutine: the test
// waits for them.
func TestWatchLoop_EndWithTheirBody(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		e, v := coord.NewElection(c, "/e", nil), coord.NewValue[int](c, "/v", nil)
		var term *coord.Term
		for l := range e.Leaders(w.T.Context()) {
			if term == nil {
				if !l.Vacant() {
					w.T.Fatalf("leader %+v before the campaign", l)
				}
				var err error
				if term, err = e.Campaign(w.T.Context()); err != nil {
					w.T.Fatal(err)
				}
				continue
			}
			if l.Token != term.Token() {
				w.T.Errorf("leader %+v, want token %d", l, term.Token())
			}
			break
		}
		next := 0
		for now := range v.Changes(w.T.Context()) {
			if next == 0 && !errors.Is(now.Err, coord.ErrNotFound) || next > 0 && now.Value != next {
				w.T.Errorf("yielded %+v, want %d", now, next)
			}
			if next++; next == 4 {
				break
			}
			setValue(w.T, v, next)
		}
		time.Sleep(time.Second)
		if _, age := v.Load(); age != time.Second {
			w.T.Errorf("the age is %v, a second after the loop", age)
		}
		ctx, cancel := context.WithCancel(w.T.Context())
		for range v.Changes(ctx) {
			cancel()
		}
		cancel()
	})
}
