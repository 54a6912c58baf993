//go:build linux

package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/trace"
)

// claimed is the claim of a planned time.
type claimed struct {
	path    string
	planned int64 // milliseconds since 1970
	asked   bool
	attempt int
	at      int64 // orders the claims, ends and resumes: a zxid, or on memory the time of a call
	now     int64 // the time of the claim in milliseconds since 1970, or on memory a later one
	outcome trace.RunOutcome
	ended   int64 // as at; 0 if it is not known
}

func (c *claimed) String() string { return fmt.Sprintf("%+v", *c) }

// resumed is a Resume that ended a pause. The planned times until since, in milliseconds since 1970, are left out.
type resumed struct{ at, since int64 }

// A book has what happened to a schedule.
type book struct {
	plan
	claims  []*claimed // in order
	resumes []resumed
	asked   map[int64]int // the times of RunNow
	wrong   []string
}

func (b *book) errorf(format string, args ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

// bookOf replays the servers' logs.
func bookOf(log []zklog.Txn, p plan) *book {
	b := &book{plan: p, asked: make(map[int64]int)}
	var was layout.ScheduleState
	known, latest := make(map[string]*claimed), make(map[int64]*claimed)
	for _, x := range log {
		made := make(map[string]bool)
		for _, op := range x.Ops {
			if name, ok := strings.CutPrefix(op.Path, p.path+"/"); ok && op.IsCreate() && layout.IsRun(name) {
				made[name] = true
			}
		}
		for _, op := range x.Ops {
			if op.Path != p.path+"/"+layout.StateName || op.Data == nil {
				continue
			}
			st, err := layout.ParseScheduleState(op.Data)
			if err != nil {
				b.errorf("%#x: %v: %s", x.Zxid, err, op.Data)
				continue
			}
			for i := range st.Runs {
				if c := known[st.Runs[i].Node]; c != nil && c.outcome == "" && !st.Runs[i].Lasts() {
					c.outcome, c.ended = trace.RunOutcome(st.Runs[i].Outcome), x.Zxid
				}
			}
			for i := range st.Runs {
				r := &st.Runs[i]
				if known[r.Node] != nil {
					continue
				}
				c := &claimed{path: p.path + "/" + r.Node, planned: r.Planned, asked: r.Asked, attempt: r.Attempt, at: x.Zxid, now: r.Began}
				if !made[r.Node] {
					b.errorf("a record without its node: %v", c)
				}
				delete(made, r.Node)
				key := plannedKey(r.Planned, r.Asked)
				b.follows(c, latest[key])
				known[r.Node], latest[key] = c, c
				b.claims = append(b.claims, c)
			}
			lasting := slices.DeleteFunc(slices.Clone(st.Runs), func(r layout.ScheduleRun) bool { return !r.Lasts() })
			if len(lasting) > p.runs {
				b.errorf("%#x: %d runs at a time: %+v", x.Zxid, len(lasting), lasting)
			}
			if was.Paused && !st.Paused {
				b.resumes = append(b.resumes, resumed{x.Zxid, st.Since})
			}
			for _, at := range st.Asked {
				if !slices.Contains(was.Asked, at) {
					b.asked[at]++
				}
			}
			was = st
		}
		for name := range made {
			b.errorf("%#x: a node without its record: %s", x.Zxid, name)
		}
	}
	return b
}

// follows compares the record of a claim with that of the claim before it of the same planned time.
func (b *book) follows(c, before *claimed) {
	want := 0
	switch {
	case before == nil:
		want = 1
	case before.outcome == trace.RunReturned:
		want = before.attempt
	case before.outcome == trace.RunAbandoned:
		want = before.attempt + 1
	}
	if c.attempt != want || want > planTries {
		b.errorf("%v is claimed after %v", c, before)
	}
}

// bookOfCalls is bookOf by what the clients have recorded. It has no claim whose function was not called.
func bookOfCalls(all []*process, work string) *book {
	b := &book{plan: plans[work], asked: make(map[int64]int)}
	ends := make(map[string]*call)
	for _, c := range callsOf(all, work, "release") {
		ends[c.ID] = c
	}
	calls := slices.DeleteFunc(callsOf(all, work, "acquire"), func(c *call) bool { return c.outcome != "ok" })
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.Token, b.Token) })
	latest := make(map[int64]*claimed)
	for _, call := range calls {
		c := &claimed{path: call.ID, planned: call.Num >> 1, asked: call.Num&1 == 1, at: call.to}
		early := time.Duration(0)
		_, _ = fmt.Sscan(call.Old, &c.attempt, &early)
		c.now = c.planned - early.Milliseconds() + 1
		if e := ends[c.path]; e != nil && e.outcome == "ok" && e.Old == "" {
			c.outcome = trace.RunDone
		}
		if before := latest[call.Num]; before != nil && (before.attempt >= c.attempt || before.outcome == trace.RunDone) || c.attempt > planTries {
			b.errorf("%v is claimed after %v", c, before)
		}
		latest[call.Num] = c
		b.claims = append(b.claims, c)
	}
	last := int64(0) // the end of the latest Resume
	pauses := callsOf(all, work, "pause")
	for _, c := range callsOf(all, work, "resume") {
		paused := slices.ContainsFunc(pauses, func(p *call) bool { return p.outcome != "no" && p.from < c.to && p.to > last })
		if c.outcome != "no" && paused {
			b.resumes = append(b.resumes, resumed{c.from, cmp.Or(c.Num, forever)})
		}
		if c.outcome == "ok" {
			last = max(last, c.from)
		}
	}
	for _, c := range callsOf(all, work, "runnow") {
		if c.outcome == "ok" {
			b.asked[c.Num]++
		}
	}
	return b
}

