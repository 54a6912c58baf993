//go:build unix

package zookeeper_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
	"github.com/go-zookeeper/zk"
)

// processorTime returns the processor time that this process, without the server, has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// spent is what some calls cost this process.
type spent struct{ cpu, wall, allocs float64 }

// measure runs calls that are spread over so many concurrent callers. It returns the cost of
// one of them.
func measure(b *testing.B, callers, calls int, call func(own string) error) spent {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, cpu := time.Now(), processorTime(b)
	var wg sync.WaitGroup
	for i := range callers {
		own := fmt.Sprint("/own", i)
		wg.Go(func() {
			for n := i; n < calls; n += callers {
				if err := call(own); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	cpu, wall := processorTime(b)-cpu, time.Since(start)
	runtime.ReadMemStats(&after)
	n := float64(calls)
	return spent{float64(cpu) / n, float64(wall) / n, float64(after.Mallocs-before.Mallocs) / n}
}

// BenchmarkCalls makes calls with several concurrent callers on one session, each with a
// context that can end, and the same calls with the zk client. It does so in turns of 512
// calls, and reports the medians: so a load on the machine weighs on both.
func BenchmarkCalls(b *testing.B) {
	e := zktest.Run(b, nil)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	s, err := zookeeper.New(e.Addrs(), nil).Open(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c, events, err := zk.Connect(e.Addrs(), 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for range events {
		}
	}()
	defer c.Close()
	data := make([]byte, 100)
	const path = "/bench"
	if _, err := s.Commit(ctx, backend.Create(path, data, backend.Persistent)); err != nil {
		b.Fatal(err)
	}
	acl := zk.WorldACL(zk.PermAll)
	for _, op := range []struct {
		name      string
		coord, zk func(own string) error
	}{
		{"get", func(string) error {
			_, _, err := s.Get(ctx, path, nil)
			return err
		}, func(string) error {
			_, _, err := c.Get(path)
			return err
		}},
		{"create+delete", func(own string) error {
			if _, err := s.Commit(ctx, backend.Create(own, data, backend.Ephemeral)); err != nil {
				return err
			}
			_, err := s.Commit(ctx, backend.Delete(own, backend.AnyVersion))
			return err
		}, func(own string) error {
			if _, err := c.Create(own, data, zk.FlagEphemeral, acl); err != nil {
				return err
			}
			return c.Delete(own, -1)
		}},
	} {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/%d", op.name, callers), func(b *testing.B) {
				const turn = 512
				var all [2][]spent
				for i := range 2 * b.N {
					which := (i + i/2) % 2 // and the other one first in every second turn
					call := op.coord
					if which == 1 {
						call = op.zk
					}
					all[which] = append(all[which], measure(b, callers, turn, call))
				}
				median := func(of []spent, field func(spent) float64) float64 {
					var v []float64
					for _, x := range of {
						v = append(v, field(x))
					}
					slices.Sort(v)
					return v[len(v)/2]
				}
				for i, client := range []string{"coord", "zk"} {
					b.ReportMetric(median(all[i], func(x spent) float64 { return x.cpu }), client+"-cpu-ns")
					b.ReportMetric(median(all[i], func(x spent) float64 { return x.wall }), client+"-ns")
					b.ReportMetric(median(all[i], func(x spent) float64 { return x.allocs }), client+"-allocs")
				}
			})
		}
	}
}

// BenchmarkSessions opens sessions and reports what each of them costs while it is idle.
func BenchmarkSessions(b *testing.B) {
	e := zktest.Run(b, nil)
	const sessions = 100
	backends := zookeeper.New(e.Addrs(), nil)
	for range b.N {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		goroutines := runtime.NumGoroutine()
		var open []backend.Session
		for range sessions {
			s, err := backends.Open(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if err := s.Sync(b.Context(), "/"); err != nil {
				b.Fatal(err)
			}
			open = append(open, s)
		}
		runtime.GC()
		runtime.GC() // what a sync.Pool holds goes with the second one
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/sessions, "heap-B/session")
		b.ReportMetric(float64(after.StackInuse-before.StackInuse)/sessions, "stack-B/session")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/sessions, "goroutines/session")
		for _, s := range open {
			s.Close()
		}
	}
}
