//go:build !race

package model

import (
	"errors"
	"fmt"
	"math/bits"
	"testing"
)

// The feeder of a queue value beside the Acks of a Work: a Work with two places, another caller that takes items, and a few
// items. No other client acts, so no claim is refused unless this client competes with itself.
//
// 1. An Ack claims a remembered item only if no other caller has a request.
//
// 2. Nor does it while the feeder takes an item for another caller, whose request can be gone.
//
// 3. The feeder takes nothing for another caller while Acks claim items, or bring them to Work.
//
// 4. It does not list items in this time either. It waits if it remembers none.
//
// 5. The feeder forgets the items before it lists.
//
// 6. The loop of Work asks the feeder only if nothing is ready for it. What an Ack claims answers that request.
//
// 7. What the feeder claims when an Ack has answered the request is for the next request of Work, or is ready for it.
//
// 8. If Work has ended, it is given back, as is the item that an Ack has claimed.
//
// 9. The feeder takes nothing while an item is given back, and no Ack claims one.
//
// A commit is a step of its own after the decision to send it, and so is its answer. A list is a step. Names can be too
// old at any time.

const besideItems, besidePlaces = 4, 2

// The callers, as bits.
const (
	ofWork = 1 << iota
	ofTake
)

// besideAt is what a handler, the loop of Work, or the feeder does.
type besideAt uint8

const (
	besideNone     besideAt = iota
	besideHandles           // has the item
	besideAcks              // sends the Ack of the item
	besideBoth              // sends the Ack of the item, and a claim
	besideBrings            // the claim is made, and its item is on the way to the loop
	besideAsks              // the loop: has a request, and a place
	besideGot               // the loop: has an item, and a place
	besideTakes             // the feeder: takes an item, by name or by a list
	besideClaims            // the feeder: sends a claim
	besideAnswers           // the feeder: the claim is made
	besideWaits             // the feeder: has found nothing
	besideReturned          // the loop: has ended
)

type besideActor struct {
	at         besideAt
	item, pick uint8 // pick: the item that an Ack claims; of the feeder: 1 if an Ack has answered the request that it serves
}

type besideState struct {
	free, gone      uint8 // items, as bits; the others are claimed
	names, rest     uint8 // remembered items; those of the list by which the feeder claims
	ready           uint8
	ending, owed    uint8 // items that are given back; those of them that no caller has got
	requests        uint8 // callers
	first           uint8 // the caller whose request is older
	taking          uint8 // callers
	handlers        [besidePlaces]besideActor
	loop, feeder    besideActor
	over            bool // Work ends
	takes           uint8
	passedBy, owner [besideItems]uint8 // callers that have got a later item; the caller for which it is claimed
	fault           besideFault
}

type besideFault uint8

const (
	besideSound besideFault = iota
	besidePassed
	besideSelf
	besideMany
	besideStarves
)

var besideErrors = [...]error{
	besidePassed:  errors.New("a caller has passed over an item that another call has given back"),
	besideSelf:    errors.New("the client has competed with itself for an item"),
	besideStarves: errors.New("an Ack claims an item for which another caller waits"),
	besideMany:    errors.New("more items are claimed for Work than it has places"),
}

var errBesideKept = errors.New("an item stays claimed that no handler gets")

// besideRules are the rules left out, by their numbers.
type besideRules struct {
	passes     bool // 1
	gone       bool // 2
	noWait     bool // 3
	lists      bool // 4
	spins      bool // 4: the feeder does not wait
	remembers  bool // 5
	noAnswer   bool // 6: the item of an Ack is ready although Work has a request
	asksAnyway bool // 6: the loop asks although an item is ready
	keepsBack  bool // 7: it is ready although Work has a request again
	keeps      bool // 8: of the feeder
	keepsOwn   bool // 8: of an Ack
	overtakes  bool // 9
	alone      bool // not unsafe: no Ack claims while the feeder has a request
}

type besideModel struct {
	takes  uint8
	rules  besideRules
	beside int // claims of Acks while the feeder claims
}

func firstOf(set uint8) uint8 { return uint8(bits.TrailingZeros8(set)) }

