package zookeeper

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/trace"
)

// The clocks jump, as they do for a process that does not run: once, by less and by more than a third of
// the session timeout, and beyond the lease.
func TestPause_IsLoggedAndTraced(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		jump time.Duration
		want string // the log line; "" for none
		lost bool
	}{
		{1500 * time.Millisecond, "", false},
		{5 * time.Second, "this process was paused\" for=5s", false},
		{30 * time.Second, "this process was paused\" for=30s", true},
	} {
		inBubble(t, Options{}, func(conn net.Conn, n int) {
			welcome(conn, 10_000)
			for r := range requests(conn) {
				if !answerPing(conn, r) {
					conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
				}
			}
		}, func(t *testing.T, b backend.Backend) {
			var ahead atomic.Int64
			b.(*service).cfg.clock = func() func() instant {
				read := contact.Clock()
				return func() instant {
					now := read()
					now.Mono += time.Duration(ahead.Load())
					now.Wall += time.Duration(ahead.Load())
					return now
				}
			}
			var mu sync.Mutex
			var log bytes.Buffer
			var pauses []time.Duration
			c, err := coord.Open(t.Context(), b, &coord.Options{
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Trace: func(_ context.Context, e trace.Event) {
					if p, ok := e.(trace.ProcessPaused); ok {
						mu.Lock()
						defer mu.Unlock()
						pauses = append(pauses, p.For)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			for { // wait until the lease has just been looked at and renewed
				time.Sleep(100 * time.Millisecond)
				s, err := c.Session(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p := s.(*session)
				p.mu.Lock()
				left, length := p.lease.Left(p.now()), p.lease.Length
				p.mu.Unlock()
				if left > length-200*time.Millisecond {
					break
				}
			}
			ahead.Store(int64(test.jump))
			time.Sleep(time.Minute)
			synctest.Wait()
			s, err := c.Session(t.Context())
			if err != nil || s.Err() != nil {
				t.Errorf("%v: the session: %v", test.jump, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			text := log.String()
			if n := strings.Count(text, "paused"); n != min(1, len(test.want)) || !strings.Contains(text, test.want) || len(pauses) != n {
				t.Errorf("%v: %d lines, the pauses %v; want %q\n%s", test.jump, n, pauses, test.want, text)
			}
			if n := strings.Count(text, `msg="coord: session lost, opening a new one"`); (n == 1) != test.lost {
				t.Errorf("%v: %d sessions lost", test.jump, n)
			}
			for _, p := range pauses {
				if p > test.jump || p < test.jump-10*time.Second/8 {
					t.Errorf("%v: a pause of %v", test.jump, p)
				}
			}
		})
	}
}
