package recipetest

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// wantLoad fails the test if Load does not return want with that error, as current.
func wantLoad[T comparable](w *world, v *coord.Value[T], want coord.Versioned[T], target error) {
	w.T.Helper()
	got, age := v.Load()
	if !w.Fake { // contact can break at any time
		w.Eventually("the value is current", func() bool {
			got, age = v.Load()
			return age == 0
		})
	}
	if age != 0 {
		w.T.Errorf("the age is %v, want 0", age)
	}
	sameLoad(w, got, want, target)
}

func sameLoad[T comparable](w *world, got, want coord.Versioned[T], target error) {
	w.T.Helper()
	var named *backend.Error
	if !errors.Is(got.Err, target) || target != nil && (!errors.As(got.Err, &named) || named.Op != "load") {
		w.T.Errorf("the error is %v, want %v", got.Err, target)
	}
	got.Err, want.Err = nil, nil
	if got != want {
		w.T.Errorf("loaded %+v, want %+v", got, want)
	}
}

// valueLoadTests are tests of Value on each service.
type valueLoadTests struct{ Services }

func (on valueLoadTests) LoadReturnsWhatAWatchHasSeen(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		v, other := coord.NewValue[settings](c, "/x/v", nil), coord.NewValue[settings](w.Open("b", nil), "/x/v", nil)
		bad := coord.NewValue[int](c, "v", nil)
		if got, age := bad.Load(); !errors.Is(got.Err, coord.ErrBadPath) || age != math.MaxInt64 {
			w.T.Errorf("a bad path: %+v, %v", got, age)
		}
		first := setValue(w.T, v, settings{Rate: 1})
		getValue(w.T, v)
		if got, age := v.Load(); !errors.Is(got.Err, coord.ErrNotFound) || got.Czxid != 0 || age != math.MaxInt64 {
			w.T.Errorf("before a Watch: %+v, %v", got, age)
		}
		ch := v.Watch(w.T.Context())
		next(w.T, ch)
		wantLoad(w, v, first, nil)
		for i := range 3 {
			last := setValue(w.T, other, settings{Rate: i})
			if e := next(w.T, ch); e != last {
				w.T.Errorf("reported %+v, want %+v", e, last)
			}
			wantLoad(w, v, last, nil)
		}
		if got, age := other.Load(); got.Czxid != 0 || age != math.MaxInt64 {
			w.T.Errorf("without a Watch of its own: %+v, %v", got, age)
		}
		// Nothing has to receive from the channel.
		last := setValue(w.T, other, settings{Rate: 9})
		w.Eventually("it is loaded", func() bool {
			got, _ := v.Load()
			return got == last
		})
	})
}

func (on valueLoadTests) ABadChangeKeepsTheLastGoodValueAndIsReported(t *testing.T) {
	on.each(t, func(w *world) {
		v := coord.NewValue[settings](w.Open("a", nil), "/v", nil)
		other := coord.NewValue[settings](w.Open("b", nil), "/v", nil)
		none := coord.Versioned[settings]{}
		ch := v.Watch(w.T.Context())
		next(w.T, ch)
		wantLoad(w, v, none, coord.ErrNotFound)
		w.outsider(backend.Create(w.Path("/v"), []byte("{"), backend.Persistent))
		next(w.T, ch)
		wantLoad(w, v, none, coord.ErrDecode)

		good := setValue(w.T, other, settings{Rate: 1})
		next(w.T, ch)
		wantLoad(w, v, good, nil)
		for _, junk := range []string{"{", "[", ""} {
			w.outsider(backend.SetData(w.Path("/v"), []byte(junk), backend.AnyVersion))
			if e := next(w.T, ch); e.Value != (settings{}) || e.Version == good.Version {
				w.T.Errorf("the Watch reports %+v", e)
			}
			wantLoad(w, v, good, coord.ErrDecode)
		}
		w.outsider(backend.Delete(w.Path("/v"), backend.AnyVersion))
		next(w.T, ch)
		wantLoad(w, v, good, coord.ErrNotFound)

		good = setValue(w.T, other, settings{Rate: 2})
		next(w.T, ch)
		wantLoad(w, v, good, nil)
	})
}