// busy returns the number of Acks that claim, or bring, an item.
func (s *besideState) busy() (n int) {
	for _, h := range s.handlers {
		if h.at == besideBoth || h.at == besideBrings {
			n++
		}
	}
	return n
}

func (s *besideState) places() (used int) {
	for _, h := range s.handlers {
		if h.at != besideNone {
			used++
		}
	}
	if s.loop.at == besideAsks || s.loop.at == besideGot {
		used++
	}
	return used
}

// claimed returns the number of items that are claimed for Work and not acknowledged, with those that an Ack acknowledges
// while it claims another one.
func (s *besideState) claimed() int {
	n := bits.OnesCount8(s.ready)
	for _, h := range s.handlers {
		if h.at != besideNone {
			n++
		}
	}
	if s.loop.at == besideGot {
		n++
	}
	if s.feeder.at == besideAnswers && s.taking == ofWork {
		n++
	}
	return n
}

// gets records that a caller has got an item.
func (s *besideState) gets(caller, item uint8) {
	var on uint8
	if s.feeder.at == besideClaims || s.feeder.at == besideAnswers {
		on |= 1 << s.feeder.item
	}
	for _, h := range s.handlers {
		if h.at == besideBoth || h.at == besideBrings {
			on |= 1 << h.pick
		}
	}
	for i := range item {
		if s.owed&(1<<i) != 0 && s.owner[i] != caller {
			s.fault = besidePassed
		}
		if on&(1<<i) != 0 {
			s.passedBy[i] |= caller
		}
	}
}

// returns begins to give an item back. transit: no caller has got it.
func (s *besideState) returns(item uint8, transit bool) {
	if transit && s.passedBy[item]&^s.owner[item] != 0 {
		s.fault = besidePassed
	}
	if s.ending |= 1 << item; transit {
		s.owed |= 1 << item
	}
}

// claim makes a claim.
func (s *besideState) claim(item, caller uint8) {
	if s.free&(1<<item) == 0 {
		s.fault = besideSelf
		return
	}
	s.free &^= 1 << item
	s.owner[item] = caller
}

func (m *besideModel) next(s besideState, step func(nextStep, besideState)) error {
	if s.fault != besideSound {
		return besideErrors[s.fault]
	}
	if s.claimed() > besidePlaces {
		return besideErrors[besideMany]
	}
	rest := true
	free := func(who int, what string, next besideState) {
		rest = false
		step(nextStep{what, who, true}, next)
	}
	decide := func(who int, what string, next besideState) { step(nextStep{what, who, false}, next) }
	for h := range s.handlers {
		m.handler(&s, h, free)
	}
	m.work(&s, free)
	m.feed(&s, free, decide)
	for i := range uint8(besideItems) {
		if s.ending&(1<<i) != 0 {
			next := s
			next.ending &^= 1 << i
			next.owed &^= 1 << i
			next.free |= 1 << i
			next.passedBy[i] = 0
			next.names = 0
			free(9, fmt.Sprint("gives back ", i), next)
		}
	}
	if !s.over {
		next := s
		next.over = true
		if next.loop.at == besideAsks && next.requests&ofWork != 0 {
			next.requests &^= ofWork
			next.loop.at = besideNone
		}
		decide(8, "Work is stopped", next)
	}
	if s.requests&ofTake != 0 {
		next := s
		next.requests &^= ofTake
		decide(7, "the Take gives up", next)
	} else if s.takes < m.takes {
		next := s
		next.takes++
		next.request(ofTake)
		decide(7, "a Take begins", next)
	}
	if !rest {
		return nil
	}
	switch {
	case s.ready != 0 && s.loop.at == besideAsks, s.requests != 0 && s.free != 0:
		return errStalled
	case s.ready != 0, s.free|s.gone != 1<<besideItems-1:
		return errBesideKept
	}
	return nil
}

func (s *besideState) request(caller uint8) {
	if s.requests == 0 {
		s.first = caller
	}
	s.requests |= caller
}

