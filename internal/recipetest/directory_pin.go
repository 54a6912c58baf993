package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

var textValue = &coord.ValueOptions[string]{Codec: coord.Text()}

// directoryPinTests are tests of Directory on each service.
type directoryPinTests struct{ Services }

// A SetOp in a directory pins it, also beside a condition or a Set on the same path.
func (on directoryPinTests) SetOpBesideAConditionIsPinned(t *testing.T) {
	ctx := context.Background()
	for _, x := range []string{"exists", "version", "afterset"} {
		t.Run(x, func(t *testing.T) {
			on.eachCollecting(t, func(w *world) {
				c := w.Open("a", nil)
				empty := w.directory(c, "/x/v")
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
				empty()
				w.Collect()
				if got, err := v.Get(ctx); err != nil || got.Value != "precious" {
					w.T.Errorf("%+v %v", got, err)
				}
			})
		})
	}
}

// A SetOp at the path of a lock in use is refused, also beside a condition.
func (on directoryPinTests) SetOpIsRefusedAtALock(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
		c := w.Open("a", nil)
		coordtest.MustLock(w.T, coord.NewMutex(c, "/x/v", nil))
		v := coord.NewValue(w.Open("b", nil), "/x/v", textValue)
		_, err := coord.NewTxn(w.Open("b", nil)).If(coord.IfExists("/x/v")).Add(v.SetOp("precious")).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrKind)
	})
}

// A client that has not read the value itself, which an earlier version of this library put into a
// container, pins it with its CompareAndSet.
func (on directoryPinTests) CompareAndSetByAnotherClientIsPinned(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
		s := w.Session("earlier")
		if !s.Features().Has(backend.Containers) {
			w.T.Skip("no containers")
		}
		w.container("/x", "/x/child")
		w.commit(backend.SetData(w.Path("/x"), []byte("old"), 0))
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
func (on directoryPinTests) ABarrierThatIsSetAgainIsPinned(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
		s := w.Session("earlier")
		if !s.Features().Has(backend.Containers) {
			w.T.Skip("no containers")
		}
		c := w.Open("a", nil)
		empty := w.directory(c, "/x/b")
		b := coord.NewBarrier(c, "/x/b", nil)
		w.must(b.Set(ctx))
		w.commit(backend.Delete(w.Path("/x/b"+pin), backend.AnyVersion))
		w.must(b.Set(ctx))
		empty()
		w.Collect()
		if set, err := barrierIsSet(w.Open("b", nil), "/x/b"); !set || err != nil {
			w.T.Errorf("%v %v", set, err)
		}
		s.Close()
	})
}

