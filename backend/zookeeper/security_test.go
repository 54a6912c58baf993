package zookeeper_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"math/big"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zktest"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	zktest.Require(t)
	certs, err := zktest.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := zktest.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := zktest.Run(t, &zktest.Options{TLS: certs.ServerTLS()})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	open := func(servers []string, cfg *tls.Config) (backend.Session, error) {
		return zookeeper.New(servers, &zookeeper.Options{TLS: cfg, SessionTimeout: 10 * time.Second}).Open(ctx)
	}
	// refused checks for an error that waiting cannot fix: Open returns long before ctx ends.
	refused := func(t *testing.T, err error) {
		t.Helper()
		var e *backend.Error
		if !errors.Is(err, backend.ErrDenied) || !errors.As(err, &e) || e.Op != "open" {
			t.Fatalf("open: %v", err)
		}
		t.Log(err)
	}

	t.Run("with the right authority", func(t *testing.T) {
		c, err := open(e.SecureAddrs(), certs.ClientConfig())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Commit(ctx, backend.Create("/tls", nil, backend.Ephemeral)); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("End", func(t *testing.T) {
		r := coordtest.NewReports("zookeeper")
		s, err := zookeeper.New(e.SecureAddrs(), &zookeeper.Options{TLS: certs.ClientConfig(), SessionTimeout: time.Minute, Reporter: r}).Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		tickets, _ := r.List()
		for name, cfg := range map[string]*tls.Config{"no TLS": nil, "another authority": foreign.ClientConfig()} {
			if err := zookeeper.End(ctx, e.SecureAddrs(), &zookeeper.Options{TLS: cfg}, tickets[0]); err == nil {
				t.Errorf("%s: the session was ended", name)
			}
		}
		if err := s.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		if err := zookeeper.End(ctx, e.SecureAddrs(), &zookeeper.Options{TLS: certs.ClientConfig()}, tickets[0]); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
	})
	t.Run("with another authority", func(t *testing.T) {
		_, err := open(e.SecureAddrs(), foreign.ClientConfig())
		refused(t, err)
		var unknown x509.UnknownAuthorityError
		if !errors.As(err, &unknown) {
			t.Errorf("the cause is not in the error: %v", err)
		}
	})
	t.Run("for another name", func(t *testing.T) {
		cfg := certs.ClientConfig()
		cfg.ServerName = "elsewhere.test"
		_, err := open(e.SecureAddrs(), cfg)
		refused(t, err)
	})
	t.Run("without a certificate of the client", func(t *testing.T) {
		cfg := certs.ClientConfig()
		cfg.Certificates = nil
		_, err := open(e.SecureAddrs(), cfg)
		refused(t, err)
	})
	t.Run("with a client certificate of another authority", func(t *testing.T) {
		cfg := certs.ClientConfig()
		cfg.Certificates = foreign.ClientConfig().Certificates
		// A client sends no certificate for which the server does not ask.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &cfg.Certificates[0], nil
		}
		_, err := open(e.SecureAddrs(), cfg)
		refused(t, err)
	})
	t.Run("with an expired certificate of the server", func(t *testing.T) {
		addr, pool := expiredServer(t)
		_, err := open([]string{addr}, &tls.Config{RootCAs: pool})
		refused(t, err)
		if !strings.Contains(err.Error(), "expired") {
			t.Errorf("the error does not say that the certificate has expired: %v", err)
		}
	})
	t.Run("functions that do not return", func(t *testing.T) {
		var dials, checks atomic.Int32
		cfg := certs.ClientConfig()
		cfg.VerifyConnection = func(tls.ConnectionState) error {
			if checks.Add(1) == 1 {
				panic("the first check")
			}
			return nil
		}
		s, err := zookeeper.New(e.SecureAddrs(), &zookeeper.Options{TLS: cfg, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			switch dials.Add(1) {
			case 1:
				panic("the first dial")
			case 2:
				runtime.Goexit()
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}}).Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if dials.Load() < 4 || checks.Load() < 2 {
			t.Errorf("%d dials and %d checks, want the failed ones and one that succeeds", dials.Load(), checks.Load())
		}
		if _, _, err := s.Children(ctx, "/", nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("one good server of two is enough", func(t *testing.T) {
		addr, _ := expiredServer(t)
		for range 4 { // in either order
			c, err := open([]string{addr, e.SecureAddrs()[0]}, certs.ClientConfig())
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("on a port without TLS", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := zookeeper.New(e.Addrs(), &zookeeper.Options{TLS: certs.ClientConfig()}).Open(short)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrDenied) {
			t.Errorf("open: %v", err)
		}
	})
	t.Run("without TLS on its port", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := zookeeper.New(e.SecureAddrs(), nil).Open(short)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("open: %v", err)
		}
		t.Log(err)
	})
}

// expiredServer listens with a certificate that has expired.
func expiredServer(t *testing.T) (addr string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-2 * time.Hour),
		NotAfter:              time.Now().Add(-time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String(), pool
}

func TestDigest(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	as := func(o zookeeper.Options) backend.Session { return s.open(zookeeper.New(s.link.Addrs(), &o)) }
	owner := as(zookeeper.Options{Digest: "user:right"})
	s.commit(owner, backend.Create(s.path("n"), []byte("v"), backend.Persistent))

	same := as(zookeeper.Options{Digest: "user:right"})
	for range 3 {
		if data, _, err := same.Get(s.ctx, s.path("n"), backend.NewWatch()); err != nil || string(data) != "v" {
			t.Errorf("with the digest: %q, %v", data, err)
		}
		// The digest is sent again on each connection, before anything else.
		_, change := same.Status()
		s.link.Proxies[0].Cut()
		s.await(change, "the suspension")
	}
	for name, o := range map[string]zookeeper.Options{
		"another password": {Digest: "user:wrong"},
		"no digest":        {},
	} {
		c := as(o)
		w := backend.NewWatch()
		_, _, err1 := c.Get(s.ctx, s.path("n"), w)
		_, _, err2 := c.Children(s.ctx, s.path("n"), w)
		_, err3 := c.Commit(s.ctx, backend.SetData(s.path("n"), nil, backend.AnyVersion))
		_, err4 := c.Commit(s.ctx, backend.Create(s.path("n/child"), nil, backend.Ephemeral))
		_, err5 := c.Commit(s.ctx, backend.Check(s.path("n"), 0), backend.SetData(s.path("n"), nil, backend.AnyVersion))
		for i, err := range []error{err1, err2, err3, err4, err5} {
			if !errors.Is(err, backend.ErrDenied) {
				t.Errorf("%s, call %d: %v", name, i+1, err)
			}
		}
		if zookeeper.Interests(c) != 0 || w.Kind() != 0 {
			t.Errorf("%s: a read that was denied armed its watch", name)
		}
	}
	if data, stat, err := owner.Get(s.ctx, s.path("n"), nil); err != nil || string(data) != "v" || stat.Version != 0 {
		t.Errorf("the owner reads %q, %+v, %v", data, stat, err)
	}
}

func TestAnACLIsPutOnEveryNode(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{
		ACL: []zookeeper.ACL{{Scheme: "world", ID: "anyone", Perms: zookeeper.PermRead | zookeeper.PermCreate}},
	}))
	s.commit(c, backend.Create(s.path("a"), nil, backend.Persistent))
	s.commit(c, backend.Create(s.path("b"), nil, backend.Container))
	s.commit(c, backend.Create(s.path("c"), nil, backend.Persistent), backend.Create(s.path("d"), nil, backend.Persistent))
	for _, name := range []string{"a", "b", "c", "d"} {
		if _, _, err := c.Get(s.ctx, s.path(name), nil); err != nil {
			t.Errorf("get %s: %v", name, err)
		}
		if _, err := c.Commit(s.ctx, backend.SetData(s.path(name), nil, 0)); !errors.Is(err, backend.ErrDenied) {
			t.Errorf("set %s: %v", name, err)
		}
	}
	// The permission is checked before the version; a semaphore relies on that.
	if _, err := c.Commit(s.ctx, backend.SetData(s.path("a"), nil, math.MaxInt32)); !errors.Is(err, backend.ErrDenied) {
		t.Errorf("set at a version that it does not have: %v", err)
	}
	open := s.open(zookeeper.New(s.link.Addrs(), nil))
	s.commit(open, backend.Create(s.path("open"), nil, backend.Persistent))
	if _, err := c.Commit(s.ctx, backend.SetData(s.path("open"), nil, math.MaxInt32)); !errors.Is(err, backend.ErrBadVersion) {
		t.Errorf("set at a version that it does not have: %v", err)
	}
	// An ACL with a scheme that the server does not know.
	bad := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{ACL: []zookeeper.ACL{{Scheme: "nonsense", ID: "x", Perms: zookeeper.PermAll}}}))
	if _, err := bad.Commit(s.ctx, backend.Create(s.path("e"), nil, backend.Persistent)); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("create: %v", err)
	}
}

func TestADenialNamesTheNodeThatRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	owner := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{Digest: "user:secret"}))
	s.commit(owner, backend.Create(s.path("n"), nil, backend.Persistent))
	s.commit(owner, backend.Create(s.path("n/child"), nil, backend.Persistent))
	c := s.open(zookeeper.New(s.link.Addrs(), nil))
	s.commit(c, backend.Create(s.path("own"), nil, backend.Persistent))
	read := func(_ any, _ backend.Stat, err error) error { return err }
	commit := func(ops ...backend.Op) error {
		_, err := c.Commit(s.ctx, ops...)
		return err
	}
	set := backend.SetData(s.path("own"), nil, backend.AnyVersion)
	data, _, err := c.Get(s.ctx, s.path("n"), nil)
	names, stat, err2 := c.Children(s.ctx, s.path("n"), nil)
	for name, x := range map[string]struct {
		err  error
		perm string
	}{
		"get":                     {read(data, stat, err), "read"},
		"children":                {read(names, stat, err2), "read"},
		"create":                  {commit(backend.Create(s.path("n/c"), nil, backend.Persistent)), "create"},
		"create a container":      {commit(backend.Create(s.path("n/c"), nil, backend.Container)), "create"},
		"create in a transaction": {commit(set, backend.Create(s.path("n/c"), nil, backend.Ephemeral)), "create"},
		"set":                     {commit(backend.SetData(s.path("n"), nil, backend.AnyVersion)), "write"},
		"set in a transaction":    {commit(set, backend.SetData(s.path("n"), nil, backend.AnyVersion)), "write"},
		"delete":                  {commit(backend.Delete(s.path("n/child"), backend.AnyVersion)), "delete"},
		"delete in a transaction": {commit(set, backend.Delete(s.path("n/child"), backend.AnyVersion)), "delete"},
		"a check":                 {commit(backend.Check(s.path("n"), 0)), "read"},
		"a check beside a set":    {commit(set, backend.Check(s.path("n"), 0)), "read"},
	} {
		var e *backend.DeniedError
		if !errors.Is(x.err, backend.ErrDenied) || !errors.As(x.err, &e) || e.Path != s.path("n") || e.Perm != x.perm {
			t.Errorf("%s: %v, want that %s does not grant %s", name, x.err, s.path("n"), x.perm)
		}
	}
}

