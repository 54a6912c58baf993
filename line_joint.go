package coord

import (
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// A joint commit creates the nodes of one LockAll in several lines at once. If all of the
// locks are free, its reply grants them: one round trip. The following rules make this safe
// beside callers that acquire locks one by one in the order of their paths: nested Locks,
// earlier versions of this package, and LockAll itself where no joint commit is possible. Model
// checking (internal/model/lockall_test.go) found, for each rule left out, callers that wait
// for each other, a hold without a node, or a loss that is not noticed.
//
//   - The retreat: before the call waits for a line, it deletes its nodes in the later lines,
//     also those that its client has kept (keptLock) and that it has taken, and passes on its
//     local turns there. Then it goes on one by one. So a call that waits has nodes and
//     turns only up to the line that it waits for, as a caller that nests its locks has.
//   - The local turns (localQueue) are taken in path order, before the commit. The call waits
//     for the first of them only. A lock whose turn another caller has ends the joint commit
//     before it: a call that waits for a turn holds all the locks that it has places for.
//     So does a node that the previous holder has handed over: it is granted before the next
//     commit, since nothing watches it until then.
//   - A joint commit has neighbours of the path order only: a lock in between that it cannot
//     have, of another client for example, ends it.
//   - A joint commit whose outcome is unknown is looked up in all of its lines. If a node is
//     missing, or has the czxid of another commit, all of them are removed, and the call goes
//     on one by one. Each attempt has names of its own.
//   - A node is created in a line only when an earlier node of the client there is removed
//     (awaitCleanUps).
//   - When the last lock is granted, the call tests that no watch on a node of the set has
//     fired (Hold.isDoubted). A deletion of a granted node ends the call; of a node that
//     waits, it only makes the call take a new place there.

// joiner is a lock whose node a joint commit can create.
type joiner interface {
	line() *line
	// newRequest returns the request of Lock.
	newRequest() *request
	// begin checks a request and completes it.
	begin(ctx context.Context, r *request) error
	// takeTurn waits for the caller's turn in the process, if there are turns, and sets the
	// owner of the request.
	takeTurn(ctx context.Context, r *request) error
	// acquire acquires the lock for a caller that has the turn. If it fails, the turn is
	// passed on.
	acquire(ctx context.Context, r *request) (*Hold, error)
}

// joint is one of the locks that LockAll acquires together.
type joint struct {
	joiner
	l    *line
	r    *request
	turn bool // the caller has the turn
}

// enterTurn takes the caller's turn, unless the caller has it.
func (j *joint) enterTurn(ctx context.Context) error {
	if j.turn {
		return nil
	}
	err := j.takeTurn(ctx, j.r)
	j.turn = err == nil
	return err
}

// tryTurn takes the caller's turn if that is free, and does not queue for it.
func (j *joint) tryTurn(ctx context.Context) bool {
	j.r.try = true
	j.turn = j.takeTurn(ctx, j.r) == nil
	j.r.try = false
	return j.turn
}

// leavePlaces gives up the places of calls that have their turns, and passes the turns on. It does
// not depend on the context of the call.
func leavePlaces(list []joint) {
	var paths []string
	var live *session
	leave := func(s *session, path string) {
		if s.b.Err() == nil { // otherwise the node goes with the session
			live, paths = s, append(paths, path)
		}
	}
	for i := range list {
		j := &list[i]
		b := j.r.reserved
		j.r.reserved = reservedNode{}
		switch b.state {
		case reservedStands:
			leave(b.place.s, b.place.path)
		case reservedKept:
			b.kept.drop()
			leave(b.kept.s, b.kept.path)
		}
	}
	if live != nil {
		live.removeAllAndWait(paths)
	}
	for i := range list {
		j := &list[i]
		if q, ok := j.r.owner.(*localQueue); ok && j.turn {
			q.advance()
		}
		j.turn = false
	}
}

// enterTogether creates the nodes of the calls that have none, with a joint commit. If it
// fails, no node of it is left, or none that lasts, and each call takes a place by itself.
func enterTogether(ctx context.Context, all []joint) {
	list := slices.DeleteFunc(slices.Clone(all), func(j joint) bool { return j.r.reserved.state != noReserved })
	if len(list) < 2 {
		return
	}
	c := list[0].l.c
	for _, j := range list {
		if c.awaitCleanUps(ctx, j.l.dir, "") != nil {
			return
		}
	}
	s, err := c.session(ctx)
	if err != nil {
		return
	}
	nodes := s.createTogether(ctx, list)
	for i, n := range nodes {
		list[i].r.reserved = reservedNode{state: reservedStands, place: &place{s: s, node: n}}
	}
}

// mostJoint is how often the joint commit of a call is sent: a second time, if the client's
// knowledge of the directories was out of date, or if the first one was not applied.
const mostJoint = 2

// createTogether creates a node for each of the calls with a joint commit. It returns nil if
// that failed; then the nodes that it may have created are removed in the background, or go
// with the session.
func (s *session) createTogether(ctx context.Context, list []joint) []node {
	n := len(list)
	specs := make([]spec, n)
	states := make([]dirState, n)
	for range mostJoint {
		var unknown []int
		for i, j := range list {
			specs[i] = newSpec(s.c, j.l.recipeDir(), j.r.kind, j.r.data)
			known := false
			if states[i], known = s.c.knownState(specs[i].recipeDir); !known {
				unknown = append(unknown, i)
			}
		}
		if s.setDirStates(ctx, specs, states, unknown) != nil {
			return nil
		}
		nodes, err := s.commitTogether(ctx, specs, states)
		switch {
		case err == nil:
			return nodes
		case isUncertain(err):
			nodes, again := s.adoptTogether(ctx, err, specs)
			if !again {
				return nodes
			}
		case isNotFound(err), errors.Is(err, backend.ErrBadVersion), errors.Is(err, backend.ErrDenied):
			for i := range specs {
				s.c.forgetState(specs[i].dir)
				if errors.Is(err, backend.ErrBadVersion) && states[i].mark != nil && states[i].version == backend.AnyVersion {
					s.overwrite(ctx, specs[i].recipeDir, states[i])
				}
			}
		default:
			return nil
		}
	}
	return nil
}

// setDirStates sets the directory states of the specs with the indices unknown, which are in path order. It
// creates missing directories one after the other, so that the permissions of a path above two
// of them are those of the first one, as for callers that nest the locks.
func (s *session) setDirStates(ctx context.Context, specs []spec, states []dirState, unknown []int) error {
	if len(unknown) == 0 {
		return nil
	}
	missing := make([]bool, len(unknown))
	err := readAll(ctx, len(unknown), func(ctx context.Context, k int) (err error) {
		i := unknown[k]
		if states[i], err = s.dirState(ctx, specs[i].recipeDir); isNotFound(err) {
			missing[k], err = true, nil
		}
		return err
	})
	for k, i := range unknown {
		if err == nil && missing[k] {
			if err = s.makeDir(ctx, specs[i].recipeDir); err == nil {
				states[i], err = s.dirState(ctx, specs[i].recipeDir)
			}
		}
	}
	return err
}

// commitTogether sends one joint commit.
func (s *session) commitTogether(ctx context.Context, specs []spec, states []dirState) ([]node, error) {
	ops := make([]backend.Op, 0, 2*len(specs))
	for i := range specs {
		sp := &specs[i]
		ops = append(ops, backend.Create(sp.prefix, sp.data, backend.EphemeralSequential))
		if states[i].mark != nil {
			ops = append(ops, states[i].write(sp.dir))
		}
	}
	began := s.send()
	res, err := s.b.Commit(ctx, ops...)
	if err != nil {
		return nil, err
	}
	nodes := make([]node, len(specs))
	paths := make([]string, len(specs))
	k := 0
	for i := range specs {
		created := res[k]
		paths[i] = created.Path
		k++
		var dir *backend.Stat
		if states[i].mark != nil {
			dir = &res[k].Stat
			k++
			s.sent(began, dir)
		}
		n, merr := s.made(ctx, &specs[i], created, dir)
		if nodes[i] = n; merr == nil && s.left(n.seq) <= layout.LeftClose {
			merr = errDrained // the call must wait for the directory to be replaced
		}
		err = errors.Join(err, merr)
	}
	if err != nil {
		s.removeAllAndWait(paths)
		return nil, errGone
	}
	return nodes, nil
}

// adoptTogether looks up the nodes of a joint commit that failed with err, whose outcome is
// unknown. If the commit was not applied, it may be sent again, with other names. Otherwise
// adoptTogether returns the nodes, or nil if any of them was not found; then all of them are
// removed.
func (s *session) adoptTogether(ctx context.Context, err error, specs []spec) (nodes []node, again bool) {
	if ctx.Err() != nil || isOver(err) {
		s.removeAllAttemptsLater(specs)
		return nil, false
	}
	nodes = make([]node, len(specs))
	found := make([]bool, len(specs))
	if readAll(ctx, len(specs), func(ctx context.Context, i int) (err error) {
		nodes[i], found[i], err = s.adopt(ctx, &specs[i])
		return err
	}) != nil {
		s.removeAllAttemptsLater(specs)
		return nil, false
	}
	var paths []string
	whole := true
	for i := range nodes {
		if found[i] {
			paths = append(paths, nodes[i].path)
		}
		whole = whole && found[i] && nodes[i].czxid == nodes[0].czxid && s.left(nodes[i].seq) > layout.LeftClose
	}
	s.resolved(ctx, specs[0].prefix, len(paths) > 0)
	// The Stats that show whether the directories are the known ones were lost.
	if whole && readAll(ctx, len(specs), func(ctx context.Context, i int) error {
		if f, ok := s.c.knownState(specs[i].recipeDir); ok && f.mark == nil {
			return nil
		}
		_, err := s.examineAnew(ctx, specs[i].recipeDir, nodes[i].path, 0)
		return err
	}) == nil {
		return nodes, false
	}
	s.removeAllAndWait(paths)
	return nil, len(paths) == 0
}

// removeAllAttemptsLater is disown for nodes in several directories. It waits for the removals, see
// cleanUp.wait.
func (s *session) removeAllAttemptsLater(specs []spec) {
	all := make([]*cleanUp, len(specs))
	for i, sp := range specs {
		all[i] = s.removeAttemptsLater(sp)
		all[i].note(sp.dir)
	}
	s.waitForAll(all...)
}
