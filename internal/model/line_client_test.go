package model

// This file is the client: watchTurn and hold of line.go, one request at a time.
// What is under "m.rules" is not in line.go: those are the unsafe variants.

// rules are what the variants break. Each is one rule of the comment of line, or
// of what it stands on.
type rules struct {
	// "the watch on the own node is armed, and the node found present, before
	// the directory is listed and before the predecessor is watched"
	ownNever bool // no watch on the own node
	ownLate  bool // it is armed while the wait goes on already
	ownLast  bool // it is armed, and the node found present, before the wait only
	// "at the grant the session, its lease and that watch are tested under one
	// lock, and events are marked in the order in which they came"
	ownUnchecked     bool
	sessionUnchecked bool
	anyOrder         bool
	// "only Deleted of a node known as head grants; every other wake-up lists"
	anyWake     bool // any event of a node before grants
	anyKind     bool // any event of a node known as head grants
	anyNode     bool // any deletion of the node before grants
	aheadIsHead bool // when the node ahead goes, the one before is taken for the head
	blind       bool // a node that is gone when it is to be watched is waited for
	dataWatch   bool // a watch that fires for data, taken for the deletion
	// "reconnection fires all watches with LookAgain, so afterwards nothing is
	// known until the directory was listed again"
	headKept bool // what is watched is watched again, and the head still known as head
	notAgain bool // no watch is armed again
	asksSoon bool // the next connection is used before all watches have fired
	// "A writer waits for the node before its own, and lists again whenever it
	// is woken"
	writerAhead bool
	// What stands in other comments.
	anyOwner     bool // a node is found by its name, whichever session made it
	ownForgotten bool // a holder does not watch its node
	noSync       bool // who does not find itself lists again, and does not look at its node
}

// top is the head of the loop of watchTurn.
func (m *lineModel) top(c *client) {
	c.grants = false
	c.pc = lists
	switch {
	case c.glance || c.own == armed || m.rules.ownNever:
	case m.rules.ownLate || m.rules.ownLast:
		c.own = off
	default:
		c.pc = watches
	}
}

