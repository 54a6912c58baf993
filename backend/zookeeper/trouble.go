package zookeeper

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// trouble is why a session has no contact. It is guarded by the session's mu.
type trouble struct {
	*contact.Outage
	over  chan struct{} // closed when waiting for the session to open is useless
	final error         // why waiting is useless; set before over is closed
}

func newTrouble(servers *contact.Servers) *trouble {
	return &trouble{Outage: contact.NewOutage(servers), over: make(chan struct{})}
}

// judgeLocked ends the wait for the session to open if the last attempt at each of the
// servers failed because of a certificate.
func (t *trouble) judgeLocked(now instant) {
	if t.Each(aboutCertificates) {
		t.giveUpLocked(t.Error(backend.ErrDenied, now))
	}
}

func (t *trouble) giveUpLocked(err error) {
	if t.final == nil {
		t.final = err
		close(t.over)
	}
}

// cause returns why waiting is useless. It is called after over was closed.
func (t *trouble) cause() error { return t.final }

// inHandshake explains the end of a connection before the handshake was over. Servers give no
// reason. A server also closes the connection when the client uses TLS and the server does
// not, or the other way round.
func (s *session) inHandshake(err error) error {
	switch {
	case closedByServer(err):
		// A server closes the connection of a session that has seen a later state than it has.
		why := "maxClientCnxns reached, a limit on sessions, or "
		s.mu.Lock()
		if s.ready {
			why = "it is behind what this session has seen, " + why
		}
		s.mu.Unlock()
		if s.cfg.tls != nil {
			why += "no "
		}
		return fmt.Errorf("the server closed the connection during the handshake (%sTLS expected?): %w", why, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the server accepted the connection and gave no answer: %w", err)
	}
	return err
}

// closedByServer also matches connections that were not fully established.
func closedByServer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// aboutCertificates reports whether either side refused the other's certificate.
func aboutCertificates(err error) bool {
	if err == nil {
		return false
	}
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		host         x509.HostnameError
		bad          x509.CertificateInvalidError
		remote       *net.OpError
	)
	switch {
	case errors.As(err, &verification), errors.As(err, &authority), errors.As(err, &host), errors.As(err, &bad):
		return true
	case errors.As(err, &remote) && remote.Op == "remote error":
		// An alert of the server. Its type is not exported.
		alert := remote.Err.Error()
		return strings.Contains(alert, "certificate") || strings.Contains(alert, "access denied")
	}
	return false
}
