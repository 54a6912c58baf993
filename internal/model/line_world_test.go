//go:build !race

package model

import "fmt"

// scope limits the events of a model.
type scope struct {
	places     int        // places taken in total
	alive      int        // clients at a time
	readers    [most]bool // the readers among the clients
	downgrades bool
	reconnects int8
	deletes    int8 // by outsiders
	writes     int8 // of data, by outsiders
	// Creations whose reply is lost, or does not show which other clients are there, or by a
	// client that only tries.
	odd int8
}

type lineModel struct {
	scope
	rules rules
	out   func(action, state)
	still bool // no client has made a free step yet
	count [dids]int
}

func (m *lineModel) shared() bool { return m.downgrades || m.readers != [most]bool{} }

// did is the kind of a step.
type did int8

const (
	didCreate did = iota
	didCreateBlind
	didCreateLost
	didTry
	didFind
	didWatchOwn
	didList
	didSync
	didTakeUp
	didArm
	didWakeBefore
	didWakeAhead
	didTurn
	didWakeOwn
	didGrant
	didRefuse
	didMeetLoss
	didRelease
	didDowngrade
	didGiveUp
	didLoseSession
	didLose
	didDelete
	didShow
	didMark
	didReconnect
	didOutsideDelete
	didOutsideWrite
	dids
)

var didNames = [dids]string{
	didCreate:        "creates its node",
	didCreateBlind:   "creates its node, and does not learn which others are there",
	didCreateLost:    "creates its node, and the reply is lost",
	didTry:           "creates its node, to look once",
	didFind:          "looks for its node",
	didWatchOwn:      "watches its own node",
	didList:          "lists the line",
	didSync:          "syncs",
	didTakeUp:        "evaluates the list",
	didArm:           "arms its watches",
	didWakeBefore:    "is woken by its predecessor",
	didWakeAhead:     "is woken by the node ahead",
	didTurn:          "learns from the node ahead that its predecessor is the head now",
	didWakeOwn:       "is woken by its own node",
	didGrant:         "is granted",
	didRefuse:        "is not granted, because its own watch has fired",
	didMeetLoss:      "is not granted, because its session is lost",
	didRelease:       "releases, or loses its session",
	didDowngrade:     "downgrades",
	didGiveUp:        "gives up, or loses its session",
	didLoseSession:   "loses its session",
	didLose:          "learns that its node is deleted",
	didDelete:        "has its node deleted, by itself or with its session",
	didShow:          "is shown",
	didMark:          "marks a watch",
	didReconnect:     "reconnects",
	didOutsideDelete: "has its node deleted by an outsider",
	didOutsideWrite:  "has its node written by an outsider",
}

// action is one step and its result.
type action struct {
	who    int8
	did    did
	change change // the change that was shown
	to     client
	free   bool // no decision or fault: a request, a message, or the client's handling of one
}

func (a action) String() string {
	s := fmt.Sprintf("%d %s", a.who, didNames[a.did])
	if a.did == didShow {
		s += fmt.Sprint(" the ", a.change)
	}
	switch a.to.pc {
	case holds:
		s += "; holds"
	case waits:
		s += "; waits"
		if a.to.before.node > 0 {
			s += fmt.Sprint(" for node ", a.to.before.node-1)
		}
		switch {
		case a.to.grants:
			s += ", the head"
		case a.to.aheadIsHead:
			s += ", behind the head"
		}
	case syncs:
		s += "; does not find itself"
	case atGrant, alone:
		s += "; it is its turn"
	case ended, leaves:
		s += "; leaves"
	}
	return s
}

// step adds a free step of client k.
func (m *lineModel) step(k int, d did, s state) {
	m.still = false
	m.add(action{who: int8(k), did: d, to: s.c[k], free: true}, s)
}

// may adds a step that need not happen.
func (m *lineModel) may(k int, d did, s state) {
	m.add(action{who: int8(k), did: d, to: s.c[k]}, s)
}

func (m *lineModel) add(a action, s state) {
	m.count[a.did]++
	m.tidy(&s)
	m.out(a, s)
}

// next adds all steps that can follow s, and returns the error of s.
func (m *lineModel) next(s state, step func(action, state)) error {
	if s.bad != nothing {
		return s.bad
	}
	m.out, m.still = step, true
	for k := range m.places {
		m.moves(s, k)
		m.deliver(s, k)
	}
	rest := m.still
	for k := range m.places {
		m.user(s, k)
		m.faults(s, k)
	}
	m.arrive(s)
	return m.wrong(&s, rest)
}

