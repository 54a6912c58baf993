//go:build !race

package model

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func (m *lineModel) explore(t *testing.T) Result[action] {
	t.Helper()
	start := state{reconnects: m.reconnects, deletes: m.deletes, writes: m.writes, odd: m.odd}
	name := strings.ReplaceAll(strings.TrimPrefix(t.Name(), "Test"), "_", " ")
	return exploreAll(t, name, Model[state, action]{Start: start, Next: m.next, Free: func(a action) bool { return a.free }})
}

func TestTheLineKeepsItsGuarantees(t *testing.T) {
	t.Parallel()
	scopes := map[string]scope{
		"3 clients, and odd creations":    {places: 3, alive: 3, reconnects: 1, deletes: 1, odd: 1},
		"3 clients, and writes of data":   {places: 3, alive: 3, deletes: 1, writes: 1},
		"3 clients, a reconnect, 4 lives": {places: 4, alive: 3, reconnects: 1},
		"3 clients, an outsider, 4 lives": {places: 4, alive: 3, deletes: 1},
		"3 clients, 2 outsiders":          {places: 3, alive: 3, deletes: 2},
	}
	if long() {
		scopes["3 clients, and writes of data"] = scope{places: 3, alive: 3, reconnects: 1, deletes: 1, writes: 1}
		scopes["3 clients, everything"] = scope{places: 3, alive: 3, reconnects: 1, deletes: 1, writes: 1, odd: 1}
		scopes["3 clients, three outsiders, 2 reconnects"] = scope{places: 3, alive: 3, reconnects: 2, deletes: 3}
		scopes["4 clients"] = scope{places: 4, alive: 4, reconnects: 1, deletes: 1}
	}
	var count [dids]int
	for _, name := range slices.Sorted(maps.Keys(scopes)) {
		t.Run(name, func(t *testing.T) {
			m := &lineModel{scope: scopes[name]}
			mustHold(t, m.explore(t))
			for d, n := range m.count {
				count[d] += n
			}
		})
	}
	for d, n := range count {
		if n == 0 && did(d) != didDowngrade {
			t.Errorf("%q never happened: the model did not test it", didNames[d])
		}
	}
}

func TestReadersAndWritersKeepTheirGuarantees(t *testing.T) {
	t.Parallel()
	const w, r = false, true
	lines := map[string][most]bool{
		"WWW": {w, w, w}, "WWR": {w, w, r}, "WRW": {w, r, w}, "WRR": {w, r, r},
		"RWW": {r, w, w}, "RWR": {r, w, r}, "RRW": {r, r, w}, "RRR": {r, r, r},
	}
	var downgrades int
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		t.Run(name, func(t *testing.T) {
			m := &lineModel{scope: scope{places: 3, alive: 3, readers: lines[name], downgrades: true, reconnects: 1}}
			if long() {
				m.deletes, m.writes, m.odd = 1, 1, 1
			}
			mustHold(t, m.explore(t))
			downgrades += m.count[didDowngrade]
		})
	}
	if downgrades == 0 {
		t.Error("no client downgraded")
	}
}

// Each rule is needed: without it a guarantee is violated in the way that the trace shows. (A
// trace of another length is not a defect, but shows that the model has changed.)
func TestTheLineWithoutOneOfItsRules(t *testing.T) {
	t.Parallel()
	usual := scope{places: 3, alive: 3, reconnects: 1, deletes: 1}
	for _, v := range []struct {
		name  string
		rules rules
		scope scope
		fault error
		steps int
	}{
		{"no watch on the own node", rules{ownNever: true}, usual, waitsForNothing, 8},
		{"the own watch armed during the wait", rules{ownLate: true}, usual, noNode, 12},
		{"the own watch armed after the others, and no check of the node", rules{ownAfter: true}, usual, waitsForNothing, 9},
		{"the own watch not checked at the grant", rules{ownUnchecked: true}, usual, noNode, 12},
		{"the session not checked at the grant", rules{sessionUnchecked: true}, usual, twoHolders, 6},
		{"events handled in any order", rules{anyOrder: true}, usual, noNode, 13},
		{"any wake-up is the grant", rules{anyWake: true}, scope{places: 3, alive: 3, deletes: 1}, notItsTurn, 9},
		{"any event of the head is the grant", rules{anyKind: true}, usual, notItsTurn, 8},
		{"the deletion of any earlier node is the grant", rules{anyNode: true}, usual, notItsTurn, 9},
		{"a deletion of the head before the list is the grant", rules{goneEarlier: true}, usual, noNode, 16},
		{"a deletion during a list without that node as the head is the grant", rules{goneNotHead: true}, scope{places: 3, alive: 3, writes: 1}, notItsTurn, 15},
		{"a deletion during a list with another head is the grant", rules{goneOther: true}, scope{places: 3, alive: 3, deletes: 1, writes: 1}, notItsTurn, 14},
		{"no list after the deletion of any node ahead", rules{anyAhead: true}, scope{places: 4, alive: 3}, notItsTurn, 14},
		{"no list after any event of the node ahead", rules{aheadAnyKind: true}, usual, notItsTurn, 11},
		{"no list when a node to be watched is missing", rules{blind: true}, usual, lostWake, 8},
		{"a watch on the data of the predecessor", rules{dataWatch: true}, scope{places: 3, alive: 3, writes: 1}, notItsTurn, 8},
		{"a change of the own data before the watch is missed", rules{noSince: true}, scope{places: 2, alive: 2, writes: 1}, notRead, 6},
		{"no list after a reconnect, the head kept", rules{headKept: true}, usual, noNode, 15},
		{"no list after a reconnect, and no watch", rules{notAgain: true}, scope{places: 3, alive: 3, reconnects: 1}, lostWake, 11},
		{"a read before all watches fired after a reconnect", rules{asksSoon: true}, usual, noNode, 17},
		{"a node of the previous session mistaken for the own", rules{anyOwner: true}, scope{places: 3, alive: 3, odd: 1}, twoHolders, 8},
		{"a client that is not in the list lists again", rules{noSync: true}, scope{places: 2, alive: 2, deletes: 1, odd: 1}, ErrEndless, 2},
		{"a holder that does not watch its node", rules{ownForgotten: true}, scope{places: 2, alive: 2, deletes: 1}, notTold, 4},
		{"a writer granted by look-ahead", rules{writerAhead: true}, scope{places: 3, alive: 3, downgrades: true}, notItsTurn, 9},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := &lineModel{scope: v.scope, rules: v.rules}
			mustViolate(t, m.explore(t), v.fault, v.steps)
		})
	}
}

// Arm need not have one moment for all of its watches. On a service without setWatches they are
// armed by reads, in this order: the own watch, the one ahead, the one on the predecessor.
func TestTheWatchesMayBeArmedOneByOne(t *testing.T) {
	t.Parallel()
	m := &lineModel{scope: scope{places: 3, alive: 3, reconnects: 1, deletes: 1}, rules: rules{oneByOne: true}}
	if long() {
		m.odd = 1
	}
	mustHold(t, m.explore(t))
}
