package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// stat reads a node below the world's root, from a session of its own.
func (w *world) stat(path string) (backend.Stat, error) {
	w.T.Helper()
	s := w.Session("stat")
	if err := s.Sync(context.Background(), w.Path(path)); err != nil {
		w.T.Fatal(err)
	}
	stat, err := s.Exists(context.Background(), w.Path(path), nil)
	stat.AsOf = 0 // of the read, not of the node
	return stat, err
}

func mustCommit(t *testing.T, x *coord.Txn) []coord.TxnResult {
	t.Helper()
	res, err := x.Commit(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func wantConflict(t *testing.T, err error, op string, index int, path string, reason error) {
	t.Helper()
	coordtest.WantErr(t, err, coord.ErrConflict, reason)
	var c *coord.ConflictError
	if !errors.As(err, &c) || c.Op != op || c.Index != index || c.Path != path {
		t.Errorf("got %#v, want %s %d %s", err, op, index, path)
	}
}

// txnTests are tests of Txn on each service.
type txnTests struct{ Services }

func (on txnTests) ATransactionIsAppliedWholeOrNotAtAll(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		data := []byte("two")
		txn := coord.NewTxn(c).Create("/x", []byte("one"), backend.Persistent).Set("/x", data).
			Create("/x/y", nil, backend.Ephemeral).Delete("/x/y")
		copy(data, "bad")
		res := mustCommit(w.T, txn)
		stat, err := w.stat("/x")
		if err != nil {
			w.T.Fatal(err)
		}
		for i, want := range []coord.TxnResult{
			{Path: w.Path("/x"), Version: 0}, {Path: w.Path("/x"), Version: 1},
			{Path: w.Path("/x/y"), Version: 0}, {Path: w.Path("/x/y"), Version: -1},
		} {
			want.Zxid = stat.Czxid
			if len(res) != 4 || res[i] != want {
				w.T.Fatalf("result %d of %+v, want %+v", i, res, want)
			}
		}
		if got, _, _ := w.Session("x").Get(context.Background(), w.Path("/x"), nil); string(got) != "two" {
			w.T.Errorf("the data is %q", got)
		}
		// The same Txn can be committed again, and is refused as a whole.
		_, err = txn.Commit(context.Background())
		wantConflict(w.T, err, "create", 0, w.Path("/x"), coord.ErrExists)
		if !strings.Contains(err.Error(), w.Path("/x")) {
			w.T.Error(err)
		}
		if again, _ := w.stat("/x"); again != stat {
			w.T.Errorf("%+v after a refusal, before %+v", again, stat)
		}
	})
}

func (on txnTests) CreateAllMakesTheMissingParents(t *testing.T) {
	on.each(t, func(w *world) {
		c, ctx := w.Open("a", nil), context.Background()
		res := mustCommit(w.T, coord.NewTxn(c).
			CreateAll("/a/b/c", []byte("one"), backend.Persistent).
			CreateAll("/a/b/c/d", nil, backend.Ephemeral).
			CreateAll("/top", nil, backend.Persistent))
		for i, want := range []string{"/a/b/c", "/a/b/c/d", "/top"} {
			stat, err := w.stat(want)
			if err != nil || len(res) != 3 || res[i].Path != w.Path(want) || res[i].Zxid != stat.Czxid {
				w.T.Errorf("%s: %+v, %v; results %+v", want, stat, err, res)
			}
		}
		if stat, err := w.stat("/a/b"); err != nil || stat.Czxid >= res[0].Zxid {
			w.T.Errorf("the parent: %+v, %v", stat, err)
		}

		// The node itself must not exist, and nothing of a refused transaction stays but parents.
		_, err := coord.NewTxn(c).Set("/top", []byte("two")).CreateAll("/a/b/c", nil, backend.Persistent).Commit(ctx)
		wantConflict(w.T, err, "create", 1, w.Path("/a/b/c"), coord.ErrExists)
		_, err = coord.NewTxn(c).CreateAll("/x/y", nil, backend.Persistent).Set("/none", nil).Commit(ctx)
		wantConflict(w.T, err, "set", 1, w.Path("/none"), coord.ErrNotFound)
		if _, err := w.stat("/x/y"); !errors.Is(err, backend.ErrNotFound) {
			w.T.Errorf("the node of a refused transaction: %v", err)
		}
		_, err = coord.NewTxn(c).CreateAll("/a/b/c/d/e", nil, backend.Persistent).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrNoChildren)
		_, err = coord.NewTxn(c).CreateAll("no path", nil, backend.Persistent).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
	})
}