// answer answers the request of a caller.
func (s *besideState) answer(caller, item uint8) {
	s.requests &^= caller
	s.first = s.requests
	s.gets(caller, item)
	if caller == ofTake {
		s.gone |= 1 << item
		return
	}
	s.loop = besideActor{at: besideGot, item: item}
}

func (m *besideModel) handler(s *besideState, h int, free func(int, string, besideState)) {
	next := *s
	a := &next.handlers[h]
	switch a.at {
	case besideHandles:
		others := s.requests&ofTake != 0 && !m.rules.passes || s.taking&ofTake != 0 && !m.rules.gone || s.ending != 0 && !m.rules.overtakes
		if s.over || s.names == 0 || others || m.rules.alone && s.requests|s.taking != 0 {
			a.at = besideAcks
			free(h, "acknowledges", next)
			return
		}
		a.at, a.pick = besideBoth, firstOf(s.names)
		next.names &^= 1 << a.pick
		if s.requests&ofTake != 0 {
			next.fault = besideStarves
		}
		if s.feeder.at == besideClaims || s.feeder.at == besideAnswers {
			m.beside++
		}
		free(h, fmt.Sprint("acknowledges and claims ", a.pick), next)
	case besideAcks:
		next.gone |= 1 << a.item
		*a = besideActor{}
		free(h, "is free", next)
	case besideBoth:
		next.gone |= 1 << a.item
		next.claim(a.pick, ofWork)
		a.at = besideBrings
		free(h, "its commit is applied", next)
	case besideBrings:
		item := a.pick
		*a = besideActor{}
		switch {
		case s.over && m.rules.keepsOwn:
		case s.over:
			next.returns(item, true)
		case s.requests&ofWork != 0 && !m.rules.noAnswer:
			next.answer(ofWork, item)
			if s.taking&ofWork != 0 {
				next.feeder.pick = 1
			}
		default:
			next.gets(ofWork, item)
			next.ready |= 1 << item
		}
		free(h, fmt.Sprint("brings ", item), next)
	}
}

// work adds the steps of the loop of Work.
func (m *besideModel) work(s *besideState, free func(int, string, besideState)) {
	next := *s
	l := &next.loop
	switch {
	case l.at == besideReturned:
	case s.over && l.at != besideAsks:
		if l.at == besideGot {
			next.returns(l.item, false)
		}
		for i := range uint8(besideItems) {
			if s.ready&(1<<i) != 0 {
				next.returns(i, false)
			}
		}
		next.ready = 0
		*l = besideActor{at: besideReturned}
		free(5, "Work has ended", next)
	case l.at == besideGot:
		for h := range next.handlers {
			if next.handlers[h].at == besideNone {
				next.handlers[h] = besideActor{at: besideHandles, item: l.item}
				*l = besideActor{}
				free(5, "a handler begins", next)
				return
			}
		}
		next.fault = besideMany
		free(5, "has no place", next)
	case l.at == besideNone && s.places() < besidePlaces:
		if s.ready != 0 && !m.rules.asksAnyway {
			*l = besideActor{at: besideGot, item: firstOf(s.ready)}
			next.ready &^= 1 << l.item
			free(5, "takes what is ready", next)
			return
		}
		l.at = besideAsks
		next.request(ofWork)
		free(5, "Work asks", next)
	}
}

