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
	"time"

	"github.com/go-coord/coord/backend"
)

// The first report that no server can be reached comes when each has been tried, the next
// after firstReport. Each further interval is twice the one before, up to mostReport.
const (
	firstReport = time.Second
	mostReport  = time.Minute
)

// trouble collects why a session has no contact: the last failure of each server.
type trouble struct {
	servers []string
	over    chan struct{} // closed when waiting for the session to open is useless

	// Guarded by the session's mu.
	last     map[string]error
	final    error // why waiting is useless; set before over is closed
	attempts int   // failed attempts since there was contact
	since    instant
	reported instant
	interval time.Duration // from reported to the next report, 0 before the first one
}

// report holds the values of one log line about a trouble.
type report struct {
	attempts int
	lasting  time.Duration
	failures error
}

func newTrouble(servers []string) *trouble {
	return &trouble{servers: servers, over: make(chan struct{}), last: make(map[string]error)}
}

// noteLocked records a failure.
func (t *trouble) noteLocked(address string, err error) {
	t.last[address] = err
}

// endedLocked forgets all failures when contact is made.
func (t *trouble) endedLocked() {
	clear(t.last)
	t.attempts, t.interval = 0, 0
}

// reportLocked counts an attempt that failed now. It returns the report to log, or nil if it
// is too early.
func (t *trouble) reportLocked(now instant) *report {
	t.attempts++
	if t.attempts == 1 {
		t.since = now
	}
	switch {
	case t.attempts < len(t.servers):
		return nil
	case t.interval == 0:
		t.interval = firstReport
	case t.reported.to(now) < t.interval:
		return nil
	default:
		t.interval = min(2*t.interval, mostReport)
	}
	t.reported = now
	return &report{t.attempts, t.since.to(now).Round(time.Millisecond), t.errorLocked(nil)}
}

// judgeLocked ends the wait for the session to open if the last attempt at each of the
// servers failed because of a certificate.
func (t *trouble) judgeLocked() {
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

// errorLocked returns an error that matches the cause, which can be nil, and that names each
// server with its last failure.
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
	sep := ""
	if e.cause != nil {
		b.WriteString(e.cause.Error())
		sep = ": "
	}
	if len(e.servers) == 0 {
		b.WriteString(sep + "no answer yet from any server")
	}
	for i, server := range e.servers {
		fmt.Fprintf(&b, "%s%s: %v", sep, server, plain(e.failures[i]))
		sep = "; "
	}
	return b.String()
}

// Unwrap omits failures caused by the attempt's own deadline, or each error would match
// context.DeadlineExceeded.
func (e *openError) Unwrap() []error {
	var errs []error
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	for _, err := range e.failures {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	return errs
}

// plain strips the repeated address from a network error.
func plain(err error) error {
	if op, ok := err.(*net.OpError); ok && op.Op == "dial" {
		return op.Err
	}
	return err
}

// inHandshake explains the end of a connection before the session was ready. Servers give no
// reason. A server also closes the connection when the client uses TLS and the server does
// not, or the other way round.
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

// closedByServer also matches connections that were not fully established.
func closedByServer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
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
