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
	"github.com/go-coord/coord/trace"
)

// A caller gives up while an item is claimed for it.
func TestTrace_TheEventsOfAnItemWhoseCallerGaveUp(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancel(called(context.Background()))
		var after coordtest.Nth
		x, c := w.taped("a", &backendtest.Hooks{After: after.After})
		q := coord.NewQueue[int](c, "/q", nil)
		if _, err := q.Put(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		const item = "node=/items/b-0-0/i-*-0-* "
		x.want("#1 called ItemsPut queue /q put items=1")
		after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
			cancel()
			time.Sleep(time.Second) // until the caller has returned
			return err
		})
		if _, err := q.Take(ctx); !errors.Is(err, context.Canceled) {
			w.T.Fatal(err)
		}
		x.want("#2 ItemClaimed queue /q take "+item+"item=1 attempt=1 token=true",
			"#2 ItemSettled queue /q take "+item+"item=1 attempt=1 returned delay=0s err=nil")
	})
}

// A claim is lost before it was reported.
func TestTrace_AnItemIsNotReportedLostBeforeItsClaim(t *testing.T) {
	onMemory(t, func(w *world) {
		x := &tape{w: w, ids: make(map[uint64]int), items: make(map[string]int)}
		var c *coord.Client
		c = coordtest.Open(w.T, w.Link("a"), &coord.Options{Trace: func(ctx context.Context, e trace.Event) {
			if _, ok := e.(trace.WaitEnded); ok {
				s, err := c.Session(ctx) // of the claim
				if err != nil {
					w.T.Error(err)
				}
				w.Link("a").Expire(s.ID())
				<-s.Done()
				time.Sleep(time.Second)
			}
			x.trace(ctx, e)
		}})
		go coord.NewQueue[int](c, "/q", nil).Take(context.Background())
		x.want("#1 WaitBegan queue /q take ahead=-1")
		if _, err := coord.NewQueue[int](w.Open("b", nil), "/q", nil).Put(context.Background(), 1); err != nil {
			w.T.Fatal(err)
		}
		w.Eventually("the loss is reported", func() bool { return len(eventsOf[trace.ItemSettled](x)) > 0 })
		w.Settle()
		x.mu.Lock()
		x.lines = x.lines[:3] // Take continues with the next attempt
		x.mu.Unlock()
		const item = "node=/items/b-0-0/i-*-0-* "
		x.want("#1 WaitEnded queue /q take err=nil",
			"#2 ItemClaimed queue /q take "+item+"item=1 attempt=1 token=true",
			"#2 ItemSettled queue /q take "+item+"item=1 attempt=1 lost delay=0s err=lost")
	})
}

// An outsider destroys the record of a transaction that a site has voted yes for.
func TestTrace_ASiteInDoubtIsReported(t *testing.T) {
	onMemory(t, func(w *world) {
		list := w.accounts("b")
		list[0].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		x, c := w.taped("site a", nil)
		a := &account{w: w, name: "a", doubts: make(chan error, 10)}
		a.serve(c)
		w.served("a", "b")
		go coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil).Propose(w.T.Context(), w.proposal("t1", "a", "b"))
		x.want("ProposalVoted twophase /tx serve node=/sites/a/t1~* tx=t1 site=a yes=true",
			"#1 HoldGranted mutex /tx/serving/a lock node=/*lock-* token=true weight=1")
		s := w.Session("outsider")
		var ops []backend.Op
		for _, name := range w.Children("/tx/tx/t1") {
			ops = append(ops, backend.Delete("/tx/tx/t1/"+name, backend.AnyVersion))
		}
		if _, err := s.Commit(w.T.Context(), append(ops, backend.Delete("/tx/tx/t1", backend.AnyVersion))...); err != nil {
			w.T.Fatal(err)
		}
		x.want("ProposalInDoubt twophase /tx serve node=/sites/a/t1~* tx=t1 site=a")
	})
}
