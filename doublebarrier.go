package coord

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// DoubleBarrierOptions may be nil.
type DoubleBarrierOptions struct {
	// WaitForNextRound makes an entrant that arrives while a round is in progress
	// wait for the next round. Without it the entrant joins the round in progress as
	// an extra.
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
// entrant can complete the set. If a member dies inside, the others can still leave.
//
// n is a minimum. An entrant that arrives while a member is inside joins the round as an
// extra: Enter returns at once. Extras are not counted: Leave of the members does not wait
// for them, and an extra that is still inside does not count for the next round. With
// WaitForNextRound the entrant waits for the next round instead. All clients must agree on
// n: if the round that takes an entrant in has another number of members, the entrant
// withdraws with ErrLimit.
//
// A DoubleBarrier is safe for concurrent use and needs no closing. Each Enter is a separate
// member, also within one client. layout.md describes the nodes; double barriers of other
// libraries cannot take part.
type DoubleBarrier struct {
	c       *core.Client
	path    core.Path
	members string // the directory of members
	ready   string
	n       int
	next    bool
}

func (d *DoubleBarrier) recipeDir() core.RecipeDir {
	return core.NewRecipeDir(d.path.Full(), layout.KindDoubleBarrier)
}

// NewDoubleBarrier returns the double barrier at path for n members. It does no
// I/O; a bad path or n is reported by the first call.
func NewDoubleBarrier(c *Client, path string, n int, o *DoubleBarrierOptions) *DoubleBarrier {
	d := &DoubleBarrier{c: c.core(), path: c.core().Path(path), n: n}
	d.members = d.path.Full() + "/members"
	d.ready = d.path.Full() + "/ready"
	if o != nil {
		d.next = o.WaitForNextRound
	}
	return d
}

func (d *DoubleBarrier) check(op string) error {
	if err := d.path.Check(op); err != nil {
		return err
	}
	// The commit that opens a round checks every member and lists their names.
	const name, overhead, rest = 64, 160, 10_000
	l := d.c.Rules().Limits()
	most := max(0, l.Bytes-rest-4*len(d.path.Full())) / (len(d.members) + 2*name + overhead)
	if l.Ops > 0 {
		most = min(most, l.Ops-2)
	}
	if l.Checks > 0 {
		most = min(most, l.Checks)
	}
	switch {
	case d.n < 1:
		return core.OpError(op, d.path.Full(), fmt.Errorf("%w: a double barrier of %d members, want at least 1", ErrInvalid, d.n))
	case d.n > most:
		return core.OpError(op, d.path.Full(), fmt.Errorf("%w: a double barrier of %d members, one request of the service can carry %d", ErrTooLarge, d.n, most))
	}
	return nil
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
	const op = "enter"
	if err := d.check(op); err != nil {
		return nil, err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, core.OpError(op, d.path.Full(), err)
	}
	span := d.c.NewSpan("doublebarrier", d.path.Full(), op)
	sp := core.NewSpec(d.c, d.recipeDir().Part(d.members, layout.KindMembers), layout.EntrantInfix, nil)
	sp.Counted = true
	for {
		m := &entrant{d: d, span: span}
		e, err := m.enter(ctx, sp)
		if err == nil {
			return e, nil
		}
		err, again := d.c.AfterAttempt(ctx, err)
		if !again {
			err = core.OpError(op, d.path.Full(), err)
			span.Over(ctx, err)
			return nil, err
		}
		d.c.Log().Debug("coord: entering the double barrier again", "path", d.path.Full(), "error", err)
		span.Requeued(ctx, err)
	}
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
	const op = "state"
	if err := d.check(op); err != nil {
		return DoubleBarrierState{}, err
	}
	st, err := core.OnSession(ctx, d.c, func(s *core.Session) (st DoubleBarrierState, err error) {
		if err := s.Backend().Sync(ctx, d.members); err != nil {
			return st, err
		}
		o, err := d.readReady(ctx, s)
		if err != nil {
			return st, err
		}
		list, members, err := s.Backend().Children(ctx, d.members, nil)
		if err != nil && !core.IsNotFound(err) {
			return st, err
		}
		r := layout.SortMembers(o.since(members.Czxid), list)
		return DoubleBarrierState{Waiting: len(r.Waiting), Inside: len(r.Living), Extra: r.Extra}, nil
	})
	return st, core.OpError(op, d.path.Full(), err)
}

// How a round opens and ends. In the recipe guide's version, ready is an empty node:
// a ready that survives a crash opens the next round, and a member that has died
// counts. The rules below prevent that. Without any one of them a round opens too
// early, or is destroyed while it is in progress, or a member waits for ever: an
// exhaustive model in the tests shows it.
//
//   - ready lists the names of the round, the n lowest members when it was created.
//     It admits these members and no others.
//   - ready is created by one commit {check that each of these members exists, bump
//     the version of the directory, create ready}.
//   - A call of Enter that starts again after its session was lost keeps its GUID, and
//     two nodes with one GUID count as one: the service may not know yet that the old
//     session is over, and would count the member twice.
//   - A call keeps its GUID, and a recreated directory of members restarts its
//     sequence numbers, so two nodes of one call can have the same name. A ready that
//     is older than the directory lists none of the nodes in it.
//   - If none of the nodes that ready lists exists, ready is stale: its round has
//     died. An entrant that waits removes it by {check own node, bump the version of
//     the directory, delete ready}, with the version that it read before ready. The
//     version of ready itself would not do, since that of every new ready is 0: the
//     commit would delete the ready of a round that has opened meanwhile.
//   - A member that leaves counts the names of its own round, not the other nodes in
//     the directory.
//   - The last member leaves by {delete own node, delete ready}. In two steps, the
//     next round could open between them, and lose its ready.
//   - A late entrant joins by {check a member of the round, delete own node, create a
//     node of another kind}, so that it never counts for the next round.
//
// The version is that of path and not of path/members. s.create counts siblings by
// setting the data of path/members: each arrival would bump that version, and the
// service would refuse the commits of entrants that open a round or clean up, which
// would send them again for each arrival meanwhile. That would be slow, not wrong.
// The version of path changes with rounds alone, and members are created in one round
// trip.
//
// The directory is a container, and a recreated one counts from 0 again. It cannot
// have been recreated between a read of the version and the commit, since the commit
// checks nodes that existed below it at the read, the entrant's own among them.

// round is the state of the barrier as an entrant reads it.
type round struct {
	data    []byte // of the directory
	version int32  // of the directory
	open    bool   // ready exists
	names   []string
	layout.Entrants
}

// read reads the whole state. It reads the version of the directory first: if a later
// commit finds that version unchanged, ready is still the one that was read.
func (m *entrant) read(ctx context.Context) (round, error) {
	data, stat, err := m.s.Backend().Get(ctx, m.d.path.Full(), nil)
	if err != nil {
		return round{}, ownGone(err)
	}
	var o opening
	open, err := m.watchReady(ctx)
	if err == nil && open {
		o, err = m.d.readReady(ctx, m.s)
		if err == nil && o.zxid == 0 {
			err = core.ErrAgain
		}
	}
	if err != nil {
		return round{}, err
	}
	list, members, err := m.s.Backend().Children(ctx, m.d.members, nil)
	if err != nil {
		return round{}, ownGone(err)
	}
	names := o.since(members.Czxid)
	return round{data: data, version: stat.Version, open: open, names: names, Entrants: layout.SortMembers(names, list)}, nil
}

// ownGone turns the error of a missing directory into core.ErrGone: a node in that
// directory is gone too.
func ownGone(err error) error {
	if core.IsNotFound(err) {
		return core.ErrGone
	}
	return err
}

// opening is the round in progress, as ready lists it.
type opening struct {
	names []string
	zxid  int64 // with which the round opened; 0: none is in progress
}

// since returns the names that ready lists, or none if ready is older than czxid. Then
// it lists no node that was created at czxid or later: a node of a listed name is
// another one.
func (o opening) since(czxid int64) []string {
	if o.zxid < czxid {
		return nil
	}
	return o.names
}

// readReady reads the round in progress.
func (d *DoubleBarrier) readReady(ctx context.Context, s *core.Session) (opening, error) {
	data, stat, err := s.Backend().Get(ctx, d.ready, nil)
	if core.IsNotFound(err) {
		return opening{}, nil
	}
	if err != nil {
		return opening{}, err
	}
	return opening{strings.Fields(string(data)), stat.Czxid}, nil
}

// watchReady reports whether ready exists, and arms a watch on it.
func (m *entrant) watchReady(ctx context.Context) (bool, error) {
	m.ready.Stop()
	m.ready = backend.NewWatch()
	_, err := m.s.Backend().Exists(ctx, m.d.ready, m.ready)
	if core.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
