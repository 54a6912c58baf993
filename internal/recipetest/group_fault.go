package recipetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// awaitPhase waits until the client is in the phase want.
func awaitPhase(t *testing.T, c *coord.Client, want coord.Phase) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
	defer cancel()
	for st := range c.WatchState(ctx) {
		if st.Phase == want {
			return
		}
	}
	t.Fatalf("the client was never %v", want)
}

// groupFaultTests are tests of Group on each service.
type groupFaultTests struct{ Services }

// In other libraries a retry after a lost reply created a second node.
func (on groupFaultTests) ALostReplyOfAJoinLeavesExactlyOneNode(t *testing.T) {
	on.each(t, func(w *world) {
		g := w.group("a", nil)
		mustLeave(w.T, mustJoin(w.T, g, "x", "0")) // the directory is known
		for name, drop := range map[string]func(){"reply": w.Link("a").DropNextReply, "request": w.Link("a").DropNextRequest} {
			drop()
			m := mustJoin(w.T, g, "x", name)
			if names := w.Children("/g"); len(names) != 1 {
				w.T.Errorf("lost %s: children %v, want one", name, names)
			}
			if got, err := g.Member(context.Background(), "x"); err != nil || got.Value != name {
				w.T.Errorf("lost %s: %+v, %v", name, got, err)
			}
			drop()
			mustLeave(w.T, m)
			if names := w.Children("/g"); len(names) != 0 {
				w.T.Errorf("lost %s of a leave: children %v", name, names)
			}
		}
	})
}

// A join that is given up leaves no node, at whichever request it was.
func (on groupFaultTests) AJoinThatIsGivenUpLeavesNoNode(t *testing.T) {
	on.each(t, func(w *world) {
		a := w.group("a", nil)
		for _, replace := range []bool{false, true} {
			for what, match := range map[string]func(backendtest.Call) bool{
				"create":  coordtest.Creates,
				"list":    func(c backendtest.Call) bool { return c.Op == "children" },
				"removal": coordtest.Deletes, // of its own node, or with replace of the other's
			} {
				m := mustJoin(w.T, a, "x", "a")
				ctx, cancel := context.WithCancel(context.Background())
				var after coordtest.Nth // a client for each case: a clean-up of the one before must not meet its fault
				c := w.Open(fmt.Sprint("b", replace, what), &backendtest.Hooks{After: after.After})
				after.Arm(1, match, func(ctx context.Context, c backendtest.Call, _ error) error {
					cancel()
					if c.Op == "commit" {
						return backend.Uncertain(ctx.Err())
					}
					return ctx.Err()
				})
				_, err := textGroup(c, replace).Join(ctx, "x", "b")
				coordtest.WantErr(w.T, err, context.Canceled)
				// The first membership is intact, or has ended if it was being taken over.
				w.Eventually("nothing is left of the join after "+what, func() bool {
					list, err := a.Members(context.Background())
					if err != nil {
						w.T.Fatal(err)
					}
					n := len(w.Children("/g"))
					return m.Err() == nil && n == 1 && brief(list) == "x=a" || m.Err() != nil && replace && what == "removal" && n == 0
				})
				m.Leave()
				w.Empty("/g")
			}
		}
	})
}

// All watches report the death of a process in time.
func (on groupFaultTests) AMemberThatIsCutOffOrDiesIsGoneInTime(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		mustJoin(w.T, w.group("stays", nil), "s", "1")
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		watch.until("s=1 x=1")
		start := time.Now()
		w.Link("a").Partition()
		watch.until("s=1")
		d := time.Since(start)
		if w.Fake && d > w.Timeout+2*time.Second {
			w.T.Errorf("gone after %v, the timeout is %v", d, w.Timeout)
		}
		w.T.Logf("figure: a member that was cut off was gone after %v, timeout %v", d.Round(time.Millisecond), w.Timeout)
		if m.Err() != nil {
			w.T.Errorf("the membership has ended: %v", m.Err())
		}
		w.Link("a").Heal()
		watch.until("s=1 x=1") // joined again
		old := watch.Last.Members[1]
		start = time.Now()
		w.Link("a").Expire(old.Session)
		if now, _ := watch.another(old); now.Session == old.Session {
			w.T.Errorf("%+v, before %+v", now, old)
		}
		if d := time.Since(start); w.Fake && d > w.Timeout+2*time.Second {
			w.T.Errorf("back after %v", d)
		}
	})
}

func (on groupFaultTests) ABlipIsInvisibleAndCreatesNoNode(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		c := w.Open("a", nil)
		m := mustJoin(w.T, textGroup(c, false), "x", "1")
		watch.until("x=1")
		before := watch.Last.Members[0]
		names := w.Children("/g")
		for _, name := range []string{"a", "reader", "a", "reader"} {
			w.Link(name).Partition()
			w.Settle()
			w.Link(name).Heal()
			w.Settle()
		}
		// A write after the blips, which the reader receives.
		if err := m.SetValue(ctx, "2"); err != nil {
			w.T.Fatal(err)
		}
		for _, e := range watch.until("x=2") {
			if len(e.Joined)+len(e.Left) != 0 {
				w.T.Errorf("joined %v, left %v", e.Joined, e.Left)
			}
		}
		if got := watch.Last.Members[0]; got.Token != before.Token || got.Session != before.Session {
			w.T.Errorf("%+v, before %+v", got, before)
		}
		if after := w.Children("/g"); !slices.Equal(names, after) {
			w.T.Errorf("children %v, before %v", after, names)
		}
	})
}

