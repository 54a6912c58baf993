package contact

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// The intervals of the reports. The first failure is reported at once, and so is that of the last
// server when each has been tried. The next report comes after FirstReport. Each further interval is
// twice the previous interval, up to MostReport.
const (
	FirstReport = time.Second
	MostReport  = time.Minute
)

// Outage collects why a session has no contact: since when, and the last failure of each address.
// It is safe for concurrent use.
type Outage struct {
	servers *Servers

	mu       sync.Mutex
	last     map[Target]error
	tried    []Target           // the keys of last and began, in the order of their first attempts
	began    map[Target]Instant // of the earliest attempt under way
	accepted map[Target]bool    // it has accepted a connection since then
	attempts int                // failed attempts since there was contact
	since    Instant            // of the first attempt, or of the end of contact
	known    bool               // since is set
	all      bool               // it was reported that no server can be reached
	reported Instant
	interval time.Duration // from reported to the next report, 0 before the first one
}

// Report holds the values of one log line about an outage.
type Report struct {
	All      bool // each server was tried
	Attempts int
	Lasting  time.Duration
	Failures error
}

// Message returns the text of the log line.
func (r *Report) Message() string {
	if r.All {
		return "coord: no server can be reached"
	}
	return "coord: a server cannot be reached, trying the others"
}

// NewOutage returns an Outage without a failure.
func NewOutage(servers *Servers) *Outage {
	return &Outage{servers: servers, last: make(map[Target]error), began: make(map[Target]Instant), accepted: make(map[Target]bool)}
}

// Begins records when contact was lost.
func (o *Outage) Begins(now Instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begins(now)
}

func (o *Outage) begins(now Instant) {
	if !o.known {
		o.since, o.known = now, true
	}
}

// Trying records that an attempt begins.
func (o *Outage) Trying(t Target, now Instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begins(now)
	o.list(t)
	if _, ok := o.began[t]; !ok {
		o.began[t] = now
	}
}

func (o *Outage) list(t Target) {
	if t.Address != "" { // the failure of a lookup is over when there is an address
		o.tried = slices.DeleteFunc(o.tried, func(old Target) bool { return old == Target{Server: t.Server} })
		delete(o.last, Target{Server: t.Server})
	}
	if !slices.Contains(o.tried, t) {
		o.tried = append(o.tried, t)
	}
}

// Failed records that an address cannot be reached.
func (o *Outage) Failed(t Target, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list(t)
	o.last[t] = err
	delete(o.began, t)
	delete(o.accepted, t)
}

// Accepted records that an address under way has accepted a connection.
func (o *Outage) Accepted(t Target) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.accepted[t] = true
}

// Cut reports whether the end of ctx can be the cause of an attempt that has just failed. Its error then says nothing about the
// server. A connection has the deadline of ctx, and can fail by it before ctx ends.
func Cut(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// Each reports whether the last failure of each known address is of a kind.
func (o *Outage) Each(kind func(error) bool) bool {
	targets := o.servers.Targets()
	o.mu.Lock()
	defer o.mu.Unlock()
	return !slices.ContainsFunc(targets, func(t Target) bool { return o.last[t] == nil || !kind(o.last[t]) })
}

// Over forgets all failures when contact is made.
func (o *Outage) Over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.last)
	clear(o.began)
	clear(o.accepted)
	o.tried = nil
	o.attempts, o.interval, o.known, o.all = 0, 0, false, false
}

// Report counts an attempt that failed now. It returns the report to log, or nil if it is too
// early.
func (o *Outage) Report(now Instant) *Report {
	all := o.Each(func(error) bool { return true })
	o.mu.Lock()
	defer o.mu.Unlock()
	o.attempts++
	o.begins(now)
	switch {
	case all && !o.all:
		o.all, o.interval = true, FirstReport
	case o.interval == 0:
		o.interval = FirstReport
	case o.reported.To(now) < o.interval:
		return nil
	default:
		o.interval = min(2*o.interval, MostReport)
	}
	o.reported = now
	return &Report{all, o.attempts, o.since.To(now).Round(time.Millisecond), o.error(nil, now)}
}

// Error returns an error that matches the cause, which can be nil, and that names each address with
// its last failure.
func (o *Outage) Error(cause error, now Instant) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.error(cause, now)
}

func (o *Outage) error(cause error, now Instant) error {
	e := &outageError{cause: cause}
	if o.known {
		e.lasting = o.since.To(now)
	}
	for _, t := range o.tried {
		err := o.last[t]
		if err == nil {
			err = silence(o.accepted[t], o.began[t].To(now))
		}
		e.servers = append(e.servers, t.String())
		e.failures = append(e.failures, err)
	}
	return e
}

// silence is the error of an attempt that has had no answer for some time.
func silence(accepted bool, d time.Duration) error {
	d = d.Round(time.Millisecond)
	if accepted {
		return fmt.Errorf("it accepts connections, and gave no answer within %v (another port, or TLS on one side only?)", d)
	}
	return fmt.Errorf("no connection within %v", d)
}

// NoContact returns the error of a context that has ended while there was no contact.
func (o *Outage) NoContact(err error, now Instant) error {
	return &backend.NoContactError{Err: err, For: o.Since(now), Why: o.Error(nil, now).Error()}
}

// Since returns how long there has been no contact.
func (o *Outage) Since(now Instant) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known {
		return 0
	}
	return o.since.To(now).Round(time.Millisecond)
}

type outageError struct {
	cause    error
	lasting  time.Duration
	servers  []string
	failures []error
}

func (e *outageError) Error() string {
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

// Is reports whether target is backend.ErrNoContact, if the cause is the end of a context.
func (e *outageError) Is(target error) bool {
	return target == backend.ErrNoContact && (errors.Is(e.cause, context.Canceled) || errors.Is(e.cause, context.DeadlineExceeded))
}

// As makes a *backend.NoContactError of an error that matches backend.ErrNoContact.
func (e *outageError) As(target any) bool {
	cut, ok := target.(**backend.NoContactError)
	if ok = ok && e.Is(backend.ErrNoContact); ok {
		why := outageError{servers: e.servers, failures: e.failures}
		*cut = &backend.NoContactError{Err: e.cause, For: e.lasting.Round(time.Millisecond), Why: why.Error()}
	}
	return ok
}

// Unwrap omits failures caused by the attempt's own deadline, or each error would match
// context.DeadlineExceeded.
func (e *outageError) Unwrap() []error {
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
