package coord_test

import (
	"context"
	"strings"
	"testing"

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
