package backend

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The errors of the contract. They are returned wrapped in *Error; test for them with
// errors.Is.
var (
	// ErrNotFound: the node, or the parent of a node to create, is missing.
	ErrNotFound = errors.New("node not found")
	// ErrExists: there is a node at the path already.
	ErrExists = errors.New("node exists")
	// ErrBadVersion: the node's version is not the one that the operation asked for.
	ErrBadVersion = errors.New("version does not match")
	// ErrNotEmpty: the node has children and cannot be deleted.
	ErrNotEmpty = errors.New("node has children")
	// ErrNoChildren: the parent is ephemeral and cannot have children.
	ErrNoChildren = errors.New("ephemeral nodes have no children")
	// ErrSessionLost: the session is over. The caller opens another.
	ErrSessionLost = errors.New("session lost")
	// ErrClosed: the session, or the object that it belongs to, was closed by its owner.
	ErrClosed = errors.New("closed")
	// ErrUncertain: the outcome is unknown; the commit may have been applied. The error of an
	// ended context matches the context's cause, whatever that is; if that can be ErrUncertain
	// too, ask IsUncertain.
	ErrUncertain = errors.New("outcome uncertain")
	// ErrNoContact: when the call ended, the client had no contact with the service, or its server did
	// not answer. The error matches the context's error too, or ErrDenied if the call ended since the
	// service refuses the user. It matches ErrUncertain if the call may have been applied. The error
	// is a *NoContactError.
	ErrNoContact = errors.New("no contact with the service")
	// ErrTooLarge: data or a request over the limit, refused locally; or a node whose data or
	// list of children is over the limit of a reply.
	ErrTooLarge = errors.New("too large")
	// ErrNoSpace: the service has no room for what the commit writes. It was not applied, unless the
	// error matches ErrUncertain too. Reads, and commits for which OnlyDeletes is true, continue.
	ErrNoSpace = errors.New("no space")
	// ErrDenied: no permission, or credentials that the service refuses. For a missing
	// permission the error is a *DeniedError, which names the node.
	ErrDenied = errors.New("permission denied")
	// ErrBadPath: the path breaks the rules of Session.CheckPath. Refused locally.
	ErrBadPath = errors.New("bad path")
	// ErrUnsupported: the service does not have this feature.
	ErrUnsupported = errors.New("not supported by the backend")
	// ErrInvalid: an argument or option makes no sense. Refused locally, except a database or schema of
	// PostgreSQL that a session cannot use.
	ErrInvalid = errors.New("invalid argument")
)

// Error says which operation failed on which path, and why. Err matches one of
// the errors of this package or a context's error.
type Error struct {
	// Op is "open", "get", "exists", "children", "arm", "watch" (WatchTree), "read"
	// (ReadMany), "sync" or "close". For a Commit that one operation made fail, or that has
	// only one, it is "create", "set", "delete", "check" or "absent"; for other Commits it is "commit".
	// The recipes of package coord use the names of their methods.
	Op string
	// Path is as it was given: for a Commit the path of the operation that Op names, else
	// that of its first operation; for an Arm or a ReadMany likewise that of a target or a
	// read. It is empty for "open" and "close".
	Path string
	// Index is the operation that made a Commit fail, counted from 0. It is -1 if no
	// operation is at fault: the session was lost, ctx ended, or the outcome is unknown. It
	// is zero for all other calls.
	Index int
	Err   error
}

// Error returns "coord: op path: reason". The reason of a nested Error repeats neither the
// prefix nor the same path.
func (e *Error) Error() string { return prefix + e.what("") + e.why() }

const prefix = "coord: "

// what returns the operation, and its path unless shown is that path.
func (e *Error) what(shown string) string {
	if e.Path == "" || e.Path == shown {
		return e.Op
	}
	return e.Op + " " + quotePath(e.Path)
}

func (e *Error) why() string {
	if e.Err == nil {
		return ""
	}
	reason := e.Err.Error()
	if inner := (*Error)(nil); errors.As(e.Err, &inner) {
		why := inner.why()
		reason = strings.Replace(reason, prefix+inner.what("")+why, inner.what(e.Path)+why, 1)
	}
	return ": " + strings.TrimPrefix(reason, prefix)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// DeniedError says which permission is missing on which node, if the service reports it. It
// matches ErrDenied.
type DeniedError struct {
	// Path is the node that refused the operation: for the creation and the deletion of a
	// node it is the node's parent.
	Path string
	Perm string // the permission that the node does not grant: "read", "write", "create" or "delete"
}

// Error returns "permission denied: path does not grant permission".
func (e *DeniedError) Error() string {
	return ErrDenied.Error() + ": " + quotePath(e.Path) + " does not grant " + e.Perm
}

// Unwrap returns ErrDenied.
func (e *DeniedError) Unwrap() error { return ErrDenied }

// NoContactError is the error of a call that ended without contact with the service: its ctx ended, or
// the service refused the user. It matches ErrNoContact, and every error that Err matches.
type NoContactError struct {
	Err error         // of the context; or ErrDenied, with the reason
	For time.Duration // how long there has been no contact
	Why string        // each server with its latest failure, or why there is no session
}

// Error returns "error: no contact with the service for duration: reason".
func (e *NoContactError) Error() string {
	text := e.Err.Error() + ": " + ErrNoContact.Error() + " for " + e.For.Round(time.Millisecond).String()
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// Unwrap returns Err.
func (e *NoContactError) Unwrap() error { return e.Err }

// Is reports whether target is ErrNoContact.
func (e *NoContactError) Is(target error) bool { return target == ErrNoContact }

// Uncertain returns an error that matches ErrUncertain and, if it is not nil,
// also cause, the reason why the call ended before its outcome was known.
func Uncertain(cause error) error {
	switch {
	case cause == nil:
		return ErrUncertain
	case IsUncertain(cause):
		return cause
	}
	return &uncertain{cause}
}

// IsUncertain reports whether err says that the outcome of a call is unknown. Unlike errors.Is with
// ErrUncertain, it does not look at the cause of an ended context (see ContextError), which can be
// the error of any other call.
func IsUncertain(err error) bool {
	if _, ok := err.(*ended); ok || err == nil {
		return false
	}
	if e, ok := err.(interface{ Is(error) bool }); err == ErrUncertain || ok && e.Is(ErrUncertain) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return IsUncertain(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), IsUncertain)
	}
	return false
}

type uncertain struct{ cause error }

func (u *uncertain) Error() string        { return ErrUncertain.Error() + ": " + u.cause.Error() }
func (u *uncertain) Unwrap() error        { return u.cause }
func (u *uncertain) Is(target error) bool { return target == ErrUncertain }

// ContextError returns the error of a context that has ended: it matches ctx.Err() and the
// context's cause. It is nil while ctx lives.
func ContextError(ctx context.Context) error {
	if ctx == nil {
		panic("backend: nil Context")
	}
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && cause != err {
		return &ended{err, cause}
	}
	return err
}

type ended struct{ err, cause error }

func (e *ended) Error() string   { return e.err.Error() + ": " + e.cause.Error() }
func (e *ended) Unwrap() []error { return []error{e.err, e.cause} }

// quotePath returns a path as it is, or quoted and cut if it is long or holds characters that
// could confuse a log.
func quotePath(path string) string {
	const most = 256
	cut := path
	if len(cut) > most {
		end := most
		for end > 0 && !utf8.RuneStart(cut[end]) {
			end--
		}
		cut = cut[:end] + "…"
	}
	if CheckPath(path) == nil {
		return cut
	}
	return strconv.QuoteToASCII(cut)
}
