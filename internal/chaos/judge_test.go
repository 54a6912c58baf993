//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/fence"
	"github.com/go-coord/coord/internal/zklog"
)

// tally counts the outcomes of the calls of a workload.
type tally struct{ ok, no, unknown, applied, notApplied int }

func (t tally) all() int { return t.ok + t.no + t.unknown }

// findings are the results of judging a run.
type findings struct {
	wrong      []string
	tallies    map[string]*tally
	overlaps   int     // overlaps without a fence
	refused    int     // writes that the fence refused
	longest    int     // items in the queue with a limit
	full       int     // calls that found it full
	roomy      []*call // of these, without need by the logs
	dead       int     // moves to the dead letters
	redriven   int     // and back
	unreceived int     // claims that no consumer received, and that were given back
	nexts      int     // commits of Acks that claimed the next items
	reused     int     // turns that reused a stay
	expired    int     // sessions that clients lost
	ended      int     // of these, those that the service had ended before their client knew
	stale      int     // reads after a Sync
	noSpace    int     // calls that the service refused because it had no space
	txns       int     // transactions in the servers' logs
	tenures    map[string]int
	runs       map[string]*runCount // of the schedules
	outcomes   map[string]int       // outcomes of transactions
	outages    []outage
}

// judge checks the histories against the servers' logs.
func judge(all []*process, log []zklog.Txn) *findings {
	f := &findings{tallies: make(map[string]*tally), tenures: make(map[string]int), runs: make(map[string]*runCount), outcomes: make(map[string]int)}
	l := newLedger(log)
	f.txns = l.txns
	f.add("settling", settle(all, l))
	var writes []fence.Write
	for _, p := range all {
		lost := make(map[int64]bool)
		ended := make(map[int64]bool)
		for _, e := range p.events {
			switch {
			case e.Odd:
				f.add("an unexplained error", []string{p.name + ": " + e.String()})
			case e.Kind == "write":
				writes = append(writes, e.write())
			case e.Kind == "older":
				f.add("cache", []string{fmt.Sprintf("%s was told of %s as of %#x and then as of %#x, created in %#x", p.name, e.ID, e.Since, e.Token, e.Num)})
			case e.Kind == "state" && e.Op == "lost" && e.Err != "":
				lost[e.Session] = true // it is reported again while there is no other session
				if strings.Contains(e.Err, "the session has expired ") {
					ended[e.Session] = true
				}
			}
		}
		f.expired += len(lost)
		f.ended += len(ended)
	}
	wrong, overlaps, refused := fence.Check(writes)
	f.add("fence", wrong)
	f.overlaps, f.refused = overlaps, refused

	faults := callsOf(all, "fault")
	wrong, f.noSpace = checkSpace(all, faults)
	f.add("an unexplained error", wrong)

	one := func(*call) int { return 1 }
	for _, h := range []struct {
		work  string
		most  int
		weigh func(c *call) int
		lock  bool
	}{
		{"mutex", 1, one, true},
		{"election", 1, one, true},
		{"keep", 1, one, true},
		{"lockall", 1, one, true},
		{"shards", 1, one, true},
		{"semaphore", semaphoreLimit, func(c *call) int { return int(c.Num) }, false},
		{"rwmutex", allReaders, func(c *call) int {
			if c.Value == "write" {
				return allReaders
			}
			return 1
		}, false},
	} {
		list := tenures(all, h.work, h.weigh)
		for _, x := range list {
			if x.until > x.from { // a hold excused from its beginning is not compared
				f.tenures[h.work]++
			}
		}
		if len(list) > 0 && f.tenures[h.work] == 0 {
			f.add(h.work, []string{"every hold is excused from its beginning: nothing was compared"})
		}
		if !h.lock {
			f.add(h.work, checkOverlap(list, h.most))
			continue
		}
		for _, of := range eachLock(list) {
			f.add(h.work, checkOverlap(of, h.most))
			f.add(h.work, checkLock(h.work, of))
		}
	}
	f.judgeSchedules(all, l)
	f.reused = reused(all)
	for work := range queuePaths {
		takes := callsOf(all, work, "take")
		items := livesOf(log, work, mostAttempts[work], callsOf(all, work, "take", "giveback"), faults)
		f.add(work, items.Wrong)
		f.add(work, checkQueue(callsOf(all, work, "put", "tryput"), takes, callsOf(all, work, "ack", "nack", "giveback"), items.byValue()))
		f.add(work, checkLetters(callsOf(all, work, "redrive", "remove"), items))
		f.add(work, checkRetries(takes, callsOf(all, work, "nack"), faults))
		dead, back := items.count()
		f.dead, f.redriven, f.unreceived = f.dead+dead, f.redriven+back, f.unreceived+items.returned
	}
	f.add("delay", checkDelays(callsOf(all, "delay", "put"), callsOf(all, "delay", "take"), faults))
	f.add("priority", l.checkLimit())
	f.longest, f.nexts = l.longest, l.nexts
	values := callsOf(all, "value")
	full := slices.DeleteFunc(callsOf(all, "priority", "tryput", "redrive"), func(c *call) bool { return !foundFull(c) })
	// Items that leave while the service has no space are not counted. A call counts the items only once.
	full = slices.DeleteFunc(full, func(c *call) bool { return during(faults, spaceFaults, c.from, c.to) })
	f.full, f.roomy = len(full), l.roomy(full, slices.Concat(values, callsOf(all, "counter")))
	f.add("value", checkRegister(values))
	f.add("value", checkSessions(values))
	f.stale = len(staleReads(values))
	f.add("counter", checkCounter(callsOf(all, "counter")))
	f.add("txn", checkTxns(all, l.proposed, voteOf))
	for _, list := range l.proposed {
		for _, x := range list {
			for _, outcome := range x.outcomes {
				f.outcomes[outcome]++
			}
		}
	}
	f.tallyUp(all)
	f.outages = outages(all)
	return f
}

