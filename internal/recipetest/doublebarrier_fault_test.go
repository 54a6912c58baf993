package recipetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// Each commit of a round in turn loses its request or its reply.
func TestDoubleBarrier_LostMessagesAtADoubleBarrier(t *testing.T) {
	members := func(c backendtest.Call) bool { return c.Op == "commit" && strings.Contains(c.Path, "/d") }
	for _, o := range []*coord.DoubleBarrierOptions{nil, {WaitForNextRound: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			t.Parallel()
			onMemory(t, func(w *world) {
				hit := 0
				for step := 1; step <= 12; step++ {
					for _, applied := range []bool{false, true} {
						var before, after coordtest.Nth
						fired := false
						loses := func(_ context.Context, _ backendtest.Call, err error) error {
							fired = true
							return backend.ErrUncertain
						}
						c := w.Open(fmt.Sprint(step, applied), &backendtest.Hooks{Before: before.Before, After: after.After})
						if applied {
							after.Arm(step, members, loses)
						} else {
							before.Arm(step, members, loses)
						}
						faulty := coord.NewDoubleBarrier(c, "/d", 2, o)
						sound := coord.NewDoubleBarrier(w.Open("sound", nil), "/d", 2, o)
						// First a round of the two, in which the faulty member enters last and
						// leaves last; then a round that it joins or waits for.
						x := w.enter(context.Background(), sound)
						w.stand(sound, coord.DoubleBarrierState{Waiting: 1})
						y := w.enter(context.Background(), faulty).entry()
						w.must(x.entry().Release())
						w.must(y.Leave(context.Background()))
						x, x2 := w.enter(context.Background(), sound), w.enter(context.Background(), sound)
						x.entry()
						x2.entry()
						z := w.enter(context.Background(), faulty)
						w.Settle()
						w.must(x.e.Release())
						w.must(x2.e.Release())
						if o != nil {
							x = w.enter(context.Background(), sound)
							w.must(x.entry().Release())
						}
						w.must(z.entry().Leave(context.Background()))
						c.Close()
						if fired {
							hit++
						}
						w.bare("/d")
					}
				}
				w.T.Logf("figure: %d lost messages of a double barrier resolved", hit)
				if hit < 8 {
					w.T.Errorf("only %d messages were lost", hit)
				}
			})
		})
	}
}

// An Enter whose ctx ends leaves nothing behind, at whichever of its requests that happens.
func TestDoubleBarrier_AnEnterGivenUpAtEachRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	onMemory(t, func(w *world) {
		steps, given := 0, 0
		for _, extra := range []bool{false, true} {
			for step := 1; step <= 10; step++ {
				for _, applied := range []bool{false, true} {
					ctx, cancel := context.WithCancel(context.Background())
					var before, after coordtest.Nth
					all := func(c backendtest.Call) bool { return strings.Contains(c.Path, "/d") }
					end := func(ctx context.Context, c backendtest.Call, err error) error {
						cancel()
						if ctx.Err() == nil {
							return err // the Enter has returned
						}
						steps++
						if c.Op == "commit" {
							return backend.Uncertain(ctx.Err())
						}
						return ctx.Err()
					}
					c := w.Open(fmt.Sprint(extra, step, applied), &backendtest.Hooks{Before: before.Before, After: after.After})
					if applied {
						after.Arm(step, all, end)
					} else {
						before.Arm(step, all, end)
					}
					sound := coord.NewDoubleBarrier(w.Open("sound", nil), "/d", 2, nil)
					sctx, scancel := context.WithCancel(context.Background())
					ins := []*entering{w.enter(sctx, sound)}
					if extra {
						ins = append(ins, w.enter(sctx, sound))
						ins[0].entry()
						ins[1].entry()
					} else {
						w.stand(sound, coord.DoubleBarrierState{Waiting: 1})
					}
					x := w.enter(ctx, coord.NewDoubleBarrier(c, "/d", 2, nil))
					if x.end() == nil {
						w.must(x.e.Release())
					} else {
						given++
						coordtest.WantErr(w.T, x.err, context.Canceled)
					}
					time.Sleep(time.Second) // of fake time, for what is removed in the background
					scancel()
					for _, in := range ins {
						if in.end() == nil {
							w.must(in.e.Release())
						}
					}
					w.bare("/d")
					cancel()
					c.Close()
				}
			}
		}
		w.T.Logf("figure: an Enter was given up at %d requests, %d times with an error", steps, given)
		if given < 15 {
			w.T.Error("too few: this tested nothing")
		}
	})
}

func lostByLease(w *world, c *coord.Client, link string) {
	states := c.WatchState(context.Background())
	w.Link(link).Partition()
	for st := range states {
		if st.Phase == coord.PhaseLost {
			break
		}
	}
	w.Link(link).Heal()
}

