//go:build unix

package zookeeper_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

// processorTime returns the processor time that this process, without the server, has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCommit writes small data with several concurrent callers on one session, each with
// a context that can end.
func BenchmarkCommit(b *testing.B) {
	e := zktest.Run(b, nil)
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			s, err := zookeeper.New(e.Addrs(), nil).Open(ctx)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			data := make([]byte, 100)
			var paths []string
			for range callers {
				r, err := s.Commit(ctx, backend.Create("/n-", nil, backend.EphemeralSequential))
				if err != nil {
					b.Fatal(err)
				}
				paths = append(paths, r[0].Path)
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := processorTime(b)
			var wg sync.WaitGroup
			for i, path := range paths {
				wg.Go(func() {
					for n := i; n < b.N; n += callers {
						if _, err := s.Commit(ctx, backend.SetData(path, data, backend.AnyVersion)); err != nil {
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
