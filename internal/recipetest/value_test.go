package recipetest

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestValue_ABadValueIsRefusedBeforeAnythingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		var mu sync.Mutex
		var calls []string
		c := coordtest.Open(t, backendtest.Intercept(st, backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, c.Op+" "+c.Path)
			return nil
		}}), nil)
		ctx := t.Context()
		large := coord.NewValue(c, "/v", &coord.ValueOptions[[]byte]{Codec: coord.Bytes()})
		unfit := coord.NewValue[float64](c, "/v", nil)
		for _, n := range []int{backend.MaxRequest - 400, backend.MaxRequest, 3 * backend.MaxRequest} {
			_, err := large.Set(ctx, make([]byte, n))
			coordtest.WantErr(t, err, coord.ErrTooLarge)
			_, err = large.CompareAndSet(ctx, coord.Versioned[[]byte]{}, make([]byte, n))
			coordtest.WantErr(t, err, coord.ErrTooLarge)
			_, err = large.CompareAndSet(ctx, coord.Versioned[[]byte]{Czxid: 1}, make([]byte, n))
			coordtest.WantErr(t, err, coord.ErrTooLarge)
		}
		_, err := unfit.Set(ctx, math.NaN())
		coordtest.WantErr(t, err, coord.ErrInvalid)
		_, err = unfit.CompareAndSet(ctx, coord.Versioned[float64]{}, math.NaN())
		coordtest.WantErr(t, err, coord.ErrInvalid)
		if len(calls) != 0 {
			t.Errorf("sent %v", calls)
		}
		_, err = large.Update(ctx, func([]byte) ([]byte, error) { return make([]byte, backend.MaxRequest), nil })
		coordtest.WantErr(t, err, coord.ErrTooLarge)
		_, err = unfit.Update(ctx, func(float64) (float64, error) { return math.NaN(), nil })
		coordtest.WantErr(t, err, coord.ErrInvalid)
		for _, call := range calls {
			if strings.HasPrefix(call, "commit") {
				t.Errorf("sent %s", call)
			}
		}
		// The largest accepted value is written.
		setValue(t, large, make([]byte, backend.MaxRequest-600))
		setValue(t, large, make([]byte, backend.MaxRequest-600))
	})
}

func TestValue_AValueRefusesBadPathsAndPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := coordtest.Open(t, coordtest.Ruled(st), nil)
		ctx := t.Context()
		for _, path := range []string{"", "/", "relative", "/a//b", "/a/../b", "/a\x00b", "/a\u202eb", "/zookeeper/quota", "/_coord/journal"} {
			v, n := coord.NewValue[int](c, path, nil), coord.NewCounter(c, path)
			for op, call := range map[string]func() error{
				"get":           func() error { _, err := v.Get(ctx); return err },
				"set":           func() error { _, err := v.Set(ctx, 1); return err },
				"compareandset": func() error { _, err := v.CompareAndSet(ctx, coord.Versioned[int]{}, 1); return err },
				"update":        func() error { _, err := v.Update(ctx, func(int) (int, error) { return 1, nil }); return err },
				"delete":        func() error { return v.Delete(ctx, coord.Versioned[int]{}) },
				"add":           func() error { _, err := n.Add(ctx, 1); return err },
				"get ":          func() error { _, err := n.Get(ctx); return err },
				"reserve":       func() error { _, err := n.Reserve(ctx, 0); return err },
				"watch": func() error {
					ch := v.Watch(ctx)
					e, ok := <-ch
					if _, more := <-ch; !ok || more {
						t.Errorf("%q: want one element", path)
					}
					return e.Err
				},
			} {
				err := call()
				var e *backend.Error
				if !errors.Is(err, coord.ErrBadPath) || !errors.As(err, &e) || e.Op != strings.TrimSpace(op) || e.Path != path {
					t.Errorf("%s %q: %v", op, path, err)
				}
			}
		}
		s, err := st.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Commit(ctx, backend.Create("/e", nil, backend.Ephemeral)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/e/v", "/e/deep/v"} {
			_, err := coord.NewValue[int](c, path, nil).Set(ctx, 1)
			coordtest.WantErr(t, err, coord.ErrNoChildren)
			_, err = coord.NewCounter(c, path).Add(ctx, 1)
			coordtest.WantErr(t, err, coord.ErrNoChildren)
		}
		v := coord.NewValue[int](c, "/v", nil)
		setValue(t, v, 1)
		if _, err := s.Commit(ctx, backend.Create("/v/child", nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
		if err := v.Delete(ctx, getValue(t, v)); err != nil {
			t.Error(err)
		}
		_, err = v.Get(ctx)
		coordtest.WantErr(t, err, coord.ErrNotFound)
	})
}
