package zookeeper

import "time"

// instant is a moment on two clocks: the monotonic clock, which stops while the machine is
// suspended, and the wall clock, which can be set.
type instant struct {
	mono time.Duration // since the session was made
	wall time.Duration // since 1970
}

// to returns the time from i to a later instant, by the clock that shows more.
func (i instant) to(later instant) time.Duration {
	return max(later.mono-i.mono, later.wall-i.wall)
}

// clock returns a function that reads both clocks.
func clock() func() instant {
	start := time.Now()
	return func() instant {
		now := time.Now()
		return instant{mono: now.Sub(start), wall: time.Duration(now.UnixNano())}
	}
}

// lease is the time until which a session may consider itself alive: see the section "The
// lease" of the package comment. Every answer renews it (renew), every call checks it before
// and after (checkLease), and a timer does so while no call is made.
type lease struct {
	from   instant       // when the latest request that was answered was sent
	length time.Duration // the negotiated timeout less the margin
}

// left returns the rest of the lease, zero or less when it has passed.
func (l *lease) left(now instant) time.Duration { return l.length - l.from.to(now) }

// renew records an answer to a request that was sent at the instant.
func (l *lease) renew(sent instant) {
	if sent.mono > l.from.mono {
		l.from = sent
	}
}

// renewLocked records an answer to a request that was sent at the instant. After errUnheard
// the caller ends the session: an answer that arrives after the lease has passed does not
// revive it.
func (s *session) renewLocked(sent, now instant) error {
	if s.lease.left(now) <= 0 {
		return errUnheard
	}
	s.lease.renew(sent)
	return nil
}

// checkLease ends the session if its lease has passed, and returns the rest of the lease
// otherwise.
func (s *session) checkLease() time.Duration {
	now := s.now()
	s.mu.Lock()
	left := s.lease.left(now)
	alive := s.err == nil && s.id != 0
	s.mu.Unlock()
	if alive && left <= 0 {
		s.lose(errUnheard)
	}
	return left
}

// watchLeaseLocked checks the lease after a while, and again and again until the session is
// over. It does so more often than the lease can end by the monotonic clock, because that
// clock stops while the machine is suspended.
func (s *session) watchLeaseLocked(left time.Duration) {
	if s.err != nil || s.isSealed() {
		return
	}
	s.work.Add(1)
	wait := max(min(left, s.timeout/8), time.Millisecond)
	if s.timer != nil {
		s.timer.Reset(wait)
		return
	}
	s.timer = time.AfterFunc(wait, func() {
		defer s.work.Done()
		left := s.checkLease()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watchLeaseLocked(left)
	})
}

// stopWatch stops the timer of a session that is over.
func (s *session) stopWatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil && s.timer.Stop() {
		s.work.Done()
	}
}
