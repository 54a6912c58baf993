package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestInvalidOptionsAreReportedByOpen(t *testing.T) {
	for _, test := range []struct {
		endpoints []string
		o         *etcd.Options
	}{
		{nil, nil}, {[]string{""}, nil}, {[]string{"a:b:c"}, nil}, {[]string{"a:99999"}, nil}, {[]string{"ftp://a"}, nil},
		{[]string{"https://a"}, nil}, {[]string{"http://a"}, &etcd.Options{TLS: &tls.Config{}}},
		{[]string{"a"}, &etcd.Options{SessionTimeout: -1}},
		{[]string{"a"}, &etcd.Options{SessionTimeout: time.Second, LossMargin: time.Second}},
		{[]string{"a"}, &etcd.Options{Password: "secret"}}, {[]string{"a"}, &etcd.Options{Prefix: "a\x00b"}},
	} {
		_, err := etcd.New(test.endpoints, test.o).Open(t.Context())
		var e *backend.Error
		if !errors.Is(err, backend.ErrInvalid) || !errors.As(err, &e) || e.Op != "open" {
			t.Errorf("%v, %+v: %v", test.endpoints, test.o, err)
		}
	}
}

// lines is a slog.Handler that keeps the lines that it gets.
type lines struct {
	slog.Handler
	mu   sync.Mutex
	all  []string
	more chan struct{} // closed at the next line, if it is not nil
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	l.all = append(l.all, text)
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return nil
}

// await waits for a line with the text.
func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	for l.count(text) == 0 {
		l.mu.Lock()
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		if l.count(text) == 0 {
			await(t, more, "a line with "+text)
		}
	}
}

// An outage is in the log each time, also when it has the same reason as the one before. The end
// of a session that its user closes is no trouble.
func TestTheLogTellsOfEachOutage(t *testing.T) {
	t.Parallel()
	log := new(lines)
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 20 * time.Second, Logger: slog.New(log)})
	l := s.link("a")
	a := open(t, l)
	for range 2 {
		_, changed := a.Status()
		l.Partition()
		await(t, changed, "the suspension")
		for n := log.count("coord: no server can be reached"); log.count("coord: no server can be reached") == n; {
			time.Sleep(5 * time.Millisecond)
		}
		l.Heal()
		if err := a.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	text := strings.Join(log.all, "\n")
	for what, n := range map[string]int{
		"INFO coord: session connected session=0x" + strconv.FormatInt(a.ID(), 16) + " server=" + l.bytes.Addr(): 3,
		"WARN coord: session suspended, reconnecting session=":                                                   2,
		"INFO coord: session closed session=":                                                                    1,
	} {
		if got := strings.Count(text, what); got != n {
			t.Errorf("%q is %d times in the log, want %d:\n%s", what, got, n, text)
		}
	}
	if n := strings.Count(text, "coord: no server can be reached"); n < 2 || n > 10 {
		t.Errorf("%d reports of two outages:\n%s", n, text)
	}
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.all {
		if strings.Contains(line, what) {
			n++
		}
	}
	return n
}

func TestOptionsDoNotShowThePassword(t *testing.T) {
	o := etcd.Options{Username: "alice", Password: "secret"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{o, &o, etcd.New([]string{"a"}, &o)} {
			if s := fmt.Sprintf(format, v); strings.Contains(s, "secret") {
				t.Errorf("%s shows %s", format, s)
			}
		}
	}
}

