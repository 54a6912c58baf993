package recipetest

import (
	"context"
	"errors"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// directoryFaultTests are tests of Directory on each service.
type directoryFaultTests struct{ Services }

// Clients that have known a value write it at any version. If the node was replaced, or unset, since
// then, what they write lasts all the same, or is refused.
func (on directoryFaultTests) AndClientsThatRememberAnotherNode(t *testing.T) {
	ctx := context.Background()
	text := &coord.ValueOptions[string]{Codec: coord.Text()}
	for _, x := range []struct {
		name    string
		change  func(w *world, c *coord.Client, v *coord.Value[string])
		refused bool
	}{
		{"deleted, and a lock used below", func(w *world, c *coord.Client, v *coord.Value[string]) {
			got, err := v.Get(ctx)
			w.must(err)
			w.must(v.Delete(ctx, got))
			w.Collect()
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v/lock", nil)))
		}, false},
		{"deleted above a lock", func(w *world, c *coord.Client, v *coord.Value[string]) {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v/lock", nil)))
			got, err := v.Get(ctx)
			w.must(err)
			w.must(v.Delete(ctx, got))
		}, false},
		{"deleted, and used as a lock", func(w *world, c *coord.Client, v *coord.Value[string]) {
			got, err := v.Get(ctx)
			w.must(err)
			w.must(v.Delete(ctx, got))
			coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v", nil))
		}, true},
		{"deleted above a lock, and used as a lock", func(w *world, c *coord.Client, v *coord.Value[string]) {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v/lock", nil)))
			got, err := v.Get(ctx)
			w.must(err)
			w.must(v.Delete(ctx, got))
			// The path may be refused as that of a value, but is never that of both.
			if h, err := coord.NewMutex(c, "/x/v", nil).TryLock(ctx); err == nil {
				w.must(h.Release())
				_, err := coord.NewValue(w.Open("c", nil), "/x/v", text).Get(ctx) // not by this client, which knows the path as a lock's
				if !w.Fake && errors.Is(err, coord.ErrNotFound) {
					return // the server has removed the directory of the lock
				}
				coordtest.WantErr(w.T, err, coord.ErrKind)
			}
		}, false},
	} {
		for _, first := range []string{"above", "below"} {
			t.Run(x.name+", first "+first, func(t *testing.T) {
				on.eachCollecting(t, func(w *world) {
					a, b := w.Open("a", nil), w.Open("b", nil)
					if first == "below" {
						coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(b, "/x/v/first", nil)))
					}
					v := coord.NewValue(a, "/x/v", text)
					_, err := v.Set(ctx, "old")
					w.must(err)
					_, err = v.Set(ctx, "older")
					w.must(err)
					x.change(w, b, coord.NewValue(b, "/x/v", text))
					set, err := v.Set(ctx, "precious")
					if errors.Is(err, coord.ErrKind) {
						if !x.refused && x.name != "deleted above a lock, and used as a lock" {
							w.T.Fatal(err)
						}
						return
					}
					if !w.Fake && errors.Is(err, coord.ErrUncertain) {
						return // the server has removed the directory between the write and the look at it
					}
					if err != nil || x.refused {
						w.T.Fatalf("%+v, %v\n%s", set, err, w.dump("/x"))
					}
					if x.name == "deleted above a lock, and used as a lock" && !w.Fake {
						return // the server has removed the directory of the lock, so the lock may take the path over once
					}
					if h, err := coord.NewMutex(b, "/x/v", nil).TryLock(ctx); err == nil { // as before the Set
						w.must(h.Release())
					}
					for range 2 {
						if got, err := coord.NewValue(b, "/x/v", text).Get(ctx); err != nil || got != set {
							w.T.Fatalf("set %+v, stored %+v, %v\n%s", set, got, err, w.dump("/x"))
						}
						w.Collect()
					}
				})
			})
		}
	}
}
