//go:build !race

package model

import "errors"

var (
	errStalled      = errors.New("an item that can be taken stays while a consumer waits")
	errSlotTwice    = errors.New("two consumers have claimed one item")
	errSlotCollects = errors.New("a dead consumer comes to hold a slot")
	errSlotSecond   = errors.New("a consumer has a second node")
	errSlotLeft     = errors.New("a consumer that does not wait has left a node")
	errSlotHerd     = errors.New("more than k consumers watch the items, or more than one the slots")
)

// slotRules are the rules left out, by the numbers in queue_slots_state_test.go.
type slotRules struct {
	handsOver    bool // 1: a claim gives its slot to the first waiter
	manySlots    bool // 1: the number of slots is not limited
	noLook       bool // 2: a consumer that has taken a slot waits without listing the items
	noPeek       bool // 3: a waiter does not list the slots after it was created
	firstPeeks   bool // 3: only the first waiter lists them
	noRearm      bool // 4: what has fired is not armed again
	armsItems    bool // 4: the items are watched after they are listed
	armsLine     bool // 4: the line and the slots are watched after they are listed
	keepsSlot    bool // 5: a claim keeps its slot
	noFill       bool // 6: a consumer that claims does not see that its slot is taken
	noCancelFill bool // 6: a consumer that gives up does not
	oneRound     bool // 6: it evicts one waiter, and no other
	noOwn        bool // 6: a waiter does not watch its own node
	noFirst      bool // 7: the first waiter does not watch the slots
	noPred       bool // 7: a waiter does not watch the one before
	noMarks      bool // 8: a claim that goes with its session wakes no holder
	noVersion    bool // 9: a claim carries no version
	noSync       bool // 10: a consumer whose commit is refused lists again without a Sync
	assumes      bool // 11: a commit without a reply counts as not applied

	// Not unsafe.
	takesAgain  bool // 3: a consumer takes the slot again that it has vacated
	noAgain     bool // 3: a waiter that leaves free slots to others does not list again when its part of rule 6 is done
	nudges      bool // 6: a waiter is woken by a write to its node, and not evicted
	single      bool // 6: one waiter is evicted at a time
	anyHerd     bool // any number of consumers may watch the slots
	noFirstLook bool // a consumer lists the items only when it has a slot
}

type slotModel struct {
	k, n, items int
	deaths      int // at most
	expires     bool
	lags        int  // sessions whose servers lag behind at the same time, at most
	lost        bool // replies can be lost
	spurious    bool // consumers reconnect, so that all their watches fire
	names       bool // the consumers keep their names, for the trace
	rules       slotRules
	// If strict, only k dead holders excuse a stall. Otherwise a dead consumer that has
	// vacated a slot, which was not taken since, counts like a holder.
	strict bool
	apart  bool           // a consumer acks and asks again before no slot is free
	woken  map[string]int // most consumers woken by one commit, by its kind
}

func (m *slotModel) rename(s *slotState) slotState {
	if m.names {
		return *s
	}
	return s.renamed(m.n)
}

func (m *slotModel) next(s slotState, step func(slotStep, slotState)) error {
	if s.fault != slotSound {
		return s.fault.err()
	}
	rest := true
	free := func(what string, who int, next slotState) {
		rest = false
		step(slotStep{what, who, true}, m.rename(&next))
	}
	slow := func(what string, who int, next slotState) {
		rest = false
		step(slotStep{what, who, false}, m.rename(&next))
	}
	decide := func(what string, who int, next slotState) { step(slotStep{what, who, false}, m.rename(&next)) }
	for c := range m.n {
		m.stepOf(&s, c, free, slow, decide)
	}
	if i := s.tree.noItem(m.items); i >= 0 {
		next := s
		next.tree.items[i] = itemFree
		m.changed(&next, "put", -1, false, touchItems)
		decide("put", -1, next)
	}
	return m.check(&s, rest)
}

// check returns an error if s is bad. rest reports that no free step is possible.
func (m *slotModel) check(s *slotState, rest bool) error {
	watchers, first, waits, excused := 0, 0, false, 0
	for c := range m.n {
		t := &s.takers[c]
		held := s.tree.slotOf(c) >= 0
		switch {
		case t.fate == slotDead && (held || t.fill > 0 && !m.strict):
			excused++
		case t.fate == slotExpired && t.fill > 0 && !m.strict:
			excused++
		case t.fate != slotLives:
		case t.at > slotWorks:
			waits = true
		case held && !m.rules.keepsSlot, s.tree.rank(c) >= 0:
			return errSlotLeft
		}
		if t.fate == slotLives && t.watch&slotWatchItems != 0 {
			watchers++
		}
		if t.fate == slotLives && t.watch&slotWatchSlots != 0 {
			first++
		}
	}
	switch {
	case watchers > m.k, rest && first > 1 && !m.rules.anyHerd:
		return errSlotHerd
	case rest && waits && s.tree.freeItem() >= 0 && excused < m.k:
		return errStalled
	}
	return nil
}

