//go:build !race

package model

import (
	"fmt"
	"slices"
	"strings"
)

func keyBit(item, place uint8) uint8 { return 1 << (item*keyPlaces + place) }

// alive returns the items that are in the queue, or have the key.
func (s *keyState) alive() (items uint8) {
	for i := range s.items {
		if s.items[i].at == keyQueued {
			items |= 1 << i
		}
	}
	if h := s.h; h.there && (s.items[h.item].until > s.clock || s.k&keyBit(h.item, h.place) != 0) {
		items |= 1 << h.item
	}
	return items
}

// setH writes or deletes h.
func (s *keyState) setH(h keyHolder) {
	s.h = h
	for c := range s.actors {
		if a := &s.actors[c]; a.at >= keyReadsK && a.at <= keyReadsHAgain {
			a.changed = true
		}
	}
}

// ended ends what an actor does. An actor that does more than one thing is idle then.
func (m *keyModel) ended(s *keyState, c int) {
	at := keyIdle
	if role := m.roles[c]; role == keyPut || role == keyPutFor {
		at = keyEnded
	}
	s.actors[c] = keyActor{at: at}
}

func (m *keyModel) next(s keyState, step func(keyStep, keyState)) error {
	if s.fault != keySound {
		return keyErrors[s.fault]
	}
	emit := func(c int, free bool, what string, n keyState) {
		alive := n.alive()
		for i := range m.roles {
			if a := &n.actors[i]; m.roles[i] <= keyPutFor && a.at != keyIdle && a.at != keyEnded {
				a.began |= alive
			}
		}
		who := ""
		if c >= 0 {
			who = fmt.Sprint(c, ", a ", m.roles[c], ",")
		}
		step(keyStep{who, what, free}, n)
	}
	rest := true
	for c := range m.roles {
		a := &s.actors[c]
		if a.at != keyIdle && a.at != keyEnded {
			rest = false
			if s.ends < m.ends {
				n := s
				n.ends++
				if m.claims(c) {
					n.items[a.item].claimed = false
				}
				n.actors[c] = keyActor{at: keyEnded}
				emit(c, false, "dies", n)
			}
		}
		m.stepOf(&s, c, func(free bool, what string, n keyState) { emit(c, free, what, n) })
	}
	if s.clock < m.clock {
		n := s
		n.clock++
		emit(-1, false, "time passes", n)
	}
	if !s.out {
		m.outsider(&s, func(what string, n keyState) { emit(-1, false, what, n) })
	}
	if !rest {
		return nil
	}
	if !m.deep && m.out == "" && s.torn(slices.Contains(m.roles, keyElder)) {
		return errKeyLeft
	}
	if m.inUse(s) {
		return errKeyInUse
	}
	return nil
}

func (m *keyModel) claims(c int) bool { return m.roles[c] == keyTake || m.roles[c] == keyElder }

// torn reports whether a node of the key is without those that it goes with. An earlier version may have left litter.
func (s *keyState) torn(litter bool) bool {
	var k, u uint8
	for i := range s.items {
		if it := &s.items[i]; it.at == keyQueued && it.keyed {
			k |= keyBit(uint8(i), it.place)
		}
	}
	if h := s.h; h.there {
		if s.items[h.item].until > 0 {
			u = 1 << h.item
		} else if s.k&keyBit(h.item, h.place) == 0 {
			return true
		}
	}
	if litter {
		return s.u != u
	}
	return s.k != k || s.u != u || k != 0 && (!s.h.there || k != keyBit(s.h.item, s.h.place))
}

// inUse reports whether the key is in use after all items have been acknowledged, litter was removed, and the time has passed.
func (m *keyModel) inUse(s keyState) bool {
	for i := range s.items {
		it := &s.items[i]
		if k := keyBit(uint8(i), it.place); it.at == keyQueued && s.k&k != 0 {
			s.k &^= k
			if it.until == 0 {
				s.h = keyHolder{}
			}
		}
	}
	elder := slices.Contains(m.roles, keyElder)
	for i := range uint8(keyItems) {
		for place := range uint8(keyPlaces) {
			if k := keyBit(i, place); elder && s.k&k != 0 {
				s.k &^= k
				if s.items[i].until == 0 && !m.rules.onlyK {
					s.h = keyHolder{}
				}
			}
		}
	}
	return s.h.there && (m.rules.holds || s.k&keyBit(s.h.item, s.h.place) != 0)
}

