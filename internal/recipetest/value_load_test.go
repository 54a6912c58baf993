package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// The outage is over before a goroutine can notice it, but not for the watch.
func TestValue_AShortBreakOfContactAgesTheValueUntilItIsRead(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: before.Before})
		v := coord.NewValue[int](c, "/v", nil)
		last := setValue(w.T, v, 1)
		next(w.T, v.Watch(w.T.Context()))
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

func TestValue_TheAgeGrowsWhileAChangeIsBeingRead(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		next(w.T, v.Watch(w.T.Context()))
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

func TestValue_TheAgeGrowsWhenTheLastWatchHasEnded(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		v, other := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		var ends []context.CancelFunc
		for range 3 {
			ctx, cancel := context.WithCancel(w.T.Context())
			defer cancel()
			next(w.T, v.Watch(ctx))
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
		if e := next(w.T, v.Watch(w.T.Context())); e.Value != 100 {
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

func TestValue_AWatchThatIsRefusedLeavesTheLastValueToAge(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		next(w.T, v.Watch(w.T.Context()))
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

func TestValue_AWatchThatReadsLateDoesNotTakeLoadBack(t *testing.T) {
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
			next(w.T, first)
			after.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
				func(context.Context, backendtest.Call, error) error { <-goOn; return nil })
			late := v.Watch(w.T.Context())
			w.Settle() // it has read, and its reply is under way
			time.Sleep(time.Second)
			last := setValue(w.T, other, 2)
			if e := next(w.T, first); e != last {
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
			if e := next(w.T, late); e != last {
				w.T.Errorf("reported %+v, want %+v", e, last)
			}
			wantLoad(w, v, last, nil)
		})
	}
}

// A missing node has no number that shows whether a read of it is older than a node.
func TestValue_AWatchThatFindsNoNodeLateDoesNotTakeLoadBack(t *testing.T) {
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
			if e := next(w.T, v.Watch(ctx)); e != last {
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
			if e := next(w.T, late); e != last {
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

func TestValue_ALoadAllocatesNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		v := coord.NewValue[settings](w.Open("a", nil), "/v", nil)
		setValue(w.T, v, settings{Rate: 1})
		next(w.T, v.Watch(w.T.Context()))
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
