package recipetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// If the member that would refuse a newcomer leaves before the newcomer has withdrawn, the
// newcomer is not refused, and no watch reports it as joined and left.
func TestGroup_ANewcomerIsRefusedOnlyByAPresentMember(t *testing.T) {
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
func TestGroup_ATakeoverByADeletedNodeRemovesNoMember(t *testing.T) {
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
func TestGroup_ATakeoverDuringALookShowsNoGap(t *testing.T) {
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

// A member removes its own dead node before it judges other nodes, so that an incumbent and a
// newcomer never refuse each other.
func TestGroup_AnIncumbentAndANewcomerAreNotBothRefused(t *testing.T) {
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
func TestGroup_TheNumbersOfADirectoryEndWithAnError(t *testing.T) {
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

// The node of a member is deleted before its first look at the list: when Join returns, it has
// another node.
func TestGroup_AJoinWhoseNodeIsDeletedAtOnceCreatesAnother(t *testing.T) {
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
func TestGroup_AListOfMembersCostsARequestForEach(t *testing.T) {
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
