package doublebarrier

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// Barrier is the engine of a DoubleBarrier: how a round opens and ends.
//
// In the recipe guide's version, ready is an empty node: a ready that survives a crash
// opens the next round, and a dead member counts. The rules below prevent that. Without
// any one of them a round opens too early, or is destroyed while it is in progress, or a
// member waits for ever: an exhaustive model in the tests shows it.
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
//     died. A waiter removes it by {check own node, bump the version of the directory,
//     delete ready}, with the version that it read before ready. The version of ready
//     itself would not do, since that of every new ready is 0: the commit would delete
//     the ready of a round that has opened meanwhile.
//   - A member that leaves counts the names of its own round, not the other nodes in
//     the directory.
//   - The last member leaves by {delete own node, delete ready}. In two steps, the
//     next round could open between them, and lose its ready.
//   - An extra joins by {check a member of the round, delete own node, create a node of
//     another kind}, so that it never counts for the next round.
//
// The version is that of path and not of path/members. Session.Create counts siblings by
// setting the data of path/members: each arrival would bump that version, and the service
// would refuse the commits of waiters that open a round or clean up, which would send
// them again for each arrival meanwhile. That would be slow, not wrong. The version of
// path changes with rounds alone, and members are created in one round trip.
//
// The directory is a container, and a recreated one counts from 0 again. It cannot
// have been recreated between a read of the version and the commit, since the commit
// checks nodes that existed below it at the read, the waiter's own among them.
type Barrier struct {
	c           *core.Client
	path        nodepath.Path
	members     string // the directory of members
	ready       string // the path of ready
	n           int    // the members of a round
	waitForNext bool
}

// New returns the double barrier at path for n members. With waitForNext, Enter waits for
// the next round while a round is in progress.
func New(c *core.Client, path string, n int, waitForNext bool) *Barrier {
	b := &Barrier{c: c, path: c.Path(path), n: n, waitForNext: waitForNext}
	b.members = b.path.Full() + "/members"
	b.ready = b.path.Full() + "/ready"
	return b
}

func (b *Barrier) recipeDir() kinds.RecipeDir {
	return kinds.NewRecipeDir(b.path.Full(), layout.KindDoubleBarrier)
}

func (b *Barrier) check(op string) error {
	if err := b.path.Check(op); err != nil {
		return err
	}
	// The commit that opens a round checks every member and lists their names.
	const name, overhead, rest = 64, 160, 10_000
	l := b.c.Rules().Limits()
	most := max(0, l.Bytes-rest-4*len(b.path.Full())) / (len(b.members) + 2*name + overhead)
	if l.Ops > 0 {
		most = min(most, l.Ops-2)
	}
	if l.Checks > 0 {
		most = min(most, l.Checks)
	}
	switch {
	case b.n < 1:
		return errs.Op(op, b.path.Full(), fmt.Errorf("%w: a double barrier of %d members, want at least 1", backend.ErrInvalid, b.n))
	case b.n > most:
		return errs.Op(op, b.path.Full(), fmt.Errorf("%w: a double barrier of %d members, one request of the service can carry %d", backend.ErrTooLarge, b.n, most))
	}
	return nil
}

// State is the number of members and extras at a barrier.
type State struct{ Waiting, Inside, Extra int }

// State reads the number of members and extras at the barrier.
func (b *Barrier) State(ctx context.Context) (State, error) {
	const op = "state"
	if err := b.check(op); err != nil {
		return State{}, err
	}
	st, err := core.OnSession(ctx, b.c, func(s *core.Session) (st State, err error) {
		if err := s.Backend().Sync(ctx, b.members); err != nil {
			return st, err
		}
		ready, err := b.readReady(ctx, s)
		if err != nil {
			return st, err
		}
		list, members, err := s.Backend().Children(ctx, b.members, nil)
		if err != nil && !errs.IsNotFound(err) {
			return st, err
		}
		at := layout.SortMembers(ready.namesSince(members.Czxid), list)
		return State{Waiting: len(at.Waiting), Inside: len(at.Inside), Extra: at.Extra}, nil
	})
	return st, errs.Op(op, b.path.Full(), err)
}

// round is the round in progress, as ready lists it.
type round struct {
	names []string
	zxid  int64 // with which the round opened; 0: none is in progress
}

// namesSince returns the names that ready lists, or none if ready is older than czxid. A node
// that was created at czxid or later is then another node, even if its name is listed.
func (r round) namesSince(czxid int64) []string {
	if r.zxid < czxid {
		return nil
	}
	return r.names
}

// readReady reads the round in progress.
func (b *Barrier) readReady(ctx context.Context, s *core.Session) (round, error) {
	data, stat, err := s.Backend().Get(ctx, b.ready, nil)
	if errs.IsNotFound(err) {
		return round{}, nil
	}
	if err != nil {
		return round{}, err
	}
	return round{strings.Fields(string(data)), stat.Czxid}, nil
}
