//go:build linux

package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A tenure is one hold in its holder's view.
type tenure struct {
	id      string
	process string
	num     int64 // of the acquisition: which of several locks
	weight  int
	token   int64
	// asked and from are the begin and the return of the acquisition. The holder believed in
	// the hold from then until it was released, it was reported lost, or an excuse begins.
	asked, from, until int64
	end                string // what until is
	// From excuse on the hold may have ended on the service although the holder was not
	// notified: it did not run, or its session was ended by force. forever means no excuse.
	excuse int64
	// gone is the return of the release that deleted the node; forever if there was none.
	gone int64
}

func (x *tenure) String() string {
	return fmt.Sprintf("%s of %s (token %#x, weight %d) [%d, %d: %s]", x.id, x.process, x.token, x.weight, x.from, x.until, x.end)
}

// tenures returns the holds of a workload. expired holds the times at which sessions were
// ended by force.
func tenures(all []*process, work string, weigh func(c *call) int) (list []*tenure) {
	expired := make(map[int64]int64)
	for _, p := range all {
		for _, e := range p.events {
			if e.Kind == "expire" {
				expired[e.Session] = e.At
			}
		}
	}
	for _, p := range all {
		ends := make(map[string]*call) // releases and downgrades, by operation and hold
		for _, c := range p.calls {
			if c.Work == work && c.Op != "acquire" {
				ends[c.Op+" "+c.ID] = c
			}
		}
		lost, cause := make(map[string]int64), make(map[string]string)
		for _, e := range p.events {
			if e.Kind == "lost" && e.Work == work {
				lost[e.ID], cause[e.ID] = cmp.Or(e.Since, e.At), fmt.Sprintf("lost at %d, said at %d: %s", e.Since, e.At, e.Err)
			}
		}
		for _, c := range p.calls {
			if c.Work != work || c.Op != "acquire" || c.outcome != "ok" {
				continue
			}
			x := &tenure{id: c.ID, process: p.name, num: c.Num, weight: weigh(c), token: c.Token, asked: cmp.Or(c.Since, c.from), from: c.to, until: p.ended, end: "the process ended", excuse: forever, gone: forever}
			if r := ends["release "+c.ID]; r != nil {
				x.until, x.end = r.from, "released"
				if r.outcome == "ok" && r.zxid != 0 {
					x.gone = r.to
				}
			}
			if at, ok := lost[c.ID]; ok {
				if at < x.until {
					x.until, x.end = at, cause[c.ID]
				}
				x.gone = forever
			}
			if at, ok := expired[c.Session]; ok {
				x.excused(at)
			}
			for _, g := range p.gaps {
				// A process that did not run until a moment ago may not have noticed yet.
				if g.from < x.until && g.to+int64(mostSilence) > x.asked {
					x.excused(g.from)
				}
			}
			if d := ends["downgrade "+c.ID]; d != nil {
				reader := *x
				x.until, x.gone = min(x.until, d.from), min(x.gone, d.to)
				reader.id, reader.weight = c.ID+" as a reader", 1
				reader.asked, reader.from = d.from, max(d.from, min(d.to, reader.until))
				if d.outcome == "ok" {
					list = append(list, &reader)
				}
			}
			list = append(list, x)
		}
	}
	return list
}

// excused ends the belief at a time if it lasts longer.
func (x *tenure) excused(at int64) {
	if at >= x.until {
		return
	}
	x.excuse = min(x.excuse, max(at, x.asked))
	x.until, x.end = min(x.until, max(at, x.from)), "excused"
}

// eachLock divides the tenures of a workload with several locks.
func eachLock(list []*tenure) (locks [][]*tenure) {
	of := make(map[int64][]*tenure)
	for _, x := range list {
		of[x.num] = append(of[x.num], x)
	}
	for _, num := range slices.Sorted(maps.Keys(of)) {
		locks = append(locks, of[num])
	}
	return locks
}

// checkOverlap finds tenures whose sum exceeds the limit at some moment.
func checkOverlap(list []*tenure, most int) (wrong []string) {
	type edge struct {
		at    int64
		delta int
		x     *tenure
	}
	var edges []edge
	for _, x := range list {
		if x.until > x.from {
			edges = append(edges, edge{x.from, x.weight, x}, edge{x.until, -x.weight, x})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta)) })
	sum := 0
	now := make(map[*tenure]bool)
	for _, e := range edges {
		sum += e.delta
		if e.delta < 0 {
			delete(now, e.x)
			continue
		}
		now[e.x] = true
		if sum > most {
			text := fmt.Sprintf("%d held at once, at most %d allowed:", sum, most)
			for x := range now {
				text += " " + x.String() + ";"
			}
			wrong = append(wrong, text)
		}
	}
	return wrong
}

// lockState is porcupine's model of a lock: an acquisition finds it free, with a token higher
// than all before, and only a release by the holder frees it. A process that keeps the lock
// acquires it again with the same token, if no other has had it since.
type lockState struct {
	holder, highest int64
	keeper          string // the process that had it last and may keep it, or ""
}

type lockStep struct {
	acquire bool
	token   int64
	keeper  string
}

var lockModel = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(lockState), input.(lockStep)
		if in.acquire {
			again := in.token == s.highest && in.keeper != "" && in.keeper == s.keeper
			return s.holder == 0 && (in.token > s.highest || again), lockState{in.token, in.token, in.keeper}
		}
		return s.holder == in.token, lockState{0, s.highest, s.keeper}
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// checkLock tries to find a linear order of the exclusive holds.
func checkLock(work string, list []*tenure) []string {
	var ops []porcupine.Operation
	for _, x := range list {
		ended := x.until
		if x.excuse < forever {
			ended = x.excuse
		}
		keeper := ""
		if strings.Contains(x.id, keptID) {
			keeper = x.process
			// The process did not know yet that the node it kept had ended, by force or while the
			// process did not run. Another client may have held the lock since.
			if x.excuse <= x.asked {
				continue
			}
		}
		ops = append(ops,
			porcupine.Operation{Input: lockStep{true, x.token, keeper}, Call: x.asked, Return: x.from},
			porcupine.Operation{Input: lockStep{false, x.token, keeper}, Call: ended, Return: max(ended, x.gone)})
	}
	return linearizable(work, lockModel, ops)
}

// porcupineLimit bounds the time to check a history.
const porcupineLimit = 5 * time.Minute

func linearizable(what string, m porcupine.Model, ops []porcupine.Operation) []string {
	result, info := porcupine.CheckOperationsVerbose(m, ops, porcupineLimit)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return []string{fmt.Sprintf("%s: no verdict on %d operations within %v", what, len(ops), porcupineLimit)}
	}
	return []string{fmt.Sprintf("%s: %d operations are not linearizable: %s", what, len(ops), culprit(m, ops, info))}
}

// culprit describes the end of the longest consistent order.
func culprit(m porcupine.Model, ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	in := make(map[string]int)
	show := func(op porcupine.Operation) string {
		return fmt.Sprintf("\n\t[%d, %d] %s", op.Call, op.Return, m.DescribeOperation(op.Input, op.Output))
	}
	for _, op := range longest {
		in[show(op)]++
	}
	var rest []porcupine.Operation
	for _, op := range ops {
		if in[show(op)] > 0 {
			in[show(op)]--
		} else {
			rest = append(rest, op)
		}
	}
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	text := "after"
	for _, op := range longest[max(0, len(longest)-4):] {
		text += show(op)
	}
	text += "\n\tnone of these can come next:"
	for _, op := range rest[:min(len(rest), 6)] {
		text += show(op)
	}
	return text
}
