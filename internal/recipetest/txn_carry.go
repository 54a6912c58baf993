package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/carry"
	"github.com/go-coord/coord/internal/coordtest"
)

// carrier is the transaction of another system that carries the Commit of a Txn: a test applies its requests
// later, or drops them.
type carrier struct {
	w      *world
	ops    []backend.Op
	parts  []carry.Part
	stages int
	err    error // of each stage
}

// ctx returns a context for the Commit.
func (x *carrier) ctx() context.Context {
	return carry.With(context.Background(), func(_ context.Context, s backend.Session, ops []backend.Op, parts []carry.Part) error {
		if len(parts) != len(ops) {
			x.w.T.Errorf("%d parts of %d requests", len(parts), len(ops))
		}
		if s == nil {
			x.w.T.Error("no session")
		}
		x.stages++
		x.ops, x.parts = ops, parts
		return x.err
	})
}

// apply commits the requests on a session of its own.
func (x *carrier) apply() error {
	x.w.T.Helper()
	if len(x.ops) == 0 {
		x.w.T.Fatal("nothing was staged")
	}
	_, err := x.w.Session("carrier").Commit(context.Background(), x.ops...)
	return err
}

func (on txnTests) ACarriedTransactionIsAppliedWithItsCarrier(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, x := context.Background(), &carrier{w: w}
		c := w.Open("a", nil)
		v := coord.NewValue[int](c, "/state/step", nil)
		q := coord.NewQueue[int](c, "/jobs", nil)
		mustCommit(w.T, coord.NewTxn(c).Create("/x", nil, backend.Persistent))
		res, err := coord.NewTxn(c).Set("/x", []byte("one")).CreateAll("/d/e", nil, backend.Persistent).
			Add(v.SetOp(7), q.PutOp(8)).Delete("/d/e").Commit(x.ctx())
		if err != nil || x.stages != 1 {
			w.T.Fatalf("%v after %d stages", err, x.stages)
		}
		for i, want := range []coord.TxnResult{
			{Path: w.Path("/x"), Version: -1}, {Path: w.Path("/d/e")}, {Path: w.Path("/state/step")}, {}, {Path: w.Path("/d/e"), Version: -1},
		} {
			if len(res) != 5 || res[i] != want {
				w.T.Fatalf("result %d of %+v, want %+v", i, res, want)
			}
		}
		// The directories are there, and nothing of the transaction.
		for _, dir := range []string{"/d", "/state", "/jobs/items"} {
			if _, err := w.stat(dir); err != nil {
				w.T.Errorf("%s: %v", dir, err)
			}
		}
		if n, err := q.Len(ctx); n != 0 || err != nil {
			w.T.Errorf("%d items, %v", n, err)
		}
		if got, err := v.Get(ctx); !errors.Is(err, coord.ErrNotFound) {
			w.T.Errorf("the value is %+v, %v", got, err)
		}
		if err := x.apply(); err != nil {
			w.T.Fatal(err)
		}
		if got := getValue(w.T, v); got.Value != 7 {
			w.T.Errorf("the value is %d", got.Value)
		}
		if got, err := q.Pop(ctx); got != 8 || err != nil {
			w.T.Errorf("item %d, %v", got, err)
		}
		if stat, err := w.stat("/x"); stat.Version != 1 || err != nil {
			w.T.Errorf("%+v, %v", stat, err)
		}
	})
}

// A refusal is left to the carrier. The next Commit makes a new plan.
func (on txnTests) ACarriedTransactionIsRefusedWithItsCarrier(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, x := context.Background(), &carrier{w: w}
		c := w.Open("a", nil)
		q := coord.NewQueue[int](c, "/jobs", nil)
		txn := coord.NewTxn(c).Add(q.PutOp(1))
		if _, err := txn.Commit(x.ctx()); err != nil {
			w.T.Fatal(err)
		}
		bucket := w.Path("/jobs/items/" + w.Children("/jobs/items")[0])
		if _, err := w.Session("x").Commit(ctx, backend.SetData(bucket, nil, 0)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, x.apply(), coord.ErrBadVersion)
		if _, err := txn.Commit(x.ctx()); err != nil || x.stages != 2 {
			w.T.Fatalf("%v after %d stages", err, x.stages)
		}
		if err := x.apply(); err != nil {
			w.T.Fatal(err)
		}
		if got, err := q.Pop(ctx); got != 1 || err != nil {
			w.T.Errorf("item %d, %v", got, err)
		}
	})
}

