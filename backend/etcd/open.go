package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

// Open starts a session.
func (b *service) Open(ctx context.Context) (backend.Session, error) {
	if b.err != nil {
		return nil, &backend.Error{Op: "open", Err: b.err}
	}
	s, err := b.cfg.open(ctx)
	if err != nil {
		return nil, &backend.Error{Op: "open", Err: err}
	}
	return s, nil
}

// open tries the servers until a session is ready.
func (c *config) open(ctx context.Context) (*session, error) {
	servers := contact.NewServers(c.servers, c.lookup, c.times.Timeout)
	outage, log := contact.NewOutage(servers), outbox.NewLogger(c.logger)
	now := c.clock()
	budget := min(max(c.times.Timeout/2, 500*time.Millisecond), 5*time.Second)
	for {
		s := &session{
			cfg: c, now: now, servers: servers, outage: outage, log: log, relinked: make(chan struct{}),
			commits: make(map[*commit]struct{}), left: make(map[*commit]struct{}), settler: make(chan struct{}, 1), known: newCache(), emptied: newEmptied(),
		}
		s.Life, s.hub = contact.NewLife(now, s.end), newHub(s)
		failed := func(t contact.Target, err error) error {
			if contact.Cut(ctx) {
				return nil
			}
			s.failed(t, err)
			if errors.Is(err, backend.ErrInvalid) {
				return fmt.Errorf("%v: %w", t, err)
			}
			if refusesUser(err) || errors.Is(err, backend.ErrDenied) {
				return fmt.Errorf("%v: %w", t, translate(err))
			}
			if outage.Each(refusesCertificate) {
				return outage.Error(backend.ErrDenied, now())
			}
			return nil
		}
		l, err := s.reach(ctx, func(int) (time.Duration, time.Duration) { return budget, budget }, failed)
		if err == nil {
			try, cancel := context.WithTimeout(ctx, budget)
			if err = s.openAt(try, l); err == nil {
				cancel()
				return s, nil
			}
			cancel()
			servers.Failed(l.target)
			err = failed(l.target, err)
		}
		if over := backend.ContextError(ctx); over != nil {
			err = outage.Error(over, now())
		}
		s.work.Wait() // the other attempts
		if err != nil {
			log.Drain(mostDrain)
			return nil, err
		}
	}
}

// reach returns a link to the first server that answers.
func (s *session) reach(ctx context.Context, times func(int) (budget, step time.Duration), failed func(contact.Target, error) error) (*link, error) {
	race := contact.Race[*link]{
		Servers: s.servers,
		Times:   times,
		Try: func(ctx context.Context, a *contact.Attempt) (*link, error) {
			attempt := s.attempt()
			l, err := s.cfg.dialLink(ctx, a, func() { s.outage.Accepted(a.Target) })
			s.denied(attempt, err)
			return l, explain(err, s.cfg.tls != nil)
		},
		Begun: func(t contact.Target) {
			s.outage.Trying(t, s.now())
			s.mu.Lock()
			s.tried = append(s.tried, t)
			s.mu.Unlock()
		},
		Failed: failed,
		Drop: func(l *link) {
			l.fail(contact.ErrBeaten)
			s.work.Go(l.close)
		},
		Go: s.work.Go,
	}
	l, _, err := race.Run(ctx)
	return l, err
}

// refusesCertificate reports whether a server, or this client, refuses the certificate of the other.
func refusesCertificate(err error) bool {
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &verify) || errors.As(err, &unknown) {
		return true
	}
	if status.Code(err) != codes.Unavailable {
		return false
	}
	text := err.Error()
	if _, alert, ok := strings.Cut(text, "remote error: tls:"); ok {
		return strings.Contains(alert, "certificate") || strings.Contains(alert, "access denied")
	}
	return strings.Contains(text, "failed to verify certificate")
}

