package zookeeper

import (
	"context"
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
)

// trouble collects why a session does not open: the last failure of each
// server.
type trouble struct {
	servers []string
	over    chan struct{} // closed when waiting is useless

	// Guarded by the session's mu.
	last  map[string]error
	final error // why it is useless, set before over is closed
}

func newTrouble(servers []string) *trouble {
	return &trouble{servers: servers, over: make(chan struct{}), last: make(map[string]error)}
}

// noteLocked takes note of a failure. Waiting is useless when the last attempt
// at each of the servers failed on a certificate.
func (t *trouble) noteLocked(address string, err error) {
	t.last[address] = err
	for _, server := range t.servers {
		if !aboutCertificates(t.last[server]) {
			return
		}
	}
	t.giveUpLocked(t.errorLocked(backend.ErrDenied))
}

func (t *trouble) giveUpLocked(err error) {
	if t.final == nil {
		t.final = err
		close(t.over)
	}
}

// cause returns why waiting is useless. It is called after over was closed.
func (t *trouble) cause() error { return t.final }

// errorLocked returns an error that matches the cause and the last failure of
// each server, and names them.
func (t *trouble) errorLocked(cause error) error {
	e := &openError{cause: cause}
	for _, server := range t.servers {
		if err := t.last[server]; err != nil {
			e.servers = append(e.servers, server)
			e.failures = append(e.failures, err)
		}
	}
	return e
}

type openError struct {
	cause    error
	servers  []string
	failures []error
}

func (e *openError) Error() string {
	var b strings.Builder
	b.WriteString(e.cause.Error())
	if len(e.servers) == 0 {
		b.WriteString(": no answer yet from any server")
	}
	for i, server := range e.servers {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s: %v", sep, server, plain(e.failures[i]))
	}
	return b.String()
}

// Unwrap leaves out the failures that are the end of an attempt's own time, or
// each error would match context.DeadlineExceeded.
func (e *openError) Unwrap() []error {
	errs := []error{e.cause}
	for _, err := range e.failures {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	return errs
}

// plain leaves out of a network error what repeats the address.
func plain(err error) error {
	if op, ok := err.(*net.OpError); ok && op.Op == "dial" {
		return op.Err
	}
	return err
}

// inHandshake says what a connection that ended before the session was ready
// most likely means. Servers give no reason. A server hangs up as well on a client
// that speaks TLS to it, or does not, against its expectation.
func inHandshake(err error, overTLS bool) error {
	switch {
	case closedByServer(err):
		other := "TLS expected"
		if overTLS {
			other = "no TLS expected"
		}
		return fmt.Errorf("the server closed the connection during the handshake (maxClientCnxns reached, a limit on sessions, or %s?): %w", other, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the server accepted the connection and gave no answer: %w", err)
	}
	return err
}

// closedByServer can also be said of a connection that was not complete yet.
func closedByServer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// aboutCertificates reports whether one side refused the certificate of the
// other.
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