// A client that remembers an unpinned value writes to a node that is another recipe's by now.
func (on directoryPinTests) AWriteThatIsTakenBackLeavesNoPin(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
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
func (on directoryPinTests) AWriteIsTakenBackWithoutItsPin(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
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
func (on directoryPinTests) SetOpBesideOtherParts(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
		c := w.Open("a", nil)
		v, missing, twice := coord.NewValue(c, "/x/v", textValue), coord.NewValue(c, "/x/missing", textValue), coord.NewValue(c, "/y/twice", textValue)
		_, err := coord.NewTxn(c).Create("/x", []byte("data"), backend.Persistent).Add(v.SetOp("precious")).Commit(ctx)
		w.must(err)
		_, err = coord.NewTxn(c).If(coord.IfMissing("/x/missing")).Add(missing.SetOp("precious")).Commit(ctx)
		w.must(err)
		empty := w.directory(c, "/y/twice")
		_, err = coord.NewTxn(c).Add(twice.SetOp("first"), twice.SetOp("precious")).Commit(ctx)
		w.must(err)
		empty()
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
func (on directoryPinTests) APinIsMadeBesideAnotherWrite(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
		s := w.Session("earlier")
		if !s.Features().Has(backend.Containers) {
			w.T.Skip("no containers")
		}
		var before coordtest.Nth
		v := coord.NewValue(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/x", textValue)
		_, err := v.Set(ctx, "first")
		w.must(err)
		w.commit(backend.Delete(w.Path("/x"), backend.AnyVersion))
		w.container("/x", "/x/child")
		w.commit(backend.SetData(w.Path("/x"), []byte("old"), 0))
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

// setPlain is a recipe-free write of a node that exists.
func setPlain(c *coord.Client, path, data string) error {
	_, err := coord.NewTxn(c).Set(path, []byte(data)).Commit(context.Background())
	return err
}

// The reply of a write into a container is lost, and the node is written by another client before the
// first one looks: the node gets its pin all the same.
func (on directoryPinTests) ALostReplyBeforeAnotherWriteIsPinned(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
		var lose coordtest.Nth
		a, b := w.Open("a", &backendtest.Hooks{After: lose.After}), w.Open("b", nil)
		v, other := coord.NewValue(a, "/x/v", textValue), coord.NewValue(b, "/x/v", textValue)
		w.commit(backend.Create(w.Path("/x"), nil, backend.Persistent)) // not collected while it is empty
		old, err := v.Set(ctx, "old")
		w.must(err)
		w.must(other.Delete(ctx, old))
		// A client of an earlier version, whose containers have had no child, is about to use a lock. Only ZooKeeper
		// and memory keep such a container.
		keeps := w.Fake || !w.Spares
		if keeps {
			w.commit(backend.Create(w.Path("/x/v"), nil, backend.Container))
		} else {
			w.container("/x/v", "/x/v/child")
		}
		lose.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == w.Path("/x/v") }, func(context.Context, backendtest.Call, error) error {
			w.must(setPlain(w.Open("c", nil), "/x/v", "precious"))
			return backend.ErrUncertain
		})
		_, err = v.Set(ctx, "7")
		w.must(err)
		if keeps {
			w.commit(backend.Create(w.Path("/x/v/child"), nil, backend.Persistent))
		}
		w.commit(backend.Delete(w.Path("/x/v/child"), backend.AnyVersion))
		w.Collect()
		if got, err := other.Get(ctx); err != nil || got.Value != "precious" {
			w.T.Errorf("stored %+v, %v\n%s", got, err, w.dump("/x"))
		}
	})
}

// What a write into a directory returns can be replaced, also if its reply was lost, and by another
// client that has known the directory.
func (on directoryPinTests) AValueIsReplacedByWhatItsWriteHasReturned(t *testing.T) {
	ctx := context.Background()
	on.each(t, func(w *world) {
		var lose coordtest.Nth
		a, b := w.Open("a", &backendtest.Hooks{After: lose.After}), w.Open("b", nil)
		v, other := coord.NewValue(a, "/x/v", textValue), coord.NewValue(b, "/x/v", textValue)
		coordtest.MustLock(w.T, coord.NewMutex(a, "/x/v/lock", nil))
		_, err := other.Get(ctx)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		lose.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpSetData) }, coordtest.Lose)
		got, err := v.Set(ctx, "one")
		w.must(err)
		if !lose.Idle() {
			w.T.Error("no reply was lost")
		}
		got, err = v.CompareAndSet(ctx, got, "two")
		w.must(err)
		got, err = other.CompareAndSet(ctx, got, "three")
		w.must(err)
		if now, err := v.Get(ctx); err != nil || now != got {
			w.T.Errorf("stored %+v, %v, want %+v", now, err, got)
		}
	})
}

// directory uses a lock below path, so that path is a directory of c. It is empty already in a store under
// fake time, which collects nothing before that time goes on, and after a call of the result on a service,
// which could collect it at any time.
func (w *world) directory(c *coord.Client, path string) (empty func()) {
	w.T.Helper()
	h := coordtest.MustLock(w.T, coord.NewMutex(c, path+"/lock", nil))
	if w.Fake {
		coordtest.MustRelease(w.T, h)
		return func() {}
	}
	return func() { coordtest.MustRelease(w.T, h) }
}

// container makes a container with a child. The service can collect it before it has the child.
func (w *world) container(path, child string) {
	w.T.Helper()
	s := w.Session("outsider")
	for {
		_, err := s.Commit(context.Background(), backend.Create(w.Path(path), nil, backend.Container))
		w.must(err)
		if _, err = s.Commit(context.Background(), backend.Create(w.Path(child), nil, backend.Persistent)); !errors.Is(err, backend.ErrNotFound) {
			w.must(err)
			return
		}
	}
}

// A write that may have gone into a container, which is gone when the client looks, is not
// acknowledged.
func (on directoryPinTests) AWriteWhoseNodeIsGoneIsUncertain(t *testing.T) {
	ctx := context.Background()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("reply lost ", lost), func(t *testing.T) {
			on.eachCollecting(t, func(w *world) {
				if s := w.Session("features"); !s.Features().Has(backend.Containers) {
					w.T.Skip("no containers")
				}
				var after coordtest.Nth
				a, b := w.Open("a", &backendtest.Hooks{After: after.After}), w.Open("b", nil)
				v := coord.NewValue(a, "/x/v", textValue)
				w.commit(backend.Create(w.Path("/x"), nil, backend.Persistent)) // not collected while it is empty
				old, err := v.Set(ctx, "old")
				w.must(err)
				w.must(coord.NewValue(b, "/x/v", textValue).Delete(ctx, old))
				w.container("/x/v", "/x/v/child")
				after.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == w.Path("/x/v") }, func(_ context.Context, _ backendtest.Call, err error) error {
					w.must(err)
					w.commit(backend.Delete(w.Path("/x/v/child"), backend.AnyVersion))
					w.Collect()
					if lost {
						return backend.ErrUncertain
					}
					return nil
				})
				_, err = v.Set(ctx, "precious")
				coordtest.WantErr(w.T, err, coord.ErrUncertain)
			})
		})
	}
}

