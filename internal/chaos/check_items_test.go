//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zklog"
)

// place is where an item is.
type place string

const (
	nowhere       place = "not put"
	inQueue       place = "in the queue"
	inDeadLetters place = "in the dead letters"
	gone          place = "deleted"
)

// life is what happened to an item of a queue, by the servers' logs.
type life struct {
	id, value string
	place     place
	attempts  int    // that count; a Redrive sets them to 0
	mark      string // of the claim; "" if there is none
	attempt   int    // of that claim
	puts      int
	acks      int     // how often it was deleted under its claim
	moves     int     // to the dead letters
	removed   int     // how often it was deleted without a claim
	back      []int64 // the transactions that put it back into the queue
}

// lives are the items of a queue, by id.
type lives struct {
	items    map[string]*life
	wrong    []string
	returned int // claims that no consumer received, and that were given back
}

// itemStep is what one transaction does with one item.
type itemStep struct {
	put, left   bool // it creates or deletes the item in the queue
	died, rose  bool // it creates or deletes the item in the dead letters
	data        string
	reason      bool     // it creates the reason of the dead letter
	mark        string   // that it creates
	ended       []string // marks that it deletes
	state       string   // that it writes
	stateless   bool     // it deletes the state
	sessionEnds bool
}

// livesOf replays what happened to the items of a queue. An attempt counts if its consumer failed,
// or died. One that no consumer received, or that its consumer gave back, counts only if its session
// has ended. An item that failed most times, unless most is 0, is moved to the dead letters, in one
// transaction, and is not claimed any more. calls are those that took items and gave them back.
func livesOf(log []zklog.Txn, work string, most int, calls []*call) *lives {
	at := queuePaths[work]
	received, givenBack := make(map[string]*call), make(map[string]*call)
	for _, c := range calls {
		switch {
		case c.outcome == "ok" && c.Op == "take":
			received[c.Old] = c
		case c.Op == "giveback":
			givenBack[c.Old] = c
		}
	}
	all := &lives{items: make(map[string]*life)}
	steps := make(map[string]*itemStep)
	for i := range log {
		x := &log[i]
		clear(steps)
		for _, op := range x.Ops {
			if strings.HasPrefix(op.Path, at+"/") {
				addToStep(steps, at, op)
			}
		}
		for id, s := range steps {
			s.sessionEnds = x.Type == zklog.CloseSession
			all.step(x.Zxid, id, s, most, received, givenBack)
		}
	}
	return all
}

// addToStep notes what an operation does with an item.
func addToStep(steps map[string]*itemStep, at string, op zklog.Op) {
	below, live := strings.CutPrefix(op.Path, at+"/items/")
	if !live {
		var dead bool
		if below, dead = strings.CutPrefix(op.Path, at+"/dead/items/"); !dead {
			return
		}
	}
	_, name, _ := strings.Cut(below, "/")
	of := func(id string) *itemStep {
		if steps[id] == nil {
			steps[id] = new(itemStep)
		}
		return steps[id]
	}
	if id, _, ok := layout.CutID(name, layout.ItemPrefix); ok {
		s := of(id)
		switch {
		case op.IsCreate() && live:
			s.put, s.data = true, string(op.Data)
		case op.IsCreate():
			s.died, s.data = true, string(op.Data)
		case op.IsDelete() && live:
			s.left = true
		case op.IsDelete():
			s.rose = true
		}
		return
	}
	if !live { // no consumer takes dead letters
		if id, ok := strings.CutPrefix(name, layout.ReasonPrefix); ok && op.IsCreate() {
			of(id).reason = true
		}
		return
	}
	if id, _, ok := layout.CutID(name, layout.MarkPrefix); ok {
		if s := of(id); op.IsCreate() {
			s.mark = op.Path
		} else if op.IsDelete() {
			s.ended = append(s.ended, op.Path)
		}
	} else if id, ok := strings.CutPrefix(name, layout.StatePrefix); ok {
		if s := of(id); op.IsDelete() {
			s.stateless = true
		} else {
			s.state = string(op.Data)
		}
	}
}

// counts reports whether the step writes n into the state of the item, with or without the sign of a
// Nack.
func (s *itemStep) counts(n int) bool {
	got, _ := layout.ParseAttempts([]byte(s.state))
	return s.state != "" && got == n
}

