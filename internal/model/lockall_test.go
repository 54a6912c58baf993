//go:build !race

package model

import (
	"fmt"
	"testing"
)

// The exhaustive model of LockAll of package coord: internal/line/joint.go. Some callers acquire several
// lines with one commit, others take the lines one by one in path order. The order within a line
// is not the subject (see the model of the line): a node is granted when it is the first.
//
// A caller acquires its lines in segments. A segment is a run of lines that one commit can have;
// for a caller that nests its locks each line is a segment. Within a client, some lines have
// turns: only the caller with the turn has a node there (the local queue of a Mutex), and a
// client can keep such a node (MutexOptions.Keep).

// allRules are the rules that the variants break.
type allRules struct {
	noRetreat bool // a caller that is blocked keeps its nodes in the later lines
	turnsStay bool // it keeps the turns of the later lines
	keptStays bool // it keeps the kept nodes that it has taken in the later lines
	lookFirst bool // an uncertain commit is looked up in the first line only
	unmatched bool // nodes of any attempt, of any session, are taken for those of the latest one
	ghosts    bool // a node is created beside one of the caller that is still to be removed
	untested  bool // at completion the nodes of the granted lines are not tested
	goneWaits bool // the deletion of a node that waits is not noticed
	lastTurn  bool // local turns are taken in the reverse of the path order
	skips     bool // one commit has all lines that it can, not only neighbours
	turnWaits bool // the turn of each line is waited for, not only that of the first one
	idleDeaf  bool // an idle client does not give its kept node up
}

const (
	allLines   = 3
	allCallers = 3
	allNodes   = 5 // in a line at most
)

// allCall is what a caller does.
type allCall struct {
	wants  int8           // lines, a bit for each
	nested bool           // one by one
	group  [allLines]int8 // a commit has only lines of one group: a service, or the limits of one
	client int8
}

// allModel is a model of LockAll.
type allModel struct {
	rules allRules
	calls [allCallers]allCall // without wants: no caller
	turns int8                // the lines with local turns
	keeps int8                // the lines in which client 0 keeps a node at the start
	// The numbers of faults.
	lost, deletes, losses, giveUps int8
}

type allPC int8

const (
	allAway   allPC = iota
	allTurn         // takes the local turns of the segment
	allCommit       // is about to send the commit
	allLook         // looks its uncertain commit up, line by line
	allCheck        // goes through the lines of the segment
	allWait         // waits for a line; the retreat was made
	allHolds
	allOver
)

type allCaller struct {
	pc      allPC
	line    int8           // of allLook and allWait
	seg     int8           // the lines of the segment
	rest    int8           // the lines behind the segment
	have    int8           // the lines that are granted
	alone   int8           // of seg: the reply says that they are free
	taken   int8           // of seg: the lines whose kept node was taken
	turns   int8           // the lines whose turn it has
	found   int8           // of allLook
	attempt int8           // of the commits; a part of the name of a node
	at      [allLines]int8 // the attempt that has made the node of a line
	removes [allLines]int8 // the nodes of attempts up to this one are to be removed
	expires int8           // attempts up to this one belong to a session that is over
	void    int8           // the lines in which an outsider has deleted a node of the caller
	single  bool           // one by one
}

type allState struct {
	queue                          [allLines][allNodes]int8 // see node
	c                              [allCallers]allCaller
	idle                           int8 // the lines with an idle kept node of client 0
	lost, deletes, losses, giveUps int8 // left
	bad                            keepFault
}

const (
	allDeadlock = keepFault("callers wait for each other, and nobody holds")
	allLeft     = keepFault("a node, or a turn, of a call that is over")
	allNoNode   = keepFault("a granted line without a node at the head")
	allHoards   = keepFault("a call that waits for a turn has places that are not granted")
	allLost     = keepFault("a set is returned whose node is known to be deleted")
)

// The nodes of a line: of caller i and an attempt, or kept.
const allKept int8 = 100

func allNode(i, attempt int8) int8 { return 1 + i + allCallers*attempt }

func allOwner(n int8) (i, attempt int8) { return (n - 1) % allCallers, (n - 1) / allCallers }

type allAction struct {
	what string
	i, l int8
	free bool
}

func (a allAction) String() string {
	if a.l < 0 {
		return fmt.Sprintf("%c %s", 'A'+a.i, a.what)
	}
	return fmt.Sprintf("%c %s (line %d)", 'A'+a.i, a.what, a.l+1)
}

func (s *allState) add(l, n int8) {
	for j := range s.queue[l] {
		if s.queue[l][j] == 0 {
			s.queue[l][j] = n
			return
		}
	}
	panic("the line is full")
}

