//go:build !race

package model

import (
	"errors"
	"fmt"
	"testing"
)

// The waiting of the consumers of a queue, see W1 and W2 in queue_engine.go of package coord:
// the first waiters watch the items, the others watch waiters before them. The model checks
// one guarantee: while an item can be taken, no live consumer waits. Sessions outlast the
// model, so no expiry helps.

// mostTakers bounds the consumers of a model.
const mostTakers = 5

// A taker is a consumer.
type taker struct {
	at    takerAt
	dead  bool // it does nothing any more, and its waiter node stays
	gone  bool // with arming: one of mask was deleted since the list
	mask  uint8
	place uint8 // the part of its waiter's number that a rule needs: the parity
}

type takerAt uint8

const (
	busy       takerAt = iota // wants no item
	asking                    // is about to list the items for the first time
	joining                   // found nothing, is about to create its waiter
	listing                   // is about to list the waiters
	arming                    // has seen mask, which it is about to watch
	behind                    // watches mask
	lookFront                 // is about to list the items with a watch
	frontWaits                // has seen none
	claimsIt                  // is about to claim an item that it saw
)

// waitScheme is the rule by which waiters watch each other.
type waitScheme uint8

const (
	watchK       waitScheme = iota // watch the k waiters before; the first k watch the items
	watchOne                       // watch the waiter before; the first k watch the items
	watchKth                       // watch the k-th waiter before; the first k watch the items
	watchInLanes                   // watch the waiter before in one of k lanes; the first of each lane watches the items
)

type queueModel struct {
	scheme waitScheme
	k, n   int
	dead   int  // at most
	blind  bool // a waiter deleted between the list and the watch is waited for
	noLook bool // a waiter that finds itself at the front by a list waits without listing the items
}

type queueState struct {
	takers [mostTakers]taker
	line   [mostTakers]uint8 // consumers with a waiter, in order, counted from 1
	items  uint8
	deaths uint8
	next   uint8 // the number of the next waiter, modulo k
}

type queueStep struct {
	what string
	who  int
	free bool
}

func (a queueStep) String() string { return fmt.Sprint(a.what, " ", a.who) }

var errStalled = errors.New("an item can be taken while a live consumer waits")

func (s *queueState) index(who int) int {
	for i, w := range s.line {
		if int(w) == who+1 {
			return i
		}
	}
	return -1
}

// drop deletes the waiter of who, which wakes its watchers.
func (s *queueState) drop(who int) {
	i := s.index(who)
	if i < 0 {
		return
	}
	copy(s.line[i:], s.line[i+1:])
	s.line[mostTakers-1] = 0
	for j := range s.takers {
		switch t := &s.takers[j]; {
		case t.mask&(1<<who) == 0:
		case t.at == behind:
			*t = taker{at: listing, dead: t.dead, place: t.place}
		case t.at == arming:
			t.gone = true
			t.mask &^= 1 << who
		}
	}
	t := &s.takers[who]
	t.mask, t.gone, t.place = 0, false, 0
}

// before returns the consumers that the one at index i of the line has to watch, or front.
func (m *queueModel) before(s *queueState, i int) (mask uint8, front bool) {
	var ahead []uint8 // the earlier waiters that count for it
	for _, w := range s.line[:i] {
		if m.scheme != watchInLanes || s.takers[w-1].place == s.takers[s.line[i]-1].place {
			ahead = append(ahead, w-1)
		}
	}
	first, one := len(ahead)-m.k, len(ahead)-1
	switch {
	case m.scheme == watchInLanes && len(ahead) == 0, m.scheme != watchInLanes && first < 0:
		return 0, true
	case m.scheme == watchKth:
		return 1 << ahead[first], false
	case m.scheme == watchK:
		for _, w := range ahead[first:] {
			mask |= 1 << w
		}
		return mask, false
	}
	return 1 << ahead[one], false
}

func (m *queueModel) explore(t *testing.T, limit int) Result[queueStep] {
	t.Helper()
	r := Explore(Model[queueState, queueStep]{Next: m.step, Free: func(a queueStep) bool { return a.free }}, limit)
	t.Logf("figure: model of waiting consumers, %d at the front, %d consumers, %d dead: %d states, %d steps, depth %d", m.k, m.n, m.dead, r.States, r.Steps, r.Depth)
	return r
}

