package line

import (
	"context"

	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// core.Hold.Release ends a hold, and then calls RemoveNode of its owner. A localQueue is the owner of the
// holds of a Mutex, and a Line of the holds of an RWMutex. The owners of terms and of shards call
// RemoveNode of their Line.
//
// localQueue.removeAndCall deletes the node of a hold if a local caller waits; otherwise it calls
// Line.RemoveNode. If a kept lock ends while it is idle, keptLock.run calls removeAndCall for its node. If a
// local caller cannot use the node of a kept lock, localQueue.resume removes it. If the service refuses the
// deletion of a node, core.Hold.Remove repeats it in the background.

// RemoveNode ends the turn of a holder. If it can, it keeps the holder's node for the next local caller.
func (q *localQueue) RemoveNode(h *core.Hold) error {
	if k, ok := h.Keeper().(*keptLock); ok && k.keepAt(h) {
		return nil
	}
	return q.removeAndCall(h)
}

// removeAndCall deletes the node of a hold that has ended. If a local caller waits, the same commit creates
// a node for it. If that caller has given up meanwhile, removeAndCall removes the new node and waits for the
// removal, see core.CleanUp.Wait.
func (q *localQueue) removeAndCall(h *core.Hold) error {
	w := q.call()
	if w == nil {
		err := q.l.RemoveNode(h)
		q.advance() // a caller may have come meanwhile
		return err
	}
	b, err := q.l.handOver(h, w.data)
	if !q.pass(w, b) {
		u := q.removeReserved(h.On(), b)
		u.Note(q.l.dir) // the next local caller waits for it
		q.advance()
		u.Wait(h.On(), q.l.dir)
	}
	return err
}

// handOver deletes the node of a hold and creates one for the next caller. Without a
// reserved node, that caller creates its own. The error is that of Hold.Remove.
func (l *Line) handOver(h *core.Hold, data []byte) (b reservedNode, err error) {
	s := h.On()
	own, _ := l.kinds.Parse(nodepath.Base(h.Path()))
	if contender.IsHighNumber(s, own.Seq) {
		return b, l.RemoveNode(h)
	}
	n, doubt, err := h.HandOver(l.recipeDir(), layout.LockInfix, data)
	switch {
	case n.Path != "":
		b = reservedNode{state: reservedStands, place: &place{s: s, Node: n}}
	case doubt != nil:
		b = reservedNode{state: reservedMayStand, spec: doubt}
	}
	return b, err
}

// removeReserved begins to remove a reserved node that no caller uses.
func (q *localQueue) removeReserved(s *core.Session, b reservedNode) *core.CleanUp {
	switch b.state {
	case reservedStands:
		return s.RemoveLater(b.place.Path)
	case reservedMayStand:
		return s.RemoveAttemptsLater(*b.spec)
	}
	return nil
}

// Lost passes on the turn of a holder whose hold ended early.
func (q *localQueue) Lost(h *core.Hold) {
	if k, ok := h.Keeper().(*keptLock); ok {
		k.finish()
	}
	q.advance()
}

// Leftovers returns no nodes: the node of a lost hold goes with its session, or was deleted.
func (q *localQueue) Leftovers(*core.Hold, error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	return
}

// RemoveNode deletes the node of a released hold. If the number of the node is high, the same commit deletes
// the directory, provided that it is otherwise empty, so that the numbers begin anew.
func (l *Line) RemoveNode(h *core.Hold) error {
	q, _ := l.kinds.Parse(nodepath.Base(h.Path()))
	if contender.IsHighNumber(h.On(), q.Seq) {
		_, err := h.RemoveWith(l.dir)
		return err
	}
	return h.Remove(nil)
}

// Lost does nothing: no local caller waits for the turn.
func (l *Line) Lost(*core.Hold) {}

// Leftovers returns no nodes, as localQueue.Leftovers.
func (l *Line) Leftovers(*core.Hold, error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	return
}
