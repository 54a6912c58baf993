package coord

import (
	"context"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
)

// How a round opens and ends. In the recipe guide's way, with an empty ready node, a
// ready that survived a crash opens the next round, and a member that has died
// counts. These rules mend it. Without one of them a round opens too early, is
// destroyed while it lasts, or a member waits for ever: an exhaustive model in the
// tests shows it.
//
//   - ready carries the names of the round, the n lowest that stood there. It
//     lets in those and nobody else.
//   - It is made by one commit {check that each of them is there, bump the version
//     of the directory, create ready}.
//   - A call of Enter that comes anew after its session was lost keeps its GUID, and
//     two nodes with one GUID count as one: the service may not know yet that
//     the old session is over, and the member would make two.
//   - A call keeps its GUID, and a recreated directory of members restarts its sequence
//     numbers, so two nodes of one call can have the same name. A ready that is older
//     than the directory lists none of the nodes in it.
//   - If none of its names is there, it is stale: its round has died. Whoever
//     waits removes it by {check own node, bump the version of the directory,
//     delete ready}, with the version read before ready was. ready's own version
//     would not do, since that of every new ready is 0: the ready of a round that
//     has opened meanwhile would go.
//   - Who leaves counts the names of his own round, not what else stands there.
//   - The last of them goes by {delete own, delete ready}. In two steps, a next
//     round could open between them, and lose its ready.
//   - Who joins late does so by {check a member of the round, delete own, create a
//     node of another kind}, so that it is never counted for the next round.
//
// The version is that of path and not of path/members, where s.create counts
// siblings by setting the directory's data: there each entrant would bump it,
// and a commit of those who open or clean up be refused and sent again for each one
// that comes meanwhile. That would be slow, not wrong. In a directory of its own
// it changes with rounds alone, and members are created in one round trip.
//
// The directory is a container, and one that is made anew counts from 0 again. It
// cannot have been made anew between a read of the version and the commit, since the
// commit checks nodes that stood below it at the read, its own among them.

// round is what an entrant sees.
type round struct {
	data    []byte // of the directory
	version int32  // likewise
	open    bool   // ready is there
	names   []string
	living  []string // of names, lowest first
	waiting []string // members that no round has taken in, lowest first
	extra   int
}

// read reads all there is. The version of the directory comes first: if it still
// stands when something is committed, ready is the one that was read.
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
	r := sortMembers(names, list)
	r.data, r.version, r.open = data, stat.Version, open
	return r, nil
}

// ownGone turns the news that a directory is missing into what that means to a
// node in it.
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

// sortMembers tells the children of the directory of members apart.
func sortMembers(names, list []string) round {
	r := round{names: names}
	named := make(map[string]bool, len(names))
	for _, name := range names {
		named[name] = true
	}
	for _, name := range list {
		if !isOurs(name) {
			continue
		}
		if _, ok := parseSeq(name, extraKind); ok {
			r.extra++
		} else if _, ok := parseSeq(name, entrantKind); !ok {
			continue
		} else if named[name] {
			r.living = append(r.living, name)
		} else {
			r.waiting = append(r.waiting, name)
		}
	}
	slices.SortFunc(r.living, byNumber)
	slices.SortFunc(r.waiting, byNumber)
	// Of the nodes of one call the last is the one that lives.
	seen := make(map[string]bool, len(r.waiting))
	for i := len(r.waiting) - 1; i >= 0; i-- {
		guid := r.waiting[i][:len(guidPrefix)+guidLen]
		if seen[guid] {
			r.waiting = slices.Delete(r.waiting, i, i+1)
		}
		seen[guid] = true
	}
	return r
}

// byNumber orders the names of members by which came first.
func byNumber(a, b string) int {
	i, _ := parseSeq(a, entrantKind)
	j, _ := parseSeq(b, entrantKind)
	if i != j {
		return int(i - j)
	}
	return strings.Compare(a, b)
}

// watchReady reports whether there is a ready, and watches for the change of that.
func (m *entrant) watchReady(ctx context.Context) (bool, error) {
	m.ready.Stop()
	m.ready = backend.NewWatch()
	_, err := m.s.b.Exists(ctx, m.d.ready, m.ready)
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
