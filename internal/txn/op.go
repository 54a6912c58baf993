package txn

import (
	"context"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
)

// An Op is one operation of a transaction. Its requests are determined when the transaction
// is committed.
type Op struct {
	Name string // for the error of a refusal, and other errors
	Path string // absolute, for the same errors
	Err  error  // why the operation is not valid
	// Claim is the path of the node of a claim that the operation ends. Empty means that there is none.
	Claim string

	// Expand returns the requests to apply, on s, after the requests before, which precede
	// this operation in the transaction. It may read, and create directories. It is called
	// again for each attempt.
	Expand func(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error)
	// Least has requests of the same size as some that Expand returns: a transaction that is
	// too large is refused before Expand reads.
	Least []backend.Op
	// Again reports whether the service refused the transaction only because the
	// state that Expand had read was outdated. Then the operation is expanded and the
	// transaction tried again. Nil means never.
	Again func(err error) bool
	// Begin is called before the first attempt of a Commit, and Ended when the outcome of that Commit is
	// known as well as it will be. Nil means that the recipe need not know.
	Begin func()
	Ended func(Outcome)
	// Refused returns the reason for the caller, after the service has refused the operation with err, and
	// after Ended. Nil means that err is the reason.
	Refused func(ctx context.Context, err error) error
	// Examine is called with the Stat of a node that the operation has set, or a later one, after
	// the transaction of the requests all is applied. stat is zero if the reply was lost and the
	// node cannot be read. Nil means that no such node is examined.
	Examine func(ctx context.Context, s *core.Session, all []backend.Op, stat backend.Stat, zxid int64) error
}

// A Conflict is the error of an Expand that knows, without the service, that the service would refuse the
// operation for the reason Err.
type Conflict struct{ Err error }

func (e *Conflict) Error() string { return e.Err.Error() }
func (e *Conflict) Unwrap() error { return e.Err }

// An Outcome is what is known of a transaction when its Commit ends.
type Outcome int8

const (
	NotApplied Outcome = iota // nothing was applied, and nothing will be
	Applied
	// Unknown: the transaction is applied, or not, or can still be applied later. A carried transaction
	// (package carry) has this outcome, also if the Stage has failed.
	Unknown
)

// Creates reports whether one of ops creates the node at path.
func Creates(ops []backend.Op, path string) bool {
	return slices.ContainsFunc(ops, func(o backend.Op) bool { return o.Kind == backend.OpCreate && o.Path == path })
}
