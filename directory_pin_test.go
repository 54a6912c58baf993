package coord_test

import (
	"context"
	"slices"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

var textValue = &coord.ValueOptions[string]{Codec: coord.Text()}

// A SetOp in a directory pins it, also beside a condition or a Set on the same path.
func TestDirectories_SetOpBesideAConditionIsPinned(t *testing.T) {
	ctx := context.Background()
	for _, x := range []string{"exists", "version", "afterset"} {
		t.Run(x, func(t *testing.T) {
			onEachCollecting(t, func(w *world) {
				c := w.Open("a", nil)
				coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v/lock", nil)))
				st, err := w.stat("/x/v")
				w.must(err)
				v := coord.NewValue(c, "/x/v", textValue)
				txn := coord.NewTxn(c)
				switch x {
				case "exists":
					txn.If(coord.IfExists("/x/v"))
				case "version":
					txn.If(coord.IfVersion("/x/v", st.Version))
				case "afterset":
					txn.Set("/x/v", []byte("first"))
				}
				_, err = txn.Add(v.SetOp("precious")).Commit(ctx)
				w.must(err)
				w.Collect()
				if got, err := v.Get(ctx); err != nil || got.Value != "precious" {
					w.T.Errorf("%+v %v", got, err)
				}
			})
		})
	}
}

// A SetOp at the path of a lock in use is refused, also beside a condition.
func TestDirectories_SetOpIsRefusedAtALock(t *testing.T) {
	ctx := context.Background()
	onEachCollecting(t, func(w *world) {
		c := w.Open("a", nil)
		coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v", nil))
		v := coord.NewValue(w.Open("b", nil), "/x/v", textValue)
		_, err := coord.NewTxn(w.Open("b", nil)).If(coord.IfExists("/x/v")).Add(v.SetOp("precious")).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrKind)
	})
}

// A client that has not read the value itself, which an earlier version of this library put into a
// container, pins it with its CompareAndSet.
func TestDirectories_CompareAndSetByAnotherClientIsPinned(t *testing.T) {
	ctx := context.Background()
	onEachCollecting(t, func(w *world) {
		s := w.Session("earlier")
		if !s.Features().Has(backend.Containers) {
			w.T.Skip("no containers")
		}
		w.commit(backend.Create(w.Path("/x"), nil, backend.Container))
		w.commit(backend.Create(w.Path("/x/child"), nil, backend.Persistent), backend.SetData(w.Path("/x"), []byte("old"), 0))
		old, err := coord.NewValue(w.Open("a", nil), "/x", textValue).Get(ctx)
		w.must(err)
		v := coord.NewValue(w.Open("b", nil), "/x", textValue)
		_, err = v.CompareAndSet(ctx, old, "precious")
		w.must(err)
		w.commit(backend.Delete(w.Path("/x/child"), backend.AnyVersion))
		w.Collect()
		if got, err := v.Get(ctx); err != nil || got.Value != "precious" {
			w.T.Errorf("%+v %v", got, err)
		}
		s.Close()
	})
}

