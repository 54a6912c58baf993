//go:build !race

package model

import (
	"errors"
	"fmt"
	"testing"
)

// The Acks of Work that claim the next item: two consumers with a handler each, and a few items. The nodes are the
// item, its state, which counts its claims, and the mark of the claim, which goes with its session.
//
// 1. An Ack that claims is one commit: {delete mark, state and item of the old item; check the next item, create its
// state, create its mark}. It is refused if the next item is gone, or if it was ever claimed.
//
// 2. If it is refused, the Ack is sent alone.
//
// 3. A consumer that does not know the outcome reads whether the commit was applied. If it was not, the consumer
// sends it again.
//
// 4. A Work that has ended gives the item back that it has claimed, with the state as the claim has found it.
//
// 5. If MaxAttempts is 1, no Ack claims an item.
//
// Sessions end at any step, requests and replies of the commit of rule 1 are lost, and Work ends at any step. The
// list by which an Ack claims is as old as the claim before. A claim without an Ack is one step, with its list.

const (
	nextItems  = 3
	nextTakers = 2
)

// nextAt is what a consumer is about to do.
type nextAt uint8

const (
	nextIdle    nextAt = iota // claims an item
	nextReady                 // has an item that no handler has got
	nextHandles               // its handler has the item
	nextAcks                  // acknowledges the item
	nextBoth                  // acknowledges the item and claims the next one
	nextLost                  // does not know whether that was applied
	nextReturns               // gives the item back
	nextEnded                 // Work has returned
)

type nextItem struct {
	gone, acked, dead bool
	count             uint8 // of claims, in its state; 0: it has no state
	lost              uint8 // of claims that have ended with a session
	mark              uint8 // of this consumer, counted from 1; 0: none
	unseen            bool  // an Ack has made the latest claim, and no handler has got the item
}

type nextTaker struct {
	at         nextAt
	item, pick uint8
	seen       uint8 // the items that its latest list has shown as never claimed
	over       bool  // Work ends
	applied    bool  // with nextLost
}

type nextState struct {
	items  [nextItems]nextItem
	takers [nextTakers]nextTaker
	ends   uint8 // of sessions
	fault  nextFault
}

// nextFault is what a step has violated.
type nextFault uint8

const (
	nextSound nextFault = iota
	nextTwice
	nextAgain
	nextUnseen
	nextCounted
	nextLostAck
)

var nextErrors = [...]error{
	nextTwice:   errors.New("two consumers have claimed one item"),
	nextAgain:   errors.New("a handler gets an item that was acknowledged"),
	nextUnseen:  errors.New("an item that an Ack has claimed is a dead letter, and no handler has seen it"),
	nextCounted: errors.New("an attempt counts that no handler has seen, and no session was lost"),
	nextLostAck: errors.New("an Ack has returned nil, and the item is in the queue"),
}

var errNextKept = errors.New("an item stays claimed that no consumer handles")

// nextRules are the rules left out, by their numbers.
type nextRules struct {
	noItem   bool // 1: the next item is not checked
	noState  bool // 1: the state of the next item is overwritten
	isAcked  bool // 2: a refused commit counts as the Ack
	assumes  bool // 3: a commit without a reply counts as not applied
	keeps    bool // 4: a Work that has ended keeps the item
	counts   bool // 4: the state is not restored
	lastToo  bool // 5: an Ack claims although MaxAttempts is 1
	foreign  bool // 1: a commit sent on a session that has ended is applied
	noSecond bool // not unsafe: no Ack claims
}

type nextModel struct {
	items, ends, max uint8
	rules            nextRules
	both             int // commits of rule 1 that were applied
}

type nextStep struct {
	what string
	who  int
	free bool
}

func (a nextStep) String() string { return fmt.Sprint(a.who, " ", a.what) }

func (m *nextModel) next(s nextState, step func(nextStep, nextState)) error {
	if s.fault != nextSound {
		return nextErrors[s.fault]
	}
	rest := true
	for c := range nextTakers {
		m.stepOf(&s, c, func(what string, next nextState) {
			rest = false
			step(nextStep{what, c, true}, next)
		}, func(what string, next nextState) { step(nextStep{what, c, false}, next) })
	}
	for i := range m.items {
		it := &s.items[i]
		if it.mark == 0 {
			continue
		}
		t := &s.takers[it.mark-1]
		mine := t.item == i && t.at != nextIdle && t.at != nextEnded || t.at == nextLost && t.pick == i
		if !mine {
			return errNextKept
		}
	}
	if rest {
		for c := range nextTakers {
			if s.takers[c].at != nextEnded && !s.takers[c].over && s.free(m) >= 0 {
				return errStalled
			}
		}
	}
	return nil
}

