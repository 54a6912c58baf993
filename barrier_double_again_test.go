package coord_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// A call of Enter keeps its GUID when its session is lost. A recreated directory of
// members restarts its sequence numbers. So the second node of the call can have the name
// of the first, and the ready of a dead round still lists that name.
func TestAReadyThatNamesAnEarlierNodeOfTheNameLetsNobodyIn(t *testing.T) {
	for _, o := range []*coord.DoubleBarrierOptions{nil, {NextRound: true}} {
		onMemory(t, func(w *world) {
			raw := w.session("raw")
			var after nth
			var first string
			c := w.open("a", &backendtest.Hooks{After: after.after})
			after.arm(1, does(backend.OpCreate, "member-"), func(context.Context, backendtest.Call, error) error {
				w.Link("a").Partition()
				first = w.children("/d/members")[0]
				// Another one comes, opens the round of the two, and dies.
				other := "/d/members/_c_00000000-0000-4000-8000-000000000000-member-0000000001"
				w.commit(backend.Create(other, nil, backend.Persistent))
				w.commit(backend.Create("/d/ready", []byte(first+"\n"+other[strings.LastIndexByte(other, '/')+1:]), backend.Persistent))
				w.commit(backend.Delete(other, backend.AnyVersion))
				return backend.ErrUncertain
			})
			states := c.States(context.Background())
			x := w.enter(context.Background(), coord.NewDoubleBarrier(c, "/d", 2, o))
			for st := range states {
				if st.Phase == coord.Lost {
					break
				}
			}
			w.eventually("the node of the lost session is gone", func() bool { return len(w.children("/d/members")) == 0 })
			w.commit(backend.Delete("/d/members", backend.AnyVersion)) // as the service does with an empty container
			w.Link("a").Heal()
			w.eventually("it came anew, under the same name", func() bool {
				now := w.children("/d/members")
				return len(now) == 1 && now[0] == first
			})
			w.settle()
			x.pending("nobody else is at the barrier")
			if _, err := raw.Exists(context.Background(), w.path("/d/ready"), nil); err == nil {
				w.t.Error("the ready of the round that has died still stands")
			}
			y := w.enter(context.Background(), coord.NewDoubleBarrier(w.open("b", nil), "/d", 2, o))
			w.must(x.entry().Release())
			w.must(y.entry().Release())
		})
	}
}

// cameAnew has the client at link b, whose call of Enter waits with the node first, lose
// its session. The directory of members is made anew, and the call comes with a node of
// the same name.
func (w *world) cameAnew(first string) {
	w.t.Helper()
	w.eventually("the nodes of the lost sessions are gone", func() bool { return len(w.children("/d/members")) == 0 })
	w.commit(backend.Delete("/d/members", backend.AnyVersion)) // as the service does with an empty container
	w.Link("b").Heal()
	w.eventually("it came anew, under the same name", func() bool {
		now := w.children("/d/members")
		return len(now) == 1 && now[0] == first
	})
	w.settle()
}

// A member that leaves waits for those of its round. Another one of them has not learned
// that it was in it, and comes anew.
func TestALeaveDoesNotWaitForALaterNodeOfTheName(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		a, b := coord.NewDoubleBarrier(w.open("a", nil), "/d", 2, nil), coord.NewDoubleBarrier(w.open("b", nil), "/d", 2, nil)
		x := w.enter(ctx, b)
		w.stand(a, coord.DoubleBarrierState{Waiting: 1})
		first := w.children("/d/members")[0]
		w.Link("b").Partition()
		o := w.leave(w.enter(ctx, a).entry())
		w.settle()
		w.Link("a").Partition()
		w.cameAnew(first)
		w.Link("a").Heal()
		w.must(o.end())
		x.pending("the round is over, and nobody else is at the barrier")
		y := w.enter(ctx, a)
		w.must(x.entry().Release())
		w.must(y.entry().Release())
	})
}

// What removes the node of a lost session comes late, when the call has got in with a
// later node of the same name.
func TestWhatALostSessionLeftIsNotTakenForALaterNodeOfTheName(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var first string
		late, let := make(chan struct{}), make(chan struct{})
		var once sync.Once
		c := w.open("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Path == "/d/members/"+first && (c.Op == "sync" || deletes(c)) {
				once.Do(func() { close(late) })
				<-let
			}
			return nil
		}})
		a, b := coord.NewDoubleBarrier(w.open("a", nil), "/d", 2, nil), coord.NewDoubleBarrier(c, "/d", 2, nil)
		x := w.enter(ctx, b)
		w.stand(a, coord.DoubleBarrierState{Waiting: 1})
		first = w.children("/d/members")[0]
		w.Link("b").Partition()
		w.cameAnew(first)
		<-late
		y := w.enter(ctx, a)
		e := x.entry()
		close(let)
		w.settle()
		time.Sleep(worldTimeout)
		if err := e.Err(); err != nil {
			w.t.Errorf("the entry has ended: %v", err)
		}
		w.must(y.entry().Release())
		mayBeReleased(w.t, e.Hold)
	})
}
