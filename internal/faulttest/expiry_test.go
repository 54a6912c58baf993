//go:build linux

package faulttest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/ensemble"
)

// expiry is the control for bounds that begin when a process is killed. It is a session with
// the timeout of that process, which falls silent at the same time, and an observer of its end.
// Servers on a busy machine can be late: a leader that loses its followers ends no session, and
// the next leader gives all of them their whole timeout again.
type expiry struct {
	t     *testing.T
	proxy ensemble.Line
	path  string
	see   backend.Session
	began time.Duration
	after time.Duration // the session timeout
}

func newExpiry(t *testing.T, e servers, timeout time.Duration) *expiry {
	t.Helper()
	p := newLine(t, e.Addrs()[0])
	open := func(addrs []string, timeout time.Duration) backend.Session {
		s, err := backendAt(addrs, timeout, 0).Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	x := &expiry{t: t, proxy: p, see: open(e.Addrs(), mostTimeout), after: timeout}
	res, err := open([]string{p.Addr()}, timeout).Commit(t.Context(), backend.Create("/expiry-", nil, backend.EphemeralSequential))
	if err != nil {
		t.Fatal(err)
	}
	x.path = res[0].Path
	return x
}

// begin makes the session silent.
func (x *expiry) begin() {
	x.began = monotonic()
	x.proxy.Blackhole(true)
}

// bound returns how long after begin the servers can end a session at the latest.
func (x *expiry) bound() time.Duration {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), limit)
	defer cancel()
	for {
		w := backend.NewWatch()
		_, err := x.see.Exists(ctx, x.path, w)
		if errors.Is(err, backend.ErrNotFound) {
			w.Stop()
			return max(x.after, monotonic()-x.began)
		}
		if err != nil {
			x.t.Fatal(err)
		}
		select {
		case <-w.Fired():
		case <-ctx.Done():
			x.t.Fatalf("the session of %s has not ended", x.path)
		}
	}
}
