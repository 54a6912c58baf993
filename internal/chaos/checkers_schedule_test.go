//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/trace"
)

// onePlan is a schedule that may have two runs at a time.
var onePlan = plan{"/jobs/x", 2, 4}

const everyMs = int64(planEvery / time.Millisecond)

// jobLog makes the log of a schedule, a state a transaction.
type jobLog struct {
	log []zklog.Txn
	st  layout.ScheduleState
}

// runName is the name of the node of a claim that is the i-th transaction.
func runName(planned int64, attempt, i int) string {
	return layout.RunName(planned, attempt, fmt.Sprintf("11111111-2222-3333-4444-%012d", i))
}

// write writes the state after a change, with further operations.
func (l *jobLog) write(change func(st *layout.ScheduleState), ops ...zklog.Op) *jobLog {
	if l.st.Since == 0 {
		l.st.Since = 1
	}
	change(&l.st)
	data, err := l.st.Encode()
	if err != nil {
		panic(err)
	}
	l.log = append(l.log, zklog.Txn{
		Zxid: int64(len(l.log) + 1), Type: zklog.Multi,
		Ops: append(ops, zklog.Op{Type: zklog.SetData, Path: onePlan.path + "/" + layout.StateName, Data: data}),
	})
	return l
}

// claim claims the planned time n, late by some intervals.
func (l *jobLog) claim(n int64, attempt int, late int64) *jobLog {
	name := runName(n*everyMs, attempt, len(l.log))
	return l.write(func(st *layout.ScheduleState) {
		st.Runs = append(st.Runs, layout.ScheduleRun{Planned: n * everyMs, Attempt: attempt, Node: name, Began: (n + late) * everyMs})
	}, opCreate(onePlan.path+"/"+name, ""))
}

// end ends the latest run of a planned time.
func (l *jobLog) end(n int64, outcome trace.RunOutcome) *jobLog {
	return l.write(func(st *layout.ScheduleState) {
		for i := range st.Runs {
			if r := &st.Runs[i]; r.Planned == n*everyMs && r.Lasts() {
				st.End(r, string(outcome))
			}
		}
	})
}

func (l *jobLog) pause(paused bool, since int64) *jobLog {
	return l.write(func(st *layout.ScheduleState) {
		st.Paused = paused
		if !paused {
			st.Since = since * everyMs
		}
	})
}

func (l *jobLog) judged() []string {
	b := bookOf(l.log, onePlan)
	left, _ := b.leftOut()
	return slices.Concat(b.wrong, left, b.notRepeated())
}

