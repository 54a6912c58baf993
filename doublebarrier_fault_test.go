package coord_test

import (
	"context"
	"errors"
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

// In ZooKeeper's recipe the ready node survives a crash of all members, and admits the next
// entrant alone.
func TestAReadyThatSurvivedACrashOpensNoRound(t *testing.T) {
	t.Parallel()
	for _, o := range []*coord.DoubleBarrierOptions{nil, {WaitForNextRound: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			onEach(t, func(w *world) {
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
func TestAnEnterThatIsGivenUpLeavesNoMember(t *testing.T) {
	onEach(t, func(w *world) {
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

// Curator-536: a leave outlived its timeout.
func TestALeaveThatIsGivenUpReturnsInTimeAndHasLeft(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestACrashBeforeTheRoundOpensKeepsTheOthersWaiting(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestACrashInsideDoesNotKeepTheOthersFromLeaving(t *testing.T) {
	for _, who := range []int{0, 1, 2} { // the lowest, one between, the highest
		t.Run(fmt.Sprint(who), func(t *testing.T) {
			onEach(t, func(w *world) {
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
func TestWaitingAtADoubleBarrierSurvivesALostSession(t *testing.T) {
	onEach(t, func(w *world) {
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
func TestAMemberThatEntersAgainCountsOnce(t *testing.T) {
	onEach(t, func(w *world) {
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
func TestAMemberWhoseNodeIsDeletedEntersAgain(t *testing.T) {
	onEach(t, func(w *world) {
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

// Each commit of a round in turn loses its request or its reply.
func TestLostMessagesAtADoubleBarrier(t *testing.T) {
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
func TestAnEnterGivenUpAtEachRequestLeavesNothing(t *testing.T) {
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
func TestASetWaitsForEachOfItsLostSessions(t *testing.T) {
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
func TestASetThatEndsWithItsSessionIsUncertain(t *testing.T) {
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
func TestAMemberDoesNotCountInTwoRounds(t *testing.T) {
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
func TestAMemberThatCannotRemoveReadyStillLeaves(t *testing.T) {
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
func TestAMemberThatMayNotListStillLeaves(t *testing.T) {
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
func TestAnEntrantNeverCountsANodeOfTwoSessionsAgo(t *testing.T) {
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
func TestAGuestThatArrivesAfterItsEnterWasGivenUpIsRemoved(t *testing.T) {
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
