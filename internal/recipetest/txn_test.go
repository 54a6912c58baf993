package recipetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// The parent vanishes between its creation and the transaction, as an empty container can.
func TestTxn_CreateAllMakesAVanishedParentAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, left := context.Background(), 2
		other := w.Session("other")
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
			if left == 0 || !slices.ContainsFunc(call.Ops, func(op backend.Op) bool { return op.Path == w.Path("/a/b") }) {
				return nil
			}
			left--
			_, err := other.Commit(ctx, backend.Delete(w.Path("/a"), backend.AnyVersion))
			return err
		}})
		res := mustCommit(w.T, coord.NewTxn(c).CreateAll("/a/b", nil, backend.Persistent))
		if stat, err := w.stat("/a/b"); err != nil || stat.Czxid != res[0].Zxid || left != 0 {
			w.T.Errorf("%+v, %v; the parent has to vanish %d times more", stat, err, left)
		}
	})
}

func TestTxn_ATransactionIsUncertainOnlyWithItsSession(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: x.After})
		mustCommit(w.T, coord.NewTxn(c).Create("/x", nil, backend.Persistent))
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == "/x" }, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.Uncertain(backend.ErrSessionLost)
		})
		_, err := coord.NewTxn(c).Set("/x", nil).Commit(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		if stat, _ := w.stat("/x"); stat.Version != 1 {
			w.T.Errorf("%+v", stat)
		}
		// A transaction whose session ends before it is sent continues with the next session.
		s, err := c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("a").Expire(s.ID())
		mustCommit(w.T, coord.NewTxn(c).Set("/x", nil))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = coord.NewTxn(c).Set("/x", nil).Commit(ctx)
		coordtest.WantErr(w.T, err, context.Canceled)
		if errors.Is(err, coord.ErrUncertain) {
			w.T.Error("uncertain, and nothing was sent")
		}
	})
}

// The reply is lost, and the transaction has deleted the node that it set, and created another one at
// the path. No read shows which version the Set has made.
func TestTxn_ALostReplyGivesNoVersionOfANodeThatTheTransactionDeleted(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: x.After})
		mustCommit(w.T, coord.NewTxn(c).Create("/x", nil, backend.Persistent).Set("/x", nil))
		txn := coord.NewTxn(c).Set("/x", nil).Delete("/x").Create("/x", nil, backend.Persistent).Set("/x", nil)
		for _, lost := range []bool{false, true} {
			want := []int32{2, -1, 0, 1}
			if lost {
				want[0] = -1
				x.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && len(c.Ops) > 4 }, coordtest.Lose)
			}
			var versions []int32
			for _, r := range mustCommit(w.T, txn) {
				versions = append(versions, r.Version)
			}
			if !slices.Equal(versions, want) {
				w.T.Errorf("versions %v, want %v; reply lost: %t", versions, want, lost)
			}
		}
	})
}

// The reply is lost, and another client has set the node since. No read shows which version the Set of
// the transaction has made.
func TestTxn_ALostReplyGivesNoVersionOfALaterSet(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		c, other := w.Open("a", &backendtest.Hooks{After: x.After}), w.Open("b", nil)
		mustCommit(w.T, coord.NewTxn(c).Create("/x", nil, backend.Persistent))
		for _, overtaken := range []bool{false, true} {
			want := int32(1)
			x.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == "/x" }, func(ctx context.Context, c backendtest.Call, err error) error {
				if overtaken {
					want = -1
					mustCommit(w.T, coord.NewTxn(other).Set("/x", nil))
				}
				return coordtest.Lose(ctx, c, err)
			})
			if r := mustCommit(w.T, coord.NewTxn(c).Set("/x", nil)); r[0].Version != want {
				w.T.Errorf("version %d, want %d; overtaken: %t", r[0].Version, want, overtaken)
			}
		}
	})
}

// The limit is the number of steps that a transaction may have.
func TestTxn_AThousandStepsAreApplied(t *testing.T) {
	onMemory(t, func(w *world) {
		txn := coord.NewTxn(w.Open("a", nil)).Create("/x", nil, backend.Persistent)
		for range 999 {
			txn.Set("/x", nil)
		}
		if r := mustCommit(w.T, txn); r[999].Version != 999 {
			w.T.Errorf("the last Set has made version %d, want 999", r[999].Version)
		}
	})
}

