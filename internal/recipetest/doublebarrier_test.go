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

// One commit checks all members.
func TestDoubleBarrier_HundredsOfMembersEnter(t *testing.T) {
	t.Parallel()
	n := 300
	if coordtest.Long() {
		n = 1000
	}
	onMemory(t, func(w *world) {
		d := coord.NewDoubleBarrier(w.Open("a", nil), "/d", n, nil)
		var in []*entering
		for range n {
			in = append(in, w.enter(context.Background(), d))
		}
		var out []*call
		for _, x := range in {
			out = append(out, w.leave(x.entry()))
		}
		for _, c := range out {
			w.must(c.end())
		}
		w.bare("/d")
	})
}

// Each member that leaves wakes one other, and the requests of each member for a round do not
// grow with the number of members.
func TestDoubleBarrier_AMemberThatLeavesWakesOne(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 20} {
		onMemory(t, func(w *world) {
			var calls, lists atomic.Int64
			hooks := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
				calls.Add(1)
				if c.Op == "children" && strings.HasSuffix(c.Path, "/members") {
					lists.Add(1)
				}
				return nil
			}}
			var ds []*coord.DoubleBarrier
			for i := range n {
				ds = append(ds, coord.NewDoubleBarrier(w.Open(fmt.Sprint(i), hooks), "/d", n, nil))
			}
			watcher := coord.NewDoubleBarrier(w.Open("watcher", nil), "/d", n, nil)
			var in []*entering
			for i, d := range ds {
				in = append(in, w.enter(context.Background(), d))
				if i < n-1 {
					w.stand(watcher, coord.DoubleBarrierState{Waiting: i + 1})
				}
			}
			for _, x := range in {
				x.entry()
			}
			w.Settle()
			time.Sleep(time.Second) // of fake time, for watches that are armed later
			entered := calls.Swap(0)
			// The lowest leaves first, and then from the highest down: each leave wakes only
			// the lowest.
			out := []*call{w.leave(in[0].e)}
			for i := n - 1; i > 1; i-- {
				w.Settle()
				lists.Store(0)
				out = append(out, w.leave(in[i].e))
				w.Settle()
				if looked := lists.Load(); looked > 2 {
					w.T.Errorf("%d lists of the members when one left", looked)
				}
			}
			out = append(out, w.leave(in[1].e))
			for _, c := range out {
				w.must(c.end())
			}
			left := calls.Load()
			w.T.Logf("figure: a round of %d members: %.1f requests of each to enter, %.1f to leave", n, float64(entered)/float64(n), float64(left)/float64(n))
			if most := int64(8 * n); entered > most || left > most {
				w.T.Errorf("%d members entered with %d requests and left with %d", n, entered, left)
			}
			w.bare("/d")
		})
	}
}

// A call of Enter keeps its GUID when its session is lost. A recreated directory of
// members restarts its sequence numbers. So the second node of the call can have the name
// of the first, and the ready of a dead round still lists that name.
func TestDoubleBarrier_AReadyThatNamesAnEarlierNodeOfTheSameNameAdmitsNoMember(t *testing.T) {
	for _, o := range []*coord.DoubleBarrierOptions{nil, {WaitForNextRound: true}} {
		onCounters(t, func(w *world) {
			raw := w.Session("raw")
			var after coordtest.Nth
			var first string
			c := w.Open("a", &backendtest.Hooks{After: after.After})
			after.Arm(1, does(backend.OpCreate, "member-"), func(context.Context, backendtest.Call, error) error {
				w.Link("a").Partition()
				first = w.Children("/d/members")[0]
				// Another member arrives, opens the round of the two, and dies.
				other := "/d/members/_c_00000000-0000-4000-8000-000000000000-member-0000000001"
				w.commit(backend.Create(other, nil, backend.Persistent))
				w.commit(backend.Create("/d/ready", []byte(first+"\n"+other[strings.LastIndexByte(other, '/')+1:]), backend.Persistent))
				w.commit(backend.Delete(other, backend.AnyVersion))
				return backend.ErrUncertain
			})
			states := c.WatchState(context.Background())
			x := w.enter(context.Background(), coord.NewDoubleBarrier(c, "/d", 2, o))
			for st := range states {
				if st.Phase == coord.PhaseLost {
					break
				}
			}
			w.Eventually("the node of the lost session is gone", func() bool { return len(w.Children("/d/members")) == 0 })
			w.commit(backend.Delete("/d/members", backend.AnyVersion)) // as the service does with an empty container
			w.Link("a").Heal()
			w.Eventually("it has entered again, under the same name", func() bool {
				now := w.Children("/d/members")
				return len(now) == 1 && now[0] == first
			})
			w.Settle()
			x.pending("no other member is at the barrier")
			if _, err := raw.Exists(context.Background(), w.Path("/d/ready"), nil); err == nil {
				w.T.Error("the ready of the round that has died still exists")
			}
			y := w.enter(context.Background(), coord.NewDoubleBarrier(w.Open("b", nil), "/d", 2, o))
			w.must(x.entry().Release())
			w.must(y.entry().Release())
		})
	}
}

// A member that leaves waits for the members of its round. Here the other member never learned
// that it was in the round, and enters again.
func TestDoubleBarrier_ALeaveDoesNotWaitForALaterNodeOfTheSameName(t *testing.T) {
	onCounters(t, func(w *world) {
		ctx := context.Background()
		a, b := coord.NewDoubleBarrier(w.Open("a", nil), "/d", 2, nil), coord.NewDoubleBarrier(w.Open("b", nil), "/d", 2, nil)
		x := w.enter(ctx, b)
		w.stand(a, coord.DoubleBarrierState{Waiting: 1})
		first := w.Children("/d/members")[0]
		w.Link("b").Partition()
		o := w.leave(w.enter(ctx, a).entry())
		w.Settle()
		w.Link("a").Partition()
		w.cameAnew(first)
		w.Link("a").Heal()
		w.must(o.end())
		x.pending("the round is over, and no other member is at the barrier")
		y := w.enter(ctx, a)
		w.must(x.entry().Release())
		w.must(y.entry().Release())
	})
}

// The removal of a lost session's node is delayed until the call has entered with a later node
// of the same name.
func TestDoubleBarrier_TheRemovalOfALostSessionsNodeSparesALaterNodeOfTheSameName(t *testing.T) {
	onCounters(t, func(w *world) {
		ctx := context.Background()
		var member atomic.Value // its path
		late, let := make(chan struct{}), make(chan struct{})
		var once sync.Once
		c := w.Open("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Path == member.Load() && (c.Op == "sync" || coordtest.Deletes(c)) {
				once.Do(func() { close(late) })
				<-let
			}
			return nil
		}})
		a, b := coord.NewDoubleBarrier(w.Open("a", nil), "/d", 2, nil), coord.NewDoubleBarrier(c, "/d", 2, nil)
		x := w.enter(ctx, b)
		w.stand(a, coord.DoubleBarrierState{Waiting: 1})
		first := w.Children("/d/members")[0]
		member.Store("/d/members/" + first)
		w.Link("b").Partition()
		w.cameAnew(first)
		<-late
		y := w.enter(ctx, a)
		e := x.entry()
		close(let)
		w.Settle()
		time.Sleep(coordtest.WorldTimeout)
		if err := e.Err(); err != nil {
			w.T.Errorf("the entry has ended: %v", err)
		}
		w.must(y.entry().Release())
		mayBeReleased(w.T, e.Hold)
	})
}
