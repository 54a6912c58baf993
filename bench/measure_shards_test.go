package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// The end of a change is the last grant or loss after which the shards are owned evenly.
func TestACrewIsSettledWhenItsShardsAreOwnedEvenly(t *testing.T) {
	t.Parallel()
	began := time.Now()
	x := &crew{d: division{shards: 5, members: 2}, members: 2, loads: make(map[int]int), changed: make(chan struct{}, 1)}
	x.note(0, 5)
	if _, _, err := x.settled(t.Context(), began, 300*time.Millisecond); !errors.As(err, new(beyondError)) {
		t.Errorf("settled with all shards at one member: %v", err)
	}
	for _, to := range []int{1, 1, 2} { // the third is no member
		x.note(0, -1)
		x.note(to, 1)
	}
	if x.isEven() {
		t.Error("even with a shard at a client that is no member")
	}
	x.note(2, -1)
	x.note(0, 1)
	took, moves, err := x.settled(t.Context(), began, time.Minute)
	if err != nil || took <= 0 || took > time.Since(began)-200*time.Millisecond || moves != 9 {
		t.Errorf("settled after %v, with %d moves, %v", took, moves, err)
	}
}

// A cell beyond its limit keeps the figures that it has, is not run again, and is not a failure.
func TestACellBeyondItsLimitSaysSo(t *testing.T) {
	t.Parallel()
	runs := 0
	g := &group{name: "g", shown: []metric{mTime, mJoinTime}}
	g.add("w", byKazoo, onZooKeeper, 0, func(context.Context) (sample, error) {
		runs++
		return sample{mTime: 7}, fmt.Errorf("join: %w", beyondError{90 * time.Second})
	}).at("members", 100)
	var out strings.Builder
	r := &runner{out: &out, notes: io.Discard, rounds: 3, table: &table{}}
	results, err := r.run(t.Context(), []*group{g})
	if err != nil {
		t.Fatal(err)
	}
	x := results[0]
	if runs != 1 || x.Error != "" || x.Figures[mTime].Median != 7 || x.Beyond != "> 90 s" {
		t.Errorf("%d runs: %+v", runs, x)
	}
	if len((&report{Results: results}).failed()) != 0 || !strings.Contains(out.String(), "> 90 s") || strings.Contains(out.String(), "FAILED") {
		t.Errorf("the table is\n%s", out.String())
	}
	page, err := fillPage("<!-- figures: group=g; rows=who; columns=with; show=time,join_time -->\n<!-- end -->", func(string) (*report, error) {
		return &report{Results: results}, nil
	})
	if err != nil || !strings.Contains(page, "| kazoo | 7 / > 90 s |") {
		t.Errorf("the page is %v\n%s", err, page)
	}
}
