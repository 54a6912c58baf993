//go:build !race

package model

import (
	"fmt"
	"math/bits"
)

// again begins another round, or ends the member.
func again(c *dbMember) {
	rounds := c.rounds - 1
	*c = dbMember{pc: dbCreate, rounds: rounds}
	if rounds == 0 {
		c.pc = dbDone
	}
}

// pass lets i enter the round of names.
func (m *dbModel) pass(s *dbState, i int, names uint16) {
	c := &s.m[i]
	m.passed++
	if names&dbBit(c.own) == 0 {
		m.fail(s, fmt.Sprint("let in by a ready that does not name it: ", i))
	}
	*c = dbMember{pc: dbInside, own: c.own, names: names, rounds: c.rounds}
}

// decide adds the step that follows a listing.
func (m *dbModel) decide(s *dbState, c *dbMember, i int) {
	living := c.names & s.alive
	set := m.waiting(s, c.names)
	switch {
	case c.open && m.rules.anyReady, living&dbBit(c.own) != 0:
		m.pass(s, i, c.names)
	case c.open && living == 0 && !m.rules.neverClears:
		c.pc = dbClear
	case c.open && !m.next && living != 0:
		c.names = dbBit(dbLow(living))
		c.pc = dbJoin
	case c.open && !m.rules.watchReady && living != 0:
		c.names = dbBit(dbLow(living))
		c.pc = dbAhead
	case !c.open && bits.OnesCount16(set) >= m.n:
		for c.names = 0; bits.OnesCount16(c.names) < m.n; set &= set - 1 {
			c.names |= set & -set
		}
		c.pc = dbOpen
	default:
		c.names = 0
		c.pc = dbWait
	}
	c.fresh = c.fresh && (c.pc == dbOpen || c.pc == dbClear)
	c.open = false
}

// reply adds the other outcomes of a commit: the request is lost, or its reply is lost; then
// the member continues at pc.
func (m *dbModel) reply(before, applied dbState, i int, pc int8) {
	if before.replies == 0 {
		return
	}
	for _, o := range []dbState{before, applied} {
		o.replies--
		own := o.m[i].own
		if o.alive&dbBit(own) == 0 {
			own = 0
		}
		c := before.m[i]
		o.m[i].pc, o.m[i].own, o.m[i].rounds = pc, own, c.rounds
		if pc == dbLeave {
			o.m[i].names = c.names
		} else {
			o.m[i].names = 0
		}
		m.add(o)
	}
}

