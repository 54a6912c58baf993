package recipetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// writesTo matches the commits that write the node at p.
func (w *world) writesTo(p string) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == w.Path(p) }
}

func inc(n int) (int, error) { return n + 1, nil }

// valueFaultTests are tests of Value on each service.
type valueFaultTests struct{ Services }

// etcd's clients, and Curator's DistributedAtomicLong, repeat a write whose reply was lost: it
// is applied twice, or undoes a later write of another client.
func (on valueFaultTests) ALostReplyOfSetDoesNotUndoAnothersSet(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{After: after.After}), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		setValue(w.T, v, 1)
		var theirs coord.Versioned[int]
		after.Arm(1, w.writesTo("/v"), func(context.Context, backendtest.Call, error) error {
			theirs = setValue(w.T, other, 3)
			return backend.ErrUncertain
		})
		mine := setValue(w.T, v, 2)
		if got := getValue(w.T, v); got != theirs {
			w.T.Errorf("got %+v, want the later %+v", got, theirs)
		}
		// The version of this write is unknown, so that no comparison with it succeeds.
		if mine.Czxid != -1 || mine.Version != -1 || mine.Mzxid == 0 || mine.Mzxid >= theirs.Mzxid {
			w.T.Errorf("returned %+v", mine)
		}
		_, err := v.CompareAndSet(context.Background(), mine, 4)
		coordtest.WantErr(w.T, err, coord.ErrConflict)
		coordtest.WantErr(w.T, v.Delete(context.Background(), mine), coord.ErrConflict)
		if got := getValue(w.T, v); got != theirs {
			w.T.Errorf("got %+v, want %+v", got, theirs)
		}
	})
}

func (on valueFaultTests) AWriteWhoseReplyIsLostReturnsTheStoredVersion(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{After: after.After}), "/v", nil)
		remove := func() {
			w.T.Helper()
			if err := v.Delete(ctx, getValue(w.T, v)); err != nil {
				w.T.Fatal(err)
			}
		}
		setValue(w.T, v, 0) // makes the journal's node
		remove()
		steps := []struct {
			name string
			nth  int // the commit whose reply is lost
			do   func(now coord.Versioned[int]) (coord.Versioned[int], error)
		}{
			{"set creates", 1, func(coord.Versioned[int]) (coord.Versioned[int], error) { return v.Set(ctx, 1) }},
			{"set", 1, func(coord.Versioned[int]) (coord.Versioned[int], error) { return v.Set(ctx, 2) }},
			{"compare and set", 1, func(now coord.Versioned[int]) (coord.Versioned[int], error) { return v.CompareAndSet(ctx, now, 3) }},
			{"update", 1, func(coord.Versioned[int]) (coord.Versioned[int], error) { return v.Update(ctx, inc) }},
			{"update creates", 1, func(coord.Versioned[int]) (coord.Versioned[int], error) { remove(); return v.Update(ctx, inc) }},
			{"compare and set creates", 1, func(coord.Versioned[int]) (coord.Versioned[int], error) {
				remove()
				return v.CompareAndSet(ctx, coord.Versioned[int]{}, 1)
			}},
		}
		var now coord.Versioned[int]
		for _, step := range steps {
			lost := 0
			matches := w.writesTo("/v")
			after.Arm(step.nth, func(c backendtest.Call) bool { return matches(c) && !coordtest.Deletes(c) },
				func(context.Context, backendtest.Call, error) error { lost++; return backend.ErrUncertain })
			before := now
			got, err := step.do(now)
			if err != nil || lost != 1 {
				w.T.Fatalf("%s: %v, %d lost", step.name, err, lost)
			}
			if now = getValue(w.T, v); got != now {
				w.T.Errorf("%s: returned %+v, stored %+v", step.name, got, now)
			}
			if now.Czxid == before.Czxid && now.Version != before.Version+1 {
				w.T.Errorf("%s: %+v after %+v: not applied once", step.name, now, before)
			}
		}
	})
}

// A repeated deletion would hit a successor of the same version.
func (on valueFaultTests) ALostReplyOfDeleteDoesNotDeleteTheSuccessor(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{After: after.After}), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		old := setValue(w.T, v, 1)
		var successor coord.Versioned[int]
		after.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			successor = setValue(w.T, other, 2)
			return backend.ErrUncertain
		})
		if err := v.Delete(context.Background(), old); err != nil {
			w.T.Error(err)
		}
		if got := getValue(w.T, v); got != successor || got.Version != old.Version {
			w.T.Errorf("got %+v, want %+v", got, successor)
		}
	})
}

