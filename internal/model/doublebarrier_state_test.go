//go:build !race

package model

import (
	"fmt"
	"math/bits"
	"slices"
)

// The exhaustive model of the double barrier's protocol: members that arrive, wait, open
// rounds, join them, leave, crash, lose sessions, give up and lose replies, in every order of
// their steps. Each step is one request to the service, with the decision that follows it.
// The names of nodes are bits; a lower bit is an earlier node.

const (
	dbCreate = iota
	dbFew    // fewer than n members: watches only ready
	dbVersion
	dbExists // ready, with a watch
	dbGet    // ready
	dbList
	dbOpen
	dbClear
	dbJoin
	dbAhead // arms the watch on a living member of the round
	dbWait
	dbWoken // reads ready
	dbInside
	dbLeave // lists
	dbLast
	dbReady // a last leaver in two steps
	dbHighest
	dbDelete
	dbLowest
	dbLeaving // waits for the deletion of another member's node
	dbDone
)

// dbMember is one client.
type dbMember struct {
	pc     int8
	own    int8   // its node, from 1; 0 for none
	fresh  bool   // the version of the directory that it has read is still current
	open   bool   // it has read a ready
	names  uint16 // names of the round, or of the round to open
	ready  int8   // its watch on ready: 0, armed or fired
	other  int8   // the node that it watches
	fired  bool
	twins  uint16 // nodes of lost sessions in the same call of Enter
	left   uint16 // nodes left by calls that gave up without contact
	rounds int8   // rounds left to make
}

const dbMembers = 3

type dbState struct {
	m       [dbMembers]dbMember
	alive   uint16
	used    uint16 // named by a round so far
	ghosts  uint16 // nodes of calls that gave up and have returned
	ready   bool
	names   uint16 // in ready
	crashes int8   // crashes left
	losses  int8
	cancels int8
	replies int8
}

// dbRules are the rules that a mutant breaks.
type dbRules struct {
	noChecks    bool // the commit that opens does not check the members
	ownVersion  bool // a stale ready is deleted by its own version
	twoSteps    bool // the last leaver deletes its node, and then ready
	countAll    bool // leave counts every child
	anyReady    bool // ready lets every member in
	countTwice  bool // two nodes of one call are two members
	keepsNode   bool // a member that joins keeps its node
	watchReady  bool // a member that waits for the next round watches only ready
	neverClears bool // a stale ready is never removed
	returnsSoon bool // Enter returns before its node is deleted, even with contact
	meetsGhost  bool // the next Enter does not wait for the node that the last one left
	unheard     bool // nor for a node that the last one has made without a reply
}

type dbModel struct {
	n      int
	next   bool // extras wait for the next round
	rules  dbRules
	seen   map[[4]uint64]struct{}
	todo   []dbState
	bad    string
	rest   int // states at rest
	passed int // steps into a round
	left   int // steps out of one
}

func (m *dbModel) fail(s *dbState, what string) {
	if m.bad == "" {
		m.bad = fmt.Sprintf("%s: %+v", what, *s)
	}
}

func dbBit(name int8) uint16 {
	if name == 0 {
		return 0
	}
	return 1 << (name - 1)
}

func dbLow(set uint16) int8  { return int8(bits.TrailingZeros16(set)) + 1 }
func dbHigh(set uint16) int8 { return int8(16 - bits.LeadingZeros16(set)) }

// remove deletes nodes.
func (s *dbState) remove(set uint16) {
	s.alive &^= set
	for i := range s.m {
		c := &s.m[i]
		if dbBit(c.other)&set != 0 {
			c.fired, c.other = true, 0
		}
		c.twins &^= set
		c.left &^= set
	}
	s.ghosts &^= set
}

func (s *dbState) setReady(is bool, names uint16) {
	s.ready, s.names = is, names
	for i := range s.m {
		if s.m[i].ready == semArmed {
			s.m[i].ready = semAgain
		}
	}
}

func (s *dbState) bump() {
	for i := range s.m {
		s.m[i].fresh = false
	}
}

// key is the state with renumbered names and ordered members: states that differ only in
// these are explored once.
func (s *dbState) key() [4]uint64 {
	// A name of a deleted node matters only to a member that is about to name it.
	s.names &= s.alive
	s.used &= s.alive
	s.ghosts &= s.alive
	refs := s.alive
	for i := range s.m {
		c := &s.m[i]
		if c.pc != dbOpen && c.pc != dbJoin && c.pc != dbAhead {
			c.names &= s.alive
		}
		refs |= c.names | dbBit(c.own) | dbBit(c.other) | c.twins | c.left
	}
	var number [17]int8
	n := int8(0)
	for name := int8(1); name <= 16; name++ {
		if refs&dbBit(name) != 0 {
			n++
			number[name] = n
		}
	}
	if n > 10 {
		panic("too many names")
	}
	anew := func(set uint16) (out uint16) {
		for ; set != 0; set &= set - 1 {
			out |= dbBit(number[dbLow(set)])
		}
		return out
	}
	s.alive, s.used, s.names, s.ghosts = anew(s.alive), anew(s.used), anew(s.names), anew(s.ghosts)
	flag := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	var packed [dbMembers]uint64
	for i := range s.m {
		c := &s.m[i]
		c.own, c.other, c.names, c.twins, c.left = number[c.own], number[c.other], anew(c.names), anew(c.twins), anew(c.left)
		p := uint64(c.pc)
		p = p<<4 | uint64(c.own)
		p = p<<4 | uint64(c.other)
		p = p<<10 | uint64(c.names)
		p = p<<10 | uint64(c.twins)
		p = p<<10 | uint64(c.left)
		p = p<<2 | uint64(c.ready)
		p = p<<3 | uint64(c.rounds)
		p = p<<3 | flag(c.fresh)<<2 | flag(c.open)<<1 | flag(c.fired)
		packed[i] = p
	}
	slices.Sort(packed[:])
	p := uint64(s.ghosts)<<30 | uint64(s.alive)<<20 | uint64(s.used)<<10 | uint64(s.names)
	p = p<<1 | flag(s.ready)
	for _, left := range []int8{s.crashes, s.losses, s.cancels, s.replies} {
		p = p<<3 | uint64(left)
	}
	return [4]uint64{packed[0], packed[1], packed[2], p}
}

func (m *dbModel) add(s dbState) {
	key := s.key()
	if _, ok := m.seen[key]; !ok {
		m.seen[key] = struct{}{}
		m.todo = append(m.todo, s)
	}
}

// waiting returns the members that are not in a round. Of several nodes of one call the last
// counts.
func (m *dbModel) waiting(s *dbState, names uint16) uint16 {
	set := s.alive &^ names
	if !m.rules.countTwice {
		for i := range s.m {
			c := &s.m[i]
			if c.own != 0 && s.alive&dbBit(c.own) != 0 {
				set &^= c.twins
			}
			if c.left != 0 { // of one call, since the next one waits for them
				set &^= c.left &^ dbBit(dbHigh(c.left))
			}
		}
	}
	return set
}
