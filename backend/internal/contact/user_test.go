package contact

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/internal/usercode"
)

// Each function of the options that does not return is an error of its call, with one log line that
// has the stack and not the value of the panic.
func TestUser_AFunctionThatDoesNotReturnIsAnError(t *testing.T) {
	for kind, fail := range map[string]func(){
		"string": func() { panic("a secret") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(kind, func(t *testing.T) {
			var text bytes.Buffer
			log := outbox.NewLogger(slog.New(slog.NewTextHandler(&text, nil)))
			u := NewUser(log)
			dial := u.Dial(func(context.Context, string, string) (net.Conn, error) { fail(); return nil, nil })
			cfg := u.TLS(&tls.Config{
				GetClientCertificate:  func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { fail(); return nil, nil },
				VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { fail(); return nil },
				VerifyConnection:      func(tls.ConnectionState) error { fail(); return nil },

				EncryptedClientHelloRejectionVerify: func(tls.ConnectionState) error { fail(); return nil },
			})
			calls := map[string]func() error{
				"Options.Dial":          func() error { _, err := dial(t.Context(), "tcp", "server:1"); return err },
				"GetClientCertificate":  func() error { _, err := cfg.GetClientCertificate(nil); return err },
				"VerifyPeerCertificate": func() error { return cfg.VerifyPeerCertificate(nil, nil) },
				"VerifyConnection":      func() error { return cfg.VerifyConnection(tls.ConnectionState{}) },

				"EncryptedClientHelloRejectionVerify": func() error { return cfg.EncryptedClientHelloRejectionVerify(tls.ConnectionState{}) },
			}
			for name, call := range calls {
				for range 2 {
					var f *usercode.Failure
					if err := call(); !errors.As(err, &f) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), kind) {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
			if !log.Drain(time.Minute) {
				t.Fatal("the log is not written")
			}
			got := text.String()
			if n := strings.Count(got, "panicked or ended its goroutine"); n != len(calls) {
				t.Errorf("%d log lines, want %d", n, len(calls))
			}
			if strings.Contains(got, "secret") || strings.Count(got, "user_test.go:") < len(calls) {
				t.Errorf("the log:\n%s", got)
			}
		})
	}
}

func TestUser_FunctionsThatReturnAreCalledAsTheyAre(t *testing.T) {
	u := NewUser(outbox.NewLogger(nil))
	if u.Dial(nil) != nil || u.TLS(nil) != nil {
		t.Error("an option that is nil is no longer nil")
	}
	given := &tls.Config{ServerName: "a"}
	if cfg := u.TLS(given); cfg == given || cfg.ServerName != "a" || cfg.VerifyConnection != nil || cfg.GetClientCertificate != nil {
		t.Error("the configuration is not a copy")
	}
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	refused := errors.New("refused")
	for _, c := range []struct {
		conn net.Conn
		err  error
	}{{one, nil}, {nil, refused}} {
		conn, err := u.Dial(func(context.Context, string, string) (net.Conn, error) { return c.conn, c.err })(t.Context(), "", "")
		if conn != c.conn || !errors.Is(err, c.err) {
			t.Errorf("%v, %v", conn, err)
		}
	}
	nothing := func(context.Context, string, string) (net.Conn, error) { return nil, nil }
	if _, err := u.Dial(nothing)(t.Context(), "", ""); err == nil {
		t.Error("no connection, and no error")
	}
}