func (on txnTests) EachConditionIsCheckedAndNamed(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		ctx := context.Background()
		mustCommit(w.T, coord.NewTxn(c).Create("/x", nil, backend.Persistent).Create("/x/child", nil, backend.Persistent))
		mustCommit(w.T, coord.NewTxn(c).Set("/x", nil))
		mustCommit(w.T, coord.NewTxn(c).If(coord.IfVersion("/x", 1), coord.IfExists("/x/child"), coord.IfMissing("/y")).Set("/x", nil))
		before, _ := w.stat("/x")
		for _, tt := range []struct {
			name   string
			txn    *coord.Txn
			op     string
			index  int
			path   string
			reason error
		}{
			{"another version", coord.NewTxn(c).If(coord.IfExists("/x"), coord.IfVersion("/x", 1)), "version", 1, "/x", coord.ErrBadVersion},
			{"no node with a version", coord.NewTxn(c).If(coord.IfVersion("/y", 0)), "version", 0, "/y", coord.ErrNotFound},
			{"no node", coord.NewTxn(c).If(coord.IfExists("/y")), "exists", 0, "/y", coord.ErrNotFound},
			{"a node", coord.NewTxn(c).If(coord.IfMissing("/z"), coord.IfMissing("/x/child")), "missing", 1, "/x/child", coord.ErrExists},
			{"no parent", coord.NewTxn(c).If(coord.IfMissing("/y/z")), "missing", 0, "/y/z", coord.ErrNotFound},
			{"children", coord.NewTxn(c).If(coord.IfMissing("/z")).Set("/x", nil).Delete("/x"), "delete", 1, "/x", coord.ErrNotEmpty},
			{"nothing to set", coord.NewTxn(c).Set("/x", nil).Set("/y", nil), "set", 1, "/y", coord.ErrNotFound},
			{"an ephemeral parent", coord.NewTxn(c).Create("/e", nil, backend.Ephemeral).Create("/e/f", nil, backend.Persistent),
				"create", 1, "/e/f", coord.ErrNoChildren},
		} {
			_, err := tt.txn.Set("/x", nil).Commit(ctx)
			wantConflict(w.T, err, tt.op, tt.index, w.Path(tt.path), tt.reason)
			if w.T.Failed() {
				w.T.Fatal(tt.name)
			}
		}
		if after, _ := w.stat("/x"); after != before {
			w.T.Errorf("%+v after refusals, before %+v", after, before)
		}
	})
}

// IfMissing leaves no node. On ZooKeeper it has the effects on the parent that
// backend.Absent states, elsewhere none.
func (on txnTests) IfMissingLeavesNoNode(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		ctx := context.Background()
		mustCommit(w.T, coord.NewTxn(c).Create("/d", nil, backend.Persistent).Create("/x", nil, backend.Persistent))
		s := w.Session("s")
		create := func() string {
			res, err := s.Commit(ctx, backend.Create(w.Path("/d/n-"), nil, backend.PersistentSequential))
			if err != nil {
				w.T.Fatal(err)
			}
			return res[0].Path
		}
		first := create()
		before, _ := w.stat("/d")
		node, dir, created := backend.NewWatch(), backend.NewWatch(), w.Path("/d/m")
		if _, err := s.Exists(ctx, created, node); !errors.Is(err, coord.ErrNotFound) {
			w.T.Fatal(err)
		}
		if _, _, err := s.Children(ctx, w.Path("/d"), dir); err != nil {
			w.T.Fatal(err)
		}
		mustCommit(w.T, coord.NewTxn(c).If(coord.IfMissing("/d/m")).Set("/x", nil))
		after, _ := w.stat("/d")
		if _, err := w.stat("/d/m"); !errors.Is(err, coord.ErrNotFound) {
			w.T.Errorf("the node is there: %v", err)
		}
		changes, number := int32(2), "2"
		writes := !w.Fake && !w.Spares // ZooKeeper makes the node and deletes it again
		if !writes {
			changes, number = 0, "1"
		}
		if after.Cversion != before.Cversion+changes || after.NumChildren != before.NumChildren || after.Version != before.Version {
			w.T.Errorf("parent %+v, before %+v", after, before)
		}
		if !writes && (node.Kind() != 0 || dir.Kind() != 0) {
			w.T.Error("a watch has fired, and nothing has changed")
		}
		if second := create(); !w.Revisions && (first != w.Path("/d/n-0000000000") || second != w.Path("/d/n-000000000"+number)) {
			w.T.Errorf("%s, then %s", first, second)
		}
		if writes {
			<-node.Fired()
		}
		<-dir.Fired()
		// A refused transaction leaves no effect.
		before, _ = w.stat("/d")
		_, err := coord.NewTxn(c).If(coord.IfMissing("/d/m"), coord.IfExists("/nowhere")).Set("/x", nil).Commit(ctx)
		wantConflict(w.T, err, "exists", 1, w.Path("/nowhere"), coord.ErrNotFound)
		if after, _ := w.stat("/d"); after != before {
			w.T.Errorf("parent %+v after a refusal, before %+v", after, before)
		}
	})
}

// staleWrite checks that a write under a hold that has ended is refused, over the
// hold's own client and over another one.
func (w *world) staleWrite(c *coord.Client, h *coord.Hold) {
	w.T.Helper()
	before, err := w.stat("/r")
	if err != nil {
		w.T.Fatal(err)
	}
	for _, c := range []*coord.Client{c, w.Open("other", nil)} {
		_, err := coord.NewTxn(c).Under(h.Guard()).If(coord.IfExists("/r")).Set("/r", []byte("stale")).Commit(context.Background())
		wantConflict(w.T, err, "guard", 0, h.Path(), coord.ErrNotFound)
	}
	if after, _ := w.stat("/r"); after != before {
		w.T.Errorf("%+v after a stale write, before %+v", after, before)
	}
}

