//go:build !race

package model

// fault is what is wrong with a state.
type fault int8

// What is promised. "Earlier" and "later" are by the numbers of the nodes. Two
// are in each other's way unless both are readers.
const (
	nothing fault = iota
	// When a client is granted, all earlier nodes that are in its way are gone
	// at the service: their owners released or gave up, or lost their sessions,
	// or an outsider deleted them. So grants come in the order of the numbers,
	// among those whose nodes stand.
	notItsTurn
	// Nobody is granted by an event or a reply that the service sent after the
	// client's own node was gone.
	noNode
	// Two who are in each other's way never both believe that they hold, but
	// for one whose node an outsider deleted, until it is told.
	twoHolders
	// At rest, when no message is under way and nobody has anything to do by
	// itself, whoever waits has somebody in its way, whose node is there.
	lostWake
	// Nor does one wait whose node is gone.
	waitsForNothing
	// Nor does one believe that it holds.
	notTold
	// Whose own watch stands knows the data of its node: a holder is asked there
	// to release.
	notRead
)

var faultNames = map[fault]string{
	notItsTurn:      "granted while an earlier node stands",
	noNode:          "granted without a node",
	twoHolders:      "two believe that they hold",
	lostWake:        "nobody wakes a client whose turn it is",
	waitsForNothing: "a client without a node waits for ever",
	notTold:         "a holder without a node is never told",
	notRead:         "a change of its node's data is missed",
}

func (f fault) Error() string { return faultNames[f] }

// judge looks at a grant for k in the moment in which it is made.
func (m *lineModel) judge(s *state, k int) {
	c := &s.c[k]
	switch {
	case m.blocker(s.node, k, k) >= 0:
		s.bad = notItsTurn
	case c.bare:
		s.bad = noNode
	}
}

// wrong says what is wrong with s, which is at rest or not.
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
