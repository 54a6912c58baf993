package recipetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// putsMany matches the commit of a large put.
func putsMany(c backendtest.Call) bool { return c.Op == "commit" && len(c.Ops) > 200 }

// A put of 1000 values is one commit, behind a list if the client knows the queue. A value alone costs no list.
func TestQueue_ALargePutIsOneCommit(t *testing.T) {
	onMemory(t, func(w *world) {
		var lists, commits atomic.Int64
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			switch c.Op {
			case "children":
				lists.Add(1)
			case "commit":
				commits.Add(1)
			}
			return nil
		}}, nil)
		*coordtest.Inside(&q.Consumer).BucketSize = 256
		mustPut(w.T, q, 0, 0)
		for _, test := range []struct{ n, lists, commits int64 }{{1000, 1, 1}, {1, 0, 1}, {128, 0, 1}, {129, 1, 1}, {2000, 2, 2}, {1, 0, 1}} {
			lists.Store(0)
			commits.Store(0)
			if _, err := q.PutAll(context.Background(), numbers(1, int(test.n))...); err != nil {
				w.T.Fatal(err)
			}
			if lists.Load() != test.lists || commits.Load() != test.commits {
				w.T.Errorf("%d values cost %d lists and %d commits, want %d and %d", test.n, lists.Load(), commits.Load(), test.lists, test.commits)
			}
		}
		if _, sizes := w.stored(); !slices.Equal(sizes[:5], []int{129, 256, 256, 256, 104 + 1 + 128 + 128}) {
			w.T.Errorf("buckets of %v items", sizes)
		}
	})
}

// A large put is applied once, or not at all, whatever is lost.
func TestQueue_ALargePutIsAppliedOnce(t *testing.T) {
	for name, fault := range map[string]func(x *coordtest.Nth, y *coordtest.Nth){
		"request lost": func(x, _ *coordtest.Nth) { x.Arm(1, putsMany, coordtest.Lose) },
		"reply lost":   func(_, y *coordtest.Nth) { y.Arm(1, putsMany, coordtest.Lose) },
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x, y coordtest.Nth
				q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before, After: y.After}, nil)
				mustPut(w.T, q, 0, 0)
				fault(&x, &y)
				ids, err := q.PutAll(context.Background(), numbers(1, 500)...)
				if err != nil || !x.Idle() || !y.Idle() {
					w.T.Fatalf("%v; the fault has not happened: %v", err, !x.Idle() || !y.Idle())
				}
				if all, _ := w.stored(); !slices.Equal(all[1:], ids) {
					w.T.Errorf("%d items, want %d", len(all), len(ids)+1)
				}
			})
		})
	}
}

// A large put finds that another client has closed the bucket of its list, or that the buckets are gone.
func TestQueue_ALargePutNeverLandsInAClosedBucket(t *testing.T) {
	for _, removed := range []bool{false, true} {
		t.Run(fmt.Sprint("removed ", removed), func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil)
				mustPut(w.T, a, 1, 1)
				x.Arm(1, putsMany, func(context.Context, backendtest.Call, error) error {
					mustPut(w.T, b, 2, 9)
					if removed {
						for n := 1; n <= 8; n++ {
							mustAck(w.T, mustTake(w.T, b, n))
						}
					}
					return nil
				})
				ids, err := a.PutAll(context.Background(), numbers(1, 300)...)
				if err != nil || !x.Idle() {
					w.T.Fatal(err)
				}
				all, _ := w.stored()
				if before := len(all) - len(ids); before != map[bool]int{false: 9, true: 1}[removed] || !slices.Equal(all[before:], ids) {
					w.T.Errorf("%d items, of which %d were put at once", len(all), len(ids))
				}
				var open []string
				for _, name := range w.Children("/q/items") {
					stat, err := w.Session("x").Exists(context.Background(), w.Path("/q/items/"+name), nil)
					if err != nil {
						w.T.Fatal(err)
					}
					if stat.Version == 0 {
						open = append(open, name)
					}
				}
				if len(open) != 1 {
					w.T.Errorf("the buckets %v are open, want one", open)
				}
			})
		})
	}
}

// A large put fills the buckets that the queue has room for, and fails with the rest.
func TestQueue_ALargePutFillsTheRoomThatThereIs(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		*coordtest.Inside(&q.Consumer).BucketSize = 100
		*coordtest.Inside(&q.Consumer).BucketLimit = 4
		mustPut(w.T, q, 0, 0)
		ids, err := q.PutAll(context.Background(), numbers(1, 1000)...)
		coordtest.WantErr(w.T, err, coord.ErrLimit)
		all, sizes := w.stored()
		if !slices.Equal(all[1:], ids) || !slices.Equal(sizes, []int{129, 100, 100, 100}) {
			w.T.Errorf("%d ids, and buckets of %v items", len(ids), sizes)
		}
	})
}

// With MaxLen, a large put fills the queue to its limit.
func TestQueue_ALargePutWithMaxLen(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{MaxLen: 300, FailWhenFull: true})
		ids, err := q.PutAll(context.Background(), numbers(1, 1000)...)
		coordtest.WantErr(w.T, err, coord.ErrFull)
		if all, _ := w.stored(); len(ids) != 300 || !slices.Equal(all, ids) {
			w.T.Errorf("%d ids, %d items, want 300", len(ids), len(all))
		}
	})
}
