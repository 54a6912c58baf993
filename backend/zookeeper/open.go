package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-zookeeper/zk"
)

// Open starts a session.
func (b *service) Open(ctx context.Context) (backend.Session, error) {
	if b.err != nil {
		return nil, &backend.Error{Op: "open", Err: b.err}
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, &backend.Error{Op: "open", Err: err}
	}
	for tries := 1; ; tries++ {
		s := newSession(b.cfg)
		if err := s.start(); err != nil {
			return nil, &backend.Error{Op: "open", Err: err}
		}
		err := s.open(ctx)
		if err == nil {
			err = s.discover(ctx)
		}
		if err == nil {
			return s, nil
		}
		s.abort()
		if !errors.Is(err, backend.ErrSessionLost) {
			return nil, &backend.Error{Op: "open", Err: err}
		}
		// The session ended before its credentials were accepted, so it was never ready.
		if over := sleep(ctx, nil, contact.Growing(contact.FirstPause, contact.MostPause, tries)); over != nil {
			over = fmt.Errorf("%w: %d sessions ended before they were ready, the last one: %v", over, tries, err)
			return nil, &backend.Error{Op: "open", Err: over}
		}
	}
}

// zkBuffer is the size of the two buffers of the zk client, which by default hold 1.5 MB each.
// No frame that it sends or receives has more than 45 bytes.
const zkBuffer = 1 << 10

// start starts the zk client, which dials at once and goes on until it gets its farewell.
func (s *session) start() error {
	conn, events, err := zk.Connect(s.cfg.servers, s.cfg.times.Timeout,
		zk.WithDialer(s.dial),
		zk.WithHostProvider(s.hosts),
		zk.WithLogger(debugLog{s.log}),
		zk.WithLogInfo(!s.log.Silent()),
		zk.WithMaxBufferSize(zkBuffer),
		zk.WithMaxConnBufferSize(zkBuffer),
	)
	if err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	s.zk, s.events = conn, events
	close(s.started)
	return nil
}

// open waits until the session is ready for use.
func (s *session) open(ctx context.Context) error {
	select {
	case <-s.opened:
		return nil
	case <-s.trouble.over:
		return s.trouble.cause()
	case <-s.sealed:
		return s.ended(ctx)
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.trouble.Error(backend.ContextError(ctx))
	}
}

// abort ends a session that is never returned to a caller.
func (s *session) abort() {
	select {
	case <-s.opened:
		// The session became ready just now, or has to be ended on the servers.
	default:
		s.end(backend.ErrClosed)
		s.seal()
	}
	s.Close()
}

// dial is the dialer of the zk client.
func (s *session) dial(network, address string, _ time.Duration) (net.Conn, error) {
	if pause := s.hosts.Pause(); pause > 0 {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.sealed:
			timer.Stop()
		}
	}
	budget := s.budget()
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	s.mu.Lock()
	sealed := s.isSealed()
	s.stopDial = cancel
	s.mu.Unlock()
	if sealed {
		return newFarewell(func() { s.leaveOnce.Do(func() { close(s.leaving) }) }), nil
	}
	conn, err := s.connect(ctx, network, address)
	if err != nil {
		switch {
		case closedByServer(err):
			err = inHandshake(err, s.cfg.tls != nil)
		case ctx.Err() == context.DeadlineExceeded:
			err = fmt.Errorf("no connection within %v: %w", budget.Round(time.Millisecond), err)
		}
		s.failed(address, err)
		return nil, err
	}
	return conn, nil
}

// dialTCP makes the connections when Options.Dial is nil. A name can have several addresses,
// and a net.Dialer always takes the first one that accepts, even if its server then stays
// silent. So an address that has not answered on its latest connection is skipped as long as
// another one accepts.
func (s *session) dialTCP(ctx context.Context, network, address string) (net.Conn, error) {
	var passed atomic.Bool
	d := net.Dialer{Resolver: s.cfg.resolver, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		if s.hosts.isMute(resolved) {
			passed.Store(true)
			return errMute
		}
		return nil
	}}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil && passed.Load() {
		s.hosts.forgetMute()
		if ctx.Err() == nil {
			conn, err = d.DialContext(ctx, network, address)
		}
	}
	if err == nil {
		s.hosts.accepted(remote(conn))
	}
	return conn, err
}

// connect makes one connection, which belongs to the session when connect returns.
func (s *session) connect(ctx context.Context, network, address string) (*guardConn, error) {
	dial := s.cfg.dial
	if dial == nil {
		dial = s.dialTCP
	}
	raw, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := raw
	if s.cfg.tls != nil {
		cfg := s.cfg.tls
		if cfg.ServerName == "" {
			host, _, _ := net.SplitHostPort(address)
			cfg = cfg.Clone()
			cfg.ServerName = host
		}
		secure := tls.Client(raw, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, err
		}
		conn = secure
	}
	until, _ := ctx.Deadline()
	c := newGuardConn(s, address, raw, conn, until)
	s.mu.Lock()
	sealed := s.isSealed()
	if !sealed {
		s.conn = c
	}
	s.mu.Unlock()
	if sealed {
		raw.Close()
		return nil, errSealed
	}
	return c, nil
}

// budget returns how long an attempt to connect may take, handshakes included. While the
// lease runs, each server gets a share of the rest of it.
func (s *session) budget() time.Duration {
	const least, most = 500 * time.Millisecond, 5 * time.Second
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == 0 {
		return min(max(s.cfg.times.Timeout/2, least), most)
	}
	share := s.lease.Left(now) / time.Duration(len(s.cfg.servers)+1)
	return max(share, s.timeout/10)
}