// The faults whose kinds begin with these words.
const (
	clockFaults = "clock set" // the clock of the service is set
	spaceFaults = "no space"  // commits can be refused with ErrNoSpace
)

// during reports whether a fault of a kind happened between two times.
func during(faults []*call, kind string, from, to int64) bool {
	return slices.ContainsFunc(faults, func(f *call) bool { return strings.HasPrefix(f.Op, kind) && f.from <= to && from <= f.to })
}

// checkSpace counts the calls that were refused because the service had no space. It finds those that were refused while it had.
func checkSpace(all []*process, faults []*call) (wrong []string, n int) {
	for _, p := range all {
		for _, c := range p.calls {
			if c.outcome == "ok" || !strings.Contains(c.Err, coord.ErrNoSpace.Error()+": ") || c.Work == "fault" {
				continue
			}
			n++
			if !during(faults, spaceFaults, c.from, c.At) {
				wrong = append(wrong, fmt.Sprintf("no space, without a fault: %v", c))
			}
		}
	}
	return wrong, n
}

// reused counts the acquisitions that were granted the node that the process had kept.
func reused(all []*process) (n int) {
	for _, p := range all {
		seen := make(map[string]bool)
		for _, c := range p.calls {
			if c.Op == "acquire" && c.outcome == "ok" && strings.Contains(c.ID, keptID) {
				if seen[holdPath(c)] {
					n++
				}
				seen[holdPath(c)] = true
			}
		}
	}
	return n
}

// allReaders is more than the number of readers. A writer weighs as much.
const allReaders = 1000

func (f *findings) add(what string, wrong []string) {
	for _, w := range wrong {
		f.wrong = append(f.wrong, what+": "+w)
	}
}

// byCheck counts the violations of each check, since one defect can fill the list.
func (f *findings) byCheck() map[string]int {
	n := make(map[string]int)
	for _, w := range f.wrong {
		check, _, _ := strings.Cut(w, ":")
		n[check]++
	}
	return n
}

func (f *findings) tallyUp(all []*process) {
	for _, w := range works {
		t := new(tally)
		f.tallies[w] = t
		for _, c := range callsOf(all, w) {
			switch c.outcome {
			case "ok":
				t.ok++
			case "no":
				t.no++
			default:
				t.unknown++
				switch c.settled {
				case "applied":
					t.applied++
				case "not applied":
					t.notApplied++
				}
			}
		}
	}
}

// An outage is the time without progress of a workload after a fault: the longest time
// without a successful call, from the fault to the first successful call that began after it
// was undone.
type outage struct {
	fault, work string
	took        int64
	service     int64 // the outage of the control for the same fault
}

func outages(all []*process) (list []outage) {
	for _, f := range callsOf(all, "fault") {
		if boundOf(f.Op, "") == 0 || f.outcome != "ok" || f.Err != "" {
			continue
		}
		service := stoodStill(all, controlWork, f)
		for _, w := range works {
			list = append(list, outage{f.Op, w, stoodStill(all, w, f), service})
		}
	}
	return list
}

func stoodStill(all []*process, work string, fault *call) int64 {
	calls := slices.DeleteFunc(callsOf(all, work), func(c *call) bool { return c.outcome != "ok" || c.to < fault.from })
	slices.SortFunc(calls, func(a, b *call) int { return int(min(1, max(-1, a.to-b.to))) })
	last, longest := fault.from, int64(0)
	for _, c := range calls {
		longest = max(longest, c.to-last)
		last = c.to
		if c.from > fault.to {
			return longest
		}
	}
	return forever
}

func (t tally) String() string {
	return fmt.Sprintf("%d calls: %d ok, %d failed, %d uncertain, of these %d applied and %d not, by the servers' logs",
		t.all(), t.ok, t.no, t.unknown, t.applied, t.notApplied)
}

// shorten limits lists that can be long.
func shorten(list []string, most int) string {
	text := strings.Join(list[:min(len(list), most)], "\n")
	if len(list) > most {
		text += fmt.Sprintf("\nand %d more", len(list)-most)
	}
	return text
}
