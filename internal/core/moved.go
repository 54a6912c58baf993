package core

import (
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
)

// Names for files that are being moved.
var (
	ErrClosed     = backend.ErrClosed
	ErrInvalid    = backend.ErrInvalid
	ErrNotFound   = backend.ErrNotFound
	ErrTooLarge   = backend.ErrTooLarge
	ErrBadPath    = backend.ErrBadPath
	ErrReleased   = errs.ErrReleased
	ErrLocked     = errs.ErrLocked
	ErrLimit      = errs.ErrLimit
	ErrConflict   = errs.ErrConflict
	ErrDecode     = errs.ErrDecode
	ErrLost       = errs.ErrLost
	ErrDuplicate  = errs.ErrDuplicate
	ErrInDoubt    = errs.ErrInDoubt
	ErrAgain      = errs.ErrAgain
	ErrGone       = errs.ErrGone
	ErrNoFunction = errs.ErrNoFunction
	OpError       = errs.Op
	Answers       = errs.Answers
	Blamed        = errs.Blamed
	IsClosed      = errs.IsClosed
	IsDecode      = errs.IsDecode
	IsNotFound    = errs.IsNotFound
	IsOver        = errs.IsOver
	IsUncertain   = backend.IsUncertain
	MayRepeat     = errs.MayRepeat
	OfContext     = errs.OfContext
)
