//go:build !race

package model

// This file is the client: watchTurn and watchOthers of internal/line/wait.go, one request at a time.
// The branches under "m.rules" do not exist there: they are the unsafe variants.

// top is the start of the loop of watchTurn.
func (m *lineModel) top(c *client, k int) {
	c.grants, c.aheadIsHead = false, false
	m.beforeList(c)
	if c.own.fired() || c.own == off && !c.known && !m.readers[k] && !m.rules.ownNever {
		c.pc = watches
	}
}

// beforeList drops the events up to now. Only an event during the list counts, because then
// the own watch is armed.
func (m *lineModel) beforeList(c *client) {
	c.pc = lists
	if c.ahead.w.fired() {
		c.ahead = neighbour{}
	}
	if c.before.w.fired() && !m.rules.goneEarlier {
		c.before = neighbour{}
	}
}

// moves adds the next steps of k by itself: its next request, or the handling of one of the
// watches that have fired.
func (m *lineModel) moves(s state, k int) {
	o := s
	c, v := &o.c[k], s.view(k)
	switch c.pc {
	case watches, lists, syncs, watchesFirst, arms, armsOwn:
		if !c.isMarked() && !m.rules.asksSoon {
			return
		}
		c.seen = c.shown
	}
	switch c.pc {
	case looksUp: // adopt: Sync, the list, and the node
		switch c.shown, c.seen = s.n, s.n; {
		case !s.node[k].stands():
			*c = client{pc: ended} // and creates another node, which is a later client
		case c.old && !m.rules.anyOwner:
			o.leave(k) // a node of another session; likewise
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
		// The deletion of its own node arrives, or the service removes the nodes of its
		// session.
		o.commit(deleted, k)
		o.c[k] = client{pc: ended}
		m.step(k, didDelete, o)
	}
	if c := &s.c[k]; (c.over && c.believes() || c.old) && c.alive() && s.node[k].stands() {
		// The service ends a session whose loss the client has not seen.
		o := s
		o.commit(deleted, k)
		m.step(k, didDelete, o)
	}
}

// readOwn is watchOwn, with the own node as in the client's view.
func (c *client) readOwn(n node) {
	c.own, c.known, c.changed, c.readers = armed, true, false, 0
	if !n.stands() {
		*c = client{pc: ended} // and joins the tail, as a later client
	}
}

// list is how the client evaluates the children of the directory.
func (m *lineModel) list(c *client, k int, v [most]node) {
	if !v[k].stands() {
		c.pc = syncs
		return
	}
	j := m.blocker(v, k, k)
	switch {
	case j < 0 && c.own == off:
		c.pc = alone // by this reply
		return
	case j < 0:
		c.pc = atGrant
		return
	case c.try:
		*c = client{pc: leaves} // ErrLocked
		return
	}
	// The deletion of the predecessor is the grant if no earlier node conflicts with the
	// predecessor, and if it cannot be a downgrade that still conflicts with a writer.
	// Otherwise the client looks ahead; but readers and writers list again anyway.
	further := m.blocker(v, k, j)
	plain := !m.shared() || m.rules.writerAhead
	c.near = at(j, v)
	c.grants = further < 0 && (plain || m.readers[k])
	if !c.grants && plain {
		c.far = at(further, v)
		c.aheadIsHead = m.rules.anyAhead || m.blocker(v, k, further) < 0
	}
	// An armed watch can fire between the reply and its evaluation.
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
		// The deletion came during the list.
		c.pc, c.bare = atGrant, c.before.bare
		c.near, c.far = neighbour{}, neighbour{}
	case c.own == off && !c.known && !m.rules.ownNever:
		c.pc = watchesFirst
	default:
		m.aim(c)
	}
}

// aim decides which watches to arm.
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

// is reports whether n watches, or watched, the node of o.
func (n neighbour) is(o neighbour) bool { return n.node == o.node && n.as == o.as }

// aim drops a watch that has fired or is on another node.
func (n *neighbour) aim(at neighbour) {
	if !n.is(at) || n.w.fired() {
		*n = at
	}
}

// arm is Session.Arm and the continuation of watchOthers.
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
		m.top(c, k) // that is not caused by a reconnect
	}
}

// blocker returns the nearest node before j for which k waits, or -1: a reader waits for
// writers only.
func (m *lineModel) blocker(v [most]node, k, j int) int {
	for j--; j >= 0; j-- {
		if v[j].stands() && !(m.readers[k] && m.reads(v[j], j)) {
			return j
		}
	}
	return -1
}

func (m *lineModel) reads(n node, j int) bool { return m.readers[j] || n == reader }
