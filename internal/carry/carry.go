// Package carry lets a transaction of another system carry the commit of a coord.Txn: the commit is
// applied if and only if that transaction commits.
package carry

import (
	"context"

	"github.com/go-coord/coord/backend"
)

// A Stage takes the requests of a Txn, as s would get them in one Commit, and adds them to the
// transaction that carries them. parts[i] is the part of the Txn to which ops[i] belongs. If it returns nil,
// the requests are applied with that transaction, or not at all. If it returns an error, the caller must treat
// them as possibly added.
//
// The directories and buckets that the requests need exist already: commits of their own, on s, have
// created them.
type Stage func(ctx context.Context, s backend.Session, ops []backend.Op, parts []Part) error

// A Part is a guard, condition or operation of a Txn, as coord.ConflictError names it when the service
// refuses one of its requests.
type Part struct {
	Op    string
	Index int
	Path  string // empty for a guard: the path is that of the request
	// Claim says that the part has lost its claim if the node of the request is missing.
	Claim bool
}

type key struct{}

// With returns a context for the Commit of a Txn, whose requests go to stage. Other calls ignore it.
func With(ctx context.Context, stage Stage) context.Context {
	return context.WithValue(ctx, key{}, stage)
}

// Of returns the Stage that ctx carries, or nil.
func Of(ctx context.Context) Stage {
	stage, _ := ctx.Value(key{}).(Stage)
	return stage
}