func (s *allState) delete(l, n int8) {
	q := &s.queue[l]
	for j := range q {
		if q[j] == n {
			copy(q[j:], q[j+1:])
			q[allNodes-1] = 0
			return
		}
	}
}

func (s *allState) has(l, n int8) bool {
	for _, m := range s.queue[l] {
		if m == n {
			return true
		}
	}
	return false
}

// own returns the node of caller i in line l: the kept one that it has taken, or that of its
// latest attempt, or with the variant that of any.
func (m *allModel) own(s *allState, i, l int8) int8 {
	c := &s.c[i]
	if c.taken&(1<<l) != 0 {
		return allKept
	}
	if m.rules.unmatched {
		for _, n := range s.queue[l] {
			if j, _ := allOwner(n); n > 0 && n < allKept && j == i {
				return n
			}
		}
	}
	return allNode(i, c.at[l])
}

func lowest(lines int8) int8 {
	for l := range int8(allLines) {
		if lines&(1<<l) != 0 {
			return l
		}
	}
	return -1
}

func highest(lines int8) int8 {
	h := int8(-1)
	for l := range int8(allLines) {
		if lines&(1<<l) != 0 {
			h = l
		}
	}
	return h
}

// above returns the lines behind l.
func above(lines, l int8) int8 { return lines &^ (1<<(l+1) - 1) }

// segment begins the next segment of the caller, or completes the call.
func (m *allModel) segment(s *allState, i int8) {
	c, call := &s.c[i], &m.calls[i]
	if c.rest == 0 {
		m.complete(s, i)
		return
	}
	first := lowest(c.rest)
	c.seg = 1 << first
	for l := first + 1; l < allLines && !call.nested && !c.single; l++ {
		if c.rest&(1<<l) == 0 {
			continue
		}
		if call.group[l] == call.group[first] {
			c.seg |= 1 << l
		} else if !m.rules.skips {
			break
		}
	}
	c.rest &^= c.seg
	c.pc = allTurn
}

func (m *allModel) complete(s *allState, i int8) {
	c := &s.c[i]
	missing := false
	for l := range int8(allLines) {
		missing = missing || c.have&(1<<l) != 0 && c.void&(1<<l) != 0
	}
	c.pc = allHolds
	switch {
	case !missing:
	case m.rules.untested:
		s.bad = allLost
	default:
		m.end(s, i)
	}
}

// end removes everything of the caller.
func (m *allModel) end(s *allState, i int8) {
	c := &s.c[i]
	for l := range int8(allLines) {
		for a := range c.attempt + 1 {
			s.delete(l, allNode(i, a))
		}
		if c.taken&(1<<l) != 0 {
			s.delete(l, allKept)
		}
	}
	*c = allCaller{pc: allOver}
}

// retreat gives up the lines of the segment behind l, and the caller continues one by one.
func (m *allModel) retreat(s *allState, i, l int8) {
	c := &s.c[i]
	later := above(c.seg, l)
	for j := range int8(allLines) {
		if later&(1<<j) == 0 {
			continue
		}
		switch {
		case c.taken&(1<<j) != 0 && m.rules.keptStays, c.taken&(1<<j) == 0 && m.rules.noRetreat:
			continue // the node stays, and is found later
		case c.taken&(1<<j) != 0:
			s.delete(j, allKept)
		default:
			c.removes[j] = c.at[j]
		}
		c.taken &^= 1 << j
		if !m.rules.turnsStay {
			c.turns &^= 1 << j
		}
	}
	if m.rules.noRetreat || m.rules.keptStays && c.taken&later != 0 {
		return // it waits for l with the rest of the segment
	}
	c.seg &^= later
	c.rest |= later
	c.alone &^= later
	c.single = true
}

func (m *allModel) next(s allState, step func(allAction, allState)) error {
	if s.bad != "" {
		return s.bad
	}
	rest := true
	do := func(free bool, o allState, i, l int8, what string) {
		rest = rest && !free
		m.judge(&o)
		step(allAction{what, i, l, free}, o)
	}
	for i := range int8(allCallers) {
		if m.calls[i].wants != 0 {
			m.caller(s, i, do)
			m.faults(s, i, do)
		}
	}
	for l := range int8(allLines) {
		if s.idle&(1<<l) == 0 {
			continue
		}
		switch {
		case !s.has(l, allKept):
			o := s
			o.idle &^= 1 << l
			do(true, o, 0, l, "the kept lock ends with its node")
		case s.queue[l][1] != 0 && !m.rules.idleDeaf:
			o := s
			o.idle &^= 1 << l
			o.delete(l, allKept)
			do(true, o, 0, l, "the idle client gives way")
		}
		if s.deletes > 0 && s.has(l, allKept) {
			o := s
			o.deletes--
			o.delete(l, allKept)
			do(false, o, 0, l, "an outsider deletes the kept node")
		}
	}
	if rest {
		return m.atRest(&s)
	}
	return nil
}

