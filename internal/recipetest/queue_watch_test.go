package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// An outsider deletes the claims of two of eight slow handlers, before and after the client watches them. Both handlers are
// told, and no other. The watches of all claims are armed in one request.
func TestQueue_ADeletedClaimOfASlowHandlerIsTold(t *testing.T) {
	for _, how := range []string{"armed", "the arm is refused", "the reply is lost"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				const handlers = 8
				var arms, gets atomic.Int32
				count := func(err error) func(context.Context, backendtest.Call) error {
					return func(_ context.Context, c backendtest.Call) error {
						switch {
						case c.Op == "arm" && strings.Contains(c.Path, "/m-"):
							arms.Add(1)
							return err
						case c.Op == "get" && strings.Contains(c.Path, "/m-"):
							gets.Add(1)
						}
						return nil
					}
				}
				hooks := &backendtest.Hooks{Before: count(nil)}
				switch how {
				case "the arm is refused":
					hooks.Before = count(backend.ErrDenied)
				case "the reply is lost":
					hooks.After = func(_ context.Context, c backendtest.Call, err error) error {
						if c.Op == "arm" {
							return backend.ErrUncertain
						}
						return err
					}
				}
				q := w.hookedQueue("a", hooks, nil)
				putTogether(w.T, q, 1, handlers)
				began := make(chan *coord.Item[int], handlers)
				x := w.work(q, handlers, func(ctx context.Context, it *coord.Item[int]) error {
					began <- it
					<-ctx.Done()
					return ctx.Err()
				})
				var items [handlers + 1]*coord.Item[int]
				for range handlers {
					it := receive(w, "a handler begins", began)
					items[it.Value] = it
				}
				s := w.Session("outsider")
				end := func(n int) {
					_, err := s.Commit(context.Background(), backend.Delete(items[n].Path(), backend.AnyVersion))
					w.must(err)
				}
				time.Sleep(50 * time.Millisecond)
				end(3)
				time.Sleep(450 * time.Millisecond)
				w.Settle()
				if err := items[3].Err(); !errors.Is(err, coord.ErrDeleted) {
					w.T.Errorf("the first: %v", err)
				}
				end(5)
				w.Settle()
				if err := items[5].Err(); !errors.Is(err, coord.ErrDeleted) {
					w.T.Errorf("the second: %v", err)
				}
				for n := 1; n <= handlers; n++ {
					if err := items[n].Err(); n != 3 && n != 5 && err != nil {
						w.T.Errorf("%d: %v", n, err)
					}
				}
				// The claims that were deleted are looked at once more.
				if how == "armed" && (arms.Load() != 1 || gets.Load() > 2) {
					w.T.Errorf("%d requests arm watches, %d get a claim, want 1 and 2 at most", arms.Load(), gets.Load())
				}
				x.stop()
				w.Link("a").Expire(items[1].Session())
				if err := x.ended(); err != nil {
					w.T.Error(err)
				}
			})
		})
	}
}

// Claims that are short get no watch, and those of slow handlers share requests.
func TestQueue_WatchesOnClaimsCostLittle(t *testing.T) {
	coordtest.CountsCost(t)
	for slow, most := range map[time.Duration]float64{50 * time.Millisecond: 0, 200 * time.Millisecond: 0.01, 500 * time.Millisecond: 0.2, time.Second: 0.4} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			onMemory(t, func(w *world) {
				const items, handlers = 400, 8
				var watches atomic.Int32
				q := wide(w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if (c.Op == "arm" || c.Op == "get") && strings.Contains(c.Path, "/m-") {
						watches.Add(1)
					}
					return nil
				}}, nil))
				putTogether(w.T, q, 1, items)
				h := newHandled()
				x := w.work(q, handlers, func(_ context.Context, it *coord.Item[int]) error {
					time.Sleep(slow * time.Duration(1+it.Value*7%13) / 13)
					h.note(it)
					return nil
				})
				h.await(w, items)
				w.Settle()
				x.finish()
				got := float64(watches.Load()) / items
				w.T.Logf("figure: %d handlers of up to %v: %.2f requests an item for the watches on claims", handlers, slow, got)
				if got > most {
					w.T.Errorf("%.2f requests an item, want %.2f at most", got, most)
				}
			})
		})
	}
}