// After a Set that was given up, the next one must not take the node of the client's own lost
// session for that of another client.
func TestDoubleBarrier_ASetWaitsForEachOfItsLostSessions(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: before.Before})
		b := coord.NewBarrier(c, "/b", &coord.BarrierOptions{Ephemeral: true})
		w.must(b.Set(ctx))
		lostByLease(w, c, "a")
		short, cancel := context.WithCancel(ctx)
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == "/b" }, func(context.Context, backendtest.Call, error) error {
			cancel()
			return backend.Uncertain(context.Canceled)
		})
		coordtest.WantErr(w.T, b.Set(short), coord.ErrUncertain)
		if err := b.Set(ctx); err != nil { // documented: waits until the service has removed the old one
			w.T.Errorf("Set: %v", err)
		}
	})
}

// An ephemeral barrier can exist until the service ends its session.
func TestDoubleBarrier_ASetThatEndsWithItsSessionIsUncertain(t *testing.T) {
	for _, when := range []string{"together with the session", "before the next session"} {
		t.Run(when, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				var after coordtest.Nth
				b := coord.NewBarrier(w.Open("a", &backendtest.Hooks{After: after.After}), "/barrier", &coord.BarrierOptions{Ephemeral: true})
				after.Arm(1, does(backend.OpCreate, "/barrier"), func(_ context.Context, c backendtest.Call, _ error) error {
					w.Link("a").Partition()
					<-c.Session.Done()
					if when == "together with the session" {
						cancel()
					}
					return backend.Uncertain(c.Session.Err())
				})
				set := w.call(func() error { return b.Set(ctx) })
				w.Eventually("the session is lost", func() bool { return len(w.Children("/")) > 0 })
				time.Sleep(w.Timeout * 3 / 4)
				w.Settle()
				cancel()
				coordtest.WantErr(w.T, set.end(), coord.ErrUncertain, context.Canceled)
				w.Link("a").Heal()
				w.must(b.Set(context.Background()))
				coordtest.WantErr(w.T, coord.NewBarrier(w.Open("b", nil), "/barrier", nil).Set(context.Background()), coord.ErrExists)
			})
		})
	}
}

// A creation whose reply is lost together with its session leaves a node. It must not count in
// the round after the one that the call takes part in.
func TestDoubleBarrier_AMemberDoesNotCountInTwoRounds(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		var came atomic.Int32
		count := func(_ context.Context, c backendtest.Call) error {
			if does(backend.OpCreate, "member-")(c) {
				came.Add(1)
			}
			return nil
		}
		c := w.Open("a", &backendtest.Hooks{After: after.After, Before: count})
		a := coord.NewDoubleBarrier(c, "/d", 2, nil)
		b := coord.NewDoubleBarrier(w.Open("b", nil), "/d", 2, nil)
		// This creates the directories.
		x, y := w.enter(ctx, a), w.enter(ctx, b)
		o := w.leave(x.entry())
		w.must(y.entry().Leave(ctx))
		w.must(o.end())

		states := c.WatchState(ctx)
		after.Arm(1, does(backend.OpCreate, "member-"), func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return backend.ErrUncertain
		})
		x = w.enter(ctx, a)
		for st := range states {
			if st.Phase == coord.PhaseLost {
				break
			}
		}
		first := w.Children("/d/members")[0]
		w.Link("a").Heal()
		w.Eventually("it has entered again", func() bool {
			now := w.Children("/d/members")
			return len(now) == 2 || len(now) == 1 && now[0] != first
		})
		w.Settle()
		// The removal of the lost session's node spares that of the next session.
		if n := came.Load(); n != 3 {
			w.T.Errorf("it sent %d creations, want one for the first round and two for the second", n)
		}
		y = w.enter(ctx, b)
		o = w.leave(x.entry())
		w.must(y.entry().Leave(ctx))
		w.must(o.end())
		w.Settle()
		// The Enter at client a has returned and the entry has left. The client is open.
		again := w.enter(ctx, b)
		again.pending("no other member is at the barrier")
		time.Sleep(5 * time.Second)
		again.pending("no other member is at the barrier")
		z := w.enter(ctx, a)
		w.must(again.entry().Release())
		w.must(z.entry().Release())
	})
}

