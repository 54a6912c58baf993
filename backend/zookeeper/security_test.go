package zookeeper_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func(servers []string, cfg *tls.Config) (backend.Session, error) {
		return zookeeper.New(servers, &zookeeper.Options{TLS: cfg, SessionTimeout: 4 * time.Second}).Open(ctx)
	}
	// refused is what waiting cannot cure, so Open returns long before ctx ends.
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
		// A client sends no certificate that the server does not ask for.
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
			t.Errorf("the error does not say so: %v", err)
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
		// It is sent again on each connection, before anything else.
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
	// An ACL that the server does not know.
	bad := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{ACL: []zookeeper.ACL{{Scheme: "nonsense", ID: "x", Perms: zookeeper.PermAll}}}))
	if _, err := bad.Commit(s.ctx, backend.Create(s.path("e"), nil, backend.Persistent)); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("create: %v", err)
	}
}