func (on txnTests) AStaleHolderWritesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, c *coord.Client, m *coord.Mutex, h *coord.Hold){
		"after expiry": func(w *world, _ *coord.Client, _ *coord.Mutex, h *coord.Hold) { w.Link("a").Expire(h.Session()) },
		"after a revocation by force": func(w *world, _ *coord.Client, _ *coord.Mutex, _ *coord.Hold) {
			m := coord.NewMutex(w.Open("revoker", nil), "/l", nil)
			if err := m.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: time.Millisecond}); err != nil {
				w.T.Fatal(err)
			}
		},
		"after an outsider's delete": func(w *world, _ *coord.Client, _ *coord.Mutex, h *coord.Hold) {
			if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		},
		"after its release": func(w *world, _ *coord.Client, _ *coord.Mutex, h *coord.Hold) { coordtest.MustRelease(w.T, h) },
		"after a hand-over inside the process": func(w *world, c *coord.Client, m *coord.Mutex, h *coord.Hold) {
			waiter := w.Waiting(context.Background(), m)
			coordtest.MustRelease(w.T, h)
			next := waiter.Hold()
			mustCommit(w.T, coord.NewTxn(c).Under(next.Guard()).Set("/r", []byte("next")))
			w.T.Cleanup(func() { next.Release() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				c := w.Open("a", nil)
				mustCommit(w.T, coord.NewTxn(c).Create("/r", nil, backend.Persistent))
				m := coord.NewMutex(c, "/l", nil)
				h := coordtest.MustLock(w.T, m)
				mustCommit(w.T, coord.NewTxn(w.Open("other", nil)).Under(h.Guard()).Set("/r", []byte("while held")))
				end(w, c, m, h)
				w.staleWrite(c, h)
			})
		})
	}
}

// A lost reply and a lost request are resolved, and nothing is applied twice.
func (on txnTests) ATransactionIsAppliedOnce(t *testing.T) {
	for name, hook := range map[string]func(*coordtest.Nth) *backendtest.Hooks{
		"its reply is lost":   func(x *coordtest.Nth) *backendtest.Hooks { return &backendtest.Hooks{After: x.After} },
		"its request is lost": func(x *coordtest.Nth) *backendtest.Hooks { return &backendtest.Hooks{Before: x.Before} },
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var x coordtest.Nth
				c := w.Open("a", hook(&x))
				mustCommit(w.T, coord.NewTxn(c).Create("/x", nil, backend.Persistent))
				x.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && len(c.Ops) > 2 }, coordtest.Lose)
				res := mustCommit(w.T, coord.NewTxn(c).Set("/x", []byte("1")).Set("/x", []byte("2")).Create("/y", nil, backend.Persistent))
				stat, err := w.stat("/x")
				if err != nil || stat.Version != 2 {
					w.T.Fatalf("%+v, %v", stat, err)
				}
				want := fmt.Sprint([]coord.TxnResult{{Path: w.Path("/x"), Zxid: stat.Mzxid, Version: 1}, {Path: w.Path("/x"), Zxid: stat.Mzxid, Version: 2}, {Path: w.Path("/y"), Zxid: stat.Mzxid}})
				if fmt.Sprint(res) != want {
					w.T.Errorf("results %+v, want %v", res, want)
				}
			})
		})
	}
}

// A holder writes its state, and puts the items that follow from it, in one transaction and
// only while it holds the lock.
func (on txnTests) AValueAndAnItemAreWrittenTogetherUnderAGuard(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx := context.Background()
		c := w.Open("a", nil)
		v := coord.NewValue[int](c, "/state/step", nil)
		q := coord.NewQueue[string](c, "/jobs", nil)
		h := coordtest.MustLock(t, coord.NewMutex(c, "/l", nil))
		for i := range 3 {
			results, err := coord.NewTxn(c).Under(h.Guard()).Add(v.SetOp(i), q.PutOp(fmt.Sprint("first of ", i)), q.PutOp(fmt.Sprint("second of ", i))).Commit(ctx)
			if err != nil || len(results) != 3 || results[0].Path != w.Path("/state/step") || results[0].Zxid != results[2].Zxid {
				t.Fatalf("%+v, %v", results, err)
			}
		}
		coordtest.MustRelease(t, h)
		_, err := coord.NewTxn(c).Under(h.Guard()).Add(v.SetOp(9), q.PutOp("late")).Commit(ctx)
		coordtest.WantErr(t, err, coord.ErrConflict, coord.ErrNotFound)
		if got := getValue(t, v); got.Value != 2 {
			t.Errorf("the value is %d", got.Value)
		}
		for i := range 6 {
			item, err := q.TryTake(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint([]string{"first", "second"}[i%2], " of ", i/2); item.Value != want {
				t.Errorf("item %d is %q, want %q", i, item.Value, want)
			}
			if err := item.Ack(); err != nil {
				t.Error(err)
			}
		}
		if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			t.Errorf("one more: %v", err)
		}
	})
}
