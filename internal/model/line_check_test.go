//go:build !race

package model

// fault is the error of a bad state.
type fault int8

// The guarantees. "Earlier" and "later" refer to the numbers of the nodes. Two clients
// conflict unless both are readers.
const (
	nothing fault = iota
	// When a client is granted, all earlier conflicting nodes are deleted at the service:
	// their owners released or gave up, or lost their sessions, or an outsider deleted them.
	// So grants come in the order of the numbers, among the existing nodes.
	notItsTurn
	// No grant follows from an event or a reply that the service sent after the client's own
	// node was deleted.
	noNode
	// Two conflicting clients never both believe that they hold. The exception is a client
	// whose node an outsider deleted, until it is notified.
	twoHolders
	// At rest, when no message is under way and no client can do anything by itself, each
	// waiter has an existing conflicting node before it.
	lostWake
	// At rest, no client waits whose node is deleted.
	waitsForNothing
	// At rest, no client without a node believes that it holds.
	notTold
	// A client whose own watch is armed knows the data of its node: a request to release is
	// written there.
	notRead
)

var faultNames = map[fault]string{
	notItsTurn:      "granted while an earlier node exists",
	noNode:          "granted without a node",
	twoHolders:      "two clients believe that they hold",
	lostWake:        "a client whose turn it is is never woken",
	waitsForNothing: "a client without a node waits for ever",
	notTold:         "a holder without a node is never notified",
	notRead:         "a change of its node's data is missed",
}

func (f fault) Error() string { return faultNames[f] }

// judge checks a grant for k at the moment when it is made.
func (m *lineModel) judge(s *state, k int) {
	c := &s.c[k]
	switch {
	case m.blocker(s.node, k, k) >= 0:
		s.bad = notItsTurn
	case c.bare:
		s.bad = noNode
	}
}

// wrong returns the error of s, which is at rest or not.
func (m *lineModel) wrong(s *state, rest bool) error {
	for k := range m.places {
		c := &s.c[k]
		for j := range k {
			d := &s.c[j]
			if c.believes() && d.believes() && !c.victim && !d.victim &&
				!(m.reads(s.node[j], j) && m.reads(s.node[k], k)) {
				return twoHolders
			}
		}
		if c.own == armed && c.changed {
			return notRead
		}
		if !rest {
			continue
		}
		switch {
		case c.pc == waits && !s.node[k].stands():
			return waitsForNothing
		case c.believes() && !s.node[k].stands():
			return notTold
		case c.pc == waits && m.blocker(s.node, k, k) < 0:
			return lostWake
		}
	}
	return nil
}
