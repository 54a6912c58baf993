package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// silent accepts connections at the address and answers none. It counts them, and returns the address.
func silent(t *testing.T, addr string) (string, *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("the loopback interface has only one address:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	var all []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			all = append(all, c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		for _, c := range all {
			c.Close()
		}
	})
	return l.Addr().String(), &n
}

// A name has two addresses, one of which accepts connections and is silent. The list names two servers,
// and the second case makes one of them silent. Each session gets contact with the other address or server. On a busy
// machine it can begin a second round.
func TestServers_OneOfTwoAddressesIsSilent(t *testing.T) {
	t.Parallel()
	addr := shared.get(t)
	_, port, _ := net.SplitHostPort(addr)
	_, tried := silent(t, "127.0.0.9:"+port)
	for name, o := range map[string]struct {
		endpoints []string
		addresses []string
	}{
		"of a name":      {[]string{"etcd.test.:" + port}, []string{"127.0.0.9", "127.0.0.1"}},
		"of the servers": {[]string{"127.0.0.9:" + port, addr}, nil},
	} {
		b := etcd.New(o.endpoints, &etcd.Options{SessionTimeout: 4 * time.Second, Prefix: "silent"})
		if o.addresses != nil {
			etcd.Resolve(b, o.addresses...)
		}
		before := tried.Load()
		const sessions = 8
		for range sessions {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			s, err := b.Open(ctx)
			cancel()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		// At random each session tries the silent one first, or not at all.
		if n := tried.Load() - before; n > 2*sessions {
			t.Errorf("%s: the silent address was tried %d times by %d sessions", name, n, sessions)
		}
	}
}

// The connection of a session breaks. Among the other servers is a black hole for each.
func TestServers_ASessionPassesSilentServersOnItsWayBack(t *testing.T) {
	t.Parallel()
	proxy, err := zkproxy.NewRaw(shared.get(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	endpoints := []string{proxy.Addr()}
	var holes []*atomic.Int64
	for range 3 {
		addr, tried := silent(t, "127.0.0.1:0")
		endpoints, holes = append(endpoints, addr), append(holes, tried)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := etcd.New(endpoints, &etcd.Options{SessionTimeout: 10 * time.Second, Prefix: "holes"}).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		_, changed := s.Status()
		proxy.Cut()
		await(t, changed, "the end of contact")
		if err := s.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range holes {
		if n.Load() > 8 {
			t.Errorf("silent server %d was tried %d times", i, n.Load())
		}
	}
}

// One of two servers has a certificate of an unknown authority. Open judges both, and fails at once if
// both are refused.
func TestServers_OneHasABadCertificate(t *testing.T) {
	t.Parallel()
	if binary != "" {
		t.Skip("with the embedded server only")
	}
	dir := t.TempDir()
	ca, other := newAuthority(t, dir, "ca"), newAuthority(t, dir, "other")
	srv, err := startEmbedded(filepath.Join(dir, "data"), "127.0.0.1:0", func(cfg *embed.Config) {
		cfg.ListenClientUrls[0].Scheme, cfg.AdvertiseClientUrls[0].Scheme = "https", "https"
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = ca.issue(t, dir, "server")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	pair, err := tls.LoadX509KeyPair(other.issue(t, dir, "bad"))
	if err != nil {
		t.Fatal(err)
	}
	listen := func() string {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.Copy(io.Discard, c) // until the client closes it
				c.Close()
			}
		}()
		return "https://" + l.Addr().String()
	}
	bad, worse := listen(), listen()
	o := &etcd.Options{TLS: &tls.Config{RootCAs: ca.pool}}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s, err := etcd.New([]string{bad, "https://" + srv.addr}, o).Open(ctx)
		cancel()
		if err != nil {
			t.Fatalf("one of two servers is well: %v", err)
		}
		s.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = etcd.New([]string{bad, worse}, o).Open(ctx)
	if !errors.Is(err, backend.ErrDenied) || ctx.Err() != nil {
		t.Fatalf("both are refused: %v", err)
	}
	for _, server := range []string{bad, worse} {
		if !strings.Contains(err.Error(), strings.TrimPrefix(server, "https://")+": ") {
			t.Errorf("the error does not name %s: %v", server, err)
		}
	}
}

// Authentication is switched on and off under a client with credentials and one without.
func TestServers_AuthenticationIsSwitchedOnAndOff(t *testing.T) {
	t.Parallel()
	addr, auth := startWithUsers(t, "coord", "coore")
	proxy, err := zkproxy.NewRaw(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	other, err := zkproxy.NewRaw(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	on := func() {
		t.Helper()
		if _, err := auth.AuthEnable(ctx, &pb.AuthEnableRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	off := func() {
		t.Helper()
		if _, err := auth.AuthDisable(asRoot(t, auth), &pb.AuthDisableRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	named := &etcd.Options{Username: "alice", Password: "secret", SessionTimeout: time.Minute}
	off()
	before, err := etcd.New([]string{proxy.Addr()}, named).Open(ctx) // rolled out before authentication is enabled
	if err != nil {
		t.Fatalf("credentials while authentication is off: %v", err)
	}
	t.Cleanup(func() { before.Close() })
	// Its lease is not renewed while authentication is on: a keep-alive breaks its link, and that can be the first one.
	nameless := open(t, etcd.New([]string{other.Addr()}, &etcd.Options{SessionTimeout: 10 * time.Minute}))
	works := func(when string) {
		t.Helper()
		if _, err := before.Commit(ctx, backend.Create("/n-", nil, backend.PersistentSequential)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		w := backend.NewWatch()
		if _, _, err := before.Children(ctx, "/", w); err != nil {
			t.Errorf("%s: a read with a watch: %v", when, err)
		}
		if _, err := before.Commit(ctx, backend.Create("/n-", nil, backend.PersistentSequential)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		await(t, w.Fired(), "the watch "+when)
	}
	breaks := func() {
		t.Helper()
		breakLink(t, before, proxy)
	}
	works("before")
	on()
	works("after authentication was enabled")
	breaks()
	works("after a new connection")
	calls := map[string]func() error{
		"commit": func() error {
			_, err := nameless.Commit(ctx, backend.Create("/m-", nil, backend.PersistentSequential))
			return err
		},
		"read":  func() error { _, _, err := nameless.Get(ctx, "/", nil); return err },
		"watch": func() error { _, _, err := nameless.Get(ctx, "/", backend.NewWatch()); return err },
		"open":  func() error { _, err := etcd.New([]string{addr}, nil).Open(ctx); return err },
		"a wrong password": func() error {
			_, err := etcd.New([]string{addr}, &etcd.Options{Username: "alice", Password: "x"}).Open(ctx)
			return err
		},
	}
	fail := func(when string) {
		t.Helper()
		for name, call := range calls {
			err := call()
			if !errors.Is(err, backend.ErrDenied) || errors.Is(err, backend.ErrUncertain) || ctx.Err() != nil {
				t.Errorf("%s %s: %v", name, when, err)
			}
			if !strings.Contains(name, "password") && !strings.Contains(err.Error(), "set Options.Username") {
				t.Errorf("%s %s: the error does not say what is missing: %v", name, when, err)
			}
		}
	}
	fail("while authentication is on")
	breakLink(t, nameless, other)
	fail("while authentication is on, after the end of contact")
	off()
	works("after authentication was disabled")
	breaks()
	works("after a new connection without authentication")
	if _, _, err := nameless.Get(ctx, "/", nil); err != nil {
		t.Errorf("the client without credentials, after authentication was disabled: %v", err)
	}
	if before.Err() != nil || nameless.Err() != nil {
		t.Errorf("sessions lost: %v, %v", before.Err(), nameless.Err())
	}
}

// breakLink cuts the connection of a session, if there is one, and waits until the session knows.
func breakLink(t *testing.T, s backend.Session, proxy *zkproxy.Proxy) {
	t.Helper()
	phase, changed := s.Status()
	if phase == backend.PhaseConnected {
		proxy.Cut()
		await(t, changed, "the end of contact")
	}
}

// A session has no contact because no server takes its user any more. Its calls say so, and do not wait until
// that is over. The first call after that works.
func TestServers_ACallWithoutContactSaysThatTheUserIsRefused(t *testing.T) {
	t.Parallel()
	addr, auth := startWithUsers(t, "team", "tean")
	root := asRoot(t, auth)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	password := func(p string) func() {
		return func() {
			must(auth.UserChangePassword(root, &pb.AuthUserChangePasswordRequest{Name: "alice", Password: p}))
		}
	}
	proxy, err := zkproxy.NewRaw(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	s := open(t, etcd.New([]string{proxy.Addr()}, &etcd.Options{Username: "alice", Password: "secret", Prefix: "team", SessionTimeout: 10 * time.Minute}))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, test := range []struct {
		what      string
		take, put func()
	}{
		{"another password", password("other"), password("secret")},
		{"no role", func() {
			must(auth.UserRevokeRole(root, &pb.AuthUserRevokeRoleRequest{Name: "alice", Role: "team"}))
		}, func() {
			must(auth.UserGrantRole(root, &pb.AuthUserGrantRoleRequest{User: "alice", Role: "team"}))
		}},
	} {
		test.take()
		breakLink(t, s, proxy)
		for range 2 {
			if _, err := s.Commit(ctx, backend.Create("/n-", nil, backend.PersistentSequential)); !errors.Is(err, backend.ErrDenied) || !errors.Is(err, backend.ErrNoContact) || errors.Is(err, backend.ErrUncertain) || ctx.Err() != nil {
				t.Errorf("%s: a commit: %v", test.what, err)
			}
			if _, _, err := s.Get(ctx, "/", backend.NewWatch()); !errors.Is(err, backend.ErrDenied) || !errors.Is(err, backend.ErrNoContact) || ctx.Err() != nil {
				t.Errorf("%s: a read: %v", test.what, err)
			}
		}
		test.put()
		if _, err := s.Commit(ctx, backend.Create("/n-", nil, backend.PersistentSequential)); err != nil {
			t.Errorf("after %s: %v", test.what, err)
		}
	}
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

// fe80::1%lo leads nowhere on most machines. What is dialed shows that the address is passed on as it
// is, with its zone.
func TestServers_AnIPv6AddressWithAZone(t *testing.T) {
	t.Parallel()
	addr := shared.get(t)
	for _, endpoint := range []string{"fe80::1%eth0", "[fe80::1%eth0]:2379", "http://[fe80::1%eth0]:2379"} {
		var dialed atomic.Value
		b := etcd.New([]string{endpoint}, &etcd.Options{Prefix: "zone", Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			dialed.Store(address)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s, err := b.Open(ctx)
		cancel()
		if err != nil {
			t.Errorf("%s: %v", endpoint, err)
			continue
		}
		s.Close()
		if got := dialed.Load(); got != "[fe80::1%eth0]:2379" {
			t.Errorf("%s: %v is dialed", endpoint, got)
		}
	}
}

// While no server answers, the error of a call says so beside that of its ctx.
func TestServers_ACallWithoutContactSaysSo(t *testing.T) {
	t.Parallel()
	proxy, err := zkproxy.NewRaw(shared.get(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	var dials atomic.Int32
	s := open(t, etcd.New([]string{proxy.Addr()}, &etcd.Options{SessionTimeout: time.Minute, Prefix: "nocontact", Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}))
	_, changed := s.Status()
	proxy.Refuse(true)
	proxy.Cut()
	await(t, changed, "the end of contact")
	for before := dials.Load(); dials.Load() < before+2 && s.Err() == nil; { // the next attempt begins when one has failed
		time.Sleep(time.Millisecond)
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"commit": func(ctx context.Context) error {
			_, err := s.Commit(ctx, backend.Create("/n", nil, backend.Persistent))
			return err
		},
		"read": func(ctx context.Context) error { _, _, err := s.Get(ctx, "/", nil); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := call(ctx)
		cancel()
		var cut *backend.NoContactError
		if !errors.Is(err, backend.ErrNoContact) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrUncertain) ||
			!errors.As(err, &cut) || cut.For < 250*time.Millisecond || !strings.Contains(cut.Why, proxy.Addr()+": ") {
			t.Errorf("a %s: %v", name, err)
		}
	}
	proxy.Refuse(false)
	if _, _, err := s.Get(t.Context(), "/", nil); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Get(ctx, "/", nil); !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrNoContact) {
		t.Errorf("a read whose ctx has ended, with contact: %v", err)
	}
}

// The error of Open says what is wrong with an address, also if its ctx ends during the first attempt.
func TestServers_OpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	plain, secure := httptest.NewUnstartedServer(http.NotFoundHandler()), httptest.NewUnstartedServer(http.NotFoundHandler())
	for _, s := range []*httptest.Server{plain, secure} {
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
	}
	plain.Start()
	t.Cleanup(plain.Close)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	o := &etcd.Options{TLS: &tls.Config{InsecureSkipVerify: true}}
	var all sync.WaitGroup
	for name, test := range map[string]struct {
		addr string
		o    *etcd.Options
		want string
	}{
		"nothing listens":       {"127.0.0.1:1", nil, "connection refused"},
		"an HTTP server":        {plain.Listener.Addr().String(), nil, "this is an HTTP server"},
		"TLS is expected":       {secure.Listener.Addr().String(), nil, "the server expects TLS"},
		"no TLS is expected":    {shared.get(t), o, "the server expects no TLS"},
		"an HTTPS server":       {secure.Listener.Addr().String(), o, "not etcd's client port"},
		"a server that is mute": {l.Addr().String(), nil, "it accepts connections, and gave no answer within "},
	} {
		all.Go(func() {
			within := 10 * time.Second // many attempts
			if strings.Contains(test.want, "gave no answer within") {
				within = 3 * time.Second // the first attempt lasts longer
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			_, err := etcd.New([]string{test.addr}, test.o).Open(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrNoContact) || !strings.Contains(err.Error(), test.addr+": ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", name, err, test.want)
			}
		})
	}
	all.Wait()
}

// The failure of a server is not replaced by that of an attempt which had no time.
func TestServers_AnAttemptWithoutTimeSaysNothing(t *testing.T) {
	t.Parallel()
	var late atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var attempts atomic.Int32
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		switch attempts.Add(1) {
		case 2:
			late.Store(true)
			return nil, os.ErrDeadlineExceeded
		case 3:
			cancel()
			return nil, errors.New("canceled")
		}
		return nil, errors.New("no route")
	}
	_, err := etcd.New([]string{"127.0.0.1:1"}, &etcd.Options{Dial: dial}).Open(coordtest.Overdue{Context: ctx, Late: &late})
	if attempts.Load() < 3 || !errors.Is(err, context.Canceled) || !strings.HasSuffix(err.Error(), "no route") {
		t.Errorf("after %d attempts: %v", attempts.Load(), err)
	}
}
