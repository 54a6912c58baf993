package coord

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// The errors of the recipes. Find them with errors.Is: they are wrapped with the
// operation and its path. The package comment says how to handle each.
var (
	// ErrLost: the hold ended before it was released, even if only its release detected
	// that. It matches every early end, whatever the reason; the reason is wrapped with
	// it.
	ErrLost = errors.New("hold lost")
	// ErrReleased: the hold was released by its owner.
	ErrReleased = errors.New("hold released")
	// ErrDeleted: another client deleted the node of a hold. It matches ErrLost too if
	// a hold ends with it.
	ErrDeleted = errors.New("node deleted by another client")
	// ErrRevoked: a holder did not release a lock when requested, and its node was
	// deleted by force. It matches ErrLost and ErrDeleted too.
	ErrRevoked = errors.New("hold revoked by force")
	// 	// ErrHeld: the context of a Lock derives from a hold on the same lock, so the call
	// would wait for itself. A context that context.WithoutCancel derives from the hold's
	// context, and that has no end of its own, is not refused, since it outlives the hold.
	ErrHeld = errors.New("already held by the caller")
	// ErrUpgrade: the context of a Lock for writing derives from a hold for reading on
	// the same lock, so the call would wait for itself.
	ErrUpgrade = errors.New("a reader cannot become the writer")
	// ErrLocked: TryLock found the lock taken.
	//
	// If the options of the lock have an ID, the message names the holder: "locked (held
	// by "worker-7", which requested it 12s ago)". The error of a Lock whose ctx ends in
	// the queue names the holder too. The name is the holder's ID, or its session if it has
	// no ID, and never its Data. The time counts from the creation of the holder's node, by
	// the clocks of the service and of this process. Naming the holder costs TryLock one
	// read, and Lock two, also for a caller that waits behind another caller of the same
	// client. After a second, or without contact, the call returns without the name.
	ErrLocked = errors.New("locked")
	// ErrLimit: a limit of the recipe is reached, such as the last sequence
	// number of a directory.
	ErrLimit = errors.New("limit reached")
	// ErrEmpty: the queue has no item to take at the moment.
	ErrEmpty = errors.New("no item to take")
	// ErrFull: the queue holds as many items as MaxLen allows.
	ErrFull = errors.New("queue full")
	// ErrSuspended: a leader with StepDownOnSuspend has lost contact. It matches ErrLost
	// too.
	ErrSuspended = errors.New("session suspended")
	// ErrClaimTimeout: the claim on an item of a queue was not ended within the
	// ClaimTimeout of the queue. It matches ErrLost too.
	ErrClaimTimeout = errors.New("claim timed out")
	// ErrDuplicate: another member, or another transaction, has the id.
	ErrDuplicate = errors.New("id already in use")
	// ErrInDoubt: a site needs the decision of a transaction, and the decision is missing
	// or unreadable: an outsider has deleted or overwritten it, or the record.
	ErrInDoubt = errors.New("decision lost, transaction in doubt")
	// ErrConflict: another client has changed the data since it was read.
	ErrConflict = errors.New("changed by another client")
	// ErrFenced: the hold of a Guard has ended, so nothing of the Txn under it was applied. It
	// matches ErrConflict too, as every refusal of a Txn does.
	ErrFenced = errors.New("the hold of the guard has ended")
	// ErrKind: another kind of recipe is in use at the path; see KindError.
	ErrKind = errors.New("path of another recipe")
	// ErrDecode: the codec cannot decode the data of a node.
	ErrDecode = layout.ErrDecode
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

// errGone means inside a recipe that the client's own node is gone: the caller takes a
// new place.
var errGone = fmt.Errorf("this client's node is gone: %w", ErrDeleted)

// errAgain means inside a recipe that the state that was read does not hold any more.
var errAgain = errors.New("the state has changed since it was read")

// errDrained makes a contender take a place in the new directory.
var errDrained = errors.New("sequence numbers exhausted, directory replaced")

// errNoFunction refuses a call without the function that it is to call.
var errNoFunction = fmt.Errorf("%w: the function is nil", ErrInvalid)

// needContext panics if ctx is nil: on a goroutine of the client, the panic of a later use would not
// show the call.
func needContext(ctx context.Context) {
	if ctx == nil {
		panic("coord: nil Context")
	}
}

// opError wraps err with the operation and its path, unless err has them already.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if e := named(err); e != nil && e.Op == op && e.Path == path {
		return err
	}
	return &backend.Error{Op: op, Path: path, Err: err}
}