func TestASharedDirectoryLetsOthersCreate(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	shared := func(name string, mode backend.CreateMode) backend.Op {
		op := backend.Create(s.path(name), nil, mode)
		op.Shared = true
		return op
	}
	as := func(o zookeeper.Options) backend.Session { return s.open(zookeeper.New(s.link.Addrs(), &o)) }
	other := as(zookeeper.Options{Digest: "other:secret"})
	readOnly := []zookeeper.ACL{{Scheme: "world", ID: "anyone", Perms: zookeeper.PermRead}}
	for name, x := range map[string]struct {
		o             zookeeper.Options
		create, write error
	}{
		"nothing":      {zookeeper.Options{}, nil, nil},
		"digest":       {zookeeper.Options{Digest: "user:secret"}, nil, backend.ErrDenied},
		"acl":          {zookeeper.Options{ACL: readOnly}, nil, backend.ErrDenied},
		"of-parents":   {zookeeper.Options{ParentACL: readOnly}, backend.ErrDenied, backend.ErrDenied},
		"everything":   {zookeeper.Options{ACL: readOnly, ParentACL: []zookeeper.ACL{{Scheme: "world", ID: "anyone", Perms: zookeeper.PermAll}}}, nil, nil},
		"owner-digest": {zookeeper.Options{Digest: "user:secret", ParentACL: []zookeeper.ACL{{Scheme: "auth", Perms: zookeeper.PermAll}}}, backend.ErrDenied, backend.ErrDenied},
	} {
		c := as(x.o)
		s.commit(c, shared(name, backend.Container))
		s.commit(c, backend.Check(s.path(name), 0), shared(name+"2", backend.Persistent))
		for _, dir := range []string{name, name + "2"} {
			if _, err := other.Commit(s.ctx, backend.Create(s.path(dir+"/n"), nil, backend.Persistent)); !errors.Is(err, x.create) {
				t.Errorf("%s: create in %s: %v, want %v", name, dir, err, x.create)
			}
			if _, err := other.Commit(s.ctx, backend.SetData(s.path(dir), nil, backend.AnyVersion)); !errors.Is(err, x.write) {
				t.Errorf("%s: write %s: %v, want %v", name, dir, err, x.write)
			}
		}
	}
}

