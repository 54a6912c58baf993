package queue

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
)

// This file remembers the items that a list has shown, for claims without another list. The rules are T1 and T15 in rules.go.

// ahead is what a list has shown of the items that can be taken.
type ahead struct {
	s      *core.Session
	items  []layout.QueueEntry // in order
	reads  []*readAhead        // of each item; nil: it is not read
	until  time.Time           // the list is too old then
	next   int64               // when the service's clock shows this time, the list is too old too: another item can be taken; 0: never
	left   int                 // how many more claims may rely on the list
	missed bool                // a commit of Acks has failed to claim an item, and no claim was made since
	rival  bool                // another consumer has had one of the items
	taken  []string            // the ids of the items that were taken
	many   bool                // the service reads many nodes in one request
}

// The limits of the claims that rely on one list.
const (
	aheadClaims = 32
	aheadTime   = time.Second
	aheadRenew  = 4 // with so many claims left, the client lists the items again
)

// generation returns the present generation of lists.
func (q *Queue) generation() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.gen
}

// forget makes the client list the items again: it has given an item back, or has put one that
// can come before the others.
func (q *Queue) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gen++
	q.forgetLocked()
}

// beginList forgets the remembered items, so that no Ack claims one of them while the feeder lists. It reports false if
// Acks make claims now, which the list could miss.
func (q *Queue) beginList() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gen++
	q.forgetLocked()
	return q.beside.n == 0
}

// forgetLocked forgets the remembered items. The caller holds q.mu.
func (q *Queue) forgetLocked() {
	if a := &q.ahead; a.rival {
		q.run = 0
	} else if a.s != nil {
		q.run = len(a.taken)
	}
	q.ahead = ahead{}
}

// forgetAfter makes the client list the items again if it remembers one that is due after the
// given time, at which an item that it has put is due.
func (q *Queue) forgetAfter(due int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gen++ // a list that is under way may not show the item
	if n := len(q.ahead.items); n > 0 && q.ahead.items[n-1].Due > due {
		q.forgetLocked()
	}
}

// keep remembers items of a list, those that the caller does not claim, unless the generation gen is
// over. It reports whether it does. It ends the generation: another list that was
// under way can show items that the caller claims from this list.
func (q *Queue) keep(s *core.Session, began time.Time, gen int, v *sight, items []layout.QueueEntry) bool {
	many := s.Backend().Features().Has(backend.Batches)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.keepLocked(s, began, gen, v, items, many)
}

func (q *Queue) keepLocked(s *core.Session, began time.Time, gen int, v *sight, items []layout.QueueEntry, many bool) bool {
	if q.kind == layout.KindPriorityQueue || gen != q.gen || !v.retry.IsZero() {
		return false
	}
	q.gen++
	q.ahead = ahead{s: s, items: items, reads: make([]*readAhead, len(items)), until: began.Add(aheadTime), next: v.next, left: q.aheadClaims, many: many}
	return true
}

// renews reports whether the list of remembered items is renewed, see T15. The caller holds q.mu.
func (q *Queue) renews() bool {
	return q.kind == layout.KindQueue && q.prefetch == 1 && !q.ahead.rival && q.rivals == 0
}

// renewLocked lists the items again, beside a claim, if few claims are left. The caller holds q.mu.
func (q *Queue) renewLocked() {
	a, gen := &q.ahead, q.gen
	if !q.renews() || a.left != aheadRenew || len(a.items) <= a.left {
		return
	}
	s := a.s
	q.c.GoWork(func() { // it outlasts the call, which does not wait for it
		began := time.Now()
		v, err := q.walk(context.Background(), s, math.MaxInt, nil, nil, q.stuckItems(), learnsLater)
		if err == nil {
			q.renew(s, began, gen, &v)
		}
	})
}

// renew replaces the list of remembered items, unless the generation gen is over. It leaves out the items that were
// taken from the old list. For the others it keeps the reads that have begun.
func (q *Queue) renew(s *core.Session, began time.Time, gen int, v *sight) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old := q.ahead
	if gen != q.gen || old.s != s || !q.renews() {
		return
	}
	items := slices.DeleteFunc(v.found, func(e layout.QueueEntry) bool { return slices.Contains(old.taken, e.ID) })
	q.forgetLocked()
	if !q.keepLocked(s, began, gen, v, items, old.many) {
		return
	}
	for i, r := range old.reads {
		if r == nil {
			continue // nearly all of them: a list can have hundreds of items, and q.mu is held
		}
		k := slices.IndexFunc(items, func(e layout.QueueEntry) bool { return e.ID == old.items[i].ID })
		if k >= 0 && fresh(items[k:k+1]) > 0 {
			q.ahead.reads[k] = r
		}
	}
}

// atOnce returns how many of items, from the first on and want at most, one commit may claim. An
// item that was claimed before is claimed alone: if the item kills its consumers, it costs no other
// item an attempt. If the first attempt is the last, every item is claimed alone; so is an item with options, for
// which that can be so.
func (q *Queue) atOnce(items []layout.QueueEntry, want int) int {
	want = min(want, len(items))
	if q.maxAttempts == 1 {
		return min(want, 1)
	}
	for i := range want {
		if items[i].State || items[i].Options {
			return max(i, 1)
		}
	}
	return want
}

// noteMissed records that another consumer was faster with a remembered item. No commit of Acks claims an item before the next hit.
func (q *Queue) noteMissed(s *core.Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ahead.s == s {
		q.ahead.missed, q.ahead.rival = true, true
	}
}

// tries returns the number of the next attempt to claim a remembered item, from 1 on: the failure of a commit
// of Acks counts.
func (q *Queue) tries() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ahead.missed {
		return 2
	}
	return 1
}

// hit records that a remembered item was claimed.
func (q *Queue) hit() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ahead.missed = false
}

// next returns remembered items to claim in one commit, want at most, and their reads, which can be nil. It returns
// none if fewer items are remembered than one commit may claim.
func (q *Queue) next(s *core.Session, want int) ([]layout.QueueEntry, []*readAhead) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nextLocked(s, want)
}

func (q *Queue) nextLocked(s *core.Session, want int) (found []layout.QueueEntry, reads []*readAhead) {
	a := &q.ahead
	n := q.atOnce(a.items, want)
	short := n < want && n == len(a.items) // the list may not show all that one commit may claim
	if a.s != s || a.left == 0 || n == 0 || short || time.Now().After(a.until) || a.next > 0 && s.Clock().UntilDue(a.next) <= 0 {
		q.forgetLocked()
		return nil, nil
	}
	q.readLocked(n, 0)
	a.left--
	found, reads = a.items[:n:n], slices.Clone(a.reads[:n])
	for i := range found {
		a.taken = append(a.taken, found[i].ID)
	}
	clear(a.reads[:n]) // the data is freed with the claims
	a.items, a.reads = a.items[n:], a.reads[n:]
	q.renewLocked()
	return found, reads
}
