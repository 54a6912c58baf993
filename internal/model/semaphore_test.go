//go:build !race

package model

import (
	"fmt"
	"testing"
)

// The exhaustive model of the semaphore's protocol: a few clients that arrive in order, hold,
// give up and lose contact, and a limit that changes, in every order of their steps. Each
// step is one request to the service, or one decision.

const (
	semIdle     = iota
	semList     // created; reads the line
	semLimit    // reads the limit
	semArm      // must wait: arms the watch on the limit
	semLook     // reads the line again
	semAhead    // reads the node of its predecessor
	semBlocked  // waits for a watch
	semGranted  // holds, and has its mark to make
	semHolds    // holds
	semWithdraw // was not granted; its node still exists
	semGone
)

// The states of a watch.
const (
	semOff = iota
	semArmed
	semAgain
	semDeleted
)

const semClients = 4

type semClient struct {
	pc             int8
	node           bool // its node exists
	marked         bool
	turn           bool // its turn has come
	created        int8 // zxid
	siblings       int8 // at its creation
	sum, count     int8 // sum and number of the queue up to it, as read
	limit, changed int8 // as read
	first          bool
	dir, lim, prev int8 // watches; prev is on the node of ahead
	ahead          int8 // its predecessor, from 1
	sure, unsure   int8 // its predecessor if that is known to wait, and if that is unknown, from 1
}

type semState struct {
	c          [semClients]semClient
	zxid       int8
	limit      int8
	changed    int8 // zxid
	changes    int8 // changes made
	giveUps    int8 // left
	reconnects int8 // left
}

// semRules are the rules that a mutant breaks.
type semRules struct {
	noMark       bool // a client that has waited does not mark
	bornAlways   bool // a client that is granted at once never marks
	bornAnyLimit bool // nor does one under a limit that has changed
	relyOnAll    bool // a node without a mark counts as a waiter's
	limitFirst   bool // the first read of the limit comes before that of the queue
	staleLimit   bool // a limit that changed while the queue was read counts
	noDirectory  bool // a client that cannot rely on its predecessor watches nothing
	heavyAlone   bool // a client that is alone at its creation is granted any weight
	oneBeside    bool // a client that wants one permit is granted beside any others
}

type semModel struct {
	rules               semRules
	weights             []int8
	limits              []int8
	giveUps, reconnects int8
	seen                map[semState]struct{}
	todo                []semState
	bad                 string
	rest                int // states at rest
	granted             int // steps
}

// line returns the sum of weights and the number of nodes up to i.
func (m *semModel) line(s *semState, i int) (sum, count int8) {
	for j := 0; j <= i; j++ {
		if s.c[j].node {
			sum += m.weights[j]
			count++
		}
	}
	return sum, count
}

// settle records whose turn it is after a change of the queue or the limit.
func (m *semModel) settle(s *semState) {
	came := false
	total := int8(0)
	for i := range m.weights {
		c := &s.c[i]
		if sum, _ := m.line(s, i); c.node && !c.turn && sum <= s.limit {
			c.turn, came = true, true
		}
		if c.node && c.turn {
			total += m.weights[i]
		}
	}
	if came && total > s.limit {
		m.fail(s, "the turns exceed the limit")
	}
}

func (m *semModel) fail(s *semState, what string) {
	if m.bad == "" {
		m.bad = fmt.Sprintf("%s: %+v", what, *s)
	}
}

func fire(w *int8, kind int8) {
	if *w == semArmed {
		*w = kind
	}
}

// remove deletes the node of i.
func (m *semModel) remove(s *semState, i int) {
	s.c[i].node = false
	for j := range m.weights {
		c := &s.c[j]
		fire(&c.dir, semAgain)
		if int(c.ahead) == i+1 {
			fire(&c.prev, semDeleted)
		}
	}
	s.c[i] = semClient{pc: semGone} // its knowledge does not matter any more
	m.settle(s)
}

func (m *semModel) grant(s *semState, i int, mark bool) {
	c := &s.c[i]
	if !c.turn {
		m.fail(s, fmt.Sprint("granted before its turn: ", i))
	}
	m.granted++
	*c = semClient{pc: semHolds, node: true, turn: true, created: c.created}
	if mark {
		c.pc = semGranted
	}
}

// noRely makes i watch the directory.
func (m *semModel) noRely(c *semClient) {
	c.prev, c.ahead = semOff, 0
	switch {
	case m.rules.noDirectory:
		c.pc = semBlocked
	case c.dir != semArmed:
		c.first = true
		c.pc = semArm
	default:
		c.pc = semBlocked
	}
}

