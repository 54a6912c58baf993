//go:build !race

package model

import (
	"fmt"
	"testing"
)

func (m *slotModel) explore(t *testing.T) Result[slotStep] {
	t.Helper()
	m.woken = make(map[string]int)
	return exploreAll(t, fmt.Sprintf("of slots, %v", m), Model[slotState, slotStep]{Next: m.next, Free: func(a slotStep) bool { return a.free }})
}

func (m *slotModel) String() string {
	s := fmt.Sprintf("%d slots, %d consumers, %d items, %d dead", m.k, m.n, m.items, m.deaths)
	for _, o := range []struct {
		on   bool
		name string
	}{{m.expires, "expiry"}, {m.lags > 0, "lag"}, {m.lost, "lost replies"}, {m.spurious, "reconnects"}, {m.apart, "a Take while its slot is free"}, {m.rules.noFirstLook, "no list of items without a slot"}, {m.rules.takesAgain, "slots taken again"}} {
		if o.on {
			s += ", " + o.name
		}
	}
	return s
}

// mustHold explores all of m, and fails on a bad state. For the trace to it the consumers keep their names.
func (m *slotModel) mustHold(t *testing.T) {
	t.Helper()
	r := m.explore(t)
	if r.Err != nil {
		m.names = true
		r = m.explore(t)
	}
	if r.Err != nil || !r.Full {
		t.Errorf("%v: full %t\n%v", m, r.Full, r)
	}
}

func TestWaitingWithSlotsIsNeverStalledByDeadConsumers(t *testing.T) {
	t.Parallel()
	bare := slotRules{noFirstLook: true}
	models := []slotModel{
		{k: 1, n: 2, items: 1, deaths: 1, expires: true, strict: true, lags: 2, lost: true, spurious: true},
		{k: 2, n: 3, items: 1, deaths: 1, lags: 1, rules: bare},
		{k: 2, n: 3, items: 1, deaths: 2, expires: true, strict: true, lost: true, spurious: true, apart: true, rules: bare},
		{k: 2, n: 4, items: 1, deaths: 3, lost: true, spurious: true, rules: bare},
		{k: 2, n: 4, items: 2, deaths: 2, expires: true, strict: true, rules: bare},
		{k: 3, n: 4, items: 1, deaths: 3, expires: true, strict: true, rules: bare},
	}
	if long() {
		models = append(models,
			slotModel{k: 1, n: 3, items: 1, deaths: 1, expires: true, strict: true, lags: 1, lost: true, spurious: true, rules: bare},
			slotModel{k: 2, n: 3, items: 1, deaths: 1, lags: 2, lost: true, rules: bare},
			// The bracket of rule 3 multiplies the states of such models, so these go without.
			slotModel{k: 2, n: 3, items: 1, deaths: 1, lags: 1, apart: true, rules: slotRules{takesAgain: true, noFirstLook: true}},
			slotModel{k: 2, n: 4, items: 1, deaths: 1, apart: true, rules: slotRules{takesAgain: true, noFirstLook: true}},
			slotModel{k: 2, n: 5, items: 1, deaths: 4, rules: bare},
			slotModel{k: 3, n: 5, items: 1, deaths: 3, expires: true, strict: true},
			slotModel{k: 3, n: 4, items: 2, deaths: 3, expires: true, strict: true, rules: bare},
		)
	}
	for _, m := range models {
		m.mustHold(t)
	}
}

// Some of what the rules say is not needed for their guarantee.
func TestWaitingWithSlotsHoldsWithoutThese(t *testing.T) {
	t.Parallel()
	usual := slotModel{k: 2, n: 4, items: 1, deaths: 2}
	for _, v := range []struct {
		name  string
		rules slotRules
		scope slotModel
	}{
		{"3: a consumer takes the slot again that it has vacated, only less fair", slotRules{takesAgain: true, noFirstLook: true},
			slotModel{k: 2, n: 3, items: 1, deaths: 2, expires: true, strict: true, apart: true}},
		{"3: the list after the part of rule 6, if no eviction is refused", slotRules{noAgain: true, noFirstLook: true},
			slotModel{k: 1, n: 3, items: 1, deaths: 1, expires: true, strict: true, apart: true}},
		{"6: one eviction at a time, only slower", slotRules{single: true, noFirstLook: true}, usual},
		{"6: a write to the node of a waiter instead of its deletion", slotRules{nudges: true, noFirstLook: true}, slotModel{k: 2, n: 4, items: 1, deaths: 1}},
		{"6: the watch on the own node, for the waiting alone", slotRules{noOwn: true, anyHerd: true, noFirstLook: true}, usual},
		{"7: while fewer than k consumers are dead, also when they expire", slotRules{noFirst: true, noPred: true, noFirstLook: true},
			slotModel{k: 2, n: 4, items: 1, deaths: 1, expires: true, strict: true}},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := v.scope
			m.rules = v.rules
			m.mustHold(t)
		})
	}
}