// changed lets the watches fire for a commit of the consumer by, at once or when their
// session catches up. A commit that is answered lets its own session catch up.
func (m *slotModel) changed(s *slotState, kind string, by int, answered bool, what slotTouch) {
	count := 0
	for c := range m.n {
		if s.takers[c].hears(c, what) {
			count++
		}
		switch {
		case s.lagOf(c) == nil:
			m.fire(s, c, what)
		default:
			s.lagOf(c).touched |= what
			if c == by && answered {
				m.sync(s, c)
			}
		}
	}
	m.woken[kind] = max(m.woken[kind], count)
}

// sync lets the session of c see everything.
func (m *slotModel) sync(s *slotState, c int) {
	l := s.lagOf(c)
	if l == nil {
		return
	}
	what := l.touched
	s.drop(l)
	m.fire(s, c, what)
}

// hears reports whether a watch of c fires for what.
func (t *slotTaker) hears(c int, what slotTouch) bool {
	return t.watch&slotWatchItems != 0 && what&touchItems != 0 ||
		t.watch&slotWatchSlots != 0 && what&touchSlots != 0 ||
		t.watch&slotWatchOwn != 0 && what&((touchWaiter|touchData)<<c) != 0 ||
		t.watch&slotWatchPred != 0 && what&(touchWaiter<<(t.pred-1)) != 0
}

func (m *slotModel) fire(s *slotState, c int, what slotTouch) {
	if s.takers[c].hears(c, what) {
		m.wake(&s.takers[c])
	}
}

// wake lets a consumer look again. It arms all its watches again then.
func (m *slotModel) wake(t *slotTaker) {
	t.watch, t.pred = 0, 0
	switch t.at {
	case slotStands:
		t.at, t.woken = slotRanks, m.rules.noRearm
	case slotHolds:
		t.at, t.woken = slotLooks, m.rules.noRearm
	case slotPeeks:
		t.woken = true
	}
}

// leaves deletes the slot or the waiter of c. It returns what that touches.
func (m *slotModel) leaves(s *slotState, c int) slotTouch {
	t := &s.takers[c]
	var what slotTouch
	if i := s.tree.slotOf(c); i >= 0 {
		s.tree.slots[i] = 0
		what |= touchSlots
		t.fill, t.tried = fillLists, 0
		if heir := int(s.tree.line[0]) - 1; m.rules.handsOver && heir >= 0 {
			s.tree.slots[i] = uint8(heir + 1)
			s.tree.strike(heir)
			what |= touchWaiter << heir
			if s.takers[heir].fate != slotLives {
				s.fault = slotCollects
			}
		}
	}
	if s.tree.rank(c) >= 0 {
		s.tree.strike(c)
		what |= touchWaiter << c
	}
	return what
}

// to moves c to at.
func (t *slotTaker) to(at slotAt) {
	*t = slotTaker{at: at, watch: t.watch, pred: t.pred, lined: t.lined, fill: t.fill, tried: t.tried}
	switch at {
	case slotPeeks, slotStands, slotHolds:
	default:
		t.watch, t.pred = 0, 0
	}
	switch at {
	case slotRanks, slotPeeks, slotTakes, slotStands, slotTakeLost:
	default:
		t.lined = false
	}
}

type slotEmit func(what string, who int, next slotState)

// stepOf adds the steps of one consumer. slow is for a free step of which a cycle of free steps
// consists only if a consumer that can continue never does.
func (m *slotModel) stepOf(s *slotState, c int, free, slow, decide slotEmit) {
	t := &s.takers[c]
	switch {
	case t.fate == slotDead && m.expires:
		next := *s
		what := m.expire(&next, c)
		m.changed(&next, "expiry", -1, false, what)
		decide("expires", c, next)
		return
	case t.fate != slotLives:
		return
	}
	if t.fill > 0 {
		m.refill(s, c, free, decide)
	}
	if t.fill == 0 || m.apart || t.at > slotWorks {
		m.work(s, c, free, slow, decide)
	}
	switch {
	case s.lagOf(c) != nil:
		next := *s
		m.sync(&next, c)
		free("catches up", c, next)
	case m.lags > 0 && s.lags[m.lags-1].who == 0 && m.reads(t):
		next := *s
		*next.lagOf(-1) = slotLag{who: uint8(c + 1), tree: s.tree}
		decide("falls behind", c, next)
	}
	if m.spurious && t.watch != 0 {
		next := *s
		m.wake(&next.takers[c])
		decide("reconnects", c, next)
	}
	if t.at > slotWorks && t.at < slotGrabLost {
		next := *s
		what := m.leaves(&next, c)
		next.takers[c].to(slotIdle)
		if m.rules.noCancelFill {
			next.takers[c].fill = t.fill
		}
		if what != 0 {
			m.changed(&next, "cancel", c, true, what)
		}
		decide("gives up", c, next)
	}
	if int(s.deaths) < m.deaths && (t.fill > 0 || s.tree.has(c)) {
		next := *s
		next.deaths++
		d := slotTaker{fate: slotDead}
		if t.fill > 0 || t.at == slotClaimLost && s.tree.slotOf(c) < 0 {
			d.fill = fillLists
		}
		next.takers[c] = d
		if l := next.lagOf(c); l != nil {
			next.drop(l)
		}
		decide("dies", c, next)
	}
}

