package core

import (
	"slices"

	"github.com/go-coord/coord/backend"
)

// Guard is coord.Guard.
type Guard struct {
	Checks []backend.Op
	kept   []*Hold // nil, or for each check the hold whose node can outlast it, or nil
}

// Guard returns the condition "this hold has not ended" for a transaction. A downgrade
// changes it.
func (h *Hold) Guard() Guard {
	g := Guard{Checks: []backend.Op{backend.Check(h.Path(), backend.AnyVersion)}}
	if h.keeper != nil {
		g.kept = []*Hold{h}
	}
	return g
}

// GuardAll returns the condition that all of the holds still stand.
func GuardAll(holds []*Hold) Guard {
	var all Guard
	for i, h := range holds {
		g := h.Guard()
		all.Checks = append(all.Checks, g.Checks...)
		if g.kept != nil && all.kept == nil {
			all.kept = make([]*Hold, len(holds))
		}
		if g.kept != nil {
			all.kept[i] = h
		}
	}
	return all
}

// And returns g with further conditions.
func (g Guard) And(checks ...backend.Op) Guard {
	g.Checks = append(slices.Clip(g.Checks), checks...)
	return g
}

// IsZero reports whether g checks nothing.
func (g Guard) IsZero() bool { return len(g.Checks) == 0 }

// Ops is Guard.Ops of package coord. After Ops, a Release deletes the node even if the client could keep it,
// since the caller can send the commit at any time.
func (g Guard) Ops() []backend.Op {
	ops := slices.Clone(g.Checks)
	for i, h := range g.kept {
		if h != nil && !h.expose() {
			// The node can still exist. It is ephemeral, so it never has a child.
			ops[i].Path += "/released"
		}
	}
	return ops
}

// Enter is called before a commit under g, and Leave after it. If a hold of g has ended and its node may
// still exist, Enter returns the same error as the service would if the node were gone.
func (g Guard) Enter() error {
	for i, h := range g.kept {
		if h != nil && !h.enterGuarded() {
			Guard{kept: g.kept[:i]}.Leave(nil)
			return &backend.Error{Op: "check", Path: g.Checks[i].Path, Err: backend.ErrNotFound}
		}
	}
	return nil
}

// Leave is called when a commit under g has ended with err.
func (g Guard) Leave(err error) {
	for _, h := range g.kept {
		if h != nil {
			h.leaveGuarded(err)
		}
	}
}

// enterGuarded is called before a commit under the guard of a hold whose node can outlast
// the hold. It reports false if the hold has ended: then the service would not refuse the
// commit.
func (h *Hold) enterGuarded() bool {
	h.checkLease()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.guarded++
	}
	return h.err == nil
}

// leaveGuarded is called when the commit has ended with err. If its outcome is unknown, it
// may be applied at any time.
func (h *Hold) leaveGuarded(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guarded--
	if backend.IsUncertain(err) {
		h.exposed = true
	}
}

// expose is called when the caller gets the operations of the guard. It reports false if the
// hold has ended.
func (h *Hold) expose() bool {
	h.checkLease()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.exposed = true
	}
	return h.err == nil
}

// IsGuarded reports whether a commit under the guard of h may still be applied. After the end of h,
// the result does not change from false to true.
func (h *Hold) IsGuarded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guarded > 0 || h.exposed
}
