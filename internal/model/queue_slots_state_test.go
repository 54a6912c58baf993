//go:build !race

package model

import (
	"bytes"
	"fmt"
)

// The consumers of a queue that wait with slots. The nodes are
//
//	<queue>/slots/<i>            ephemeral; i is one of k fixed names
//	<queue>/waiters/<guid>-<seq> ephemeral; the line
//
// 1. Only the holder of a slot watches the items. A consumer becomes a holder only by its own
// commit, which creates the node of the slot. So no dead consumer becomes a holder.
//
// 2. A holder lists the items with a watch before it waits.
//
// 3. A consumer that sees no free slot creates a waiter, and then lists the waiters and the
// slots. Whatever its place in the line is, it takes a free slot, by the commit {create slot,
// delete waiter}. While it does its part of rule 6 itself, it takes no free slot before the others:
// it joins the line if there is one, and takes a slot only if it is the first. It lists again when
// it is done.
//
// 4. A consumer that was woken arms its watches again, no later than it lists.
//
// 5. A claim deletes the slot of its consumer, in the same commit.
//
// 6. A consumer that has vacated a slot, by a claim or because it gives up, lists the slots
// and the waiters until no slot is free or no waiter is left. In between it evicts waiters: it
// deletes the first of the line. How many, and how soon, does not matter for the guarantee. A
// waiter watches its own node. If it was evicted, it begins again.
//
// 7. The first waiter watches the slots, each other waiter the one before it.
//
// 8. A holder's watch also fires when the claim of an item goes with its session.
//
// 9. A claim checks that the item is as the list has shown it.
//
// 10. A consumer whose commit is refused calls Sync before it lists again.
//
// 11. A consumer that does not know the outcome of a commit calls Sync, and reads.
//
// 12. A consumer that acknowledges an item can claim another one in the same commit. It has no slot then, so
// nothing is vacated. queue_next_test.go has the rules of that commit.
//
// The guarantee is that no item can be taken while a live consumer waits, unless k consumers
// that held slots are dead: each of them as a holder, or before it has done its part of rule 6.
// If all holders are dead, the expiry of any of them ends the wait, unless the first waiter is
// dead as well. At most k consumers watch the items, and one the slots.
//
// A consumer that is paused is one whose steps come late. The model has two simplifications. A
// server that lags behind catches up in one step. A list of the items is one step, and so is an
// eviction with the list of the waiters before it.

const (
	slotTakers = 5 // most consumers of a model
	slotSlots  = 3 // most slots
	slotItems  = 2
	slotLags   = 2 // most sessions whose servers lag behind at the same time
)

// slotAt is what a consumer is about to do, or what it waits for.
type slotAt uint8

const (
	slotIdle      slotAt = iota // wants no item
	slotWorks                   // has an item
	slotAsks                    // lists the items for the first time
	slotGrabs                   // claims an item without a slot
	slotSeeks                   // lists the slots
	slotJoins                   // creates its waiter
	slotRanks                   // lists the waiters, and watches its own and the one before
	slotPeeks                   // lists the slots; the first waiter watches them
	slotTakes                   // creates a slot, and deletes its waiter
	slotStands                  // waits in the line
	slotLooks                   // has a slot; lists the items with a watch
	slotClaims                  // claims an item with a slot
	slotHolds                   // waits for an item
	slotArms                    // watches what it has listed before, only without a rule
	slotGrabLost                // does not know whether slotGrabs was applied
	slotJoinLost                // nor slotJoins
	slotTakeLost                // nor slotTakes
	slotClaimLost               // nor slotClaims
)

// slotFill is what a consumer that has vacated a slot does until no slot is free.
type slotFill uint8

const (
	fillDone   slotFill = iota
	fillLists           // lists the slots
	fillEvicts          // has seen a free slot: lists the waiters, and evicts some
)

// slotFate is what became of a session.
type slotFate uint8

const (
	slotLives   slotFate = iota
	slotDead             // the consumer does nothing any more, and its nodes stay
	slotExpired          // its nodes are gone
)

// Watches that are armed. slotWatchOwn is on the own waiter, slotWatchPred on the one before.
const (
	slotWatchItems = 1 << iota
	slotWatchSlots
	slotWatchOwn
	slotWatchPred
)

// slotTouch is what a commit changes, as far as watches are concerned.
type slotTouch uint16

const (
	touchItems  slotTouch = 1 << iota
	touchSlots            // a slot was taken or left
	touchWaiter           // shifted by the consumer: its waiter was created or deleted
	touchData   = touchWaiter << slotTakers
)

// The states of an item; from itemMarked on it is claimed by a consumer.
const (
	itemNone = iota
	itemFree
	itemMarked
)

// slotTree is what the service stores. Consumers are counted from 1.
type slotTree struct {
	slots [slotSlots]uint8
	line  [slotTakers]uint8 // the waiters in order
	items [slotItems]uint8
}

// slotTaker is a consumer.
type slotTaker struct {
	at    slotAt
	fate  slotFate
	watch uint8
	pred  uint8 // the consumer whose waiter it watches
	pick  uint8 // the slot or item it is about to take
	lined bool  // it has a waiter, as far as it knows
	woken bool  // with slotPeeks: one of its watches has fired
	fill  slotFill
	tried uint8 // with rules.nudges: the waiters that it has woken
}

// slotLag is a session whose server lags behind. It sees tree.
type slotLag struct {
	who     uint8 // counted from 1; 0: none
	tree    slotTree
	touched slotTouch // since tree
}

type slotState struct {
	tree   slotTree
	takers [slotTakers]slotTaker
	lags   [slotLags]slotLag
	deaths uint8
	fault  slotFault
}