// A transaction that was refused because its operation had read an old state reads again behind a Sync: the
// server may not show yet the state for which the service has refused.
func TestTxn_AnOperationThatWasOvertakenReadsBehindASync(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x coordtest.Nth
		armed, refused, synced := false, false, false
		c := w.Open("a", &backendtest.Hooks{
			Before: func(ctx context.Context, c backendtest.Call) error {
				switch {
				case c.Op == "sync":
					synced = synced || refused
				case c.Path == "/v" && refused && !synced:
					w.T.Errorf("%s %s comes before the Sync", c.Op, c.Path)
				}
				return x.Before(ctx, c)
			},
			After: func(_ context.Context, c backendtest.Call, err error) error {
				refused = refused || armed && c.Op == "commit" && c.Path == "/v" && err != nil
				return err
			},
		})
		v := coord.NewValue[int](c, "/v", nil)
		old := setValue(w.T, v, 1)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == "/v" }, func(context.Context, backendtest.Call, error) error {
			armed = true
			return other.Delete(ctx, old)
		})
		if _, err := coord.NewTxn(c).Add(v.SetOp(3)).Commit(ctx); err != nil {
			w.T.Fatal(err)
		}
		if got := getValue(w.T, v); !synced || got.Value != 3 {
			w.T.Errorf("the value is %d; a Sync: %t", got.Value, synced)
		}
	})
}

func TestTxn_ABadTransactionIsRefusedLocally(t *testing.T) {
	onMemory(t, func(w *world) {
		sent := 0
		c := w.Open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { sent++; return nil }})
		many := coord.NewTxn(c)
		for range 1001 {
			many.Set("/x", nil)
		}
		for name, tt := range map[string]struct {
			txn  *coord.Txn
			want error
		}{
			"nothing to do":          {coord.NewTxn(c), coord.ErrInvalid},
			"a bad path":             {coord.NewTxn(c).Set("/a/../b", nil), coord.ErrBadPath},
			"a bad path, later more": {coord.NewTxn(c).If(coord.IfExists("x")).Set("/x", nil), coord.ErrBadPath},
			"the library's own":      {coord.NewTxn(c).Delete("/_coord/journal"), coord.ErrBadPath},
			"a sequential node":      {coord.NewTxn(c).Create("/x", nil, backend.PersistentSequential), coord.ErrInvalid},
			"a container":            {coord.NewTxn(c).Create("/x", nil, backend.Container), coord.ErrInvalid},
			"a negative version":     {coord.NewTxn(c).If(coord.IfVersion("/x", -1)), coord.ErrInvalid},
			"the zero condition":     {coord.NewTxn(c).If(coord.Condition{}), coord.ErrInvalid},
			"the zero operation":     {coord.NewTxn(c).Add(coord.TxnOp{}), coord.ErrInvalid},
			"the zero guard":         {coord.NewTxn(c).Under(coord.Guard{}), coord.ErrInvalid},
			"too much data":          {coord.NewTxn(c).Set("/x", make([]byte, 600_000)).Set("/y", make([]byte, 600_000)), coord.ErrTooLarge},
			"too many operations":    {many, coord.ErrTooLarge},
		} {
			_, err := tt.txn.Commit(context.Background())
			if coordtest.WantErr(w.T, err, tt.want); w.T.Failed() {
				w.T.Fatal(name)
			}
			if errors.Is(err, coord.ErrConflict) {
				w.T.Errorf("%s: %v", name, err)
			}
		}
		if sent > 0 {
			w.T.Errorf("%d requests were sent", sent)
		}
		c.Close()
		_, err := coord.NewTxn(c).Set("/x", nil).Commit(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

func TestTxn_ItemsPutByTransactionsKeepTheirOrderOverBuckets(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue[int](c, "/jobs", nil)
		const n = 900
		for i := 0; i < n; {
			tx := coord.NewTxn(c)
			for range 45 {
				tx.Add(q.PutOp(i))
				i++
			}
			if _, err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if i%90 == 0 { // others put too
				if _, err := q.Put(ctx, -i); err != nil {
					t.Fatal(err)
				}
			}
		}
		if buckets := len(w.Children("/jobs/items")); buckets < 3 {
			t.Errorf("%d buckets for %d items", buckets, n)
		}
		next := 0
		for range n + n/90 {
			item, err := q.TryTake(ctx)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case item.Value < 0 && -item.Value == next:
			case item.Value == next:
				next++
			default:
				t.Fatalf("item %d, want %d", item.Value, next)
			}
			if err := item.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The bucket is closed, and the value deleted, between the look and the commit.
func TestTxn_ARecipesOperationReadsAgainWhatHasChanged(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		ctx := context.Background()
		var x coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: x.Before, After: x.After})
		v := coord.NewValue[int](c, "/v", nil)
		q := coord.NewQueue[int](c, "/jobs", nil)
		old := setValue(t, v, 1)
		if _, err := q.Put(ctx, 1); err != nil {
			t.Fatal(err)
		}
		other := w.Open("b", nil)
		checks := func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpCheck) }
		x.Arm(1, checks, func(_ context.Context, _ backendtest.Call, err error) error {
			if err := coord.NewValue[int](other, "/v", nil).Delete(ctx, old); err != nil {
				t.Error(err)
			}
			bucket := w.Children("/jobs/items")[0]
			if _, err := w.Session("x").Commit(ctx, backend.SetData("/jobs/items/"+bucket, nil, 0)); err != nil {
				t.Error(err)
			}
			return err
		})
		if _, err := coord.NewTxn(c).Add(v.SetOp(2), q.PutOp(2)).Commit(ctx); err != nil {
			t.Fatal(err)
		}
		x.Arm(2, checks, coordtest.Lose) // the reply; the request of the same call comes first
		if _, err := coord.NewTxn(c).Add(v.SetOp(3), q.PutOp(3)).Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if got := getValue(t, v); got.Value != 3 {
			t.Errorf("the value is %d", got.Value)
		}
		for i := 1; i <= 3; i++ {
			item, err := q.Pop(ctx)
			if err != nil || item != i {
				t.Fatalf("%v, %v, want %d", item, err, i)
			}
		}
		if n, err := q.Len(ctx); err != nil || n != 0 {
			t.Errorf("%d left, %v", n, err)
		}
	})
}

func TestTxn_ABadOperationIsRefusedAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		bad := func(int) ([]byte, error) { return nil, errors.New("no") }
		for name, x := range map[string]struct {
			op   coord.TxnOp
			want error
		}{
			"path of a value":  {coord.NewValue[int](c, "v", nil).SetOp(1), coord.ErrBadPath},
			"codec of a value": {coord.NewValue(c, "/v", &coord.ValueOptions[int]{Codec: coord.Codec[int]{Encode: bad, Decode: coord.JSON[int]().Decode}}).SetOp(1), coord.ErrInvalid},
			"size of a value":  {coord.NewValue(c, "/v", &coord.ValueOptions[[]byte]{Codec: coord.Bytes()}).SetOp(make([]byte, 1<<20)), coord.ErrTooLarge},
			"path of a queue":  {coord.NewQueue[int](c, "q", nil).PutOp(1), coord.ErrBadPath},
			"limit of a queue": {coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxLen: 1}).PutOp(1), coord.ErrUnsupported},
			"due time":         {coord.NewDelayQueue[int](c, "/q", nil).PutOp(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), 1), coord.ErrInvalid},
		} {
			_, err := coord.NewTxn(c).Add(x.op).Commit(context.Background())
			if !errors.Is(err, x.want) {
				w.T.Errorf("%s: %v, want %v", name, err, x.want)
			}
		}
		if left := w.Children("/"); len(left) != 0 {
			w.T.Errorf("something was made: %v", left)
		}
	})
}

// A transaction of unknown outcome has acknowledged the item, or not, and the session is lost: Ack does not say that the item goes
// to another consumer.
func TestTxn_AckAfterAnUncertainAckOpIsUncertainIfTheSessionIsLost(t *testing.T) {
	for _, applied := range []bool{false, true} {
		onMemory(t, func(w *world) {
			sc := newAckTxnScene(w, nil)
			x := &sc.before
			if applied {
				x = &sc.after
			}
			x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
				w.Link("a").Expire(sc.item.Session())
				return backend.Uncertain(backend.ErrSessionLost)
			})
			_, err := sc.txn().Commit(context.Background())
			coordtest.WantErr(w.T, err, coord.ErrUncertain)
			<-sc.item.Done()
			coordtest.WantErr(w.T, sc.item.Ack(), coord.ErrLost, coord.ErrUncertain)
			if n := mustLen(w.T, &sc.q.Consumer); (n == 0) != applied {
				w.T.Errorf("applied %t: %d items", applied, n)
			}
		})
	}
}
