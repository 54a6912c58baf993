//go:build !race

package model

// work adds the steps of a consumer on its way from a Take to an Ack.
func (m *slotModel) work(s *slotState, c int, free, slow, decide slotEmit) {
	t, view := &s.takers[c], s.view(c)
	next := *s
	n := &next.takers[c]
	switch t.at {
	case slotIdle:
		if m.names && c > 0 && s.takers[c-1] == (slotTaker{}) {
			return // of consumers that have done nothing yet, the first one asks
		}
		n.to(slotAsks)
		if m.rules.noFirstLook {
			n.to(slotSeeks)
		}
		decide("asks", c, next)
	case slotWorks:
		for i, it := range s.tree.items {
			if int(it) == itemMarked+c {
				next.tree.items[i] = itemNone
			}
		}
		n.to(slotIdle)
		m.changed(&next, "ack", c, true, touchItems)
		decide("acks", c, next)
		if i := s.tree.freeItem(); i >= 0 {
			both := next
			both.takers[c].to(slotWorks)
			both.tree.items[i] = itemMarked + uint8(c)
			decide("acks and claims", c, both)
		}
	case slotAsks:
		m.picks(n, view.freeItem(), slotGrabs, slotSeeks)
		free("lists the items", c, next)
	case slotGrabs:
		m.write(s, c, "claim", m.claim, slotGrabLost, slotAsks, free, decide)
	case slotSeeks:
		i := m.openSlot(view)
		if i >= 0 && m.yields(t) && view.line[0] != 0 {
			// Two such consumers can evict each other as long as the first of the line, which
			// takes the slot, does nothing. The pause before an eviction is there for it.
			n.to(slotJoins)
			slow("lists the slots, and leaves those that are free to the line", c, next)
			return
		}
		m.picks(n, i, slotTakes, slotJoins)
		if m.rules.handsOver && view.slotOf(c) >= 0 {
			n.to(slotLooks)
		}
		free("lists the slots", c, next)
	case slotJoins:
		m.write(s, c, "join", m.join, slotJoinLost, slotJoins, free, decide)
	case slotRanks:
		m.ranks(n, view, c, t.woken)
		free("lists the line", c, next)
	case slotPeeks:
		m.peeks(n, view, t.woken)
		free("lists the slots", c, next)
	case slotArms:
		m.arm(n, t.pick)
		free("watches", c, next)
	case slotTakes:
		refused := slotSeeks
		if t.lined {
			refused = slotRanks
		}
		m.write(s, c, "taking of a slot", m.take, slotTakeLost, refused, free, decide)
	case slotLooks:
		i := view.freeItem()
		if m.picks(n, i, slotClaims, slotHolds); i < 0 {
			switch {
			case m.rules.armsItems:
				n.to(slotArms)
				n.pick = slotWatchItems
			case !m.rules.noRearm || !t.woken:
				n.watch = slotWatchItems
			}
		}
		free("lists the items with a watch", c, next)
	case slotClaims:
		m.write(s, c, "claim with a slot", m.claim, slotClaimLost, slotLooks, free, decide)
	case slotGrabLost, slotJoinLost, slotTakeLost, slotClaimLost:
		if !m.rules.assumes {
			m.sync(&next, c)
		}
		m.settle(&next, c, t.at)
		free("finds out", c, next)
	}
}

// picks moves a consumer to found with the slot or item at i, or to missing if i is negative.
func (m *slotModel) picks(t *slotTaker, i int, found, missing slotAt) {
	if i < 0 {
		t.to(missing)
		return
	}
	t.to(found)
	t.pick = uint8(i)
}

// openSlot returns a free slot, or -1.
func (m *slotModel) openSlot(t *slotTree) int {
	if m.rules.manySlots {
		return t.freeSlot(slotSlots)
	}
	return t.freeSlot(m.k)
}

// ranks is the list of the waiters. Its watches are armed for every change after the list.
func (m *slotModel) ranks(t *slotTaker, view *slotTree, c int, woken bool) {
	i := view.rank(c)
	switch {
	case m.rules.handsOver && view.slotOf(c) >= 0:
		t.to(slotLooks)
		return
	case i < 0: // another consumer has deleted the waiter
		t.to(slotSeeks)
		return
	}
	t.to(slotPeeks)
	t.lined = true
	if i > 0 {
		t.pred = view.line[i-1]
	}
	armed := m.watches(t)
	if !m.rules.armsLine && !(m.rules.noRearm && woken) {
		t.watch = armed &^ slotWatchSlots
	}
	if m.rules.noPeek {
		t.watch = armed
		t.at = slotStands
	}
}

// watches returns the watches of a waiter.
func (m *slotModel) watches(t *slotTaker) (w uint8) {
	if !m.rules.noOwn {
		w |= slotWatchOwn
	}
	if t.pred > 0 && !m.rules.noPred {
		w |= slotWatchPred
	}
	if t.pred == 0 && !m.rules.noFirst {
		w |= slotWatchSlots
	}
	return w
}