// feed adds the steps of the feeder.
func (m *besideModel) feed(s *besideState, free, decide func(int, string, besideState)) {
	next := *s
	f := &next.feeder
	switch f.at {
	case besideNone:
		others := s.requests&ofTake != 0 && !m.rules.noWait
		switch {
		case s.requests == 0:
			return
		case s.ending != 0 && !m.rules.overtakes:
			return
		case s.busy() > 0 && (s.names == 0 && !m.rules.spins || others):
			return
		}
		f.at, next.taking = besideTakes, s.requests
		free(6, "takes", next)
	case besideTakes:
		list := next
		l := &list.feeder
		if !m.rules.remembers {
			list.names = 0
		}
		switch {
		case s.busy() > 0 && !m.rules.lists:
			l.at, list.taking = besideNone, 0
		case s.free == 0:
			l.at, list.taking = besideWaits, 0
		default:
			l.at, l.item = besideClaims, firstOf(s.free)
			list.rest = s.free &^ (1 << l.item)
		}
		if l.at != besideClaims {
			l.pick = 0
		}
		if s.names == 0 {
			free(6, "lists", list)
			return
		}
		decide(6, "lists, since the names are too old", list)
		f.at, f.item, next.rest = besideClaims, firstOf(s.names), 0
		next.names &^= 1 << f.item
		free(6, "claims by name", next)
	case besideClaims:
		owner := s.taking
		if owner == ofWork|ofTake {
			owner = s.first
		}
		next.claim(f.item, owner)
		f.at = besideAnswers
		if s.rest != 0 {
			next.names, next.rest = s.rest, 0
		}
		free(6, fmt.Sprint("has claimed ", f.item), next)
	case besideAnswers:
		item := f.item
		*f = besideActor{}
		next.taking = 0
		caller := s.requests & s.taking
		if caller == ofWork|ofTake {
			caller = s.first
		}
		if m.rules.keepsBack && s.feeder.pick == 1 {
			caller = 0
		}
		switch {
		case caller != 0:
			next.answer(caller, item)
		case s.taking == ofWork && (!s.over || m.rules.keeps):
			next.gets(ofWork, item)
			next.ready |= 1 << item
		default:
			next.returns(item, true)
		}
		free(6, fmt.Sprint("answers with ", item), next)
	case besideWaits:
		if s.free != 0 || s.requests == 0 {
			f.at = besideNone
			free(6, "looks again", next)
		}
	}
}

func (m *besideModel) explore(t *testing.T) Result[nextStep] {
	t.Helper()
	start := besideState{free: 1<<besideItems - 1, first: ofWork, requests: ofWork, loop: besideActor{at: besideAsks}}
	return exploreAll(t, fmt.Sprintf("of Acks beside the feeder, %d items, %d takes", besideItems, m.takes),
		Model[besideState, nextStep]{Start: start, Next: m.next, Free: func(a nextStep) bool { return a.free }})
}

func TestAcksBesideTheFeederKeepThePromisesOfAQueue(t *testing.T) {
	t.Parallel()
	for _, m := range []besideModel{{takes: 0}, {takes: 1}, {takes: 2}, {takes: 2, rules: besideRules{alone: true}}} {
		mustHold(t, m.explore(t))
		if (m.beside > 0) == m.rules.alone {
			t.Errorf("%+v: %d claims beside the feeder", m, m.beside)
		}
	}
}

func TestAcksBesideTheFeederNeedTheirRules(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rules besideRules
		want  error
	}{
		"1: an Ack claims while another caller waits":                   {besideRules{passes: true}, besideErrors[besideStarves]},
		"2: an Ack claims beside the feeder's claim for another caller": {besideRules{gone: true}, besideErrors[besidePassed]},
		"3: the feeder takes beside the claims of Acks":                 {besideRules{noWait: true}, besideErrors[besidePassed]},
		"4: the feeder lists beside them":                               {besideRules{lists: true, spins: true}, besideErrors[besideSelf]},
		"4: the feeder does not wait for them":                          {besideRules{spins: true}, ErrEndless},
		"5: the feeder remembers items while it lists":                  {besideRules{remembers: true}, besideErrors[besideSelf]},
		"6: the item of an Ack does not answer the request":             {besideRules{noAnswer: true}, errStalled},
		"6: the loop asks although an item is ready":                    {besideRules{asksAnyway: true}, besideErrors[besideMany]},
		"7: the item of the feeder does not answer the next request":    {besideRules{keepsBack: true}, besideErrors[besideMany]},
		"8: the item of the feeder stays with a Work that has ended":    {besideRules{keeps: true}, errBesideKept},
		"8: the item of an Ack stays with a Work that has ended":        {besideRules{keepsOwn: true}, errBesideKept},
		"9: items are taken while an item is given back":                {besideRules{overtakes: true}, besideErrors[besidePassed]},
	} {
		t.Run(name, func(t *testing.T) {
			m := besideModel{takes: 2, rules: test.rules}
			mustViolate(t, m.explore(t), test.want, 0)
		})
	}
}