type allDo func(free bool, o allState, i, l int8, what string)

// isFree reports whether the turn of caller i in line l is free.
func (m *allModel) isFree(s *allState, i, l int8) bool {
	for j := range s.c {
		if int8(j) != i && m.calls[j].client == m.calls[i].client && s.c[j].turns&(1<<l) != 0 {
			return false
		}
	}
	return true
}

func (m *allModel) caller(s allState, i int8, do allDo) {
	o := s
	c := &o.c[i]
	// What the caller has given up is removed, whatever it does meanwhile.
	for l := range int8(allLines) {
		if c.removes[l] == 0 {
			continue
		}
		r := s
		for a := range c.removes[l] {
			r.delete(l, allNode(i, a+1))
		}
		r.c[i].removes[l] = 0
		do(true, r, i, l, "removes its earlier node")
	}
	switch c.pc {
	case allAway:
		c.rest = m.calls[i].wants
		m.segment(&o, i)
		do(false, o, i, -1, "begins")
	case allTurn:
		lines := c.seg & m.turns &^ c.turns
		if lines == 0 {
			c.pc = allCommit
			do(true, o, i, -1, "has its turns")
			return
		}
		l := lowest(lines)
		if m.rules.lastTurn {
			l = highest(lines)
		}
		if !m.isFree(&s, i, l) {
			if l > lowest(c.seg&^c.have) && !m.rules.turnWaits {
				later := above(c.seg, l-1)
				c.seg &^= later
				c.rest |= later
				c.pc = allCommit
				do(true, o, i, l, "leaves the line to its next segment")
			}
			return
		}
		c.turns |= 1 << l
		if m.calls[i].client == 0 && s.idle&(1<<l) != 0 && s.has(l, allKept) {
			o.idle &^= 1 << l
			c.taken |= 1 << l
		}
		do(true, o, i, l, "takes its turn")
	case allCommit:
		lines := c.seg &^ c.taken &^ c.have
		for l := range int8(allLines) {
			if lines&(1<<l) != 0 && c.removes[l] != 0 && !m.rules.ghosts {
				return // waits for its own clean-up
			}
		}
		c.attempt++
		c.pc, c.alone = allCheck, 0
		for l := range int8(allLines) {
			if lines&(1<<l) != 0 {
				c.at[l] = c.attempt
				o.add(l, allNode(i, c.attempt))
				if o.queue[l][1] == 0 {
					c.alone |= 1 << l
				}
			}
		}
		do(true, o, i, -1, "commits")
		if s.lost > 0 && lines != 0 {
			o.lost--
			c.pc, c.alone, c.found, c.line = allLook, 0, 0, lowest(lines)
			do(false, o, i, -1, "commits, and the reply is lost")
			o.c[i].pc = allLook
			n := s
			n.lost--
			n.c[i] = o.c[i]
			do(false, n, i, -1, "loses its commit")
		}
	case allLook:
		l, lines := c.line, c.seg&^c.taken&^c.have
		if s.has(l, m.own(&s, i, l)) {
			c.found |= 1 << l
		}
		later := above(lines, l)
		switch {
		case later != 0 && !m.rules.lookFirst:
			c.line = lowest(later)
		case c.found == lines || m.rules.lookFirst && c.found != 0:
			c.pc = allCheck
		default: // partial, or nothing: again
			for j := range int8(allLines) {
				if c.found&(1<<j) != 0 {
					c.removes[j] = c.at[j]
				}
			}
			c.pc = allCommit
		}
		do(true, o, i, l, "looks its commit up")
	case allCheck:
		l := lowest(c.seg &^ c.have)
		if l < 0 {
			m.segment(&o, i)
			do(true, o, i, -1, "has the lines of its segment")
			return
		}
		n := m.own(&s, i, l)
		switch {
		case c.alone&(1<<l) != 0, s.queue[l][0] == n:
			c.have |= 1 << l
			do(true, o, i, l, "is granted")
		case s.has(l, n):
			m.retreat(&o, i, l)
			c.pc, c.line = allWait, l
			do(true, o, i, l, "is blocked")
		default:
			m.again(&o, i, l)
			do(true, o, i, l, "finds its node deleted")
		}
	case allWait:
		n := m.own(&s, i, c.line)
		switch {
		case s.queue[c.line][0] == n:
			c.have |= 1 << c.line
			c.pc = allCheck
			do(true, o, i, c.line, "is granted")
		case !s.has(c.line, n) && !m.rules.goneWaits:
			m.again(&o, i, c.line)
			do(true, o, i, c.line, "finds its node deleted")
		}
	case allHolds:
		m.end(&o, i)
		do(false, o, i, -1, "releases")
	}
}