// named returns the *backend.Error that err is or wraps, or nil. It does not search the
// cause of an ended context, which can be the error of any other call.
func named(err error) *backend.Error {
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

// isOver reports whether err means that the session, or the client, is over: no retry
// on this session can succeed.
func isOver(err error) bool {
	return answers(err, backend.ErrSessionLost) || isClosed(err)
}

// isClosed reports whether err means that the client is closed.
func isClosed(err error) bool { return answers(err, backend.ErrClosed) }

// isNotFound reports whether err means that a node is missing.
func isNotFound(err error) bool { return answers(err, backend.ErrNotFound) }

// isDecode reports whether err means that the data of a node cannot be decoded.
func isDecode(err error) bool { return answers(err, ErrDecode) }

// isUncertain reports whether err means that the outcome of a call is unknown.
func isUncertain(err error) bool { return backend.IsUncertain(err) }

// afterAttempt returns how a call goes on after its attempt to take a place failed with
// err. The call takes a new place if the old one was lost, with its session or to an
// outsider, or if the directory was replaced. Otherwise final is the error of the call;
// the end of ctx takes precedence over a failure.
func (c *Client) afterAttempt(ctx context.Context, err error) (final error, again bool) {
	again = errors.Is(err, errGone) || errors.Is(err, backend.ErrSessionLost) || errors.Is(err, errDrained)
	switch {
	case isClosed(err):
		return ErrClosed, false
	case ctx.Err() != nil && (again || isUncertain(err) || errors.Is(err, ctx.Err())):
		var cut *backend.NoContactError
		if errors.As(err, &cut) {
			return cut, false
		}
		return c.contextError(ctx), false
	}
	return err, again
}

// contextError returns the error of ctx, nil while it lasts. If there is no contact, it says so, since
// when and why, so that it differs from that of a call which waited for another client.
func (s *session) contextError(ctx context.Context) error {
	err := backend.ContextError(ctx)
	if err == nil {
		return nil
	}
	phase, t := s.status()
	lost := s.b.Err()
	if phase == backend.PhaseConnected || isClosed(lost) {
		return err
	}
	cut := &backend.NoContactError{Err: err}
	if at, over := t.over(); over {
		cut.For = time.Duration(s.c.elapsed() - at)
	}
	if lost != nil {
		cut.Why = lost.Error()
		if st, _, _ := s.c.state.get(); st.Err != nil {
			cut.Why = st.Err.Error() // why there is no other session
		}
	} else if b, ok := s.b.(interface{ NoContact(error) error }); ok {
		return b.NoContact(err)
	}
	return cut
}

// contextError is that of the present session.
func (c *Client) contextError(ctx context.Context) error { return c.current.Load().contextError(ctx) }

// mayRepeat reports whether the commit that returned err may have been applied, and
// another request of the same session and ctx can determine that.
func mayRepeat(ctx context.Context, err error) bool {
	return isUncertain(err) && !isOver(err) && ctx.Err() == nil
}

// answers reports whether err matches target, and not just as the cause of an ended
// context.
func answers(err, target error) bool { return errors.Is(err, target) && !ofContext(err) }

// ofContext reports whether err means that a context has ended. Such an error matches
// the context's cause as well, which belongs to the caller: the error of another call,
// or the reason why a hold of another client was lost. It says nothing about a node, a
// session or a client.
func ofContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