// Each rule is needed: without it a guarantee is violated in the way that the trace shows.
func TestWaitingWithSlotsWithoutOneOfTheRules(t *testing.T) {
	t.Parallel()
	one := slotModel{k: 1, n: 3, items: 1}
	dead := slotModel{k: 1, n: 2, items: 1, deaths: 1}
	behind := slotModel{k: 1, n: 3, items: 1, deaths: 1}
	expiry := slotModel{k: 1, n: 2, items: 1, deaths: 1, expires: true, strict: true}
	for _, v := range []struct {
		name  string
		rules slotRules
		scope slotModel
		fault error
		steps int
	}{
		{"1: a slot is given to the first waiter", slotRules{handsOver: true}, dead, errSlotCollects, 8},
		{"1: a slot under any name", slotRules{manySlots: true}, one, errSlotHerd, 8},
		{"2: no list of the items after a slot was taken", slotRules{noLook: true}, one, errStalled, 4},
		{"3: no list of the slots after the waiter was created", slotRules{noPeek: true}, one, errStalled, 11},
		{"3: only the first waiter lists the slots", slotRules{firstPeeks: true}, behind, errStalled, 16},
		{"4: a watch that has fired is not armed again", slotRules{noRearm: true}, one, errStalled, 14},
		{"4: the items are watched after they are listed", slotRules{armsItems: true}, one, errStalled, 6},
		{"4: the line and the slots are watched after they are listed", slotRules{armsLine: true}, one, errStalled, 15},
		{"5: a claim keeps its slot", slotRules{keepsSlot: true}, one, errStalled, 13},
		{"6: a consumer that claims does not see that its slot is taken", slotRules{noFill: true}, behind, errStalled, 17},
		{"6: a consumer that gives up does not", slotRules{noCancelFill: true}, behind, errStalled, 14},
		{"6: one eviction and no other", slotRules{oneRound: true}, slotModel{k: 1, n: 4, items: 1, deaths: 2}, errStalled, 20},
		{"6: a waiter does not watch its own node", slotRules{noOwn: true}, slotModel{k: 1, n: 4, items: 1, deaths: 1}, errSlotHerd, 21},
		{"7: the first waiter does not watch the slots", slotRules{noFirst: true}, expiry, errStalled, 11},
		{"7: a waiter does not watch the one before", slotRules{noPred: true}, slotModel{k: 1, n: 3, items: 1, deaths: 1, expires: true, strict: true}, errStalled, 15},
		{"8: a claim that goes with its session wakes no holder", slotRules{noMarks: true}, expiry, errStalled, 12},
		{"9: a claim carries no version", slotRules{noVersion: true}, slotModel{k: 2, n: 2, items: 1}, errSlotTwice, 11},
		{"10: no Sync after a commit that was refused", slotRules{noSync: true}, slotModel{k: 1, n: 2, items: 1, lags: 1}, ErrEndless, 3},
		{"11: a commit without a reply counts as not applied", slotRules{assumes: true}, slotModel{k: 1, n: 2, items: 1, lost: true}, errSlotSecond, 8},
		// What the rules do not promise.
		{"the holders and the first waiter are dead", slotRules{}, slotModel{k: 1, n: 3, items: 1, deaths: 2, expires: true, strict: true}, errStalled, 15},
		{"the first waiter, and the consumer that vacates a slot", slotRules{}, slotModel{k: 1, n: 3, items: 1, deaths: 2, strict: true}, errStalled, 15},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := v.scope
			m.rules, m.names = v.rules, true
			m.rules.noFirstLook = true
			mustViolate(t, m.explore(t), v.fault, v.steps)
		})
	}
}
