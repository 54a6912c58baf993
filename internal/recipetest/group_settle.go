package recipetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// groupSettleTests are tests of Group on each service.
type groupSettleTests struct{ Services }

func (on groupSettleTests) AMemberWhoseIDWasTakenWhileItWasAwayEnds(t *testing.T) {
	on.each(t, func(w *world) {
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		b := w.group("b", nil)
		w.Link("a").Partition()
		var other *coord.Membership[string]
		// The caller retries: the dead member's node exists until its session times out.
		w.Eventually("the id is free", func() bool {
			var err error
			other, err = b.Join(context.Background(), "x", "2")
			if err != nil {
				coordtest.WantErr(w.T, err, coord.ErrDuplicate)
			}
			return err == nil
		})
		w.Link("a").Heal()
		<-m.Done()
		coordtest.WantErr(w.T, m.Err(), coord.ErrDuplicate)
		if names := w.Children("/g"); len(names) != 1 || other.Err() != nil {
			w.T.Errorf("children %v, %v", names, other.Err())
		}
		mustLeave(w.T, other)
		w.Empty("/g")
	})
}

// A restarted process finds the node of its previous run. With TakeOver it need not wait until
// the service has ended that session.
func (on groupSettleTests) ASuccessorWithTakeOverReplacesADeadNode(t *testing.T) {
	on.all(t, func(w *world) {
		watch := w.watch(context.Background(), w.group("reader", nil))
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		watch.until("x=1")
		old := watch.Last.Members[0]
		w.Link("a").Partition()
		successor := mustJoin(w.T, textGroup(w.Open("b", nil), true), "x", "2")
		if now, vacant := watch.another(old); now.Value != "2" || vacant {
			w.T.Errorf("%+v, a gap: %v", now, vacant)
		}
		w.Link("a").Heal() // it is alive after all, and its session has not ended
		<-m.Done()
		coordtest.WantErr(w.T, m.Err(), coord.ErrDuplicate)
		if names := w.Children("/g"); len(names) != 1 || successor.Err() != nil {
			w.T.Errorf("children %v, %v", names, successor.Err())
		}
		mustLeave(w.T, successor)
		w.Empty("/g")
	})
}

// Curator-258, -154, -241: a member adopted the node of another session, and deleted it at its
// own end.
func (on groupSettleTests) AnotherSessionsNodeIsNeverAdopted(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		a := mustJoin(w.T, w.group("a", nil), "x", "same")
		names := w.Children("/g")
		b := textGroup(w.Open("b", &backendtest.Hooks{After: after.After}), false)
		after.Arm(1, coordtest.Creates, coordtest.Lose)
		_, err := b.Join(ctx, "x", "same")
		coordtest.WantErr(w.T, err, coord.ErrDuplicate)
		// Its withdrawal is lost too.
		after.Arm(1, coordtest.Deletes, coordtest.Lose)
		_, err = b.Join(ctx, "x", "same")
		coordtest.WantErr(w.T, err, coord.ErrDuplicate)
		w.Eventually("the first one's node is left", func() bool { return slices.Equal(names, w.Children("/g")) })
		if a.Err() != nil {
			w.T.Error(a.Err())
		}
		mustLeave(w.T, a)
		w.Empty("/g")
	})
}

// groupOf returns the group for a client whose calls pass x first.
func (w *world) groupOf(name string, x *coordtest.Nth) *coord.Group[string] {
	return w.group(name, &backendtest.Hooks{Before: x.Before})
}

