package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// quietValue fails the test if a watch reports an element. Only under fake time does it show
// that none is under way.
func quietValue[T any](w *world, ch <-chan coord.Versioned[T]) {
	w.T.Helper()
	w.Settle()
	select {
	case e, ok := <-ch:
		w.T.Errorf("the watch reports %+v, %v, but nothing has changed", e, ok)
	default:
	}
}

// valueWatchTests are tests of Value on each service.
type valueWatchTests struct{ Services }

func (on valueWatchTests) AWatchReportsEachState(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		v := coord.NewValue[settings](w.Open("a", nil), "/x/v", nil)
		other := coord.NewValue[settings](w.Open("b", nil), "/x/v", nil)
		ch := v.Watch(ctx)
		e := next(w.T, ch)
		var named *backend.Error
		if !errors.Is(e.Err, coord.ErrNotFound) || !errors.As(e.Err, &named) || named.Op != "watch" || e.Czxid != 0 {
			w.T.Errorf("nothing there: %+v", e)
		}
		quietValue(w, ch)
		first := setValue(w.T, other, settings{Rate: 1})
		if e := next(w.T, ch); e != first {
			w.T.Errorf("reported %+v, want %+v", e, first)
		}
		second := setValue(w.T, other, settings{Rate: 2})
		if e := next(w.T, ch); e != second {
			w.T.Errorf("reported %+v, want %+v", e, second)
		}
		quietValue(w, ch)
		// The same value again is a change.
		third := setValue(w.T, other, settings{Rate: 2})
		if e := next(w.T, ch); e != third {
			w.T.Errorf("reported %+v, want %+v", e, third)
		}
		w.outsider(backend.SetData(w.Path("/x/v"), []byte("{"), backend.AnyVersion))
		e = next(w.T, ch)
		if !errors.Is(e.Err, coord.ErrDecode) || e.Version != 3 || e.Czxid != first.Czxid || e.Mzxid <= third.Mzxid {
			w.T.Errorf("undecodable: %+v", e)
		}
		fixed, err := v.CompareAndSet(ctx, e, settings{Rate: 3})
		if err != nil {
			w.T.Fatal(err)
		}
		if e := next(w.T, ch); e != fixed {
			w.T.Errorf("reported %+v, want %+v", e, fixed)
		}
		if err := other.Delete(ctx, fixed); err != nil {
			w.T.Fatal(err)
		}
		if e := next(w.T, ch); !errors.Is(e.Err, coord.ErrNotFound) {
			w.T.Errorf("deleted: %+v", e)
		}
		again := setValue(w.T, other, settings{Rate: 4})
		if e := next(w.T, ch); e != again {
			w.T.Errorf("reported %+v, want %+v", e, again)
		}
		// In one commit, so that there is no state between them; and the version is equal.
		w.outsider(backend.Delete(w.Path("/x/v"), 0), backend.Create(w.Path("/x/v"), []byte(`{"rate":4}`), backend.Persistent))
		if e := next(w.T, ch); e.Version != again.Version || e.Czxid <= again.Czxid || e.Value != again.Value {
			w.T.Errorf("made again: %+v after %+v", e, again)
		}
		cancel()
		w.Eventually("the channel is closed", func() bool {
			select {
			case e, ok := <-ch:
				if ok {
					w.T.Errorf("reported %+v after the end", e)
				}
				return !ok
			default:
				return false
			}
		})
	})
}

func (on valueWatchTests) ASlowReaderOfAWatchSeesTheNewest(t *testing.T) {
	on.each(t, func(w *world) {
		v := coord.NewValue[int](w.Open("a", nil), "/v", nil)
		setValue(w.T, v, 0)
		ch := coord.NewValue[int](w.Open("b", nil), "/v", nil).Watch(w.T.Context())
		var last coord.Versioned[int]
		for i := range 10 {
			last = setValue(w.T, v, i+1)
		}
		var changed int64
		for e := next(w.T, ch); e.Value != 10; e = next(w.T, ch) {
			if e.Mzxid <= changed {
				w.T.Errorf("reported %+v after %d", e, changed)
			}
			changed = e.Mzxid
		}
		quietValue(w, ch)
		if got := getValue(w.T, v); got != last {
			w.T.Errorf("got %+v, want %+v", got, last)
		}
	})
}

