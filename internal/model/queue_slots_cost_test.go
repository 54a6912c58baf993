//go:build !race

package model

import "testing"

// fillPace is how a consumer that has vacated a slot evicts waiters until the slot is taken.
type fillPace struct {
	name   string
	pause  int // half round trips that it waits for the slot before each eviction
	repeat int // it evicts the same number so many times before it doubles it
	all    bool
	single bool
}

// fillCost is what it costs until a slot is taken that was vacated, while the first waiters
// are dead.
type fillCost struct {
	requests int     // of the consumer that has vacated the slot
	evicted  int     // live waiters, each of which joins the line again
	delay    float64 // round trips until the slot is taken; one is the least
}

// fillSlot follows one vacated slot. The unit is half a round trip: the time between a commit
// and its event, or its reply. One request each lists the slots and the waiters, and one evicts;
// those of one round travel together. A waiter takes the slot some time after the commit that
// woke it: two round trips, if it lists the line and the slots at once and together.
func fillSlot(p fillPace, waiters, dead, reaction int) (c fillCost) {
	filled := -1 // when the slot is taken
	if dead == 0 {
		filled = reaction
	}
	evicted, size, times := 0, 1, 0
	at := 2
	c.requests = 2
	for evicted < waiters {
		// The watch on the slots ends the pause.
		if filled >= 0 && (filled <= at || filled+1 <= at+1+p.pause) {
			break
		}
		at += 2 + p.pause
		n := size
		if p.all {
			n = waiters
		}
		n = min(n, waiters-evicted)
		evicted += n
		c.requests += 3
		if times++; times == p.repeat && !p.single {
			size, times = 2*size, 0
		}
		if evicted >= dead && evicted-n <= dead && filled < 0 {
			filled = at + reaction
		}
	}
	c.evicted = max(0, evicted-dead)
	c.delay = float64(max(filled, 0)) / 2
	return c
}

func TestTheCostOfASlotBehindDeadWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 1000
	for _, p := range []fillPace{
		{name: "one waiter a round, no pause", single: true},
		{name: "all waiters at once", all: true},
		{name: "doubling, no pause", repeat: 1},
		{name: "doubling each third round, no pause", repeat: 3},
		{name: "doubling after a pause of 10 round trips", repeat: 1, pause: 20},
	} {
		for _, dead := range []int{0, 1, 10, 100, 900} {
			c := fillSlot(p, waiters, dead, 4)
			t.Logf("figure: a slot behind %d dead of %d idle consumers, %s: %d requests, %d live waiters evicted, taken after %g round trips", dead, waiters, p.name, c.requests, c.evicted, c.delay)
			if c.delay == 0 {
				t.Errorf("%s: with %d dead the slot is never taken", p.name, dead)
			}
			if more := fillSlot(p, 10*waiters, dead, 4); dead <= 100 && !p.all && more != c {
				t.Errorf("%s: with %d dead the cost grows with the line: %+v, %+v", p.name, dead, c, more)
			}
			if p.pause == 0 && dead == 0 {
				slow := fillSlot(p, waiters, dead, 20)
				t.Logf("figure: a slot before %d idle consumers that take 10 round trips to react, %s: %d requests, %d live waiters evicted", waiters, p.name, slow.requests, slow.evicted)
			}
			if p.pause > 0 && c.evicted > dead+1 {
				t.Errorf("%s: %d live waiters were evicted for %d dead ones", p.name, c.evicted, dead)
			}
		}
	}
}

func TestWakeUpsDoNotGrowWithTheIdleConsumers(t *testing.T) {
	t.Parallel()
	sizes := []int{3, 4}
	if long() {
		sizes = append(sizes, 5)
	}
	for _, n := range sizes {
		m := slotModel{k: 2, n: n, items: 1, deaths: 1}
		m.mustHold(t)
		t.Logf("figure: 2 slots and %d consumers: a put wakes at most %d, a claim %d", n, m.woken["put"], m.woken["claim with a slot"])
		if m.woken["put"] != m.k || m.woken["claim with a slot"] != 1 {
			t.Errorf("%d consumers: %v", n, m.woken)
		}
	}
}
