//go:build linux

package chaos

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
)

// The bounds for the outage of a workload.
//
// After the leader is killed, the others elect another one and follow it, within initLimit.
// Then the sessions of clients that gave up meanwhile have to time out, at the end of a tick,
// before other clients acquire their holds. A client pauses for up to a tenth of its session
// timeout between rounds over the servers, and for up to a second after an uncertain outcome.
//
// After the leader is stopped or cut off, the followers first have to give it up, after syncLimit, and
// its clients too, after their lease.
//
// In a rolling restart there can be as many elections as there are servers, one right after
// the other.
//
// A transaction waits for the votes of sites up to its deadline.
//
// The troubles of another service that happen alone have the bound of a stopped leader: it can have
// to replace one.
//
// All this assumes a machine on which an election ends within initLimit. The outage of the
// control beyond initLimit is added.
var bounds = func() map[string]time.Duration {
	killed := initLimit*tick + sessionTimeout + tick + sessionTimeout/10 + time.Second
	stopped := killed + syncLimit*tick + lease
	return map[string]time.Duration{"leader killed": killed, "leader stopped": stopped, "leader cut off": stopped, "rolling restart": 3 * killed}
}()

func boundOf(fault, work string) time.Duration {
	bound := bounds[fault]
	if ensemble.Elsewhere != nil {
		for _, t := range ensemble.Elsewhere.Troubles {
			if t.Kind == fault && t.Alone {
				bound = bounds["leader stopped"]
			}
		}
	}
	if work == "txn" && bound > 0 {
		bound += txnDeadline
	}
	return bound
}

