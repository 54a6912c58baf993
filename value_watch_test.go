package coord_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// nextValue returns the next element of a watch.
func nextValue[T any](t *testing.T, ch <-chan coord.Versioned[T]) coord.Versioned[T] {
	t.Helper()
	select {
	case e, ok := <-ch:
		if !ok {
			t.Fatal("the watch was closed")
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("the watch tells nothing")
	}
	panic("not reached")
}

// quietValue fails the test if a watch tells something. It shows only where time is
// fake that nothing is on its way.
func quietValue[T any](w *world, ch <-chan coord.Versioned[T]) {
	w.t.Helper()
	w.settle()
	select {
	case e, ok := <-ch:
		w.t.Errorf("the watch tells %+v, %v, and nothing has changed", e, ok)
	default:
	}
}

func TestAWatchTellsOfEachState(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		v := coord.NewValue[settings](w.open("a", nil), "/x/v", nil)
		other := coord.NewValue[settings](w.open("b", nil), "/x/v", nil)
		ch := v.Watch(ctx)
		e := nextValue(w.t, ch)
		var named *backend.Error
		if !errors.Is(e.Err, coord.ErrNotFound) || !errors.As(e.Err, &named) || named.Op != "watch" || e.Czxid != 0 {
			w.t.Errorf("nothing there: %+v", e)
		}
		quietValue(w, ch)
		first := setValue(w.t, other, settings{Rate: 1})
		if e := nextValue(w.t, ch); e != first {
			w.t.Errorf("told %+v, want %+v", e, first)
		}
		second := setValue(w.t, other, settings{Rate: 2})
		if e := nextValue(w.t, ch); e != second {
			w.t.Errorf("told %+v, want %+v", e, second)
		}
		quietValue(w, ch)
		// The same value again is a change.
		third := setValue(w.t, other, settings{Rate: 2})
		if e := nextValue(w.t, ch); e != third {
			w.t.Errorf("told %+v, want %+v", e, third)
		}
		w.outsider(backend.SetData(w.path("/x/v"), []byte("{"), backend.AnyVersion))
		e = nextValue(w.t, ch)
		if !errors.Is(e.Err, coord.ErrDecode) || e.Version != 3 || e.Czxid != first.Czxid || e.Mzxid <= third.Mzxid {
			w.t.Errorf("undecodable: %+v", e)
		}
		fixed, err := v.CompareAndSet(ctx, e, settings{Rate: 3})
		if err != nil {
			w.t.Fatal(err)
		}
		if e := nextValue(w.t, ch); e != fixed {
			w.t.Errorf("told %+v, want %+v", e, fixed)
		}
		if err := other.Delete(ctx, fixed); err != nil {
			w.t.Fatal(err)
		}
		if e := nextValue(w.t, ch); !errors.Is(e.Err, coord.ErrNotFound) {
			w.t.Errorf("deleted: %+v", e)
		}
		again := setValue(w.t, other, settings{Rate: 4})
		if e := nextValue(w.t, ch); e != again {
			w.t.Errorf("told %+v, want %+v", e, again)
		}
		// In one commit, so that no state lies between; and the version is equal.
		w.outsider(backend.Delete(w.path("/x/v"), 0), backend.Create(w.path("/x/v"), []byte(`{"rate":4}`), backend.Persistent))
		if e := nextValue(w.t, ch); e.Version != again.Version || e.Czxid <= again.Czxid || e.Value != again.Value {
			w.t.Errorf("made again: %+v after %+v", e, again)
		}
		cancel()
		w.eventually("the channel is closed", func() bool {
			select {
			case e, ok := <-ch:
				if ok {
					w.t.Errorf("told %+v after the end", e)
				}
				return !ok
			default:
				return false
			}
		})
	})
}

func TestASlowReaderOfAWatchSeesTheNewest(t *testing.T) {
	onEach(t, func(w *world) {
		v := coord.NewValue[int](w.open("a", nil), "/v", nil)
		setValue(w.t, v, 0)
		ch := coord.NewValue[int](w.open("b", nil), "/v", nil).Watch(w.t.Context())
		var last coord.Versioned[int]
		for i := range 10 {
			last = setValue(w.t, v, i+1)
		}
		var changed int64
		for e := nextValue(w.t, ch); e.Value != 10; e = nextValue(w.t, ch) {
			if e.Mzxid <= changed {
				w.t.Errorf("told %+v after %d", e, changed)
			}
			changed = e.Mzxid
		}
		quietValue(w, ch)
		if got := getValue(w.t, v); got != last {
			w.t.Errorf("got %+v, want %+v", got, last)
		}
	})
}

