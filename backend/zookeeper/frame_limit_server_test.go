package zookeeper_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

// frameLog counts what a session says of long requests.
type frameLog struct {
	slog.Handler
	breaks   atomic.Int32 // of contact
	measured atomic.Int64 // the limit that it has found
}

func (l *frameLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *frameLog) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "coord: session suspended") {
		l.breaks.Add(1)
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "jute.maxbuffer" {
			l.measured.Store(a.Value.Int64())
		}
		return true
	})
	return nil
}

// The server reads 64 KiB. A Put of more fails, and the session, a lock and other calls continue. TLS and
// credentials change nothing.
//
// The session sends a request of one length until it knows the limit, and three times at most. It knows the
// limit after the first break, unless the server is too slow for a measurement, which may take 2 s. So the
// test bounds the breaks of contact, which are the requests that the server refused, and not the connections:
// a measurement makes up to 23, and how many it makes in 2 s depends on the machine.
func TestFrameLimit_OfARealServer(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		o := &zktest.Options{JavaArgs: []string{"-Djute.maxbuffer=65536"}, MaxSessionTimeout: 40 * time.Second}
		var certificates *zktest.Certificates
		if secure {
			var err error
			if certificates, err = zktest.NewCertificates(t.TempDir()); err != nil {
				t.Fatal(err)
			}
			o.TLS = certificates.ServerTLS()
		}
		e := zktest.Run(t, o)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // for a test that waits for ever
		defer cancel()
		log := new(frameLog)
		options := &zookeeper.Options{SessionTimeout: 40 * time.Second, Logger: slog.New(log)}
		addrs := e.Addrs()
		if secure {
			options.TLS, options.Digest, addrs = certificates.ClientConfig(), "user:password", e.SecureAddrs()
		}
		c, err := coord.Open(ctx, zookeeper.New(addrs, options), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		lock, err := coord.NewMutex(c, "/lock", nil).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		q := coord.NewQueue[[]byte](c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
		for i, n := range []int{200_000, 70_000, 500_000} {
			known, before := log.measured.Load() > 0, log.breaks.Load()
			if _, err := q.Put(ctx, make([]byte, n)); !errors.Is(err, coord.ErrTooLarge) || errors.Is(err, coord.ErrUncertain) {
				t.Errorf("secure: %t: put of %d bytes: %v", secure, n, err)
			}
			breaks := log.breaks.Load() - before
			if breaks > zookeeper.MostBreaks || known && breaks > 0 || i == 0 && breaks == 0 {
				t.Errorf("secure: %t: put of %d bytes: contact broke %d times; the limit was known before: %t", secure, n, breaks, known)
			}
		}
		if _, err := q.Put(ctx, make([]byte, 60_000)); err != nil {
			t.Errorf("secure: %t: put of 60,000 bytes: %v", secure, err)
		}
		if n := log.measured.Load(); n != 0 && n != 65536 || lock.Err() != nil {
			t.Errorf("secure: %t: a limit of %d bytes was measured; the lock: %v", secure, n, lock.Err())
		}
		s, err := c.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(ctx, backend.Create("/n", make([]byte, 200_000), backend.Persistent)); !errors.Is(err, backend.ErrTooLarge) {
			t.Errorf("secure: %t: commit: %v", secure, err)
		}
	}
}