func (m *queueModel) step(s queueState, step func(queueStep, queueState)) error {
	rest := true
	free := func(what string, who int, next queueState) {
		rest = false
		step(queueStep{what, who, true}, next)
	}
	for i := range m.n {
		if !s.takers[i].dead {
			m.stepOf(s, i, free, step)
		}
	}
	if s.items < 2 {
		next := s
		next.items++
		for i := range next.takers {
			if next.takers[i].at == frontWaits {
				next.takers[i].at = lookFront
			}
		}
		step(queueStep{what: "put"}, next)
	}
	for _, t := range s.takers[:m.n] {
		if rest && s.items > 0 && t.at != busy && !t.dead {
			return errStalled
		}
	}
	return nil
}

// stepOf adds the steps of one consumer.
func (m *queueModel) stepOf(s queueState, who int, free func(string, int, queueState), decide func(queueStep, queueState)) {
	now := s.takers[who]
	to := func(at takerAt) *queueState {
		next := s
		next.takers[who].at = at
		return &next
	}
	switch now.at {
	case busy:
		decide(queueStep{"asks", who, false}, *to(asking))
		return
	case asking:
		if s.items > 0 {
			free("sees an item", who, *to(claimsIt))
		} else {
			free("sees nothing", who, *to(joining))
		}
	case joining:
		next := to(listing)
		n := 0
		for next.line[n] != 0 {
			n++
		}
		next.line[n] = uint8(who + 1)
		if m.scheme == watchInLanes {
			next.takers[who].place = next.next
			next.next = (next.next + 1) % uint8(m.k)
		} else if n < m.k {
			next.takers[who].at = lookFront
		}
		free("joins", who, *next)
	case listing:
		mask, front := m.before(&s, s.index(who))
		switch {
		case front && m.noLook:
			free("is at the front, and does not list the items", who, *to(frontWaits))
		case front:
			free("is at the front", who, *to(lookFront))
		default:
			next := to(arming)
			next.takers[who].mask = mask
			free("lists", who, *next)
		}
	case arming:
		next := to(behind)
		if now.gone && !m.blind {
			next = to(listing)
			next.takers[who].mask = 0
		}
		next.takers[who].gone = false
		free("watches", who, *next)
	case lookFront:
		if s.items > 0 {
			free("sees an item", who, *to(claimsIt))
		} else {
			free("sees nothing, and watches", who, *to(frontWaits))
		}
	case claimsIt:
		switch {
		case s.items == 0 && s.index(who) < 0:
			free("is too late", who, *to(asking))
		case s.items == 0:
			free("is too late", who, *to(lookFront))
		default:
			next := to(busy)
			next.items--
			next.drop(who)
			free("claims", who, *next)
		}
	}
	if now.at >= listing {
		next := to(busy)
		next.drop(who)
		decide(queueStep{"gives up", who, false}, *next)
	}
	if int(s.deaths) < m.dead {
		next := s
		next.deaths++
		next.takers[who].dead = true
		decide(queueStep{"dies", who, false}, next)
	}
}

func TestWaitingConsumersAreNeverStalledByDeadOnes(t *testing.T) {
	t.Parallel()
	models := []queueModel{
		{k: 1, n: 4},
		{k: 2, n: 4, dead: 1},
		{k: 3, n: 4, dead: 2},
	}
	if long() {
		models = append(models, queueModel{k: 2, n: 5, dead: 1}, queueModel{k: 3, n: 5, dead: 2})
	}
	for _, m := range models {
		if r := m.explore(t, mostStates); r.Err != nil || !r.Full {
			t.Errorf("%d at the front, %d consumers, %d dead: full %t\n%v", m.k, m.n, m.dead, r.Full, r)
		}
	}
}

// Simpler schemes stall with one dead consumer. A front whose members are all dead stalls
// too.
func TestWaitingConsumersWithoutOneOfTheRulesAreStalled(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]queueModel{
		"a watch on the waiter before alone":      {scheme: watchOne, k: 2, n: 4, dead: 1},
		"a watch on the k-th waiter before alone": {scheme: watchKth, k: 2, n: 4, dead: 1},
		"two lanes":              {scheme: watchInLanes, k: 2, n: 4, dead: 1},
		"one at the front, dead": {k: 1, n: 3, dead: 1},
		"two at the front, dead": {k: 2, n: 4, dead: 2},
		"a waiter that is deleted before it is watched":  {k: 1, n: 3, blind: true},
		"a promoted waiter that does not list the items": {k: 1, n: 3, noLook: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := m.explore(t, mostStates)
			if r.Err != errStalled {
				t.Errorf("got %v", r.Err)
			}
			t.Logf("the shortest trace:\n%v", r)
		})
	}
}
