package recipetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func mustPop(t *testing.T, q *coord.Queue[int], want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
	defer cancel()
	if v, err := q.Pop(ctx); v != want || err != nil {
		t.Fatalf("popped %d, %v, want %d", v, err, want)
	}
}

// popsAhead matches the commit of a Pop that has read its item ahead.
func popsAhead(c backendtest.Call) bool {
	return coordtest.Deletes(c) && coordtest.Commits(c, backend.OpAbsent)
}

// ahead puts the numbers from 1 to n, and pops the first, so that the second is read ahead.
func (w *world) ahead(hooks *backendtest.Hooks, o *coord.QueueOptions[int], n int) *coord.Queue[int] {
	w.T.Helper()
	q := w.hookedQueue("a", hooks, o)
	*coordtest.Inside(&q.Consumer).BucketSize = 100
	mustPut(w.T, q, 1, n)
	mustPop(w.T, q, 1)
	// Its feeder may still be there, and the next Pop would claim its item.
	w.Eventually("no feeder is there", func() bool { return !coordtest.Inside(&q.Consumer).Feeding() })
	w.Settle()
	return q
}

// queuePopTests are tests of Queue on each service.
type queuePopTests struct{ Services }

// A Pop costs a commit, and at times a read of the next items beside it. After a second the list is too old
// for the next Pop, which lists again. So on a real server, where the machine can be slow, eight of at
// most a hundred Pops have to cost no more. On memory each Pop has to.
func (on queuePopTests) APopIsOneCommit(t *testing.T) {
	on.each(t, func(w *world) {
		const want, most = 8, 100
		var mu sync.Mutex
		var calls []string
		q := w.ahead(&backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, c.Op)
			return nil
		}}, nil, most+2)
		cheap := 0
		others := make(map[string]int)
		for n := 2; cheap < want; n++ {
			if n > most {
				w.T.Fatalf("%d of %d Pops were one commit and at most one read, the others %v", cheap, most, others)
			}
			w.Settle()
			mu.Lock()
			calls = nil
			mu.Unlock()
			began, before := time.Now(), cheap
			mustPop(w.T, q, n)
			w.Eventually("the Pop is one commit", func() bool {
				mu.Lock()
				defer mu.Unlock()
				if reads := slices.DeleteFunc(slices.Clone(calls), func(op string) bool { return op == "commit" }); len(calls)-len(reads) == 1 &&
					(len(reads) == 0 || len(reads) == 1 && (reads[0] == "get" || reads[0] == "read")) {
					cheap++
					return true
				}
				return !w.Fake && time.Since(began) > time.Second
			})
			if cheap == before {
				mu.Lock()
				others[fmt.Sprint(calls)]++
				mu.Unlock()
				n++
				mustPop(w.T, q, n) // its list is new, that of the Pop before is too old by now
			}
		}
	})
}

// Another consumer takes the item that a Pop has read ahead: the Pop gets the next one, and
// the order is kept.
func (on queuePopTests) APopDoesNotGetWhatAnotherConsumerHasTaken(t *testing.T) {
	for _, how := range []string{"holds", "has acknowledged", "has given back", "has failed with"} {
		t.Run(how, func(t *testing.T) {
			on.each(t, func(w *world) {
				q := w.ahead(nil, nil, 4)
				it := mustTake(w.T, w.queue("b", nil), 2)
				want := []int{3, 4}
				switch how {
				case "has acknowledged":
					mustAck(w.T, it)
				case "has given back":
					want = []int{2, 3, 4}
					if err := it.Release(); err != nil {
						w.T.Fatal(err)
					}
				case "has failed with":
					want = []int{2, 3, 4}
					if err := it.Nack(0); err != nil {
						w.T.Fatal(err)
					}
				}
				got := make([]int, len(want))
				for i := range got {
					var err error
					if got[i], err = q.Pop(context.Background()); err != nil {
						w.T.Fatal(err)
					}
				}
				if !slices.Equal(got, want) {
					w.T.Fatalf("popped %v, want %v", got, want)
				}
				if how == "holds" {
					mustAck(w.T, it)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

// What this client gives back precedes what it has read ahead.
func (on queuePopTests) APopGetsWhatItsClientHasGivenBack(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 4)
		it := mustTake(w.T, q, 1)
		mustPop(w.T, q, 2)
		if err := it.Release(); err != nil {
			w.T.Fatal(err)
		}
		for _, n := range []int{1, 3, 4} {
			mustPop(w.T, q, n)
		}
		w.drained(&q.Consumer)
	})
}

// The request or the reply of a deletion is lost: the item is deleted once, and the Pop returns it.
func (on queuePopTests) ADeletionAheadIsMadeOnce(t *testing.T) {
	for _, name := range []string{"request lost", "reply lost"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var x, y coordtest.Nth
				q := w.ahead(&backendtest.Hooks{Before: x.Before, After: y.After}, nil, 3)
				z := &x
				if name == "reply lost" {
					z = &y
				}
				z.Arm(1, popsAhead, func(context.Context, backendtest.Call, error) error { return backend.ErrUncertain })
				mustPop(w.T, q, 2)
				if !z.Idle() {
					w.T.Error("nothing was lost")
				}
				mustPop(w.T, q, 3)
				w.drained(&q.Consumer)
			})
		})
	}
}

// Callers that pop at the same time get all items, each once.
func (on queuePopTests) ManyPopAtTheSameTime(t *testing.T) {
	on.each(t, func(w *world) {
		const clients, callers, items = 3, 3, 120
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		p := w.queue("p", nil)
		mustPut(w.T, p, 1, items)
		var mu sync.Mutex
		seen := make(map[int]int)
		var wg sync.WaitGroup
		for i := range clients {
			q := w.queue(fmt.Sprint("c", i), nil)
			for range callers {
				wg.Go(func() {
					for {
						v, err := q.Pop(ctx)
						if err != nil {
							if ctx.Err() == nil {
								w.T.Error(err)
							}
							return
						}
						mu.Lock()
						if seen[v]++; len(seen) == items {
							cancel()
						}
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		for n := 1; n <= items; n++ {
			if seen[n] != 1 {
				w.T.Errorf("%d was popped %d times", n, seen[n])
			}
		}
		w.drained(&p.Consumer)
	})
}
