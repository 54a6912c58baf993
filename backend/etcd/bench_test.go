//go:build unix

package etcd_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/etcd"
)

// each makes callers repeat something b.N times together.
func each(b *testing.B, callers int, do func(caller int) error) {
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := i; n < b.N; n += callers {
				if err := do(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(processorTime()-before)/float64(b.N), "cpu-ns/op")
}

// processorTime is that of this process. Other processes change it less than the time that passes.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A lock and its release, on a server in this process that does not wait for its disk. So this
// compares the work of clients and servers.
func BenchmarkUncontendedLock(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("coord/%d", callers), func(b *testing.B) {
			c, err := coord.Open(b.Context(), etcd.New([]string{shared.get(b)}, &etcd.Options{Prefix: "bench"}), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			cycle := func(i int) error {
				h, err := coord.NewMutex(c, fmt.Sprintf("/lock-%03d", i), nil).Lock(b.Context())
				if err != nil {
					return err
				}
				return h.Release()
			}
			for i := range callers {
				if err := cycle(i); err != nil {
					b.Fatal(err)
				}
			}
			each(b, callers, cycle)
		})
		b.Run(fmt.Sprintf("concurrency/%d", callers), func(b *testing.B) {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{shared.get(b)}, Logger: zap.NewNop()})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			s, err := concurrency.NewSession(c)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			each(b, callers, func(i int) error {
				m := concurrency.NewMutex(s, fmt.Sprintf("bench-lock-%03d", i))
				if err := m.Lock(b.Context()); err != nil {
					return err
				}
				return m.Unlock(b.Context())
			})
		})
	}
}