// again makes the node of line l again, after the retreat.
func (m *allModel) again(s *allState, i, l int8) {
	c := &s.c[i]
	m.retreat(s, i, l)
	c.taken &^= 1 << l
	c.seg |= 1 << l
	c.pc = allTurn
}

func (m *allModel) faults(s allState, i int8, do allDo) {
	c := s.c[i]
	if c.pc == allAway || c.pc == allOver {
		return
	}
	if s.deletes > 0 {
		for l := range int8(allLines) {
			n := m.own(&s, i, l)
			if !s.has(l, n) {
				continue
			}
			o := s
			o.deletes--
			o.delete(l, n)
			if c.have&(1<<l) != 0 || c.alone&(1<<l) != 0 {
				o.c[i].void |= 1 << l
			}
			do(false, o, i, l, "an outsider deletes the node")
		}
	}
	if s.losses > 0 && c.have == 0 && (c.pc == allLook || c.pc == allCheck || c.pc == allWait) && c.taken == 0 && m.keeps == 0 {
		// The nodes of the old session stay until the service ends it. The call continues with
		// the next session.
		o := s
		o.losses--
		x := &o.c[i]
		x.expires = c.attempt
		x.removes = [allLines]int8{}
		x.pc, x.alone, x.found = allCommit, 0, 0
		do(false, o, i, -1, "loses its session")
	}
	for l := range int8(allLines) {
		for a := int8(1); a <= c.expires; a++ {
			if s.has(l, allNode(i, a)) {
				o := s
				o.delete(l, allNode(i, a))
				do(true, o, i, l, "the service removes a node of the lost session")
			}
		}
	}
	if s.giveUps > 0 && c.pc != allHolds {
		o := s
		o.giveUps--
		m.end(&o, i)
		do(false, o, i, -1, "gives up")
	}
}

// judge checks the state after a step.
func (m *allModel) judge(s *allState) {
	for i := range s.c {
		c := &s.c[i]
		for l := range int8(allLines) {
			if s.bad == "" && c.have&^c.void&(1<<l) != 0 && s.queue[l][0] != m.own(s, int8(i), l) {
				s.bad = allNoNode
			}
		}
	}
}

// atRest returns the error of a state in which nobody does anything without a decision.
func (m *allModel) atRest(s *allState) error {
	holds, waits := false, false
	for i := range s.c {
		switch s.c[i].pc {
		case allHolds:
			holds = true
		case allAway, allOver:
		default:
			waits = true
		}
	}
	if waits && !holds {
		return allDeadlock
	}
	for i := range s.c {
		if c := &s.c[i]; c.pc == allTurn && c.turns&^c.have != 0 {
			return allHoards
		}
	}
	for l := range s.queue {
		for _, n := range s.queue[l] {
			if n > 0 && n < allKept {
				if i, _ := allOwner(n); s.c[i].pc == allOver {
					return allLeft
				}
			}
		}
	}
	return nil
}

func (m *allModel) explore(t *testing.T) Result[allAction] {
	t.Helper()
	start := allState{lost: m.lost, deletes: m.deletes, losses: m.losses, giveUps: m.giveUps, idle: m.keeps}
	for l := range int8(allLines) {
		if m.keeps&(1<<l) != 0 {
			start.add(l, allKept)
		}
	}
	return exploreAll(t, "of LockAll", Model[allState, allAction]{Start: start, Next: m.next, Free: func(a allAction) bool { return a.free }})
}

// The lines of a call.
const (
	line1  int8 = 1
	line2  int8 = 2
	line12      = line1 | line2
	line13      = line1 | 4
	line23      = line2 | 4
	lines3      = line12 | 4
)

