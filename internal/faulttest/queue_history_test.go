//go:build linux

package faulttest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zktest"
)

// queueHistory is the life of the items of some queues in the log of the service. It knows the
// nodes of items, of their claims and of their delays, and ignores those of consumers that wait.
// The times are those of the leader's clock.
type queueHistory struct {
	lanes map[string]string // by path: the name of a queue
	most  int               // MaxAttempts

	items map[string]*itemLife   // by id
	dead  map[string]string      // by id: the values in the dead letters, whether taken out or not
	ended map[int64]time.Time    // by session
	taken map[string][]time.Time // by lane: when an item was claimed or moved away
	wrong []string

	early    time.Duration // the largest time by which an item was claimed before it was due, which is a violation
	put, off int           // items with a due time, and delays of Nacks
}

// itemLife is the life of one item.
type itemLife struct {
	id, lane, value string
	due, off        int64 // milliseconds since 1970, or 0
	attempts        int
	mark            *claimLife // the present claim
	ready           []window[time.Time]
	since           time.Time // the item can be taken from then on; zero while it is claimed, and when it is gone
	claims          map[int64]*claimLife
	gone            string // "", "acked", "buried", or "deleted" by a commit of another kind
}

// claimLife is one claim.
type claimLife struct {
	path    string
	session int64
	end     string // "", "acked", "buried", "back" by a commit of the consumer, or "session"
	at      time.Time
}

// window is a time from one moment to another.
type window[T any] struct{ from, to T }

func newQueueHistory(lanes map[string]string, most int) *queueHistory {
	return &queueHistory{
		lanes: lanes, most: most,
		items: make(map[string]*itemLife), dead: make(map[string]string),
		ended: make(map[int64]time.Time), taken: make(map[string][]time.Time),
	}
}

