package zookeeper_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

// The server reads 64 KiB. A Put of more fails after one break of the contact, and the session, a lock
// and other calls go on. TLS and credentials change nothing.
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
		e, err := zktest.Start(t.Context(), o)
		if errors.Is(err, zktest.ErrNotInstalled) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var conns atomic.Int32
		options := &zookeeper.Options{SessionTimeout: 40 * time.Second, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conns.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		}}
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
		before := conns.Load()
		q := coord.NewQueue[[]byte](c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
		if _, err := q.Put(ctx, make([]byte, 200_000)); !errors.Is(err, coord.ErrTooLarge) || errors.Is(err, coord.ErrUncertain) {
			t.Errorf("secure: %t: put: %v", secure, err)
		}
		after := conns.Load()
		for _, n := range []int{70_000, 500_000} {
			if _, err := q.Put(ctx, make([]byte, n)); !errors.Is(err, coord.ErrTooLarge) {
				t.Errorf("secure: %t: put of %d bytes: %v", secure, n, err)
			}
		}
		if _, err := q.Put(ctx, make([]byte, 60_000)); err != nil {
			t.Errorf("secure: %t: put of 60,000 bytes: %v", secure, err)
		}
		if conns.Load() != after || after-before > 40 || lock.Err() != nil {
			t.Errorf("secure: %t: %d connections for the first put and %d for the others; the lock: %v", secure, after-before, conns.Load()-after, lock.Err())
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
