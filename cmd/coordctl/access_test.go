//go:build linux

package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-coord/coord/internal/zktest"
)

// TestTLSAndCredentials: certificates come from files, and the digest from the environment.
// The digest is never printed.
func TestTLSAndCredentials(t *testing.T) {
	zktest.Require(t)
	dir := t.TempDir()
	certs, err := zktest.NewCertificates(dir)
	if err != nil {
		t.Fatal(err)
	}
	pair := certs.ClientConfig().Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certFile, keyFile := write("client.pem", "CERTIFICATE", pair.Certificate[0]), write("client.key", "PRIVATE KEY", key)
	e := zktest.Run(t, &zktest.Options{TLS: certs.ServerTLS()})
	ctl := func(args ...string) (int, string, string) {
		t.Helper()
		return inProcess(t, "", append([]string{"-servers", e.SecureAddrs()[0], "-tls-ca", certs.ServerTLS().TrustStore, "-tls-cert", certFile, "-tls-key", keyFile}, args...)...)
	}

	t.Setenv("COORD_DIGEST", "me:the password")
	if status, _, text := ctl("queue", "put", "/q", "x"); status != 0 {
		t.Fatalf("put: status %d: %s", status, text)
	}
	if status, out, text := ctl("-v", "inspect", "/q"); status != 0 || !strings.Contains(out, "queue: 1 item") || strings.Contains(out+text, "password") {
		t.Errorf("inspect: status %d: %s%s", status, out, text)
	}
	t.Setenv("COORD_DIGEST", "")
	// This client has no certificate, which is a credential too.
	if status, out, text := inProcess(t, "", "-servers", e.Addrs()[0], "inspect", "/q"); status != exitFailed || !strings.Contains(text, "permission") {
		t.Errorf("without credentials: status %d: %s%s", status, out, text)
	}
	if status, _, text := inProcess(t, "", "-servers", e.SecureAddrs()[0], "-tls", "-wait", "2m", "inspect", "/q"); status != exitFailed {
		t.Errorf("without the authority: status %d: %s", status, text)
	}
}