func TestTheCheckOfAScheduleKnowsItsClaims(t *testing.T) {
	const done, abandoned, returned = trace.RunDone, trace.RunAbandoned, trace.RunReturned
	start := func() *jobLog { return new(jobLog).claim(10, 1, 0).end(10, done) }
	for _, tc := range []struct {
		name string
		log  *jobLog
		want string
	}{
		{"one after the other", start().claim(11, 1, 0).end(11, done).claim(12, 1, 0), ""},
		{"two at a time", start().claim(11, 1, 0).claim(12, 1, 0).end(12, done).claim(13, 1, 0), ""},
		{"three at a time", start().claim(11, 1, 0).claim(12, 1, 0).claim(13, 1, 0), "3 runs at a time"},
		{"another attempt", start().claim(11, 1, 0).end(11, abandoned).claim(11, 2, 1).end(11, done), ""},
		{"an attempt after a success", start().claim(10, 2, 0), "is claimed after"},
		{"an attempt beside one that lasts", start().claim(11, 1, 0).claim(11, 2, 0), "is claimed after"},
		{"a first attempt again", start().claim(11, 1, 0).end(11, abandoned).claim(11, 1, 1), "is claimed after"},
		{"an attempt too many", start().claim(11, 1, 0).end(11, abandoned).claim(11, 2, 0).end(11, abandoned).claim(11, 3, 0).end(11, abandoned).claim(11, 4, 0), "is claimed after"},
		{"an attempt that begins with 2", start().claim(11, 2, 0), "is claimed after"},
		{"returned", start().claim(11, 1, 0).end(11, returned).claim(11, 2, 0), "is claimed after"},
		{"no other attempt", start().claim(11, 1, 0).end(11, abandoned).claim(12, 1, 0), "claimed before another attempt"},
		{"no other attempt, and nothing else", start().claim(11, 1, 0).end(11, abandoned), ""},
		{"left out", start().claim(12, 1, 0), "left out after"},
		{"left out beyond the limit", start().claim(12, 1, 3), ""},
		{"left out within the limit", start().claim(12, 1, 2), "left out after"},
		{"a pause", start().pause(true, 0).pause(false, 12).claim(13, 1, 0), ""},
		{"a pause that ended before", start().pause(true, 0).pause(false, 11).claim(13, 1, 0), "left out after"},
		{"a pause that ended later", start().claim(13, 1, 0).pause(true, 0).pause(false, 14), "left out after"},
		{"a Resume without a pause", start().pause(false, 12).claim(13, 1, 0), "left out after"},
		{"no node", start().write(func(st *layout.ScheduleState) {
			st.Runs = append(st.Runs, layout.ScheduleRun{Planned: 11 * everyMs, Attempt: 1, Node: runName(11*everyMs, 1, 2), Began: 11 * everyMs})
		}), "a record without its node"},
		{"no record", start().write(func(*layout.ScheduleState) {}, opCreate(onePlan.path+"/"+runName(11*everyMs, 1, 2), "")), "a node without its record"},
		{"no state", start().write(func(st *layout.ScheduleState) { st.Since = -1 }), "not the state of a schedule"},
		{"not a planned time", start().write(func(st *layout.ScheduleState) {
			st.Runs = append(st.Runs, layout.ScheduleRun{Planned: 11*everyMs + 1, Attempt: 1, Node: runName(11*everyMs+1, 1, 2), Began: 15 * everyMs})
		}), "not a planned time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			verdict(t, tc.log.judged(), tc.want)
		})
	}
}

func TestTheCheckOfAScheduleKnowsItsCalls(t *testing.T) {
	asked := func(st *layout.ScheduleState) { st.Asked = []int64{5} }
	log := new(jobLog).claim(10, 1, 0).end(10, trace.RunDone).claim(11, 1, 0).end(11, trace.RunFailed).write(asked).write(func(st *layout.ScheduleState) {
		st.Asked, st.Runs = nil, append(st.Runs, layout.ScheduleRun{Planned: 5, Asked: true, Attempt: 1, Node: runName(5, 1, 5), Began: 5})
	}, opCreate(onePlan.path+"/"+runName(5, 1, 5), ""))
	at := func(n int64) string { return onePlan.path + "/" + runName(n*everyMs, 1, int(n-10)*2) }
	called := func(n int64, old string) call {
		return call{event: event{Op: "acquire", ID: at(n), Num: plannedKey(n*everyMs, false), Old: old}, from: 1, to: 2, outcome: "ok"}
	}
	released := func(n int64, old, outcome string) call {
		return call{event: event{Op: "release", ID: at(n), Old: old}, outcome: outcome}
	}
	runNow := func(at int64, outcome string) call {
		return call{event: event{Op: "runnow", Num: at}, outcome: outcome}
	}
	set := made(call{event: event{Work: "fault", Op: "clock set"}, from: 1, to: 2})
	early := fmt.Sprint("1 ", int64(time.Second))
	for _, tc := range []struct {
		name              string
		calls, ends, asks []call
		faults            []*call
		want              string
	}{
		{name: "right", calls: []call{called(10, "1 -5"), called(11, "1 -5")}, ends: []call{released(10, "", "ok"), released(11, "failed", "ok")}, asks: []call{runNow(5, "ok")}},
		{name: "twice", calls: []call{called(10, "1 -5"), called(10, "1 -5")}, asks: []call{runNow(5, "ok")}, want: "called twice"},
		{name: "not claimed", calls: []call{called(12, "1 -5")}, asks: []call{runNow(5, "ok")}, want: "called for another claim"},
		{name: "as another attempt", calls: []call{called(10, "2 -5")}, asks: []call{runNow(5, "ok")}, want: "called for another claim"},
		{name: "early", calls: []call{called(10, early)}, asks: []call{runNow(5, "ok")}, want: "before the planned time"},
		{name: "early, by a clock that was set", calls: []call{called(10, early)}, asks: []call{runNow(5, "ok")}, faults: set},
		{name: "done, recorded as failed", ends: []call{released(11, "", "ok")}, asks: []call{runNow(5, "ok")}, want: "with another outcome"},
		{name: "failed, recorded as done", ends: []call{released(10, "failed", "ok")}, asks: []call{runNow(5, "ok")}, want: "with another outcome"},
		{name: "lost and recorded", ends: []call{released(10, "", "no")}, asks: []call{runNow(5, "ok")}, want: "reported as lost"},
		{name: "asked for by a call that was killed", asks: []call{runNow(0, "unknown")}},
		{name: "not asked for", asks: []call{runNow(6, "unknown")}, want: "was not asked for"},
		{name: "asked for by a call that failed", asks: []call{runNow(5, "no")}, want: "was not asked for"},
		{name: "asked for, and never run", asks: []call{runNow(5, "ok"), runNow(6, "ok")}, want: "did not run"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := bookOf(log.log, onePlan)
			verdict(t, b.wrong, "")
			verdict(t, b.checkRuns(made(tc.calls...), made(tc.ends...), made(tc.asks...), tc.faults, true), tc.want)
		})
	}
	l := newLedger(nil)
	l.books["schedule"] = bookOf(log.log, onePlan)
	for _, tc := range []struct {
		at      int64
		outcome string
		settled string
		want    string
	}{{5, "ok", "", ""}, {5, "unknown", "applied", ""}, {6, "unknown", "not applied", ""}, {6, "ok", "", "asked for 0 times"}} {
		p := history(t, "p", event{Kind: "begin", N: 1, Work: "schedule", Op: "runnow"}, event{Kind: tc.outcome, N: 1, Work: "schedule", Op: "runnow", Num: tc.at})
		verdict(t, settle([]*process{p}, l), tc.want)
		if got := p.calls[0].settled; got != tc.settled {
			t.Errorf("%+v: settled as %q", tc, got)
		}
	}
}

