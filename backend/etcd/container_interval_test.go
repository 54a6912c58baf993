package etcd

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

// An interval of any length is one in which a session can look at its nodes eight times.
func TestEtcd_ContainerIntervalsHaveLimits(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]time.Duration{
		0:                     time.Minute,
		1:                     10 * time.Millisecond,
		7:                     10 * time.Millisecond,
		10 * time.Millisecond: 10 * time.Millisecond,
		time.Second:           time.Second,
		math.MaxInt64:         365 * 24 * time.Hour,
	} {
		c, err := newConfig([]string{"a"}, &Options{ContainerInterval: given})
		if err != nil || c.interval != want {
			t.Errorf("%d ns counts as %v, %v, want %v", given, c.interval, err, want)
		}
	}
	for _, never := range []time.Duration{-1, math.MinInt64} {
		if c, err := newConfig([]string{"a"}, &Options{ContainerInterval: never}); err != nil || c.interval > 0 {
			t.Errorf("%d ns counts as %v, %v", never, c.interval, err)
		}
	}
}

// A session that deletes nodes all the time looks at those that are due. And what it remembers has a limit, in number
// and in size.
func TestEtcd_WhatASessionRemembersOfEmptyContainers(t *testing.T) {
	t.Parallel()
	woken := func(e *emptied) bool {
		select {
		case <-e.wake:
			return true
		default:
			return false
		}
	}
	e, now := newEmptied(), time.Now()
	for i, path := range []string{"/a", "/b", "/a"} {
		if !e.note(path, now.Add(time.Duration(i))) || woken(e) != (i == 0) {
			t.Errorf("node %d puts off the look at the earlier ones, or begins none", i)
		}
	}
	if got := e.take(now.Add(1)); len(got) != 1 || got[0] != "/b" {
		t.Errorf("%q are due", got)
	}
	if got := e.take(now.Add(2)); len(got) != 1 || !e.none() {
		t.Errorf("%q are due", got)
	}
	if !e.note("/c", now) || !woken(e) {
		t.Error("the first node after a pause begins no look")
	}
	long := "/" + strings.Repeat("x", 1<<20)
	for n := 0; e.note(long[:len(long)-n], now); n++ {
		if n > mostEmptiedSize>>20 {
			t.Fatal("the size of the paths has no limit")
		}
	}
	if !e.noteOnce("/c", now) {
		t.Error("a node that is remembered needs no room")
	}
	e.take(now)
	for n := range mostEmptied {
		if !e.note("/"+strings.Repeat("x", n%100)+"/"+strings.Repeat("y", n/100), now) {
			t.Fatalf("no room for node %d", n)
		}
	}
	if e.note("/another", now) {
		t.Error("the number of nodes has no limit")
	}
}

// One node that is refused keeps no other of its batch from its removal, wherever it is in the list.
func TestEtcd_ARefusedContainerKeepsNoOther(t *testing.T) {
	t.Parallel()
	for bad := range 8 {
		s := &session{cfg: new(config), emptied: newEmptied(), log: outbox.NewLogger(nil)}
		s.Life = contact.NewLife(contact.Clock(), s.end)
		var paths []string
		for i := range 8 {
			paths = append(paths, fmt.Sprint("/", i))
		}
		removed := make(map[string]int)
		rest, err := s.inBatches(paths, func(batch []string) error {
			if slices.Contains(batch, paths[bad]) {
				return errRefused
			}
			for _, path := range batch {
				removed[path]++
			}
			return nil
		})
		if err != nil || len(rest) > 0 {
			t.Errorf("%q are left: %v", rest, err)
		}
		for i, path := range paths {
			if want := min(1, max(i-bad, bad-i)); removed[path] != want {
				t.Errorf("%s, beside %s: removed %d times, want %d", path, paths[bad], removed[path], want)
			}
		}
	}
}
