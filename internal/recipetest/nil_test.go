package recipetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// everyRecipe returns a value of each recipe of c.
func everyRecipe(c *coord.Client) map[string]any {
	return map[string]any{
		"Client": c, "Txn": coord.NewTxn(c),
		"Mutex": coord.NewMutex(c, "/mutex", nil), "RWMutex": coord.NewRWMutex(c, "/rw", nil),
		"RLocker": coord.NewRWMutex(c, "/rw", nil).RLocker(), "Semaphore": coord.NewSemaphore(c, "/sem", 2, nil),
		"permits": coord.NewSemaphore(c, "/sem", 2, nil).Locker(1), "Election": coord.NewElection(c, "/election", nil),
		"Group": coord.NewGroup[int](c, "/group", nil), "Value": coord.NewValue[int](c, "/value", nil),
		"Counter": coord.NewCounter(c, "/counter"), "Cache": coord.NewCache(c, "/cache", nil),
		"Barrier": coord.NewBarrier(c, "/barrier", nil), "DoubleBarrier": coord.NewDoubleBarrier(c, "/double", 1, nil),
		"Queue": coord.NewQueue[int](c, "/queue", nil), "PriorityQueue": coord.NewPriorityQueue[int](c, "/priority", nil),
		"DelayQueue": coord.NewDelayQueue[int](c, "/delay", nil), "Shards": coord.NewShards(c, "/shards", 2, nil),
		"Schedule":    coord.NewSchedule(c, "/schedule", coord.Every(time.Hour), nil),
		"Coordinator": coord.NewCoordinator[int](c, "/tx", nil),
		"Participant": coord.NewParticipant(c, "/tx", "a", coord.Handler[int]{
			Prepare: func(context.Context, coord.Branch[int]) error { return nil },
			Commit:  func(context.Context, coord.Branch[int]) error { return nil },
			Abort:   func(context.Context, coord.Branch[int]) error { return nil },
		}),
	}
}

// panics returns the value of the panic of f, or nil.
func panics(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

// Each call with a nil Context panics on the goroutine of its caller, and says so.
func TestNil_AContext(t *testing.T) {
	onMemory(t, func(w *world) {
		none, calls := reflect.Zero(reflect.TypeFor[context.Context]()), 0
		for name, recipe := range everyRecipe(w.Open("a", nil)) {
			v := reflect.ValueOf(recipe)
			for i := range v.NumMethod() {
				m := v.Method(i)
				if m.Type().NumIn() == 0 || m.Type().In(0) != none.Type() {
					continue
				}
				args := []reflect.Value{none}
				for j := 1; j < m.Type().NumIn(); j++ {
					switch in := m.Type().In(j); {
					case m.Type().IsVariadic() && j == m.Type().NumIn()-1:
					case in.Kind() == reflect.Int || in.Kind() == reflect.Int64:
						args = append(args, reflect.ValueOf(1).Convert(in))
					case in.Kind() == reflect.String:
						args = append(args, reflect.ValueOf("a").Convert(in))
					case in.Kind() == reflect.Func:
						args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value {
							w.T.Errorf("%s: called", name)
							return nil
						}))
					default:
						args = append(args, reflect.Zero(in))
					}
				}
				calls++
				if said := fmt.Sprint(panics(func() { m.Call(args) })); !strings.Contains(said, "nil Context") {
					w.T.Errorf("%s.%s: %s", name, v.Type().Method(i).Name, said)
				}
			}
		}
		if calls < 60 {
			w.T.Errorf("only %d calls", calls)
		}
	})
}

