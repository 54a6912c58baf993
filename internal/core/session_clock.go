package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
)

// serviceClock is what a session knows of the clock of the service. It learns from the commits
// that tell when they were made, of all recipes of the session: those of CommitOnce, and those
// that create the node of a contender. That costs no request.
//
// After a break of the contact the session may reach the service through another server, whose
// clock is another one. So the samples count only as long as the Status of the session is
// unchanged.
type serviceClock struct {
	exists bool // the service has a clock, see backend.Clock

	mu      sync.Mutex
	offset  offset
	contact <-chan struct{} // of Status when the samples were made: closed when they count no more
	refused bool            // this session cannot learn the time
}

// Moment is what a session knows of the time by the service's clock. It is the time by the clock
// of this process if the service has no clock, or does not let the session learn its time.
type Moment struct {
	Known       bool
	stale       bool            // it is known badly, and a sample would improve it
	Least, Most int64           // the service's clock shows a time between them: nanoseconds since 1970
	Moved       <-chan struct{} // closed when the times of the service's clock may have changed; nil: never
}

// verdict says whether a time has come.
type verdict int8

const (
	NotYet verdict = iota + 1
	Reached
	InDoubt // a sample is needed
)

// Judge says whether the service's clock shows a time, in milliseconds since 1970. It never says
// so too early.
func (m *Moment) Judge(at int64) verdict {
	switch t := nanoseconds(at); {
	case at <= 0 || m.Known && t <= m.Least:
		return Reached
	case !m.Known, m.stale && t <= m.Most:
		return InDoubt
	}
	return NotYet
}

// After returns the time, in milliseconds since 1970, at which d has certainly passed by the
// service's clock.
func (m *Moment) After(d time.Duration) int64 {
	return Milliseconds(time.Unix(0, m.Most).Add(max(d, 0)))
}

// Milliseconds returns t as items store it. It rounds up, because no item may be
// taken early.
func Milliseconds(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }

// nanoseconds returns a time that items store, in milliseconds, in nanoseconds. Times before 1970
// count as 1970, and those after the year 2223 as that year.
func nanoseconds(ms int64) int64 {
	return min(max(ms, 0), maxStamp) * int64(time.Millisecond)
}

// Wall returns the time by the clock of this process.
func (c *Client) Wall() time.Time { return time.Now().Add(c.skew) }

// local returns the time since the client began, by the monotonic clock: a step of the wall clock
// changes nothing.
func (c *Client) local() int64 { return c.Elapsed() + int64(c.skew) }

// Elapsed is local without the skew of tests, which is for the times of a service.
func (c *Client) Elapsed() int64 { return int64(time.Since(c.began)) }

// Now returns what the session knows of the service's clock.
func (s *Session) Now() Moment {
	k := &s.clock
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.exists || k.refused {
		t := s.c.Wall().UnixNano()
		return Moment{Known: true, Least: t, Most: t}
	}
	k.expire()
	local := s.c.local()
	m := Moment{Known: k.offset.known, Moved: k.contact}
	if m.Known {
		m.stale = k.offset.stale(local)
		m.Least, m.Most = k.offset.service(local)
	}
	return m
}

// UntilDue returns how long to wait before the session looks again whether a time has come, in
// milliseconds since 1970.
func (s *Session) UntilDue(at int64) time.Duration {
	k := &s.clock
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.exists || k.refused {
		return time.UnixMilli(at).Sub(s.c.Wall())
	}
	k.expire()
	if !k.offset.known {
		return 0
	}
	return time.Duration(k.offset.until(nanoseconds(at)) - s.c.local())
}

// expire forgets the samples if the contact has changed. The caller holds k.mu.
func (k *serviceClock) expire() {
	select {
	case <-k.contact:
		k.offset, k.contact = offset{}, nil
	default:
	}
}

// sending is a commit under way that will be a sample.
type sending struct {
	at      int64
	contact <-chan struct{}
}

// Send notes that a commit is about to be sent.
func (s *Session) Send() sending {
	if !s.clock.exists {
		return sending{}
	}
	_, contact := s.b.Status()
	return sending{s.c.local(), contact}
}

// Sent takes a commit for a sample. stat is that of a node whose data the commit set, or
// carried. If it was not written (see backend.Carry), or the contact has changed since the
// commit was sent, it does not count.
func (s *Session) Sent(p sending, stat *backend.Stat) {
	k := &s.clock
	if !k.exists || stat.Mzxid != stat.AsOf {
		return
	}
	x := sample{sent: p.at, answered: s.c.local(), stamp: stat.Mtime, zxid: stat.Mzxid}
	if !k.learn(x, p.contact) {
		s.refuseClock(fmt.Errorf("%w: the service reported the time %d for a node", backend.ErrInvalid, stat.Mtime))
	}
}

// learn adds a sample that was sent under a contact. It reports false if the stamp is no time.
func (k *serviceClock) learn(x sample, contact <-chan struct{}) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-contact:
		return true
	default:
	}
	if k.contact != contact {
		k.offset, k.contact = offset{}, contact // the samples were of an earlier contact
	}
	return k.offset.add(x)
}

// Learn returns what the session knows of the service's clock, and makes it known: if it is
// not, or badly, learn writes to a journal entry, which costs one request, and another one if the session
// has no journal entry yet. If the service refuses the write, the clock of this process counts from then
// on. The error never matches ErrUncertain.
func (s *Session) Learn(ctx context.Context) (Moment, error) {
	pause := NewPauses(s.c)
	for {
		now := s.Now()
		if now.Known && !now.stale {
			return now, nil
		}
		switch err := s.writeEntry(ctx); {
		case errs.Answers(err, backend.ErrDenied):
			s.refuseClock(err)
		case err != nil:
			return Moment{}, s.NotSent(ctx, err)
		}
		pause.Wait(ctx.Done(), s.b.Done()) // contact may change again and again
	}
}

// writeEntry commits nothing but the write of a journal entry.
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
	k := &s.clock
	k.mu.Lock()
	first := !k.refused
	k.refused = true
	k.mu.Unlock()
	if first {
		s.c.log.Warn("coord: cannot learn the time of the service, using the clock of this process", "path", s.c.root+journalDir, "error", err)
	}
}
