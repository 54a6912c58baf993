package recipetest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// A loss between the grant and its report is reported after the grant.
func TestTrace_NothingOfAHoldIsReportedBeforeItsGrant(t *testing.T) {
	onMemory(t, func(w *world) {
		x := &tape{w: w, ids: make(map[uint64]int), items: make(map[string]int)}
		var c *coord.Client
		var lost bool
		c = coordtest.Open(w.T, w.Link("a"), &coord.Options{Trace: func(ctx context.Context, e trace.Event) {
			if e, ok := e.(trace.HoldGranted); ok && !lost {
				// The session expires while the grant is being reported.
				lost = true
				s, err := c.Session(ctx)
				if err != nil {
					w.T.Error(err)
				}
				w.Link("a").Expire(s.ID())
				<-s.Done()
				time.Sleep(time.Second) // enough for a report of the loss to arrive
				x.trace(ctx, e)
				return
			}
			x.trace(ctx, e)
		}})
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
		w.Settle()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost)
		x.want("#1 HoldGranted mutex /l lock node=/*lock-* token=true weight=1",
			"#1 HoldLost mutex /l lock node=/*lock-* token=true err=lost")
	})
}

// Trace itself can find that a hold is lost, while it receives another event.
func TestTrace_ALossThatTraceFindsIsReportedNext(t *testing.T) {
	onMemory(t, func(w *world) {
		x := &tape{w: w, ids: make(map[uint64]int), items: make(map[string]int)}
		var term *coord.Term
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Trace: func(ctx context.Context, e trace.Event) {
			if _, ok := e.(trace.LeaderAnnounced); ok {
				w.Link("a").Expire(term.Session())
				<-term.Done()
				coordtest.WantErr(w.T, term.Err(), coord.ErrLost)
			}
			x.trace(ctx, e)
		}})
		var err error
		term, err = coord.NewElection(c, "/e", nil).Campaign(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		term.Announce(context.Background(), nil)
		x.want("#1 HoldGranted election /e campaign node=/*latch-* token=true weight=1",
			"#1 LeaderAnnounced election /e campaign node=/*latch-* token=true",
			"#1 HoldLost election /e campaign node=/*latch-* token=true err=lost")
	})
}

func TestTrace_EventsCarryTheirTimes(t *testing.T) {
	onMemory(t, func(w *world) {
		a := coord.NewMutex(w.Open("a", nil), "/l", nil)
		x, c := w.taped("b", nil)
		h := coordtest.MustLock(w.T, a)
		b := w.Lock(context.Background(), coord.NewMutex(c, "/l", nil))
		time.Sleep(2 * time.Second)
		coordtest.MustRelease(w.T, h)
		h = b.Hold()
		if e := lastOf[trace.HoldGranted](w.T, x); e.Waited != 2*time.Second || e.Token != h.Token() || e.Node != h.Path() {
			w.T.Errorf("%+v", e)
		}
		time.Sleep(3 * time.Second)
		coordtest.MustRelease(w.T, h)
		if e := lastOf[trace.HoldReleased](w.T, x); e.Held != 3*time.Second || e.Token != h.Token() || e.Node != h.Path() {
			w.T.Errorf("%+v", e)
		}
		h = coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
		time.Sleep(4 * time.Second)
		w.Link("b").Expire(h.Session())
		<-h.Done()
		w.Settle()
		e := lastOf[trace.HoldLost](w.T, x)
		if e.Held != 4*time.Second || e.Token != h.Token() || e.Node != h.Path() || e.Err != h.Err() {
			w.T.Errorf("%+v", e)
		}
		giveUp, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		taken := coordtest.MustLock(w.T, a)
		<-w.Lock(giveUp, coord.NewMutex(c, "/l", nil)).Done
		if e := lastOf[trace.WaitEnded](w.T, x); e.Waited != 5*time.Second {
			w.T.Errorf("%+v", e)
		}
		coordtest.MustRelease(w.T, taken)
	})
}

// An event that is known only after the end was reported is not reported: here the leader
// resigns while the reply to its announcement is under way.
func TestTrace_NothingOfAHoldIsReportedAfterItsEnd(t *testing.T) {
	onMemory(t, func(w *world) {
		var term *coord.Term
		var once atomic.Bool
		x, c := w.taped("a", &backendtest.Hooks{After: func(_ context.Context, call backendtest.Call, err error) error {
			if call.Op == "commit" && call.Ops[0].Kind == backend.OpCheck && once.CompareAndSwap(false, true) {
				coordtest.MustRelease(w.T, term.Hold)
			}
			return err
		}})
		var err error
		if term, err = coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "a"}).Campaign(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		if err := term.Announce(context.Background(), []byte("here")); err != nil {
			w.T.Fatal(err)
		}
		x.want("#1 HoldGranted election /e campaign node=/*latch-* token=true weight=1",
			"#1 HoldReleased election /e campaign node=/*latch-* token=true err=nil")
	})
}