// deliver adds the next message to client k.
func (m *lineModel) deliver(s state, k int) {
	c := &s.c[k]
	if !c.alive() {
		return
	}
	for i := range 3 {
		o := s
		w := [3]*watch{&o.c[k].own, &o.c[k].before.w, &o.c[k].ahead.w}[i]
		switch *w {
		case broken:
			*w = lookAgain
		case lateLookAgain, lateDeletion:
			*w -= lateDeletion - deletion
		default:
			continue
		}
		m.step(k, didMark, o)
	}
	if c.shown < s.n && (c.isMarked() || m.rules.asksSoon) {
		o := s
		m.show(&o, k)
		m.still = false
		m.add(action{who: int8(k), did: didShow, change: s.log[c.shown], to: o.c[k], free: true}, o)
	}
}

// arrive adds the creation of the next node.
func (m *lineModel) arrive(s state) {
	k := int(s.came)
	if k == m.places {
		return
	}
	alive, siblings := 0, 0
	for j := range k {
		if s.c[j].alive() {
			alive++
		}
		if s.node[j].stands() {
			siblings++
		}
	}
	if alive == m.alive {
		return
	}
	s.came++
	s.node[k] = present
	c := &s.c[k]
	*c = client{shown: s.n, seen: s.n, known: true}
	for j := range k {
		if s.node[j] == reader {
			c.readers |= 1 << j
		}
	}
	m.top(c, k)
	o := s
	if siblings == 0 {
		o.c[k].pc = alone // by the reply
	}
	m.may(k, didCreate, o)
	if s.odd == 0 {
		return
	}
	s.odd--
	if !m.readers[k] {
		o := s
		o.c[k].try = true
		m.may(k, didTry, o)
	}
	blind := s
	blind.c[k].known = false
	m.top(&blind.c[k], k)
	m.may(k, didCreateBlind, blind) // the directory holds data of other clients
	if !m.readers[k] {
		blind.c[k].try = true
		m.may(k, didTry, blind)
	}
	s.c[k].pc = looksUp
	m.may(k, didCreateLost, s)
}

// user adds the decisions of the callers of k.
func (m *lineModel) user(s state, k int) {
	switch c := &s.c[k]; c.pc {
	case away, leaves, ended:
	case downgrade: // a release waits for it
		o := s
		o.leave(k)
		m.may(k, didLoseSession, o)
	case alone, atGrant:
		// A grant does not depend on a context. But the session can be lost at this moment.
		if !c.over {
			o := s
			o.c[k].over = true
			m.may(k, didLoseSession, o)
		}
	case holds:
		o := s
		o.leave(k)
		m.may(k, didRelease, o)
		if m.downgrades && !m.readers[k] && s.node[k] != reader {
			o := s
			if s.node[k] == gone {
				o.leave(k) // the commit reports it
			} else {
				o.commit(downgraded, k)
				o.c[k].pc = downgrade
			}
			m.may(k, didDowngrade, o)
		}
	default:
		o := s
		o.leave(k)
		m.may(k, didGiveUp, o)
		if c.pc == looksUp && !c.old {
			o := s
			o.c[k].old = true // and looks for its node in the next session
			m.may(k, didLoseSession, o)
		}
	}
}

// faults adds the faults that can hit k.
func (m *lineModel) faults(s state, k int) {
	c := &s.c[k]
	if s.node[k].stands() && s.deletes > 0 {
		o := s
		o.commit(deleted, k)
		o.deletes--
		o.c[k].victim = c.alive()
		m.may(k, didOutsideDelete, o)
	}
	if s.node[k].stands() && s.writes > 0 {
		o := s
		o.commit(written, k)
		o.writes--
		m.may(k, didOutsideWrite, o)
	}
	if s.reconnects > 0 && c.alive() {
		o := s
		o.reconnects--
		n := 0
		for _, w := range []*watch{&o.c[k].own, &o.c[k].before.w, &o.c[k].ahead.w} {
			if *w == armed || *w >= lateLookAgain {
				*w = broken
				n++
			}
		}
		if n > 0 || c.seen < c.shown {
			// Only a reply, not an event, shows how far the server is. So the next server can
			// be behind events.
			for to := c.seen; to <= c.shown; to++ {
				o := o
				o.c[k].shown = to
				m.may(k, didReconnect, o)
			}
		}
	}
}
