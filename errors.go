package coord

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-coord/coord/backend"
)

// The errors of the recipes. Find them with errors.Is; they come wrapped with
// what was done to which path. The package comment says what to do about each.
var (
	// ErrLost: the hold ended before it was released, also if only its release
	// found that. It matches every early end, whatever the reason; the reason is
	// wrapped beside it.
	ErrLost = errors.New("hold lost")
	// ErrReleased: the hold was released by its owner.
	ErrReleased = errors.New("hold released")
	// ErrDeleted: somebody else deleted the node of a hold. Matches ErrLost too
	// where a hold ends with it.
	ErrDeleted = errors.New("node deleted by somebody else")
	// ErrRevoked: a holder who was asked to give a lock up, and did not, has had
	// it taken away by force. It matches ErrLost and ErrDeleted too.
	ErrRevoked = errors.New("hold revoked by force")
	// ErrHeld: the context of a Lock is that of a hold on the same lock, so the call
	// would wait for itself. A context that is made by context.WithoutCancel of the
	// hold's, and has no end of its own, outlives the hold and is not refused.
	ErrHeld = errors.New("held already by the caller")
	// ErrUpgrade: the context of a Lock for writing is that of a hold for reading on
	// the same lock, so the call would wait for itself.
	ErrUpgrade = errors.New("a reader cannot become the writer")
	// ErrLocked: TryLock found the lock taken.
	ErrLocked = errors.New("locked")
	// ErrLimit: a limit of the recipe is reached, such as the last sequence
	// number of a directory.
	ErrLimit = errors.New("limit reached")
	// ErrEmpty: there is nothing to take at the moment.
	ErrEmpty = errors.New("nothing to take")
	// ErrFull: the queue holds as many items as MaxLen allows.
	ErrFull = errors.New("queue full")
	// ErrSuspended: a leader that is to step down without contact has no contact.
	// Matches ErrLost too.
	ErrSuspended = errors.New("session suspended")
	// ErrDuplicate: the id is another member's, or another transaction's.
	ErrDuplicate = errors.New("id taken by another")
	// ErrInDoubt: the decision of a transaction is gone, or cannot be read, while it
	// matters: an outsider has deleted or overwritten it, or its record.
	ErrInDoubt = errors.New("decision lost, transaction in doubt")
	// ErrConflict: what was read has been changed since by somebody else.
	ErrConflict = errors.New("changed by somebody else")
	// ErrKind: another kind of recipe is in use at the path; see KindError.
	ErrKind = errors.New("path of another recipe")
	// ErrDecode: the codec refuses what a node holds.
	ErrDecode = errors.New("cannot decode")
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
	ErrTooLarge    = backend.ErrTooLarge
	ErrDenied      = backend.ErrDenied
	ErrBadPath     = backend.ErrBadPath
	ErrUnsupported = backend.ErrUnsupported
	ErrInvalid     = backend.ErrInvalid
)

// errGone says inside a recipe that our own node has vanished from under us: the
// caller takes a new place.
var errGone = fmt.Errorf("own node: %w", ErrDeleted)

// errAgain says inside a recipe that what was read does not hold any more.
var errAgain = errors.New("look again")

// errDrained sends a contender to the new directory.
var errDrained = errors.New("sequence numbers used up, directory replaced")

// opError wraps err with what was done to which path, unless it says so already.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var e *backend.Error
	if errors.As(err, &e) && e.Op == op && e.Path == path {
		return err
	}
	return &backend.Error{Op: op, Path: path, Err: err}
}

// loss is why a hold ended early. It matches ErrLost and its cause.
type loss struct {
	path  string
	cause error
}

func (l *loss) Error() string {
	reason := &backend.Error{Op: "hold", Path: l.path, Err: fmt.Errorf("lost: %w", l.cause)}
	return reason.Error()
}
func (l *loss) Unwrap() error        { return l.cause }
func (l *loss) Is(target error) bool { return target == ErrLost }

// revoked is why a hold ended that was taken away by force.
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

// released is why a hold ended in order.
type released struct{ path string } // part of its Hold

func (r *released) Error() string        { return "coord: hold " + r.path + " released" }
func (r *released) Is(target error) bool { return target == ErrReleased }

// isOver reports whether err says that a session, or the client, is over: no
// retry on this session can succeed.
func isOver(err error) bool {
	return answers(err, backend.ErrSessionLost) || isClosed(err)
}

// isClosed reports whether err says that the client is closed.
func isClosed(err error) bool { return answers(err, backend.ErrClosed) }

// isNotFound reports whether err says that a node is missing.
func isNotFound(err error) bool { return answers(err, backend.ErrNotFound) }

// isDecode reports whether err says that what a node holds cannot be read.
func isDecode(err error) bool { return answers(err, ErrDecode) }

func isUncertain(err error) bool { return errors.Is(err, backend.ErrUncertain) }

// afterAttempt says what becomes of a call whose attempt to take a place has failed with
// err: it takes a new place if the old one was lost, with its session or to an outsider,
// or if the directory was replaced. If not, it returns the first result, in which the end
// of ctx comes before what that has broken.
func afterAttempt(ctx context.Context, err error) (final error, again bool) {
	again = errors.Is(err, errGone) || errors.Is(err, backend.ErrSessionLost) || errors.Is(err, errDrained)
	switch {
	case isClosed(err):
		return ErrClosed, false
	case ctx.Err() != nil && (again || isUncertain(err) || errors.Is(err, ctx.Err())):
		return backend.ContextError(ctx), false
	}
	return err, again
}

// mayRepeat reports whether a commit that returned err may have been applied, and whether
// another request of the same session and ctx can tell.
func mayRepeat(ctx context.Context, err error) bool {
	return isUncertain(err) && !isOver(err) && ctx.Err() == nil
}

// answers reports whether err says target, which is not just the cause of a context that
// has ended.
func answers(err, target error) bool { return errors.Is(err, target) && !ofContext(err) }

// ofContext reports whether err says that a context has ended. Such an error matches the
// context's cause as well, which is the caller's: the error of another call, or why a
// hold of another client was lost. It tells nothing about a node, a session or a client.
func ofContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
