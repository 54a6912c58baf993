package line

import (
	"context"
	"slices"

	"github.com/go-coord/coord/internal/core"
)

// A joint commit creates the nodes of one LockAll in several lines at once. If all of the
// locks are free, its reply grants them, so LockAll costs one round trip. The following rules make this safe
// beside callers that acquire locks one by one in the order of their paths: nested Locks,
// earlier versions of this package, and LockAll itself where no joint commit is possible. Model
// checking (internal/model/lockall_test.go) found, for each rule left out, callers that wait
// for each other, a hold without a node, or a loss that is not noticed.
//
//   - The retreat: before the call waits for a line, it deletes its nodes in the later lines,
//     also nodes of kept locks (keptLock) that it has taken, and passes on its
//     local turns there. Then it acquires the later locks one by one. So a call that waits has nodes and
//     turns only up to the line that it waits for, as a caller that nests its locks has.
//   - The local turns (localQueue) are taken in path order, before the commit. The call waits
//     for the first of them only. If another caller has the turn of a later lock, the joint commit
//     ends before that lock: a call that waits for a turn holds all the locks that it has
//     places for. If the previous holder of the first lock has handed its node over, the joint
//     commit has that lock only: the node is granted before the next commit, since nothing
//     watches it until then.
//   - A joint commit has only locks that follow each other in path order: it ends before a lock
//     that it cannot have, of another client for example.
//   - A joint commit whose outcome is unknown is looked up in all of its lines. If a node is
//     missing, or has the czxid of another commit, all of them are removed, and the call acquires
//     the locks one by one. Each attempt has names of its own.
//   - A node is created in a line only when an earlier node of the client there is removed
//     (AwaitCleanUps).
//   - When the last lock is granted, the call tests that no watch on a node of the set has
//     fired (Hold.IsDoubted). If a granted node is deleted, the call ends. If a waiting node is
//     deleted, the call only takes a new place in that line.

// joint is one of the locks that LockAll acquires together.
type joint struct {
	joiner
	l    *Line
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

// leavePlaces removes the reserved nodes of the calls, and passes on the turns that they have. It does
// not depend on the context of LockAll.
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
// fails, its nodes are removed, and each call takes a place by itself.
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
	specs := make([]core.Spec, len(list))
	for i, j := range list {
		specs[i] = core.NewSpec(c, j.l.recipeDir(), j.r.kind, j.r.data)
	}
	for i, n := range s.CreateTogether(ctx, specs) {
		list[i].r.reserved = reservedNode{state: reservedStands, place: &place{s: s, Node: n}}
	}
}
