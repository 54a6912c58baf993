package zookeeper

import (
	"time"

	"github.com/go-coord/coord/backend/internal/contact"
)

type instant = contact.Instant

// renewLocked records an answer to a request that was sent at the instant. After errUnheard
// the caller ends the session: an answer that arrives after the lease has passed does not
// revive it.
func (s *session) renewLocked(sent, now instant) error {
	if s.lease.Left(now) <= 0 {
		return errUnheard
	}
	s.lease.Renew(sent)
	return nil
}

// checkLease ends the session if its lease has passed, and returns the rest of the lease
// otherwise.
func (s *session) checkLease() time.Duration {
	now := s.now()
	s.mu.Lock()
	left := s.lease.Left(now)
	alive := s.err == nil && s.id != 0
	s.mu.Unlock()
	if alive && left <= 0 {
		s.lose(errUnheard)
	}
	return left
}

// watchLeaseLocked checks the lease after a while, and again and again until the session is
// over.
func (s *session) watchLeaseLocked(left time.Duration) {
	if s.err != nil || s.isSealed() {
		return
	}
	s.work.Add(1)
	wait := contact.Soon(left, s.timeout)
	s.pauses.Next(s.now(), wait, s.timeout)
	if s.timer != nil {
		s.timer.Reset(wait)
		return
	}
	s.timer = time.AfterFunc(wait, func() {
		defer s.work.Done()
		left := s.checkLease()
		s.pauses.Look(s.now())
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watchLeaseLocked(left)
	})
}

// stopWatch stops the timer of a session that is over.
func (s *session) stopWatch() {
	s.mu.Lock()
	stopped := s.timer != nil && s.timer.Stop()
	s.mu.Unlock()
	if stopped {
		s.pauses.Look(s.now()) // the end of the session can be noticed before the timer fires
		s.work.Done()
	}
}