// reads reports whether it matters for a consumer that its server falls behind. A commit, or
// the Sync after it, ends that, and one that waits reads when it is woken.
func (m *slotModel) reads(t *slotTaker) bool {
	switch t.at {
	case slotAsks, slotSeeks, slotRanks, slotPeeks, slotLooks, slotArms:
		return true
	case slotStands, slotHolds:
		return m.spurious || t.fill > 0
	case slotGrabs, slotTakes, slotClaims:
		return m.rules.noSync || t.fill > 0
	}
	return t.fill > 0
}

func (m *slotModel) expire(s *slotState, c int) slotTouch {
	fill := s.takers[c].fill
	what := m.leaves(s, c)
	s.takers[c] = slotTaker{fate: slotExpired, fill: fill}
	for i, it := range s.tree.items {
		if int(it) == itemMarked+c {
			s.tree.items[i] = itemFree
			if !m.rules.noMarks {
				what |= touchItems
			}
		}
	}
	return what
}

// filled ends the excuse of the dead consumers that have vacated a slot.
func (m *slotModel) filled(s *slotState) {
	if s.tree.freeSlot(m.k) >= 0 {
		return
	}
	for c := range m.n {
		if s.takers[c].fate != slotLives {
			s.takers[c].fill = 0
		}
	}
}

// refill adds the steps of a consumer that has vacated a slot. It evicts one waiter or all of
// them, so the model covers every number between.
func (m *slotModel) refill(s *slotState, c int, free, decide slotEmit) {
	view := s.view(c)
	if s.takers[c].fill == fillLists {
		next := *s
		if view.freeSlot(m.k) < 0 {
			m.endFill(&next.takers[c])
			free("sees no free slot", c, next)
		} else {
			next.takers[c].fill = fillEvicts
			free("sees a free slot", c, next)
		}
		return
	}
	var names []int
	for _, w := range view.line {
		if w := int(w) - 1; w >= 0 && w != c && s.takers[c].tried&(1<<w) == 0 {
			names = append(names, w)
		}
	}
	if len(names) == 0 {
		next := *s
		m.endFill(&next.takers[c])
		free("sees no waiter", c, next)
		return
	}
	if m.lost {
		next := *s
		next.takers[c].fill = fillLists
		decide("loses the eviction", c, next)
	}
	m.evict(s, c, "eviction of a waiter", names[:1], free)
	if len(names) > 1 && !m.rules.single && !m.rules.oneRound {
		m.evict(s, c, "eviction of all waiters", names, free)
	}
}

// endFill is the end of what a consumer that has vacated a slot does. Its waiter lists again.
func (m *slotModel) endFill(t *slotTaker) {
	t.fill, t.tried = fillDone, 0
	if t.at == slotStands && !m.rules.takesAgain && !m.rules.noAgain {
		m.wake(t)
	}
}

// yields reports whether a consumer leaves free slots to those before it in the line.
func (m *slotModel) yields(t *slotTaker) bool { return t.fill != fillDone && !m.rules.takesAgain }

func (m *slotModel) evict(s *slotState, c int, kind string, names []int, free slotEmit) {
	next := *s
	t := &next.takers[c]
	if t.fill = fillLists; m.rules.oneRound {
		t.fill = 0
	}
	var what slotTouch
	for _, w := range names {
		switch {
		case s.missed(c)&(touchWaiter<<w) != 0: // a waiter of another name, if there is one
		case m.rules.nudges:
			t.tried |= 1 << w
			what |= touchData << w
		default:
			next.tree.strike(w)
			what |= touchWaiter << w
		}
	}
	if what == 0 {
		m.sync(&next, c)
		free("finds the waiters gone", c, next)
		return
	}
	m.changed(&next, kind, c, true, what)
	free("commits the "+kind, c, next)
}
