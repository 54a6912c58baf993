package coord_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
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

func TestLoadReturnsWhatAWatchHasSeen(t *testing.T) {
	onEach(t, func(w *world) {
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
		nextValue(w.T, ch)
		wantLoad(w, v, first, nil)
		for i := range 3 {
			last := setValue(w.T, other, settings{Rate: i})
			if e := nextValue(w.T, ch); e != last {
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

func TestABadChangeKeepsTheLastGoodValueAndIsReported(t *testing.T) {
	onEach(t, func(w *world) {
		v := coord.NewValue[settings](w.Open("a", nil), "/v", nil)
		other := coord.NewValue[settings](w.Open("b", nil), "/v", nil)
		none := coord.Versioned[settings]{}
		ch := v.Watch(w.T.Context())
		nextValue(w.T, ch)
		wantLoad(w, v, none, coord.ErrNotFound)
		w.outsider(backend.Create(w.Path("/v"), []byte("{"), backend.Persistent))
		nextValue(w.T, ch)
		wantLoad(w, v, none, coord.ErrDecode)

		good := setValue(w.T, other, settings{Rate: 1})
		nextValue(w.T, ch)
		wantLoad(w, v, good, nil)
		for _, junk := range []string{"{", "[", ""} {
			w.outsider(backend.SetData(w.Path("/v"), []byte(junk), backend.AnyVersion))
			if e := nextValue(w.T, ch); e.Value != (settings{}) || e.Version == good.Version {
				w.T.Errorf("the Watch reports %+v", e)
			}
			wantLoad(w, v, good, coord.ErrDecode)
		}
		w.outsider(backend.Delete(w.Path("/v"), backend.AnyVersion))
		nextValue(w.T, ch)
		wantLoad(w, v, good, coord.ErrNotFound)

		good = setValue(w.T, other, settings{Rate: 2})
		nextValue(w.T, ch)
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

func TestTheAgeGrowsWithoutContactAndEndsWhenTheValueIsReadAgain(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		v, other := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		ch := v.Watch(w.T.Context())
		nextValue(w.T, ch)
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

// The outage is over before a goroutine can notice it, but not for the watch.
func TestAShortBreakOfContactAgesTheValueUntilItIsRead(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: before.Before})
		v := coord.NewValue[int](c, "/v", nil)
		last := setValue(w.T, v, 1)
		nextValue(w.T, v.Watch(w.T.Context()))
		goOn := make(chan struct{})
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
			func(context.Context, backendtest.Call, error) error { <-goOn; return nil })
		w.Link("a").Partition()
		w.Link("a").Heal()
		w.Settle()
		time.Sleep(3 * time.Second)
		got, age := v.Load()
		sameLoad(w, got, last, nil)
		if age != 3*time.Second {
			w.T.Errorf("the age is %v while the value is not read again", age)
		}
		// The read that began before this break arms its watch after it.
		w.Link("a").Partition()
		w.Link("a").Heal()
		close(goOn)
		time.Sleep(time.Second) // a value that is not current ages
		wantLoad(w, v, last, nil)
	})
}

func TestTheAgeGrowsWhileAChangeIsBeingRead(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		nextValue(w.T, v.Watch(w.T.Context()))
		goOn := make(chan struct{})
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
			func(context.Context, backendtest.Call, error) error { <-goOn; return nil })
		time.Sleep(time.Minute)
		next := setValue(w.T, other, 2)
		w.Settle()
		time.Sleep(time.Second)
		got, age := v.Load()
		sameLoad(w, got, last, nil)
		if age != time.Second {
			w.T.Errorf("the age is %v, one second after the change", age)
		}
		close(goOn)
		w.Settle()
		wantLoad(w, v, next, nil)
	})
}

func TestAWatchThatBeganWithoutContactKeepsLoadCurrent(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestTheAgeGrowsWhenTheLastWatchHasEnded(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		v, other := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		var ends []context.CancelFunc
		for range 3 {
			ctx, cancel := context.WithCancel(w.T.Context())
			defer cancel()
			nextValue(w.T, v.Watch(ctx))
			ends = append(ends, cancel)
			w.Settle()
		}
		for _, end := range ends[:2] {
			time.Sleep(time.Second)
			end()
			w.Settle()
			wantLoad(w, v, last, nil)
			last = setValue(w.T, other, last.Value+1)
			w.Settle()
			wantLoad(w, v, last, nil)
		}
		ends[2]()
		w.Settle()
		time.Sleep(time.Second)
		setValue(w.T, other, 100)
		got, age := v.Load()
		sameLoad(w, got, last, nil)
		if age != time.Second {
			w.T.Errorf("the age is %v, one second after the end", age)
		}
		// Another Watch, and then the end of the client.
		if e := nextValue(w.T, v.Watch(w.T.Context())); e.Value != 100 {
			w.T.Errorf("reported %+v", e)
		}
		time.Sleep(time.Second)
		last = getValue(w.T, v)
		wantLoad(w, v, last, nil)
		c.Close()
		time.Sleep(time.Second)
		got, age = v.Load()
		sameLoad(w, got, last, nil)
		if age != time.Second {
			w.T.Errorf("the age is %v, one second after Close", age)
		}
	})
}

