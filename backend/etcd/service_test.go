package etcd_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/costtest"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// binary is the path of an etcd to run the tests with. Without one they run an embedded server.
var binary = os.Getenv("COORD_ETCD")

// server is one running etcd.
type server struct {
	addr string
	stop func()
}

// sharedServer is the server of all tests that do not break it.
type sharedServer struct {
	once   sync.Once
	server *server
	err    error
	dir    string
}

var shared sharedServer

func (s *sharedServer) get(t testing.TB) string {
	t.Helper()
	s.once.Do(func() {
		if s.dir, s.err = os.MkdirTemp("", "coord-etcd-"); s.err == nil {
			s.server, s.err = start(s.dir)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server.addr
}

func (s *sharedServer) stop() {
	if s.server != nil {
		s.server.stop()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// start starts a server with an election timeout that permits leases of a second.
func start(dir string) (*server, error) { return startAt(dir, "127.0.0.1:0") }

// startAt starts a server at an address for clients.
func startAt(dir, addr string) (*server, error) {
	if binary != "" {
		return startBinary(binary, dir, addr)
	}
	return startEmbedded(dir, addr, nil)
}

func startEmbedded(dir, addr string, change func(*embed.Config)) (*server, error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: addr}}, []url.URL{local}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = []url.URL{local}, []url.URL{local}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 20, 200
	cfg.UnsafeNoFsync = true
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if change != nil {
		change(cfg)
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	<-e.Server.ReadyNotify()
	return &server{e.Clients[0].Addr().String(), e.Close}, nil
}

func startBinary(path, dir, addr string) (*server, error) {
	addrs, err := free(2)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(addr, ":0") {
		addrs[0] = addr
	}
	client, peer := "http://"+addrs[0], "http://"+addrs[1]
	cmd := exec.Command(path, "--data-dir", filepath.Join(dir, "data"), "--heartbeat-interval", "20", "--election-timeout", "200",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{addrs[0], func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cc, err := dial(s.addr)
	if err == nil {
		defer cc.Close()
		_, err = pb.NewKVClient(cc).Range(ctx, &pb.RangeRequest{Key: []byte("x")}, grpc.WaitForReady(true))
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// free returns addresses of loopback that nothing listens at. No other process is assigned one of
// them while its server is down.
func free(n int) ([]string, error) {
	ports, err := zktest.FreePorts(n)
	if err != nil {
		return nil, err
	}
	var addrs []string
	for _, port := range ports {
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	return addrs, nil
}

func dial(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

// service is a tree of its own on a server.
type service struct {
	tb     testing.TB
	server string
	opts   etcd.Options
	root   string

	mu    sync.Mutex
	links map[string]*link
	admin *grpc.ClientConn
	trips *costtest.Trips // of all links that are made afterwards
}

var prefixes atomic.Int64

// fresh returns a prefix that no other test, and no other run of this one, uses.
func fresh(prefix string) string { return fmt.Sprint(prefix, "-", prefixes.Add(1)) }

// newService returns a service whose keys have a prefix of their own.
func newService(tb testing.TB, server string, opts etcd.Options) *service {
	tb.Helper()
	if opts.ContainerInterval == 0 {
		opts.ContainerInterval = -1 // so that nothing but the test makes requests
	}
	opts.Prefix = fmt.Sprintf("t%d-%d", time.Now().UnixNano(), prefixes.Add(1))
	s := &service{tb: tb, server: server, opts: opts, root: "/", links: make(map[string]*link)}
	var err error
	if s.admin, err = dial(server); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.close)
	return s
}

func (s *service) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		l.close()
	}
	s.admin.Close()
}

// roundTrip makes a request of no client.
func (s *service) roundTrip(ctx context.Context) (*pb.RangeResponse, error) {
	return pb.NewKVClient(s.admin).Range(ctx, &pb.RangeRequest{Key: []byte("x")})
}

func (s *service) Root() string { return s.root }

func (s *service) Link(name string) backendtest.Link { return s.link(name) }

func (s *service) link(name string) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.links[name]; l != nil {
		return l
	}
	l, err := newLink(s)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.links[name] = l
	return l
}

// link is a connection to the server through a proxy of bytes, with the faults of a network, and
// one of requests, which loses a single one.
type link struct {
	backend.Backend
	service  *service
	bytes    *zkproxy.Proxy
	requests *grpc.Server
	server   *grpc.ClientConn
	served   chan struct{}

	mu        sync.Mutex
	dropFirst bool // of the next request, else of its reply
	drop      bool
	sent      map[string]int // requests by method
	replies   map[string]int // and what was answered
	hold      *hold
	late      *hold // of a reply
	hook      *hook
	answer    error // instead of the reply to the next commit
	reject    error // instead of passing the next commit on
	silent    bool  // no response of a watch stream reaches the client
	rewrite   func(*pb.WatchResponse)
	trips     *costtest.Trips
}

// rejectNext answers the next commit with an error; the server does not get it.
func (l *link) rejectNext(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reject = err
}

func (l *link) takeReject(method string, body []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reject == nil || !puts(method, body) {
		return nil
	}
	err := l.reject
	l.reject = nil
	return err
}

// silence drops the responses of watch streams.
func (l *link) silence(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = on
}

// rewriteWatches changes the responses of watch streams.
func (l *link) rewriteWatches(f func(*pb.WatchResponse)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rewrite = f
}

// hook runs a function before the next request that matches is passed on.
type hook struct {
	match func(method string, body []byte) bool
	do    func()
	stays bool // for the requests after it too
}

// before sets the hook.
func (l *link) before(match func(method string, body []byte) bool, do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hook = &hook{match, do, false}
}

// always runs a function before each request that matches.
func (l *link) always(match func(method string, body []byte) bool, do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hook = &hook{match, do, true}
}

// requested returns the number of requests of a method.
func (l *link) requested(method string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent[method]
}

func (l *link) runHook(method string, body []byte) {
	l.mu.Lock()
	h := l.hook
	if h == nil || !h.match(method, body) {
		l.mu.Unlock()
		return
	}
	if !h.stays {
		l.hook = nil
	}
	l.mu.Unlock()
	h.do()
}

// answerNext replaces the reply to the next commit, which the server has applied, by an error.
func (l *link) answerNext(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = err
}

func (l *link) takeAnswer() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.answer
	l.answer = nil
	return err
}

// hold keeps one request from the server until it is released, even if the client gives it up.
type hold struct {
	match   func(method string, body []byte) bool
	hit     chan struct{} // closed when the request has come
	release chan struct{}
	done    chan struct{} // closed when the server has answered a single request
	reply   []byte
}

// holdNext holds the next request that matches.
func (l *link) holdNext(match func(method string, body []byte) bool) *hold {
	h := &hold{match: match, hit: make(chan struct{}), release: make(chan struct{}), done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = h
	return h
}

func (l *link) holds(method string, body []byte) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hold
	if h == nil || !h.match(method, body) {
		return nil
	}
	l.hold = nil
	return h
}

// holdReply keeps the next reply that matches from the client until it is released.
func (l *link) holdReply(match func(method string, body []byte) bool) *hold {
	h := &hold{match: match, hit: make(chan struct{}), release: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = h
	return h
}

func (l *link) delay(method string, body []byte) {
	l.mu.Lock()
	h := l.late
	if h == nil || !h.match(method, body) {
		l.mu.Unlock()
		return
	}
	l.late = nil
	l.mu.Unlock()
	close(h.hit)
	<-h.release
}

// forward sends a single request that was held. Its client need not be there any more.
func (l *link) forward(md metadata.MD, method string, body []byte, h *hold) {
	defer close(h.done)
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(context.Background(), md), time.Minute)
	defer cancel()
	if err := l.server.Invoke(ctx, method, &body, &h.reply); err != nil {
		l.service.tb.Errorf("a held request: %v", err)
	}
}

func newLink(s *service) (*link, error) {
	l := &link{service: s, trips: s.trips, served: make(chan struct{}), sent: make(map[string]int), replies: make(map[string]int)}
	var err error
	if l.server, err = dial(s.server, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30))); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.requests = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(l.handle), grpc.MaxRecvMsgSize(1<<30), grpc.MaxSendMsgSize(1<<30))
	go func() {
		defer close(l.served)
		l.requests.Serve(listener)
	}()
	if l.bytes, err = zkproxy.NewRaw(listener.Addr().String()); err != nil {
		return nil, err
	}
	l.Backend = etcd.New([]string{l.bytes.Addr()}, &s.opts)
	return l, nil
}

func (l *link) close() {
	l.bytes.Close()
	l.requests.Stop()
	<-l.served
	l.server.Close()
}

func (l *link) Partition() {
	l.bytes.Refuse(true)
	l.bytes.Cut()
}

func (l *link) Heal() {
	l.bytes.Refuse(false)
	l.bytes.Blackhole(false)
}

func (l *link) SetLatency(d time.Duration) { l.bytes.SetDelay(d, d) }

func (l *link) Expire(session int64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := pb.NewLeaseClient(l.service.admin).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: session})
	if err != nil && status.Code(err) != codes.NotFound { // it can have ended by itself
		l.service.tb.Errorf("expire session %#x: %v", session, err)
	}
}

