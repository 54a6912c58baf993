package contact

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// The intervals of the reports. The first one comes when each server has been tried, the next
// after FirstReport. Each further interval is twice the one before, up to MostReport.
const (
	FirstReport = time.Second
	MostReport  = time.Minute
)

// Outage collects why a session has no contact: the last failure of each server. It has no lock.
type Outage struct {
	servers  []string
	last     map[string]error
	attempts int // failed attempts since there was contact
	since    Instant
	reported Instant
	interval time.Duration // from reported to the next report, 0 before the first one
}

// Report holds the values of one log line about an outage.
type Report struct {
	Attempts int
	Lasting  time.Duration
	Failures error
}

// NewOutage returns an Outage without a failure.
func NewOutage(servers []string) *Outage {
	return &Outage{servers: servers, last: make(map[string]error)}
}

// Failed records that a server cannot be reached.
func (o *Outage) Failed(address string, err error) { o.last[address] = err }

// Failure returns the last failure of a server, or nil.
func (o *Outage) Failure(address string) error { return o.last[address] }

// Over forgets all failures when contact is made.
func (o *Outage) Over() {
	clear(o.last)
	o.attempts, o.interval = 0, 0
}

// Report counts an attempt that failed now. It returns the report to log, or nil if it is too
// early.
func (o *Outage) Report(now Instant) *Report {
	o.attempts++
	if o.attempts == 1 {
		o.since = now
	}
	switch {
	case o.attempts < len(o.servers):
		return nil
	case o.interval == 0:
		o.interval = FirstReport
	case o.reported.To(now) < o.interval:
		return nil
	default:
		o.interval = min(2*o.interval, MostReport)
	}
	o.reported = now
	return &Report{o.attempts, o.since.To(now).Round(time.Millisecond), o.Error(nil)}
}

// Error returns an error that matches the cause, which can be nil, and that names each server
// with its last failure.
func (o *Outage) Error(cause error) error {
	e := &outageError{cause: cause}
	for _, server := range o.servers {
		if err := o.last[server]; err != nil {
			e.servers = append(e.servers, server)
			e.failures = append(e.failures, err)
		}
	}
	return e
}

type outageError struct {
	cause    error
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