// While a carried transaction can still commit, no other hold may stand on the node that it checks.
func (on txnTests) ACarriedTransactionIsRefusedAfterItsGuard(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]error{"staged": nil, "perhaps staged": errors.New("the reply was lost")} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				x := &carrier{w: w, err: failed}
				c := w.Open("a", nil)
				mustCommit(w.T, coord.NewTxn(c).Create("/r", nil, backend.Persistent))
				m := coord.NewMutex(c, "/l", &coord.MutexOptions{Keep: time.Hour})
				h := coordtest.MustLock(w.T, m)
				_, err := coord.NewTxn(c).Under(h.Guard()).Set("/r", []byte("stale")).Commit(x.ctx())
				if !errors.Is(err, failed) || failed == nil && err != nil {
					w.T.Fatal(err)
				}
				coordtest.MustRelease(w.T, h)
				next := coordtest.MustLock(w.T, m)
				coordtest.WantErr(w.T, x.apply(), coord.ErrNotFound)
				mustCommit(w.T, coord.NewTxn(c).Under(next.Guard()).Set("/r", nil))
				coordtest.MustRelease(w.T, next)
				_, err = coord.NewTxn(c).Under(h.Guard()).Set("/r", nil).Commit(x.ctx())
				if wantConflict(w.T, err, "guard", 0, h.Path(), coord.ErrNotFound); x.stages != 1 {
					w.T.Errorf("%d stages", x.stages)
				}
			})
		})
	}
}

func (on txnTests) AFailedStageFailsTheCommit(t *testing.T) {
	on.each(t, func(w *world) {
		x := &carrier{w: w, err: backend.ErrSessionLost} // which an ordinary Commit would try again
		c := w.Open("a", nil)
		res, err := coord.NewTxn(c).Create("/x", nil, backend.Persistent).Commit(x.ctx())
		var e *backend.Error
		if coordtest.WantErr(w.T, err, x.err); !errors.As(err, &e) || e.Op != "commit" || res != nil || x.stages != 1 {
			w.T.Errorf("%+v, %v after %d stages", res, err, x.stages)
		}
	})
}

func (on txnTests) ACarriedTransactionCreatesNoEphemeralNode(t *testing.T) {
	on.each(t, func(w *world) {
		x := &carrier{w: w}
		_, err := coord.NewTxn(w.Open("a", nil)).Create("/p", nil, backend.Persistent).Create("/e", nil, backend.Ephemeral).Commit(x.ctx())
		var e *backend.Error
		if coordtest.WantErr(w.T, err, coord.ErrUnsupported); !errors.As(err, &e) || e.Path != w.Path("/e") || x.stages != 0 {
			w.T.Errorf("%v after %d stages", err, x.stages)
		}
	})
}

// A directory whose reply is lost, or whose session, is made before anything is staged.
func (on txnTests) ACarriedTransactionIsStagedOnce(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(w *world) func(context.Context, backendtest.Call, error) error{
		"a reply is lost": func(*world) func(context.Context, backendtest.Call, error) error { return coordtest.Lose },
		"the session is lost": func(w *world) func(context.Context, backendtest.Call, error) error {
			return func(_ context.Context, c backendtest.Call, _ error) error {
				w.Link("a").Expire(c.Session.ID())
				return backend.Uncertain(backend.ErrSessionLost)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var nth coordtest.Nth
				x := &carrier{w: w}
				c := w.Open("a", &backendtest.Hooks{After: nth.After})
				q := coord.NewQueue[int](c, "/jobs", nil)
				nth.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpCreate) }, fault(w))
				if _, err := coord.NewTxn(c).Add(q.PutOp(1)).Commit(x.ctx()); err != nil || x.stages != 1 {
					w.T.Fatalf("%v after %d stages", err, x.stages)
				}
				if err := x.apply(); err != nil {
					w.T.Fatal(err)
				}
				if n, err := q.Len(context.Background()); n != 1 || err != nil {
					w.T.Errorf("%d items, %v", n, err)
				}
			})
		})
	}
}