func (l *link) DropNextRequest() { l.dropNext(true) }
func (l *link) DropNextReply()   { l.dropNext(false) }

// replied returns the number of answers to requests of a method.
func (l *link) replied(method string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replies[method]
}

func (l *link) dropNext(request bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop, l.dropFirst = true, request
}

// take reports whether the fault is for this moment of a request, and takes it.
func (l *link) take(request bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.drop || l.dropFirst != request {
		return false
	}
	l.drop = false
	return true
}

// counts reports whether a request is a read or a write of a caller: not the opening of a session,
// not a new epoch, not the look of a commit that does not write yet, and not the removal of containers.
func counts(method string, body []byte) bool {
	switch method {
	case "/etcdserverpb.KV/Range":
		var r pb.RangeRequest
		return r.Unmarshal(body) == nil && !strings.Contains(string(r.Key), ":container")
	case "/etcdserverpb.KV/DeleteRange":
		return true
	case "/etcdserverpb.KV/Txn":
		var r pb.TxnRequest
		if r.Unmarshal(body) != nil {
			return false
		}
		if len(r.Success) == 0 {
			return true
		}
		for _, op := range r.Success {
			if p := op.GetRequestPut(); p != nil && (strings.Contains(string(p.Key), ":session/") || strings.HasSuffix(string(p.Key), ":sweeper")) {
				return false
			}
			if d := op.GetRequestDeleteRange(); d != nil && strings.Contains(string(d.Key), ":container/") {
				return false
			}
		}
		first := r.Success[0].GetRequestRange()
		return first == nil || !strings.Contains(string(first.Key), ":session/") && !strings.HasSuffix(string(first.Key), ":sweeper")
	}
	return false
}