func (all *lives) step(zxid int64, id string, s *itemStep, most int, received, givenBack map[string]*call) {
	it := all.items[id]
	if it == nil {
		it = &life{id: id, place: nowhere}
		all.items[id] = it
	}
	errorf := func(format string, args ...any) {
		all.wrong = append(all.wrong, fmt.Sprintf("%s (%s), in %#x: ", id, it.value, zxid)+fmt.Sprintf(format, args...))
	}
	ends := it.mark != "" && slices.Contains(s.ended, it.mark)
	if ends {
		took := received[it.mark]
		switch {
		case s.sessionEnds:
			it.attempts = it.attempt
		case s.left && !s.died: // acknowledged
		case !s.left && (s.counts(it.attempt-1) || s.stateless && it.attempt == 1): // given back
			if took == nil {
				all.returned++
			} else if givenBack[it.mark] == nil {
				errorf("attempt %d does not count, and its consumer did not give the item back: %v", it.attempt, took)
			}
		default:
			it.attempts = it.attempt
			if took == nil {
				errorf("attempt %d counts, and no consumer received the item", it.attempt)
			}
			if c := givenBack[it.mark]; c != nil && c.outcome == "ok" {
				errorf("attempt %d counts, and the consumer gave the item back: %v", it.attempt, c)
			}
			if !s.left && most > 0 && it.attempts >= most {
				errorf("attempt %d has failed, and the item is not moved to the dead letters", it.attempt)
			}
		}
		it.mark = ""
	}
	// move complains about an item that is elsewhere.
	move := func(doing string, from, to place) {
		if it.place != from {
			errorf("%s, and it is %s", doing, it.place)
		}
		it.place = to
	}
	switch {
	case s.died:
		move("moved to the dead letters", inQueue, inDeadLetters)
		it.moves++
		switch {
		case !s.left:
			errorf("in the dead letters, and not deleted in the queue")
		case it.mark != "":
			errorf("moved to the dead letters from under a claim")
		case most == 0 || it.attempts != most:
			errorf("moved to the dead letters after %d attempts of %d", it.attempts, most)
		case !s.reason:
			errorf("moved to the dead letters without its reason")
		}
		if s.data != it.value {
			errorf("moved to the dead letters as %q", s.data)
		}
	case s.put && s.rose:
		move("put back from the dead letters", inDeadLetters, inQueue)
		it.attempts, it.back = 0, append(it.back, zxid)
		if s.data != it.value {
			errorf("put back as %q", s.data)
		}
	case s.put:
		it.value = s.data
		it.puts++
		move("put", nowhere, inQueue)
	case s.left:
		move("deleted", inQueue, gone)
		switch {
		case ends && !s.sessionEnds:
			it.acks++
		case it.mark != "":
			errorf("deleted from under a claim")
		default:
			it.removed++
		}
	case s.rose:
		move("deleted in the dead letters", inDeadLetters, gone)
		it.removed++
	}
	if s.mark == "" {
		return
	}
	switch {
	case it.place != inQueue:
		errorf("claimed, and it is %s", it.place)
	case it.mark != "":
		errorf("claimed twice at a time")
	case most > 0 && it.attempts >= most:
		errorf("claimed again after %d attempts of %d", it.attempts, most)
	case !s.counts(it.attempts + 1):
		errorf("claimed as attempt %s after %d attempts", s.state, it.attempts)
	}
	it.mark, it.attempt = s.mark, it.attempts+1
	if took := received[s.mark]; took != nil && took.Num != int64(it.attempt) {
		errorf("delivered as attempt %d, and it was %d: %v", took.Num, it.attempt, took)
	}
}

// byValue returns the items by their values.
func (all *lives) byValue() map[string]item {
	items := make(map[string]item)
	for _, l := range all.items {
		if l.puts == 0 {
			continue
		}
		it := items[l.value]
		it.created += l.puts
		it.deleted += l.acks + l.removed
		it.removed += l.removed
		it.back = append(it.back, l.back...)
		items[l.value] = it
	}
	return items
}

// count returns how many items were moved to the dead letters, and how many were put back.
func (all *lives) count() (dead, back int) {
	for _, it := range all.items {
		dead += it.moves
		back += len(it.back)
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
		if all.items[c.ID] == nil {
			wrong = append(wrong, fmt.Sprintf("of an item that was never put: %v", c))
		}
	}
	for id, it := range all.items {
		for _, x := range []struct {
			op  string
			did int
		}{{"redrive", len(it.back)}, {"remove", it.removed}} {
			if n := made[x.op+" "+id]; x.did < n.sure || x.did > n.sure+n.maybe {
				wrong = append(wrong, fmt.Sprintf("%s (%s): %d times %s by the servers' logs, and calls report %d, and %d may have been applied", id, it.value, x.did, x.op, n.sure, n.maybe))
			}
		}
	}
	return wrong
}

// retryDelay is the delay after which Work delivers an item again whose handler has failed.
func retryDelay(attempt int) time.Duration { return 100 * time.Millisecond << (attempt - 1) }

// checkRetries finds items that were delivered again before the delay of their last Nack, its Num,
// had passed.
func checkRetries(takes, nacks []*call) (wrong []string) {
	due := make(map[string]int64) // by the mark of the claim that ended
	for _, c := range nacks {
		if c.happened() && c.Num > 0 {
			due[c.Old] = c.from + c.Num
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
			if early := time.Duration(due[list[i].Old] - c.to); early > clockError {
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
