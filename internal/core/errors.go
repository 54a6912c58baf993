package core

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
)

// NeedContext panics if ctx is nil: on a goroutine of the client, the panic of a later use would not
// show the call.
func NeedContext(ctx context.Context) {
	if ctx == nil {
		panic("coord: nil Context")
	}
}

// revoked is the reason why a hold ended that was taken away by force.
type revoked struct{ r Revocation }

func (r *revoked) Error() string {
	s := errs.ErrRevoked.Error()
	if r.r.By != "" {
		s += " by " + strconv.Quote(r.r.By)
	}
	if r.r.Reason != "" {
		s += ": " + strconv.Quote(r.r.Reason)
	}
	return s
}
func (r *revoked) Is(target error) bool {
	return target == errs.ErrRevoked || target == errs.ErrDeleted
}

// released is the reason why a hold ended by its release.
type released struct{ path string } // part of its Hold

func (r *released) Error() string        { return "coord: hold " + r.path + " released" }
func (r *released) Is(target error) bool { return target == errs.ErrReleased }

// AfterAttempt decides how a call continues when its attempt to take a place has failed with err. again
// reports that the call takes a new place: its node was lost with its session, or deleted by an outsider, or
// the directory was replaced. Otherwise final is the error of the call; the end of ctx takes precedence
// over a failure.
func (c *Client) AfterAttempt(ctx context.Context, err error) (final error, again bool) {
	again = errors.Is(err, errs.ErrGone) || errors.Is(err, backend.ErrSessionLost) || errors.Is(err, errs.ErrDrained)
	switch {
	case errs.IsClosed(err):
		return backend.ErrClosed, false
	case ctx.Err() != nil && (again || backend.IsUncertain(err) || errors.Is(err, ctx.Err())):
		var cut *backend.NoContactError
		if errors.As(err, &cut) {
			return cut, false
		}
		return c.ContextError(ctx), false
	}
	return err, again
}

// ContextError returns the error of ctx, or nil while ctx lasts. If there is no contact with the service,
// it returns a NoContactError with the duration and the reason, so that the error differs from the error of
// a call that waited for another client.
func (s *Session) ContextError(ctx context.Context) error {
	err := backend.ContextError(ctx)
	if err == nil {
		return nil
	}
	phase, t := s.Status()
	lost := s.b.Err()
	if phase == backend.PhaseConnected || errs.IsClosed(lost) {
		return err
	}
	cut := &backend.NoContactError{Err: err}
	if at, over := t.Over(); over {
		cut.For = time.Duration(s.c.Elapsed() - at)
	}
	if lost != nil {
		cut.Why = lost.Error()
		if st, _, _ := s.c.state.Get(); st.err != nil {
			cut.Why = st.err.Error() // why there is no other session
		}
	} else if b, ok := s.b.(interface{ NoContact(error) error }); ok {
		return b.NoContact(err)
	}
	return cut
}

// ContextError is Session.ContextError of the present session.
func (c *Client) ContextError(ctx context.Context) error { return c.current.Load().ContextError(ctx) }