// puts matches a transaction that puts a node.
func puts(method string, body []byte) bool { return counts(method, body) && isPut(method, body) }

func isPut(method string, body []byte) bool {
	var r pb.TxnRequest
	if method != "/etcdserverpb.KV/Txn" || r.Unmarshal(body) != nil {
		return false
	}
	for _, op := range r.Success {
		if op.GetRequestPut() != nil {
			return true
		}
	}
	return false
}

// refused reports whether a reply is that of a transaction whose compares failed.
func refused(method string, reply []byte) bool {
	var r pb.TxnResponse
	return method == "/etcdserverpb.KV/Txn" && r.Unmarshal(reply) == nil && !r.Succeeded
}

// handle passes one call on.
func (l *link) handle(_ any, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	md, _ := metadata.FromIncomingContext(client.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(client.Context(), md))
	defer cancel()
	server, err := l.server.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	lost := errLost
	var call costtest.Trip
	counted := make(chan bool, 1) // of the first request
	put := make(chan bool, 1)     // likewise: it writes
	rejected := make(chan error, 1)
	go func() { // until the call has ended
		for n := 0; ; n++ {
			var body []byte
			if err := client.RecvMsg(&body); err != nil {
				server.CloseSend()
				return
			}
			l.mu.Lock()
			l.sent[method]++
			l.mu.Unlock()
			l.sentTrip(&call, method, body)
			l.runHook(method, body)
			if h := l.holds(method, body); h != nil {
				close(h.hit)
				<-h.release
				if strings.HasPrefix(method, "/etcdserverpb.KV/") {
					l.forward(md, method, body, h)
					return
				}
			}
			if err := l.takeReject(method, body); err != nil {
				rejected <- err
				cancel()
				return
			}
			if n == 0 {
				counted <- counts(method, body)
				put <- puts(method, body)
				if counts(method, body) && l.take(true) {
					l.bytes.Cut()
					cancel()
					return
				}
			}
			if err := server.SendMsg(&body); err != nil {
				return
			}
		}
	}()
	for {
		var body []byte
		if err := server.RecvMsg(&body); err != nil {
			select {
			case err := <-rejected:
				return err
			default:
			}
			if status.Code(err) == codes.Unknown && err.Error() == "EOF" {
				return nil
			}
			return end(err)
		}
		select {
		case is := <-put:
			if is {
				if err := l.takeAnswer(); err != nil {
					return err
				}
			}
		default:
		}
		select {
		case is := <-counted:
			if is && !refused(method, body) && l.take(false) {
				l.bytes.Cut()
				return lost
			}
		default:
		}
		l.mu.Lock()
		silent, rewrite := l.silent, l.rewrite
		l.mu.Unlock()
		if method == "/etcdserverpb.Watch/Watch" {
			if silent {
				continue
			}
			if rewrite != nil {
				var r pb.WatchResponse
				if err := r.Unmarshal(body); err != nil {
					return err
				}
				rewrite(&r)
				if body, err = r.Marshal(); err != nil {
					return err
				}
			}
		}
		l.delay(method, body)
		l.answeredTrip(&call, method, body)
		if err := client.SendMsg(&body); err != nil {
			return err
		}
		l.mu.Lock()
		l.replies[method]++
		l.mu.Unlock()
	}
}

var errLost = status.Error(codes.Unavailable, "lost by the test")

// end returns the error with which a stream ended; nil if it did so as agreed.
func end(err error) error {
	if err.Error() == "EOF" {
		return nil
	}
	return err
}

// rawCodec passes messages as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// metadataToken returns a context whose requests are those of a user.
func metadataToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "token", token)
}
