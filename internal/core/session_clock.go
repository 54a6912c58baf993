package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/serviceclock"
)

// Wall returns the time by the clock of this process.
func (c *Client) Wall() time.Time { return time.Now().Add(c.skew) }

// Monotonic returns the time since the client began, by the monotonic clock: a step of the wall clock
// changes nothing.
func (c *Client) Monotonic() int64 { return c.Elapsed() + int64(c.skew) }

// Elapsed is Monotonic without the skew of tests. It measures durations; the skew is for times that are compared
// with those of a service.
func (c *Client) Elapsed() int64 { return int64(time.Since(c.began)) }

// Clock returns the session's knowledge of the clock of the service.
func (s *Session) Clock() *serviceclock.Clock { return s.clock }

// send notes that a commit is about to be sent that will be a sample of the service's clock.
func (s *Session) send() serviceclock.Sending {
	if !s.clock.Exists() {
		return serviceclock.Sending{}
	}
	_, contact := s.b.Status()
	return s.clock.Send(contact)
}

// sent adds the sample of a commit, see serviceclock.Clock.Sent.
func (s *Session) sent(p serviceclock.Sending, stat *backend.Stat) {
	if !s.clock.Sent(p, stat) {
		s.refuseClock(fmt.Errorf("%w: the service reported the time %d for a node", backend.ErrInvalid, stat.Mtime))
	}
}

// Learn returns the time by the service's clock. If the session does not know it well enough, Learn
// writes to a journal entry. That costs one request, and a second one if the session has no entry yet.
// If the service refuses the write, the clock of this process counts from then on. The error never
// matches ErrUncertain.
func (s *Session) Learn(ctx context.Context) (serviceclock.Moment, error) {
	pause := NewPauses(s.c)
	for {
		now := s.clock.Now()
		if now.IsFresh() {
			return now, nil
		}
		switch err := s.writeEntry(ctx); {
		case errs.Answers(err, backend.ErrDenied):
			s.refuseClock(err)
		case err != nil:
			return serviceclock.Moment{}, s.NotSent(ctx, err)
		}
		pause.Wait(ctx.Done(), s.b.Done()) // contact may change again and again
	}
}

// writeEntry commits only the write of a journal entry.
func (s *Session) writeEntry(ctx context.Context) error {
	for {
		r, err := s.takeEntry(ctx)
		if err != nil {
			return err
		}
		_, _, err = s.commitUnder(ctx, r, s.c.NewGUID(r.path), nil)
		if !errors.Is(err, errs.ErrAgain) {
			return err
		}
	}
}

// refuseClock makes the clock of this process count for the session.
func (s *Session) refuseClock(err error) {
	if s.clock.Refuse() {
		s.c.log.Warn("coord: cannot learn the time of the service, using the clock of this process", "path", s.c.root+journalDir, "error", err)
	}
}