func (on valueWatchTests) CloseEndsAWatchWithErrClosed(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		v, gone := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](c, "/none", nil)
		setValue(w.T, v, 1)
		watches := []<-chan coord.Versioned[int]{v.Watch(context.Background()), gone.Watch(context.Background())}
		for _, ch := range watches {
			next(w.T, ch)
		}
		c.Close()
		for _, ch := range append(watches, v.Watch(context.Background())) {
			e := next(w.T, ch)
			if !errors.Is(e.Err, coord.ErrClosed) || e.Czxid != 0 {
				w.T.Errorf("last element %+v", e)
			}
			if e, ok := <-ch; ok {
				w.T.Errorf("%+v after the last element", e)
			}
		}
		_, err := v.Set(context.Background(), 2)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = coord.NewCounter(c, "/n").Add(context.Background(), 1)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

// Curator-311: a reader kept what it had read before the connection broke.
func (on valueWatchTests) AWatchIsNotStaleAfterPartitionAndExpiry(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		v := coord.NewValue[int](c, "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		ch := v.Watch(w.T.Context())
		none := coord.NewValue[int](c, "/none", nil).Watch(w.T.Context())
		if e := next(w.T, ch); e != last {
			w.T.Errorf("reported %+v, want %+v", e, last)
		}
		next(w.T, none)
		link := w.Link("a")
		states := c.WatchState(w.T.Context())
		until := func(phase coord.Phase) {
			w.T.Helper()
			for st := range states {
				if st.Phase == phase {
					return
				}
			}
		}
		changes := map[string]func(){
			"replaced": func() { last = setValue(w.T, other, last.Value+1) },
			"made again": func() { // at the same version
				if err := other.Delete(context.Background(), last); err != nil {
					w.T.Fatal(err)
				}
				last = setValue(w.T, other, last.Value+1)
				for range 3 {
					last = setValue(w.T, other, last.Value+1)
				}
			},
			"nothing": func() {},
		}
		for _, what := range []string{"nothing", "replaced", "made again", "nothing"} {
			for _, lost := range []bool{false, true} {
				told := last
				until(coord.PhaseConnected)
				link.Partition()
				until(coord.PhaseSuspended)
				if lost {
					until(coord.PhaseLost)
				}
				changes[what]()
				link.Heal()
				if what != "nothing" {
					if e := next(w.T, ch); e != last {
						w.T.Errorf("%s after %v, lost %v: reported %+v, want %+v", what, told, lost, e, last)
					}
				}
				until(coord.PhaseConnected)
				if w.Fake {
					time.Sleep(time.Second)
				}
				quietValue(w, ch)
				quietValue(w, none)
				states = c.WatchState(w.T.Context())
			}
		}
		s, err := c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		link.Expire(s.ID())
		last = setValue(w.T, other, 100)
		if e := next(w.T, ch); e != last {
			w.T.Errorf("after expiry: reported %+v, want %+v", e, last)
		}
	})
}

func (on valueWatchTests) AValueMadeBetweenTheTwoReadsOfAWatchIsSeen(t *testing.T) {
	on.each(t, func(w *world) {
		var before coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: before.Before})
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "exists" && c.Path == w.Path("/v") },
			func(context.Context, backendtest.Call, error) error {
				w.outsider(backend.Create(w.Path("/v"), []byte("7"), backend.Persistent))
				return nil
			})
		v := coord.NewValue[int](c, "/v", nil)
		ch := v.Watch(w.T.Context())
		if e := next(w.T, ch); e.Err != nil || e.Value != 7 {
			w.T.Errorf("reported %+v", e)
		}
		last := setValue(w.T, v, 8)
		if e := next(w.T, ch); e != last {
			w.T.Errorf("reported %+v, want %+v", e, last)
		}
	})
}