// step makes the next step of i, or reports that it has none.
func (m *dbModel) step(s *dbState, i int) bool {
	c := &s.m[i]
	switch c.pc {
	case dbCreate:
		if c.left != 0 && !m.rules.meetsGhost {
			return false // waits for the node that it has left
		}
		c.own = dbHigh(s.alive|s.names|m.mentioned(s)) + 1
		s.alive |= dbBit(c.own)
		c.pc = dbVersion
		if bits.OnesCount16(s.alive) < m.n {
			c.pc = dbFew
		}
	case dbFew:
		c.ready = semArmed
		c.pc = dbWait
		if s.ready {
			c.pc = dbVersion
		}
	case dbVersion:
		c.fresh, c.names, c.pc = true, 0, dbExists
	case dbExists:
		c.ready, c.open, c.pc = semArmed, s.ready, dbList
		if s.ready {
			c.pc = dbGet
		}
	case dbGet:
		c.names, c.pc = s.names, dbList
		if !s.ready {
			c.names, c.pc, c.open = 0, dbVersion, false
		}
	case dbList:
		m.decide(s, c, i)
	case dbOpen:
		before := *s
		if s.ready || !c.fresh || c.names&^s.alive != 0 && !m.rules.noChecks {
			c.names, c.fresh, c.pc = 0, false, dbVersion
			break
		}
		names := c.names
		switch {
		case names&^s.alive != 0:
			m.fail(s, "a round opens with a member that is missing")
		case names&s.ghosts != 0:
			m.fail(s, "a round opens with a member whose Enter has returned an error")
		case names&s.used != 0:
			m.fail(s, "a round opens with a member that was in another")
		}
		for j := range s.m {
			if o := &s.m[j]; bits.OnesCount16(names&(o.twins|o.left|dbBit(o.own))) > 1 {
				m.fail(s, "a round opens with a member that counts twice")
			}
		}
		s.used |= names
		s.bump()
		s.setReady(true, names)
		if names&dbBit(c.own) != 0 {
			m.pass(s, i, names)
		} else {
			c.names, c.pc = 0, dbVersion
		}
		m.reply(before, *s, i, dbVersion)
	case dbClear:
		before := *s
		if s.ready && (c.fresh || m.rules.ownVersion) {
			s.bump()
			s.setReady(false, 0)
		}
		c.fresh, c.names, c.pc = false, 0, dbVersion
		m.reply(before, *s, i, dbVersion)
	case dbJoin:
		if c.names&s.alive == 0 {
			c.names, c.pc = 0, dbVersion
			break
		}
		names, rounds, own := s.names, c.rounds, c.own
		if m.rules.keepsNode {
			s.used |= dbBit(own)
		} else {
			s.remove(dbBit(own))
			own = 0
		}
		*c = dbMember{pc: dbInside, own: own, names: names, rounds: rounds}
	case dbAhead:
		c.other, c.pc = dbLow(c.names), dbWait
		if c.names&s.alive == 0 {
			c.other, c.pc = 0, dbVersion
		}
		c.names = 0
	case dbWait:
		if c.ready != semAgain && !c.fired {
			return false
		}
		c.ready, c.fired, c.other, c.pc = semOff, false, 0, dbWoken
	case dbWoken:
		c.pc = dbVersion
		if s.ready && s.names&dbBit(c.own)&s.alive != 0 {
			m.pass(s, i, s.names)
		}
	case dbInside:
		c.pc = dbLeave
	case dbLeave:
		living := c.names & s.alive
		if m.rules.countAll {
			living = s.alive
		}
		own := dbBit(c.own) & s.alive
		if m.rules.keepsNode && own&c.names == 0 && own != 0 {
			s.remove(own)
			return true
		}
		switch {
		case living == 0:
			m.left++
			again(c)
		case living == own:
			c.pc = dbLast
		case living&-living == own:
			c.pc = dbHighest
		case own != 0:
			c.pc = dbDelete
		default:
			c.pc = dbLowest
		}
	case dbLast:
		before := *s
		s.remove(dbBit(c.own))
		if m.rules.twoSteps {
			c.own, c.pc = 0, dbReady
			break
		}
		s.setReady(false, 0)
		m.left++
		again(c)
		m.reply(before, *s, i, dbLeave)
	case dbReady:
		s.setReady(false, 0)
		again(c)
	case dbHighest, dbLowest:
		living := c.names & s.alive
		if m.rules.countAll {
			living = s.alive
		}
		c.pc = dbLeave
		if living &^= dbBit(c.own); living != 0 {
			c.fired, c.pc = false, dbLeaving
			if c.other = dbLow(living); s.alive&dbBit(c.own) != 0 {
				c.other = dbHigh(living)
			}
		}
	case dbDelete:
		before := *s
		s.remove(dbBit(c.own))
		c.own, c.pc = 0, dbLowest
		m.reply(before, *s, i, dbLeave)
	case dbLeaving:
		if !c.fired {
			return false
		}
		c.fired, c.pc = false, dbLeave
	default:
		return false
	}
	return true
}

// mentioned returns the names that a new node must not get.
func (m *dbModel) mentioned(s *dbState) (set uint16) {
	for i := range s.m {
		c := &s.m[i]
		set |= c.names | dbBit(c.own) | dbBit(c.other) | c.twins | c.left
	}
	return set
}

