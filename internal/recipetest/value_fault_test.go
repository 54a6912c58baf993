package recipetest

import (
	"context"
	"errors"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestValue_AWriteOfASessionThatIsLostIsUncertainAndNotRepeated(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: after.After})
		v, n := coord.NewValue[int](c, "/v", nil), coord.NewCounter(c, "/n")
		setValue(w.T, v, 1)
		if _, err := n.Add(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		for name, write := range map[string]func() error{
			"set":             func() error { _, err := v.Set(ctx, 2); return err },
			"compare and set": func() error { _, err := v.CompareAndSet(ctx, getValue(w.T, v), 3); return err },
			"update":          func() error { _, err := v.Update(ctx, inc); return err },
			"add":             func() error { _, err := n.Add(ctx, 1); return err },
			"reserve":         func() error { _, err := n.Reserve(ctx, 10); return err },
			"delete":          func() error { return v.Delete(ctx, getValue(w.T, v)) },
		} {
			setValue(w.T, v, 1)
			commits := 0
			after.Arm(1, func(c backendtest.Call) bool {
				if !w.writesTo("/v")(c) && !w.writesTo("/n")(c) {
					return false
				}
				commits++
				return true
			}, func(_ context.Context, c backendtest.Call, _ error) error {
				w.Link("a").Expire(c.Session.ID())
				return backend.Uncertain(backend.ErrSessionLost)
			})
			if err := write(); !errors.Is(err, coord.ErrUncertain) || !errors.Is(err, coord.ErrSessionLost) {
				w.T.Errorf("%s: %v", name, err)
			}
			if commits != 1 {
				w.T.Errorf("%s: %d commits", name, commits)
			}
		}
	})
}

// The journal's node is the library's own, but an outsider can delete it.
func TestValue_AWriteWhoseJournalIsDeletedIsUncertain(t *testing.T) {
	onMemory(t, func(w *world) {
		var after coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{After: after.After}), "/v", nil)
		setValue(w.T, v, 1)
		after.Arm(1, w.writesTo("/v"), func(_ context.Context, c backendtest.Call, _ error) error {
			w.outsider(backend.Delete(c.Ops[len(c.Ops)-1].Path, backend.AnyVersion))
			return backend.ErrUncertain
		})
		_, err := v.Update(context.Background(), inc)
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		if got := getValue(w.T, v); got.Value != 2 {
			w.T.Errorf("got %+v", got)
		}
	})
}

func TestValue_AnErrorOfFnIsFoundAlsoWhenCtxEnds(t *testing.T) {
	onMemory(t, func(w *world) {
		mine := errors.New("mine")
		v := coord.NewValue[int](w.Open("a", nil), "/v", nil)
		ctx, cancel := context.WithCancel(context.Background())
		_, err := v.Update(ctx, func(int) (int, error) { cancel(); return 0, mine })
		if !errors.Is(err, mine) {
			w.T.Errorf("Update: %v, want fn's own error", err)
		}
	})
}

// The error of a call whose ctx has ended matches the error of ctx.
func TestValue_TheContextsErrorIsReportedBesideALostSession(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		var x coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: x.After})
		v := coord.NewValue[int](c, "/v", nil)
		v.Set(ctx, 1)
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" }, func(context.Context, backendtest.Call, error) error {
			cancel()
			return backend.ErrSessionLost
		})
		if _, err := v.Get(ctx); !errors.Is(err, context.Canceled) {
			w.T.Errorf("Get: %v", err)
		}
	})
}

func TestValue_HalfACodecIsNotMixedWithJSON(t *testing.T) {
	onMemory(t, func(w *world) {
		k := coord.Codec[string]{Encode: func(s string) ([]byte, error) { return []byte(s), nil }}
		v := coord.NewValue(w.Open("a", nil), "/v", &coord.ValueOptions[string]{Codec: k})
		_, err := v.Set(context.Background(), "plain")
		_, err2 := v.Get(context.Background())
		if !errors.Is(err, coord.ErrInvalid) {
			w.T.Errorf("Set: %v; Get: %v", err, err2)
		}
	})
}
