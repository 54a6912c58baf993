package etcd_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/trace"
)

// The wall clock alone shows it when the machine was suspended.
func TestPause_IsTraced(t *testing.T) {
	t.Parallel()
	b := etcd.New([]string{shared.get(t)}, &etcd.Options{SessionTimeout: 10 * time.Second, Prefix: "pause"})
	var ahead atomic.Int64
	etcd.SetAhead(b, func() time.Duration { return time.Duration(ahead.Load()) })
	pauses := make(chan time.Duration, 100)
	c, err := coord.Open(t.Context(), b, &coord.Options{Trace: func(_ context.Context, e trace.Event) {
		if p, ok := e.(trace.ProcessPaused); ok {
			pauses <- p.For
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ahead.Store(int64(time.Hour)) // beyond the lease, so that the session is lost too
	for paused := time.Duration(0); paused < 59*time.Minute; {
		select {
		case paused = <-pauses: // a busy machine can be late as well
		case <-time.After(time.Minute):
			t.Fatal("waited in vain for the pause")
		}
	}
}