// peeks is the list of the slots by a waiter.
func (m *slotModel) peeks(t *slotTaker, view *slotTree, woken bool) {
	i := m.openSlot(view)
	if (m.rules.firstPeeks || m.yields(t)) && t.pred != 0 {
		i = -1
	}
	switch {
	case i >= 0:
		lined := t.lined
		m.picks(t, i, slotTakes, slotTakes)
		t.lined = lined
	case woken:
		t.to(slotRanks)
	case m.rules.armsLine:
		pred, armed := t.pred, m.watches(t)
		t.to(slotArms)
		t.pred, t.pick, t.lined = pred, armed, true
	default:
		if t.watch != 0 || !m.rules.noRearm {
			t.watch = m.watches(t)
		}
		t.at = slotStands
	}
}

// arm arms watches on what was listed some time before.
func (m *slotModel) arm(t *slotTaker, watches uint8) {
	pred, at := t.pred, slotStands
	if watches == slotWatchItems {
		at = slotHolds
	}
	lined := t.lined
	t.to(at)
	t.watch, t.pred, t.lined = watches, pred, lined
}

// write adds the outcomes of a commit: it is answered, or its reply is lost, and it was
// applied or not.
func (m *slotModel) write(s *slotState, c int, kind string, apply func(*slotState, int) (slotTouch, bool), unsure, refused slotAt, free, decide slotEmit) {
	next := *s
	what, ok := apply(&next, c)
	if ok {
		m.changed(&next, kind, c, true, what)
		free("commits the "+kind, c, next)
	} else {
		next = *s
		if !m.rules.noSync {
			m.sync(&next, c)
		}
		next.takers[c].to(refused)
		free("is refused the "+kind, c, next)
	}
	if !m.lost {
		return
	}
	doubts := s.takers[c]
	doubts.to(unsure)
	doubts.pick = s.takers[c].pick
	next = *s
	next.takers[c] = doubts
	decide("loses the "+kind, c, next)
	if ok {
		next = *s
		what, _ := apply(&next, c)
		next.takers[c] = doubts
		m.changed(&next, kind, c, false, what)
		decide("loses the reply to the "+kind, c, next)
	}
}

// claim is the commit of slotGrabs and slotClaims.
func (m *slotModel) claim(s *slotState, c int) (slotTouch, bool) {
	t := &s.takers[c]
	i := t.pick
	slot := s.tree.slotOf(c)
	switch it := s.tree.items[i]; {
	case t.at == slotClaims && slot < 0 && !m.rules.keepsSlot:
		return 0, false
	case it == itemFree:
	case it == itemNone || !m.rules.noVersion:
		return 0, false
	default:
		s.fault = slotTwice
	}
	s.tree.items[i] = itemMarked + uint8(c)
	what := touchItems
	if slot >= 0 && !m.rules.keepsSlot {
		fill := t.fill
		what |= m.leaves(s, c)
		if m.rules.noFill {
			t.fill = fill
		}
	}
	t.to(slotWorks)
	return what, true
}

func (m *slotModel) join(s *slotState, c int) (slotTouch, bool) {
	if s.tree.rank(c) >= 0 {
		s.fault = slotSecond
		return 0, true
	}
	s.tree.line[lineLength(&s.tree)] = uint8(c + 1)
	s.takers[c].to(slotRanks)
	s.takers[c].lined = true
	return touchWaiter << c, true
}

func lineLength(t *slotTree) (n int) {
	for n < slotTakers && t.line[n] != 0 {
		n++
	}
	return n
}

func (m *slotModel) take(s *slotState, c int) (slotTouch, bool) {
	t := &s.takers[c]
	what := touchSlots
	switch {
	case s.tree.slots[t.pick] != 0, t.lined && s.tree.rank(c) < 0:
		return 0, false
	case s.tree.slotOf(c) >= 0 && !m.rules.keepsSlot:
		s.fault = slotSecond
	}
	if t.lined {
		s.tree.strike(c)
		what |= touchWaiter << c
	}
	s.tree.slots[t.pick] = uint8(c + 1)
	m.filled(s)
	if t.to(slotLooks); m.rules.noLook {
		t.to(slotHolds)
		t.watch = slotWatchItems
	}
	return what, true
}

// settle is the read that shows whether a commit was applied.
func (m *slotModel) settle(s *slotState, c int, at slotAt) {
	t := &s.takers[c]
	pick, lined := int(t.pick), t.lined
	mine := int(s.tree.items[min(pick, slotItems-1)]) == itemMarked+c && !m.rules.assumes
	switch {
	case at == slotGrabLost && mine:
		t.to(slotWorks)
	case at == slotGrabLost:
		t.to(slotAsks)
	case at == slotJoinLost && s.tree.rank(c) >= 0 && !m.rules.assumes:
		t.to(slotRanks)
		t.lined = true
	case at == slotJoinLost:
		t.to(slotJoins)
	case at == slotTakeLost && s.tree.slotOf(c) >= 0 && !m.rules.assumes:
		t.to(slotLooks)
	case at == slotTakeLost && lined:
		t.to(slotRanks)
		t.lined = true
	case at == slotTakeLost:
		t.to(slotSeeks)
	case at == slotClaimLost && mine:
		t.to(slotWorks)
		if !m.rules.noFill && !m.rules.keepsSlot {
			t.fill, t.tried = fillLists, 0
		}
	default:
		t.to(slotLooks)
	}
}