// runCount counts what happened to the runs of a schedule.
type runCount struct{ planned, asked, again, lost, resumes, leftOut int }

func (n *runCount) String() string {
	return fmt.Sprintf("%d planned times and %d runs that were asked for, %d further attempts, %d claims lost; %d pauses, %d planned times left out",
		n.planned, n.asked, n.again, n.lost, n.resumes, n.leftOut)
}

// missing says that a feature of the schedule was not used, or returns "". With faults, it wants claims that were lost and further
// attempts too, which a short run has only by chance.
func (n *runCount) missing(faults bool) string {
	if n.planned > 0 && n.asked > 0 && n.resumes > 0 && (!faults || n.again > 0 && n.lost > 0) {
		return ""
	}
	return n.String() + ": want some of each"
}

// count counts the claims of the book.
func (b *book) count() *runCount {
	n := &runCount{resumes: len(b.resumes)}
	for _, c := range b.claims {
		switch {
		case c.attempt > 1:
			n.again++
		case c.asked:
			n.asked++
		default:
			n.planned++
		}
	}
	return n
}

// leftOut finds planned times that were not claimed. That is right up to a Resume, and if more than the limit were missed.
func (b *book) leftOut() (wrong []string, n int) {
	first := make(map[int64]*claimed)
	for _, c := range b.claims {
		if !c.asked && first[c.planned] == nil {
			first[c.planned] = c
		}
	}
	const every = int64(planEvery / time.Millisecond)
	times := slices.Sorted(maps.Keys(first))
	for i, t := range times {
		if t%every != 0 {
			wrong = append(wrong, fmt.Sprintf("not a planned time: %v", first[t]))
		}
		if i == 0 || t == times[i-1]+every {
			continue
		}
		n += int((t-times[i-1])/every) - 1
		next := first[t]
		behind := int((next.now-t)/every) + 1 // planned times from t to the moment of the claim
		isResumed := slices.ContainsFunc(b.resumes, func(r resumed) bool { return r.since >= t-every && r.at < next.at })
		if behind < b.limit && !isResumed {
			wrong = append(wrong, fmt.Sprintf("planned times left out after %v, until %v", first[times[i-1]], next))
		}
	}
	return wrong, n
}