// A barrier that has lost its pin, set again.
func TestDirectories_ABarrierThatIsSetAgainIsPinned(t *testing.T) {
	ctx := context.Background()
	onEachCollecting(t, func(w *world) {
		s := w.Session("earlier")
		if !s.Features().Has(backend.Containers) {
			w.T.Skip("no containers")
		}
		c := w.Open("a", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/x/b/lock", nil)))
		b := coord.NewBarrier(c, "/x/b", nil)
		w.must(b.Set(ctx))
		w.commit(backend.Delete(w.Path("/x/b"+pin), backend.AnyVersion))
		w.must(b.Set(ctx))
		w.Collect()
		if set, err := barrierIsSet(w.Open("b", nil), "/x/b"); !set || err != nil {
			w.T.Errorf("%v %v", set, err)
		}
		s.Close()
	})
}

// A client that remembers an unpinned value writes to a node that is another recipe's by now.
func TestDirectories_AWriteThatIsTakenBackLeavesNoPin(t *testing.T) {
	ctx := context.Background()
	onEachCollecting(t, func(w *world) {
		a, c := w.Open("a", nil), w.Open("b", nil)
		v := coord.NewValue(a, "/x/v", textValue)
		_, err := v.Set(ctx, "old")
		w.must(err)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v/lock", nil)))
		w.Collect()
		a2 := w.Open("a2", nil)
		v2 := coord.NewValue(a2, "/x/v", textValue)
		got, err := v2.Get(ctx) // pinNeeded
		w.must(err)
		w.must(coord.NewValue(c, "/x/v", textValue).Delete(ctx, got))
		for _, p := range []string{"/x/v/lock", "/x/v"} {
			s := w.Session("d")
			s.Commit(ctx, backend.Delete(w.Path(p), backend.AnyVersion))
			s.Close()
		}
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v", nil))
		_, err = v2.Set(ctx, "precious")
		coordtest.WantErr(w.T, err, coord.ErrKind)
		w.must(h.Release())
		w.Collect()
		if st, err := w.stat("/x/v"); err == nil {
			w.T.Errorf("still there: %+v %s", st, w.dump("/x"))
		}
	})
}

// The pin of a write that is taken back can go before its client deletes it: the write is undone all
// the same.
func TestDirectories_AWriteIsTakenBackWithoutItsPin(t *testing.T) {
	ctx := context.Background()
	onEachCollecting(t, func(w *world) {
		struck := false
		a, c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
			for _, op := range call.Ops {
				if op.Kind == backend.OpDelete && op.Path == w.Path("/x/v"+pin) {
					struck = true
					_, err := call.Session.Commit(ctx, op)
					return err
				}
			}
			return nil
		}}), w.Open("b", nil)
		w.commit(backend.Create(w.Path("/x"), nil, backend.Persistent), backend.Create(w.Path("/x/v"), []byte("old"), backend.Persistent))
		w.commit(backend.Create(w.Path("/x/v/child"), nil, backend.Persistent))
		v := coord.NewValue(a, "/x/v", textValue)
		_, err := v.Get(ctx) // it needs a pin
		w.must(err)
		w.commit(backend.Delete(w.Path("/x/v/child"), backend.AnyVersion), backend.Delete(w.Path("/x/v"), backend.AnyVersion))
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v", nil))
		_, err = v.Set(ctx, "precious")
		coordtest.WantErr(w.T, err, coord.ErrKind)
		w.must(h.Release())
		if got, err := coord.NewValue(w.Open("fresh", nil), "/x/v", textValue).Get(ctx); err == nil {
			w.T.Errorf("a refused Set has set %+v\n%s", got, w.dump("/x"))
		}
		if s := w.Session("features"); struck != s.Features().Has(backend.Containers) {
			w.T.Errorf("a pin was deleted: %v", struck)
		}
	})
}

// A SetOp makes no directory that its transaction creates, and takes neither a condition on its node
// nor another SetOp for what keeps it from the pin.
func TestDirectories_SetOpBesideOtherParts(t *testing.T) {
	ctx := context.Background()
	onEachCollecting(t, func(w *world) {
		c := w.Open("a", nil)
		v, missing, twice := coord.NewValue(c, "/x/v", textValue), coord.NewValue(c, "/x/missing", textValue), coord.NewValue(c, "/y/twice", textValue)
		_, err := coord.NewTxn(c).Create("/x", []byte("data"), backend.Persistent).Add(v.SetOp("precious")).Commit(ctx)
		w.must(err)
		_, err = coord.NewTxn(c).If(coord.IfMissing("/x/missing")).Add(missing.SetOp("precious")).Commit(ctx)
		w.must(err)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/y/twice/lock", nil)))
		_, err = coord.NewTxn(c).Add(twice.SetOp("first"), twice.SetOp("precious")).Commit(ctx)
		w.must(err)
		w.Collect()
		for _, v := range []*coord.Value[string]{v, missing, twice} {
			if got, err := v.Get(ctx); err != nil || got.Value != "precious" {
				w.T.Errorf("%+v, %v", got, err)
			}
		}
	})
}

// A value was deleted, and created again as a container, since its client has examined it. Another client
// writes between the write of this client and that of the pin, which is needed all the same.
func TestDirectories_APinIsMadeBesideAnotherWrite(t *testing.T) {
	ctx := context.Background()
	onEachCollecting(t, func(w *world) {
		s := w.Session("earlier")
		if !s.Features().Has(backend.Containers) {
			w.T.Skip("no containers")
		}
		var before coordtest.Nth
		v := coord.NewValue(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/x", textValue)
		_, err := v.Set(ctx, "first")
		w.must(err)
		w.commit(backend.Delete(w.Path("/x"), backend.AnyVersion))
		w.commit(backend.Create(w.Path("/x"), nil, backend.Container))
		w.commit(backend.Create(w.Path("/x/child"), nil, backend.Persistent), backend.SetData(w.Path("/x"), []byte("old"), 0))
		before.Arm(1, func(c backendtest.Call) bool {
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpCreate && op.Path == w.Path("/x"+pin) })
		}, func(context.Context, backendtest.Call, error) error {
			w.commit(backend.SetData(w.Path("/x"), []byte("precious"), backend.AnyVersion))
			return nil
		})
		_, err = v.Set(ctx, "second")
		w.must(err)
		if !before.Idle() {
			w.T.Error("no pin was made")
		}
		w.commit(backend.Delete(w.Path("/x/child"), backend.AnyVersion))
		w.Collect()
		if got, err := v.Get(ctx); err != nil || got.Value != "precious" {
			w.T.Errorf("%+v %v", got, err)
		}
		s.Close()
	})
}
