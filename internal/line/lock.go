package line

import (
	"context"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
)

// A Lock is a Mutex, or a side of an RWMutex, of package coord. Its methods are theirs.
type Lock struct {
	c    *core.Client
	path nodepath.Path
	joiner
}

// joiner is the part of a Lock that differs between a Mutex and the sides of an RWMutex. LockAll uses its steps to
// create the nodes of several locks with a joint commit.
type joiner interface {
	line() *Line
	// lock is Lock, or TryLock. It is a method of each kind, so that the request costs no allocation.
	lock(ctx context.Context, try bool) (*core.Hold, error)
	// newRequest returns the request of Lock.
	newRequest() *request
	// begin checks a request and completes it.
	begin(ctx context.Context, r *request) error
	// takeTurn waits for the caller's turn among the callers of the client and sets the owner of
	// the request. The sides of an RWMutex have no turns.
	takeTurn(ctx context.Context, r *request) error
	// acquire acquires the lock for a caller that has the turn. If it fails, the turn is
	// passed on.
	acquire(ctx context.Context, r *request) (*core.Hold, error)
}

// Lock waits until the caller has the lock.
func (k *Lock) Lock(ctx context.Context) (*core.Hold, error) { return k.lock(ctx, false) }

// TryLock returns errs.ErrLocked instead of waiting for another contender.
func (k *Lock) TryLock(ctx context.Context) (*core.Hold, error) { return k.lock(ctx, true) }

// Where returns the client and the path of the lock.
func (k *Lock) Where() (*core.Client, nodepath.Path) { return k.c, k.path }

// Contenders returns the holders and the waiters, in the order of the queue.
func (k *Lock) Contenders(ctx context.Context) ([]Contender, error) {
	if err := k.path.Check("contenders"); err != nil {
		return nil, err
	}
	list, err := k.line().contenders(ctx)
	return list, errs.Op("contenders", k.path.Full(), err)
}

// Revoke asks the holders to release, and waits until they have. See Line.Revoke.
func (k *Lock) Revoke(ctx context.Context, o *RevokeOptions) error {
	return k.line().Revoke(ctx, &k.path, o)
}