func (h *queueHistory) errorf(format string, args ...any) {
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

// laneOf returns the name of the queue with a node in a bucket, whether that is the queue of the
// dead letters, and the name of the node.
func (h *queueHistory) laneOf(path string) (lane string, dead bool, name string) {
	queue, rest, ok := strings.Cut(path, "/items/")
	_, name, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 || strings.Contains(name, "/") {
		return "", false, ""
	}
	main, dead := strings.CutSuffix(queue, "/dead")
	return h.lanes[main], dead, name
}

// change is what a transaction does to one item.
type itemChange struct {
	made, moved, gone, marked, unmarked bool
	value, mark                         string
	due, off                            int64 // off: of a new delay
	count                               int   // a new number of attempts, or -1
	undelayed, uncounted                bool
}

// apply takes the next transaction of the log.
func (h *queueHistory) apply(x zklog.Txn) {
	if x.Type == zklog.CloseSession {
		h.ended[x.Session] = x.Time
	}
	changes := make(map[string]*itemChange)
	var order []string
	of := func(id string) *itemChange {
		if changes[id] == nil {
			changes[id] = &itemChange{count: -1}
			order = append(order, id)
		}
		return changes[id]
	}
	lanes := make(map[string]string)
	for _, op := range x.Ops {
		lane, dead, name := h.laneOf(op.Path)
		if lane == "" || op.Type == zklog.Check {
			continue
		}
		if id, rest, ok := layout.CutID(name, layout.ItemPrefix); ok {
			switch {
			case dead && op.IsCreate():
				of(id).moved = true
				of(id).value = string(op.Data)
			case dead:
			case op.IsCreate():
				due, _, _ := strings.Cut(rest, "-")
				of(id).made, of(id).value = true, string(op.Data)
				of(id).due, _ = strconv.ParseInt(due, 10, 64)
				lanes[id] = lane
			case op.IsDelete():
				of(id).gone = true
			}
			continue
		}
		if dead {
			continue
		}
		if id, _, ok := layout.CutID(name, layout.MarkPrefix); ok {
			of(id).mark = op.Path
			if op.IsCreate() {
				of(id).marked = true
			} else if op.IsDelete() {
				of(id).unmarked = true
			}
		} else if id, until, ok := layout.CutID(name, layout.PutOffPrefix); ok {
			if op.IsCreate() {
				of(id).off, _ = strconv.ParseInt(until, 10, 64)
			} else if op.IsDelete() {
				of(id).undelayed = true
			}
		} else if id, ok := strings.CutPrefix(name, layout.StatePrefix); ok && layout.IsState(name) {
			if op.IsDelete() {
				of(id).uncounted = true
				continue
			}
			n, err := strconv.Atoi(string(op.Data))
			if err != nil {
				h.errorf("%s counts %q attempts at %#x", op.Path, op.Data, x.Zxid)
			}
			of(id).count = n
		}
	}
	for _, id := range order {
		h.change(&x, id, lanes[id], changes[id])
	}
}

// change applies a part of a transaction to one item.
func (h *queueHistory) change(x *zklog.Txn, id, lane string, c *itemChange) {
	it := h.items[id]
	switch {
	case c.made && it != nil:
		h.errorf("%s is made again at %#x", id, x.Zxid)
		return
	case c.made:
		it = &itemLife{id: id, lane: lane, value: c.value, due: c.due, claims: make(map[int64]*claimLife)}
		h.items[id] = it
		if c.due > 0 {
			h.put++
		}
		it.free(x.Time)
	case it == nil:
		if c.marked || c.moved {
			h.errorf("%s is claimed or moved at %#x, and was never put", id, x.Zxid)
		}
		return
	}
	if c.marked {
		h.claim(x, it, c)
		return
	}
	how := ""
	switch {
	case c.gone && c.moved:
		how = "buried"
	case c.gone && c.unmarked:
		how = "acked"
	case c.gone:
		how = "deleted"
	case c.moved:
		h.errorf("%v is in the dead letters and in the queue at %#x", it, x.Zxid)
	}
	if c.unmarked {
		end := how
		switch {
		case x.Type == zklog.CloseSession:
			end = "session"
		case how == "":
			end = "back"
		}
		h.unmark(x, it, c.mark, end)
	}
	if c.undelayed {
		it.off = 0
	}
	if c.off > 0 {
		it.off = c.off
		h.off++
	}
	if how == "" {
		if c.uncounted {
			it.attempts = 0
		}
		if c.count >= 0 {
			it.attempts = c.count
		}
		if c.unmarked {
			it.free(x.Time)
		}
		return
	}
	switch {
	case how == "deleted":
		h.errorf("%v was deleted without a claim at %#x", it, x.Zxid)
	case how == "buried" && it.attempts < h.most:
		h.errorf("%v was moved to the dead letters after %d attempts of %d, at %#x", it, it.attempts, h.most, x.Zxid)
	case it.mark != nil:
		h.errorf("%v went at %#x while it was claimed as %s", it, x.Zxid, it.mark.path)
	}
	if how == "buried" {
		if c.value != it.value {
			h.errorf("%v is %q in the dead letters", it, c.value)
		}
		h.dead[id] = c.value
	}
	h.take(it, x.Time)
	it.gone = how
}

func (h *queueHistory) claim(x *zklog.Txn, it *itemLife, c *itemChange) {
	if it.mark != nil || it.gone != "" {
		h.errorf("%v was claimed as %s at %#x, and is %q, or has the claim %+v", it, c.mark, x.Zxid, it.gone, it.mark)
	}
	if early := time.UnixMilli(max(it.due, it.off)).Sub(x.Time); early > 0 {
		h.early = max(h.early, early)
		h.errorf("%v was claimed as %s %v early, at %#x", it, c.mark, early, x.Zxid)
	}
	if c.count != it.attempts+1 {
		h.errorf("%v was claimed as %s with attempt %d after %d", it, c.mark, c.count, it.attempts)
	}
	if it.off > 0 && !c.undelayed {
		h.errorf("%v was claimed as %s and its delay stays", it, c.mark)
	}
	it.off, it.attempts = 0, c.count
	it.mark = &claimLife{path: c.mark, session: x.Session}
	it.claims[x.Zxid] = it.mark
	h.take(it, x.Time)
}

func (h *queueHistory) unmark(x *zklog.Txn, it *itemLife, mark, end string) {
	if it.mark == nil || it.mark.path != mark {
		h.errorf("%v lost the claim %s at %#x, and had %+v", it, mark, x.Zxid, it.mark)
		return
	}
	it.mark.end, it.mark.at = end, x.Time
	it.mark = nil
}

func (it *itemLife) String() string { return fmt.Sprintf("%s (%s)", it.value, it.id) }

// free notes that the item can be taken from now on, or when it is due.
func (it *itemLife) free(now time.Time) {
	it.since = now
	if at := time.UnixMilli(max(it.due, it.off)); at.After(now) {
		it.since = at
	}
}

// take ends the time in which the item can be taken.
func (h *queueHistory) take(it *itemLife, now time.Time) {
	if !it.since.IsZero() {
		h.taken[it.lane] = append(h.taken[it.lane], now)
	}
	if !it.since.IsZero() && it.since.Before(now) {
		it.ready = append(it.ready, window[time.Time]{it.since, now})
	}
	it.since = time.Time{}
}

// check compares the log with the reports of the processes, after the end of all work.
func (h *queueHistory) check(p *passage) {
	for id, it := range h.items {
		if it.gone == "" {
			h.errorf("%v is left", it)
		}
		if put := p.puts[it.value]; put == nil {
			h.errorf("%v was put by no process", it)
		} else if put.id != "" && put.id != id {
			h.errorf("%v was put as %s", it, put.id)
		}
	}
	for value, put := range p.puts {
		if it := h.items[put.id]; put.ended != 0 && (it == nil || it.value != value) {
			h.errorf("%s was put as %s and is not in the log", value, put.id)
		}
	}
	for _, d := range p.deliveries {
		it := h.items[d.ID]
		if it == nil || it.claims[d.token] == nil || it.claims[d.token].session != d.session {
			h.errorf("there is no such claim in the log: %v", d)
			continue
		}
		end := it.claims[d.token].end
		switch {
		case d.ack == "ok" && end != "acked", d.ack == "lost" && end == "acked":
			h.errorf("the log says %q: %v", end, d)
		case d.nack == "ok" && end != "back" && end != "buried":
			h.errorf("the log says %q: %v", end, d)
		case end == "acked" && d.ack == "":
			h.errorf("acknowledged by no handler: %v", d)
		}
	}
	for id, value := range p.dead {
		if h.dead[id] != value {
			h.errorf("%s (%s) is in the dead letters, and not in the log", value, id)
		}
	}
	for id, value := range h.dead {
		if p.dead[id] != value {
			h.errorf("%s (%s) was moved to the dead letters and is not there", value, id)
		}
	}
}

// allLogs returns what the servers of an ensemble have committed from its beginning, in order, and
// the zxids of the transactions that stand in a log and are not committed: at the end of an epoch.
// The servers must run with wholeLogs.
func allLogs(t *testing.T, e *zktest.Ensemble) (txns []zklog.Txn, dropped map[int64]bool) {
	t.Helper()
	end := endLog(t, e)
	eventually(t, "two servers have the last transaction in their logs", func() bool {
		var logs [][]zklog.Txn
		starts := make(map[int64]int64)
		have := 0
		for _, s := range e.Servers() {
			files, err := filepath.Glob(filepath.Join(s.DataDir(), "version-2", "log.*"))
			if err != nil {
				t.Fatal(err)
			}
			var log []zklog.Txn
			for _, file := range files {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				// A server that was killed leaves the last record torn, and goes on in
				// another file. The logs of others must have what is missing.
				part, _ := zklog.Parse(b)
				log = append(log, part...)
			}
			slices.SortStableFunc(log, func(a, b zklog.Txn) int { return cmp.Compare(a.Zxid, b.Zxid) })
			log = slices.CompactFunc(log, func(a, b zklog.Txn) bool { return a.Zxid == b.Zxid })
			if len(log) > 0 && log[len(log)-1].Zxid >= end {
				have++
			}
			logs = append(logs, log)
			said, err := os.ReadFile(s.LogFile())
			if err != nil {
				t.Fatal(err)
			}
			zklog.Starts(said, starts)
		}
		var err error
		if txns, err = zklog.Merge(logs, starts); err != nil {
			t.Logf("not yet: %v", err)
		}
		dropped = make(map[int64]bool)
		for _, log := range logs {
			for _, x := range log {
				dropped[x.Zxid] = x.Zxid < end
			}
		}
		for _, x := range txns {
			delete(dropped, x.Zxid)
		}
		return have >= 2 && err == nil
	})
	return txns, dropped
}

// takenBack returns an error if servers have dropped a transaction that they had acknowledged:
// the claim of an item that was delivered, or a write of the control.
func takenBack(p *passage, acked []int64, dropped map[int64]bool) error {
	n := 0
	for _, d := range p.deliveries {
		if dropped[d.token] {
			n++
		}
	}
	m := 0
	for _, zxid := range acked {
		if dropped[zxid] {
			m++
		}
	}
	if n+m == 0 {
		return nil
	}
	return fmt.Errorf("of %d transactions that are in a log and were dropped, the claims of %d deliveries and %d writes of the control were acknowledged", len(dropped), n, m)
}

// wholeLogs makes a server that was away receive the missing changes one by one, so that its log
// is complete.
const wholeLogs = "-Dzookeeper.commitLogCount=50000"
