package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
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
		contact.Sleep(ctx, nil, contact.Growing(contact.FirstPause, contact.MostPause, tries))
		if over := backend.ContextError(ctx); over != nil {
			over = fmt.Errorf("%w: %d sessions ended before they were ready, the last one: %v", over, tries, err)
			return nil, &backend.Error{Op: "open", Err: over}
		}
	}
}

// zkBuffer is the size of the two buffers of the zk client, which by default hold 1.5 MB each.
// No frame that it sends or receives has more than 45 bytes.
const zkBuffer = 1 << 10

// start starts the zk client, which dials at once and continues until it gets its farewell.
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
		return s.trouble.Error(backend.ContextError(ctx), s.now())
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
	if id := s.ID(); id != 0 {
		s.cfg.reports.Ended(id)
	}
}

// dial is the dialer of the zk client. It returns a connection on which the handshake has been
// made. When the session is over, that is the farewell.
func (s *session) dial(_, _ string, _ time.Duration) (net.Conn, error) {
	s.measure()
	c, err := s.reach()
	if s.isSealed() {
		if err == nil {
			c.fail(errSealed)
		}
		return newFarewell(func() { s.leaveOnce.Do(func() { close(s.leaving) }) }), nil
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// reach makes the session's next connection.
//
// Several handshakes can be under way, see contact.Race. A server that welcomes a session which
// another connection has moves it: the older connection gets errors from then on. So of the
// connections that are welcomed the session uses the one whose request was sent last. For a new session
// each server makes one; the first is used, and the others are closed.
func (s *session) reach() (*guardConn, error) {
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	race := contact.Race[*guardConn]{
		Servers: s.hosts.Servers,
		Times:   s.times,
		Try:     s.try,
		Begun:   func(t contact.Target) { s.trouble.Trying(t, s.now()) },
		Failed: func(t contact.Target, err error) error {
			s.failed(t, err)
			return nil
		},
		Drop: func(c *guardConn) {
			s.work.Add(1)
			go func() {
				defer s.work.Done()
				c.dismiss()
			}()
		},
		Newest: id != 0,
		Final:  func(c *guardConn) bool { return c.answer.session != id },
		Go: func(f func()) {
			s.work.Add(1)
			go func() {
				defer s.work.Done()
				f()
			}()
		},
	}
	c, _, err := race.Run(s.dialing)
	if err != nil {
		return nil, err
	}
	// The credentials may take as long as a handshake.
	budget, _ := s.times(1)
	c.until = time.Now().Add(budget)
	s.mu.Lock()
	sealed := s.isSealed()
	if !sealed {
		s.conn = c
	}
	s.mu.Unlock()
	if sealed {
		c.fail(errSealed)
		return nil, errSealed
	}
	if err := c.welcome(); err != nil {
		c.fail(err)
		return nil, err
	}
	return c, nil
}

// try makes one connection and the handshake on it.
func (s *session) try(ctx context.Context, a *contact.Attempt) (*guardConn, error) {
	c, err := s.connect(ctx, a)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })
	if !a.Ask() {
		stop()
		c.fail(contact.ErrBeaten)
		return nil, contact.ErrBeaten
	}
	err = c.shakeHands()
	if closedByServer(err) && !c.fresh {
		s.refused(a.Target)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.fail(err)
		if ctx.Err() == context.DeadlineExceeded {
			err = os.ErrDeadlineExceeded
		}
		return nil, s.inHandshake(err)
	}
	return c, nil
}

// connect makes one connection.
func (s *session) connect(ctx context.Context, a *contact.Attempt) (c *guardConn, err error) {
	begun := time.Now()
	defer func() {
		switch {
		case err == nil:
		case closedByServer(err):
			err = s.inHandshake(err)
		case ctx.Err() == context.DeadlineExceeded:
			err = fmt.Errorf("no connection within %v: %w", time.Since(begun).Round(time.Millisecond), err)
		}
	}()
	raw, err := s.cfg.dialer()(ctx, "tcp", a.Address)
	if err != nil {
		return nil, err
	}
	a.Accepted()
	s.trouble.Accepted(a.Target)
	conn, err := s.cfg.secure(ctx, a.Target, raw)
	if err != nil {
		return nil, err
	}
	until, _ := ctx.Deadline()
	return newGuardConn(s, a.Target, raw, conn, until), nil
}

// dialer returns the function that makes connections.
func (c *config) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	if c.dial != nil {
		return c.dial
	}
	return new(net.Dialer).DialContext
}

// secure returns the connection, or TLS on it. After an error it is closed.
func (c *config) secure(ctx context.Context, t contact.Target, raw net.Conn) (net.Conn, error) {
	cfg := c.tls
	if cfg == nil {
		return raw, nil
	}
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName = contact.HostOf(t.Server)
	}
	secure := tls.Client(raw, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return secure, nil
}

// times returns how long an attempt to connect may take, handshake included, and after which time
// the next one begins beside it. While the lease runs, each address gets its chance within the
// rest of it.
func (s *session) times(addresses int) (budget, step time.Duration) {
	const least, most = 500 * time.Millisecond, 5 * time.Second
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == 0 {
		budget = min(max(s.cfg.times.Timeout/2, least), most)
		return budget, budget
	}
	left := s.lease.Left(now)
	return max(left/2, s.timeout/10), max(left/time.Duration(addresses+1), s.timeout/10)
}
