package coord

import (
	"context"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

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
//   - A call of Enter that starts anew after its session was lost keeps its GUID, and
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
	data, stat, err := m.s.b.Get(ctx, m.d.path.full, nil)
	if err != nil {
		return round{}, ownGone(err)
	}
	var names []string
	opened := int64(0)
	open, err := m.watchReady(ctx)
	if err == nil && open {
		names, opened, err = m.d.readReady(ctx, m.s)
		if err == nil && opened == 0 {
			err = errAgain
		}
	}
	if err != nil {
		return round{}, err
	}
	list, members, err := m.s.b.Children(ctx, m.d.members, nil)
	if err != nil {
		return round{}, ownGone(err)
	}
	if opened < members.Czxid {
		names = nil
	}
	return round{data: data, version: stat.Version, open: open, names: names, Entrants: layout.SortMembers(names, list)}, nil
}

// ownGone turns the error of a missing directory into errGone: a node in that
// directory is gone too.
func ownGone(err error) error {
	if isNotFound(err) {
		return errGone
	}
	return err
}

// readReady returns the names of the round in progress, and the zxid with which it
// opened, or 0 if there is none.
func (d *DoubleBarrier) readReady(ctx context.Context, s *session) (names []string, opened int64, err error) {
	data, stat, err := s.b.Get(ctx, d.ready, nil)
	if isNotFound(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return strings.Fields(string(data)), stat.Czxid, nil
}

// watchReady reports whether ready exists, and arms a watch on it.
func (m *entrant) watchReady(ctx context.Context) (bool, error) {
	m.ready.Stop()
	m.ready = backend.NewWatch()
	_, err := m.s.b.Exists(ctx, m.d.ready, m.ready)
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
