//go:build !race

package model

import (
	"errors"
	"os"
	"reflect"
	"testing"
	"time"
)

// long reports whether the full scopes are requested.
func long() bool { return os.Getenv("COORD_LONG") == "1" }

// mostStates bounds the memory of one exploration to about 5 GB. The short form needs a
// quarter of a GB in all.
const mostStates = 15_000_000

// exploreAll explores a model, and logs its size.
func exploreAll[S comparable, A any](t *testing.T, name string, m Model[S, A]) Result[A] {
	t.Helper()
	began := time.Now()
	r := Explore(m, mostStates)
	t.Logf("figure: model %s: %d states, %d steps, depth %d, %.1f s", name, r.States, r.Steps, r.Depth, time.Since(began).Seconds())
	return r
}

// mustHold fails the test if a state is bad, or if not all states were visited.
func mustHold[A any](t *testing.T, r Result[A]) {
	t.Helper()
	switch {
	case r.Err != nil:
		t.Errorf("a guarantee is violated:\n%v", r)
	case !r.Full:
		t.Errorf("only the first %d states were visited", r.States)
	}
}

// mustViolate fails the test unless the nearest bad state has the error fault, and is so many steps
// away. Zero steps stand for any number.
func mustViolate[A any](t *testing.T, r Result[A], fault error, steps int) {
	t.Helper()
	if !errors.Is(r.Err, fault) || steps > 0 && len(r.Trace) != steps {
		t.Errorf("got %v after %d steps, want %v after %d", r.Err, len(r.Trace), fault, steps)
	}
	t.Logf("the shortest way to violate a guarantee:\n%v", r)
}

// jugs is the well-known puzzle: with a jug of 3 and one of 5, measure 4.
func jugs(goal int) Model[[2]int, string] {
	errFound := errors.New("measured")
	return Model[[2]int, string]{Next: func(s [2]int, step func(string, [2]int)) error {
		if s[1] == goal {
			return errFound
		}
		a, b := s[0], s[1]
		step("fill 3", [2]int{3, b})
		step("fill 5", [2]int{a, 5})
		step("empty 3", [2]int{0, b})
		step("empty 5", [2]int{a, 0})
		n := min(a, 5-b)
		step("3 into 5", [2]int{a - n, b + n})
		n = min(b, 3-a)
		step("5 into 3", [2]int{a + n, b - n})
		return nil
	}}
}

func TestTheTraceToABadStateIsAShortestOne(t *testing.T) {
	t.Parallel()
	r := Explore(jugs(4), 1000)
	want := []string{"fill 5", "5 into 3", "empty 3", "5 into 3", "fill 5", "5 into 3"}
	if r.Err == nil || r.Full || !reflect.DeepEqual(r.Trace, want) {
		t.Errorf("got %v, full %v, trace %v, want %v", r.Err, r.Full, r.Trace, want)
	}
	if r.Depth != len(want) {
		t.Errorf("depth %d, want %d", r.Depth, len(want))
	}
	again := Explore(jugs(4), 1000)
	if !reflect.DeepEqual(again, r) {
		t.Errorf("a second run differs: %+v, %+v", again, r)
	}
}

func TestAllStatesAreVisited(t *testing.T) {
	t.Parallel()
	// Of the 24 combinations, those with one jug empty or full can be reached.
	r := Explore(jugs(9), 1000)
	if r.Err != nil || !r.Full || r.States != 16 || r.Steps != 6*16 || len(r.Trace) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestManyStatesAreKeptApart(t *testing.T) {
	t.Parallel()
	const side = 150
	m := Model[[2]int16, struct{}]{Next: func(s [2]int16, step func(struct{}, [2]int16)) error {
		for i := range s {
			if s[i] < side-1 {
				o := s
				o[i]++
				step(struct{}{}, o)
			}
		}
		return nil
	}}
	r := Explore(m, 1<<20)
	if r.Err != nil || !r.Full || r.States != side*side || r.Depth != 2*(side-1) {
		t.Errorf("%+v", r)
	}
}

func TestAnEndlessLoopOfFreeStepsIsFound(t *testing.T) {
	t.Parallel()
	// The value grows to ten by decisions. At three a free step leads into a cycle.
	m := Model[int, string]{
		Next: func(s int, step func(string, int)) error {
			switch {
			case s < 10:
				step("decide", s+1)
				step("fall", max(s-2, 0)+100)
			case s == 101:
				step("fall", 201)
			case s == 201:
				step("fall", 202)
			case s == 202:
				step("fall", 201)
			}
			return nil
		},
		Free: func(a string) bool { return a == "fall" },
	}
	r := Explore(m, 1000)
	if want := []string{"decide", "decide", "decide"}; r.Err != ErrEndless || !reflect.DeepEqual(r.Trace, want) {
		t.Errorf("got %v, trace %v", r.Err, r.Trace)
	}
	if !r.Full || r.States != 11+8+2 {
		t.Errorf("%+v", r)
	}
	m.Free = func(a string) bool { return a == "decide" }
	if r := Explore(m, 1000); r.Err != nil {
		t.Errorf("a model whose decisions end is reported: %v", r)
	}
}

func TestTheLimitIsReported(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2, 15, 16, 17} {
		r := Explore(jugs(9), limit)
		if r.Full != (limit >= 16) || r.States != min(limit, 16) {
			t.Errorf("limit %d: %+v", limit, r)
		}
	}
}
