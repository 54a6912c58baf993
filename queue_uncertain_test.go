package coord_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

func TestAPutOfUnknownOutcomeTellsItsID(t *testing.T) {
	for _, name := range []string{"request lost", "reply lost"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x, y nth // before and after
				q := w.hookedQueue("a", &backendtest.Hooks{Before: x.before, After: y.after}, nil)
				mustPut(w.t, q, 1, 1)
				mustAck(w.t, mustTake(w.t, q, 1))
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				creates := func(c backendtest.Call) bool {
					return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.Contains(op.Path, "/i-") })
				}
				z := &x
				if name == "reply lost" {
					z = &y
				}
				z.arm(1, creates, func(context.Context, backendtest.Call, error) error {
					cancel()
					return backend.Uncertain(ctx.Err())
				})
				id, err := q.Put(ctx, 2)
				wantErr(w.t, err, coord.ErrUncertain)
				if id == "" {
					w.t.Fatal("no id")
				}
				if it, err := q.TryTake(context.Background()); err == nil && it.ID != id {
					w.t.Errorf("id %q, the item has %q", id, it.ID)
				} else if (err == nil) != (name == "reply lost") {
					w.t.Error(err)
				}
				if id, err = q.Put(ctx, 3); id != "" || err == nil {
					w.t.Errorf("id %q, %v: nothing was put", id, err)
				}
			})
		})
	}
}

// Whatever the outcome was, the item is gone or it is not claimed any more. The
// cause of the context matches errors that sessions have.
func TestAPopOfUnknownOutcomeLeavesNothingClaimed(t *testing.T) {
	for _, name := range []string{"request lost", "reply lost"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x, y nth // before and after
				q := w.hookedQueue("a", &backendtest.Hooks{Before: x.before, After: y.after}, nil)
				mustPut(w.t, q, 1, 1)
				mustAck(w.t, mustTake(w.t, q, 1))
				mustPut(w.t, q, 2, 2)
				cause := fmt.Errorf("%w: %w", coord.ErrLost, coord.ErrSessionLost)
				ctx, cancel := context.WithCancelCause(context.Background())
				z := &x
				if name == "reply lost" {
					z = &y
				}
				z.arm(1, deletes, func(context.Context, backendtest.Call, error) error {
					cancel(cause)
					return backend.Uncertain(backend.ContextError(ctx))
				})
				_, err := q.Pop(ctx)
				wantErr(w.t, err, coord.ErrUncertain, context.Canceled, cause)
				it, err := q.TryTake(context.Background())
				if name == "reply lost" {
					wantErr(w.t, err, coord.ErrEmpty)
				} else if err != nil {
					w.t.Error(err)
				} else {
					mustAck(w.t, it)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

func TestAnAttemptIsNeverNegative(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.t, q, 1, 1)
		if err := mustTake(w.t, q, 1).Nack(0); err != nil {
			w.t.Fatal(err)
		}
		for _, data := range []string{fmt.Sprint(math.MaxInt64), "-5", "99999999999999999999", ""} {
			for _, n := range w.children("/q/items/b-0-0") {
				if !strings.HasPrefix(n, "s-") {
					continue
				}
				op := backend.SetData(w.path("/q/items/b-0-0/"+n), []byte(data), backend.AnyVersion)
				if _, err := w.session("x").Commit(context.Background(), op); err != nil {
					w.t.Fatal(err)
				}
			}
			it := mustTake(w.t, q, 1)
			if it.Attempt < 2 {
				w.t.Errorf("%q: attempt %d", data, it.Attempt)
			}
			if err := it.Nack(0); err != nil {
				w.t.Fatal(err)
			}
		}
	})
}
