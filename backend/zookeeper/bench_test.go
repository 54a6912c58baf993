//go:build unix

package zookeeper_test

import (
	"context"
	"fmt"
	"runtime"
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

// BenchmarkCalls makes calls with several concurrent callers on one session, each with a
// context that can end, beside the same calls of the zk client.
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
			for _, client := range []struct {
				name string
				call func(own string) error
			}{{"coord", op.coord}, {"zk", op.zk}} {
				b.Run(fmt.Sprintf("%s/%d/%s", op.name, callers, client.name), func(b *testing.B) {
					b.ReportAllocs()
					before := processorTime(b)
					var wg sync.WaitGroup
					for i := range callers {
						own := fmt.Sprint("/own", i)
						wg.Go(func() {
							for n := i; n < b.N; n += callers {
								if err := client.call(own); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
				})
			}
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
