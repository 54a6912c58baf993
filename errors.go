package coord

import (
	"strconv"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// The errors of the recipes. Find them with errors.Is: they are wrapped with the
// operation and its path. The package comment says how to handle each.
var (
	// ErrLost: the hold ended before it was released, even if only its release detected
	// that. It matches every early end, whatever the reason; the reason is wrapped with
	// it.
	ErrLost = errs.ErrLost
	// ErrReleased: the hold was released by its owner.
	ErrReleased = errs.ErrReleased
	// ErrDeleted: another client deleted the node of a hold. It matches ErrLost too if
	// a hold ends with it.
	ErrDeleted = errs.ErrDeleted
	// ErrRevoked: a holder did not release a lock when requested, and its node was
	// deleted by force. It matches ErrLost and ErrDeleted too.
	ErrRevoked = errs.ErrRevoked
	// ErrHeld: the context of a Lock derives from a hold on the same lock, so the call
	// would wait for itself. A context that context.WithoutCancel derives from the hold's
	// context, and that has no end of its own, is not refused, since it outlives the hold.
	ErrHeld = errs.ErrHeld
	// ErrUpgrade: the context of a Lock for writing derives from a hold for reading on
	// the same lock, so the call would wait for itself.
	ErrUpgrade = errs.ErrUpgrade
	// ErrLocked: TryLock found the lock taken.
	//
	// If the options of the lock have an ID, the message names the holder: "locked (held
	// by "worker-7", which requested it 12s ago)". The error of a Lock whose ctx ends in
	// the queue names the holder too. The name is the holder's ID, or its session if it has
	// no ID, and never its Data. The time counts from the creation of the holder's node, by
	// the clocks of the service and of this process. Naming the holder costs TryLock one
	// read, and Lock two, also for a caller that waits behind another caller of the same
	// client. After a second, or without contact, the call returns without the name.
	ErrLocked = errs.ErrLocked
	// ErrLimit: a limit of the recipe is reached, such as the last sequence
	// number of a directory.
	ErrLimit = errs.ErrLimit
	// ErrEmpty: the queue has no item to take at the moment.
	ErrEmpty = errs.ErrEmpty
	// ErrFull: the queue holds as many items as MaxLen allows.
	ErrFull = errs.ErrFull
	// ErrSuspended: a leader with StepDownOnSuspend has lost contact. It matches ErrLost
	// too.
	ErrSuspended = errs.ErrSuspended
	// ErrClaimTimeout: the claim on an item of a queue was not ended within the
	// ClaimTimeout of the queue. It matches ErrLost too.
	ErrClaimTimeout = errs.ErrClaimTimeout
	// ErrDuplicate: another member, or another transaction, has the id.
	ErrDuplicate = errs.ErrDuplicate
	// ErrInDoubt: a site needs the decision of a transaction, and the decision is missing
	// or unreadable: an outsider has deleted or overwritten it, or the record.
	ErrInDoubt = errs.ErrInDoubt
	// ErrConflict: another client has changed the data since it was read.
	ErrConflict = errs.ErrConflict
	// ErrFenced: the hold of a Guard has ended, so nothing of the Txn under it was applied. It
	// matches ErrConflict too, as every refusal of a Txn does.
	ErrFenced = errs.ErrFenced
	// ErrKind: another kind of recipe is in use at the path; see KindError.
	ErrKind = errs.ErrKind
	// ErrDecode: the codec cannot decode the data of a node.
	ErrDecode = errs.ErrDecode
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

// KindError is the error for a path that another kind of recipe uses. It matches
// ErrKind. The call wrote nothing to the path; if a contender of another kind came
// first in a line, the contender of this call has removed its node.
//
// The directory of a recipe carries the name of its kind as data. If an outsider
// overwrites it while clients use the directory, the next creation of a node by one of
// them overwrites the outsider's data; that client logs this and then leaves the data
// alone. If a path was deleted, and created again as something else, a client that used
// it before writes to it once. If that client finds nodes of another recipe there, it
// undoes the write, and refuses.
type KindError struct {
	Path  string // absolute, the namespace included
	Want  string // the kind of the call, as inspect.Report names it
	Found string // the kind that uses the path; "counter" also for a Value that holds a whole number
}

// Error returns the reason without the path, which the wrapping error names.
func (e *KindError) Error() string {
	found := strconv.Quote(e.Found)
	if e.Found == string(layout.KindCounter) {
		found = `"counter", or as "value" of a whole number` // their nodes are alike
	}
	return ErrKind.Error() + ": in use as " + found + ", not as " + strconv.Quote(e.Want)
}

// Is reports whether target is ErrKind.
func (e *KindError) Is(target error) bool { return target == ErrKind }

func newKindError(path, want, found string) error { return &KindError{path, want, found} }
