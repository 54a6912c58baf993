package coord_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestAMemberWhoseIDWasTakenWhileItWasAwayEnds(t *testing.T) {
	onEach(t, func(w *world) {
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
func TestASuccessorWithTakeOverReplacesADeadNode(t *testing.T) {
	onAll(t, func(w *world) {
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
func TestAnotherSessionsNodeIsNeverAdopted(t *testing.T) {
	onEach(t, func(w *world) {
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

// If the member that would refuse a newcomer leaves before the newcomer has withdrawn, the
// newcomer is not refused, and no watch reports it as joined and left.
func TestANewcomerIsRefusedOnlyByAPresentMember(t *testing.T) {
	onMemories(t, func(w *world) {
		var before coordtest.Nth
		watch := w.watch(context.Background(), w.group("reader", nil))
		a := mustJoin(w.T, w.group("a", nil), "x", "1")
		watch.until("x=1")
		b := textGroup(w.Open("b", &backendtest.Hooks{Before: before.Before}), false)
		before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			mustLeave(w.T, a)
			return nil
		})
		m := mustJoin(w.T, b, "x", "2")
		watch.until("x=2")
		mustLeave(w.T, m)
	})
}

// A member is replaced only by a node that exists.
func TestATakeoverByADeletedNodeRemovesNoMember(t *testing.T) {
	onMemory(t, func(w *world) {
		var before, after coordtest.Nth
		a := mustJoin(w.T, w.group("a", nil), "x", "1")
		stands := w.Children("/g")
		s := w.Session("s")
		b := textGroup(w.Open("b", &backendtest.Hooks{Before: before.Before, After: after.After}), true)
		ctx, cancel := context.WithCancel(context.Background())
		after.Arm(1, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
			cancel() // else Join would take the id over properly, with another node
			return err
		})
		before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			names := w.Children("/g")
			newest := slices.MaxFunc(names, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
			if _, err := s.Commit(context.Background(), backend.Delete("/g/"+newest, backend.AnyVersion)); err != nil || len(names) != 2 {
				w.T.Error(names, err)
			}
			return nil
		})
		_, err := b.Join(ctx, "x", "2")
		coordtest.WantErr(w.T, err, context.Canceled)
		w.Settle()
		if now := w.Children("/g"); a.Err() != nil || !slices.Equal(now, stands) {
			w.T.Errorf("%v, children %v, were %v", a.Err(), now, stands)
		}
		mustLeave(w.T, a)
	})
}

// A takeover happens between a listing and the read of the replaced member: the id is never
// reported as free.
func TestATakeoverDuringALookShowsNoGap(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		a := mustJoin(w.T, w.group("a", nil), "x", "1")
		b := textGroup(w.Open("b", nil), true)
		g := w.group("reader", &backendtest.Hooks{Before: before.Before})
		watch := w.watch(ctx, g)
		watch.until("x=1")
		takeover := func(value string) func(context.Context, backendtest.Call, error) error {
			return func(context.Context, backendtest.Call, error) error {
				mustJoin(w.T, b, "x", value)
				return nil
			}
		}
		reads := func(c backendtest.Call) bool { return c.Op == "get" }
		before.Arm(1, reads, func(ctx context.Context, c backendtest.Call, err error) error {
			// The pause lets the watch report before the next listing.
			before.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" }, func(context.Context, backendtest.Call, error) error {
				time.Sleep(time.Second)
				return nil
			})
			return takeover("2")(ctx, c, err)
		})
		if err := a.SetValue(ctx, "changed"); err != nil {
			w.T.Fatal(err)
		}
		for _, e := range watch.until("x=2") {
			if len(e.Members) != 1 {
				w.T.Errorf("no member has the id: %+v", e)
			}
		}
		var lookUp coordtest.Nth // the watch may still read, and must not use it up
		lookUp.Arm(1, reads, takeover("3"))
		if m, err := w.groupOf("look-up", &lookUp).Member(ctx, "x"); err != nil || m.Value != "3" {
			w.T.Errorf("looked up %+v, %v", m, err)
		}
	})
}

// groupOf returns the group for a client whose calls pass x first.
func (w *world) groupOf(name string, x *coordtest.Nth) *coord.Group[string] {
	return w.group(name, &backendtest.Hooks{Before: x.Before})
}

// A member removes its own dead node before it judges other nodes, so that an incumbent and a
// newcomer never refuse each other.
func TestAnIncumbentAndANewcomerAreNotBothRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before, hold coordtest.Nth
		ca := w.Open("a", &backendtest.Hooks{Before: before.Before})
		a := mustJoin(w.T, textGroup(ca, false), "x", "a")
		b := textGroup(w.Open("b", &backendtest.Hooks{Before: hold.Before}), false)
		// The incumbent's removal in the background is delayed.
		late := make(chan struct{})
		defer close(late)
		before.Arm(1, func(c backendtest.Call) bool { return len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpDelete }, func(context.Context, backendtest.Call, error) error {
			<-late
			return nil
		})
		// The newcomer has created its node, and is about to withdraw.
		flying, let := make(chan struct{}), make(chan struct{})
		hold.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			close(flying)
			<-let
			return nil
		})
		w.Link("a").Partition()
		awaitPhase(w.T, ca, coord.PhaseLost)
		joined := make(chan error)
		go func() {
			_, err := b.Join(ctx, "x", "b")
			joined <- err
		}()
		<-flying
		w.Link("a").Heal()
		w.Settle()
		close(let)
		if err := <-joined; err != nil {
			w.T.Errorf("the newcomer: %v", err)
		}
		<-a.Done()
		coordtest.WantErr(w.T, a.Err(), coord.ErrDuplicate)
		if names := w.Children("/g"); len(names) != 1 {
			w.T.Errorf("children %v, want one", names)
		}
	})
}

