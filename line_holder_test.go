package coord_test

import (
	"context"
	"encoding/base64"
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

// lockData is the Data that callers store, which no error may show.
const lockData = "do-not-tell"

// named has the locks at /r, each with the sides that a test takes.
var named = map[string]func(c *coord.Client, id string) (hold, other coord.Locker){
	"mutex": func(c *coord.Client, id string) (hold, other coord.Locker) {
		m := coord.NewMutex(c, "/r", &coord.MutexOptions{ID: id, Data: []byte(lockData)})
		return m, m
	},
	"reader behind a writer": func(c *coord.Client, id string) (hold, other coord.Locker) {
		rw := coord.NewRWMutex(c, "/r", &coord.RWMutexOptions{ID: id, Data: []byte(lockData)})
		return rw, rw.RLocker()
	},
	"writer behind a reader": func(c *coord.Client, id string) (hold, other coord.Locker) {
		rw := coord.NewRWMutex(c, "/r", &coord.RWMutexOptions{ID: id, Data: []byte(lockData)})
		return rw.RLocker(), rw
	},
	"semaphore": func(c *coord.Client, id string) (hold, other coord.Locker) {
		s := coord.NewSemaphore(c, "/r", 3, &coord.SemaphoreOptions{ID: id, Data: []byte(lockData)})
		return s.Locker(1), s.Locker(3)
	},
}

// givesUp makes a Lock that is given up as soon as it waits.
func (w *world) givesUp(l coord.Locker) error {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n := w.Waits.Load()
	go func() {
		w.Eventually("it waits", func() bool { return w.Waits.Load() > n })
		cancel()
	}()
	_, err := l.Lock(ctx)
	coordtest.WantErr(w.T, err, context.Canceled)
	return err
}

// callKinds counts the calls of a client by their names, without Sync.
type callKinds struct {
	mu sync.Mutex
	n  map[string]int
}

func (x *callKinds) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.n == nil {
			x.n = make(map[string]int)
		}
		if c.Op != "sync" {
			x.n[c.Op]++
		}
		return nil
	}}
}

func (x *callKinds) reset() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.n
	x.n = nil
	return n
}

// A try that fails, and a wait that its context ends, name the holder if the caller has an ID,
// and never show Data. That costs a try one read and a wait two, and a caller without an ID
// nothing.
func TestAnErrorNamesTheHolder(t *testing.T) {
	for name, locks := range named {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				hold, _ := locks(w.Open("a", nil), "worker-7")
				h := coordtest.MustLock(w.T, hold)
				defer h.Release()
				if w.Fake {
					time.Sleep(12 * time.Second)
				}
				var x callKinds
				b := w.Open("b", x.hooks())
				_, first := locks(b, "")
				w.givesUp(first) // a first use costs more
				costs := make(map[string][2]map[string]int)
				for _, id := range []string{"", "worker-8"} {
					_, other := locks(b, id)
					// The first try of a mutex also reads whether the holder's client may keep it.
					_, err := other.TryLock(context.Background())
					coordtest.WantErr(w.T, err, coord.ErrLocked)
					x.reset()
					began := time.Now()
					_, tried := other.TryLock(context.Background())
					triedCost := x.reset()
					late := w.givesUp(other)
					if !w.Fake && time.Since(began) >= time.Second {
						return // a busy machine: the search for the holder ends after a second
					}
					costs[id] = [2]map[string]int{triedCost, x.reset()}
					coordtest.WantErr(w.T, tried, coord.ErrLocked)
					for _, err := range []error{tried, late} {
						text := err.Error()
						for _, form := range []string{lockData, base64.StdEncoding.EncodeToString([]byte(lockData))} {
							if strings.Contains(text, form) {
								w.T.Errorf("%v shows Data", err)
							}
						}
						want := regexp.MustCompile(`^coord: \w+ \S+: .* \(held by "worker-7", which came \d+s ago\)$`)
						if w.Fake {
							want = regexp.MustCompile(`(locked|canceled) \(held by "worker-7", which came 12s ago\)$`)
						}
						if id != "" && !want.MatchString(text) || id == "" && strings.Contains(text, "held by") {
							w.T.Errorf("with the ID %q: %v", id, err)
						}
					}
				}
				for i, more := range []map[string]int{{"get": 1}, {"get": 1, "children": 1}} {
					want := map[string]int{}
					maps.Copy(want, costs[""][i])
					for op, n := range more {
						want[op] += n
					}
					if got := costs["worker-8"][i]; !maps.Equal(got, want) {
						w.T.Errorf("with an ID %v, want %v", got, want)
					}
				}
			})
		})
	}
}

// A holder without an ID is named by its session, and of several holders the first.
func TestAnErrorNamesTheFirstHolder(t *testing.T) {
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
				text := regexp.MustCompile(`\(held by session 0x[0-9a-f]+, which came 0s ago, and 2 more\)$`)
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
					if !strings.Contains(err.Error(), `held by "b", which came 0s ago, and 1 more`) {
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
func TestAnErrorNamesTheHolderInsideAProcess(t *testing.T) {
	onMemory(t, func(w *world) {
		var x callKinds
		c := w.Open("a", x.hooks())
		id := strings.Repeat("é", 3000) // it is cut
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/m", &coord.MutexOptions{ID: id}))
		m := coord.NewMutex(c, "/m", &coord.MutexOptions{ID: "b"})
		x.reset()
		_, tried := m.TryLock(context.Background())
		coordtest.WantErr(w.T, tried, coord.ErrLocked)
		if n := x.reset(); len(n) > 0 || !strings.Contains(tried.Error(), "another caller of this client is ahead") {
			w.T.Errorf("%v, at the cost of %v", tried, n)
		}
		late := w.givesUp(m)
		if n := x.reset(); !maps.Equal(n, map[string]int{"children": 1, "get": 1}) || !strings.HasSuffix(late.Error(), `(held by "`+strings.Repeat("é", 100)+`", which came 0s ago)`) {
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
func TestTheSearchForTheHolderDelaysNoCall(t *testing.T) {
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