// A node that was replaced in one commit keeps its key on the server, with all that was written
// to it. A session that has not seen it takes it for a new node.
func TestAReplacedNodeBeginsAgain(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/n", nil, backend.Persistent))
	commit(t, a, backend.SetData("/n", nil, 0))
	commit(t, a, backend.SetData("/n", nil, 1))
	made := commit(t, a, backend.Delete("/n", 2), backend.Create("/n", []byte("new"), backend.Ephemeral))[1].Czxid
	if stat, err := b.Exists(t.Context(), "/n", nil); err != nil || stat.Czxid != made || stat.Mzxid != made {
		t.Errorf("the new node has %+v, %v, want the commit %d", stat, err, made)
	}
	for _, version := range []int32{1, 2, 3, 4} {
		for _, op := range []backend.Op{backend.Check("/n", version), backend.Delete("/n", version), backend.SetData("/n", nil, version)} {
			fresh := open(t, s.link("b"))
			if _, err := fresh.Commit(t.Context(), op); !errors.Is(err, backend.ErrBadVersion) {
				t.Errorf("%v of version %d: %v", op.Kind, version, err)
			}
		}
	}
	if _, err := b.Commit(t.Context(), backend.Create("/n/x", nil, backend.Persistent)); !errors.Is(err, backend.ErrNoChildren) {
		t.Errorf("a child of an ephemeral node: %v", err)
	}
	commit(t, b, backend.Check("/n", 0))
	if stat := commit(t, b, backend.SetData("/n", nil, 0))[0].Stat; stat.Version != 1 || stat.EphemeralOwner != a.ID() {
		t.Errorf("after a set the node has %+v", stat)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exists(t.Context(), "/n", nil); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the node of a closed session: %v", err)
	}
}

// What calls cost, once the session has seen the nodes.
func TestEachCallIsOneRequest(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	commit(t, a, backend.Create("/d", []byte("mark"), backend.Persistent))
	requests := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.sent["/etcdserverpb.KV/Txn"] + l.sent["/etcdserverpb.KV/Range"] + l.sent[deleteRange]
	}
	var n string
	var asOf int64
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"create", func() error {
			n = commit(t, a, backend.Create("/d/n-", nil, backend.EphemeralSequential), backend.Carry("/d", []byte("mark")))[0].Path
			return nil
		}},
		{"get", func() error {
			_, stat, err := a.Get(t.Context(), n, nil)
			asOf = stat.AsOf
			return err
		}},
		{"get with a watch", func() error { _, _, err := a.Get(t.Context(), n, backend.NewWatch()); return err }},
		{"children with a watch", func() error { _, _, err := a.Children(t.Context(), "/d", backend.NewWatch()); return err }},
		{"arm", func() error {
			return a.Arm(t.Context(), asOf, backend.Target{Path: n, Watch: backend.NewWatch()}, backend.Target{Path: n, Children: true, Watch: backend.NewWatch()})
		}},
		{"set", func() error { commit(t, a, backend.SetData(n, []byte("v"), backend.AnyVersion)); return nil }},
		{"check", func() error { commit(t, a, backend.Check(n, 1)); return nil }},
		{"a refused check", func() error {
			if _, err := a.Commit(t.Context(), backend.Check(n, 0)); !errors.Is(err, backend.ErrBadVersion) {
				return fmt.Errorf("a check of another version: %w", err)
			}
			return nil
		}},
		{"delete", func() error { commit(t, a, backend.Delete(n, backend.AnyVersion)); return nil }},
	} {
		before := requests()
		if err := call.do(); err != nil {
			t.Fatalf("%s: %v", call.name, err)
		}
		if got := requests() - before; got != 1 {
			t.Errorf("%s cost %d requests", call.name, got)
		}
	}
}

// What a session has created can be gone, and the parent can be another node by now. Commits that
// read nothing beforehand and nothing when they fail find out all the same.
func TestSmallTransactionsFindWhatHasChanged(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", []byte("mark"), backend.Persistent))
	create := func() (string, error) {
		r, err := a.Commit(t.Context(), backend.Create("/d/n-", nil, backend.EphemeralSequential), backend.Carry("/d", []byte("mark")))
		if err != nil {
			return "", err
		}
		return r[0].Path, nil
	}
	n, err := create()
	if err != nil {
		t.Fatal(err)
	}
	commit(t, b, backend.Delete(n, backend.AnyVersion))
	if _, err := a.Commit(t.Context(), backend.Delete(n, backend.AnyVersion)); !errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrUncertain) {
		t.Errorf("a deletion of a node that is gone: %v", err)
	}
	commit(t, b, backend.SetData("/d", []byte("other"), 0))
	if _, err := create(); !errors.Is(err, backend.ErrBadVersion) {
		t.Errorf("a carry of other data: %v", err)
	}
	commit(t, b, backend.Delete("/d", 1))
	if _, err := create(); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a creation without a parent: %v", err)
	}
	commit(t, b, backend.Create("/d", []byte("mark"), backend.Ephemeral))
	if _, err := create(); !errors.Is(err, backend.ErrNoChildren) {
		t.Errorf("a creation below an ephemeral node: %v", err)
	}
}