func (m *keyModel) outsider(s *keyState, emit func(string, keyState)) {
	if strings.Contains(m.out, "h") && s.h.there {
		n := *s
		n.out, n.outH = true, true
		n.setH(keyHolder{})
		emit("an outsider deletes h", n)
	}
	for i := range uint8(keyItems) {
		if strings.Contains(m.out, "u") && s.u&(1<<i) != 0 {
			n := *s
			n.out = true
			n.u &^= 1 << i
			emit(fmt.Sprint("an outsider deletes u of ", i), n)
		}
		for place := range uint8(keyPlaces) {
			if k := keyBit(i, place); strings.Contains(m.out, "k") && s.k&k != 0 {
				n := *s
				n.out = true
				n.k &^= k
				n.items[i].keyed = false
				emit(fmt.Sprint("an outsider deletes k of ", i), n)
			}
		}
	}
}

// keyEmit adds a step of an actor.
type keyEmit func(free bool, what string, n keyState)

func (m *keyModel) stepOf(s *keyState, c int, emit keyEmit) {
	a := &s.actors[c]
	switch role := m.roles[c]; {
	case a.at == keyEnded:
	case a.at == keyLost:
		n := *s
		b := &n.actors[c]
		applied := a.applied
		b.at, b.applied = keyCommits, false
		if applied && !m.rules.assumes {
			m.ended(&n, c)
		}
		emit(true, "reads the outcome", n)
	case role == keyPut, role == keyPutFor:
		if a.at == keyIdle {
			m.begin(s, c, emit)
		} else {
			m.put(s, c, emit)
		}
	case role == keyRedrive:
		if a.at != keyIdle {
			m.put(s, c, emit)
			return
		}
		for i := range uint8(keyItems) {
			if it := &s.items[i]; it.at == keyDead && it.moves < m.moves {
				n := *s
				n.actors[c] = keyActor{at: keyCommits, item: i, moves: it.moves, tag: it.letter}
				emit(false, fmt.Sprint("reads the dead letter ", i), n)
			}
		}
	case role == keyCollect:
		m.collect(s, c, emit)
	default:
		if a.at == keyIdle {
			m.list(s, c, emit)
		} else {
			m.end(s, c, emit)
		}
	}
}

func (m *keyModel) begin(s *keyState, c int, emit keyEmit) {
	n := *s
	b := &n.actors[c]
	b.at, b.item, b.tag = keyCommits, uint8(c), true
	if m.roles[c] == keyPutFor {
		n.items[c].until = s.clock + 1
	}
	emit(false, "begins", n)
	if a := &s.actors[c]; m.lag && !a.behind {
		n = *s
		b := &n.actors[c]
		b.behind, b.view = true, s.keyTree
		emit(false, "has a server that is behind", n)
	}
}

// put adds the steps of a put that has begun, or of a Redrive that has read a dead letter.
func (m *keyModel) put(s *keyState, c int, emit keyEmit) {
	a := &s.actors[c]
	reads := func(what string, f func(n *keyState, b *keyActor, tree keyTree)) {
		n := *s
		b := &n.actors[c]
		if a.behind { // only without the Sync
			f(&n, b, a.view)
			emit(true, what+" of a server that is behind", n)
			n = *s
			b = &n.actors[c]
			b.behind, b.view = false, keyTree{}
		}
		f(&n, b, s.keyTree)
		emit(true, what, n)
	}
	switch a.at {
	case keyCommits:
		places := uint8(1)
		if m.roles[c] == keyRedrive {
			places = keyPlaces
		}
		for place := range places {
			n := *s
			applied := m.commitPut(&n, c, place)
			what := "is refused"
			if applied {
				what = fmt.Sprintf("puts %d into bucket %d", a.item, place)
			}
			if s.lost < m.lost {
				l := n
				if l.lost++; applied {
					l.actors[c] = *a
					b := &l.actors[c]
					b.at, b.applied = keyLost, true
					emit(false, what+" and loses the reply", l)
				} else if place == 0 {
					l = *s
					l.lost++
					b := &l.actors[c]
					b.at = keyLost
					emit(false, "loses the request", l)
				}
			}
			if applied {
				m.ended(&n, c)
			}
			emit(true, what, n)
			if !applied {
				break
			}
		}
	case keySyncs:
		n := *s
		b := &n.actors[c]
		b.at, b.behind, b.view = keyReadsH, false, keyTree{}
		emit(true, "calls Sync", n)
	case keyReadsH:
		reads("reads h", func(n *keyState, b *keyActor, tree keyTree) {
			b.h, b.changed, b.u, b.stale = tree.h, false, false, false
			switch {
			case !tree.h.there:
				b.at = keyCommits
			case m.rules.noK:
				b.at = keyReadsU
			default:
				b.at = keyReadsK
			}
		})
	case keyReadsK:
		reads("reads k", func(n *keyState, b *keyActor, tree keyTree) {
			switch {
			case tree.k&keyBit(a.h.item, a.h.place) != 0 || m.rules.holds && s.items[a.h.item].until == 0:
				m.answers(n, c, a.h.item)
			case s.items[a.h.item].until > 0:
				b.at = keyReadsU
			default:
				b.at = keyReadsHAgain
			}
		})
	case keyReadsU:
		reads("reads u", func(n *keyState, b *keyActor, tree keyTree) {
			b.u, b.at = tree.u&(1<<a.h.item) != 0 || m.rules.needsU && s.items[a.h.item].until > 0, keyReadsHAgain
		})
	case keyReadsHAgain:
		reads("reads h again", func(n *keyState, b *keyActor, tree keyTree) {
			changed := a.changed && !b.behind
			b.changed = false
			switch {
			case changed && !m.rules.noSecond:
				b.at = keySyncs
			case s.items[a.h.item].until > 0 && a.h.item != a.item && !m.rules.noTime:
				b.at = keyJudges
			default:
				b.at, b.stale = keyCommits, true
			}
		})
	case keyJudges:
		n := *s
		if s.items[a.h.item].until > s.clock {
			m.answers(&n, c, a.h.item)
			emit(true, "finds that the time has not passed", n)
			return
		}
		b := &n.actors[c]
		b.at, b.stale = keyCommits, true
		emit(true, "finds that the time has passed", n)
	}
}

