//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/itemlog"
	"github.com/go-coord/coord/internal/zklog"
)

// lives are the items of a queue, by the servers' logs and the calls of consumers.
type lives struct {
	*itemlog.Log
	returned int // claims that no consumer received, and that were given back
}

// livesOf replays what happened to the items of a queue, and compares it with the calls that took
// items and gave them back. An attempt counts if its consumer failed, or died. One that no consumer
// received, or that its consumer gave back, counts only if its session has ended. If a fault set the clock of the service, a claim
// can be early, and no consumer may receive it.
func livesOf(log []zklog.Txn, work string, most int, calls, faults []*call) *lives {
	all := &lives{Log: itemlog.New(map[string]itemlog.Queue{queuePaths[work]: {Name: work, Most: most}})}
	all.ClockSet = during(faults, clockFaults, 0, forever)
	for _, x := range log {
		all.Apply(x)
	}
	received, givenBack := make(map[string]*call), make(map[string]*call)
	for _, c := range calls {
		switch {
		case c.outcome == "ok" && c.Op == "take":
			received[c.Old] = c
		case c.Op == "giveback":
			givenBack[c.Old] = c
		}
	}
	for _, it := range all.Items {
		for _, c := range it.Claims {
			all.compare(it, c, received[c.Mark], givenBack[c.Mark])
		}
	}
	return all
}

// compare compares a claim with the call that received it and the one that gave it back, if any.
func (all *lives) compare(it *itemlog.Item, c *itemlog.Claim, took, back *call) {
	errorf := func(format string, args ...any) {
		all.Wrong = append(all.Wrong, fmt.Sprintf("%v, claimed in %#x: ", it, c.Zxid)+fmt.Sprintf(format, args...))
	}
	if took != nil && took.Num != int64(c.Attempt) {
		errorf("delivered as attempt %d, and it was %d: %v", took.Num, c.Attempt, took)
	}
	if took != nil && c.Early > 0 {
		errorf("delivered although it was claimed %v early: %v", c.Early, took)
	}
	switch c.End {
	case itemlog.GivenBack:
		if took == nil {
			all.returned++
		} else if back == nil {
			errorf("attempt %d does not count, and its consumer did not give the item back: %v", c.Attempt, took)
		}
	case itemlog.Failed, itemlog.Buried:
		if took == nil {
			errorf("attempt %d counts, and no consumer received the item", c.Attempt)
		}
		if back != nil && back.outcome == "ok" {
			errorf("attempt %d counts, and the consumer gave the item back: %v", c.Attempt, back)
		}
	}
}

// byValue returns the items by their values.
func (all *lives) byValue() map[string]item {
	items := make(map[string]item)
	for _, l := range all.Items {
		if l.Puts == 0 {
			continue
		}
		it := items[l.Value]
		it.created += l.Puts
		it.deleted += l.Acks + l.Removed + l.Drained
		it.removed += l.Removed + l.Drained
		it.back = append(it.back, l.Back...)
		items[l.Value] = it
	}
	return items
}

// count returns how many items were moved to the dead letters, and how many were put back.
func (all *lives) count() (dead, back int) {
	for _, it := range all.Items {
		dead += it.Moves
		back += len(it.Back)
	}
	return dead, back
}

// checkLetters compares the items that were put back, and those that were deleted without a claim,
// with the calls of Redrive and Remove, each of which is for one item.
func checkLetters(calls []*call, all *lives) (wrong []string) {
	type count struct{ sure, maybe int }
	made := make(map[string]count) // by operation and id
	for _, c := range calls {
		n := made[c.Op+" "+c.ID]
		switch c.outcome {
		case "ok":
			n.sure++
		case "unknown":
			n.maybe++
		}
		made[c.Op+" "+c.ID] = n
		if all.Items[c.ID] == nil {
			wrong = append(wrong, fmt.Sprintf("of an item that was never put: %v", c))
		}
	}
	for id, it := range all.Items {
		for _, x := range []struct {
			op  string
			did int
		}{{"redrive", len(it.Back)}, {"remove", it.Removed + it.Drained}} {
			if n := made[x.op+" "+id]; x.did < n.sure || x.did > n.sure+n.maybe {
				wrong = append(wrong, fmt.Sprintf("%v: %d times %s by the servers' logs, and calls report %d, and %d may have been applied", it, x.did, x.op, n.sure, n.maybe))
			}
		}
	}
	return wrong
}

// retryDelay is the delay after which Work delivers an item again whose handler has failed.
func retryDelay(attempt int) time.Duration { return 100 * time.Millisecond << (attempt - 1) }

// checkRetries finds items that were delivered again before the delay of their last Nack, its Num,
// had passed. The delay is by the service's clock, as in checkDelays.
func checkRetries(takes, nacks, faults []*call) (wrong []string) {
	due, ended := make(map[string]int64), make(map[string]int64) // by the mark of the claim that ended
	for _, c := range nacks {
		if c.happened() && c.Num > 0 {
			due[c.Old], ended[c.Old] = c.from+c.Num, c.from
		}
	}
	of := make(map[string][]*call)
	for _, c := range takes {
		if c.outcome == "ok" {
			of[c.Value] = append(of[c.Value], c)
		}
	}
	for _, list := range of {
		slices.SortFunc(list, func(a, b *call) int { return int(min(1, max(-1, a.Token-b.Token))) })
		for i, c := range list[min(1, len(list)):] {
			mark := list[i].Old
			if early := time.Duration(due[mark] - c.to); early > clockError && !during(faults, clockFaults, ended[mark], c.to) {
				wrong = append(wrong, fmt.Sprintf("delivered again %v before its time: %v, and then %v", early, list[i], c))
			}
		}
	}
	return wrong
}

// lengthAt is the length of the queue with a limit after a transaction.
type lengthAt struct {
	zxid   int64
	length int
}

// foundFull reports whether a call was refused because the queue was full.
func foundFull(c *call) bool {
	return c.outcome == "no" && strings.Contains(c.Err, coord.ErrFull.Error())
}

// roomy returns the calls that found the queue full although it had room all the time, by the
// logs. Where a service allows that a read after a Sync is stale, it allows that too.
func (l *ledger) roomy(calls, all []*call) (list []*call) {
	// The calls whose transactions are known bound those that were committed during another call.
	for _, c := range calls {
		first, last := int64(0), int64(forever)
		for _, o := range all {
			if o.zxid == 0 || !o.happened() {
				continue
			}
			if o.to <= c.from {
				first = max(first, o.zxid)
			}
			if o.from >= c.to {
				last = min(last, o.zxid)
			}
		}
		most := 0
		for _, at := range l.lengths {
			switch {
			case at.zxid <= first:
				most = at.length
			case at.zxid <= last:
				most = max(most, at.length)
			}
		}
		if most < priorityLimit {
			list = append(list, c)
		}
	}
	return list
}