func TestAWatchThatIsRefusedLeavesTheLastValueToAge(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		nextValue(w.T, v.Watch(w.T.Context()))
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
			func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		setValue(w.T, other, 2)
		w.Settle()
		time.Sleep(time.Hour)
		got, age := v.Load()
		sameLoad(w, got, last, nil)
		if age != time.Hour {
			w.T.Errorf("the age is %v", age)
		}
	})
}

func TestAWatchThatReadsLateDoesNotTakeLoadBack(t *testing.T) {
	for _, ends := range []bool{false, true} {
		onMemory(t, func(w *world) {
			var after coordtest.Nth
			v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{After: after.After}), "/v", nil)
			other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
			setValue(w.T, other, 1)
			ctx, end := context.WithCancel(w.T.Context())
			defer end()
			goOn := make(chan struct{})
			first := v.Watch(ctx)
			nextValue(w.T, first)
			after.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
				func(context.Context, backendtest.Call, error) error { <-goOn; return nil })
			late := v.Watch(w.T.Context())
			w.Settle() // it has read, and its reply is under way
			time.Sleep(time.Second)
			last := setValue(w.T, other, 2)
			if e := nextValue(w.T, first); e != last {
				w.T.Errorf("reported %+v, want %+v", e, last)
			}
			if ends {
				end()
				w.Settle()
			}
			// The next read of the late Watch is held up too.
			again := make(chan struct{})
			after.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
				func(context.Context, backendtest.Call, error) error { <-again; return nil })
			close(goOn)
			w.Settle()
			got, age := v.Load()
			sameLoad(w, got, last, nil)
			if !ends && age != 0 {
				w.T.Errorf("the age is %v while the first Watch knows the latest state", age)
			}
			close(again)
			w.Settle()
			if e := nextValue(w.T, late); e != last {
				w.T.Errorf("reported %+v, want %+v", e, last)
			}
			wantLoad(w, v, last, nil)
		})
	}
}

// A missing node has no number that shows whether a read of it is older than a node.
func TestAWatchThatFindsNoNodeLateDoesNotTakeLoadBack(t *testing.T) {
	for _, ends := range []bool{false, true} {
		onMemory(t, func(w *world) {
			var after coordtest.Nth
			v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{After: after.After}), "/v", nil)
			other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
			hold := func(op string) (goOn chan struct{}) {
				goOn = make(chan struct{})
				after.Arm(1, func(c backendtest.Call) bool { return c.Op == op },
					func(_ context.Context, _ backendtest.Call, err error) error { <-goOn; return err })
				return goOn
			}
			goOn := hold("exists")
			late := v.Watch(w.T.Context())
			w.Settle() // it has found no node, and its reply is under way
			time.Sleep(time.Second)
			last := setValue(w.T, other, 1)
			ctx, end := context.WithCancel(w.T.Context())
			defer end()
			if e := nextValue(w.T, v.Watch(ctx)); e != last {
				w.T.Errorf("reported %+v, want %+v", e, last)
			}
			if ends {
				end()
				w.Settle()
			}
			again := hold("get") // the next read of the late Watch
			close(goOn)
			w.Settle()
			got, age := v.Load()
			sameLoad(w, got, last, nil)
			if !ends && age != 0 {
				w.T.Errorf("the age is %v while the first Watch knows the latest state", age)
			}
			close(again)
			if e := nextValue(w.T, late); e != last {
				w.T.Errorf("reported %+v, want %+v", e, last)
			}
			if err := other.Delete(w.T.Context(), last); err != nil {
				w.T.Fatal(err)
			}
			w.Settle()
			wantLoad(w, v, last, coord.ErrNotFound)
		})
	}
}

// Watches that begin and end, with breaks of contact and lost sessions, never take Load back.
func TestLoadNeverGoesBack(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestALoadAllocatesNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		v := coord.NewValue[settings](w.Open("a", nil), "/v", nil)
		setValue(w.T, v, settings{Rate: 1})
		nextValue(w.T, v.Watch(w.T.Context()))
		load := func() {
			if got, age := v.Load(); got.Value.Rate != 1 || age < 0 {
				w.T.Errorf("loaded %+v, %v", got, age)
			}
		}
		if n := testing.AllocsPerRun(100, load); n != 0 {
			w.T.Errorf("current: %v allocations", n)
		}
		w.Link("a").Partition()
		w.outsider(backend.SetData("/v", []byte("{"), backend.AnyVersion))
		if n := testing.AllocsPerRun(100, load); n != 0 {
			w.T.Errorf("without contact: %v allocations", n)
		}
		w.Link("a").Heal()
		w.Settle()
		if got, _ := v.Load(); !errors.Is(got.Err, coord.ErrDecode) {
			w.T.Fatalf("loaded %+v", got)
		}
		if n := testing.AllocsPerRun(100, load); n != 0 {
			w.T.Errorf("with a bad change: %v allocations", n)
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	c, err := coord.Open(b.Context(), memory.New(nil), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	v := coord.NewValue[settings](c, "/v", nil)
	if _, err = v.Set(b.Context(), settings{Rate: 1}); err != nil {
		b.Fatal(err)
	}
	<-v.Watch(b.Context())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if now, age := v.Load(); now.Value.Rate != 1 || age != 0 {
				b.Errorf("loaded %+v, %v", now, age)
				return
			}
		}
	})
}