// The name of a node that was created without a number can look as if it had one: some that end
// with a UUID do. What the session has seen of the node is enough for a commit of one request.
func TestANodeThatLooksSequentialIsDeletedInOneRequest(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	number := s.revision(t) * 128 // that a node could have which was created before
	dir := fmt.Sprintf("/d-%010d", number)
	child := fmt.Sprintf("%s/n-86%010d", dir, number)
	commit(t, a, backend.Create(dir, nil, backend.Persistent))
	commit(t, a, backend.Create(child, nil, backend.Persistent))
	before := l.requested("/etcdserverpb.KV/Txn")
	commit(t, a, backend.SetData(child, nil, 0))
	commit(t, a, backend.Create(dir+"/m", nil, backend.Persistent))
	commit(t, a, backend.Delete(child, 1))
	if n := l.requested("/etcdserverpb.KV/Txn") - before; n != 3 {
		t.Errorf("%d requests for three commits", n)
	}
}

// startWithUsers starts a server for the users root and alice. alice may read and write a range of keys.
func startWithUsers(t *testing.T, key, end string) (addr string, auth pb.AuthClient) {
	t.Helper()
	if binary != "" {
		t.Skip("with the embedded server only")
	}
	srv, err := startEmbedded(t.TempDir(), "127.0.0.1:0", func(cfg *embed.Config) { cfg.BcryptCost = 4 })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	cc, err := dial(srv.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	auth, ctx := pb.NewAuthClient(cc), t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "root", Password: "root"}))
	must(auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "root"}))
	must(auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))
	must(auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "alice", Password: "secret"}))
	must(auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "team"}))
	must(auth.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: "team",
		Perm: &authpb.Permission{PermType: authpb.READWRITE, Key: []byte(key), RangeEnd: []byte(end)}}))
	must(auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "alice", Role: "team"}))
	must(auth.AuthEnable(ctx, &pb.AuthEnableRequest{}))
	return srv.addr, auth
}

// asRoot returns a context for requests of the user root.
func asRoot(t *testing.T, auth pb.AuthClient) context.Context {
	t.Helper()
	login, err := auth.Authenticate(t.Context(), &pb.AuthenticateRequest{Name: "root", Password: "root"})
	if err != nil {
		t.Fatal(err)
	}
	return metadataToken(t.Context(), login.Token)
}

