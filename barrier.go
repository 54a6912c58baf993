package coord

import (
	"context"

	"github.com/go-coord/coord/internal/barrier"
)

// BarrierOptions may be nil.
type BarrierOptions struct {
	// Ephemeral ties the barrier to the session of the client that sets it: the
	// service removes the barrier when that session ends. Without Ephemeral the
	// barrier stays set until a client removes it, even if the setter's session has ended.
	Ephemeral bool
}

// A Barrier blocks every waiter for as long as it is set (the barrier of the
// ZooKeeper recipe guide). Any client can set it, and any client can remove it. Its
// removal wakes all waiters.
//
// A call of Wait that begins after Set has returned does not pass before the barrier
// is removed. A call that begins earlier may find no barrier yet. A waiter that wakes
// reads the barrier again, and passes only if it is not set. So a slow waiter that
// finds the barrier set again continues to wait.
//
// Other recipes can be used below the path of a barrier, in any order. A directory that
// the library has made above them is not a set barrier. An ephemeral node cannot have
// children. So Set of an Ephemeral barrier returns ErrKind while there are nodes below its
// path, and while the barrier is set, an error of recipes below it matches
// ErrKind and ErrNoChildren.
//
// Clients of Curator and kazoo can share a barrier whose path is not used as a directory.
// They take each node for a barrier, and cannot remove a node that has nodes below it.
// layout.md describes the nodes.
//
// A Barrier is safe for concurrent use and holds no resources; there is nothing to
// close.
type Barrier struct{ b barrier.Barrier }

// NewBarrier returns the barrier at path. It does no I/O; a bad path is reported
// by the first call.
func NewBarrier(c *Client, path string, o *BarrierOptions) *Barrier {
	return &Barrier{barrier.New(c.core(), path, o != nil && o.Ephemeral)}
}

// Set sets the barrier. It returns nil if the barrier is set already as this call
// would have set it: without Ephemeral by a persistent node, whichever client created
// it; with Ephemeral by a node of this client's current session. If the existing node
// has the other lifetime, or belongs to another client's session, the error matches
// ErrExists: the barrier is set, but not for the requested lifetime.
//
// With Ephemeral, a node that an earlier session of this client created with this
// Barrier does not count for the current session: Set waits until the service has
// removed it. If the session is lost later, the barrier goes with it;
// Client.WatchState reports the loss.
//
// If the outcome is unknown when ctx or the session ends, the error matches
// ErrUncertain. The barrier is not set a second time, because that could undo a
// Remove. With Ephemeral, Set continues with the next session, where the node of the
// lost session does not count. So it can undo a Remove between the two sessions.
func (b *Barrier) Set(ctx context.Context) error { return b.b.Set(ctx) }

// Remove removes the barrier, so that all waiters pass. It returns nil if the barrier
// is not set. If the outcome is unknown when ctx or the session ends, the error
// matches ErrUncertain. The barrier is not removed a second time, because another
// client may have set it anew. Nodes below the barrier stay.
func (b *Barrier) Remove(ctx context.Context) error { return b.b.Remove(ctx) }

// Wait returns nil if the barrier is not set. Otherwise it waits until the barrier is
// removed or ctx ends. A lost session does not end the wait. Wait costs two requests,
// and one more for each change of the barrier's node. If the node has children, and its
// data does not name the recipe, Wait costs another request.
func (b *Barrier) Wait(ctx context.Context) error { return b.b.Wait(ctx) }
