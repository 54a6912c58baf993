package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	servers, outage, log := contact.NewServers(c.servers, c.times.Timeout), contact.NewOutage(c.servers), outbox.NewLogger(c.logger)
	now := c.clock()
	for {
		address := servers.Next()
		sleep(ctx, nil, servers.Pause())
		if err := backend.ContextError(ctx); err != nil {
			log.Drain(mostDrain)
			return nil, outage.Error(err)
		}
		budget := min(max(c.times.Timeout/2, 500*time.Millisecond), 5*time.Second)
		try, cancel := context.WithTimeout(ctx, budget)
		s := &session{
			cfg: c, now: now, servers: servers, outage: outage, log: log,
			phase: backend.PhaseSuspended, changed: make(chan struct{}), done: make(chan struct{}),
			commits: make(map[*commit]struct{}), settler: make(chan struct{}, 1), known: newCache(), emptied: newEmptied(),
		}
		s.hub = newHub(s)
		err := s.openAt(try, address)
		cancel()
		if err == nil {
			return s, nil
		}
		if errors.Is(err, backend.ErrInvalid) {
			log.Drain(mostDrain)
			return nil, fmt.Errorf("%s: %w", address, err)
		}
		if hopeless(err) {
			log.Drain(mostDrain)
			return nil, fmt.Errorf("%w: %s: %w", backend.ErrDenied, address, err)
		}
		s.failed(address, err)
	}
}

// hopeless reports whether the next try would be refused as well.
func hopeless(err error) bool {
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &verify) || errors.As(err, &unknown) {
		return true
	}
	switch status.Code(err) {
	case codes.PermissionDenied:
		return true
	case codes.Unavailable:
		text := err.Error()
		return strings.Contains(text, "failed to verify certificate") || strings.Contains(text, "remote error: tls:")
	}
	return is(err, rpctypes.ErrGRPCAuthFailed) || is(err, rpctypes.ErrGRPCAuthNotEnabled) || is(err, rpctypes.ErrGRPCUserEmpty)
}

// lostLeases are those of lost sessions that were not seen to end.
type lostLeases struct {
	mu  sync.Mutex
	ids []int64
}

func (x *lostLeases) add(id int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ids = append(x.ids, id)
}

// revoke ends the leases. Each commit of a session compares the session's key, which goes with the
// lease, so the servers refuse what they still have of it, and what compares nothing deletes a key
// that is gone by then (see send): a server that was paused can have
// received a commit long ago.
func (x *lostLeases) revoke(ctx context.Context, leases pb.LeaseClient) error {
	x.mu.Lock()
	ids := slices.Clone(x.ids)
	x.mu.Unlock()
	for _, id := range ids {
		_, err := leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id})
		if err != nil && !is(err, rpctypes.ErrGRPCLeaseNotFound) {
			return err
		}
		x.mu.Lock()
		x.ids = slices.DeleteFunc(x.ids, func(other int64) bool { return other == id })
		x.mu.Unlock()
	}
	return nil
}

// openAt opens the session at one server.
func (s *session) openAt(ctx context.Context, address string) (err error) {
	c := s.cfg
	l, err := c.dialLink(ctx, address)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		l.fail(err)
		l.close()
	}()
	on, stop := l.call(ctx)
	defer stop()
	if err := c.lost.revoke(on, l.leases); err != nil {
		return err
	}
	sent := s.now()
	grant, err := l.leases.LeaseGrant(on, &pb.LeaseGrantRequest{TTL: int64(c.times.Timeout / time.Second)})
	if err != nil {
		return err
	}
	s.id, s.timeout = grant.ID, time.Duration(grant.TTL)*time.Second
	if length := c.times.Lease(s.timeout); length <= 0 {
		return contact.Invalid("LossMargin %v: the servers grant a timeout of only %v", c.times.Margin, s.timeout)
	}
	s.key, s.keys = c.sessionKey(s.id), newKeyring(s.id)
	s.lease = contact.Lease{From: sent, Length: c.times.Lease(s.timeout)}
	// The root is made by the first session of all.
	root := record{ctime: time.Now().UnixMilli(), mtime: time.Now().UnixMilli()}
	begin := []*pb.RequestOp{put(s.key, nil, s.id)}
	_, err = l.kv.Txn(on, &pb.TxnRequest{
		Compare: []*pb.Compare{compareCreated(c.rootKey(), pb.Compare_EQUAL, 0)},
		Success: append([]*pb.RequestOp{put(c.rootKey(), root.value(), 0)}, begin...),
		Failure: begin,
	})
	if err != nil {
		return err
	}
	if err := s.attach(ctx, l); err != nil {
		return err
	}
	s.connected(l)
	s.work.Add(2)
	go s.watchLease()
	go s.run(l)
	if c.interval > 0 {
		s.work.Add(1)
		go s.collect()
	}
	if other := s.oneCluster(ctx, l); other != nil {
		s.Close()
		return other
	}
	return nil
}