func TestTheCheckOfAScheduleOnMemoryFindsATimeThatRanTwice(t *testing.T) {
	run := func(n int64, attempt int, token int64, end, old string) []event {
		id := fmt.Sprintf("/x/%d-%d-%d", n, attempt, token)
		e := event{Work: "overlap", Op: "acquire", ID: id, Num: plannedKey(n*everyMs, false), Token: token, Old: fmt.Sprint(attempt, " -1"), N: token}
		begin, ok := e, e
		begin.Kind, ok.Kind = "begin", "ok"
		r := event{Work: "overlap", Op: "release", ID: id, Token: token, Old: old, N: token + 1000}
		first, last := r, r
		first.Kind, last.Kind = "begin", end
		return []event{begin, ok, first, last}
	}
	for _, tc := range []struct {
		name string
		runs [][]event
		want string
	}{
		{"another attempt after a loss", [][]event{run(10, 1, 1, "no", ""), run(10, 2, 2, "ok", "")}, ""},
		{"another attempt after a success", [][]event{run(10, 1, 1, "ok", ""), run(10, 2, 2, "ok", "")}, "is claimed after"},
		{"the same attempt", [][]event{run(10, 1, 1, "no", ""), run(10, 1, 2, "ok", "")}, "is claimed after"},
		{"left out", [][]event{run(10, 1, 1, "ok", ""), run(12, 1, 2, "ok", "")}, "left out after"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := history(t, "p", slices.Concat(tc.runs...)...)
			f := &findings{runs: make(map[string]*runCount), tenures: make(map[string]int)}
			f.judgeSchedules([]*process{p}, nil)
			verdict(t, f.wrong, tc.want)
		})
	}
}

func TestAScheduleOfARunThatWasNotUsedIsFound(t *testing.T) {
	full := runCount{planned: 1, asked: 1, again: 1, lost: 1, resumes: 1}
	if text := full.missing(true); text != "" {
		t.Error(text)
	}
	for i, drop := range []func(n *runCount){
		func(n *runCount) { n.planned = 0 }, func(n *runCount) { n.asked = 0 }, func(n *runCount) { n.again = 0 },
		func(n *runCount) { n.lost = 0 }, func(n *runCount) { n.resumes = 0 },
	} {
		n := full
		drop(&n)
		if text := n.missing(true); !strings.Contains(text, "want some of each") {
			t.Errorf("%d: %q", i, text)
		}
	}
}