// No commit can exclude that the node was recreated just before it with the same version. The
// reply shows it, and the write is not repeated.
func (on valueFaultTests) AValueRecreatedJustBeforeTheCommitIsFoundInItsReply(t *testing.T) {
	for _, reply := range []string{"comes", "is lost"} {
		t.Run("the reply "+reply, func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx := context.Background()
				var before, after coordtest.Nth
				v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before, After: after.After}), "/v", nil)
				first := setValue(w.T, v, 1)
				recreate := func() {
					before.Arm(1, w.writesTo("/v"), func(context.Context, backendtest.Call, error) error {
						w.outsider(backend.Delete(w.Path("/v"), backend.AnyVersion), backend.Create(w.Path("/v"), []byte("50"), backend.Persistent))
						return nil
					})
					if reply == "is lost" {
						after.Arm(1, w.writesTo("/v"), coordtest.Lose)
					}
				}
				check := func(got coord.Versioned[int], err error, old coord.Versioned[int]) {
					w.T.Helper()
					coordtest.WantErr(w.T, err, coord.ErrConflict)
					if now := getValue(w.T, v); got != now || got.Czxid <= old.Czxid || got.Version != 1 {
						w.T.Errorf("returned %+v, stored %+v", got, now)
					}
				}
				recreate()
				got, err := v.CompareAndSet(ctx, first, 2)
				check(got, err, first)
				// The version is 0 again, as it is after the next recreation.
				if err := v.Delete(ctx, got); err != nil {
					w.T.Fatal(err)
				}
				first = setValue(w.T, v, 1)
				recreate()
				calls := 0
				got, err = v.Update(ctx, func(n int) (int, error) { calls++; return n + 1, nil })
				check(got, err, first)
				if calls != 1 || got.Value != 2 {
					w.T.Errorf("fn was called %d times, %+v", calls, got)
				}
			})
		})
	}
}

func (on valueFaultTests) AChangeBetweenTheReadAndTheCommitIsAConflict(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		between := func(ops ...backend.Op) {
			before.Arm(1, w.writesTo("/v"), func(context.Context, backendtest.Call, error) error {
				w.outsider(ops...)
				return nil
			})
		}
		path := w.Path("/v")
		replaced := backend.SetData(path, []byte("50"), backend.AnyVersion)
		deleted := backend.Delete(path, backend.AnyVersion)

		old := setValue(w.T, v, 1)
		between(replaced)
		got, err := v.CompareAndSet(ctx, old, 2)
		coordtest.WantErr(w.T, err, coord.ErrConflict)
		if got != (coord.Versioned[int]{}) {
			w.T.Errorf("returned %+v", got)
		}
		between(replaced)
		coordtest.WantErr(w.T, v.Delete(ctx, getValue(w.T, v)), coord.ErrConflict)
		if got := getValue(w.T, v); got.Value != 50 || got.Version != 2 {
			w.T.Errorf("got %+v", got)
		}
		between(deleted)
		_, err = v.CompareAndSet(ctx, getValue(w.T, v), 2)
		coordtest.WantErr(w.T, err, coord.ErrConflict, coord.ErrNotFound)

		// Update continues with the current value.
		var saw []int
		update := func() coord.Versioned[int] {
			w.T.Helper()
			saw = nil
			got, err := v.Update(ctx, func(n int) (int, error) { saw = append(saw, n); return n + 1, nil })
			if err != nil {
				w.T.Fatal(err)
			}
			return got
		}
		between(backend.Create(path, []byte("10"), backend.Persistent))
		if got := update(); got.Value != 11 || fmt.Sprint(saw) != "[0 10]" {
			w.T.Errorf("created between: %+v, fn saw %v", got, saw)
		}
		between(replaced)
		if got := update(); got.Value != 51 || fmt.Sprint(saw) != "[11 50]" {
			w.T.Errorf("replaced between: %+v, fn saw %v", got, saw)
		}
		between(deleted)
		if got := update(); got.Value != 1 || fmt.Sprint(saw) != "[51 0]" {
			w.T.Errorf("deleted between: %+v, fn saw %v", got, saw)
		}
		// Set finds no node at first, and then one that was created meanwhile.
		before.Arm(2, w.writesTo("/v"), func(context.Context, backendtest.Call, error) error {
			w.outsider(backend.Create(path, []byte("10"), backend.Persistent))
			return nil
		})
		w.outsider(deleted)
		if got := setValue(w.T, v, 5); got.Version != 1 || getValue(w.T, v) != got {
			w.T.Errorf("returned %+v", got)
		}
	})
}

func (on valueFaultTests) ASessionThatIsLostBeforeTheWriteIsReplaced(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		setValue(w.T, v, 1)
		expire := func(op string) {
			before.Arm(1, func(c backendtest.Call) bool { return c.Op == op && c.Path == w.Path("/v") },
				func(_ context.Context, c backendtest.Call, _ error) error {
					w.Link("a").Expire(c.Session.ID())
					<-c.Session.Done()
					return nil
				})
		}
		expire("get")
		if got, err := v.Update(ctx, inc); err != nil || got.Value != 2 {
			w.T.Errorf("update: %+v, %v", got, err)
		}
		expire("exists")
		if got, err := v.CompareAndSet(ctx, getValue(w.T, v), 3); err != nil || got.Value != 3 {
			w.T.Errorf("compare and set: %+v, %v", got, err)
		}
		expire("commit")
		if got, err := v.Set(ctx, 4); err != nil || got.Version != 3 {
			w.T.Errorf("set: %+v, %v", got, err)
		}
		expire("get")
		if got := getValue(w.T, v); got.Value != 4 {
			w.T.Errorf("get: %+v", got)
		}
	})
}

func (on valueFaultTests) AParentThatVanishesIsMadeAgain(t *testing.T) {
	on.each(t, func(w *world) {
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/x/v", nil)
		first := setValue(w.T, v, 1)
		if err := v.Delete(context.Background(), first); err != nil {
			w.T.Fatal(err)
		}
		before.Arm(2, w.writesTo("/x/v"), func(context.Context, backendtest.Call, error) error {
			w.collected("/x")
			return nil
		})
		if got := setValue(w.T, v, 2); getValue(w.T, v) != got {
			w.T.Errorf("returned %+v", got)
		}
	})
}