// slotFault is what a step has violated.
type slotFault uint8

const (
	slotSound slotFault = iota
	slotTwice
	slotCollects
	slotSecond
)

func (f slotFault) err() error {
	return [...]error{slotTwice: errSlotTwice, slotCollects: errSlotCollects, slotSecond: errSlotSecond}[f]
}

// lagOf returns the lag of the session of c, or nil. A c of -1 is for one that is free.
func (s *slotState) lagOf(c int) *slotLag {
	for i := range s.lags {
		if int(s.lags[i].who) == c+1 {
			return &s.lags[i]
		}
	}
	return nil
}

// drop ends a lag.
func (s *slotState) drop(l *slotLag) {
	*l = slotLag{}
	if s.lags[0].who == 0 {
		s.lags[0], s.lags[1] = s.lags[1], s.lags[0]
	}
}

// view is the tree as the session of c sees it.
func (s *slotState) view(c int) *slotTree {
	if l := s.lagOf(c); l != nil {
		return &l.tree
	}
	return &s.tree
}

// missed is what has changed since the view of c.
func (s *slotState) missed(c int) slotTouch {
	if l := s.lagOf(c); l != nil {
		return l.touched
	}
	return 0
}

func (t *slotTree) rank(c int) int { return bytes.IndexByte(t.line[:], uint8(c+1)) }

func (t *slotTree) slotOf(c int) int { return bytes.IndexByte(t.slots[:], uint8(c+1)) }

func (t *slotTree) freeItem() int { return bytes.IndexByte(t.items[:], itemFree) }

func (t *slotTree) noItem(items int) int { return bytes.IndexByte(t.items[:items], itemNone) }

func (t *slotTree) freeSlot(k int) int { return bytes.IndexByte(t.slots[:k], 0) }

// has reports whether c has a node.
func (t *slotTree) has(c int) bool {
	return t.slotOf(c) >= 0 || t.rank(c) >= 0 || bytes.IndexByte(t.items[:], itemMarked+uint8(c)) >= 0
}

// strike deletes the waiter of c.
func (t *slotTree) strike(c int) {
	i := t.rank(c)
	copy(t.line[i:], t.line[i+1:])
	t.line[slotTakers-1] = 0
}

// renamed returns s with its consumers in another order. It depends on what they do, so that
// most states that differ only in the names of the consumers become one.
func (s *slotState) renamed(n int) slotState {
	var key [slotTakers]uint64
	var order [slotTakers]int
	for c := range n {
		t := &s.takers[c]
		k := uint64(t.at)<<8 | uint64(t.fate)<<6 | uint64(t.watch)
		k = k<<8 | uint64(t.pick)<<6 | uint64(t.fill)
		if t.lined {
			k |= 1 << 5
		}
		if t.woken {
			k |= 1 << 4
		}
		k = k<<4 | uint64(s.tree.rank(c)+1)
		k = k<<4 | uint64(s.tree.slotOf(c)+1)
		for i, it := range s.tree.items {
			if int(it) == itemMarked+c {
				k |= 1 << (60 + i)
			}
		}
		for i := range s.lags {
			l := &s.lags[i]
			if int(l.who) == c+1 {
				k |= 1 << (58 + i)
			}
			k = k<<3 | uint64(l.tree.rank(c)+1)
			k = k<<3 | uint64(l.tree.slotOf(c)+1)
		}
		key[c] = k
		i := c
		for i > 0 && key[order[i-1]] > k {
			order[i] = order[i-1]
			i--
		}
		order[i] = c
	}
	if s.lags[1].who != 0 && s.lags[1].who < s.lags[0].who {
		s.lags[0], s.lags[1] = s.lags[1], s.lags[0]
	}
	var to [slotTakers + 1]uint8 // the new names, counted from 1
	same := true
	for i := range n {
		to[order[i]+1] = uint8(i + 1)
		same = same && order[i] == i
	}
	if same {
		return *s
	}
	r := *s
	for i := range n {
		r.takers[i] = s.takers[order[i]]
		r.takers[i].pred = to[r.takers[i].pred]
		r.takers[i].tried = renameMask(r.takers[i].tried, &to)
	}
	r.tree.rename(&to)
	for i := range r.lags {
		l := &r.lags[i]
		l.who = to[l.who]
		l.tree.rename(&to)
		nodes := renameMask(uint8(l.touched/touchWaiter)&(1<<slotTakers-1), &to)
		data := renameMask(uint8(l.touched/touchData), &to)
		l.touched = l.touched&(touchWaiter-1) | slotTouch(nodes)*touchWaiter | slotTouch(data)*touchData
	}
	return r
}

func renameMask(mask uint8, to *[slotTakers + 1]uint8) (r uint8) {
	for c := range slotTakers {
		if mask&(1<<c) != 0 {
			r |= 1 << (to[c+1] - 1)
		}
	}
	return r
}

func (t *slotTree) rename(to *[slotTakers + 1]uint8) {
	for i, c := range t.slots {
		t.slots[i] = to[c]
	}
	for i, c := range t.line {
		t.line[i] = to[c]
	}
	for i, it := range t.items {
		if it >= itemMarked {
			t.items[i] = itemMarked - 1 + to[it-itemMarked+1]
		}
	}
}

// slotStep is a step of a consumer, or of the service if who is negative.
type slotStep struct {
	what string
	who  int
	free bool
}

func (a slotStep) String() string {
	if a.who < 0 {
		return a.what
	}
	return fmt.Sprint(a.who, " ", a.what)
}
