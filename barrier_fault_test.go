package coord_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// The recipe's ready node survives a crash of all, and lets in whoever comes next.
func TestAReadyThatSurvivedACrashOpensNoRound(t *testing.T) {
	for _, o := range []*coord.DoubleBarrierOptions{nil, {NextRound: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			onEach(t, func(w *world) {
				ds := w.doubles(3, "/d", 3, o)
				es := w.inside(ds)
				for i, e := range es {
					w.Link(fmt.Sprint(i)).Expire(e.Session())
					<-e.Done()
					wantErr(w.t, e.Err(), coord.ErrLost)
					wantErr(w.t, e.Leave(context.Background()), coord.ErrLost)
				}
				if ready := w.children("/d"); !strings.Contains(fmt.Sprint(ready), "ready") {
					w.t.Fatalf("no ready has survived: %v", ready)
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

// Curator-80, Curator-318: an Enter that failed left its node, and the next round
// opened with one too few.
func TestAnEnterThatIsGivenUpLeavesNoMember(t *testing.T) {
	onEach(t, func(w *world) {
		ds := w.doubles(3, "/d", 3, nil)
		ctx, cancel := context.WithCancelCause(context.Background())
		gone := w.enter(ctx, ds[0])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		reason := errors.New("no time")
		cancel(reason)
		wantErr(w.t, gone.end(), context.Canceled, reason)
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

// Curator-536: a leave that outlived its timeout.
func TestALeaveThatIsGivenUpReturnsInTimeAndHasLeft(t *testing.T) {
	onEach(t, func(w *world) {
		ds := w.doubles(3, "/d", 3, nil)
		es := w.inside(ds)
		for i, e := range es[:2] { // the lowest, which stays as long as it waits, and another
			ctx, cancel := context.WithCancel(context.Background())
			out := w.call(func() error { return e.Leave(ctx) })
			<-e.Done()
			out.pending("a member is inside")
			cancel()
			wantErr(w.t, out.end(), context.Canceled)
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
		c := w.open("dying", nil)
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
				w.empty("/d/members")
			})
		})
	}
}

// Both waits go on with the next session.
func TestWaitingAtADoubleBarrierSurvivesALostSession(t *testing.T) {
	onEach(t, func(w *world) {
		ds := w.doubles(3, "/d", 3, nil)
		// The server of a new session may lag behind what the old one has seen.
		var mu sync.Mutex
		current := make(map[int64]bool)
		c := w.open("lost", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			mu.Lock()
			defer mu.Unlock()
			switch c.Op {
			case "sync", "commit":
				current[c.Session.ID()] = true
			case "children":
				if !current[c.Session.ID()] {
					w.t.Error("a new session looks who is there before its server has caught up")
				}
			}
			return err
		}})
		lost := coord.NewDoubleBarrier(c, "/d", 3, nil)
		expire := func() { w.Link("lost").Expire((<-c.States(context.Background())).Session) }
		first := w.enter(context.Background(), lost)
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		before := w.children("/d/members")
		expire()
		w.eventually("it comes anew", func() bool {
			now := w.children("/d/members")
			return len(now) == 1 && now[0] != before[0]
		})
		first.pending("two are missing")
		second, third := w.enter(context.Background(), ds[0]), w.enter(context.Background(), ds[1])
		e := first.entry()
		out := w.leave(e)
		<-e.Done()
		w.settle()
		out.pending("two are inside")
		old := e.Session()
		expire()
		w.eventually("the next session", func() bool { return (<-c.States(context.Background())).Session != old })
		w.settle()
		out.pending("two are inside, whatever became of the session")
		w.must(second.entry().Release())
		out.pending("one is inside")
		w.must(third.entry().Release())
		w.must(out.end())
		w.empty("/d/members")
	})
}

// A client that is back with a new session, while the service still has the old
// one, is one member and not two.
func TestAMemberThatComesAnewCountsOnce(t *testing.T) {
	onEach(t, func(w *world) {
		let := make(chan struct{}) // its clean-up is slow
		c := w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if does(backend.OpDelete, "member-")(c) {
				<-let
			}
			return nil
		}})
		other := w.open("b", nil)
		d := coord.NewDoubleBarrier(c, "/d", 2, nil)
		x := w.enter(context.Background(), d)
		w.stand(d, coord.DoubleBarrierState{Waiting: 1})
		for range 3 {
			states := c.States(context.Background())
			w.Link("a").Partition()
			for st := range states {
				if st.Phase == coord.Lost { // by the lease, before the service ends it
					break
				}
			}
			w.Link("a").Heal()
			w.eventually("it comes anew", func() bool {
				return (<-c.States(context.Background())).Phase == coord.Connected && len(w.children("/d/members")) == 1
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

// etcd 19597: a waiter whose own node was deleted waited for ever.
func TestAMemberWhoseNodeIsDeletedComesAnew(t *testing.T) {
	onEach(t, func(w *world) {
		ds := w.doubles(2, "/d", 2, nil)
		first := w.enter(context.Background(), ds[0])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		name := w.children("/d/members")[0]
		w.commit(backend.Delete(w.path("/d/members/"+name), backend.AnyVersion))
		w.eventually("it comes anew", func() bool {
			now := w.children("/d/members")
			return len(now) == 1 && now[0] != name
		})
		first.pending("one is missing")
		second := w.enter(context.Background(), ds[1])
		a, b := first.entry(), second.entry()
		w.commit(backend.Delete(a.Path(), backend.AnyVersion))
		<-a.Done()
		wantErr(w.t, a.Err(), coord.ErrLost, coord.ErrDeleted)
		w.must(b.Leave(context.Background()))
		w.bare("/d")
	})
}

// Every commit of a round, one after the other, loses its request or its reply.
func TestLostMessagesAtADoubleBarrier(t *testing.T) {
	members := func(c backendtest.Call) bool { return c.Op == "commit" && strings.Contains(c.Path, "/d") }
	for _, o := range []*coord.DoubleBarrierOptions{nil, {NextRound: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			t.Parallel()
			onMemory(t, func(w *world) {
				hit := 0
				for step := 1; step <= 12; step++ {
					for _, applied := range []bool{false, true} {
						var before, after nth
						fired := false
						loses := func(_ context.Context, _ backendtest.Call, err error) error {
							fired = true
							return backend.ErrUncertain
						}
						c := w.open(fmt.Sprint(step, applied), &backendtest.Hooks{Before: before.before, After: after.after})
						if applied {
							after.arm(step, members, loses)
						} else {
							before.arm(step, members, loses)
						}
						faulty := coord.NewDoubleBarrier(c, "/d", 2, o)
						sound := coord.NewDoubleBarrier(w.open("sound", nil), "/d", 2, o)
						// A round of the two, in which the faulty one is the last to come
						// and to leave; one that it joins or waits for; and one that
						// has died.
						x := w.enter(context.Background(), sound)
						w.stand(sound, coord.DoubleBarrierState{Waiting: 1})
						y := w.enter(context.Background(), faulty).entry()
						w.must(x.entry().Release())
						w.must(y.Leave(context.Background()))
						x, x2 := w.enter(context.Background(), sound), w.enter(context.Background(), sound)
						x.entry()
						x2.entry()
						z := w.enter(context.Background(), faulty)
						w.settle()
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
				w.t.Logf("figure: %d lost messages of a double barrier found out", hit)
				if hit < 8 {
					w.t.Errorf("only %d messages were lost", hit)
				}
			})
		})
	}
}

// A caller whose ctx ends at the very moment leaves nothing behind, at whichever
// of its requests that is.
func TestAnEnterGivenUpAtEachRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	onMemory(t, func(w *world) {
		steps, given := 0, 0
		for _, extra := range []bool{false, true} {
			for step := 1; step <= 10; step++ {
				for _, applied := range []bool{false, true} {
					ctx, cancel := context.WithCancel(context.Background())
					var before, after nth
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
					c := w.open(fmt.Sprint(extra, step, applied), &backendtest.Hooks{Before: before.before, After: after.after})
					if applied {
						after.arm(step, all, end)
					} else {
						before.arm(step, all, end)
					}
					sound := coord.NewDoubleBarrier(w.open("sound", nil), "/d", 2, nil)
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
						wantErr(w.t, x.err, context.Canceled)
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
		w.t.Logf("figure: an Enter was given up at %d requests, %d times with an error", steps, given)
		if given < 15 {
			w.t.Error("too few: this tested nothing")
		}
	})
}