// moves adds what k can do next by itself: its next request, or what it does about
// one of the watches that have fired.
func (m *lineModel) moves(s state, k int) {
	o := s
	c, v := &o.c[k], s.view(k)
	switch c.pc {
	case watches, lists, syncs, watchesAhead, watchesBefore:
		if !c.told() && !m.rules.asksSoon {
			return
		}
	}
	switch c.pc {
	case looksUp: // adopt: Sync, then the list
		switch c.shown = s.n; {
		case !s.node[k].stands():
			*c = client{pc: ended} // and creates another: somebody who comes later
		case c.old && !m.rules.anyOwner:
			o.leave(k) // not of this session; likewise
		default:
			m.top(c)
		}
		m.step(k, didFind, o)

	case watches: // watchOwn
		c.own, c.pc = armed, lists
		if !v[k].stands() {
			*c = client{pc: ended} // and to the tail: somebody who comes later
		}
		m.step(k, didWatchOwn, o)

	case lists:
		m.list(c, k, v)
		m.step(k, didList, o)

	case syncs:
		if m.rules.noSync {
			m.top(c)
			m.step(k, didList, o)
			break
		}
		for c.shown < o.n {
			m.show(&o, k)
		}
		c.own, c.glance, c.pc = off, false, watches
		m.step(k, didSync, o)

	case watchesAhead:
		if c.ahead.arm(v) || m.rules.blind {
			c.pc = watchesBefore
		} else {
			m.top(c)
		}
		m.step(k, didWatchAhead, o)

	case watchesBefore:
		if !c.before.arm(v) && !m.rules.blind {
			m.top(c)
		} else {
			c.pc = waits
		}
		if m.rules.ownLast && c.pc == waits && c.own != armed {
			c.own = armed
			if !v[k].stands() {
				*c = client{pc: ended}
			}
		}
		m.step(k, didWatchBefore, o)

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
			c.own = armed
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
	case c.glance:
		c.glance = false
		m.top(c)
		return
	}
	// The deletion of the node before is the grant if nobody is in the way of
	// that one, and if it cannot be a downgrade that goes on in the way of a
	// writer. Otherwise look ahead; but readers and writers list again anyway.
	further := m.blocker(v, k, j)
	plain := !m.shared() || m.rules.writerAhead
	c.grants = further < 0 && (plain || m.readers[k])
	c.before.aim(j, v[j])
	if c.grants || !plain {
		c.ahead = neighbour{}
		c.pc = watchesBefore
		return
	}
	c.ahead.aim(further, v[further])
	c.pc = watchesAhead
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

// aim says which node is to be watched. A watch on another one is given up.
func (n *neighbour) aim(j int, as node) {
	if n.node != int8(j)+1 || n.as != as || n.w != armed {
		*n = neighbour{node: int8(j) + 1, as: as}
	}
}

// arm arms the watch unless it stands. It reports false if the node is gone.
func (n *neighbour) arm(v [most]node) bool {
	switch {
	case n.w == armed:
	case v[n.node-1] == n.as:
		n.w = armed
	default:
		*n = neighbour{}
		return false
	}
	return true
}

// wait adds what the select can do: which of the watches that have fired it looks
// at first is free.
func (m *lineModel) wait(s state, k int) {
	c := &s.c[k]
	wake := func(a did, f func(c *client)) {
		o := s
		f(&o.c[k])
		m.step(k, a, o)
	}
	grant := func(n neighbour) func(*client) {
		return func(c *client) { c.pc, c.bare = atGrant, n.bare }
	}
	switch w := c.before.w; {
	case !w.fired(), m.rules.notAgain && w == lookAgain:
	case m.rules.anyWake,
		m.rules.anyKind && c.grants,
		m.rules.anyNode && w == deletion,
		c.grants && w == deletion:
		wake(didWakeBefore, grant(c.before))
	case m.rules.headKept && c.grants:
		if c.told() {
			wake(didWakeBefore, func(c *client) {
				v := s.view(k)
				if !c.before.arm(v) {
					c.pc, c.bare = atGrant, !v[k].stands()
				}
			})
		}
	default:
		wake(didWakeBefore, m.top)
	}
	switch w := c.ahead.w; {
	case !w.fired(), m.rules.notAgain && w == lookAgain:
	case m.rules.anyWake:
		wake(didWakeAhead, grant(c.ahead))
	case m.rules.aheadIsHead && w == deletion:
		wake(didWakeAhead, func(c *client) { c.ahead, c.grants = neighbour{}, true })
	default:
		wake(didWakeAhead, m.top)
	}
	switch {
	case m.rules.ownLate && c.own == off && c.told():
		wake(didWatchOwn, func(c *client) {
			c.own = armed
			if !s.view(k)[k].stands() {
				*c = client{pc: ended}
			}
		})
	case !c.own.fired(), m.rules.notAgain && c.own == lookAgain:
	case m.rules.headKept && c.grants && c.own == lookAgain:
		if c.told() {
			wake(didWatchOwn, func(c *client) {
				c.own = armed
				if !s.view(k)[k].stands() {
					*c = client{pc: ended}
				}
			})
		}
	default:
		wake(didWakeOwn, m.top)
	}
}

// grant is session.grant.
func (m *lineModel) grant(s *state, k int) did {
	c := &s.c[k]
	switch {
	case c.over && !m.rules.sessionUnchecked:
		s.leave(k)
		return didMeetLoss
	case m.rules.ownUnchecked, m.rules.headKept && c.own == lookAgain, !c.own.fired():
		m.judge(s, k)
		*c = client{pc: holds, shown: c.shown, own: c.own, victim: c.victim, over: c.over, old: c.old}
		return didGrant
	default: // errAgain
		m.top(c)
		return didRefuse
	}
}

// show delivers the next change to client k, as an event if a watch of it fires.
func (m *lineModel) show(s *state, k int) {
	c := &s.c[k]
	e := s.log[c.shown]
	c.shown++
	fire := func(w *watch, kind watch) {
		if *w != armed {
			return
		}
		*w = kind
		if m.rules.anyOrder {
			*w += lateDeletion - deletion
		}
	}
	bare := !s.view(k)[k].stands()
	if e.of() == k {
		switch e.what() {
		case written:
			fire(&c.own, lookAgain)
		case downgraded: // its own, and this is the reply
			c.pc, c.own = holds, off
		default:
			fire(&c.own, deletion)
		}
		return
	}
	for _, n := range []*neighbour{&c.before, &c.ahead} {
		if int(n.node)-1 != e.of() {
			continue
		}
		// It is the watch on the children, which changes of data do not fire.
		// The downgrade deletes the one node and makes the other.
		switch what := e.what(); {
		case what == written && m.rules.dataWatch,
			(what == deleted || what == downgraded) && n.as == present,
			what == deletedReader && n.as == reader:
			n.bare = n.w == armed && bare
			fire(&n.w, deletion)
		}
	}
}
