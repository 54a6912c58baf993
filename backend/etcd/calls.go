package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// contact waits for a link. Like Open it returns earlier when the service refuses the user, but only if an
// attempt to connect that began after the call shows that: the user may have got access since an earlier attempt.
func (s *session) contact(ctx context.Context) (*link, error) {
	s.mu.Lock()
	before := s.attempts
	s.mu.Unlock()
	for {
		if err := s.contextError(ctx); err != nil {
			return nil, err
		}
		_, changed := s.Status()
		s.mu.Lock()
		l, relinked, denial := s.link, s.relinked, s.denial
		s.mu.Unlock()
		if err := s.Ended(); err != nil {
			return nil, err
		}
		if l != nil && l.ctx.Err() == nil && !l.isLeaving() {
			return l, nil
		}
		if denial.attempt > before {
			return nil, &backend.NoContactError{Err: denial.err, For: s.outage.Since(s.now())}
		}
		select {
		case <-changed:
		case <-relinked:
		case <-ctx.Done():
		}
	}
}

// read runs a read until it is answered. f is called again when contact breaks.
func (s *session) read(ctx context.Context, f func(ctx context.Context, l *link) error) error {
	if err := s.contextError(ctx); err != nil {
		return err
	}
	if err := s.Enter(); err != nil {
		return err
	}
	defer s.Leave()
	for tries := 0; ; tries++ {
		l, err := s.contact(ctx)
		if err != nil {
			return err
		}
		on, stop := l.call(ctx)
		err = s.settle(on, l)
		if err == nil {
			err = f(on, l)
		}
		stop()
		s.Left()
		if over := s.over(ctx); over != nil {
			return over
		}
		switch what := s.judge(l, err); {
		case err == nil:
			return nil
		case what == refused:
			return translate(err)
		case what == throttled:
			s.pause(ctx, tries)
		case what == again, what == unsent:
		default:
			l.fail(err)
		}
	}
}

// over returns why the call has to end, or nil.
func (s *session) over(ctx context.Context) error {
	if err := s.Ended(); err != nil {
		return err
	}
	return s.contextError(ctx)
}

// contextError returns the error of ctx, nil while it lasts. If there is no contact, it says so.
func (s *session) contextError(ctx context.Context) error {
	err := backend.ContextError(ctx)
	if err == nil {
		return nil
	}
	return s.NoContact(err)
}

// NoContact returns the error of a context that has ended. If there is no contact, or the answer to a
// keep-alive is overdue, it says so.
func (s *session) NoContact(err error) error {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil || l.ctx.Err() != nil {
		return s.outage.NoContact(err, s.now())
	}
	return s.NoAnswer(err, l.target)
}

// pause waits before a request that an overloaded server has refused is sent again.
func (s *session) pause(ctx context.Context, tries int) {
	contact.Sleep(ctx, s.Done(), min(10*time.Millisecond<<min(tries, 10), time.Second))
}

// verdict is what an error of a request means.
type verdict int

const (
	unknown   verdict = iota // it may have been run; the server cannot be used at the moment
	refused                  // it was not run, and never will be
	throttled                // it was not run; a later one can be
	again                    // a read has to be repeated
	stale                    // it was not run, and the token of the link is not valid any more
	unsent                   // it was not sent: the connection takes no more requests
)

var errAgain = errors.New("etcd: read again")

// judge tells what an error of a request means. A server that has no leader, or that is slow or
// stopping, is left for another one.
func (s *session) judge(l *link, err error) verdict {
	switch {
	case err == nil:
		return refused
	case errors.Is(err, errAgain):
		return again
	case unsentBy(err):
		l.leave()
		return unsent
	case errors.Is(err, errBroken) && l.isLeaving() && l.reason() == nil:
		return again // the watches have moved to the next link
	case staleToken(err) && (s.cfg.user != "" || !is(err, rpctypes.ErrGRPCUserEmpty)):
		return stale
	case l.reason() != nil:
		return unknown
	case is(err, rpctypes.ErrGRPCRequestTooManyRequests):
		return throttled
	case is(err, rpctypes.ErrGRPCLeaseNotFound):
		s.end(errRevoked)
		return refused
	}
	var own *backend.Error
	if errors.As(err, &own) || errors.Is(err, errNotOurs) || errors.Is(err, backend.ErrNotFound) {
		return refused
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.OutOfRange, codes.ResourceExhausted, codes.FailedPrecondition, codes.NotFound:
		return refused
	}
	return unknown
}

// translate returns an error of a server as one of the contract.
func translate(err error) error {
	switch {
	case is(err, rpctypes.ErrGRPCRequestTooLarge), is(err, rpctypes.ErrGRPCTooManyOps),
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max"):
		return fmt.Errorf("%w: %s", backend.ErrTooLarge, rpctypes.ErrorDesc(err))
	case is(err, rpctypes.ErrGRPCNoSpace):
		return fmt.Errorf("%w: %s", backend.ErrNoSpace, rpctypes.ErrorDesc(err))
	case is(err, rpctypes.ErrGRPCUserEmpty):
		return errNoUser
	case refusesUser(err):
		return fmt.Errorf("%w: %s", backend.ErrDenied, rpctypes.ErrorDesc(err))
	}
	return err
}

// denial says that a server has refused the user while the session had no contact.
type denial struct {
	attempt int // in which it did so
	err     error
}

// attempt counts an attempt to connect that begins.
func (s *session) attempt() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	return s.attempts
}

// denied tells the calls that wait for contact if an attempt has failed because a server refuses the user.
func (s *session) denied(attempt int, err error) {
	switch {
	case errors.Is(err, backend.ErrDenied):
	case is(err, rpctypes.ErrGRPCUserEmpty) && s.cfg.user != "":
		return // there was no time to get a token: authentication was switched on a moment ago
	case refusesUser(err):
		err = translate(err)
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if attempt > s.denial.attempt {
		s.denial = denial{attempt, err}
		close(s.relinked)
		s.relinked = make(chan struct{})
	}
}