// notRepeated finds planned times that were abandoned without another attempt, although others were claimed after that.
func (b *book) notRepeated() (wrong []string) {
	latest := make(map[int64]*claimed)
	for _, c := range b.claims {
		latest[plannedKey(c.planned, c.asked)] = c
	}
	for _, c := range latest {
		again := c.outcome == trace.RunReturned || c.outcome == trace.RunAbandoned && c.attempt < planTries
		if !again || c.ended == 0 {
			continue
		}
		after := 0 // first claims of planned times that had come
		for _, o := range b.claims {
			if o.at > c.ended && o.attempt == 1 && !o.asked && o.planned >= c.planned {
				after++
			}
		}
		if after > 0 {
			wrong = append(wrong, fmt.Sprintf("%d planned times were claimed before another attempt: %v", after, c))
		}
	}
	return wrong
}

// checkRuns compares the calls of functions with the claims, and the runs that were asked for with the calls of RunNow. If replayed, the
// book is that of the servers' logs.
func (b *book) checkRuns(calls, ends, asks, faults []*call, replayed bool) (wrong []string) {
	errorf := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	claims, asked := make(map[string]*claimed), make(map[int64]bool)
	for _, c := range b.claims {
		claims[c.path] = c
		if c.asked {
			asked[c.planned] = true
		}
	}
	called := make(map[string]bool)
	for _, call := range calls {
		if call.outcome != "ok" {
			continue
		}
		c := claims[call.ID]
		var attempt int
		var early time.Duration
		if _, err := fmt.Sscan(call.Old, &attempt, &early); err != nil || c == nil || attempt != c.attempt || call.Num != plannedKey(c.planned, c.asked) {
			errorf("called for another claim: %v; its claim is %v", call, c)
			continue
		}
		if called[call.ID] {
			errorf("called twice: %v", call)
		}
		called[call.ID] = true
		if early > clockError && !c.asked && !during(faults, clockFaults, call.Since, call.to) {
			errorf("called %v before the planned time: %v", early, call)
		}
	}
	for _, e := range ends {
		c := claims[e.ID]
		if c == nil || !replayed {
			continue // a call for another claim
		}
		done, refused := c.outcome == trace.RunDone, c.outcome == trace.RunFailed || c.outcome == trace.RunAbandoned
		switch {
		case e.outcome == "ok" && e.Old == "" && !done, e.outcome == "ok" && e.Old != "" && !refused:
			errorf("recorded with another outcome: %v, %v", c, e)
		case e.outcome == "no" && (done || c.outcome == trace.RunFailed):
			errorf("reported as lost, but recorded: %v, %v", c, e)
		}
	}
	unknown := 0 // calls that were killed, whose time is not known
	wanted := make(map[int64]bool)
	for _, call := range asks {
		switch {
		case call.outcome == "unknown" && call.Num == 0:
			unknown++
		case call.outcome != "no":
			wanted[call.Num] = true
		}
		if call.happened() && call.Num != 0 && !asked[call.Num] {
			errorf("asked for, and did not run: %v", call)
		}
	}
	for at := range asked {
		if !wanted[at] {
			if unknown--; unknown < 0 {
				errorf("ran, and was not asked for: %d", at)
			}
		}
	}
	return wrong
}

// judgeSchedules judges the schedules, by the servers' logs if there are any.
func (f *findings) judgeSchedules(all []*process, l *ledger) {
	faults := callsOf(all, "fault")
	for work := range plans {
		b := bookOfCalls(all, work)
		if l != nil {
			b = l.books[work]
		}
		n := b.count()
		f.add(work, b.wrong)
		wrong, left := b.leftOut()
		n.leftOut = left
		f.add(work, wrong)
		f.add(work, b.notRepeated())
		f.add(work, b.checkRuns(callsOf(all, work, "acquire"), callsOf(all, work, "release"), callsOf(all, work, "runnow"), faults, l != nil))
		for _, p := range all {
			for _, e := range p.events {
				if e.Kind == "lost" && e.Work == work {
					n.lost++
				}
			}
		}
		f.runs[work] = n
		list := tenures(all, work, func(*call) int { return 1 })
		for _, x := range list {
			if x.until > x.from {
				f.tenures[work]++
			}
		}
		f.add(work, checkOverlap(list, b.plan.runs))
		if b.plan.runs == 1 {
			f.add(work, checkLock(work, list))
		}
		for _, of := range eachLock(list) { // the attempts of one planned time
			f.add(work, checkOverlap(of, 1))
			f.add(work, checkLock(work, of))
		}
	}
}