// The directory numbers its members, and has about two billion numbers.
func TestTheNumbersOfADirectoryEndWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		st := memory.New(nil)
		g := textGroup(coordtest.Open(t, st, nil), false)
		a := mustJoin(t, g, "a", "1")
		if err := st.SetSequence("/g", 2_000_000_000); err != nil {
			t.Fatal(err)
		}
		b := mustJoin(t, g, "b", "1")
		for _, next := range []int64{2_147_000_000, 1<<31 - 1, -1 << 31, -7} {
			if err := st.SetSequence("/g", next); err != nil {
				t.Fatal(err)
			}
			_, err := g.Join(ctx, "c", "1")
			coordtest.WantErr(t, err, coord.ErrLimit)
			synctest.Wait()
			if list, err := g.Members(ctx); err != nil || brief(list) != "a=1 b=1" || len(coordtest.Children(t, st, "/g")) != 2 {
				t.Errorf("%v, %v, children %v", list, err, coordtest.Children(t, st, "/g"))
			}
		}
		mustLeave(t, a)
		mustLeave(t, b) // the last member with a high number removes the directory
		a = mustJoin(t, g, "a", "2")
		got, err := g.Member(ctx, "a")
		if err != nil || got.Path[len(got.Path)-10:] != "0000000000" {
			t.Errorf("%+v, %v", got, err)
		}
		mustLeave(t, a)
	})
}

func TestTheIDIsRefusedWhileAnotherHasIt(t *testing.T) {
	onAll(t, func(w *world) {
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

func TestANewcomerWithTakeOverTakesTheID(t *testing.T) {
	onAll(t, func(w *world) {
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

func TestOfManyConcurrentJoinsOneHasTheID(t *testing.T) {
	for _, replace := range []bool{false, true} {
		t.Run(fmt.Sprint("replace ", replace), func(t *testing.T) {
			onAll(t, func(w *world) {
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

// The node of a member is deleted before its first look at the list: when Join returns, it has
// another node.
func TestAJoinWhoseNodeIsDeletedAtOnceCreatesAnother(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		g := textGroup(w.Open("a", &backendtest.Hooks{After: after.After}), false)
		other := mustJoin(w.T, g, "other", "") // a member that is alone does not look
		s := w.Session("x")
		after.Arm(1, coordtest.Creates, func(ctx context.Context, _ backendtest.Call, err error) error {
			for _, name := range w.Children("/g") {
				if !strings.Contains(name, "member-x-") {
					continue
				}
				if _, err := s.Commit(ctx, backend.Delete("/g/"+name, backend.AnyVersion)); err != nil {
					w.T.Error(err)
				}
			}
			return err
		})
		m := mustJoin(w.T, g, "x", "1")
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "1" {
			w.T.Errorf("%+v, %v", got, err)
		}
		mustLeave(w.T, m)
		mustLeave(w.T, other)
	})
}

// A list of members is read once, and each member once: all in one request where the
// service has batches.
func TestAListOfMembersCostsARequestForEach(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		a := w.group("a", nil)
		const n = 3
		for i := range n {
			defer mustJoin(w.T, a, fmt.Sprint(i), "").Leave()
		}
		var calls atomic.Int64
		g := textGroup(w.Counting("b", &calls), false)
		if _, err := g.Members(ctx); err != nil {
			w.T.Fatal(err)
		}
		before := calls.Load()
		if list, err := g.Members(ctx); err != nil || len(list) != n {
			w.T.Errorf("%v, %v", list, err)
		}
		want := int64(2)
		if w.Without.Has(backend.Batches) {
			want = 1 + n
		}
		if got := calls.Load() - before; got != want {
			w.T.Errorf("%d requests, want %d", got, want)
		}
	})
}
