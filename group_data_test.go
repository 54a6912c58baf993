package coord_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

func TestALostReplyOfSetDataDoesNotUndoALaterOne(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		var before, after nth
		g := textGroup(w.open("a", &backendtest.Hooks{Before: before.before, After: after.after}), false)
		m := mustJoin(w.t, g, "x", "0")
		sets := func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData
		}
		value := func() string {
			w.t.Helper()
			got, err := g.Member(ctx, "x")
			if err != nil {
				w.t.Fatal(err)
			}
			return got.Value
		}
		after.arm(1, sets, lose)
		if err := m.SetValue(ctx, "1"); err != nil || value() != "1" {
			w.t.Errorf("after a lost reply: %v, %s", err, value())
		}
		before.arm(1, sets, lose)
		if err := m.SetValue(ctx, "2"); err != nil || value() != "2" {
			w.t.Errorf("after a lost request: %v, %s", err, value())
		}
		// Given up with an unknown outcome; the next one is ordered behind it.
		short, cancel := context.WithCancel(ctx)
		var synced atomic.Bool
		after.arm(1, sets, func(ctx context.Context, _ backendtest.Call, _ error) error {
			cancel()
			before.arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
				synced.Store(true)
				return nil
			})
			return backend.Uncertain(ctx.Err())
		})
		wantErr(w.t, m.SetValue(short, "3"), context.Canceled, coord.ErrUncertain)
		if err := m.SetValue(ctx, "4"); err != nil || value() != "4" || !synced.Load() {
			w.t.Errorf("%v, %s, ordered behind: %v", err, value(), synced.Load())
		}
		mustLeave(w.t, m)
	})
}

// The session is lost while a value is written: the next incarnation has it.
func TestAValueThatWasSetWhileTheSessionWasLostIsKept(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		var after nth
		g := textGroup(w.open("a", &backendtest.Hooks{After: after.after}), false)
		m := mustJoin(w.t, g, "x", "0")
		watch := w.watch(ctx, w.group("b", nil))
		watch.until("x=0")
		after.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) }, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.Uncertain(backend.ErrSessionLost)
		})
		if err := m.SetValue(ctx, "1"); err != nil {
			w.t.Fatal(err)
		}
		w.Link("a").Partition()
		set := make(chan error)
		go func() { set <- m.SetValue(ctx, "2") }()
		watch.until("")
		w.Link("a").Heal()
		if err := <-set; err != nil {
			w.t.Fatal(err)
		}
		all := watch.until("x=2")
		if e := all[len(all)-1]; len(e.List) != 1 {
			w.t.Errorf("%+v", e)
		}
		mustLeave(w.t, m)
		w.empty("/g")
	})
}

// A value that the service refused is not remembered.
func TestAValueThatWasRefusedIsNotKept(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before nth
		g := textGroup(w.open("a", &backendtest.Hooks{Before: before.before}), false)
		m := mustJoin(w.t, g, "x", "good")
		before.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) }, func(context.Context, backendtest.Call, error) error {
			return backend.ErrDenied
		})
		err := m.SetValue(ctx, "refused")
		wantErr(w.t, err, coord.ErrDenied)
		if errors.Is(err, coord.ErrUncertain) {
			w.t.Errorf("%v: a refusal is certain", err)
		}
		first, _ := g.Member(ctx, "x")
		w.Link("a").Expire(first.Session)
		w.settle()
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "good" || got.Token == first.Token {
			w.t.Errorf("%+v, %v", got, err)
		}
	})
}

