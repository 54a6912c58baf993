package core

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/backoff"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/parallel"
	"github.com/go-coord/coord/internal/tracing"
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

type (
	Span          = tracing.Span
	Path          = nodepath.Path
	Pauses        = backoff.Pauses
	Signal[T any] = latest.Signal[T]
	Latest[T any] = latest.Value[T]
)

func NewSignal[T any]() latest.Signal[T]    { return latest.NewSignal[T]() }
func NewLatest[T any](v T) *latest.Value[T] { return latest.NewValue(v) }
func Base(path string) string               { return nodepath.Base(path) }
func Parent(path string) string             { return nodepath.Parent(path) }

func ReadAll(ctx context.Context, n int, read func(ctx context.Context, i int) error) error {
	return parallel.Read(ctx, n, read)
}
