//go:build linux

package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// item is one value in the queue, by the servers' logs.
type item struct {
	created int // by a put
	deleted int // for good
	removed int // of these, without a claim; see checkLetters
	back    []int64
}

// checkQueue accounts for every item: the call that put it, the calls that took it, and its
// end. The queue must be empty.
func checkQueue(puts, takes, ends []*call, items map[string]item) (wrong []string) {
	errorf := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	putBy := make(map[string]*call)
	for _, c := range puts {
		for _, v := range strings.Fields(c.Value) {
			putBy[v] = c
			if c.outcome == "ok" && items[v].created == 0 {
				errorf("put but never in the queue: %s by %v", v, c)
			}
		}
	}
	ended := make(map[string]*call) // by the mark of the claim
	for _, c := range ends {
		ended[c.Old] = c
	}
	had := make(map[string][]*call)
	for _, c := range takes {
		if c.outcome == "ok" {
			had[c.Value] = append(had[c.Value], c)
			if items[c.Value].created == 0 {
				errorf("taken but never put: %v", c)
			}
		}
	}
	for value, it := range items {
		put := putBy[value]
		switch {
		case put == nil:
			errorf("from nowhere: %s", value)
			continue
		case it.created > 1:
			errorf("put %d times: %s by %v", it.created, value, put)
		case it.deleted == 0:
			errorf("still in the queue: %s by %v", value, put)
		}
		all := had[value]
		slices.SortFunc(all, func(a, b *call) int { return cmp.Compare(a.Token, b.Token) })
		var acked *call
		for i, c := range all {
			anew := i > 0 && slices.ContainsFunc(it.back, func(zxid int64) bool { return all[i-1].Token < zxid && zxid < c.Token })
			if i > 0 && (c.Token == all[i-1].Token || c.Num < all[i-1].Num && !anew) {
				errorf("the attempts do not grow: %v, and then %v", all[i-1], c)
			}
			if acked != nil {
				errorf("delivered again after it was acknowledged: %v, and then %v", acked, c)
			}
			if end := ended[c.Old]; end != nil && end.Op == "ack" && end.happened() {
				acked = end
			}
		}
		if it.deleted > it.removed && acked == nil {
			errorf("removed without an acknowledgement: %s by %v, taken by %v", value, put, all)
		}
	}
	return wrong
}

// registerStep is the input of porcupine's register model. All values are different.
type registerStep struct {
	op, old, value string // get, set, cas or conflict
}

var registerModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(string), input.(registerStep)
		switch in.op {
		case "get":
			return s == in.value, s
		case "set":
			return true, in.value
		case "cas":
			return s == in.old, in.value
		}
		return s != in.old, s // conflict
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// checkRegister tries to find a linear order of the operations on the value. Reads after a
// mere Sync are not part of it, see staleReads.
func checkRegister(calls []*call) []string {
	var ops []porcupine.Operation
	bounds := boundsOf(calls)
	for _, c := range calls {
		in := registerStep{c.Op, c.Old, c.Value}
		switch {
		case c.Op == "syncget":
			continue
		case c.Op == "cas" && c.outcome == "no" && strings.Contains(c.Err, "changed by another client"):
			in.op = "conflict"
		case !c.happened():
			continue
		}
		ops = append(ops, porcupine.Operation{Input: in, Call: c.from, Return: bounds(c)})
	}
	return linearizable("value", registerModel, ops)
}

// boundsOf returns the latest time at which a call has taken effect. An uncertain write that
// the logs contain was applied before the next write in the logs, and so before that write
// returned.
func boundsOf(calls []*call) func(c *call) int64 {
	var writes []*call
	for _, c := range calls {
		if c.zxid != 0 && c.happened() {
			writes = append(writes, c)
		}
	}
	slices.SortFunc(writes, func(a, b *call) int { return cmp.Compare(a.zxid, b.zxid) })
	latest := make(map[*call]int64)
	bound := int64(forever)
	for _, c := range slices.Backward(writes) {
		bound = min(bound, c.to)
		latest[c] = bound
	}
	return func(c *call) int64 {
		if c.to == forever && latest[c] != 0 {
			return max(c.from, latest[c])
		}
		return c.to
	}
}

// checkSessions finds reads that are older than an earlier read or write of the same worker
// in the same session.
func checkSessions(calls []*call) (wrong []string) {
	type who struct {
		p       *process
		session int64
	}
	latest := make(map[who]*call)
	for _, c := range calls {
		w := who{c.process, c.Session}
		if c.outcome != "ok" || c.Session == 0 {
			continue
		}
		if before := latest[w]; before != nil && c.Token < before.Token {
			wrong = append(wrong, fmt.Sprintf("older than an earlier result: %v, and then %v", before, c))
			continue
		}
		latest[w] = c
	}
	return wrong
}

// staleReads returns the reads that missed a write which had returned before the Sync that
// preceded them began.
func staleReads(calls []*call) (stale []*call) {
	type done struct{ at, zxid int64 }
	var writes []done
	for _, c := range calls {
		if c.outcome == "ok" && c.zxid != 0 {
			writes = append(writes, done{c.to, c.zxid})
		}
	}
	slices.SortFunc(writes, func(a, b done) int { return cmp.Compare(a.at, b.at) })
	for i := 1; i < len(writes); i++ {
		writes[i].zxid = max(writes[i].zxid, writes[i-1].zxid)
	}
	for _, c := range calls {
		if c.Op != "syncget" || c.outcome != "ok" {
			continue
		}
		i, _ := slices.BinarySearchFunc(writes, c.from, func(d done, at int64) int { return cmp.Compare(d.at, at) })
		if i > 0 && writes[i-1].zxid > c.Token {
			stale = append(stale, c)
		}
	}
	return stale
}

