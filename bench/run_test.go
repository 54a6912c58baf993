package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestCellsOfAGroupAreInterleaved(t *testing.T) {
	g := &group{name: "g", shown: []metric{mRate}}
	var order strings.Builder
	for _, what := range []string{"a", "b", "c"} {
		g.add(what, byCoord, onMemory, time.Second, func(context.Context) (sample, error) {
			order.WriteString(what)
			return sample{mRate: float64(order.Len()), mDone: 1}, nil
		})
	}
	r := &runner{out: io.Discard, notes: io.Discard, rounds: 3, table: &table{}}
	results, err := r.run(t.Context(), []*group{g})
	if err != nil {
		t.Fatal(err)
	}
	// Each round begins with another cell, and the second goes backwards.
	if order.String() != "abcacbcab" {
		t.Errorf("order %s", order.String())
	}
	if v := results[0].Figures[mRate].Values; len(v) != 3 || v[1] != 4 {
		t.Errorf("values of a: %v", v)
	}
	if _, ok := results[0].Figures[mDone]; ok {
		t.Error("the results include the number of operations")
	}

	// Warm-up rounds come first, and do not count.
	order.Reset()
	g.warm = 2
	results, err = r.run(t.Context(), []*group{g})
	if err != nil {
		t.Fatal(err)
	}
	if order.String() != "abcabcabcacbcab" {
		t.Errorf("order %s", order.String())
	}
	if v := results[0].Figures[mRate].Values; len(v) != 3 || v[0] != 7 {
		t.Errorf("values of a: %v", v)
	}
}

func TestACellThatFailsIsReportedAndTheOthersContinue(t *testing.T) {
	g := &group{name: "g", shown: []metric{mRate}}
	calls := 0
	g.add("bad", byCoord, onMemory, 0, func(context.Context) (sample, error) {
		calls++
		return nil, errors.New("no luck")
	}).at("callers", 2)
	g.add("empty", byCoord, onMemory, 0, func(context.Context) (sample, error) { return nil, nil })
	g.add("good", byCoord, onMemory, 0, func(context.Context) (sample, error) { return sample{mRate: 7}, nil })
	hang := make(chan struct{})
	defer close(hang)
	g.add("hangs", byCoord, onMemory, 0, func(context.Context) (sample, error) {
		<-hang
		return nil, nil
	})
	var out strings.Builder
	r := &runner{out: &out, notes: io.Discard, rounds: 3, table: &table{}, grace: 10 * time.Millisecond}
	results, err := r.run(t.Context(), []*group{g})
	if err != nil {
		t.Fatal(err)
	}
	if calls != 1 {
		t.Errorf("the cell that failed was run %d times", calls)
	}
	if v, ok := results[2].value(mRate); !ok || v != 7 {
		t.Errorf("the good cell: %+v", results[2])
	}
	for _, want := range []string{
		"FAILED: g: bad, coord, memory, 2 callers: no luck",
		"FAILED: g: empty, coord, memory: no figures",
		"FAILED: g: hangs, coord, memory: not done after 10ms",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	if failed := (&report{Results: results}).failed(); len(failed) != 3 {
		t.Errorf("%d failed", len(failed))
	}
}

func TestHammerCountsAndReturnsErrors(t *testing.T) {
	s, err := hammer(t.Context(), 5*time.Millisecond, []step{
		func(context.Context) error { return nil },
		func(ctx context.Context) error { return sleep(ctx, time.Millisecond) },
	})
	if err != nil || s[mRate] <= 0 || s[mP99] < 0 || s[mDone] < 2 {
		t.Errorf("%v, %v", s, err)
	}
	bad := errors.New("bad")
	_, err = hammer(t.Context(), time.Hour, []step{
		func(context.Context) error { return bad },
		func(ctx context.Context) error { return sleep(ctx, time.Hour) },
	})
	if !errors.Is(err, bad) {
		t.Errorf("error %v", err)
	}
}

func TestContendFindsTwoHolders(t *testing.T) {
	open := func(context.Context) (func() error, error) { return func() error { return nil }, nil }
	_, err := contend(t.Context(), 200*time.Millisecond, 0, []locker{open, open, open, open})
	if !errors.Is(err, errTwoHolders) {
		t.Errorf("error %v, want %v", err, errTwoHolders)
	}
	lock := make(chan struct{}, 1)
	mutex := func(context.Context) (func() error, error) {
		lock <- struct{}{}
		return func() error { <-lock; return nil }, nil
	}
	s, err := contend(t.Context(), 20*time.Millisecond, 0, []locker{mutex, mutex})
	if err != nil || s[mRate] <= 0 {
		t.Errorf("%v, %v", s, err)
	}
}
