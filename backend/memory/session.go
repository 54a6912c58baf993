package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// session holds both halves of a session: the client's view and the store's record. The
// fields below the blank line are guarded by store.mu.
type session struct {
	link  *Link
	store *Store
	id    int64
	done  chan struct{}

	phase    backend.Phase
	changed  chan struct{} // closed and replaced at each change of phase
	err      error         // why the client's half is over
	ended    bool          // the store ended it while there was no contact
	contact  int           // grows each time contact breaks
	deadline time.Time     // of the lease; only while suspended
	loss     *time.Timer   // declares the loss at the deadline
	expiry   *time.Timer   // the store's own clock
	lastDue  time.Time     // when the latest delayed request arrives
	lastSent chan struct{} // closed when the latest delayed commit has arrived
	watches  map[*armed]struct{}
	trees    []*armedTree
}

func (s *session) ID() int64                  { return s.id }
func (s *session) Timeout() time.Duration     { return s.store.timeout }
func (s *session) Features() backend.Features { return s.store.has }
func (s *session) Limits() backend.Limits     { return s.store.limits }
func (s *session) CheckPath(p string) error   { return backend.CheckPath(p) }
func (s *session) Done() <-chan struct{}      { return s.done }

func (s *session) Status() (backend.Phase, <-chan struct{}) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.checkLease()
	return s.phase, s.changed
}

func (s *session) Err() error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.checkLease()
	return s.err
}

// suspended needs the store's mutex, as do all methods below it.
func (s *session) suspended() bool { return s.phase == backend.PhaseSuspended }

// checkLease declares the loss when the lease has passed, even if the timer is late. Both
// halves share one process, so a suspended machine cannot stop the clock of only one of them,
// and the wall clock need not be compared.
func (s *session) checkLease() {
	if s.suspended() && !time.Now().Before(s.deadline) {
		s.finish(backend.ErrSessionLost)
	}
}

func (s *session) setPhase(p backend.Phase) {
	s.phase = p
	close(s.changed)
	s.changed = make(chan struct{})
}

// suspend breaks contact: the lease and the store's timeout begin to run.
func (s *session) suspend() {
	if s.phase != backend.PhaseConnected {
		return
	}
	s.contact++
	s.setPhase(backend.PhaseSuspended)
	lease := s.store.timeout - s.store.margin
	s.deadline = time.Now().Add(lease)
	s.loss = time.AfterFunc(lease, func() {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		s.checkLease()
	})
	s.startExpiry()
}

// startExpiry starts the store's clock for a session without contact.
func (s *session) startExpiry() {
	if s.expiry != nil {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(s.store.timeout, func() {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		if s.expiry != t {
			return // stopped while it fired
		}
		s.ended = true
		s.store.endSession(s)
	})
	s.expiry = t
}

// resume restores contact if the session still exists.
func (s *session) resume() {
	s.checkLease()
	switch {
	case s.err != nil:
		return // the store ends its half at the timeout, since nothing renews it
	case s.ended:
		s.finish(backend.ErrSessionLost)
		return
	}
	s.stopLoss()
	s.stopExpiry()
	s.setPhase(backend.PhaseConnected)
	s.store.watches.lookAgain(s)
}

// blip breaks contact for a moment.
func (s *session) blip() {
	if s.phase != backend.PhaseConnected {
		return
	}
	s.suspend()
	s.resume()
}

func (s *session) stopLoss() {
	if s.loss != nil {
		s.loss.Stop()
		s.loss = nil
	}
}

func (s *session) stopExpiry() {
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
}

// finish ends the client's half: it sets Err first, then wakes everything that waits.
func (s *session) finish(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	s.contact++
	s.stopLoss()
	if i := slices.Index(s.link.live, s); i >= 0 {
		s.link.live = slices.Delete(s.link.live, i, i+1)
	}
	s.setPhase(backend.PhaseLost)
	close(s.done)
	s.store.watches.lookAgain(s)
}

// Close ends the session. With contact the store ends it at once, without it
// after the timeout.
func (s *session) Close() error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.checkLease()
	if s.err != nil {
		return nil
	}
	connected := s.phase == backend.PhaseConnected
	s.finish(backend.ErrClosed)
	if connected {
		s.store.endSession(s)
	}
	return nil
}

// begin waits until a request can be handed to the store. It returns with store.mu held and
// the number of the contact that the request uses, or with an error and the mutex unlocked. A
// read whose request is lost tries again; a commit is uncertain.
func (s *session) begin(ctx context.Context, commit bool) (int, error) {
	for {
		s.store.mu.Lock()
		if err := s.contextError(ctx); err != nil {
			s.store.mu.Unlock()
			return 0, err
		}
		s.checkLease()
		if s.err != nil {
			err := s.err
			s.store.mu.Unlock()
			return 0, err
		}
		if s.suspended() {
			changed := s.changed
			s.store.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if s.link.dropRequest {
			s.link.dropRequest = false
			s.blip()
			s.store.mu.Unlock()
			if commit {
				return 0, backend.Uncertain(nil)
			}
			continue
		}
		return s.contact, nil
	}
}

// contextError returns the error of ctx, nil while it lasts. If there is no contact, it says so.
func (s *session) contextError(ctx context.Context) error {
	err := backend.ContextError(ctx)
	if err == nil {
		return nil
	}
	return s.noContact(err)
}

// NoContact returns the error of a context that has ended. If there is no contact, it says so.
func (s *session) NoContact(err error) error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.noContact(err)
}

func (s *session) noContact(err error) error {
	if !s.suspended() {
		return err
	}
	lease := s.store.timeout - s.store.margin
	return &backend.NoContactError{Err: err, For: lease - time.Until(s.deadline), Why: fmt.Sprintf("memory link %q is cut", s.link.name)}
}

// end unlocks the mutex after the store has handled a request, and reports whether the reply
// arrives: ok is false if a read has to be repeated; err is the error of the call.
func (s *session) end(ctx context.Context, contact int) (ok bool, err error) {
	if s.link.dropReply {
		s.link.dropReply = false
		s.blip()
	}
	ok = s.contact == contact
	latency := s.link.latency
	err = s.err
	s.store.mu.Unlock()
	if err != nil || !ok || latency == 0 {
		return ok && err == nil, err
	}
	t := time.NewTimer(latency)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.done:
	case <-ctx.Done():
		return false, backend.ContextError(ctx)
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.contact == contact && s.err == nil, s.err
}