func (m *semModel) rely(c *semClient) {
	c.first, c.dir = false, semOff
	c.pc = semBlocked
}

// step makes the next internal step of i, or reports that it has none. other is called with
// further outcomes of the same step.
func (m *semModel) step(s *semState, i int, other func(semState)) bool {
	c, w := &s.c[i], m.weights[i]
	switch c.pc {
	case semList:
		if m.rules.limitFirst {
			c.limit, c.changed = s.limit, s.changed
		} else {
			c.sum, c.count = m.line(s, i)
		}
		c.pc = semLimit
	case semLimit:
		if m.rules.limitFirst {
			c.sum, c.count = m.line(s, i)
		} else {
			c.limit, c.changed = s.limit, s.changed
		}
		switch {
		case w > c.limit:
			c.pc = semWithdraw
		case c.sum <= c.limit:
			born := c.count == c.siblings && (c.created > c.changed || m.rules.bornAnyLimit)
			m.grant(s, i, !born && !m.rules.bornAlways)
		default:
			c.first = c.sum-w <= c.limit
			c.pc = semArm
			c.sum, c.count, c.siblings, c.limit, c.changed = 0, 0, 0, 0, 0 // not used any more
		}
	case semArm:
		if c.lim != semArmed {
			c.lim, c.limit, c.changed = semArmed, s.limit, s.changed
		}
		c.pc = semLook
	case semLook:
		if c.first && c.dir != semArmed && !m.rules.noDirectory {
			c.dir = semArmed
		}
		sum, _ := m.line(s, i)
		if c.lim != semArmed && !m.rules.staleLimit {
			c.pc = semArm
			return true
		}
		switch {
		case w > c.limit:
			c.pc = semWithdraw
			return true
		case sum <= c.limit:
			m.grant(s, i, !m.rules.noMark)
			return true
		}
		prev := int8(0)
		for j := range i {
			if s.c[j].node {
				prev = int8(j) + 1
			}
		}
		switch {
		case sum-w <= c.limit:
			m.noRely(c)
		case c.sure == prev && c.ahead == prev && c.prev == semArmed:
			m.rely(c)
		case c.unsure == prev:
			m.noRely(c)
		default:
			c.ahead, c.prev = prev, semOff
			c.pc = semAhead
		}
	case semAhead:
		p := &s.c[c.ahead-1]
		switch {
		case !p.node:
			c.ahead = 0
			c.pc = semArm
		case !p.marked && (c.sure == c.ahead || p.created > c.changed || m.rules.relyOnAll):
			c.sure, c.prev = c.ahead, semArmed
			m.rely(c)
		default:
			c.unsure = c.ahead
			m.noRely(c)
		}
	case semBlocked:
		woken := c.dir > semArmed || c.lim > semArmed
		if c.prev <= semArmed {
			if woken {
				c.pc = semArm
			}
			return woken
		}
		if woken { // by either watch
			o := *s
			o.c[i].pc = semArm
			other(o)
		}
		c.first = c.prev == semAgain
		c.pc = semArm
	case semGranted:
		c.marked = true
		c.pc = semHolds
		for j := range m.weights {
			if int(s.c[j].ahead) == i+1 {
				fire(&s.c[j].prev, semAgain)
			}
		}
	case semWithdraw:
		m.remove(s, i)
	default:
		return false
	}
	return true
}

func (m *semModel) add(s semState) {
	if _, ok := m.seen[s]; !ok {
		m.seen[s] = struct{}{}
		m.todo = append(m.todo, s)
	}
}

