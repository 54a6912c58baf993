package coord_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// does matches commits that do something of a kind to a node called name.
func does(kind backend.OpKind, name string) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool {
		for _, op := range c.Ops {
			if op.Kind == kind && strings.Contains(op.Path, name) {
				return true
			}
		}
		return false
	}
}

// A member that goes while the last to come opens the round is not counted.
func TestAMemberThatGoesAtTheLastMomentDoesNotCount(t *testing.T) {
	onEach(t, func(w *world) {
		var before nth
		last := coord.NewDoubleBarrier(w.open("last", &backendtest.Hooks{Before: before.before}), "/d", 2, nil)
		d := coord.NewDoubleBarrier(w.open("a", nil), "/d", 2, nil)
		ctx, cancel := context.WithCancel(context.Background())
		first := w.enter(ctx, d)
		w.stand(d, coord.DoubleBarrierState{Waiting: 1})
		gone := make(chan struct{})
		before.arm(1, does(backend.OpCreate, "/ready"), func(context.Context, backendtest.Call, error) error {
			defer close(gone)
			cancel()
			w.eventually("the first has gone", func() bool { return len(w.children("/d/members")) == 1 })
			return nil
		})
		second := w.enter(context.Background(), last)
		wantErr(w.t, first.end(), context.Canceled)
		<-gone
		w.stand(d, coord.DoubleBarrierState{Waiting: 1})
		second.pending("the first has gone")
		third := w.enter(context.Background(), d)
		w.must(second.entry().Release())
		w.must(third.entry().Release())
		w.bare("/d")
	})
}

// Who is about to join a round that ends makes part of the next.
func TestWhoIsTooLateToJoinWaitsForTheNextRound(t *testing.T) {
	onEach(t, func(w *world) {
		var before nth
		late := coord.NewDoubleBarrier(w.open("late", &backendtest.Hooks{Before: before.before}), "/d", 2, nil)
		ds := w.doubles(2, "/d", 2, nil)
		es := w.inside(ds)
		over := make(chan struct{})
		before.arm(1, does(backend.OpCreate, "guest-"), func(context.Context, backendtest.Call, error) error {
			defer close(over)
			w.must(es[0].Release())
			return es[1].Release()
		})
		x := w.enter(context.Background(), late)
		<-over
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		x.pending("the round is over")
		y := w.enter(context.Background(), ds[0])
		if e := x.entry(); e.Extra() {
			w.t.Error("it joined a round that was over")
		}
		w.must(x.e.Release())
		w.must(y.entry().Release())
		w.bare("/d")
	})
}

// Every new ready has version 0. Who removes a stale one by that removes the next
// one, if he is slow.
func TestWhoRemovesAStaleReadyDoesNotRemoveTheNext(t *testing.T) {
	onEach(t, func(w *world) {
		var before nth
		slow := coord.NewDoubleBarrier(w.open("slow", &backendtest.Hooks{Before: before.before}), "/d", 2, nil)
		ds := w.doubles(2, "/d", 2, nil)
		for i, e := range w.inside(ds) {
			w.Link(fmt.Sprint(i)).Expire(e.Session())
			<-e.Done()
		}
		at, let := make(chan struct{}), make(chan struct{})
		before.arm(1, does(backend.OpDelete, "/ready"), func(context.Context, backendtest.Call, error) error {
			close(at)
			<-let
			return nil
		})
		x := w.enter(context.Background(), slow) // is named by the next round, and still about to clear up
		<-at
		y := w.enter(context.Background(), ds[0]).entry()
		observer := w.session("observer")
		opened, err := observer.Exists(context.Background(), w.path("/d/ready"), nil)
		w.must(err)
		close(let)
		e := x.entry()
		w.must(observer.Sync(context.Background(), w.path("/d")))
		if now, err := observer.Exists(context.Background(), w.path("/d/ready"), nil); err != nil || now.Czxid != opened.Czxid {
			w.t.Errorf("the round that had opened is not the one that stands: %v", err)
		}
		w.stand(ds[0], coord.DoubleBarrierState{Inside: 2})
		out := w.leave(e)
		out.pending("a member is inside")
		w.must(y.Leave(context.Background()))
		w.must(out.end())
		w.bare("/d")
	})
}