// If the ready node cannot be deleted, the member that leaves last leaves nevertheless.
// Otherwise the Leave of the others would hang forever, and a single member would pass the
// barrier of 2 from then on.
func TestDoubleBarrier_AMemberThatCannotRemoveReadyStillLeaves(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		ds := w.doubles(3, "/d", 2, nil)
		es := w.inside(ds[:2])
		w.commit(backend.Create("/d/ready/README", nil, backend.Persistent))
		o := w.leave(es[0])
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := es[1].Leave(short); err != nil {
			w.T.Errorf("leave of the highest: %v", err)
		}
		w.T.Logf("leave of the lowest: %v", o.end())
		if left := w.Children("/d/members"); len(left) != 0 {
			w.T.Errorf("all have left, and yet: %v", left)
		}
		ectx, ecancel := context.WithTimeout(ctx, 5*time.Second)
		defer ecancel()
		if e, err := ds[2].Enter(ectx); err == nil {
			w.T.Errorf("a single member passes the barrier of 2 (extra: %v)", e.Extra())
			e.Release()
		} else {
			w.T.Logf("enter: %v", err)
		}
	})
}

// The same if a member may delete its node, but not list the members.
func TestDoubleBarrier_AMemberThatMayNotListStillLeaves(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var deny atomic.Bool
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if deny.Load() && c.Op == "children" {
				return backend.ErrDenied
			}
			return nil
		}})
		a := coord.NewDoubleBarrier(c, "/d", 2, nil)
		b := coord.NewDoubleBarrier(w.Open("b", nil), "/d", 2, nil)
		x, y := w.enter(ctx, a), w.enter(ctx, b)
		x.entry()
		y.entry()
		deny.Store(true)
		w.T.Logf("leave: %v", x.e.Leave(ctx))
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := y.e.Leave(short); err != nil {
			w.T.Errorf("the other waits forever for a member that has left and may delete: %v, %v", err, w.Children("/d/members"))
		}
		deny.Store(false)
		time.Sleep(5 * time.Second)
	})
}

// The session over which the node of a lost session is removed is lost as well.
func TestDoubleBarrier_AnEntrantNeverCountsANodeOfTwoSessionsAgo(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: before.Before})
		d := coord.NewDoubleBarrier(c, "/d", 2, nil)
		ctx, cancel := context.WithCancel(context.Background())
		x := w.enter(ctx, d)
		w.Settle()
		w.Link("a").Partition()
		cancel()
		coordtest.WantErr(w.T, x.end(), context.Canceled)
		awaitPhase(w.T, c, coord.PhaseLost)
		ghosts := w.Children("/d/members")
		if len(ghosts) != 1 {
			w.T.Fatalf("%v, want the node of the lost session", ghosts)
		}
		before.Arm(1, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			<-c.Session.Done()
			return nil
		})
		w.Link("a").Heal()
		y := w.enter(context.Background(), d)
		w.Eventually("it has entered again", func() bool {
			now := w.Children("/d/members")
			return len(now) > 1 || len(now) == 1 && now[0] != ghosts[0]
		})
		w.Settle()
		y.pending("no other member is at the barrier")
		z := w.enter(context.Background(), d)
		w.must(y.entry().Release())
		w.must(z.entry().Release())
	})
}

// An entrant joins a round and gives up while its commit is under way. If the commit is applied
// later, its node is removed as well.
func TestDoubleBarrier_AGuestThatArrivesAfterItsEnterWasGivenUpIsRemoved(t *testing.T) {
	onMemory(t, func(w *world) {
		es := w.inside(w.doubles(2, "/d", 2, nil))
		ctx, cancel := context.WithCancel(context.Background())
		var mu sync.Mutex
		var late []backend.Op // the commit under way
		joined, arrived := false, make(chan struct{})
		arrive := func(s backend.Session) {
			mu.Lock()
			ops := late
			late = nil
			mu.Unlock()
			if ops == nil {
				return
			}
			if _, err := s.Commit(context.Background(), ops...); err != nil {
				w.T.Errorf("the late commit: %v", err)
			}
			close(arrived)
		}
		joins := does(backend.OpCreate, "-guest-")
		c := w.Open("late", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				mu.Lock()
				first := joins(c) && !joined
				if first {
					joined, late = true, c.Ops
				}
				mu.Unlock()
				switch {
				case first:
					cancel()
					return backend.Uncertain(context.Canceled)
				case c.Op == "sync":
					arrive(c.Session) // a Sync waits for what was sent before
				case does(backend.OpDelete, "/journal/")(c):
					<-arrived
				}
				return nil
			},
			After: func(_ context.Context, c backendtest.Call, err error) error {
				if does(backend.OpDelete, "-guest-")(c) {
					arrive(c.Session)
				}
				return err
			},
		})
		x := w.enter(ctx, coord.NewDoubleBarrier(c, "/d", 2, nil))
		coordtest.WantErr(w.T, x.end(), context.Canceled)
		w.Settle()
		if names := w.Children("/d/members"); len(names) != 2 || !joined {
			w.T.Errorf("%q, want the two members alone; it joined: %v", names, joined)
		}
		for _, e := range es {
			w.must(e.Release())
		}
	})
}
