package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// doublebarrierFaultTests are tests of DoubleBarrier on each service.
type doublebarrierFaultTests struct{ Services }

// In ZooKeeper's recipe the ready node survives a crash of all members, and admits the next
// entrant alone.
func (on doublebarrierFaultTests) AReadyThatSurvivedACrashOpensNoRound(t *testing.T) {
	t.Parallel()
	for _, o := range []*coord.DoubleBarrierOptions{nil, {WaitForNextRound: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			on.each(t, func(w *world) {
				ds := w.doubles(3, "/d", 3, o)
				es := w.inside(ds)
				for i, e := range es {
					w.Link(fmt.Sprint(i)).Expire(e.Session())
					<-e.Done()
					coordtest.WantErr(w.T, e.Err(), coord.ErrLost)
					coordtest.WantErr(w.T, e.Leave(context.Background()), coord.ErrLost)
				}
				if ready := w.Children("/d"); !strings.Contains(fmt.Sprint(ready), "ready") {
					w.T.Fatalf("no ready has survived: %v", ready)
				}
				back := w.enter(context.Background(), ds[0])
				w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
				back.pending("one of three has come")
				second := w.enter(context.Background(), ds[1])
				w.stand(ds[0], coord.DoubleBarrierState{Waiting: 2})
				back.pending("two of three have come")
				third := w.enter(context.Background(), ds[2])
				var out []*call
				for _, x := range []*entering{back, second, third} {
					out = append(out, w.leave(x.entry()))
				}
				for _, c := range out {
					w.must(c.end())
				}
				w.bare("/d")
			})
		})
	}
}

// Curator-80, Curator-318: an Enter that failed left its node, and the next round opened with
// one member too few.
func (on doublebarrierFaultTests) AnEnterThatIsGivenUpLeavesNoMember(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(3, "/d", 3, nil)
		ctx, cancel := context.WithCancelCause(context.Background())
		gone := w.enter(ctx, ds[0])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		reason := errors.New("no time")
		cancel(reason)
		coordtest.WantErr(w.T, gone.end(), context.Canceled, reason)
		w.bare("/d")
		first, second := w.enter(context.Background(), ds[0]), w.enter(context.Background(), ds[1])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 2})
		first.pending("two of three are there")
		third := w.enter(context.Background(), ds[2])
		for _, x := range []*entering{first, second, third} {
			w.must(x.entry().Release())
		}
	})
}

// The reply to the commit that opens a round is lost, and then the service refuses the user until it is
// asked for the third time. The member enters all the same.
func (on doublebarrierFaultTests) AnEnterSurvivesARefusalOfTheUser(t *testing.T) {
	on.each(t, func(w *world) {
		var lose, refuse coordtest.Nth
		d := coord.NewDoubleBarrier(w.Open("a", &backendtest.Hooks{Before: refuse.Before, After: lose.After}), "/d", 1, nil)
		syncs := func(c backendtest.Call) bool { return c.Op == "sync" && c.Path == w.Path("/d/members") }
		refusal := &backend.NoContactError{Err: backend.ErrDenied}
		lose.Arm(1, does(backend.OpCreate, "/ready"), func(context.Context, backendtest.Call, error) error {
			refuse.Arm(1, syncs, func(context.Context, backendtest.Call, error) error {
				refuse.Arm(1, syncs, func(context.Context, backendtest.Call, error) error { return refusal })
				return refusal
			})
			return backend.ErrUncertain
		})
		e, err := d.Enter(context.Background())
		w.must(err)
		if !lose.Idle() || !refuse.Idle() {
			w.T.Error("no reply was lost, or the user was not refused twice")
		}
		w.must(e.Leave(context.Background()))
		w.bare("/d")
	})
}

// Curator-536: a leave outlived its timeout.
func (on doublebarrierFaultTests) ALeaveThatIsGivenUpReturnsInTimeAndHasLeft(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(3, "/d", 3, nil)
		es := w.inside(ds)
		for i, e := range es[:2] { // the lowest, whose node stays as long as it waits, and another
			ctx, cancel := context.WithCancel(context.Background())
			out := w.call(func() error { return e.Leave(ctx) })
			<-e.Done()
			out.pending("a member is inside")
			cancel()
			coordtest.WantErr(w.T, out.end(), context.Canceled)
			w.stand(ds[2], coord.DoubleBarrierState{Inside: 2 - i})
		}
		again := w.leave(es[0])
		again.pending("a member is inside")
		w.must(es[2].Leave(context.Background()))
		w.must(again.end())
		w.bare("/d")
	})
}

func (on doublebarrierFaultTests) ACrashBeforeTheRoundOpensKeepsTheOthersWaiting(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("dying", nil)
		ds := w.doubles(3, "/d", 3, nil)
		ctx, cancel := context.WithCancel(context.Background())
		dying := w.enter(ctx, coord.NewDoubleBarrier(c, "/d", 3, nil))
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		first := w.enter(context.Background(), ds[0])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 2})
		w.Link("dying").Partition()
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1}) // it died
		second := w.enter(context.Background(), ds[1])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 2})
		first.pending("the third has died")
		second.pending("the third has died")
		third := w.enter(context.Background(), ds[2]) // a replacement
		for _, x := range []*entering{first, second, third} {
			w.must(x.entry().Release())
		}
		cancel()
		dying.end()
		w.Link("dying").Heal()
		w.bare("/d")
	})
}