// Each recipe of a nil Client panics where it is made, and so does each recipe of a Client that Open has
// not returned.
func TestNil_AClient(t *testing.T) {
	if said := fmt.Sprint(panics(func() { everyRecipe(nil) })); !strings.Contains(said, "nil Client") {
		t.Error(said)
	}
	for name, f := range map[string]func(c *coord.Client){
		"Txn":           func(c *coord.Client) { coord.NewTxn(c) },
		"Mutex":         func(c *coord.Client) { coord.NewMutex(c, "/m", nil) },
		"RWMutex":       func(c *coord.Client) { coord.NewRWMutex(c, "/rw", nil) },
		"Semaphore":     func(c *coord.Client) { coord.NewSemaphore(c, "/sem", 1, nil) },
		"Election":      func(c *coord.Client) { coord.NewElection(c, "/e", nil) },
		"Group":         func(c *coord.Client) { coord.NewGroup[int](c, "/g", nil) },
		"Value":         func(c *coord.Client) { coord.NewValue[int](c, "/v", nil) },
		"Barrier":       func(c *coord.Client) { coord.NewBarrier(c, "/b", nil) },
		"DoubleBarrier": func(c *coord.Client) { coord.NewDoubleBarrier(c, "/d", 1, nil) },
		"Cache":         func(c *coord.Client) { coord.NewCache(c, "/m", nil) },
		"Queue":         func(c *coord.Client) { coord.NewQueue[int](c, "/q", nil) },
		"Counter":       func(c *coord.Client) { coord.NewCounter(c, "/c") },
		"Shards":        func(c *coord.Client) { coord.NewShards(c, "/s", 1, nil) },
		"Schedule":      func(c *coord.Client) { coord.NewSchedule(c, "/s", nil, nil) },
		"Coordinator":   func(c *coord.Client) { coord.NewCoordinator[int](c, "/tx", nil) },
		"Participant":   func(c *coord.Client) { coord.NewParticipant(c, "/tx", "a", coord.Handler[int]{}) },
	} {
		for _, c := range []*coord.Client{nil, new(coord.Client)} {
			if said := fmt.Sprint(panics(func() { f(c) })); !strings.Contains(said, "nil Client") {
				t.Errorf("%s of %#v: %s", name, c, said)
			}
		}
	}
}

// A call without its function is refused before anything is acquired.
func TestNil_AFunction(t *testing.T) {
	onMemory(t, func(w *world) {
		c, ctx := w.Open("a", nil), context.Background()
		for name, err := range map[string]error{
			"Mutex":     coord.NewMutex(c, "/m", nil).Do(ctx, nil),
			"RWMutex":   coord.NewRWMutex(c, "/rw", nil).Do(ctx, nil),
			"RLocker":   coord.NewRWMutex(c, "/rw", nil).RLocker().Do(ctx, nil),
			"Semaphore": coord.NewSemaphore(c, "/sem", 1, nil).Locker(1).Do(ctx, nil),
			"Election":  coord.NewElection(c, "/e", nil).Run(ctx, nil),
			"Shards":    coord.NewShards(c, "/s", 1, nil).Run(ctx, nil),
			"Schedule":  coord.NewSchedule(c, "/s", coord.Every(time.Hour), nil).Run(ctx, nil),
			"Work":      coord.NewQueue[int](c, "/q", nil).Work(ctx, 1, nil),
			"Update": func() error {
				_, err := coord.NewValue[int](c, "/v", nil).Update(ctx, nil)
				return err
			}(),
		} {
			if coordtest.WantErr(w.T, err, coord.ErrInvalid); err == nil || errors.Is(err, coord.ErrLost) {
				w.T.Errorf("%s: %v", name, err)
			}
		}
		if left := w.Children("/"); len(left) > 0 {
			w.T.Errorf("made %v", left)
		}
	})
}

// LockAll refuses a lock that no constructor has made, as a nil one. A Hold that no recipe has granted
// has not ended, and has no node, nor has such a Membership: users have some in tests of their own
// functions. An Election that no constructor has made refuses what it can refuse without a client.
func TestNil_ZeroValues(t *testing.T) {
	for name, l := range map[string]coord.Locker{
		"Mutex": new(coord.Mutex), "RWMutex": new(coord.RWMutex), "RLocker": new(coord.RWMutex).RLocker(), "permits": new(coord.Semaphore).Locker(1),
	} {
		if _, err := coord.LockAll(context.Background(), l); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var h coord.Hold
	_, asked := h.Revocation()
	if h.Err() != nil || h.Token() != 0 || h.Path() != "" || h.Session() != 0 || asked {
		t.Errorf("error %v, token %d, path %q, session %d, a request %t", h.Err(), h.Token(), h.Path(), h.Session(), asked)
	}
	var m coord.Membership[int]
	if m.Err() != nil || m.ID() != "" {
		t.Errorf("a Membership: error %v, id %q", m.Err(), m.ID())
	}
	var e coord.Election
	ended, end := context.WithCancel(context.Background())
	end()
	_, err := e.Campaign(ended)
	coordtest.WantErr(t, err, context.Canceled)
	coordtest.WantErr(t, e.Run(context.Background(), nil), coord.ErrInvalid)
	for what, c := range map[string]<-chan struct{}{"Done": h.Done(), "Revoked": h.Revoked(), "Done of a Membership": m.Done()} {
		select {
		case <-c:
			t.Errorf("%s is closed", what)
		default:
		}
	}
}
