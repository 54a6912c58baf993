package election

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/core"
)

// A leader steps down, and the goroutine that ends its term is held up. The removal of
// the term's node is registered before Done is closed and begins before anything else, so
// the next campaign of the same client does not stand behind it.
func TestElection_ACampaignDoesNotMeetTheTermThatHasSteppedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.New(nil).Link("a")
		c, err := core.Open(t.Context(), l, core.Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		e := New(c, "/e", Config{StepDownOnSuspend: true})
		term, err := e.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		until := make(chan struct{})
		defer close(until)
		term.h.WhenEnded(func(error) { <-until })
		l.Partition()
		<-term.h.Done()
		l.Heal()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		next, err := e.Campaign(ctx)
		if err != nil {
			t.Fatalf("the term ended with %v, and the next campaign: %v", term.h.Err(), err)
		}
		if err := next.h.Release(); err != nil {
			t.Error(err)
		}
	})
}
