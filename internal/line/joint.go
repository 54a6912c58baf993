package line

import (
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/parallel"

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
//     (AwaitCleanUps).
//   - When the last lock is granted, the call tests that no watch on a node of the set has
//     fired (Hold.IsDoubted). A deletion of a granted node ends the call; of a node that
//     waits, it only makes the call take a new place there.

// joint is one of the locks that LockAll acquires together.
type joint struct {
	joiner
	l    *Line
	r    *Request
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
	var live *core.Session
	leave := func(s *core.Session, path string) {
		if s.Backend().Err() == nil { // otherwise the node goes with the session
			live, paths = s, append(paths, path)
		}
	}
	for i := range list {
		j := &list[i]
		b := j.r.reserved
		j.r.reserved = reservedNode{}
		switch b.state {
		case reservedStands:
			leave(b.place.s, b.place.Path)
		case reservedKept:
			b.kept.drop()
			leave(b.kept.s, b.kept.Path)
		}
	}
	if live != nil {
		live.RemoveAllAndWait(paths)
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
		if c.AwaitCleanUps(ctx, j.l.dir, "") != nil {
			return
		}
	}
	s, err := c.Live(ctx)
	if err != nil {
		return
	}
	nodes := createTogether(ctx, s, list)
	for i, n := range nodes {
		list[i].r.reserved = reservedNode{state: reservedStands, place: &place{s: s, Node: n}}
	}
}

// mostJoint is how often the joint commit of a call is sent: a second time, if the client's
// knowledge of the directories was out of date, or if the first one was not applied.
const mostJoint = 2

// createTogether creates a node for each of the calls with a joint commit. It returns nil if
// that failed; then the nodes that it may have created are removed in the background, or go
// with the session.
func createTogether(ctx context.Context, s *core.Session, list []joint) []core.Node {
	n := len(list)
	specs := make([]core.Spec, n)
	states := make([]core.DirState, n)
	for range mostJoint {
		var unknown []int
		for i, j := range list {
			specs[i] = core.NewSpec(s.Client(), j.l.recipeDir(), j.r.kind, j.r.data)
			known := false
			if states[i], known = s.Client().KnownState(specs[i].RecipeDir); !known {
				unknown = append(unknown, i)
			}
		}
		if setDirStates(ctx, s, specs, states, unknown) != nil {
			return nil
		}
		nodes, err := commitTogether(ctx, s, specs, states)
		switch {
		case err == nil:
			return nodes
		case backend.IsUncertain(err):
			nodes, again := adoptTogether(ctx, s, err, specs)
			if !again {
				return nodes
			}
		case errs.IsNotFound(err), errors.Is(err, backend.ErrBadVersion), errs.Answers(err, backend.ErrDenied):
			for i := range specs {
				s.Client().ForgetState(specs[i].Dir)
				if errors.Is(err, backend.ErrBadVersion) && states[i].Mark != nil && states[i].Version == backend.AnyVersion {
					s.Overwrite(ctx, specs[i].RecipeDir, states[i])
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
func setDirStates(ctx context.Context, s *core.Session, specs []core.Spec, states []core.DirState, unknown []int) error {
	if len(unknown) == 0 {
		return nil
	}
	missing := make([]bool, len(unknown))
	err := parallel.Read(ctx, len(unknown), func(ctx context.Context, k int) (err error) {
		i := unknown[k]
		if states[i], err = s.DirState(ctx, specs[i].RecipeDir); errs.IsNotFound(err) {
			missing[k], err = true, nil
		}
		return err
	})
	for k, i := range unknown {
		if err == nil && missing[k] {
			if err = s.MakeDir(ctx, specs[i].RecipeDir); err == nil {
				states[i], err = s.DirState(ctx, specs[i].RecipeDir)
			}
		}
	}
	return err
}

// commitTogether sends one joint commit.
func commitTogether(ctx context.Context, s *core.Session, specs []core.Spec, states []core.DirState) ([]core.Node, error) {
	ops := make([]backend.Op, 0, 2*len(specs))
	for i := range specs {
		sp := &specs[i]
		ops = append(ops, backend.Create(sp.Prefix, sp.Data, backend.EphemeralSequential))
		if states[i].Mark != nil {
			ops = append(ops, states[i].Write(sp.Dir))
		}
	}
	began := s.Send()
	res, err := s.Backend().Commit(ctx, ops...)
	if err != nil {
		return nil, err
	}
	nodes := make([]core.Node, len(specs))
	paths := make([]string, len(specs))
	k := 0
	for i := range specs {
		created := res[k]
		paths[i] = created.Path
		k++
		var dir *backend.Stat
		if states[i].Mark != nil {
			dir = &res[k].Stat
			k++
			s.Sent(began, dir)
		}
		n, merr := s.Made(ctx, &specs[i], created, dir)
		if nodes[i] = n; merr == nil && contender.NumbersLeft(s, n.Seq) <= layout.LeftClose {
			merr = errs.ErrDrained // the call must wait for the directory to be replaced
		}
		err = errors.Join(err, merr)
	}
	if err != nil {
		s.RemoveAllAndWait(paths)
		return nil, errs.ErrGone
	}
	return nodes, nil
}

// adoptTogether looks up the nodes of a joint commit that failed with err, whose outcome is
// unknown. If the commit was not applied, it may be sent again, with other names. Otherwise
// adoptTogether returns the nodes, or nil if any of them was not found; then all of them are
// removed.
func adoptTogether(ctx context.Context, s *core.Session, err error, specs []core.Spec) (nodes []core.Node, again bool) {
	if ctx.Err() != nil || errs.IsOver(err) {
		removeAllAttemptsLater(s, specs)
		return nil, false
	}
	nodes = make([]core.Node, len(specs))
	found := make([]bool, len(specs))
	if parallel.Read(ctx, len(specs), func(ctx context.Context, i int) (err error) {
		nodes[i], found[i], err = s.Adopt(ctx, &specs[i])
		return err
	}) != nil {
		removeAllAttemptsLater(s, specs)
		return nil, false
	}
	var paths []string
	whole := true
	for i := range nodes {
		if found[i] {
			paths = append(paths, nodes[i].Path)
		}
		whole = whole && found[i] && nodes[i].Czxid == nodes[0].Czxid && contender.NumbersLeft(s, nodes[i].Seq) > layout.LeftClose
	}
	s.Resolved(ctx, specs[0].Prefix, len(paths) > 0)
	// The Stats that show whether the directories are the known ones were lost.
	if whole && parallel.Read(ctx, len(specs), func(ctx context.Context, i int) error {
		if f, ok := s.Client().KnownState(specs[i].RecipeDir); ok && f.Mark == nil {
			return nil
		}
		_, err := s.ExamineAnew(ctx, specs[i].RecipeDir, nodes[i].Path, 0)
		return err
	}) == nil {
		return nodes, false
	}
	s.RemoveAllAndWait(paths)
	return nil, len(paths) == 0
}

// removeAllAttemptsLater is RemoveAttemptsLater for nodes in several directories. It waits for the removals, see
// core.CleanUp.Wait.
func removeAllAttemptsLater(s *core.Session, specs []core.Spec) {
	all := make([]*core.CleanUp, len(specs))
	for i, sp := range specs {
		all[i] = s.RemoveAttemptsLater(sp)
		all[i].Note(sp.Dir)
	}
	s.WaitForAll(all...)
}
