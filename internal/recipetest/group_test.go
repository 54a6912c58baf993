package recipetest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestGroup_BadIDsPathsAndValuesAreRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		st := memory.New(nil)
		c := coordtest.Open(t, coordtest.Ruled(st), nil)
		g := textGroup(c, false)
		for id, want := range map[string]error{
			"": coord.ErrInvalid, strings.Repeat("i", 201): coord.ErrInvalid, "/": coord.ErrBadPath, "a/b": coord.ErrBadPath,
			"a\x00": coord.ErrBadPath, "a\nb": coord.ErrBadPath, "\u202e": coord.ErrBadPath, "\u200b": coord.ErrBadPath,
			"\xff": coord.ErrBadPath, "\ue000": coord.ErrBadPath, "😀": coord.ErrBadPath,
		} {
			_, err := g.Join(ctx, id, "")
			coordtest.WantErr(t, err, want)
			_, err = g.Member(ctx, id)
			coordtest.WantErr(t, err, want)
		}
		if left := coordtest.Children(t, st, "/"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		_, err := g.Join(ctx, "a", strings.Repeat("v", backend.MaxRequest))
		coordtest.WantErr(t, err, coord.ErrTooLarge)
		bad := coord.NewGroup[string](c, "no slash", nil)
		for op, call := range map[string]func() error{
			"join":    func() error { _, err := bad.Join(ctx, "a", ""); return err },
			"members": func() error { _, err := bad.Members(ctx); return err },
			"member":  func() error { _, err := bad.Member(ctx, "a"); return err },
			"wait":    func() error { _, err := bad.Wait(ctx, 1); return err },
			"watch":   func() error { return (<-bad.Watch(ctx)).Err },
			"picker":  func() error { _, err := bad.Picker(ctx, coord.PickRoundRobin); return err },
		} {
			err := call()
			var e *backend.Error
			if !errors.Is(err, coord.ErrBadPath) || !errors.As(err, &e) || e.Op != op || e.Path != "no slash" {
				t.Errorf("%s: %v", op, err)
			}
		}
		_, err = g.Picker(ctx, 17)
		coordtest.WantErr(t, err, coord.ErrInvalid)
		m := mustJoin(t, g, "a", "good")
		coordtest.WantErr(t, m.SetValue(ctx, strings.Repeat("v", backend.MaxRequest)), coord.ErrTooLarge)
		_, err = coord.NewGroup[func()](c, "/g", nil).Join(ctx, "f", nil)
		coordtest.WantErr(t, err, coord.ErrInvalid)
		if got, err := g.Member(ctx, "a"); err != nil || got.Value != "good" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A value that the service refused is not remembered.
func TestGroup_AValueThatWasRefusedIsNotKept(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		g := textGroup(w.Open("a", &backendtest.Hooks{Before: before.Before}), false)
		m := mustJoin(w.T, g, "x", "good")
		before.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpSetData) }, func(context.Context, backendtest.Call, error) error {
			return backend.ErrDenied
		})
		err := m.SetValue(ctx, "refused")
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		if errors.Is(err, coord.ErrUncertain) {
			w.T.Errorf("%v: a refusal is certain", err)
		}
		first, _ := g.Member(ctx, "x")
		w.Link("a").Expire(first.Session)
		w.Settle()
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "good" || got.Token == first.Token {
			w.T.Errorf("%+v, %v", got, err)
		}
	})
}

// If the member has joined again with the value meanwhile, the refusal is only that of the old
// node, and the outcome is uncertain.
func TestGroup_ARefusedValueThatTheNextNodeHasIsUncertain(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		g := textGroup(w.Open("a", &backendtest.Hooks{Before: before.Before}), false)
		m := mustJoin(w.T, g, "x", "old")
		first, err := g.Member(ctx, "x")
		w.must(err)
		before.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpSetData) && c.Path == first.Path }, func(context.Context, backendtest.Call, error) error {
			w.commit(backend.Delete(first.Path, backend.AnyVersion))
			w.Eventually("the member has joined again", func() bool {
				next, err := g.Member(ctx, "x")
				return err == nil && next.Token != first.Token
			})
			return backend.ErrDenied
		})
		err = m.SetValue(ctx, "new")
		coordtest.WantErr(w.T, err, coord.ErrDenied, coord.ErrUncertain)
		if next, err := g.Member(ctx, "x"); err != nil || next.Value != "new" {
			w.T.Errorf("%+v, %v", next, err)
		}
		mustLeave(w.T, m)
	})
}

// If the codec refuses a value, the member keeps its current one.
func TestGroup_AValueThatCannotBeEncodedIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		g := coord.NewGroup[any](w.Open("a", nil), "/g", nil)
		m, err := g.Join(ctx, "x", "good")
		if err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, m.SetValue(ctx, func() {}), coord.ErrInvalid)
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "good" {
			w.T.Errorf("%+v, %v", got, err)
		}
		if err := m.Leave(); err != nil {
			w.T.Error(err)
		}
	})
}

// The node is deleted just before it is written, and the service refuses the next one, which
// ends the membership: SetValue returns that error.
func TestGroup_AValueOfAMembershipThatEndsMeanwhileIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		s := w.Session("x")
		var m *coord.Membership[string]
		var node atomic.Pointer[string]
		g := textGroup(w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			path := node.Load()
			switch {
			case path == nil:
			case coordtest.Creates(c):
				return backend.ErrDenied
			case coordtest.Commits(c, backend.OpSetData) && c.Ops[0].Path == *path:
				if _, err := s.Commit(ctx, backend.Delete(*path, backend.AnyVersion)); err != nil {
					w.T.Error(err)
				}
			}
			return nil
		}}), false)
		m = mustJoin(w.T, g, "x", "0")
		got, err := g.Member(ctx, "x")
		if err != nil {
			w.T.Fatal(err)
		}
		node.Store(&got.Path)
		coordtest.WantErr(w.T, m.SetValue(ctx, "1"), coord.ErrDenied)
		<-m.Done()
		coordtest.WantErr(w.T, m.Err(), coord.ErrDenied)
	})
}