// counterStep is the input of porcupine's counter model.
type counterStep struct {
	add          bool
	delta, after int64
	known        bool // after is known
}

var counterModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(int64), input.(counterStep)
		s += in.delta
		return !in.known || s == in.after, s
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

func checkCounter(calls []*call) []string {
	var ops []porcupine.Operation
	bounds := boundsOf(calls)
	for _, c := range calls {
		if !c.happened() {
			continue
		}
		in := counterStep{add: c.Op == "add", after: c.Num, known: c.outcome == "ok"}
		if in.add {
			in.delta = c.Token
		}
		ops = append(ops, porcupine.Operation{Input: in, Call: c.from, Return: bounds(c)})
	}
	return linearizable("counter", counterModel, ops)
}

// An attempt is a transaction that was created with an ID, and its outcomes: the contents of its decision
// nodes.
type attempt struct {
	zxid     int64 // of its creation
	outcomes []string
}

// checkTxns finds transactions with two outcomes. It compares their decision nodes with the
// results at proposers and sites. A commit needs the yes of all sites, and reaches all of
// them. An ID has a second transaction only if a recovery has finished the first one: it takes a
// proposer that has lost its session for dead, and this one proposes again.
func checkTxns(all []*process, proposed map[string][]attempt, vote func(id, site string) bool) (wrong []string) {
	errorf := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	type txn struct {
		id   string
		zxid int64
	}
	type branch struct {
		txn
		site string
	}
	decided := make(map[txn]string)
	sitesOf := make(map[string][]string)
	told := make(map[branch]string)
	prepared := make(map[branch]bool)
	// When a recovery finishes a transaction, its proposer may not learn the outcome. A
	// killed process may not have written down the outcome that it learned.
	recovered, finished, unfinished := make(map[string]bool), make(map[txn]bool), false
	for _, p := range all {
		for _, e := range p.events {
			if e.Kind == "told" && e.Work == "txn" && e.Op == "recover" {
				recovered[e.ID], finished[txn{e.ID, e.Token}] = true, true
			}
		}
		for _, c := range p.calls {
			unfinished = unfinished || c.Work == "recovery" && c.outcome != "ok"
		}
	}
	for id, list := range proposed {
		for i, x := range list {
			if len(x.outcomes) != 1 || x.outcomes[0] != "commit" && x.outcomes[0] != "abort" {
				errorf("%s was decided %q", id, x.outcomes)
				continue
			}
			at := txn{id, x.zxid}
			decided[at] = x.outcomes[0]
			if i < len(list)-1 && !finished[at] && !unfinished {
				errorf("%s was proposed anew, and no recovery has finished it", id)
			}
		}
	}
	outcome := func(at txn) string { return cmp.Or(decided[at], "none") }
	for _, p := range all {
		for _, c := range p.calls {
			if c.Work == "txn" && c.Op == "propose" {
				sitesOf[c.ID] = strings.Fields(c.Old)
				if at := (txn{c.ID, c.Token}); c.outcome == "ok" && c.Value != outcome(at) {
					errorf("the proposer of %s got %s, the decision is %s", c.ID, c.Value, outcome(at))
				}
				if strings.Contains(c.Err, coord.ErrInDoubt.Error()) && !recovered[c.ID] && !unfinished {
					errorf("the record of %s is deleted, and no process learned the outcome: %v", c.ID, c)
				}
			}
		}
		for _, e := range p.events {
			if e.Kind != "told" || e.Work != "txn" {
				continue
			}
			at := txn{e.ID, e.Token}
			switch e.Op {
			case "recover":
				if e.Value != outcome(at) {
					errorf("recovery of %s returned %s, the decision is %s", e.ID, e.Value, outcome(at))
				}
			case "prepare":
				prepared[branch{at, e.Value}] = true
			default:
				b := branch{at, e.Value}
				if before := told[b]; before != "" && before != e.Op {
					errorf("site %s of %s got %s and %s", e.Value, e.ID, before, e.Op)
				}
				told[b] = e.Op
				if e.Op != outcome(at) {
					errorf("site %s of %s got %s, the decision is %s", e.Value, e.ID, e.Op, outcome(at))
				}
			}
		}
	}
	for at, outcome := range decided {
		if outcome != "commit" {
			continue
		}
		for _, s := range sitesOf[at.id] {
			switch b := (branch{at, s}); {
			case !vote(at.id, s):
				errorf("%s commits although %s voted no", at.id, s)
			case told[b] != "commit":
				errorf("%s commits, but %s never got the outcome", at.id, s)
			case !prepared[b]:
				errorf("%s commits, but %s was never asked", at.id, s)
			}
		}
	}
	return wrong
}

// checkCopy compares a cache with the tree.
func checkCopy(name string, got report, tree map[string]coordtest.NodeState) (wrong []string) {
	for what, has := range map[string]map[string]coordtest.NodeState{"the copy of " + name: got.Tree, "what the events of " + name + " add up to": got.Folded} {
		if d := coordtest.Difference(has, tree); d != "" {
			wrong = append(wrong, what+": "+d)
		}
	}
	if n := len(got.Wrong); n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d events of %s do not follow from earlier ones: %s", n, name, shorten(got.Wrong, 5)))
	}
	if got.Text != "" {
		wrong = append(wrong, name+": "+got.Text)
	}
	return wrong
}
