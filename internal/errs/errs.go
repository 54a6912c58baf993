// Package errs has the errors of the recipes, and functions that interpret the error of a call. Package coord
// documents the errors. Package backend has the errors of backends.
package errs

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// The errors that package coord shows.
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

// The errors that one part of the library returns to another.
var (
	// ErrGone means inside a recipe that the client's own node is gone: the caller takes a
	// new place.
	ErrGone = fmt.Errorf("this client's node is gone: %w", ErrDeleted)
	// ErrAgain means inside a recipe that the state has changed since it was read: the caller reads again.
	ErrAgain = errors.New("the state has changed since it was read")
	// ErrDrained makes a contender take a place in the new directory.
	ErrDrained = errors.New("sequence numbers exhausted, directory replaced")
	// ErrNoFunction refuses a call whose function argument is nil.
	ErrNoFunction = fmt.Errorf("%w: the function is nil", backend.ErrInvalid)
	// ErrVersions means that the version of a node has exceeded the largest int32, after as many writes.
	ErrVersions = fmt.Errorf("%w: the version of the node has overflowed, delete it and create it again", ErrLimit)
)

// Op wraps err with the operation and its path, unless err has them already.
func Op(op, path string, err error) error {
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

// Why returns the reason of a request's error without the request, which the caller of a recipe has not made.
func Why(err error) error {
	if e, ok := err.(*backend.Error); ok {
		return Why(e.Err)
	}
	return err
}

// A Loss is the reason why the hold on the node at Path ended early. It matches ErrLost and its cause.
type Loss struct {
	Path  string
	Cause error
}

// text returns the loss as an error that names the node of the hold.
func (l *Loss) text() *backend.Error {
	return &backend.Error{Op: "hold", Path: l.Path, Err: fmt.Errorf("lost: %w", l.Cause)}
}

func (l *Loss) Error() string        { return l.text().Error() }
func (l *Loss) Unwrap() error        { return l.Cause }
func (l *Loss) Is(target error) bool { return target == ErrLost }

// As shows the path to the error of a call that wraps the loss, so that its text repeats neither
// the prefix nor an equal path.
func (l *Loss) As(target any) bool {
	e, ok := target.(**backend.Error)
	if ok {
		*e = l.text()
	}
	return ok
}

// IsOver reports whether err means that the session is over or the client is closed: no retry
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

// MayRepeat reports whether the commit that returned err may have been applied, and
// another request on the same session and with ctx can determine that.
func MayRepeat(ctx context.Context, err error) bool {
	return backend.IsUncertain(err) && !IsOver(err) && ctx.Err() == nil
}

// Raced reports whether a commit failed because of a concurrent change.
func Raced(err error) bool {
	return (errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) ||
		errors.Is(err, backend.ErrBadVersion) || errors.Is(err, backend.ErrNotEmpty)) && !OfContext(err)
}

// Blamed returns the index of the operation that made a commit fail, or -1.
func Blamed(err error) int {
	var e *backend.Error
	if !errors.As(err, &e) || !Raced(err) {
		return -1
	}
	return e.Index
}

// Answers reports whether err is an answer of the service that matches target. The cause of an ended context
// is no answer of the service. Neither is a NoContactError, even if it says that the service refuses the
// user: it says nothing about a node.
func Answers(err, target error) bool {
	return errors.Is(err, target) && !OfContext(err) && !errors.Is(err, backend.ErrNoContact)
}

// RefusesUser reports whether a call has not reached the service because the service refuses the user. The
// service can accept the user again while the session lasts.
func RefusesUser(err error) bool { return errors.Is(err, backend.ErrNoContact) && !OfContext(err) }

// OfContext reports whether err means that a context has ended. Such an error matches
// the context's cause as well, which belongs to the caller: the error of another call,
// or the reason why a hold of another client was lost. It says nothing about a node, a
// session or a client.
func OfContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