// explain adds what the errors of gRPC for a wrong address do not say.
func explain(err error, overTLS bool) error {
	if status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unimplemented {
		return err
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "HTTP/1.1") || strings.Contains(text, "unexpected HTTP status"):
		return fmt.Errorf("this is an HTTP server, not etcd's client port: %w", err)
	case strings.Contains(text, "no application protocol"):
		return fmt.Errorf("this is not etcd's client port: %w", err)
	case overTLS && strings.Contains(text, "authentication handshake failed") && (strings.Contains(text, "EOF") || strings.Contains(text, "first record does not look like")):
		return fmt.Errorf("the server expects no TLS, or this is not etcd's client port: %w", err)
	case !overTLS && strings.Contains(text, "server preface"):
		return fmt.Errorf("the server expects TLS (Options.TLS is not set), or this is not etcd's client port: %w", err)
	}
	return err
}

// refusesUser reports whether the service refuses the user, or demands one. All servers give the
// same answer.
func refusesUser(err error) bool {
	return status.Code(err) == codes.PermissionDenied || is(err, rpctypes.ErrGRPCAuthFailed) || is(err, rpctypes.ErrGRPCUserEmpty)
}

// endLost revokes the leases of lost sessions. Each commit of a session compares the session's key, which goes with the
// lease, so the servers refuse what they still have of it, and what compares nothing deletes a key
// that is gone by then (see send): a server that was paused can have
// received a commit long ago.
func (c *config) endLost(ctx context.Context, leases pb.LeaseClient) error {
	return c.lost.End(func(id int64) error {
		return c.revoke(ctx, leases, id)
	})
}

// revoke ends the lease of a session, unless it has ended.
func (c *config) revoke(ctx context.Context, leases pb.LeaseClient, id int64) error {
	_, err := leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id})
	if err != nil && !is(err, rpctypes.ErrGRPCLeaseNotFound) {
		return err
	}
	c.reports.Ended(id)
	return nil
}

// openAt opens the session on a link, which it closes if it cannot.
func (s *session) openAt(ctx context.Context, l *link) (err error) {
	c := s.cfg
	defer func() {
		if err == nil {
			return
		}
		l.fail(err)
		l.close()
		if s.id != 0 {
			c.reports.Ended(s.id)
		}
	}()
	on, stop := l.call(ctx)
	defer stop()
	if err := c.endLost(on, l.leases); err != nil {
		return err
	}
	sent := s.now()
	grant, err := l.leases.LeaseGrant(on, &pb.LeaseGrantRequest{TTL: int64(c.times.Timeout / time.Second)})
	if c.bare && is(err, rpctypes.ErrGRPCNoSpace) {
		return s.openBare(ctx, l)
	}
	if err != nil {
		return err
	}
	timeout := time.Duration(grant.TTL) * time.Second
	length := c.times.Lease(timeout)
	if length <= 0 {
		return contact.Invalid("LossMargin %v: it must be shorter than the timeout that the servers grant, %v", c.times.Margin, timeout)
	}
	c.reports.Opened(backend.Ticket{ID: grant.ID, Timeout: timeout, Server: l.target.Address})
	s.id = grant.ID
	s.key, s.keys = c.sessionKey(s.id), newKeyring(s.id)
	s.Grant(timeout, contact.Lease{From: sent, Length: length})
	// The root is made by the first session of all.
	root := record{ctime: time.Now().UnixMilli(), mtime: time.Now().UnixMilli()}
	begin := []*pb.RequestOp{put(s.key, nil, s.id)}
	_, err = l.kv.Txn(on, &pb.TxnRequest{
		Compare: []*pb.Compare{compareCreated(c.rootKey(), pb.Compare_EQUAL, 0)},
		Success: append([]*pb.RequestOp{put(c.rootKey(), root.value(), 0)}, begin...),
		Failure: begin,
	})
	if c.bare && is(err, rpctypes.ErrGRPCNoSpace) {
		if err := c.revoke(on, l.leases, s.id); err != nil {
			return err
		}
		return s.openBare(ctx, l)
	}
	if err != nil {
		return err
	}
	return s.begin(ctx, l)
}

// begin completes openAt.
func (s *session) begin(ctx context.Context, l *link) error {
	c := s.cfg
	if err := s.attach(ctx, l); err != nil {
		return err
	}
	s.connected(l)
	s.Watch(s.work.Go)
	s.work.Go(func() { s.run(l) })
	if c.interval > 0 && !s.bare {
		s.work.Go(s.collect)
	}
	if other := s.oneCluster(ctx, l); other != nil {
		s.Close()
		return other
	}
	return nil
}
