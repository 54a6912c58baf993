package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
)

// A Hold is the exclusive or counted possession of a thing that can be lost: a lock,
// permits, a term of leadership, an item of a queue, a place in a round. It is bound to
// an ephemeral node of the client's session.
//
// A hold ends when it is released, when its session is lost or the client closed, and
// when another client deletes its node. Then Done is closed and Err returns the reason;
// the holder must stop the work that it does under the hold.
//
// Done is closed before another contender is granted, with the limits under "What is
// promised" in the package comment. A paused process learns of a loss only when it
// resumes. If a late write could do harm, let the resource refuse an old Token, or write
// in a transaction under the Guard.
//
// A Hold is safe for concurrent use.
type Hold struct{ h *core.Hold }

// core returns the engine of the hold. A Hold that no recipe has granted has not ended, and has no node.
func (h *Hold) core() *core.Hold {
	if h.h == nil {
		return new(core.Hold)
	}
	return h.h
}

// asHold returns the face of a hold.
func asHold(h *core.Hold, err error) (*Hold, error) {
	if h == nil {
		return nil, err
	}
	return &Hold{h}, err
}

// doUnder implements Do for every lock. at is the engine of the lock.
func doUnder(ctx context.Context, at place, lock func(context.Context) (*core.Hold, error), f func(context.Context, *Hold) error) error {
	_, path := at.Where()
	if f == nil {
		return core.Do(ctx, path.Full(), lock, nil)
	}
	return core.Do(ctx, path.Full(), lock, func(ctx context.Context, h *core.Hold) error { return f(ctx, &Hold{h}) })
}

// Done returns a channel that is closed when the hold ends. Done compares the session's
// lease, and the time of a claim, with the clock, so after a pause of the process the
// channel of a lost hold is closed already.
func (h *Hold) Done() <-chan struct{} { return h.core().Done() }

// Err returns nil until the hold ends. Afterwards the error matches ErrReleased, or
// ErrLost together with the reason: ErrSessionLost, ErrClosed, ErrDeleted, ErrRevoked,
// ErrClaimTimeout. (If the service ends a session, and the client sees the deletion of the
// node first, the reason is ErrDeleted.) Err compares the clock as Done does.
func (h *Hold) Err() error { return h.core().Err() }

// Context returns a context that ends when parent ends or when the hold ends, with Err
// as its cause. Use it for the work under the hold. The hold keeps it until either of them ends: if a long hold
// has many short uses, give each of them a parent that ends.
//
// When the context ends, a goroutine removes it from parent. If the methods of parent block,
// that delays no hold, and delays Close by at most a second.
func (h *Hold) Context(parent context.Context) context.Context { return h.h.Context(parent) }

// Token returns the fencing token of an exclusive hold. It is greater than that of
// every earlier holder on the same path, unless the service was restored to an older
// state. With MutexOptions.Keep it is greater than the token of every earlier client,
// and successive holds of one client can have the same token. (It is the czxid of the
// hold's node.) A resource that remembers the highest token it has seen, and refuses
// lower ones, is safe from a holder that was paused. Token is zero for a hold that
// several clients can have at a time.
func (h *Hold) Token() int64 { return h.core().Token() }

// Path returns the path of the hold's node: absolute, the namespace included. A
// downgrade changes it.
func (h *Hold) Path() string { return h.core().Path() }

// Session returns the id of the hold's session.
func (h *Hold) Session() int64 { return h.core().Session() }

// Guard returns the condition "this hold has not ended" for a transaction. A downgrade
// changes it.
func (h *Hold) Guard() Guard { return Guard{h.h.Guard()} }

// Verify asks the service whether the hold's node exists. Nil means that it existed when
// the service was asked. It costs two requests; use the Guard to write safely. If the
// node does not exist, the hold ends, and Verify returns Err. With other errors the answer
// is unknown.
func (h *Hold) Verify(ctx context.Context) error { return h.h.Verify(ctx) }

// Release ends the hold, so that Done is closed, then removes its node and returns. It is
// idempotent. It takes no context, since it must succeed: without contact it waits, but not
// longer than the session can last. The hold has ended in any case.
//
// Nil means that the hold lasted until its release, and that this Release has removed the
// node, or keeps it for the next caller (MutexOptions.Keep). Otherwise the error matches
//
//   - ErrLost, if the hold was lost before the release: another client may have been
//     granted already. Err returns the same error. It returns ErrReleased if the loss was
//     detected only when the node was to be removed.
//   - ErrUncertain, if the reply to the removal was lost and the node does not exist any
//     more: either this Release has removed it, or another client did so before, and the
//     hold was lost. The error matches ErrLost too if the session was lost after that.
//   - the reason for which the service refuses the removal, such as ErrDenied. Release
//     continues in the background.
func (h *Hold) Release() error { return h.h.Release() }

// Revoked returns a channel that is closed when a client requests the holder to give
// the hold up. The holder consents by calling Release. Without consent nothing happens,
// unless the request sets ForceAfter. The client reads a request some time after it was
// made, and at the earliest some 20 ms after an uncontended grant.
func (h *Hold) Revoked() <-chan struct{} { return h.core().Revoked() }

// Revocation returns the latest request to give the hold up, if there is one. A request
// in the format of the recipe guide or of Curator has neither requester nor reason.
func (h *Hold) Revocation() (Revocation, bool) {
	r, ok := h.core().Revocation()
	return Revocation(r), ok
}

// Revocation is a request to give a lock up: the recipe of the revocable shared lock of
// the ZooKeeper recipe guide. It is written into the holder's node and deleted with that
// node, so no later holder sees it. (With MutexOptions.Keep the next hold of the same
// client can have the same node, and gets the request.)
type Revocation struct {
	By     string    // the requester, in its own words
	Reason string    // the reason
	At     time.Time // the time of the request, by the requester's clock
	Force  bool      // the node will be deleted if the holder does not release
}

// Guard is the condition "this hold has not ended". The service checks it in the same
// transaction as a write, so it is exact even if the holder's process was paused: once the
// hold's node is deleted, a Txn under its Guard fails with ErrFenced (a commit with Ops
// fails with ErrNotFound), and no later node fulfils the condition. The zero Guard checks
// nothing, and Txn.Under refuses it.
type Guard struct{ g core.Guard }

// Ops returns the operations to put first into a Commit. After a call of Ops, the Release of
// a lock with MutexOptions.Keep deletes the node, since the Commit can come at any time.
func (g Guard) Ops() []backend.Op { return g.g.Ops() }