// Unless the member has come anew with it meanwhile: then the refusal is of the old node.
func TestAValueThatWasRefusedAndCameWithTheNextNodeIsUncertain(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before nth
		g := textGroup(w.open("a", &backendtest.Hooks{Before: before.before}), false)
		m := mustJoin(w.t, g, "x", "old")
		first, err := g.Member(ctx, "x")
		w.must(err)
		before.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) && c.Path == first.Path }, func(context.Context, backendtest.Call, error) error {
			w.commit(backend.Delete(first.Path, backend.AnyVersion))
			w.eventually("the member has come anew", func() bool {
				next, err := g.Member(ctx, "x")
				return err == nil && next.Token != first.Token
			})
			return backend.ErrDenied
		})
		err = m.SetValue(ctx, "new")
		wantErr(w.t, err, coord.ErrDenied, coord.ErrUncertain)
		if next, err := g.Member(ctx, "x"); err != nil || next.Value != "new" {
			w.t.Errorf("%+v, %v", next, err)
		}
		mustLeave(w.t, m)
	})
}

func TestSetDataIsLastingAndInOrder(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		c := w.open("a", nil)
		g := textGroup(c, false)
		m := mustJoin(w.t, g, "x", "0")
		watch := w.watch(ctx, w.group("b", nil))
		watch.next()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if err := m.SetValue(ctx, fmt.Sprint("c", i)); err != nil {
					w.t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := m.SetValue(ctx, "last"); err != nil {
			w.t.Fatal(err)
		}
		watch.until("x=last")
		for range 2 {
			from := watch.last.List[0]
			w.Link("a").Expire(from.Session)
			if got, _ := watch.another(from); got.Value != "last" || got.Token < from.Token || got.Session == from.Session {
				w.t.Errorf("%+v, before %+v", got, from)
			}
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wantErr(w.t, m.SetValue(ended, "never"), context.Canceled)
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "last" {
			w.t.Errorf("%+v, %v", got, err)
		}
		mustLeave(w.t, m)
		w.empty("/g")
	})
}

func TestLeaveAndSetDataMayComeAtOnce(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		g := w.group("a", nil)
		for i := range 10 {
			m := mustJoin(w.t, g, "x", "0")
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := m.SetValue(ctx, "1"); err != nil && !errors.Is(err, coord.ErrReleased) {
						w.t.Error(err)
					}
				})
				wg.Go(func() {
					if err := m.Leave(); err != nil {
						w.t.Error(err)
					}
					<-m.Done()
					wantErr(w.t, m.Err(), coord.ErrReleased)
				})
			}
			wg.Wait()
			if names := w.children("/g"); len(names) != 0 {
				w.t.Errorf("round %d: left behind %v", i, names)
			}
		}
	})
}

// The codec refuses a value. The member keeps the one that it has.
func TestAValueThatCannotBeEncodedIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		g := coord.NewGroup[any](w.open("a", nil), "/g", nil)
		m, err := g.Join(ctx, "x", "good")
		if err != nil {
			w.t.Fatal(err)
		}
		wantErr(w.t, m.SetValue(ctx, func() {}), coord.ErrInvalid)
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "good" {
			w.t.Errorf("%+v, %v", got, err)
		}
		if err := m.Leave(); err != nil {
			w.t.Error(err)
		}
	})
}

// The node is deleted just before it is written, and the service refuses the next
// one, which ends the membership: SetValue says so.
func TestAValueOfAMembershipThatEndsMeanwhileIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		s := w.session("x")
		var m *coord.Membership[string]
		var node atomic.Pointer[string]
		g := textGroup(w.open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			path := node.Load()
			switch {
			case path == nil:
			case creates(c):
				return backend.ErrDenied
			case commits(c, backend.OpSetData) && c.Ops[0].Path == *path:
				if _, err := s.Commit(ctx, backend.Delete(*path, backend.AnyVersion)); err != nil {
					w.t.Error(err)
				}
			}
			return nil
		}}), false)
		m = mustJoin(w.t, g, "x", "0")
		got, err := g.Member(ctx, "x")
		if err != nil {
			w.t.Fatal(err)
		}
		node.Store(&got.Path)
		wantErr(w.t, m.SetValue(ctx, "1"), coord.ErrDenied)
		<-m.Done()
		wantErr(w.t, m.Err(), coord.ErrDenied)
	})
}
