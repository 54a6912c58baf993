package core

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// The errors of the recipes. Package coord documents them.
var (
	ErrLost         = errors.New("hold lost")
	ErrReleased     = errors.New("hold released")
	ErrDeleted      = errors.New("node deleted by another client")
	ErrRevoked      = errors.New("hold revoked by force")
	ErrHeld         = errors.New("already held by the caller")
	ErrUpgrade      = errors.New("a reader cannot become the writer")
	ErrLocked       = errors.New("locked")
	ErrLimit        = errors.New("limit reached")
	ErrEmpty        = errors.New("no item to take")
	ErrFull         = errors.New("queue full")
	ErrSuspended    = errors.New("session suspended")
	ErrClaimTimeout = errors.New("claim timed out")
	ErrDuplicate    = errors.New("id already in use")
	ErrInDoubt      = errors.New("decision lost, transaction in doubt")
	ErrConflict     = errors.New("changed by another client")
	ErrFenced       = errors.New("the hold of the guard has ended")
	ErrKind         = errors.New("path of another recipe")
	ErrDecode       = layout.ErrDecode
)

// The errors of the backend, see package backend.
var (
	ErrNotFound    = backend.ErrNotFound
	ErrExists      = backend.ErrExists
	ErrBadVersion  = backend.ErrBadVersion
	ErrNotEmpty    = backend.ErrNotEmpty
	ErrNoChildren  = backend.ErrNoChildren
	ErrSessionLost = backend.ErrSessionLost
	ErrClosed      = backend.ErrClosed
	ErrUncertain   = backend.ErrUncertain
	ErrNoContact   = backend.ErrNoContact
	ErrTooLarge    = backend.ErrTooLarge
	ErrNoSpace     = backend.ErrNoSpace
	ErrDenied      = backend.ErrDenied
	ErrBadPath     = backend.ErrBadPath
	ErrUnsupported = backend.ErrUnsupported
	ErrInvalid     = backend.ErrInvalid
)

// ErrGone means inside a recipe that the client's own node is gone: the caller takes a
// new place.
var ErrGone = fmt.Errorf("this client's node is gone: %w", ErrDeleted)

// ErrAgain means inside a recipe that the state that was read does not hold any more.
var ErrAgain = errors.New("the state has changed since it was read")

// ErrDrained makes a contender take a place in the new directory.
var ErrDrained = errors.New("sequence numbers exhausted, directory replaced")

// ErrNoFunction refuses a call without the function that it is to call.
var ErrNoFunction = fmt.Errorf("%w: the function is nil", ErrInvalid)

// NeedContext panics if ctx is nil: on a goroutine of the client, the panic of a later use would not
// show the call.
func NeedContext(ctx context.Context) {
	if ctx == nil {
		panic("coord: nil Context")
	}
}

// OpError wraps err with the operation and its path, unless err has them already.
func OpError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if e := Named(err); e != nil && e.Op == op && e.Path == path {
		return err
	}
	return &backend.Error{Op: op, Path: path, Err: err}
}

// Named returns the *backend.Error that err is or wraps, or nil. It does not search the
// cause of an ended context, which can be the error of any other call.
func Named(err error) *backend.Error {
	for ; err != nil; err = errors.Unwrap(err) {
		if e, ok := err.(*backend.Error); ok {
			return e
		}
	}
	return nil
}

// loss is the reason why a hold ended early. It matches ErrLost and its cause.
type loss struct {
	path  string
	cause error
}

// text returns the loss as an error that names the node of the hold.
func (l *loss) text() *backend.Error {
	return &backend.Error{Op: "hold", Path: l.path, Err: fmt.Errorf("lost: %w", l.cause)}
}

func (l *loss) Error() string        { return l.text().Error() }
func (l *loss) Unwrap() error        { return l.cause }
func (l *loss) Is(target error) bool { return target == ErrLost }

// As shows the path to the error of a call that wraps the loss, so that its text repeats neither
// the prefix nor an equal path.
func (l *loss) As(target any) bool {
	e, ok := target.(**backend.Error)
	if ok {
		*e = l.text()
	}
	return ok
}

// revoked is the reason why a hold ended that was taken away by force.
type revoked struct{ r Revocation }

func (r *revoked) Error() string {
	s := ErrRevoked.Error()
	if r.r.By != "" {
		s += " by " + strconv.Quote(r.r.By)
	}
	if r.r.Reason != "" {
		s += ": " + strconv.Quote(r.r.Reason)
	}
	return s
}
func (r *revoked) Is(target error) bool { return target == ErrRevoked || target == ErrDeleted }

