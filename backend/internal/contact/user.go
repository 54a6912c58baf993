package contact

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/internal/usercode"
)

// A DialFunc makes connections, as Options.Dial of the backends.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// User makes the functions of a backend's options safe to call. If one panics or ends its
// goroutine, the result is an error, and the attempt to connect has failed.
type User struct {
	log *outbox.Logger

	mu   sync.Mutex
	told map[string]time.Time // the last log line, by function
}

// NewUser returns a User. log can be nil.
func NewUser(log *outbox.Logger) *User { return &User{log: log, told: make(map[string]time.Time)} }

// call calls f, the function of the options with this name.
func (u *User) call(name string, f func() error) error {
	err := usercode.Call(f)
	failure := usercode.As(err)
	if failure == nil {
		return err
	}
	u.mu.Lock()
	last, again := u.told[name]
	now := time.Now()
	again = again && now.Sub(last) < MostReport
	if !again {
		u.told[name] = now
	}
	u.mu.Unlock()
	if !again {
		u.log.Error("coord: a function of the program panicked or ended its goroutine",
			"function", name, "error", failure.Error(), "type", failure.Type, "stack", failure.Stack)
	}
	return fmt.Errorf("%s: %w", name, failure)
}

// Dial returns the function to call instead of dial, nil for nil.
func (u *User) Dial(dial DialFunc) DialFunc {
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = u.call("Options.Dial", func() (err error) {
			conn, err = dial(ctx, network, address)
			if conn == nil && err == nil {
				err = errors.New("Options.Dial returned neither a connection nor an error")
			}
			return err
		})
		return conn, err
	}
}

// TLS returns a copy of cfg whose functions for clients are safe to call, nil for nil. gRPC makes
// the handshake on a goroutine of its own, so that its caller cannot protect it.
func (u *User) TLS(cfg *tls.Config) *tls.Config {
	if cfg == nil {
		return nil
	}
	cfg = cfg.Clone()
	if f := cfg.GetClientCertificate; f != nil {
		cfg.GetClientCertificate = func(info *tls.CertificateRequestInfo) (cert *tls.Certificate, err error) {
			err = u.call("GetClientCertificate of Options.TLS", func() (err error) {
				cert, err = f(info)
				return err
			})
			return cert, err
		}
	}
	if f := cfg.VerifyPeerCertificate; f != nil {
		cfg.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
			return u.call("VerifyPeerCertificate of Options.TLS", func() error { return f(raw, chains) })
		}
	}
	if f := cfg.VerifyConnection; f != nil {
		cfg.VerifyConnection = func(state tls.ConnectionState) error {
			return u.call("VerifyConnection of Options.TLS", func() error { return f(state) })
		}
	}
	if f := cfg.EncryptedClientHelloRejectionVerify; f != nil {
		cfg.EncryptedClientHelloRejectionVerify = func(state tls.ConnectionState) error {
			return u.call("EncryptedClientHelloRejectionVerify of Options.TLS", func() error { return f(state) })
		}
	}
	return cfg
}
