package recipetest

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

// lineHolderTests are tests of Mutex on each service.
type lineHolderTests struct{ Services }

// A try that fails, and a wait that its context ends, name the holder if the caller has an ID,
// and never show Data. That costs a try one read and a wait two, and a caller without an ID
// nothing.
func (on lineHolderTests) AnErrorNamesTheHolder(t *testing.T) {
	for name, locks := range named {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
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
						want := regexp.MustCompile(`^coord: \w+ \S+: .* \(held by "worker-7", which requested it (\d+m)?\d+s ago\)$`)
						if w.Fake {
							want = regexp.MustCompile(`(locked|canceled) \(held by "worker-7", which requested it 12s ago\)$`)
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