// free returns an item that can be taken, or -1.
func (s *nextState) free(m *nextModel) int {
	for i := range m.items {
		if it := &s.items[i]; !it.gone && it.mark == 0 {
			return int(i)
		}
	}
	return -1
}

func (m *nextModel) stepOf(s *nextState, c int, free, decide func(string, nextState)) {
	t := &s.takers[c]
	switch t.at {
	case nextIdle:
		m.idle(s, c, free)
	case nextReady:
		next := *s
		if n := &next.takers[c]; !t.over {
			m.begins(&next, c)
			free("gets the item", next)
		} else if n.at = nextReturns; m.rules.keeps {
			n.at = nextEnded
			free("keeps the item", next)
		} else {
			free("has ended", next)
		}
	case nextHandles:
		next := *s
		next.takers[c].at = nextAcks
		free("is done", next)
		for i := range m.items {
			if t.seen&(1<<i) != 0 && !t.over && (m.max != 1 || m.rules.lastToo) && !m.rules.noSecond {
				next := *s
				n := &next.takers[c]
				n.at, n.pick = nextBoth, i
				n.seen &^= 1 << i
				free("is done and wants another", next)
			}
		}
	case nextAcks:
		next := *s
		if it := &next.items[t.item]; it.mark == uint8(c+1) {
			it.gone, it.mark, it.acked, it.count = true, 0, true, 0
		}
		next.takers[c].to(nextIdle, 0)
		free("acknowledges", next)
	case nextBoth:
		next := *s
		applied := m.commit(&next, c)
		lost := next
		m.answered(&next, c, applied)
		free("acknowledges and claims", next)
		lost.takers[c].at, lost.takers[c].applied = nextLost, applied
		decide("loses the reply", lost)
		lost = *s
		lost.takers[c].at, lost.takers[c].applied = nextLost, false
		decide("loses the request", lost)
	case nextLost:
		next := *s
		n := &next.takers[c]
		switch {
		case m.rules.assumes:
			n.at = nextAcks
		case t.applied:
			m.answered(&next, c, true)
		default:
			n.at = nextBoth
		}
		free("reads the outcome", next)
	case nextReturns:
		next := *s
		if it := &next.items[t.item]; it.mark == uint8(c+1) {
			it.mark, it.unseen = 0, false
			if !m.rules.counts {
				it.count--
			}
		}
		next.takers[c].to(nextEnded, 0)
		free("gives back", next)
	}
	if t.at != nextEnded && !t.over {
		next := *s
		next.takers[c].over = true
		decide("is stopped", next)
	}
	if t.at != nextEnded && s.ends < m.ends {
		next := *s
		next.ends++
		n := &next.takers[c]
		for i := range next.items {
			if it := &next.items[i]; it.mark == uint8(c+1) {
				it.mark = 0
				it.lost++
			}
		}
		late := t.at == nextBoth && m.rules.foreign
		n.to(nextIdle, 0)
		if late {
			n.at, n.item, n.pick = nextBoth, t.item, t.pick
		}
		decide("loses its session", next)
	}
}

// idle adds the claims of a consumer that has no item: any free one, so the model needs no order.
func (m *nextModel) idle(s *nextState, c int, free func(string, nextState)) {
	if s.takers[c].over {
		next := *s
		next.takers[c].at = nextEnded
		free("returns", next)
		return
	}
	for i := range m.items {
		next := *s
		it := &next.items[i]
		switch {
		case it.gone || it.mark != 0:
			continue
		case it.count >= m.max:
			it.gone, it.dead, it.count = true, true, 0
			if it.unseen {
				next.fault = nextUnseen
			}
			free(fmt.Sprint("buries ", i), next)
			continue
		}
		it.count++
		it.mark, it.unseen = uint8(c+1), false
		n := &next.takers[c]
		n.to(nextReady, i)
		for j := range m.items {
			if other := &next.items[j]; j != i && !other.gone && other.mark == 0 && other.count == 0 {
				n.seen |= 1 << j
			}
		}
		free(fmt.Sprint("claims ", i), next)
	}
}