func (on groupSettleTests) TheIDIsRefusedWhileAnotherHasIt(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		a, b := w.group("a", nil), w.group("b", nil)
		m := mustJoin(w.T, a, "x", "first")
		watch := w.watch(ctx, b)
		watch.until("x=first")
		for _, g := range []*coord.Group[string]{b, a} {
			_, err := g.Join(ctx, "x", "second")
			coordtest.WantErr(w.T, err, coord.ErrDuplicate)
			if names := w.Children("/g"); len(names) != 1 {
				w.T.Errorf("children %v, want the first one's alone", names)
			}
		}
		w.Settle()
		select {
		case e := <-watch.ch:
			w.T.Errorf("the watch reported a refused newcomer: %+v", e)
		default:
		}
		// The end of the refused newcomer does not affect the member.
		if m.Err() != nil {
			w.T.Error(m.Err())
		}
		mustLeave(w.T, m)
		second := mustJoin(w.T, b, "x", "second")
		watch.until("x=second")
		mustLeave(w.T, second)
		w.Empty("/g")
	})
}

func (on groupSettleTests) ANewcomerWithTakeOverTakesTheID(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		watch.next()
		// The replaced member does not join again, whether or not it has TakeOver itself.
		for i, replace := range []bool{false, true} {
			old := mustJoin(w.T, textGroup(w.Open(fmt.Sprint("old", i), nil), replace), "x", "old")
			watch.until("x=old")
			from := watch.Last.Members[0]
			m := mustJoin(w.T, textGroup(w.Open(fmt.Sprint("new", i), nil), true), "x", "new")
			<-old.Done()
			w.Settle()
			coordtest.WantErr(w.T, old.Err(), coord.ErrDuplicate)
			coordtest.WantErr(w.T, old.Leave(), coord.ErrDuplicate)
			coordtest.WantErr(w.T, old.SetValue(ctx, "late"), coord.ErrDuplicate)
			for _, e := range watch.until("x=new") {
				if len(e.Members) != 1 {
					w.T.Errorf("no member had the id for a moment: %+v", e)
				}
			}
			if e := watch.Last; len(e.Left) != 1 || e.Left[0].Token != from.Token || brief(e.Joined) != "x=new" {
				w.T.Errorf("left %+v, joined %+v", e.Left, e.Joined)
			}
			if names := w.Children("/g"); len(names) != 1 || w.Path("/g/"+names[0]) != watch.Last.Members[0].Path || m.Err() != nil {
				w.T.Errorf("children %v, reported %+v, %v", names, watch.Last.Members, m.Err())
			}
			mustLeave(w.T, m)
			watch.until("")
		}
		w.Empty("/g")
	})
}

func (on groupSettleTests) OfManyConcurrentJoinsOneHasTheID(t *testing.T) {
	for _, replace := range []bool{false, true} {
		t.Run(fmt.Sprint("replace ", replace), func(t *testing.T) {
			on.all(t, func(w *world) {
				const n = 6
				ctx, cancel := context.WithCancel(context.Background())
				watch := w.watch(ctx, w.group("reader", nil))
				var mu sync.Mutex
				var joined []*coord.Membership[string]
				var wg sync.WaitGroup
				for i := range n {
					g := textGroup(w.Open(fmt.Sprint(i%3), nil), replace)
					wg.Go(func() {
						m, err := g.Join(ctx, "x", fmt.Sprint(i))
						if err != nil {
							coordtest.WantErr(w.T, err, coord.ErrDuplicate)
							return
						}
						mu.Lock()
						defer mu.Unlock()
						joined = append(joined, m)
					})
				}
				wg.Wait()
				stands := func() (m *coord.Membership[string], n int) {
					for _, e := range joined {
						if err := e.Err(); err == nil {
							m, n = e, n+1
						} else {
							coordtest.WantErr(w.T, err, coord.ErrDuplicate)
						}
					}
					return m, n
				}
				if !replace && len(joined) != 1 {
					w.T.Errorf("%d have joined", len(joined))
				}
				w.Eventually("one is left", func() bool { _, n := stands(); return n == 1 && len(w.Children("/g")) == 1 })
				m, _ := stands()
				list, err := w.group("check", nil).Wait(ctx, 1)
				if err != nil || len(list) != 1 {
					w.T.Fatalf("%v, %v", list, err)
				}
				watch.until("x=" + list[0].Value)
				mustLeave(w.T, m)
				watch.until("")
				cancel()
				w.Empty("/g")
			})
		})
	}
}