// summarize prints the findings, and fails the test for violations and for missing coverage.
func (r *run) summarize(f *findings, n *nemesis, raged time.Duration) {
	t := r.t
	t.Helper()
	var md strings.Builder
	figure := func(format string, args ...any) {
		t.Helper()
		t.Logf("figure: "+format, args...)
	}
	counts := n.count()

	figure("chaos for %v, seed %d: %d client processes, of which %d at a time; %d transactions in the servers' logs",
		raged.Round(time.Second), r.seed, r.processes.Load(), clients, f.txns)
	fmt.Fprintf(&md, "# Chaos\n\n%v, seed %d, %d client processes, of which %d at a time, %d transactions in the servers' logs. Session timeout %v, tickTime %v, syncLimit %d, initLimit %d, LossMargin %v.\n\n",
		raged.Round(time.Second), r.seed, r.processes.Load(), clients, f.txns, sessionTimeout, tick, syncLimit, initLimit, lossMargin)

	md.WriteString("| workload | ok | failed | uncertain | of these applied | not applied |\n|---|---|---|---|---|---|\n")
	total := tally{}
	for _, w := range works {
		c := f.tallies[w]
		figure("chaos: %s: %v", w, *c)
		fmt.Fprintf(&md, "| %s | %d | %d | %d | %d | %d |\n", w, c.ok, c.no, c.unknown, c.applied, c.notApplied)
		if c.ok == 0 {
			t.Errorf("%s: not tested", w)
		}
		total = tally{total.ok + c.ok, total.no + c.no, total.unknown + c.unknown, total.applied + c.applied, total.notApplied + c.notApplied}
	}
	figure("chaos: all: %v", total)

	md.WriteString("\n| fault | times |\n|---|---|\n")
	var did []string
	for _, fault := range slices.Concat(n.faults[:]...) {
		if err := n.skipped[fault.kind]; err != nil {
			did = append(did, fmt.Sprintf("%s: NOT INJECTED (%v)", fault.kind, err))
			fmt.Fprintf(&md, "| %s | not injected: %v |\n", fault.kind, err)
			continue
		}
		did = append(did, fmt.Sprintf("%s %d", fault.kind, counts[fault.kind]))
		fmt.Fprintf(&md, "| %s | %d |\n", fault.kind, counts[fault.kind])
		if counts[fault.kind] == 0 {
			t.Errorf("no fault of the kind %q", fault.kind)
		}
	}
	figure("chaos: faults: %s", strings.Join(did, ", "))

	figure("chaos: %d sessions lost by clients, of which the service had ended %d; transactions %v; holds %v, of which %d reused a kept lock; %d reads after a Sync that were stale, which ZooKeeper allows",
		f.expired, f.ended, f.outcomes, f.tenures, f.reused, f.stale)
	if slices.ContainsFunc(n.faults[0], func(x fault) bool { return strings.HasPrefix(x.kind, spaceFaults) && counts[x.kind] > 0 }) {
		figure("chaos: %d calls were refused because the service had no space", f.noSpace)
		if f.noSpace == 0 {
			t.Errorf("no call was refused because the service had no space")
		}
	}
	figure("chaos: the queue with MaxLen %d had at most %d items", priorityLimit, f.longest)
	figure("chaos: %d calls found it full, %d of them although it had room, which a stale read allows; %d dead letters, of which %d were put back; %d items were given back that no consumer had received",
		f.full, len(f.roomy), f.dead, f.redriven, f.unreceived)
	figure("chaos: %d commits acknowledged items and claimed the next ones", f.nexts)
	if f.nexts == 0 {
		t.Error("no commit has acknowledged an item and claimed the next one")
	}
	for _, work := range slices.Sorted(maps.Keys(f.runs)) {
		figure("chaos: %s: %v", work, f.runs[work])
		if text := f.runs[work].missing(slowness() == 1); text != "" {
			t.Errorf("%s: %s", work, text)
		}
	}
	figure("chaos: violations with the fence and in all other checks %d; without the fence %d overlaps, and the fence refused %d late writes", len(f.wrong), f.overlaps, f.refused)
	fmt.Fprintf(&md, "\nSessions lost by clients: %d. Violations: %d. Without the fence: %d overlaps; with it %d late writes refused. Transactions: %v. Reads after a Sync that were stale, which ZooKeeper allows: %d.\n",
		f.expired, len(f.wrong), f.overlaps, f.refused, f.outcomes, f.stale)

	md.WriteString("\n| stands still after | workload | least | median | most | bound |\n|---|---|---|---|---|---|\n")
	for _, fault := range n.faults[0] {
		if boundOf(fault.kind, "") == 0 {
			continue
		}
		for _, w := range works {
			bound := boundOf(fault.kind, w)
			var took []time.Duration
			for _, o := range f.outages {
				if o.fault != fault.kind || o.work != w {
					continue
				}
				took = append(took, time.Duration(o.took))
				late := max(0, time.Duration(o.service)-initLimit*tick)
				if o.took > int64(bound+late) || o.service == forever {
					t.Errorf("%s stood still for %v after %s, the control for %v; the bound is %v",
						w, time.Duration(o.took), fault.kind, time.Duration(o.service), bound+late)
				}
			}
			if len(took) == 0 {
				t.Errorf("no recovery of %s was measured after %s", w, fault.kind)
				continue
			}
			slices.Sort(took)
			least, median, most := took[0], took[len(took)/2], took[len(took)-1]
			const unit = time.Millisecond
			figure("chaos: %s: %s stands still for %v / %v / %v (min / median / max of %d), bound %v", fault.kind, w, least.Round(unit), median.Round(unit), most.Round(unit), len(took), bound)
			fmt.Fprintf(&md, "| %s | %s | %v | %v | %v | %v |\n", fault.kind, w, least.Round(unit), median.Round(unit), most.Round(unit), bound)
		}
	}

	if len(f.wrong) > 0 {
		t.Errorf("%d violations, by check %v:\n%s", len(f.wrong), f.byCheck(), shorten(f.wrong, 30))
	}
	if r.other != nil && f.stale > 0 {
		t.Errorf("%d reads after a Sync were stale, and all reads of the service are linearizable", f.stale)
	}
	if r.other != nil && len(f.roomy) > 0 {
		t.Errorf("%d calls found the queue full although it had room, and all reads of the service are linearizable: %v", len(f.roomy), f.roomy)
	}
	if slowness() == 1 && (f.full == 0 || f.dead == 0 || f.redriven == 0 || f.unreceived == 0) {
		t.Errorf("%d calls found the queue full, %d dead letters, %d of them put back, %d items given back that no consumer received: want some of each", f.full, f.dead, f.redriven, f.unreceived)
	}
	if f.reused == 0 {
		t.Errorf("no hold reused a kept lock: Keep was not tested")
	}
	if total.unknown == 0 || f.expired == 0 || f.overlaps == 0 {
		t.Errorf("%d uncertain outcomes, %d sessions lost, %d overlaps without the fence: want some of each", total.unknown, f.expired, f.overlaps)
	}
	if name := os.Getenv("COORD_CHAOS_SUMMARY"); name != "" {
		if err := os.WriteFile(name, []byte(md.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
}