// answers ends a put, or a Redrive, since the item has the key.
func (m *keyModel) answers(s *keyState, c int, item uint8) {
	a := &s.actors[c]
	switch {
	case m.roles[c] == keyRedrive:
	case item == a.item:
		s.fault = keyOwn
	case (a.began|s.alive())&(1<<item) == 0:
		s.fault = keyForeign
	}
	m.ended(s, c)
}

// commitPut makes the commit of a put or a Redrive, and reports whether it is applied.
func (m *keyModel) commitPut(s *keyState, c int, place uint8) bool {
	a := &s.actors[c]
	it := &s.items[a.item]
	redrive := m.roles[c] == keyRedrive
	if redrive && (it.at != keyDead || it.moves != a.moves) {
		m.ended(s, c)
		return false
	}
	if a.tag {
		refused := keySyncs
		if m.rules.noSync {
			refused = keyReadsH
		}
		k, u := keyBit(a.item, place), uint8(1)<<a.item
		left := s.u
		over := redrive && m.rules.overwrites
		switch {
		case !a.tagged && s.k&k != 0:
			a.tagged = true
			return false
		case over:
		case !a.stale && s.h.there, a.stale && (!s.h.there || s.h.version != a.h.version):
			a.at = refused
			return false
		case a.stale && a.u:
			if left&(1<<a.h.item) == 0 && !m.rules.noU {
				a.at = refused
				return false
			}
			left &^= 1 << a.h.item
		}
		if it.until > 0 && !a.timed && left&u != 0 {
			a.timed = true
			return false
		}
		if !redrive && it.at != keyNowhere {
			s.fault = keyAgain
		}
		for i := range s.items {
			other := &s.items[i]
			switch {
			case i == int(a.item) || s.outH:
			case other.at == keyQueued && other.keyed:
				s.fault = keyTwice
			case other.acked && other.until > s.clock:
				s.fault = keyEarly
			}
		}
		if !a.tagged {
			s.k |= k
		}
		s.u = left
		if it.until > 0 && !a.timed {
			s.u |= u
		}
		h := keyHolder{there: true, item: a.item, place: place}
		if s.h.there {
			h.version = s.h.version + 1
		}
		s.setH(h)
	}
	it.at, it.place, it.keyed = keyQueued, place, a.tag
	if redrive {
		it.moves++
		it.letter = false
	}
	return true
}

// list adds the lists of an actor that ends items, or removes litter.
func (m *keyModel) list(s *keyState, c int, emit keyEmit) {
	role := m.roles[c]
	for i := range uint8(keyItems) {
		it := &s.items[i]
		if role == keySweep {
			for place := range uint8(keyPlaces) {
				if s.k&keyBit(i, place) != 0 && (it.at != keyQueued || it.place != place) {
					n := *s
					n.actors[c] = keyActor{at: keyCommits, item: i, place: place, withK: true, withH: it.until == 0 && !m.rules.onlyK}
					emit(false, fmt.Sprint("lists k without its item ", i), n)
				}
			}
			continue
		}
		if it.at != keyQueued || it.claimed {
			continue
		}
		tag := s.k&keyBit(i, it.place) != 0
		timed := it.until > 0
		a := keyActor{at: keyCommits, item: i, place: it.place, moves: it.moves, tag: tag, withK: tag, withH: tag, withU: tag && timed}
		if role == keyRemove {
			n := *s
			n.actors[c] = a
			emit(false, fmt.Sprint("lists ", i), n)
			continue
		}
		for _, bury := range []bool{false, true} {
			n := *s
			n.items[i].claimed = true
			b := &n.actors[c]
			*b = a
			b.bury = bury
			if role == keyElder {
				b.withK, b.withH, b.withU, b.tag = false, false, false, false
			} else if !bury && timed {
				b.withH, b.withU = false, false
			}
			what := "claims %d, to acknowledge it"
			if bury {
				what = "claims %d, to bury it"
			}
			emit(false, fmt.Sprintf(what, i), n)
		}
	}
}