func TestLockAllKeepsItsGuarantees(t *testing.T) {
	t.Parallel()
	nested := func(wants, client int8) allCall { return allCall{wants: wants, nested: true, client: client} }
	for name, m := range map[string]*allModel{
		"beside nested locks": {calls: [3]allCall{{wants: lines3}, {wants: lines3, client: 1}, nested(lines3, 2)},
			lost: 1, deletes: 1, giveUps: 1},
		"lost replies and sessions": {calls: [3]allCall{{wants: lines3}, nested(line12, 1)},
			lost: 2, deletes: 1, losses: 1},
		"lost sessions": {calls: [3]allCall{{wants: line12}, {wants: line12, client: 1}, nested(line12, 2)},
			lost: 1, losses: 1},
		"local turns": {calls: [3]allCall{{wants: lines3}, {wants: line23}, nested(lines3, 0)},
			turns: line23, lost: 1, deletes: 1, giveUps: 1},
		"local turns of several clients": {calls: [3]allCall{{wants: lines3}, nested(lines3, 0), nested(line12, 1)},
			turns: lines3, lost: 1, deletes: 1, giveUps: 1},
		"kept locks": {calls: [3]allCall{{wants: lines3}, nested(line23, 0), nested(lines3, 1)},
			turns: lines3, keeps: line23, lost: 1, deletes: 1, giveUps: 1},
		"several services": {calls: [3]allCall{{wants: lines3, group: [3]int8{0, 1, 0}}, {wants: lines3, client: 1}, nested(lines3, 2)},
			lost: 1, deletes: 1, giveUps: 1},
		"limits": {calls: [3]allCall{{wants: lines3, group: [3]int8{0, 0, 1}}, {wants: lines3, client: 1}, nested(line13, 2)},
			lost: 1, deletes: 1, giveUps: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if !long() { // else these have the most states
				m.lost = min(m.lost, 1)
				if m.calls[2].client == 2 {
					m.lost = 0
				}
				if m.keeps != 0 {
					m.giveUps = 0
				}
			}
			mustHold(t, m.explore(t))
		})
	}
}

// Each rule is needed: without it a guarantee is violated in the way that the trace shows.
func TestLockAllWithoutOneOfItsRules(t *testing.T) {
	t.Parallel()
	all := func(wants, client int8) allCall { return allCall{wants: wants, client: client} }
	nested := func(wants, client int8) allCall { return allCall{wants: wants, nested: true, client: client} }
	for _, v := range []struct {
		name  string
		rules allRules
		m     allModel
		fault error
	}{
		{"no retreat", allRules{noRetreat: true}, allModel{calls: [3]allCall{all(line12, 0), nested(line12, 1)}}, allDeadlock},
		{"the retreat keeps local turns", allRules{turnsStay: true}, allModel{calls: [3]allCall{all(line12, 0), nested(line12, 0)}, turns: line2}, allDeadlock},
		{"the retreat keeps kept locks", allRules{keptStays: true}, allModel{calls: [3]allCall{all(line12, 0), nested(line12, 1)}, turns: line12, keeps: line2}, allDeadlock},
		{"an uncertain commit is looked up in one line", allRules{lookFirst: true}, allModel{calls: [3]allCall{all(line12, 0)}, lost: 1, deletes: 1}, allDeadlock},
		{"the attempts are not matched", allRules{unmatched: true}, allModel{calls: [3]allCall{all(line12, 0)}, lost: 2, losses: 1}, allNoNode},
		{"a node beside one that is still to be removed", allRules{ghosts: true, unmatched: true}, allModel{calls: [3]allCall{all(line12, 0)}, lost: 2, deletes: 1}, allNoNode},
		{"the nodes are not tested at completion", allRules{untested: true}, allModel{calls: [3]allCall{all(line12, 0)}, deletes: 1}, allLost},
		{"the deletion of a node that waits is not noticed", allRules{goneWaits: true}, allModel{calls: [3]allCall{all(line12, 0), nested(line12, 1)}, deletes: 1}, allDeadlock},
		{"local turns in another order", allRules{lastTurn: true, turnWaits: true}, allModel{calls: [3]allCall{all(line12, 0), nested(line12, 0)}, turns: line12}, allDeadlock},
		{"the turn of each line is waited for", allRules{turnWaits: true}, allModel{calls: [3]allCall{all(lines3, 0), nested(4, 0), nested(line12, 1)}, turns: lines3, keeps: line2}, allHoards},
		{"lines that are no neighbours in one commit", allRules{skips: true}, allModel{calls: [3]allCall{{wants: lines3, group: [3]int8{0, 1, 0}}, nested(line23, 1)}}, allDeadlock},
		{"an idle client that ignores contention", allRules{idleDeaf: true}, allModel{calls: [3]allCall{{}, all(line12, 1)}, turns: line12, keeps: line2}, allDeadlock},
	} {
		t.Run(v.name, func(t *testing.T) {
			v.m.rules = v.rules
			mustViolate(t, v.m.explore(t), v.fault, 0)
		})
	}
}
