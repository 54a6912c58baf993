package etcd

import (
	"time"

	"github.com/go-coord/coord/backend/internal/contact"
)

// The lease of the session is renewed by answered keep-alives, and by nothing else: for a server
// other requests are no sign of life. Every call checks it before and after, and a timer does so
// while no call is made.

// renewed records an answer to a keep-alive that was sent at the instant. An answer that arrives
// after the lease has passed does not revive the session.
func (s *session) renewed(sent contact.Instant) {
	if s.checkLease() <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.Renew(sent)
}

// checkLease ends the session if its lease has passed, and returns the rest of the lease
// otherwise.
func (s *session) checkLease() time.Duration {
	now := s.now()
	s.mu.Lock()
	left := s.lease.Left(now)
	alive := s.err == nil
	s.mu.Unlock()
	if alive && left <= 0 {
		s.end(errUnheard)
	}
	return left
}

// watchLease checks the lease until the session is over.
func (s *session) watchLease() {
	defer s.work.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.done:
			s.pauses.Look(s.now()) // the end of the session can be noticed before the timer fires
			return
		case <-timer.C:
			left := s.checkLease()
			s.pauses.Look(s.now())
			wait := contact.Soon(left, s.timeout)
			s.pauses.Next(s.now(), wait, s.timeout)
			timer.Reset(wait)
		}
	}
}