// released is the reason why a hold ended by its release.
type released struct{ path string } // part of its Hold

func (r *released) Error() string        { return "coord: hold " + r.path + " released" }
func (r *released) Is(target error) bool { return target == ErrReleased }

// IsOver reports whether err means that the session, or the client, is over: no retry
// on this session can succeed.
func IsOver(err error) bool {
	return Answers(err, backend.ErrSessionLost) || IsClosed(err)
}

// IsClosed reports whether err means that the client is closed.
func IsClosed(err error) bool { return Answers(err, backend.ErrClosed) }

// IsNotFound reports whether err means that a node is missing.
func IsNotFound(err error) bool { return Answers(err, backend.ErrNotFound) }

// IsDecode reports whether err means that the data of a node cannot be decoded.
func IsDecode(err error) bool { return Answers(err, ErrDecode) }

// IsUncertain reports whether err means that the outcome of a call is unknown.
func IsUncertain(err error) bool { return backend.IsUncertain(err) }

// AfterAttempt returns what a call does after its attempt to take a place has failed with
// err. The call takes a new place if the old one was lost, with its session or to an
// outsider, or if the directory was replaced. Otherwise final is the error of the call;
// the end of ctx takes precedence over a failure.
func (c *Client) AfterAttempt(ctx context.Context, err error) (final error, again bool) {
	again = errors.Is(err, ErrGone) || errors.Is(err, backend.ErrSessionLost) || errors.Is(err, ErrDrained)
	switch {
	case IsClosed(err):
		return ErrClosed, false
	case ctx.Err() != nil && (again || IsUncertain(err) || errors.Is(err, ctx.Err())):
		var cut *backend.NoContactError
		if errors.As(err, &cut) {
			return cut, false
		}
		return c.ContextError(ctx), false
	}
	return err, again
}

// ContextError returns the error of ctx, nil while it lasts. If there is no contact, it says so, since
// when and why, so that it differs from that of a call which waited for another client.
func (s *Session) ContextError(ctx context.Context) error {
	err := backend.ContextError(ctx)
	if err == nil {
		return nil
	}
	phase, t := s.Status()
	lost := s.b.Err()
	if phase == backend.PhaseConnected || IsClosed(lost) {
		return err
	}
	cut := &backend.NoContactError{Err: err}
	if at, over := t.Over(); over {
		cut.For = time.Duration(s.c.Elapsed() - at)
	}
	if lost != nil {
		cut.Why = lost.Error()
		if st, _, _ := s.c.state.Get(); st.Err != nil {
			cut.Why = st.Err.Error() // why there is no other session
		}
	} else if b, ok := s.b.(interface{ NoContact(error) error }); ok {
		return b.NoContact(err)
	}
	return cut
}

// ContextError is that of the present session.
func (c *Client) ContextError(ctx context.Context) error { return c.current.Load().ContextError(ctx) }

// MayRepeat reports whether the commit that returned err may have been applied, and
// another request of the same session and ctx can determine that.
func MayRepeat(ctx context.Context, err error) bool {
	return IsUncertain(err) && !IsOver(err) && ctx.Err() == nil
}

// Answers reports whether err is an answer of the service that matches target. The cause of an ended
// context is none, nor is the refusal of a user without contact: it says nothing about a node.
func Answers(err, target error) bool {
	return errors.Is(err, target) && !OfContext(err) && !errors.Is(err, ErrNoContact)
}

// refusesUser reports whether a call has not reached the service because that refuses the user. The
// service can let the user in again while the session lasts.
func refusesUser(err error) bool { return errors.Is(err, ErrNoContact) && !OfContext(err) }

// OfContext reports whether err means that a context has ended. Such an error matches
// the context's cause as well, which belongs to the caller: the error of another call,
// or the reason why a hold of another client was lost. It says nothing about a node, a
// session or a client.
func OfContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// NewLoss returns the reason why the hold on the node at path has ended early.
func NewLoss(path string, cause error) error { return &loss{path, cause} }

// NewRevoked returns the cause of the loss of a hold that r has ended by force.
func NewRevoked(r Revocation) error { return &revoked{r} }

// ErrVersions: writes without a version have led beyond the largest int32.
var ErrVersions = fmt.Errorf("%w: the version of the node has overflowed, delete it and create it again", ErrLimit)
