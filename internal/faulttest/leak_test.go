//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// In other libraries, clients that gave up have left watches on the server and in their own
// memory, until the process ran out of memory.
func TestAttemptsThatFailLeaveNothingBehind(t *testing.T) {
	const clients = 8
	n := 600
	if long() {
		n = 10_000
	}
	s := newService(t)
	holder := newContender(t, s, "holder")
	var others []*contender
	for i := range clients {
		x := newContender(t, s, fmt.Sprint(i))
		x.prime()
		others = append(others, x)
	}
	held := holder.lock()
	attempts := map[string]func(ctx context.Context, x *contender) error{
		"TryLock": func(ctx context.Context, x *contender) error {
			_, err := x.m.TryLock(ctx)
			return err
		},
		"Lock": func(ctx context.Context, x *contender) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
			defer cancel()
			_, err := x.m.Lock(ctx)
			return err
		},
		// Before it waits at the server, it may wait for its turn among local callers.
		"Lock until it is queued": func(ctx context.Context, x *contender) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := x.m.Lock(ctx)
				done <- err
			}()
			select {
			case <-x.waiting:
			case err := <-done:
				return err
			}
			cancel()
			return <-done
		},
	}
	wants := map[string]error{"TryLock": coord.ErrLocked, "Lock": context.DeadlineExceeded, "Lock until it is queued": context.Canceled}
	// The background work of an attempt may take longer than the attempt, so each batch is
	// cleaned up before the next. Otherwise the number of goroutines would have a peak that
	// grows with n, and the runtime keeps the memory of ended ones.
	const each = 15
	batch := func(name string) {
		var wg sync.WaitGroup
		for _, x := range others {
			wg.Go(func() {
				for range each {
					if err := attempts[name](t.Context(), x); !errors.Is(err, wants[name]) {
						t.Errorf("%s: %v, want %v", name, err, wants[name])
						return
					}
					x.drain()
				}
			})
		}
		wg.Wait()
		eventually(t, "only the holder's node is left", func() bool {
			line, err := coord.NewMutex(holder.c, contested, nil).Contenders(t.Context())
			return err == nil && len(line) == 1 && line[0].Path == held.Path()
		})
	}
	for _, name := range []string{"TryLock", "Lock", "Lock until it is queued"} {
		for range 3 {
			batch(name) // until buffers have their size
		}
		before := measure(t)
		for range n / (each * clients) {
			batch(name)
		}
		var after footprint
		eventually(t, "goroutines end", func() bool {
			after = measure(t)
			return after.goroutines <= before.goroutines
		})
		t.Logf("figure: %d times %s on a held lock: watches on the server %d before, %d after; heap %d kB before, %d kB after; goroutines %d before, %d after",
			n, name, before.watches, after.watches, before.heap>>10, after.heap>>10, before.goroutines, after.goroutines)
		// Each client may leave one watch on the holder's node, shared by all its attempts.
		// Two waiters that met may have a few on each other's nodes.
		if after.watches > before.watches+2*clients {
			t.Errorf("%s: %d watches on the server, %d before", name, after.watches, before.watches)
		}
		if after.heap > before.heap+512<<10 {
			t.Errorf("%s: heap of %d kB, %d kB before", name, after.heap>>10, before.heap>>10)
		}
	}
	holder.release(held)
	eventually(t, "no watch is left on the server", func() bool { return measure(t).watches == 0 })
}

// A client that keeps locks, and gives them up for another, leaves no watch behind.
func TestKeptLocksLeaveNoWatch(t *testing.T) {
	const path, rounds = "/leak/kept", 100
	s := newService(t)
	a, b := newContender(t, s, "keeps").c, newContender(t, s, "asks").c
	kept := coord.NewMutex(a, path, &coord.MutexOptions{Keep: time.Millisecond})
	cycle := func(m *coord.Mutex) {
		h, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds {
		cycle(kept)
		cycle(kept)
		eventually(t, "the lock is free", func() bool {
			line, err := kept.Contenders(t.Context())
			return err == nil && len(line) == 0
		})
	}
	cycle(kept)
	cycle(coord.NewMutex(b, path, nil)) // contention
	var after footprint
	eventually(t, "no watch is left on the server", func() bool {
		after = measure(t)
		return after.watches == 0
	})
	t.Logf("figure: after %d kept locks: %d watches on the server", rounds+1, after.watches)
}

type footprint struct {
	watches    int
	heap       int64
	goroutines int
}

func measure(t *testing.T) footprint {
	t.Helper()
	m, err := server.Get(t).Servers()[0].Mntr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	watches, err := strconv.Atoi(m["zk_watch_count"])
	if err != nil {
		t.Fatal(err)
	}
	var mem runtime.MemStats
	runtime.GC()
	runtime.GC() // the second GC frees memory that finalizers and pools kept
	runtime.ReadMemStats(&mem)
	return footprint{watches, int64(mem.HeapAlloc), runtime.NumGoroutine()}
}