// until returns when the client is in the phase.
func until(w *world, c *coord.Client, phase coord.Phase) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(w.T.Context())
	defer cancel()
	for st := range c.WatchState(ctx) {
		if st.Phase == phase {
			return
		}
	}
	w.T.Fatalf("never %v", phase)
}

func (on valueLoadTests) TheAgeGrowsWithoutContactAndEndsWhenTheValueIsReadAgain(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		v, other := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		ch := v.Watch(w.T.Context())
		next(w.T, ch)
		link := w.Link("a")
		for _, lost := range []bool{false, true} {
			for _, changed := range []bool{false, true} {
				if lost && !changed && !w.Fake {
					continue // a loss takes seconds
				}
				wantLoad(w, v, last, nil)
				began := time.Now()
				link.Partition()
				until(w, c, coord.PhaseSuspended)
				first := age(v)
				if w.Fake {
					time.Sleep(time.Second)
				}
				if lost {
					until(w, c, coord.PhaseLost)
				}
				got, grown := v.Load()
				sameLoad(w, got, last, nil)
				if passed := time.Since(began); grown > passed || w.Fake && grown != passed {
					w.T.Errorf("lost %v: an age of %v after %v", lost, grown, passed)
				}
				if grown <= first {
					w.T.Errorf("lost %v: the age was %v, and is %v", lost, first, grown)
				}
				if changed {
					last = setValue(w.T, other, last.Value+1)
				}
				link.Heal()
				w.Eventually("the value is current", func() bool {
					got, age := v.Load()
					return age == 0 && got == last
				})
			}
		}
	})
}

func age[T any](v *coord.Value[T]) time.Duration {
	_, age := v.Load()
	return age
}

func (on valueLoadTests) AWatchThatBeganWithoutContactKeepsLoadCurrent(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		v, none := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](c, "/none", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		w.Link("a").Partition()
		until(w, c, coord.PhaseSuspended)
		v.Watch(w.T.Context())
		none.Watch(w.T.Context())
		w.Settle()
		if age(v) != math.MaxInt64 {
			w.T.Error("a value is loaded without contact")
		}
		w.Link("a").Heal()
		w.Eventually("both are current", func() bool { return age(v) == 0 && age(none) == 0 })
		wantLoad(w, v, last, nil)
		wantLoad(w, none, coord.Versioned[int]{}, coord.ErrNotFound)
		last = setValue(w.T, other, 2)
		w.Eventually("the change is loaded", func() bool {
			got, age := v.Load()
			return got == last && age == 0
		})
	})
}

// Watches that begin and end, with breaks of contact and lost sessions, never take Load back.
func (on valueLoadTests) LoadNeverGoesBack(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		v, other := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](w.Open("b", nil), "/v", nil)
		setValue(w.T, other, 0)
		var all sync.WaitGroup
		ctx, stop := context.WithCancel(w.T.Context())
		defer all.Wait()
		defer stop()
		for i := range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					watching, end := context.WithCancel(ctx)
					ch := v.Watch(watching)
					for range i + 1 {
						select {
						case <-ch:
						case <-ctx.Done():
						}
					}
					end()
					for range ch {
					}
					time.Sleep(time.Millisecond) // fake time passes only while all sleep
				}
			})
		}
		seen := int64(0)
		look := func() (value int) {
			got, _ := v.Load()
			if got.Mzxid < seen {
				w.T.Errorf("loaded %d after %d", got.Mzxid, seen)
			}
			seen = max(seen, got.Mzxid)
			return got.Value
		}
		link := w.Link("a")
		for i := range 40 {
			last := setValue(w.T, other, i+1)
			for range 100 {
				look()
			}
			switch {
			case i%10 == 5:
				link.Partition()
				look()
				link.Heal()
			case i == 17:
				s, err := c.Session(ctx)
				if err != nil {
					w.T.Fatal(err)
				}
				link.Expire(s.ID())
			}
			if i%8 == 7 {
				w.Eventually("the latest is loaded", func() bool { return look() == last.Value })
			}
		}
	})
}
