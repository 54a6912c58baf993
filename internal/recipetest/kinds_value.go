package recipetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

// A Value of no bytes below which other recipes were used is a Value still.
func (on kindsTests) OfNoBytesKeepsItsPathAboveAUsedLock(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		v := coord.NewValue(c, "/v", &coord.ValueOptions[string]{Codec: coord.Text()})
		_, err := v.Set(ctx, "")
		w.must(err)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/v/lock", nil)))
		for _, there := range []bool{true, false} {
			if !there {
				w.collected("/v/lock")
			}
			other := w.Open(fmt.Sprint("b", there), nil)
			_, err := coord.NewMutex(other, "/v", nil).Lock(ctx)
			wantKind(w.T, err, w.Path("/v"), "mutex", "value")
			if got, err := coord.NewValue(other, "/v", &coord.ValueOptions[string]{Codec: coord.Text()}).Get(ctx); err != nil || got.Value != "" || got.Czxid == 0 {
				w.T.Errorf("with a node below it, %v: %+v, %v", there, got, err)
			}
		}
	})
}

// An empty value is distinguished from a directory that was not used yet.
func (on kindsTests) AnEmptyValueKeepsItsPath(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	type text = *coord.Value[string]
	for name, make := range map[string]func(c *coord.Client, v text, path string) error{
		"set": func(_ *coord.Client, v text, _ string) error {
			_, err := v.Set(ctx, "")
			return err
		},
		"set after others": func(_ *coord.Client, v text, _ string) error {
			_, err := v.Set(ctx, "x")
			if err == nil {
				_, err = v.Set(ctx, "")
			}
			return err
		},
		"created": func(_ *coord.Client, v text, _ string) error {
			_, err := v.CompareAndSet(ctx, coord.Versioned[string]{}, "")
			return err
		},
		"updated": func(_ *coord.Client, v text, _ string) error {
			_, err := v.Update(ctx, func(string) (string, error) { return "", nil })
			return err
		},
		"in a transaction": func(c *coord.Client, v text, _ string) error {
			done, err := coord.NewTxn(c).Add(v.SetOp("")).Commit(ctx)
			if got, gerr := v.Get(ctx); err == nil && (gerr != nil || done[0].Version != got.Version) {
				return fmt.Errorf("the transaction returned %+v; it is %+v, %w", done, got, gerr)
			}
			return err
		},
		"in place of one that a transaction deletes": func(c *coord.Client, v text, path string) error {
			_, err := v.Set(ctx, "x")
			if err == nil {
				_, err = coord.NewTxn(c).Delete(path).Add(v.SetOp("")).Commit(ctx)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				a := w.Open("a", nil)
				for i, u := range kindUses() {
					if isData(u.kind) {
						continue
					}
					path := "/" + u.kind
					v := coord.NewValue(a, path, &coord.ValueOptions[string]{Codec: coord.Text()})
					if err := make(a, v, path); err != nil {
						w.T.Fatal(err)
					}
					before := w.dump(path)
					wantKind(w.T, u.use(ctx, w.Open(fmt.Sprint("c", i), nil), path), w.Path(path), u.kind, "value")
					if after := w.dump(path); after != before {
						w.T.Errorf("a %s has made\n%s of\n%s", u.kind, after, before)
					}
					if got, err := v.Get(ctx); err != nil || got.Value != "" {
						w.T.Errorf("after a %s: %+v, %v", u.kind, got, err)
					}
					if in, err := inspect.Path(ctx, a, path, nil); err != nil || in.Recipe != "value" {
						w.T.Errorf("Inspect: %+v, %v", in, err)
					}
				}
			})
		})
	}
}