// commit makes the commit of rule 1, and reports whether it is applied.
func (m *nextModel) commit(s *nextState, c int) bool {
	t := &s.takers[c]
	old, it := &s.items[t.item], &s.items[t.pick]
	if old.mark != uint8(c+1) && !m.rules.foreign || it.gone && !m.rules.noItem || (it.count > 0 || it.mark != 0) && !m.rules.noState {
		return false
	}
	if it.mark != 0 {
		s.fault = nextTwice
	}
	m.both++
	old.gone, old.mark, old.count = true, 0, 0
	it.mark, it.count, it.unseen = uint8(c+1), 1, true
	return true
}

// answered lets the consumer continue when it knows the outcome.
func (m *nextModel) answered(s *nextState, c int, applied bool) {
	t := &s.takers[c]
	old := &s.items[t.item]
	switch {
	case applied:
		old.acked = true
		t.at, t.item, t.pick, t.applied = nextReady, t.pick, 0, false
	case m.rules.isAcked:
		old.acked = true
		if !old.gone {
			s.fault = nextLostAck
		}
		t.to(nextIdle, 0)
	default:
		t.at, t.pick = nextAcks, 0
	}
}

// begins lets a handler begin.
func (m *nextModel) begins(s *nextState, c int) {
	t := &s.takers[c]
	it := &s.items[t.item]
	switch {
	case it.acked || it.gone:
		s.fault = nextAgain
	case it.count != it.lost+1:
		s.fault = nextCounted
	}
	it.unseen = false
	t.at = nextHandles
}

// to moves a consumer to at. What its list has shown counts no more.
func (t *nextTaker) to(at nextAt, item uint8) {
	*t = nextTaker{at: at, item: item, over: t.over}
}

func (m *nextModel) explore(t *testing.T) Result[nextStep] {
	t.Helper()
	var start nextState
	for i := m.items; i < nextItems; i++ {
		start.items[i].gone = true
	}
	return exploreAll(t, fmt.Sprintf("of Acks that claim, %d items, %d lost sessions, MaxAttempts %d", m.items, m.ends, m.max),
		Model[nextState, nextStep]{Start: start, Next: m.next, Free: func(a nextStep) bool { return a.free }})
}

func TestAcksThatClaimKeepThePromisesOfAQueue(t *testing.T) {
	t.Parallel()
	models := []nextModel{{items: 2, ends: 2, max: 9}, {items: 2, ends: 3, max: 2}, {items: 3, ends: 1, max: 9}, {items: 2, ends: 2, max: 1}, {items: 2, ends: 2, max: 2, rules: nextRules{noSecond: true}}}
	if long() {
		models = append(models, nextModel{items: 3, ends: 2, max: 9}, nextModel{items: 3, ends: 3, max: 2})
	}
	for _, m := range models {
		if r := m.explore(t); r.Err != nil || !r.Full {
			t.Errorf("%+v: full %t\n%v", m, r.Full, r)
		}
		if want := m.max > 1 && !m.rules.noSecond; (m.both > 0) != want {
			t.Errorf("%+v: %d commits acknowledge and claim", m, m.both)
		}
	}
}

func TestAcksThatClaimNeedTheirRules(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rules nextRules
		max   uint8
		want  error
	}{
		"1: the next item is not checked":                 {nextRules{noItem: true}, 9, nextErrors[nextAgain]},
		"1: the state of the next item is not checked":    {nextRules{noState: true}, 9, nextErrors[nextTwice]},
		"1: a commit on an ended session is applied":      {nextRules{foreign: true}, 9, nextErrors[nextAgain]},
		"2: a refused commit counts as the Ack":           {nextRules{isAcked: true}, 9, nextErrors[nextLostAck]},
		"3: a commit without a reply counts as not made":  {nextRules{assumes: true}, 9, errNextKept},
		"4: a Work that has ended keeps the item":         {nextRules{keeps: true}, 9, errNextKept},
		"4: an item that is given back counts an attempt": {nextRules{counts: true}, 9, nextErrors[nextCounted]},
		"5: an Ack makes the last claim":                  {nextRules{lastToo: true}, 1, nextErrors[nextUnseen]},
	} {
		t.Run(name, func(t *testing.T) {
			m := nextModel{items: 2, ends: 2, max: test.max, rules: test.rules}
			r := m.explore(t)
			mustViolate(t, r, test.want, 0)
			t.Logf("%v", r)
		})
	}
}
