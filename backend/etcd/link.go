package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend/internal/contact"
)

// A link is one connection to one server. It is never made again: when it breaks, the session
// makes another one. So no request is repeated without the session's knowledge.
type link struct {
	target  contact.Target
	cc      *grpc.ClientConn
	ctx     context.Context // ends when the link is broken
	cancel  context.CancelCauseFunc
	ordered bool // a progress reply comes after the events that it covers
	tells   bool // an old token of a watch stream is not refused as a missing permission is

	kv      pb.KVClient
	leases  pb.LeaseClient
	watches pb.WatchClient
	auth    pb.AuthClient
	user    string
	secret  func() string

	revision atomic.Int64 // the latest one in a reply

	renewal chan struct{} // capacity 1: a new token is being requested

	mu    sync.Mutex
	raw   net.Conn
	token string

	wake chan struct{} // capacity 1: the hub has requests for the watch stream
	work sync.WaitGroup

	leaving chan struct{} // closed when the connection takes no more requests
	leaves  sync.Once
	cut     atomic.Bool   // a read or a write of the connection has failed
	inUse   atomic.Int64  // contexts of call
	unused  chan struct{} // capacity 1: inUse has dropped to zero

	// The supervision of requests, see await.
	traffic  atomic.Int64  // bytes of the connection, in both directions
	patience time.Duration // how long a request may be without an answer; 0: not limited
	now      func() contact.Instant
	hung     func(requestKind)
	silent   *silence

	cluster uint64 // id, 0 if the server has not told it
	past    *past  // of the session
	changed func(error) error
}