// A write of an empty value returns what is stored, also when the reply was lost.
func (on kindsTests) AnEmptyValueIsReturnedAsItIsStored(t *testing.T) {
	ctx := context.Background()
	on.each(t, func(w *world) {
		var after coordtest.Nth
		v := coord.NewValue(w.Open("a", &backendtest.Hooks{After: after.After}), "/v", &coord.ValueOptions[string]{Codec: coord.Text()})
		for range 2 {
			after.Arm(1, does(backend.OpCreate, w.Path("/v")), coordtest.Lose)
			set, err := v.Set(ctx, "")
			got, gerr := v.Get(ctx)
			if err != nil || gerr != nil || set != got {
				w.T.Fatalf("Set returned %+v, %v; it is %+v, %v", set, err, got, gerr)
			}
			next, err := v.CompareAndSet(ctx, set, "x")
			if err == nil {
				next, err = v.CompareAndSet(ctx, next, "")
			}
			if err != nil {
				w.T.Fatal(err)
			}
			if err := v.Delete(ctx, next); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}

// A lock is taken at a path between the look of a client's first Set and its write. The value is
// not written over the mark of the lock.
func (on kindsTests) AFirstSetDoesNotWriteOverTheMarkOfAnotherKind(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		w.outsider(backend.Create(w.Path("/x"), nil, backend.Persistent)) // no recipe has used the node
		var looked coordtest.Nth
		var hold *coord.Hold
		looked.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" }, func(_ context.Context, _ backendtest.Call, err error) error {
			var failed error
			hold, failed = coord.NewMutex(w.Open("b", nil), "/x", nil).Lock(ctx)
			w.must(failed)
			return err
		})
		v := coord.NewValue[string](w.Open("a", &backendtest.Hooks{After: looked.After}), "/x", nil)
		_, err := v.Set(ctx, "data")
		wantKind(w.T, err, w.Path("/x"), "value", "mutex")
		if data, _, err := w.Session("s").Get(ctx, w.Path("/x"), nil); err != nil || string(data) != "coord recipe: mutex" {
			w.T.Errorf("the lock's directory has %q, %v", data, err)
		}
		w.must(hold.Release())
	})
}

// Another client writes the value between the read and the write of a client's first Set. The
// Set writes once all the same.
func (on kindsTests) AFirstSetWritesWhateverTheValueIs(t *testing.T) {
	on.each(t, func(w *world) {
		for _, old := range []string{"text", ""} { // also a value of no bytes
			ctx, path := context.Background(), "/v-"+old
			text := &coord.ValueOptions[string]{Codec: coord.Text()}
			other := coord.NewValue(w.Open("b"+old, nil), path, text)
			_, err := other.Set(ctx, old)
			w.must(err)
			commits, looks := 0, 0
			v := coord.NewValue(w.Open("a"+old, &backendtest.Hooks{
				After: func(_ context.Context, c backendtest.Call, err error) error {
					if looks++; c.Op == "get" && looks < 5 {
						_, failed := other.Set(ctx, old)
						w.must(failed)
					}
					return err
				},
				Before: func(_ context.Context, c backendtest.Call) error {
					if does(backend.OpSetData, w.Path(path))(c) {
						commits++
					}
					return nil
				},
			}), path, text)
			_, err = v.Set(ctx, "new")
			w.must(err)
			if w.Fake && commits != 1 { // a real server can break the connection
				w.T.Errorf("%q was replaced with %d commits", old, commits)
			}
		}
	})
}

// A Set in the directory of another kind is undone also if its ctx ends before that.
func (on kindsTests) ASetOverAnotherKindIsUndoneWhateverEndsIt(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var after coordtest.Nth
		v := coord.NewValue[string](w.Open("a", &backendtest.Hooks{After: after.After}), "/x", nil)
		_, err := v.Set(ctx, "data")
		w.must(err)
		w.raze("/x")
		h, err := coord.NewMutex(w.Open("b", nil), "/x", nil).Lock(ctx)
		w.must(err)
		after.Arm(1, does(backend.OpSetData, w.Path("/x")), func(_ context.Context, _ backendtest.Call, err error) error {
			cancel()
			return err
		})
		_, err = v.Set(ctx, "data")
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		coordtest.WantErr(w.T, err, context.Canceled)
		s := w.Session("x")
		w.Eventually("the directory of the lock has no value", func() bool {
			data, _, err := s.Get(context.Background(), w.Path("/x"), nil)
			w.must(err)
			return string(data) == "coord recipe: directory"
		})
		_, err = v.Set(context.Background(), "data")
		wantKind(w.T, err, w.Path("/x"), "value", "mutex")
		w.must(h.Release())
	})
}