// Servers with the fix of CVE-2024-23944, which some distributions have in earlier versions
// too, keep the events of a node from a session that may not read it. A watch that they keep
// silent fires when contact is back, and until then a read tells that it would be silent.
func TestWatchesOfNodesThatTheSessionMayNotRead(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	owner := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{Digest: "user:secret"}))
	c := s.open(s.link)
	private, missing, public := s.path("private"), s.path("missing"), s.path("public")
	s.commit(owner, backend.Create(private, nil, backend.Persistent))
	s.commit(c, backend.Create(public, nil, backend.Persistent))
	arm := func(path string) *backend.Watch {
		w := backend.NewWatch()
		if _, err := c.Exists(s.ctx, path, w); err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
		return w
	}
	watches := map[string]*backend.Watch{
		"the deletion of a node":           arm(private),
		"the deletion of a node, by Arm":   backend.NewWatch(),
		"the creation of a node":           arm(missing),
		"the deletion of one that is open": arm(public),
	}
	if err := c.Arm(s.ctx, math.MaxInt64, backend.Target{Path: private, Watch: watches["the deletion of a node, by Arm"]}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Children(s.ctx, private, nil); !errors.Is(err, backend.ErrDenied) {
		t.Errorf("a read of the node: %v", err)
	}
	s.commit(owner, backend.Create(missing, nil, backend.Persistent))
	s.commit(owner, backend.Delete(private, 0))
	s.commit(owner, backend.Delete(public, 0))
	// Whatever the server reports, it does so before its answer to a Sync.
	if err := c.Sync(s.ctx, public); err != nil {
		t.Fatal(err)
	}
	silent := 0
	for name, w := range watches {
		switch open := w == watches["the deletion of one that is open"]; {
		case open && w.Kind() != backend.Deleted:
			t.Errorf("%s is not reported", name)
		case !open && w.Kind() == 0:
			silent++
		}
	}
	if silent != 0 && silent != 3 {
		t.Errorf("%d of 3 watches are silent", silent)
	}
	t.Logf("this server keeps %d of 3 events", silent)
	s.link.Proxies[0].Cut()
	for name, w := range watches {
		s.await(w.Fired(), name)
	}
}