// A client that may not read a node sets no value in a container either: it pins the node, or is
// refused. A node that was created as a value it may set.
func (on directoryPinTests) AreNotSetBlindly(t *testing.T) {
	ctx := context.Background()
	for _, x := range []struct {
		name      string
		directory bool
		create    bool // the client may create nodes
		set       bool
	}{
		{"in a directory", true, true, true},
		{"in a directory, creations denied", true, false, false},
		{"a value", false, true, true},
		{"a value, creations denied", false, false, true},
	} {
		for _, way := range []string{"Value.Set", "Txn.Set"} {
			t.Run(way+" "+x.name, func(t *testing.T) {
				on.eachCollecting(t, func(w *world) {
					if s := w.Session("features"); !s.Features().Has(backend.Containers) {
						w.T.Skip("no containers")
					}
					b := w.Open("b", nil)
					a := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
						denied := &backend.Error{Op: c.Op, Path: c.Path, Index: -1, Err: backend.ErrDenied}
						if c.Path == w.Path("/x/v") && (c.Op == "get" || c.Op == "children") {
							return denied
						}
						for i, op := range c.Ops {
							if op.Path == w.Path("/x/v"+pin) && (op.Kind == backend.OpCheck || !x.create) {
								denied.Path, denied.Index = op.Path, i
								return denied
							}
						}
						return nil
					}})
					empty := func() {}
					if x.directory {
						empty = w.directory(b, "/x/v")
					} else {
						_, err := coord.NewValue(b, "/x/v", textValue).Set(ctx, "old")
						w.must(err)
					}
					var err error
					if way == "Txn.Set" {
						err = setPlain(a, "/x/v", "precious")
					} else {
						_, err = coord.NewValue(a, "/x/v", textValue).Set(ctx, "precious")
					}
					if !x.set {
						coordtest.WantErr(w.T, err, coord.ErrDenied)
						return
					}
					w.must(err)
					empty()
					w.Collect()
					if got, err := coord.NewValue(b, "/x/v", textValue).Get(ctx); err != nil || got.Value != "precious" {
						w.T.Errorf("stored %+v, %v\n%s", got, err, w.dump("/x"))
					}
				})
			})
		}
	}
}

// A plain Set in a directory of the library lasts, as a Value does, and one at the path of another
// recipe is refused. A plain node with nodes below it gets no pin.
func (on directoryPinTests) PlainSet(t *testing.T) {
	ctx := context.Background()
	on.eachCollecting(t, func(w *world) {
		a, b := w.Open("a", nil), w.Open("b", nil)
		wants := func(path, want string) {
			w.T.Helper()
			w.Collect()
			if got, err := coord.NewValue(w.Open("fresh", nil), path, textValue).Get(ctx); err != nil || got.Value != want {
				w.T.Errorf("%s: %+v, %v, want %q\n%s", path, got, err, want, w.dump("/"))
			}
		}
		empty := w.directory(b, "/x/v")
		w.must(setPlain(a, "/x/v", "precious"))
		empty()
		wants("/x/v", "precious")
		w.must(setPlain(a, "/x/v", "again"))
		wants("/x/v", "again")
		w.must(setPlain(b, "/x/v", "third"))
		wants("/x/v", "third")

		for path, use := range map[string]func(path string){
			"/mutex":   func(path string) { coordtest.MustLock(w.T, coord.NewMutex(b, path, nil)) },
			"/idle":    func(path string) { coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(b, path, nil))) },
			"/queue":   func(path string) { _, err := coord.NewQueue[int](b, path, nil).Put(ctx, 1); w.must(err) },
			"/barrier": func(path string) { w.must(coord.NewBarrier(b, path, nil).Set(ctx)) },
		} {
			use(path)
			before := w.dump(path)
			_, err := coord.NewTxn(a).Create("/beside", nil, backend.Persistent).Set(path, []byte("precious")).Commit(ctx)
			after := w.dump(path)
			collected := path == "/idle" && after == "" // the service does that when it likes
			if !collected || !errors.Is(err, coord.ErrNotFound) {
				coordtest.WantErr(w.T, err, coord.ErrKind)
			}
			if _, err := w.stat("/beside"); err == nil {
				w.T.Errorf("%s: a part of the refused transaction is applied", path)
			}
			if after != before && !collected {
				w.T.Errorf("%s was\n%s and is\n%s", path, before, after)
			}
		}

		_, err := coord.NewTxn(a).Create("/p", []byte("1"), backend.Persistent).Create("/p/q", nil, backend.Persistent).Commit(ctx)
		w.must(err)
		w.must(setPlain(b, "/p", "2"))
		_, err = coord.NewTxn(a).Delete("/p/q").Delete("/p").Commit(ctx)
		w.must(err)
		w.must(setPlain(a, "/x/v", "last"))
		_, err = coord.NewTxn(a).Delete("/x/v").Commit(ctx)
		w.must(err)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(b, "/x/v/lock", nil)))
		w.Collect()
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(b, "/x/v/lock", nil)))
		if w.Fake {
			w.commit(backend.Delete(w.Path("/x/v/lock"), backend.AnyVersion))
			_, err = coord.NewTxn(a).Set("/x/v", []byte("x")).Delete("/x/v").Commit(ctx)
			w.must(err)
		}
	})
}

