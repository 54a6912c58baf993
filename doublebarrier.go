package coord

import (
	"context"

	"github.com/go-coord/coord/internal/doublebarrier"
)

// DoubleBarrierOptions may be nil.
type DoubleBarrierOptions struct {
	// WaitForNextRound makes an Enter that begins while a round is in progress wait for
	// the next round. Without it Enter joins the round in progress as an extra.
	WaitForNextRound bool
}

// A DoubleBarrier lets a number of members begin a computation together, and end it
// together (the double barrier of the ZooKeeper recipe guide). Enter returns when n members
// have arrived, and Leave when all of them have left. Then the next round can be entered,
// with the same object.
//
// Enter returns to no member before n members stand at the barrier at the same time. The n
// members that arrived first form the round, which lists them by name. A round never opens
// because of nodes that an earlier round left behind, whichever clients crashed: after a
// crash of all members, a member waits for n members again.
//
// A member dies when the service ends its session; until then a dead member counts as
// present. If a member dies before the round opens, the others keep waiting, and any other
// client can complete the set. If a member dies inside, the others can still leave.
//
// n is a minimum. An Enter that begins while a member is inside joins the round as an
// extra, and returns at once. Extras are not counted: Leave of the members does not wait
// for them, and an extra that is still inside does not count for the next round. With
// WaitForNextRound, Enter waits for the next round instead. All clients must agree on n:
// if the round has another number of members than n, Enter fails with ErrLimit.
//
// A DoubleBarrier is safe for concurrent use and needs no closing. Each Enter is a separate
// member, also within one client. layout.md describes the nodes; double barriers of other
// libraries cannot take part.
type DoubleBarrier struct{ b *doublebarrier.Barrier }

// NewDoubleBarrier returns the double barrier at path for n members. It does no
// I/O; a bad path or n is reported by the first call.
func NewDoubleBarrier(c *Client, path string, n int, o *DoubleBarrierOptions) *DoubleBarrier {
	return &DoubleBarrier{doublebarrier.New(c.core(), path, n, o != nil && o.WaitForNextRound)}
}

// Enter waits until n members stand at the barrier, and returns the entry. ctx bounds only
// the wait. If the session is lost during the wait, the member enters again with the next
// session. If the wait ends without an entry, the member is gone when Enter returns, and no
// round opens with it. (If a round opened just before, the others see a member that has
// entered and left.)
//
// Without contact, or if the service does not answer for a second, Enter returns earlier,
// and the client removes the member in the background, over the next session if necessary.
// The next Enter of this client waits for that removal, however long it takes, so a client
// never counts itself twice. Other clients can count the member until it is removed, or
// until the service has ended its session.
//
// Errors: ErrLimit if the round has another number of members than n; ErrInvalid for n
// below 1; ErrTooLarge for an n of some thousands, whose names do not fit into a request;
// those of Mutex.Lock.
func (d *DoubleBarrier) Enter(ctx context.Context) (*Entry, error) {
	e, err := d.b.Enter(ctx)
	if err != nil {
		return nil, err
	}
	return &Entry{&Hold{e.Hold()}, e}, nil
}

// DoubleBarrierState is the number of members and extras at a DoubleBarrier.
type DoubleBarrierState struct {
	Waiting int // have arrived, and wait for a round to open
	Inside  int // members of the round in progress that have not left; 0 if there is none
	Extra   int // joined a round after it had opened, and have not left
}

// State returns the number of members and extras at the barrier. It costs three
// requests. The reads are not one snapshot, so the counts can miss a change that
// comes in between.
func (d *DoubleBarrier) State(ctx context.Context) (DoubleBarrierState, error) {
	s, err := d.b.State(ctx)
	return DoubleBarrierState(s), err
}

// An Entry is a member's place in a round of a DoubleBarrier, from Enter to Leave.
//
// It is a Hold without a token, on the member's node. If the session is lost, or an
// outsider deletes the node, the entry ends: Done fires, and the other members
// do not wait for this member any more. The entry does not undo the work of the
// member; a member that must stop when its entry ends uses the entry's Context. The
// member can enter again: it joins its old round if that is still in progress, or waits
// for the next.
//
// Release leaves without waiting for the others. While a Leave is under way Release
// has no effect; the ctx of Leave ends it.
type Entry struct {
	*Hold
	e *doublebarrier.Entry
}

// Extra reports whether the member joined a round that was open already.
func (e *Entry) Extra() bool { return e.e.Extra() }

// Leave ends the entry, so that Done fires, and waits until all other members of the
// round have left or died. It does not wait for extras; an extra itself waits for the
// members of its round.
//
// If ctx ends first, the member has left nevertheless: only the wait ends early, and
// its node is removed before Leave returns, with the limits of Enter. Another call
// of Leave resumes the wait. A session that is lost while Leave waits does not end
// the wait. If the entry was lost before Leave was called, Leave returns its Err at
// once. After Release, Leave waits for the other members; during a Release, it waits
// for the Release first.
//
// Each member that leaves wakes one other member (the recipe guide's rule of the
// lowest and the highest).
func (e *Entry) Leave(ctx context.Context) error { return e.e.Leave(ctx) }
