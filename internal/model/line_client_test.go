//go:build !race

package model

// This file is the client: watchTurn and watchOthers of line_wait.go, one request at
// a time. What is under "m.rules" is not there: those are the unsafe variants.

// top is the head of the loop of watchTurn.
func (m *lineModel) top(c *client, k int) {
	c.grants, c.aheadIsHead = false, false
	m.beforeList(c)
	if c.own.fired() || c.own == off && !c.known && !m.readers[k] && !m.rules.ownNever {
		c.pc = watches
	}
}

// beforeList forgets what has fired by now. Only what fires while the list is under
// way counts, for then the own watch stands.
func (m *lineModel) beforeList(c *client) {
	c.pc = lists
	if c.ahead.w.fired() {
		c.ahead = neighbour{}
	}
	if c.before.w.fired() && !m.rules.goneEarlier {
		c.before = neighbour{}
	}
}

// moves adds what k can do next by itself: its next request, or what it does about
// one of the watches that have fired.
func (m *lineModel) moves(s state, k int) {
	o := s
	c, v := &o.c[k], s.view(k)
	switch c.pc {
	case watches, lists, syncs, watchesFirst, arms, armsOwn:
		if !c.told() && !m.rules.asksSoon {
			return
		}
		c.seen = c.shown
	}
	switch c.pc {
	case looksUp: // adopt: Sync, the list, and the node
		switch c.shown, c.seen = s.n, s.n; {
		case !s.node[k].stands():
			*c = client{pc: ended} // and creates another: somebody who comes later
		case c.old && !m.rules.anyOwner:
			o.leave(k) // not of this session; likewise
		default:
			m.top(c, k)
		}
		m.step(k, didFind, o)

	case watches:
		m.beforeList(c)
		c.readOwn(v[k])
		m.step(k, didWatchOwn, o)

	case lists:
		m.list(c, k, v)
		m.step(k, didList, o)

	case syncs:
		if m.rules.noSync {
			m.top(c, k)
			m.step(k, didList, o)
			break
		}
		for c.shown < o.n {
			m.show(&o, k)
		}
		c.seen = c.shown
		c.own, c.pc = off, watches
		m.step(k, didSync, o)

	case listed:
		m.takeUp(c)
		m.step(k, didTakeUp, o)

	case watchesFirst:
		m.aim(c)
		c.readOwn(v[k])
		m.step(k, didWatchOwn, o)

	case arms:
		m.arm(c, k, v)
		m.step(k, didArm, o)

	case armsOwn:
		c.own, c.pc = armed, waits
		m.step(k, didWatchOwn, o)

	case waits:
		m.wait(s, k)

	case alone, atGrant:
		m.step(k, m.grant(&o, k), o)

	case holds: // watchNode
		switch c.own {
		case deletion:
			o.leave(k)
			m.step(k, didLose, o)
		case off, lookAgain:
			if m.rules.ownForgotten {
				break
			}
			c.own, c.seen = armed, c.shown
			if !v[k].stands() {
				o.leave(k)
			}
			m.step(k, didWatchOwn, o)
		}

	case leaves:
		// Its own deletion arrives, or the service removes the nodes of its
		// session.
		o.commit(deleted, k)
		o.c[k] = client{pc: ended}
		m.step(k, didDelete, o)
	}
	if c := &s.c[k]; (c.over && c.believes() || c.old) && c.alive() && s.node[k].stands() {
		// The service ends the session that the client did not look at.
		o := s
		o.commit(deleted, k)
		m.step(k, didDelete, o)
	}
}

// readOwn is watchOwn, with the own node as it is in the client's view.
func (c *client) readOwn(n node) {
	c.own, c.known, c.changed, c.readers = armed, true, false, 0
	if !n.stands() {
		*c = client{pc: ended} // and to the tail: somebody who comes later
	}
}