// What a client remembers of a plain node is not true of the node that was made in its place: what
// it sets there lasts, or is refused.
func (on directoryPinTests) PlainSetOfAnotherNode(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []string{"a directory", "a lock", "a directory that goes"} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, ", reply lost ", lost), func(t *testing.T) {
				on.eachCollecting(t, func(w *world) {
					if s := w.Session("features"); kind == "a directory that goes" && !s.Features().Has(backend.Containers) {
						w.T.Skip("no containers")
					}
					var after coordtest.Nth
					a, b := w.Open("a", &backendtest.Hooks{After: after.After}), w.Open("b", nil)
					_, err := coord.NewTxn(b).Create("/v", []byte("old"), backend.Persistent).Commit(ctx)
					w.must(err)
					w.must(setPlain(a, "/v", "known"))
					_, err = coord.NewTxn(b).Delete("/v").Commit(ctx)
					w.must(err)
					path := "/v/lock"
					if kind == "a lock" {
						path = "/v"
					}
					h := coordtest.MustLock(w.T, coord.NewMutex(b, path, nil))
					after.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == w.Path("/v") }, func(_ context.Context, _ backendtest.Call, err error) error {
						w.must(err)
						if kind == "a directory that goes" {
							w.must(h.Release())
							w.Collect()
						}
						if lost {
							return backend.ErrUncertain
						}
						return nil
					})
					res, err := coord.NewTxn(a).Set("/v", []byte("precious")).Commit(ctx)
					if len(res) != 1 {
						w.T.Errorf("results %+v", res)
					}
					switch kind {
					case "a lock":
						coordtest.WantErr(w.T, err, coord.ErrKind)
						w.must(h.Release())
						coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(w.Open("fresh", nil), "/v", nil)))
						return
					case "a directory that goes":
						coordtest.WantErr(w.T, err, coord.ErrUncertain)
						return
					}
					w.must(err)
					w.must(h.Release())
					w.Collect()
					if got, err := coord.NewValue(b, "/v", textValue).Get(ctx); err != nil || got.Value != "precious" {
						w.T.Errorf("stored %+v, %v\n%s", got, err, w.dump("/v"))
					}
				})
			})
		}
	}
}

// A plain Set of a node that the client knows costs one request, and the first one a read beside it.
func (on directoryPinTests) APlainSetCostsOneRequest(t *testing.T) {
	on.each(t, func(w *world) {
		var requests atomic.Int64
		b := w.Open("b", nil)
		a := w.Open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { requests.Add(1); return nil }})
		_, err := coord.NewTxn(b).Create("/v", []byte("data"), backend.Persistent).Create("/empty", nil, backend.Persistent).Create("/w", nil, backend.Persistent).Commit(context.Background())
		w.must(err)
		w.must(setPlain(a, "/w", "")) // it makes the journal
		for _, path := range []string{"/v", "/empty"} {
			for i, want := range []int64{2, 1, 1} {
				requests.Store(0)
				w.must(setPlain(a, path, "more"))
				if n := requests.Load(); n != want {
					w.T.Errorf("%s, call %d: %d requests, want %d", path, i, n, want)
				}
			}
		}
	})
}
