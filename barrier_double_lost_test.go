package coord_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

func lostByLease(w *world, c *coord.Client, link string) {
	states := c.States(context.Background())
	w.Link(link).Partition()
	for st := range states {
		if st.Phase == coord.Lost {
			break
		}
	}
	w.Link(link).Heal()
}

// A Set that was given up makes the next one take the node of the own lost session
// for another client's.
func TestASetWaitsForEachOfItsLostSessions(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before nth
		c := w.open("a", &backendtest.Hooks{Before: before.before})
		b := coord.NewBarrier(c, "/b", &coord.BarrierOptions{Ephemeral: true})
		w.must(b.Set(ctx))
		lostByLease(w, c, "a")
		short, cancel := context.WithCancel(ctx)
		before.arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == "/b" }, func(context.Context, backendtest.Call, error) error {
			cancel()
			return backend.Uncertain(context.Canceled)
		})
		wantErr(w.t, b.Set(short), coord.ErrUncertain)
		if err := b.Set(ctx); err != nil { // documented: waits until the service has removed the old one
			w.t.Errorf("Set: %v", err)
		}
	})
}

// A barrier that goes with its session can stand until the service ends that.
func TestASetThatEndsWithItsSessionIsUncertain(t *testing.T) {
	for _, when := range []string{"together with the session", "before the next session"} {
		t.Run(when, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				var after nth
				b := coord.NewBarrier(w.open("a", &backendtest.Hooks{After: after.after}), "/barrier", &coord.BarrierOptions{Ephemeral: true})
				after.arm(1, does(backend.OpCreate, "/barrier"), func(_ context.Context, c backendtest.Call, _ error) error {
					w.Link("a").Partition()
					<-c.Session.Done()
					if when == "together with the session" {
						cancel()
					}
					return backend.Uncertain(c.Session.Err())
				})
				set := w.call(func() error { return b.Set(ctx) })
				w.eventually("the session is lost", func() bool { return len(w.children("/")) > 0 })
				time.Sleep(w.timeout * 3 / 4)
				w.settle()
				cancel()
				wantErr(w.t, set.end(), coord.ErrUncertain, context.Canceled)
				w.Link("a").Heal()
				w.must(b.Set(context.Background()))
				wantErr(w.t, coord.NewBarrier(w.open("b", nil), "/barrier", nil).Set(context.Background()), coord.ErrExists)
			})
		})
	}
}

// A creation whose reply is lost together with its session leaves a node that counts
// in the round after the one that the call took part in.
func TestAMemberDoesNotCountInTwoRounds(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after nth
		var came atomic.Int32
		count := func(_ context.Context, c backendtest.Call) error {
			if does(backend.OpCreate, "member-")(c) {
				came.Add(1)
			}
			return nil
		}
		c := w.open("a", &backendtest.Hooks{After: after.after, Before: count})
		a := coord.NewDoubleBarrier(c, "/d", 2, nil)
		b := coord.NewDoubleBarrier(w.open("b", nil), "/d", 2, nil)
		// The directories are there.
		x, y := w.enter(ctx, a), w.enter(ctx, b)
		o := w.leave(x.entry())
		w.must(y.entry().Leave(ctx))
		w.must(o.end())

		states := c.States(ctx)
		after.arm(1, does(backend.OpCreate, "member-"), func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return backend.ErrUncertain
		})
		x = w.enter(ctx, a)
		for st := range states {
			if st.Phase == coord.Lost {
				break
			}
		}
		first := w.children("/d/members")[0]
		w.Link("a").Heal()
		w.eventually("it came anew", func() bool {
			now := w.children("/d/members")
			return len(now) == 2 || len(now) == 1 && now[0] != first
		})
		w.settle()
		// What removes the node of the lost session spares that of the next one.
		if n := came.Load(); n != 3 {
			w.t.Errorf("it came %d times, want once to the first round and twice to the second", n)
		}
		y = w.enter(ctx, b)
		o = w.leave(x.entry())
		w.must(y.entry().Leave(ctx))
		w.must(o.end())
		w.settle()
		// The call of Enter at a is over, and has left. Client a lives.
		again := w.enter(ctx, b)
		again.pending("nobody else is at the barrier")
		time.Sleep(5 * time.Second)
		again.pending("nobody else is at the barrier")
		z := w.enter(ctx, a)
		w.must(again.entry().Release())
		w.must(z.entry().Release())
	})
}

// A ready that cannot be deleted keeps the member that leaves last, for ever: the
// Leave of the others hangs, and everybody passes the barrier of 2 from then on.
func TestWhoCannotRemoveReadyLeavesAllTheSame(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		ds := w.doubles(3, "/d", 2, nil)
		es := w.inside(ds[:2])
		w.commit(backend.Create("/d/ready/README", nil, backend.Persistent))
		o := w.leave(es[0])
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := es[1].Leave(short); err != nil {
			w.t.Errorf("leave of the highest: %v", err)
		}
		w.t.Logf("leave of the lowest: %v", o.end())
		if left := w.children("/d/members"); len(left) != 0 {
			w.t.Errorf("all have left, and yet: %v", left)
		}
		ectx, ecancel := context.WithTimeout(ctx, 5*time.Second)
		defer ecancel()
		if e, err := ds[2].Enter(ectx); err == nil {
			w.t.Errorf("a single member passes the barrier of 2 (extra: %v)", e.Extra())
			e.Release()
		} else {
			w.t.Logf("enter: %v", err)
		}
	})
}

// The same when the list of members is refused to who leaves, though it may delete.
func TestWhoMayNotListLeavesAllTheSame(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var deny atomic.Bool
		c := w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if deny.Load() && c.Op == "children" {
				return backend.ErrDenied
			}
			return nil
		}})
		a := coord.NewDoubleBarrier(c, "/d", 2, nil)
		b := coord.NewDoubleBarrier(w.open("b", nil), "/d", 2, nil)
		x, y := w.enter(ctx, a), w.enter(ctx, b)
		x.entry()
		y.entry()
		deny.Store(true)
		w.t.Logf("leave: %v", x.e.Leave(ctx))
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := y.e.Leave(short); err != nil {
			w.t.Errorf("the other waits for ever for one that has left and may delete: %v, %v", err, w.children("/d/members"))
		}
		deny.Store(false)
		time.Sleep(5 * time.Second)
	})
}

// The session over which the node of a lost one is removed is lost as well.
func TestAnEntrantNeverMeetsAGhostOfTwoSessionsAgo(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		c := w.open("a", &backendtest.Hooks{Before: before.before})
		d := coord.NewDoubleBarrier(c, "/d", 2, nil)
		ctx, cancel := context.WithCancel(context.Background())
		x := w.enter(ctx, d)
		w.settle()
		w.Link("a").Partition()
		cancel()
		wantErr(w.t, x.end(), context.Canceled)
		awaitPhase(w.t, c, coord.Lost)
		ghosts := w.children("/d/members")
		if len(ghosts) != 1 {
			w.t.Fatalf("%v, want the node of the lost session", ghosts)
		}
		before.arm(1, deletes, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			<-c.Session.Done()
			return nil
		})
		w.Link("a").Heal()
		y := w.enter(context.Background(), d)
		w.eventually("it has come anew", func() bool {
			now := w.children("/d/members")
			return len(now) > 1 || len(now) == 1 && now[0] != ghosts[0]
		})
		w.settle()
		y.pending("nobody else is at the barrier")
		z := w.enter(context.Background(), d)
		w.must(y.entry().Release())
		w.must(z.entry().Release())
	})
}
