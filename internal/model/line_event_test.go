//go:build !race

package model

// This file is the client's handling of events: the select of watchOthers, the grant, and the
// marking of the watches.

// wait adds the steps of the select.
func (m *lineModel) wait(s state, k int) {
	c := &s.c[k]
	wake := func(a did, f func(c *client)) {
		o := s
		f(&o.c[k])
		m.step(k, a, o)
	}
	readOwn := func(c *client) { c.readOwn(s.view(k)[k]) }
	switch {
	case m.rules.ownLate && c.own == off:
		if c.isMarked() {
			wake(didWatchOwn, readOwn)
		}
	case m.rules.headKept && c.grants && (c.before.w == lookAgain || c.own == lookAgain):
		if !c.isMarked() {
			return
		}
		if c.before.w == lookAgain {
			wake(didWakeBefore, func(c *client) {
				v := s.view(k)
				c.before.w = armed
				if v[c.before.node-1] != c.before.as {
					c.pc, c.bare = atGrant, !v[k].stands()
				}
			})
		}
		if c.own == lookAgain {
			wake(didWakeOwn, readOwn)
		}
		return
	}
	fired := func(w watch) bool { return w.fired() && !(m.rules.notAgain && w == lookAgain) }
	before, ahead, own := fired(c.before.w), fired(c.ahead.w), fired(c.own)
	var why did
	switch {
	case before:
		why = didWakeBefore
	case ahead:
		why = didWakeAhead
	case own:
		why = didWakeOwn
	default:
		return
	}
	top := func(c *client) { m.top(c, k) }
	// The watches are checked one after the other. A watch that has fired by now may have
	// fired just after its check; then another one was the wake-up.
	if before && (ahead || own) {
		wake(why, top)
	}
	bare := false
	turned := c.aheadIsHead && (c.ahead.w == deletion || m.rules.aheadAnyKind && ahead)
	if turned {
		bare = c.ahead.bare
		ahead = false
	}
	head := c.grants || turned
	switch {
	case head && c.before.w == deletion,
		m.rules.anyWake && (before || ahead),
		m.rules.anyKind && head && before,
		m.rules.anyNode && c.before.w == deletion:
		wake(why, func(c *client) {
			c.pc, c.grants, c.aheadIsHead = atGrant, head, false
			c.bare = bare || before && c.before.bare || ahead && c.ahead.bare
			if turned {
				c.ahead = neighbour{}
			}
		})
	case before, ahead, own:
		wake(why, top)
	default:
		wake(didTurn, func(c *client) {
			c.ahead, c.grants, c.aheadIsHead = neighbour{}, true, false
		})
	}
}

// grant is Hold.Stand of internal/core.
func (m *lineModel) grant(s *state, k int) did {
	c := &s.c[k]
	switch {
	case c.over && !m.rules.sessionUnchecked:
		s.leave(k)
		return didMeetLoss
	case m.rules.ownUnchecked, m.rules.headKept && c.own == lookAgain, !c.own.fired():
		m.judge(s, k)
		*c = client{pc: holds, shown: c.shown, seen: c.seen, own: c.own, victim: c.victim, over: c.over, old: c.old}
		return didGrant
	default: // errAgain
		c.bare = false
		m.top(c, k)
		return didRefuse
	}
}

// show delivers the next change to client k, as an event if one of its watches fires.
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
			c.changed = c.changed || c.own == off && !c.believes()
			fire(&c.own, lookAgain)
		case downgraded: // its own downgrade, and this is the reply
			c.pc, c.own, c.seen = holds, off, c.shown
		default:
			fire(&c.own, deletion)
		}
		return
	}
	for _, n := range []*neighbour{&c.before, &c.ahead} {
		if int(n.node)-1 != e.of() {
			continue
		}
		// The watch is on the children, so changes of data do not fire it. The downgrade
		// deletes one node and creates the other.
		switch what := e.what(); {
		case what == written && m.rules.dataWatch,
			(what == deleted || what == downgraded) && n.as == present,
			what == deletedReader && n.as == reader:
			n.bare = n.w == armed && bare
			fire(&n.w, deletion)
		}
	}
}