func (on doublebarrierFaultTests) ACrashInsideDoesNotKeepTheOthersFromLeaving(t *testing.T) {
	for _, who := range []int{0, 1, 2} { // the lowest, one between, the highest
		t.Run(fmt.Sprint(who), func(t *testing.T) {
			on.each(t, func(w *world) {
				ds := w.doubles(3, "/d", 3, nil)
				es := w.inside(ds)
				var out []*call
				for i, e := range es {
					if i != who {
						out = append(out, w.leave(e))
					}
				}
				for _, c := range out {
					c.pending("a member is inside")
				}
				w.Link(fmt.Sprint(who)).Expire(es[who].Session())
				for _, c := range out {
					w.must(c.end())
				}
				w.Empty("/d/members")
			})
		})
	}
}

// Enter and Leave continue to wait with the next session.
func (on doublebarrierFaultTests) WaitingAtADoubleBarrierSurvivesALostSession(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(3, "/d", 3, nil)
		// The server of a new session may lag behind what the old one has seen.
		var mu sync.Mutex
		current := make(map[int64]bool)
		c := w.Open("lost", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			mu.Lock()
			defer mu.Unlock()
			switch c.Op {
			case "sync", "commit":
				current[c.Session.ID()] = true
			case "children":
				if !current[c.Session.ID()] {
					w.T.Error("a new session lists the members before its server has caught up")
				}
			}
			return err
		}})
		lost := coord.NewDoubleBarrier(c, "/d", 3, nil)
		expire := func() { w.Link("lost").Expire((<-c.WatchState(context.Background())).Session) }
		first := w.enter(context.Background(), lost)
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		before := w.Children("/d/members")
		expire()
		w.Eventually("it enters again", func() bool {
			now := w.Children("/d/members")
			return len(now) == 1 && now[0] != before[0]
		})
		first.pending("two are missing")
		second, third := w.enter(context.Background(), ds[0]), w.enter(context.Background(), ds[1])
		e := first.entry()
		out := w.leave(e)
		<-e.Done()
		w.Settle()
		out.pending("two are inside")
		old := e.Session()
		expire()
		w.Eventually("the next session", func() bool { return (<-c.WatchState(context.Background())).Session != old })
		w.Settle()
		out.pending("two are inside, whatever became of the session")
		w.must(second.entry().Release())
		out.pending("one is inside")
		w.must(third.entry().Release())
		w.must(out.end())
		w.Empty("/d/members")
	})
}

// A client that is back with a new session, while the service still has the old one, counts as
// one member, not two.
func (on doublebarrierFaultTests) AMemberThatEntersAgainCountsOnce(t *testing.T) {
	on.each(t, func(w *world) {
		let := make(chan struct{}) // delays its clean-up
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if does(backend.OpDelete, "member-")(c) {
				<-let
			}
			return nil
		}})
		other := w.Open("b", nil)
		d := coord.NewDoubleBarrier(c, "/d", 2, nil)
		x := w.enter(context.Background(), d)
		w.stand(d, coord.DoubleBarrierState{Waiting: 1})
		for range 3 {
			states := c.WatchState(context.Background())
			w.Link("a").Partition()
			for st := range states {
				if st.Phase == coord.PhaseLost { // by the lease, before the service ends it
					break
				}
			}
			w.Link("a").Heal()
			w.Eventually("it enters again", func() bool {
				return (<-c.WatchState(context.Background())).Phase == coord.PhaseConnected && len(w.Children("/d/members")) == 1
			})
			x.pending("one is missing")
		}
		close(let)
		y := w.enter(context.Background(), coord.NewDoubleBarrier(other, "/d", 2, nil))
		w.must(x.entry().Release())
		w.must(y.entry().Release())
		w.bare("/d")
	})
}

// etcd 19597: a waiter whose own node was deleted waited forever.
func (on doublebarrierFaultTests) AMemberWhoseNodeIsDeletedEntersAgain(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(2, "/d", 2, nil)
		first := w.enter(context.Background(), ds[0])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		name := w.Children("/d/members")[0]
		w.commit(backend.Delete(w.Path("/d/members/"+name), backend.AnyVersion))
		w.Eventually("it enters again", func() bool {
			now := w.Children("/d/members")
			return len(now) == 1 && now[0] != name
		})
		first.pending("one is missing")
		second := w.enter(context.Background(), ds[1])
		a, b := first.entry(), second.entry()
		w.commit(backend.Delete(a.Path(), backend.AnyVersion))
		<-a.Done()
		coordtest.WantErr(w.T, a.Err(), coord.ErrLost, coord.ErrDeleted)
		w.must(b.Leave(context.Background()))
		w.bare("/d")
	})
}
