package coord

import (
	"context"
	"fmt"

	"github.com/go-coord/coord/backend"
)

// DoubleBarrierOptions may be nil.
type DoubleBarrierOptions struct {
	// WaitForNextRound makes an entrant that comes while a round is in progress wait for
	// the next one. Without it such an entrant joins the round in progress, as an
	// extra.
	WaitForNextRound bool
}

// A DoubleBarrier lets a number of members begin a computation together, and end
// it together (the double barrier of the ZooKeeper recipe guide): Enter returns
// when n have come, and Leave when all of them have left. Then the next round can
// be entered, with the same object.
//
// Enter returns to nobody before n members stand at the barrier at the same time.
// Those n make the round, by name: the first that came. A round never opens for
// what was left behind by an earlier one, whatever crashed, so who comes back
// after a crash of all waits for n members again.
//
// A member dies when its session ends. A crash before the round opens leaves the
// others waiting, and anybody can complete the set. A crash inside does not keep
// the others from leaving. The service learns of a crash when the
// session times out, and until then a dead member counts as one that stands there.
//
// n is a minimum. Who comes while a round is in progress, that is, while a member
// of it is inside, joins it as an extra: Enter returns at once. Extras are not
// counted: Leave of the others does not wait for them, and an extra that is still
// inside makes no part of the next round. With WaitForNextRound they wait for it
// instead.
//
// All clients must agree on n. If an entrant finds itself in a round of another
// number, it withdraws with ErrLimit.
//
// Layout: path is a directory, path/members another one (containers, made on first
// use). A member is an ephemeral node in path/members, named
// _c_<uuid>-member-<number>, an extra one named _c_<uuid>-guest-<number>; other
// names are ignored. The node path/ready stands while a round is in progress. It
// is persistent, and its data is the names of the round's members, a line for
// each. The last to leave removes it; when the last ones have crashed, or have gone
// without waiting for each other, it stays until somebody enters again. The
// version of path counts the rounds; its data names the recipe, or is what stood there
// before. Who deletes ready
// while members are inside makes them count for the next round. Other libraries'
// double barriers have another layout and other rules; they cannot take part.
//
// A DoubleBarrier is safe for concurrent use and holds nothing; there is nothing to
// close. Each Enter is a member of its own, also within one client.
type DoubleBarrier struct {
	c       *Client
	path    recipePath
	members string // the directory of members
	ready   string
	n       int
	next    bool
}

func (d *DoubleBarrier) ground() ground { return ground{dir: d.path.full, recipe: kindDoubleBarrier} }

// NewDoubleBarrier returns the double barrier at path for n members. It does no
// I/O; a bad path or n is reported by the first call.
func NewDoubleBarrier(c *Client, path string, n int, o *DoubleBarrierOptions) *DoubleBarrier {
	d := &DoubleBarrier{c: c, path: c.recipePath(path), n: n}
	d.members = d.path.full + "/members"
	d.ready = d.path.full + "/ready"
	if o != nil {
		d.next = o.WaitForNextRound
	}
	return d
}

func (d *DoubleBarrier) check(op string) error {
	if err := d.path.check(op); err != nil {
		return err
	}
	// The commit that opens a round checks every member and lists their names.
	const name, overhead, rest = 64, 160, 10_000
	most := (backend.MaxRequest - rest - 4*len(d.path.full)) / (len(d.members) + 2*name + overhead)
	switch {
	case d.n < 1:
		return opError(op, d.path.full, fmt.Errorf("%w: %d members", ErrInvalid, d.n))
	case d.n > most:
		return opError(op, d.path.full, fmt.Errorf("%w: %d members, at most %d fit into a request", ErrTooLarge, d.n, most))
	}
	return nil
}

// Enter waits until n members stand at the barrier, and returns the entry. ctx
// bounds the wait only, not the entry. A session lost while waiting does not end
// the wait; the member comes anew with the next session. Whatever ends the wait, the
// member is gone when Enter returns, and no round opens with it any more. (If one
// opened just before, to the others it is a member that has come and left.)
//
// Without contact, or without an answer for a second, Enter returns earlier. Then the
// member is removed in the background, over the next session if need be. The next
// Enter of this client waits for that, however long it takes, so a client never counts
// itself twice. Other clients can count the member until it is removed, or until the
// service has ended its session.
//
// Errors: ErrLimit when the round has another number of members than n.
// ErrInvalid for n below 1. ErrTooLarge for an n of some thousands: the names of the
// members must fit into a request. And those of Mutex.Lock.
func (d *DoubleBarrier) Enter(ctx context.Context) (*Entry, error) {
	const op = "enter"
	if err := d.check(op); err != nil {
		return nil, err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, opError(op, d.path.full, err)
	}
	trail := d.c.trail("doublebarrier", d.path.full, op)
	for sp := newSpec(d.c, d.ground().within(d.members, kindMembers), entrantKind, nil); ; {
		m := &entrant{d: d, trail: trail}
		e, err := m.enter(ctx, sp)
		if err == nil {
			return e, nil
		}
		err, again := afterAttempt(ctx, err)
		if !again {
			err = opError(op, d.path.full, err)
			trail.over(ctx, err)
			return nil, err
		}
		d.c.log.Debug("coord: comes to the barrier anew", "path", d.path.full, "error", err)
		trail.requeued(ctx, err)
	}
}

// DoubleBarrierState is how many stand where.
type DoubleBarrierState struct {
	Waiting int // have come, and wait for a round to open
	Inside  int // members of the round in progress that have not left; 0 if there is none
	Extra   int // have joined a round after it had opened, and have not left
}

// State tells how many have come. It costs three requests. The counts are read one
// after the other, so they can miss a change that comes in between.
func (d *DoubleBarrier) State(ctx context.Context) (DoubleBarrierState, error) {
	const op = "state"
	if err := d.check(op); err != nil {
		return DoubleBarrierState{}, err
	}
	st, err := onSession(ctx, d.c, func(s *session) (st DoubleBarrierState, err error) {
		if err := s.b.Sync(ctx, d.members); err != nil {
			return st, err
		}
		names, opened, err := d.readReady(ctx, s)
		if err != nil {
			return st, err
		}
		list, members, err := s.b.Children(ctx, d.members, nil)
		if err != nil && !isNotFound(err) {
			return st, err
		}
		if opened < members.Czxid {
			names = nil
		}
		r := sortMembers(names, list)
		return DoubleBarrierState{Waiting: len(r.waiting), Inside: len(r.living), Extra: r.extra}, nil
	})
	return st, opError(op, d.path.full, err)
}