// Servers before 3.4.22 and 3.5.6 do not say that the token of a watch stream is not valid any more:
// they refuse the watch as if a permission were missing.
func TestAWatchThatIsRefusedForAnOldToken(t *testing.T) {
	t.Parallel()
	addr, auth := startWithUsers(t, "t", "u")
	s := newService(t, addr, etcd.Options{Username: "alice", Password: "secret"})
	l := s.link("a")
	a := open(t, l)
	var old, real atomic.Int64
	l.rewriteWatches(func(r *pb.WatchResponse) {
		switch r.CancelReason {
		case "":
		case rpctypes.ErrGRPCPermissionDenied.Error():
			real.Add(1)
		default:
			old.Add(1)
			r.CancelReason = rpctypes.ErrGRPCPermissionDenied.Error()
		}
	})
	root := asRoot(t, auth)
	for name, arm := range map[string]func(path string) error{
		"get": func(path string) error { _, _, err := a.Get(t.Context(), path, backend.NewWatch()); return err },
		"arm": func(path string) error {
			return a.Arm(t.Context(), math.MaxInt64, backend.Target{Path: path, Watch: backend.NewWatch()})
		},
		"tree": func(path string) error { return a.WatchTree(t.Context(), path, backend.NewTreeWatch(0)) },
	} {
		path := commit(t, a, backend.Create("/"+name, nil, backend.Persistent))[0].Path
		before := old.Load()
		if _, err := auth.UserChangePassword(root, &pb.AuthUserChangePasswordRequest{Name: "alice", Password: "secret"}); err != nil {
			t.Fatal(err)
		}
		if err := arm(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if old.Load() == before {
			t.Errorf("%s: the server has refused no watch", name)
		}
	}
	if real.Load() > 0 {
		t.Errorf("%d watches lack a permission", real.Load())
	}
}

// awaitRenewals waits until that many keep-alives are answered. A new link sends one at once.
func (l *link) awaitRenewals(times int) {
	for l.replied("/etcdserverpb.Lease/LeaseKeepAlive") < times {
		time.Sleep(5 * time.Millisecond) // nothing signals it
	}
}

// Requests under way are refused for an old token. One of them fetches a new one for all.
func TestAnOldTokenIsReplacedOnce(t *testing.T) {
	t.Parallel()
	addr, auth := startWithUsers(t, "t", "u")
	s := newService(t, addr, etcd.Options{Username: "alice", Password: "secret", SessionTimeout: 10 * time.Minute})
	l := s.link("a")
	a := open(t, l)
	l.awaitRenewals(1) // one with the old token would end the link
	const calls, authenticate = 8, "/etcdserverpb.Auth/Authenticate"
	before := l.requested(authenticate)
	if _, err := auth.UserChangePassword(asRoot(t, auth), &pb.AuthUserChangePasswordRequest{Name: "alice", Password: "secret"}); err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int64
	all := make(chan struct{})
	l.always(counts, func() {
		if requests.Add(1) == calls {
			close(all)
		}
	})
	h := l.holdNext(func(method string, _ []byte) bool { return method == authenticate })
	errs := make(chan error, calls)
	for range calls {
		go func() {
			_, err := a.Exists(t.Context(), "/", nil)
			errs <- err
		}()
	}
	await(t, h.hit, "the request of a token")
	await(t, all, "the requests with the old token")
	close(h.release)
	for range calls {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := l.requested(authenticate) - before; n != 1 {
		t.Errorf("%d tokens were requested", n)
	}
}

func TestUsersAndTheirPermissions(t *testing.T) {
	t.Parallel()
	addr, auth := startWithUsers(t, "team", "tean")
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	// Without the permission for its keys a lease is not renewed, so the session is long. A new link sends
	// a keep-alive at once.
	s := newService(t, addr, etcd.Options{Username: "alice", Password: "secret", SessionTimeout: 10 * time.Minute})
	s.opts.Prefix = "team"
	l := s.link("a")
	a := open(t, l)
	l.awaitRenewals(1)
	w := backend.NewWatch()
	commit(t, a, backend.Create("/n", nil, backend.Ephemeral))
	if _, _, err := a.Get(ctx, "/n", w); err != nil {
		t.Fatal(err)
	}
	commit(t, a, backend.SetData("/n", nil, 0))
	await(t, w.Fired(), "the watch")
	if err := a.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]*etcd.Options{
		"a wrong password":        {Username: "alice", Password: "wrong", Prefix: "team"},
		"an unknown user":         {Username: "bob", Password: "secret", Prefix: "team"},
		"no user":                 {Prefix: "team"},
		"the prefix of another":   {Username: "alice", Password: "secret", Prefix: "other"},
		"a prefix that is a part": {Username: "alice", Password: "secret", Prefix: "te"},
	} {
		limit, cancel := context.WithTimeout(ctx, time.Minute)
		_, err := etcd.New([]string{addr}, o).Open(limit)
		cancel()
		if !errors.Is(err, backend.ErrDenied) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %v", name, err, backend.ErrDenied)
		}
	}
	// A change of the user ends the validity of its tokens. The session asks for another one.
	root := asRoot(t, auth)
	_, changed := a.Status()
	must(auth.UserChangePassword(root, &pb.AuthUserChangePasswordRequest{Name: "alice", Password: "secret"}))
	commit(t, a, backend.SetData("/n", nil, 1))
	if _, _, err := a.Get(ctx, "/n", nil); err != nil {
		t.Fatal(err)
	}
	if a.Err() != nil {
		t.Fatal(a.Err())
	}
	select {
	case <-changed:
		t.Error("contact broke because of an old token")
	default:
	}
	// The stream of the watches had the token of before. It is made again, with a new link.
	if _, _, err := a.Get(ctx, "/n", backend.NewWatch()); err != nil {
		t.Fatal(err)
	}
	await(t, changed, "the end of the first link")
	l.awaitRenewals(2)
	// A permission that is taken away and given back: the calls in between are refused, each for
	// itself.
	_, changed = a.Status()
	all := &authpb.Permission{PermType: authpb.READWRITE, Key: []byte("team"), RangeEnd: []byte("tean")}
	must(auth.RoleRevokePermission(root, &pb.AuthRoleRevokePermissionRequest{Role: "team", Key: all.Key, RangeEnd: all.RangeEnd}))
	for range 3 {
		if _, _, err := a.Children(ctx, "/n", backend.NewWatch()); !errors.Is(err, backend.ErrDenied) {
			t.Errorf("a read with a watch: %v", err)
		}
		if err := a.WatchTree(ctx, "/n", backend.NewTreeWatch(0)); !errors.Is(err, backend.ErrDenied) {
			t.Errorf("a tree watch: %v", err)
		}
	}
	must(auth.RoleGrantPermission(root, &pb.AuthRoleGrantPermissionRequest{Name: "team", Perm: all}))
	w = backend.NewWatch()
	if _, _, err := a.Get(ctx, "/n", w); err != nil {
		t.Fatal(err)
	}
	commit(t, a, backend.SetData("/n", nil, 2))
	await(t, w.Fired(), "the watch")
	select {
	case <-changed:
		t.Error("contact broke because of a permission")
	default:
	}
	// Without the permission no server renews the lease of a session.
	b := open(t, etcd.New([]string{addr}, &etcd.Options{Username: "alice", Password: "secret", Prefix: "team", SessionTimeout: 6 * time.Second}))
	must(auth.RoleRevokePermission(root, &pb.AuthRoleRevokePermissionRequest{Role: "team", Key: all.Key, RangeEnd: all.RangeEnd}))
	if _, err := b.Exists(ctx, "/", nil); !errors.Is(err, backend.ErrDenied) && !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("a read without permission: %v", err)
	}
	await(t, b.Done(), "the loss of a session whose user has no permission any more")
	if !errors.Is(b.Err(), backend.ErrSessionLost) {
		t.Error(b.Err())
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	if binary != "" {
		t.Skip("with the embedded server only")
	}
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	srv, err := startEmbedded(filepath.Join(dir, "data"), "127.0.0.1:0", func(cfg *embed.Config) {
		cfg.ListenClientUrls[0].Scheme, cfg.AdvertiseClientUrls[0].Scheme = "https", "https"
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = ca.issue(t, dir, "server")
		cfg.ClientTLSInfo.TrustedCAFile = filepath.Join(dir, "ca.pem")
		cfg.ClientTLSInfo.ClientCertAuth = true
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	cert, key := ca.issue(t, dir, "client")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	good := &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{pair}}
	a := open(t, etcd.New([]string{"https://" + srv.addr}, &etcd.Options{TLS: good}))
	commit(t, a, backend.Create("/n", nil, backend.Ephemeral))
	for name, cfg := range map[string]*tls.Config{
		"another authority": {RootCAs: newAuthority(t, dir, "other").pool, Certificates: good.Certificates},
		"another name":      {RootCAs: ca.pool, Certificates: good.Certificates, ServerName: "elsewhere"},
	} {
		limit, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := etcd.New([]string{srv.addr}, &etcd.Options{TLS: cfg}).Open(limit)
		cancel()
		if !errors.Is(err, backend.ErrDenied) {
			t.Errorf("%s: %v, want %v", name, err, backend.ErrDenied)
		}
	}
	limit, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := etcd.New([]string{srv.addr}, &etcd.Options{TLS: &tls.Config{RootCAs: ca.pool}}).Open(limit); err == nil {
		t.Error("a session without a certificate was opened")
	}

	r := coordtest.NewReports("etcd")
	s := open(t, etcd.New([]string{srv.addr}, &etcd.Options{TLS: good, SessionTimeout: time.Minute, Reporter: r}))
	tickets, _ := r.List()
	for name, cfg := range map[string]*tls.Config{"no TLS": nil, "no certificate": {RootCAs: ca.pool}, "another authority": {Certificates: good.Certificates}} {
		if err := etcd.End(t.Context(), []string{srv.addr}, &etcd.Options{TLS: cfg}, tickets[0]); err == nil {
			t.Errorf("%s: End has ended the session", name)
		}
	}
	if err := s.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	if err := etcd.End(t.Context(), []string{"https://" + srv.addr}, &etcd.Options{TLS: good}, tickets[0]); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pool: x509.NewCertPool(), cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	write(t, filepath.Join(dir, name+".pem"), "CERTIFICATE", der)
	return a
}

// issue writes a certificate and its key, and returns the files.
func (a *authority) issue(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	write(t, cert, "CERTIFICATE", der)
	write(t, key, "EC PRIVATE KEY", private)
	return cert, key
}

func write(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Close waits up to a second for calls under way. Without such calls it returns at once.
func TestEtcd_CloseOfAnIdleSessionDoesNotWait(t *testing.T) {
	l := newService(t, shared.get(t), etcd.Options{}).link("a")
	fastest := time.Hour // a busy machine delays some of them
	for range 5 {
		s := open(t, l)
		commit(t, s, backend.Create("/n", nil, backend.Ephemeral))
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest >= time.Second {
		t.Errorf("the fastest Close of an idle session took %v", fastest)
	}
}

// A session has seen that the parent is not ephemeral, and another session replaces the parent by an ephemeral
// node. A Check of the parent does not show that.
func TestEtcd_AParentThatIsCheckedAndEphemeralByNow(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	for _, version := range []int32{backend.AnyVersion, 0} {
		commit(t, a, backend.Create("/d", nil, backend.Persistent))
		commit(t, b, backend.Delete("/d", backend.AnyVersion))
		commit(t, b, backend.Create("/d", nil, backend.Ephemeral))
		_, err := a.Commit(t.Context(), backend.Check("/d", version), backend.Create("/d/n-", nil, backend.PersistentSequential))
		if !errors.Is(err, backend.ErrNoChildren) {
			t.Errorf("version %d: a creation below an ephemeral node: %v", version, err)
		}
		commit(t, b, backend.Delete("/d", backend.AnyVersion))
	}
}

// Sequential nodes of one commit can have one name before their numbers. The commit needs no look first.
func TestEtcd_SequentialNodesOfOneNameAreOneRequest(t *testing.T) {
	l := newService(t, shared.get(t), etcd.Options{}).link("a")
	s := open(t, l)
	commit(t, s, backend.Create("/d", nil, backend.Persistent))
	const txn = "/etcdserverpb.KV/Txn"
	before := l.requested(txn)
	made := commit(t, s, backend.Create("/d/n-", nil, backend.PersistentSequential), backend.Create("/d/n-", nil, backend.PersistentSequential))
	if n := l.requested(txn) - before; n != 1 || made[0].Path == made[1].Path {
		t.Errorf("%d requests for %v", n, made)
	}
}