// dialLink connects to a server. ctx bounds that only. accepted, if it is not nil, is called when there
// is a connection.
func (c *config) dialLink(ctx context.Context, a *contact.Attempt, accepted func()) (*link, error) {
	raw, err := c.connect(ctx, a.Address)
	if err != nil {
		return nil, err
	}
	a.Accepted()
	if accepted != nil {
		accepted()
	}
	l := &link{target: a.Target, raw: raw, user: c.user, secret: c.password, renewal: make(chan struct{}, 1), wake: make(chan struct{}, 1), leaving: make(chan struct{}), unused: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	creds := insecure.NewCredentials()
	if c.tls != nil {
		creds = credentials.NewTLS(c.tls)
	}
	var taken sync.Once
	// The name that gRPC gets is not dialed. It would refuse the zone of an IPv6 address.
	l.cc, err = grpc.NewClient("passthrough:///server",
		grpc.WithTransportCredentials(creds),
		grpc.WithAuthority(c.authority(a.Server)),
		grpc.WithContextDialer(func(context.Context, string) (conn net.Conn, err error) {
			err = errSpent
			taken.Do(func() { conn, err = watchedConn{raw, l}, nil })
			return conn, err
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(1<<20),
		grpc.WithInitialConnWindowSize(4<<20),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithUnaryInterceptor(l.unary),
		grpc.WithStreamInterceptor(l.stream),
	)
	if err != nil {
		raw.Close()
		return nil, err
	}
	l.kv, l.leases, l.watches, l.auth = pb.NewKVClient(l.cc), pb.NewLeaseClient(l.cc), pb.NewWatchClient(l.cc), pb.NewAuthClient(l.cc)
	if err := l.ready(ctx); err != nil {
		l.fail(err)
		l.close()
		return nil, err
	}
	l.work.Add(1)
	go l.guard()
	return l, nil
}

// connect makes a connection. It returns soon after ctx ends, which a Dial of the user's may not do: that is the only
// goroutine that nothing joins.
func (c *config) connect(ctx context.Context, address string) (net.Conn, error) {
	if c.lookup != nil {
		return c.dial(ctx, "tcp", address)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	made := make(chan result)
	go func() {
		conn, err := c.dial(ctx, "tcp", address)
		select {
		case made <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				conn.Close()
			}
		}
	}()
	select {
	case r := <-made:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// authority returns the name of a server in requests, and in its certificate unless the options have
// another one.
func (c *config) authority(server string) string {
	if c.tls != nil && c.tls.ServerName != "" {
		return c.tls.ServerName
	}
	_, port, _ := net.SplitHostPort(server)
	return net.JoinHostPort(contact.HostOf(server), port)
}

// ready waits until the server answers, and learns its version.
func (l *link) ready(ctx context.Context) error {
	if l.user != "" {
		if err := l.authenticate(ctx); err != nil {
			return err
		}
	}
	reply, err := pb.NewMaintenanceClient(l.cc).Status(ctx, &pb.StatusRequest{}, grpc.WaitForReady(false))
	switch {
	case err != nil && status.Code(err) != codes.PermissionDenied:
		return err
	case err == nil && reply.Leader == 0:
		return rpctypes.ErrGRPCNoLeader
	}
	l.ordered = err == nil && isSince(reply.Version, 25, 8) // etcd #15220
	l.tells = err == nil && isSince(reply.Version, 22, 6)
	l.cluster = reply.GetHeader().GetClusterId()
	return nil
}

// isSince reports whether a version is at least 3.4.four or 3.5.five, or is later.
func isSince(version string, four, five int) bool {
	var n [3]int
	for i, part := range strings.SplitN(strings.SplitN(version, "-", 2)[0], ".", 3) {
		number, err := strconv.Atoi(part)
		if err != nil {
			return false
		}
		n[i] = number
	}
	switch {
	case n[0] != 3:
		return n[0] > 3
	case n[1] == 4:
		return n[2] >= four
	case n[1] == 5:
		return n[2] >= five
	}
	return n[1] > 5
}

// authenticate gets a token, or none while authentication is off: it can be switched on and off under
// clients that have credentials.
func (l *link) authenticate(ctx context.Context) error {
	reply, err := l.auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: l.user, Password: l.secret()})
	off := is(err, rpctypes.ErrGRPCAuthNotEnabled)
	if err != nil && !off {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token = reply.GetToken()
	return nil
}

// renew replaces the token of a request that was refused, unless another request has done so. It costs
// the server the check of a password, which is made to be slow.
func (l *link) renew(ctx context.Context, old string) error {
	select {
	case l.renewal <- struct{}{}:
		defer func() { <-l.renewal }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.currentToken() != old {
		return nil
	}
	return l.authenticate(ctx)
}

// currentToken returns the token of the user, or "".
func (l *link) currentToken() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

const authenticateMethod = "/etcdserverpb.Auth/Authenticate"

// unary adds the token to a request. A request that the server refuses because of an old token
// was not run, so it is sent again with a new one.
func (l *link) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for tries := 1; ; tries++ {
		on, token := ctx, l.currentToken()
		if method != authenticateMethod {
			on = withToken(ctx, token)
		}
		kind, before := kindOfRequest(req), l.past.seen()
		answered := l.await(kind)
		err := invoke(on, method, req, reply, cc, opts...)
		answered()
		if l.silent != nil && on.Err() == nil && status.Code(err) != codes.Unavailable {
			l.silent[kind].Store(0)
		}
		if err == nil {
			if err = checkReply(req, reply); err != nil {
				l.fail(err)
				return err
			}
			if err = l.past.note(req, reply, before); err != nil {
				return l.changed(err)
			}
			l.saw(reply)
			return nil
		}
		if l.user == "" || method == authenticateMethod || tries > 2 || !staleToken(err) {
			return err
		}
		if l.renew(ctx, token) != nil {
			return err
		}
	}
}

// staleToken reports whether a server has not run a request because its token is not valid any more,
// or because authentication has been switched on since the link was made without one.
func staleToken(err error) bool {
	return is(err, rpctypes.ErrGRPCInvalidAuthToken) || is(err, rpctypes.ErrGRPCAuthOldRevision) || is(err, rpctypes.ErrGRPCUserEmpty)
}

// saw notes the revision of a reply.
func (l *link) saw(reply any) {
	r, ok := reply.(interface{ GetHeader() *pb.ResponseHeader })
	for ok {
		old, rev := l.revision.Load(), r.GetHeader().GetRevision()
		ok = old < rev && !l.revision.CompareAndSwap(old, rev)
	}
}

// stream adds the token, and asks the server to end the stream when it has lost its leader.
func (l *link) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx = metadata.AppendToOutgoingContext(withToken(ctx, l.currentToken()), rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
	return open(ctx, desc, cc, method, opts...)
}

// is reports whether err is this error of the server.
func is(err, want error) bool {
	return err != nil && status.Code(err) == status.Code(want) && rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(want)
}

// guard notices that the connection takes no more requests: it is broken; or the server wants it to end
// (GOAWAY), as proxies do at intervals and members that stop. Then the requests under way are still answered.
func (l *link) guard() {
	defer l.work.Done()
	for state := l.cc.GetState(); ; state = l.cc.GetState() {
		if state != connectivity.Ready {
			l.leave()
			return
		}
		if !l.cc.WaitForStateChange(l.ctx, state) {
			return
		}
	}
}

// errSpent is the error of a request that was not sent, since the connection takes no more.
var errSpent = errors.New("etcd: the connection takes no more requests")

func unsentBy(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), errSpent.Error())
}

// leave records that the connection takes no more requests. One that is broken answers none, and the link
// breaks: gRPC tells both in the same way.
func (l *link) leave() {
	if l.cut.Load() {
		l.fail(errBroken)
		return
	}
	l.leaves.Do(func() { close(l.leaving) })
}

func (l *link) isLeaving() bool {
	select {
	case <-l.leaving:
		return true
	default:
		return false
	}
}

// fail breaks the link. What was not sent yet is dropped. It reports whether this is the first reason to
// do so.
func (l *link) fail(reason error) (first bool) {
	l.mu.Lock()
	l.cancel(reason)
	raw := l.raw
	l.raw = nil
	l.mu.Unlock()
	if raw == nil {
		return false
	}
	if tcp, ok := raw.(interface{ SetLinger(int) error }); ok {
		_ = tcp.SetLinger(0) // only hastens the end
	}
	raw.Close()
	return true
}

// close waits for the goroutines of a broken link.
func (l *link) close() {
	l.cc.Close()
	l.work.Wait()
}

// stir wakes the goroutine that writes the requests of the watch stream.
func (l *link) stir() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// reason returns why the link is broken, or nil.
func (l *link) reason() error {
	if l.ctx.Err() == nil {
		return nil
	}
	return context.Cause(l.ctx)
}

// call returns a context for a request that ends with ctx or with the link. It has no deadline,
// so that no server ends the request a moment before ctx ends.
func (l *link) call(ctx context.Context) (context.Context, func()) {
	on, cancel := context.WithCancel(l.ctx)
	stop := context.AfterFunc(ctx, cancel)
	l.inUse.Add(1)
	return on, func() {
		stop()
		cancel()
		if l.inUse.Add(-1) == 0 {
			select {
			case l.unused <- struct{}{}:
			default:
			}
		}
	}
}

// keepAlive renews the lease of the session until the link is broken. The link breaks when a
// renewal is not answered for half the lease: the other half is for another server.
func (s *session) keepAlive(l *link) {
	defer l.work.Done()
	var stream renewals = rootReads{s, l}
	var err error
	if !s.bare {
		stream, err = l.leases.LeaseKeepAlive(l.ctx)
	}
	if unsentBy(err) {
		l.leave() // the requests under way are still answered
		return
	}
	if err != nil {
		l.fail(err)
		return
	}
	answers := make(chan error, 1)
	var ttl int64
	receive := func() {
		reply, err := stream.Recv()
		if err == nil {
			ttl, err = reply.TTL, checkRenewal(reply, s.id, s.Timeout())
			l.saw(reply)
		}
		answers <- err
	}
	begun, lasted := s.now(), false
	timer := time.NewTimer(s.Timeout())
	defer timer.Stop()
	for {
		sent := s.now()
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: s.id}); err != nil {
			l.fail(fmt.Errorf("keep-alive: %w", err))
			return
		}
		go receive()
		limit := newDeadline(sent, s.Lease()/2)
		for answered := false; !answered; {
			next := limit.look(s.now())
			if next == 0 {
				l.fail(errors.New("etcd: the server does not answer keep-alives"))
			}
			timer.Reset(next)
			select {
			case err := <-answers:
				if err != nil {
					l.fail(fmt.Errorf("keep-alive: %w", err))
					return
				}
				if ttl <= 0 {
					s.end(errRevoked)
					return
				}
				if s.Left() > 0 { // a late answer renews nothing
					_ = s.Renew(sent)
				}
				answered = true
				if !lasted && begun.To(s.now()) >= s.servers.Spell() {
					lasted = true
					s.servers.Lasted()
				}
			case <-timer.C:
			case <-l.ctx.Done():
				<-answers
				return
			}
		}
		// A lease that LossMargin makes much shorter than the timeout needs more of them.
		for {
			left := min(s.Timeout()/8, s.Lease()/4) - sent.To(s.now())
			if left <= 0 {
				break
			}
			timer.Reset(contact.Soon(left, s.Timeout()))
			select {
			case <-timer.C:
			case <-l.ctx.Done():
				return
			}
		}
	}
}
