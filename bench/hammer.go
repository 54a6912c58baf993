package main

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A step is one operation of one caller.
type step func(ctx context.Context) error

// hammer makes callers repeat their steps for a time, and returns their rate, their times,
// and their cost for this process. An operation that ends late counts, and so does its time.
func hammer(ctx context.Context, span time.Duration, callers []step) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([][]time.Duration, len(callers))
	for i := range times {
		times[i] = make([]time.Duration, 0, 1<<12)
	}
	var wg sync.WaitGroup
	metered := startMeter(ctx)
	before := readCosts()
	began := time.Now()
	for i, do := range callers {
		wg.Go(func() {
			for now := time.Now(); now.Sub(began) < span || len(times[i]) == 0; {
				if err := do(ctx); err != nil {
					cancel(err) // the first one is the reason
					return
				}
				then := now
				now = time.Now()
				times[i] = append(times[i], now.Sub(then))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	after := readCosts()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	var all []time.Duration
	for _, t := range times {
		all = append(all, t...)
	}
	s := sample{mRate: float64(len(all)) / took.Seconds(), mDone: float64(len(all))}
	s.addTimes(all)
	s.addCosts(before, after, len(all))
	metered(s, len(all))
	return s, nil
}

// costs are the resources that this process has used so far.
type costs struct {
	allocs, bytes uint64
	cpu           time.Duration
}

func readCosts() costs {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return costs{m.Mallocs, m.TotalAlloc, processorTime()}
}

func (s sample) addCosts(before, after costs, n int) {
	s[mAllocs] = float64(after.allocs-before.allocs) / float64(n)
	s[mAllocated] = float64(after.bytes-before.bytes) / float64(n)
	if after.cpu > before.cpu {
		s[mCPU] = micros(after.cpu-before.cpu) / float64(n)
	}
}

// contend makes callers acquire one lock in turns for a time. A hand-over is the time from
// the begin of a release to the next grant. Each caller holds the lock for some time, or
// none, and acquires it at least once.
func contend(ctx context.Context, span, hold time.Duration, lockers []locker) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex // the race detector does not see the measured lock
		turns    int
		took     time.Duration // until the latest grant
		given    time.Time     // when the latest holder released it
		giver    int
		handOver []time.Duration
		inside   atomic.Int32
		ready    sync.WaitGroup
		start    = make(chan struct{})
		began    time.Time
	)
	ready.Add(len(lockers))
	for i, lock := range lockers {
		wg.Go(func() {
			ready.Done()
			<-start
			for first := true; first || time.Since(began) < span; first = false {
				release, err := lock(ctx)
				if err != nil {
					cancel(err)
					return
				}
				if inside.Add(1) != 1 {
					cancel(errTwoHolders)
				}
				now := time.Now()
				if hold > 0 {
					if err := sleep(ctx, hold); err != nil {
						cancel(err)
					}
				}
				mu.Lock()
				turns++
				took = now.Sub(began)
				if !given.IsZero() && giver != i {
					handOver = append(handOver, now.Sub(given))
				}
				given, giver = time.Now(), i
				mu.Unlock()
				inside.Add(-1)
				if err := release(); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	ready.Wait()
	metered := startMeter(ctx)
	before := readCosts()
	began = time.Now()
	close(start)
	wg.Wait()
	after := readCosts()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s := sample{mRate: float64(turns) / took.Seconds(), mDone: float64(turns)}
	s.addTimes(handOver)
	metered(s, turns)
	s.addCosts(before, after, turns)
	return s, nil
}

var errTwoHolders = errors.New("two held the lock at once")
