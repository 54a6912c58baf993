package recipetest

import (
	"context"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A holder without an ID is named by its session, and of several holders the first.
func TestMutex_AnErrorNamesTheFirstHolder(t *testing.T) {
	for _, name := range []string{"writer behind a reader", "semaphore"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				locks := named[name]
				first, _ := locks(w.Open("a", nil), "")
				h := coordtest.MustLock(w.T, first)
				for _, id := range []string{"b", "c"} {
					l, _ := locks(w.Open(id, nil), id)
					coordtest.MustLock(w.T, l)
				}
				_, other := locks(w.Open("d", nil), strings.Repeat("d", 3000))
				_, tried := other.TryLock(context.Background())
				coordtest.WantErr(w.T, tried, coord.ErrLocked)
				text := regexp.MustCompile(`\(held by session 0x[0-9a-f]+, which requested it 0s ago, and 2 more\)$`)
				for _, err := range []error{tried, w.givesUp(other)} {
					if !text.MatchString(err.Error()) {
						w.T.Error(err)
					}
				}
				// Behind a waiter too, the error names a holder.
				ctx, cancel := context.WithCancel(context.Background())
				waits := make(chan error)
				go func() {
					_, err := other.Lock(ctx)
					waits <- err
				}()
				w.Settle()
				coordtest.MustRelease(w.T, h)
				_, another := locks(w.Open("e", nil), "e")
				_, tried = another.TryLock(context.Background())
				for _, err := range []error{tried, w.givesUp(another)} {
					if !strings.Contains(err.Error(), `held by "b", which requested it 0s ago, and 1 more`) {
						w.T.Error(err)
					}
				}
				cancel()
				<-waits
			})
		})
	}
}

// Callers of one client queue inside the process. A try says so, without a request, and
// a wait names the holder.
func TestMutex_AnErrorNamesTheHolderInsideAProcess(t *testing.T) {
	onMemory(t, func(w *world) {
		var x callKinds
		c := w.Open("a", x.hooks())
		id := strings.Repeat("é", 3000) // it is cut
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/m", &coord.MutexOptions{ID: id}))
		m := coord.NewMutex(c, "/m", &coord.MutexOptions{ID: "b"})
		x.reset()
		_, tried := m.TryLock(context.Background())
		coordtest.WantErr(w.T, tried, coord.ErrLocked)
		if n := x.reset(); len(n) > 0 || !strings.Contains(tried.Error(), "another caller of this client holds it or waits ahead") {
			w.T.Errorf("%v, at the cost of %v", tried, n)
		}
		late := w.givesUp(m)
		if n := x.reset(); !maps.Equal(n, map[string]int{"children": 1, "get": 1}) || !strings.HasSuffix(late.Error(), `(held by "`+strings.Repeat("é", 100)+`", which requested it 0s ago)`) {
			w.T.Errorf("%v, at the cost of %v", late, n)
		}
		plain := w.givesUp(coord.NewMutex(c, "/m", nil))
		if n := x.reset(); len(n) > 0 || strings.Contains(plain.Error(), "held by") {
			w.T.Errorf("%v, at the cost of %v", plain, n)
		}
		coordtest.MustRelease(w.T, h)
	})
}

// The client looks for the holder while its own node is removed, for a second at most, and not
// without contact.
func TestMutex_TheSearchForTheHolderDelaysNoCall(t *testing.T) {
	for name, locks := range named {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				hold, _ := locks(w.Open("a", nil), "worker-7")
				coordtest.MustLock(w.T, hold)
				silent := false
				var mu sync.Mutex
				b := w.Open("b", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
					mu.Lock()
					waits := silent
					mu.Unlock()
					if !waits {
						return nil
					}
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-c.Session.Done():
						return c.Session.Err()
					case <-time.After(2 * time.Second): // an answer that comes late
						return nil
					}
				}})
				_, other := locks(b, "worker-8")
				for _, contact := range []bool{true, false} {
					ctx, cancel := context.WithCancel(context.Background())
					done := make(chan error)
					go func() {
						_, err := other.Lock(ctx)
						done <- err
					}()
					w.Settle()
					want := time.Duration(0)
					if contact {
						mu.Lock()
						silent = true
						mu.Unlock()
						want = time.Second
					} else {
						w.Link("b").Partition()
						w.Settle()
					}
					began := time.Now()
					cancel()
					err := <-done
					coordtest.WantErr(w.T, err, context.Canceled)
					if d := time.Since(began); d != want || strings.Contains(err.Error(), "held by") {
						w.T.Errorf("contact %v: %v after %v, want %v", contact, err, d, want)
					}
					mu.Lock()
					silent = false
					mu.Unlock()
					time.Sleep(5 * time.Second) // what was left behind is removed
				}
			})
		})
	}
}