// The client has lost its session, but the service still keeps it. The member is not refused
// because of its own old node, and no reader sees it twice or not at all.
func (on groupFaultTests) AMemberJoinsAgainWhileItsOldNodeStillExists(t *testing.T) {
	t.Parallel()
	for _, replace := range []bool{false, true} {
		t.Run(fmt.Sprint("replace ", replace), func(t *testing.T) {
			on.all(t, func(w *world) {
				ctx := context.Background()
				watch := w.watch(ctx, w.group("reader", nil))
				c := w.Open("a", nil)
				m := mustJoin(w.T, textGroup(c, replace), "x", "1")
				watch.until("x=1")
				old := watch.Last.Members[0]
				w.Link("a").Partition()
				awaitPhase(w.T, c, coord.PhaseLost)
				stood := len(w.Children("/g")) == 1
				healed := time.Now()
				w.Link("a").Heal()
				got, vacant := watch.another(old)
				d := time.Since(healed)
				if got.Value != "1" || got.Session == old.Session || m.Err() != nil {
					w.T.Errorf("%+v, before %+v, %v", got, old, m.Err())
				}
				if w.Fake && (!stood || vacant || d > 500*time.Millisecond) {
					w.T.Errorf("the old node stood: %v; a gap: %v; reported after %v", stood, vacant, d)
				}
				w.T.Logf("figure: the old node stood: %v; a gap: %v; reported %v after the contact", stood, vacant, d.Round(time.Millisecond))
				if names := w.Children("/g"); len(names) != 1 {
					w.T.Errorf("children %v, want one", names)
				}
				mustLeave(w.T, m)
				w.Empty("/g")
			})
		})
	}
}

// Leave also removes a node that a rejoin was creating when Leave was called.
func (on groupFaultTests) ALeaveDuringARejoinLeavesNoNode(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: after.After})
		m := mustJoin(w.T, coord.NewGroup[string](c, "/g", nil), "x", "1")
		made := make(chan struct{})
		after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			close(made)
			return backend.ErrUncertain // applied
		})
		outsider := w.Session("outsider")
		node := w.Path("/g/" + w.Children("/g")[0])
		if _, err := outsider.Commit(context.Background(), backend.Delete(node, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-made
		left := make(chan error, 1)
		go func() { left <- m.Leave() }()
		<-m.Done()
		w.Settle()
		select {
		case err := <-left:
			w.T.Errorf("Leave returned %v, and %v still exist", err, w.Children("/g"))
			left <- err
		default:
		}
		w.Link("a").Heal()
		if err := <-left; err != nil {
			w.T.Error(err)
		}
		if names := w.Children("/g"); len(names) > 0 {
			w.T.Errorf("after Leave: %v", names)
		}
	})
}

func (on groupFaultTests) ALeaveWithoutContactReturnsWithTheSession(t *testing.T) {
	on.each(t, func(w *world) {
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		w.Link("a").Partition()
		start := time.Now()
		m.Leave()
		if d := time.Since(start); w.Fake && d > w.Timeout+2*time.Second {
			w.T.Errorf("Leave took %v", d)
		}
		coordtest.WantErr(w.T, m.Err(), coord.ErrReleased)
		w.Empty("/g")
		w.Link("a").Heal()
	})
}

// In other libraries a member whose own node had vanished waited forever.
func (on groupFaultTests) AMemberWhoseNodeIsDeletedMakesANewOne(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		s := w.Session("x")
		watch.until("x=1")
		for _, directory := range []bool{false, true} {
			old := watch.Last.Members[0]
			ops := []backend.Op{backend.Delete(old.Path, backend.AnyVersion)}
			if directory {
				ops = append(ops, backend.Delete(w.Path("/g"), backend.AnyVersion))
			}
			if _, err := s.Commit(ctx, ops...); err != nil {
				w.T.Fatal(err)
			}
			if got, _ := watch.another(old); got.Value != "1" || got.Token < old.Token || m.Err() != nil {
				w.T.Errorf("%+v, before %+v, %v", got, old, m.Err())
			}
			if err := m.SetValue(ctx, "2"); err != nil {
				w.T.Fatal(err)
			}
			watch.until("x=2")
			if err := m.SetValue(ctx, "1"); err != nil {
				w.T.Fatal(err)
			}
			watch.until("x=1")
		}
		mustLeave(w.T, m)
		w.Empty("/g")
	})
}

// In other libraries user code ran on the event thread, where it could not call the client.
func (on groupFaultTests) ACodecMayUseTheClient(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		other := coord.NewGroup(c, "/other", &coord.GroupOptions[string]{Codec: coord.Text()})
		mustJoin(w.T, other, "o", "1")
		codec := coord.Text()
		codec.Decode = func(data []byte) (string, error) {
			list, err := other.Members(ctx)
			return string(data) + "/" + brief(list), err
		}
		g := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: codec})
		watch := w.watch(ctx, g)
		m := mustJoin(w.T, g, "x", "1")
		watch.until("x=1/o=1")
		if err := m.SetValue(ctx, "2"); err != nil {
			w.T.Fatal(err)
		}
		watch.until("x=2/o=1")
	})
}