func TestCloseEndsAWatchWithErrClosed(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.open("a", nil)
		v, gone := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](c, "/none", nil)
		setValue(w.t, v, 1)
		watches := []<-chan coord.Versioned[int]{v.Watch(context.Background()), gone.Watch(context.Background())}
		for _, ch := range watches {
			nextValue(w.t, ch)
		}
		c.Close()
		for _, ch := range append(watches, v.Watch(context.Background())) {
			e := nextValue(w.t, ch)
			if !errors.Is(e.Err, coord.ErrClosed) || e.Czxid != 0 {
				w.t.Errorf("last element %+v", e)
			}
			if e, ok := <-ch; ok {
				w.t.Errorf("%+v after the last element", e)
			}
		}
		_, err := v.Set(context.Background(), 2)
		wantErr(w.t, err, coord.ErrClosed)
		_, err = coord.NewCounter(c, "/n", nil).Add(context.Background(), 1)
		wantErr(w.t, err, coord.ErrClosed)
	})
}

func TestAWatchThatIsRefusedEndsWithTheReason(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		v := coord.NewValue[int](w.open("a", &backendtest.Hooks{Before: before.before}), "/v", nil)
		setValue(w.t, v, 1)
		ch := v.Watch(w.t.Context())
		nextValue(w.t, ch)
		before.arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
			func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		setValue(w.t, v, 2)
		if e := nextValue(w.t, ch); !errors.Is(e.Err, coord.ErrDenied) || e.Czxid != 0 {
			w.t.Errorf("last element %+v", e)
		}
		if e, ok := <-ch; ok {
			w.t.Errorf("%+v after the last element", e)
		}
	})
}

// Curator-311: a reader stayed with what it had read before the connection broke.
func TestAWatchIsNotStaleAfterPartitionAndExpiry(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.open("a", nil)
		v := coord.NewValue[int](c, "/v", nil)
		other := coord.NewValue[int](w.open("b", nil), "/v", nil)
		last := setValue(w.t, other, 1)
		ch := v.Watch(w.t.Context())
		none := coord.NewValue[int](c, "/none", nil).Watch(w.t.Context())
		if e := nextValue(w.t, ch); e != last {
			w.t.Errorf("told %+v, want %+v", e, last)
		}
		nextValue(w.t, none)
		link := w.Link("a")
		states := c.States(w.t.Context())
		until := func(phase coord.Phase) {
			w.t.Helper()
			for st := range states {
				if st.Phase == phase {
					return
				}
			}
		}
		changes := map[string]func(){
			"replaced": func() { last = setValue(w.t, other, last.Value+1) },
			"made again": func() { // at the same version
				if err := other.Delete(context.Background(), last); err != nil {
					w.t.Fatal(err)
				}
				last = setValue(w.t, other, last.Value+1)
				for range 3 {
					last = setValue(w.t, other, last.Value+1)
				}
			},
			"nothing": func() {},
		}
		for _, what := range []string{"nothing", "replaced", "made again", "nothing"} {
			for _, lost := range []bool{false, true} {
				told := last
				until(coord.Connected)
				link.Partition()
				until(coord.Suspended)
				if lost {
					until(coord.Lost)
				}
				changes[what]()
				link.Heal()
				if what != "nothing" {
					if e := nextValue(w.t, ch); e != last {
						w.t.Errorf("%s after %v, lost %v: told %+v, want %+v", what, told, lost, e, last)
					}
				}
				until(coord.Connected)
				if w.fake {
					time.Sleep(time.Second)
				}
				quietValue(w, ch)
				quietValue(w, none)
				states = c.States(w.t.Context())
			}
		}
		s, err := c.Session(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		link.Expire(s.ID())
		last = setValue(w.t, other, 100)
		if e := nextValue(w.t, ch); e != last {
			w.t.Errorf("after expiry: told %+v, want %+v", e, last)
		}
	})
}

func TestAValueMadeBetweenTheTwoReadsOfAWatchIsSeen(t *testing.T) {
	onEach(t, func(w *world) {
		var before nth
		c := w.open("a", &backendtest.Hooks{Before: before.before})
		before.arm(1, func(c backendtest.Call) bool { return c.Op == "exists" && c.Path == w.path("/v") },
			func(context.Context, backendtest.Call, error) error {
				w.outsider(backend.Create(w.path("/v"), []byte("7"), backend.Persistent))
				return nil
			})
		v := coord.NewValue[int](c, "/v", nil)
		ch := v.Watch(w.t.Context())
		if e := nextValue(w.t, ch); e.Err != nil || e.Value != 7 {
			w.t.Errorf("told %+v", e)
		}
		last := setValue(w.t, v, 8)
		if e := nextValue(w.t, ch); e != last {
			w.t.Errorf("told %+v, want %+v", e, last)
		}
	})
}