// list is what the client makes of the children of the directory.
func (m *lineModel) list(c *client, k int, v [most]node) {
	if !v[k].stands() {
		c.pc = syncs
		return
	}
	j := m.blocker(v, k, k)
	switch {
	case j < 0 && c.own == off:
		c.pc = alone // as this very reply has it
		return
	case j < 0:
		c.pc = atGrant
		return
	case c.try:
		*c = client{pc: leaves} // ErrLocked
		return
	}
	// The deletion of the node before is the grant if nobody is in the way of
	// that one, and if it cannot be a downgrade that goes on in the way of a
	// writer. Otherwise look ahead; but readers and writers list again anyway.
	further := m.blocker(v, k, j)
	plain := !m.shared() || m.rules.writerAhead
	c.near = at(j, v)
	c.grants = further < 0 && (plain || m.readers[k])
	if !c.grants && plain {
		c.far = at(further, v)
		c.aheadIsHead = m.rules.anyAhead || m.blocker(v, k, further) < 0
	}
	// A watch that stands can fire between the reply and the moment in which it is
	// looked at.
	c.pc = listed
	if c.before.w == off && c.ahead.w == off {
		m.takeUp(c)
	}
}

func at(j int, v [most]node) neighbour { return neighbour{node: int8(j) + 1, as: v[j]} }

// takeUp is the beginning of watchOthers.
func (m *lineModel) takeUp(c *client) {
	same := c.before.is(c.near)
	switch {
	case c.before.w == deletion && (same && c.grants ||
		same && m.rules.goneNotHead || c.grants && m.rules.goneOther):
		// The deletion came while the list was under way.
		c.pc, c.bare = atGrant, c.before.bare
		c.near, c.far = neighbour{}, neighbour{}
	case c.own == off && !c.known && !m.rules.ownNever:
		c.pc = watchesFirst
	default:
		m.aim(c)
	}
}

// aim says which watches are to be armed.
func (m *lineModel) aim(c *client) {
	c.first = c.own == off && !m.rules.ownNever && !m.rules.ownLate && !m.rules.ownAfter
	c.ahead.aim(c.far)
	c.before.aim(c.near)
	c.near, c.far = neighbour{}, neighbour{}
	c.pc = arms
	if !c.first && c.before.w != off && (c.ahead.node == 0 || c.ahead.w != off) {
		c.pc = waits // no request
	}
}

// is reports whether n is, or was, a watch on the node of o.
func (n neighbour) is(o neighbour) bool { return n.node == o.node && n.as == o.as }

// aim gives up a watch that is not the one wanted, or has fired.
func (n *neighbour) aim(at neighbour) {
	if !n.is(at) || n.w.fired() {
		*n = at
	}
}

// arm is Session.Arm, and how watchOthers goes on.
func (m *lineModel) arm(c *client, k int, v [most]node) {
	targets := 0
	once := func(wanted bool) bool {
		if wanted {
			targets++
		}
		return wanted && (targets == 1 || !m.rules.oneByOne)
	}
	if once(c.first && c.own == off) {
		c.own = armed
		if !v[k].stands() || c.changed && !m.rules.noSince {
			c.own = lookAgain
		}
		if !m.rules.noSince {
			c.changed = false // it will be read
		}
	}
	for _, n := range []*neighbour{&c.ahead, &c.before} {
		if !once(n.node > 0 && n.w == off) {
			continue
		}
		n.w = armed
		switch {
		case v[n.node-1] != n.as:
			if !m.rules.blind {
				n.w = lookAgain
			}
		case c.first && n.as == reader && c.readers&(1<<(n.node-1)) == 0:
			n.w = lookAgain // created after the own node
		}
	}
	if m.rules.oneByOne && targets > 1 {
		return
	}
	c.first, c.readers = false, 0
	c.pc = waits
	switch {
	case m.rules.ownAfter && c.own == off:
		c.pc = armsOwn
	case (m.rules.headKept || m.rules.notAgain) && (c.own == lookAgain || c.before.w == lookAgain || c.ahead.w == lookAgain):
		m.top(c, k) // that is of no reconnect
	}
}

// blocker returns the nearest before j that k waits for, or -1: a reader waits
// for writers only.
func (m *lineModel) blocker(v [most]node, k, j int) int {
	for j--; j >= 0; j-- {
		if v[j].stands() && !(m.readers[k] && m.reads(v[j], j)) {
			return j
		}
	}
	return -1
}

func (m *lineModel) reads(n node, j int) bool { return m.readers[j] || n == reader }