// next adds all states that can follow s.
func (m *semModel) next(s semState) {
	moves := false
	for i := range m.weights {
		o := s
		if m.step(&o, i, m.add) {
			moves = true
			m.add(o)
		}
	}
	if !moves {
		m.rest++
		watching := 0
		for i := range m.weights {
			c := &s.c[i]
			if c.pc != semBlocked {
				continue
			}
			if sum, _ := m.line(&s, i); sum <= s.limit {
				m.fail(&s, fmt.Sprint("never woken: ", i))
			}
			if c.dir == semArmed {
				watching++
			}
		}
		if watching > 1 && s.changes == 0 {
			m.fail(&s, fmt.Sprint(watching, " watch the directory"))
		}
	}
	arrived := false
	for i := range m.weights {
		c := s.c[i]
		switch {
		case c.pc == semIdle && !arrived:
			arrived = true
			o := s
			o.zxid++
			o.c[i] = semClient{pc: semList, node: true, created: o.zxid}
			_, o.c[i].siblings = m.line(&o, i)
			for j := range m.weights {
				fire(&o.c[j].dir, semAgain)
			}
			m.settle(&o)
			m.add(o)
			// One permit for a client that is alone: granted by the creation itself.
			alone, one := o.c[i].siblings == 1, m.weights[i] == 1
			if alone && (one || m.rules.heavyAlone) || one && m.rules.oneBeside {
				m.grant(&o, i, false)
				m.add(o)
			}
		case c.pc == semHolds || c.pc == semGranted:
			o := s
			m.remove(&o, i)
			m.add(o)
		}
		if c.pc >= semList && c.pc <= semBlocked && s.giveUps > 0 {
			o := s
			o.giveUps--
			o.c[i].pc = semWithdraw
			m.add(o)
		}
		if c.pc >= semArm && c.pc <= semBlocked && s.reconnects > 0 {
			o := s
			o.reconnects--
			fire(&o.c[i].dir, semAgain)
			fire(&o.c[i].lim, semAgain)
			fire(&o.c[i].prev, semAgain)
			m.add(o)
		}
	}
	if int(s.changes) < len(m.limits)-1 {
		o := s
		o.changes++
		o.zxid++
		o.limit, o.changed = m.limits[o.changes], o.zxid
		for j := range m.weights {
			fire(&o.c[j].lim, semAgain)
		}
		m.settle(&o)
		m.add(o)
	}
}

// run explores all states, or stops at the first failure.
func (m *semModel) run() {
	m.seen = make(map[semState]struct{})
	m.add(semState{limit: m.limits[0], giveUps: m.giveUps, reconnects: m.reconnects})
	for len(m.todo) > 0 && m.bad == "" {
		s := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		m.next(s)
	}
}

// semScenes are the weights in order of arrival, and the successive limits.
func semScenes(all bool) []semModel {
	scenes := []semModel{{limits: []int8{2}, weights: []int8{1, 1, 1, 1}}, {limits: []int8{3}, weights: []int8{2, 2, 1, 1}}}
	for _, limits := range [][]int8{{2}, {1, 2}, {2, 1}, {3, 2}, {2, 3, 2}, {3, 2, 3}} {
		for _, weights := range [][]int8{{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {1, 1, 2}} {
			scenes = append(scenes, semModel{limits: limits, weights: weights, giveUps: 1, reconnects: 1})
			if all && len(limits) < 3 {
				scenes = append(scenes, semModel{limits: limits, weights: append(weights, 1), giveUps: 1, reconnects: 1})
			}
		}
	}
	return scenes
}

func TestTheSemaphoresProtocolLosesNoWakeUp(t *testing.T) {
	t.Parallel()
	states, rest, granted := 0, 0, 0
	for _, m := range semScenes(long()) {
		m.run()
		if m.bad != "" {
			t.Fatalf("weights %v, limits %v: %s", m.weights, m.limits, m.bad)
		}
		states += len(m.seen)
		rest += m.rest
		granted += m.granted
	}
	t.Logf("figure: model of the semaphore: %d scenes, %d states, %d at rest, %d grants", len(semScenes(long())), states, rest, granted)
	if rest == 0 || granted == 0 {
		t.Error("the model did nothing")
	}
}

// Each rule of the protocol is needed, and the model detects its absence.
func TestTheSemaphoresModelCatchesEachMutant(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]semRules{
		"a late grant makes no mark":                  {noMark: true},
		"a grant at once never makes a mark":          {bornAlways: true},
		"a grant under a changed limit makes no mark": {bornAnyLimit: true},
		"a node without a mark counts as a waiter's":  {relyOnAll: true},
		"the limit is read before the line":           {limitFirst: true},
		"a limit that changed meanwhile counts":       {staleLimit: true},
		"no watch without a reliable predecessor":     {noDirectory: true},
		"a client that is alone ignores the limit":    {heavyAlone: true},
		"a client that wants one ignores the queue":   {oneBeside: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range semScenes(false) {
				m.rules = rules
				m.run()
				if m.bad != "" {
					t.Logf("weights %v, limits %v: %.60s", m.weights, m.limits, m.bad)
					return
				}
			}
			t.Error("the model found nothing wrong")
		})
	}
}
