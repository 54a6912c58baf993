package recipetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// ownedEvents keeps the latest ShardsOwned of a member, and how many there were.
type ownedEvents struct {
	mu   sync.Mutex
	last trace.ShardsOwned
	n    int
}

func (x *ownedEvents) trace(_ context.Context, e trace.Event) {
	if e, ok := e.(trace.ShardsOwned); ok {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.last = e
		x.n++
	}
}

func (x *ownedEvents) want(w *world, what string, owned, moving, ought int) {
	w.T.Helper()
	w.Settle()
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.last; e.Owned != owned || e.Moving != moving || e.Ought != ought || e.Recipe != "shards" || e.Path != w.Path("/s") || e.Member != "a" || e.Op != "all" {
		w.T.Errorf("%s: %+v, want %d owned, %d of them moving, of %d", what, e, owned, moving, ought)
	}
}

// The latest event tells what a member owns, through moves, force, a loss and the end.
func TestShards_TheEventsTellHowManyShardsAMemberOwns(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newCrew(w, 6)
		var events ownedEvents
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Namespace: w.Path(""), Trace: events.trace})
		ctx, stop := context.WithCancel(context.Background())
		var mu sync.Mutex
		held := make(map[int]*coord.Shard)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for sh, err := range coord.NewShards(c, "/s", x.n, &coord.ShardsOptions{ID: "a", ForceAfter: time.Minute}).All(ctx) {
				if err != nil {
					w.T.Error(err)
					return
				}
				mu.Lock()
				held[sh.Index] = sh
				mu.Unlock()
			}
		}()
		events.want(w, "alone", 6, 0, 6)
		b := x.start("b", coord.ShardsOptions{})
		events.want(w, "another member comes", 6, 3, 3)
		mu.Lock()
		for _, sh := range held {
			if _, ok := sh.Revocation(); ok {
				coordtest.MustRelease(w.T, sh.Hold)
				break
			}
		}
		mu.Unlock()
		events.want(w, "one is given up", 5, 2, 3)
		time.Sleep(61 * time.Second)
		events.want(w, "the others are forced", 3, 0, 3)
		if err := b.leave(); err != nil {
			w.T.Error(err)
		}
		events.want(w, "alone again", 6, 0, 6)
		w.Link("a").Partition()
		time.Sleep(2 * w.Timeout)
		events.want(w, "the session is lost", 0, 0, 6)
		w.Link("a").Heal()
		w.Eventually("all are owned again", func() bool {
			events.mu.Lock()
			defer events.mu.Unlock()
			return events.last.Owned == 6
		})
		stop()
		<-done
		events.want(w, "the loop has ended", 6, 6, 0)
		mu.Lock()
		defer mu.Unlock()
		for _, sh := range held {
			sh.Release()
		}
		events.want(w, "all is released", 0, 0, 0)
	})
}