// faults adds the faults that can hit i.
func (m *dbModel) faults(s dbState, i int) {
	c := s.m[i]
	if s.cancels > 0 && c.pc == dbCreate && (c.left == 0 || m.rules.meetsGhost) {
		// Without contact Enter returns before it has heard of its node.
		o := s
		o.cancels--
		node := dbBit(dbHigh(s.alive|s.names|m.mentioned(&s)) + 1)
		o.alive |= node
		o.m[i] = dbMember{pc: dbCreate, rounds: c.rounds, left: c.left | c.twins | node}
		if m.rules.unheard {
			o.m[i].left &^= node
			o.ghosts |= node
		}
		m.add(o)
	}
	if c.pc == dbDone || c.pc == dbCreate && c.twins|c.left == 0 {
		return
	}
	// Its node exists until the service ends the session.
	if s.crashes > 0 {
		for _, back := range []bool{false, true} {
			o := s
			o.crashes--
			o.m[i] = dbMember{pc: dbDone}
			if back {
				o.m[i] = dbMember{pc: dbCreate, rounds: c.rounds} // a new process without any knowledge
			}
			m.add(o)
		}
	}
	if s.losses > 0 {
		o := s
		o.losses--
		switch {
		case c.pc < dbInside:
			o.m[i] = dbMember{pc: dbCreate, rounds: c.rounds, twins: c.twins | dbBit(c.own)&s.alive, left: c.left}
		case c.pc == dbInside:
			again(&o.m[i])
		default:
			o.m[i] = dbMember{pc: dbLeave, rounds: c.rounds, names: c.names}
		}
		m.add(o)
	}
	if s.cancels > 0 && c.pc < dbInside {
		// Without contact Enter returns before its node is deleted. The node is deleted with
		// the session, or over the next session.
		o := s
		o.cancels--
		nodes := (dbBit(c.own) | c.twins) & s.alive
		o.m[i] = dbMember{pc: dbCreate, rounds: c.rounds, left: c.left | nodes}
		if m.rules.returnsSoon {
			o.m[i].left, o.ghosts = 0, o.ghosts|nodes
			m.add(o)
		} else if s.losses > 0 {
			o.losses--
			m.add(o)
		}
	}
	if s.cancels > 0 && c.pc != dbInside {
		// It deletes its node alone, or, if it is the last of a round, together with ready.
		for _, alone := range []bool{true, false} {
			o := s
			o.cancels--
			own := dbBit(c.own) & s.alive
			if !alone && (!o.ready || own == 0 || o.names&o.alive != own) {
				continue
			}
			if !alone {
				o.setReady(false, 0)
			}
			o.remove(own)
			if c.pc > dbInside {
				again(&o.m[i])
			} else {
				o.m[i] = dbMember{pc: dbCreate, rounds: c.rounds, left: c.left | c.twins}
			}
			m.add(o)
		}
	}
}

// follow adds all states that can follow s.
func (m *dbModel) follow(s dbState) {
	moves := false
	for i := range s.m {
		o := s
		if m.step(&o, i) {
			moves = true
			m.add(o)
		}
		m.faults(s, i)
	}
	// The service ends the sessions of crashed members.
	orphans := s.alive
	for i := range s.m {
		orphans &^= dbBit(s.m[i].own)
	}
	for set := orphans; set != 0; set &= set - 1 {
		moves = true
		o := s
		o.remove(set & -set)
		m.add(o)
	}
	if moves {
		return
	}
	m.rest++
	for i := range s.m {
		switch c := s.m[i]; {
		case c.pc == dbLeaving:
			m.fail(&s, fmt.Sprint("a leaver is never woken: ", i))
		case c.pc == dbWait && (s.ready || bits.OnesCount16(m.waiting(&s, 0)) >= m.n):
			m.fail(&s, fmt.Sprint("an entrant is never woken: ", i))
		}
	}
}

// run explores all states, or stops at the first failure.
func (m *dbModel) run(start dbState) {
	m.seen = make(map[[4]uint64]struct{})
	m.add(start)
	for len(m.todo) > 0 && m.bad == "" {
		s := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		m.follow(s)
	}
}
