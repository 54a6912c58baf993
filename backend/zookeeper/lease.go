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
// and after (checkLease), and watchLease does so while no call is made.
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

// renew records an answer to a request that was sent at the instant. An answer that arrives
// after the lease has passed does not revive the session.
func (s *session) renew(sent instant) error {
	now := s.now()
	s.mu.Lock()
	over := s.lease.left(now) <= 0
	if !over {
		s.lease.renew(sent)
	}
	s.mu.Unlock()
	if over {
		s.lose(errUnheard)
		return errUnheard
	}
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

// watchLease returns when the session is sealed or has to be closed. It checks the clocks
// more often than the lease can end by the monotonic one, because that clock stops while the
// machine is suspended.
func (s *session) watchLease() {
	select {
	case <-s.opened:
	case <-s.sealed:
		return
	case <-s.closing:
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			left := s.checkLease()
			timer.Reset(max(min(left, s.Timeout()/8), time.Millisecond))
		case <-s.sealed:
			return
		case <-s.closing:
			return
		}
	}
}