// end adds the commit that ends an item, or removes litter.
func (m *keyModel) end(s *keyState, c int, emit keyEmit) {
	n := *s
	b := &n.actors[c]
	it := &n.items[b.item]
	k, u := keyBit(b.item, b.place), uint8(1)<<b.item
	mine := it.claimed
	if m.roles[c] == keyRemove {
		mine = it.at == keyQueued && !it.claimed && it.moves == b.moves
	}
	switch sweep := m.roles[c] == keySweep; {
	case !sweep && !mine, sweep && n.k&k == 0:
		m.ended(&n, c)
		emit(true, "finds no item", n)
		return
	case b.withK && n.k&k == 0:
		b.withK, b.withU = false, false
		b.withH = b.withH && m.rules.leavesH
		b.tag = m.rules.keepsKey
		emit(true, "finds no k", n)
		return
	case b.withH && !n.h.there:
		b.withH = false
		emit(true, "finds no h", n)
		return
	case b.withU && n.u&u == 0:
		b.withU = false
		emit(true, "finds no u", n)
		return
	}
	if b.withK {
		n.k &^= k
	}
	if b.withU {
		n.u &^= u
	}
	if b.withH {
		n.setH(keyHolder{})
	}
	what := "ends "
	if m.roles[c] == keySweep {
		what = "removes k of "
		if it.at == keyQueued && it.place == b.place {
			it.keyed = false
		}
	} else {
		it.claimed = false
		it.at = keyGone
		if b.bury {
			it.at, it.letter = keyDead, b.tag
		} else if m.claims(c) {
			it.acked = it.keyed && it.until > 0
		}
	}
	a := *b
	if n.lost < m.lost {
		l := n
		l.lost++
		l.actors[c] = a
		l.actors[c].at, l.actors[c].applied = keyLost, true
		emit(false, fmt.Sprint(what, a.item, " and loses the reply"), l)
	}
	m.ended(&n, c)
	emit(true, fmt.Sprint(what, a.item), n)
}

// collect adds the steps of the collector.
func (m *keyModel) collect(s *keyState, c int, emit keyEmit) {
	a := &s.actors[c]
	n := *s
	b := &n.actors[c]
	switch a.at {
	case keyIdle:
		for i := range uint8(keyItems) {
			if s.u&(1<<i) != 0 && s.items[i].until <= s.clock && s.rounds < m.rounds {
				n := *s
				n.rounds++
				n.actors[c] = keyActor{at: keyReadsH, item: i}
				emit(false, fmt.Sprint("lists u of ", i), n)
			}
		}
	case keyReadsH:
		b.h = s.h
		switch {
		case s.h.there:
			b.at = keyReadsK
		default:
			b.at = keyCommits
		}
		emit(true, "reads h", n)
	case keyReadsK:
		k := s.k&keyBit(a.h.item, a.h.place) != 0
		switch other := a.h.item != a.item; {
		case other && (k || m.rules.others):
			b.at, b.changed = keyCommits, false
		case other, k && !m.rules.livingToo:
			m.ended(&n, c)
		default:
			b.at = keyReadsHAgain
		}
		emit(true, "reads k", n)
	case keyReadsHAgain:
		b.at = keyCommits
		if b.changed = false; a.changed && !m.rules.collectOnce {
			m.ended(&n, c)
		}
		emit(true, "reads h again", n)
	case keyCommits:
		m.ended(&n, c)
		u := uint8(1) << a.item
		same, other := a.h.there && a.h.item == a.item, a.h.there && a.h.item != a.item
		switch {
		case s.u&u == 0, same && (!s.h.there || s.h.version != a.h.version), !a.h.there && s.h.there && !m.rules.notAbsent,
			other && s.k&keyBit(a.h.item, a.h.place) == 0 && !m.rules.others:
			emit(true, "is refused", n)
			return
		}
		n.u &^= u
		if same {
			if it := &s.items[s.h.item]; it.at == keyQueued && it.keyed && !s.outH {
				n.fault = keyLiving
			}
			n.setH(keyHolder{})
		}
		emit(true, fmt.Sprint("collects u of ", a.item), n)
	}
}
