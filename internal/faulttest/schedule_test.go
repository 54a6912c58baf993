//go:build linux

package faulttest

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/trace"
)

// The rows of docs/schedules.md about a holder that dies, and one that is paused beyond its session, with processes. Each run lasts
// until the test lets it end. Missed planned times run, so none is left out, however slow the machine is.

// A roster is a schedule, the process in a run of it, and the process that waits to lead.
type roster struct {
	*stage
	attempts        int
	leader, waiting *actor
	run             line // in which the leader is
}

func newRoster(t *testing.T, e servers, attempts int) *roster {
	t.Helper()
	r := &roster{stage: newStage(t, e), attempts: attempts}
	r.leader = r.start("a", mostTimeout, shortMargin)
	r.leader.tell(r.command())
	r.run = r.leader.await("running")
	r.join(r.start("b", mostTimeout, shortMargin))
	return r
}

func (r *roster) command() string { return fmt.Sprintf("schedule %s %d", r.lock, r.attempts) }

// join makes a process wait to lead.
func (r *roster) join(a *actor) {
	r.t.Helper()
	a.tell(r.command())
	a.await("waiting")
	r.waiting = a
}

// planned returns the planned time of a run.
func planned(l line) time.Time {
	ms, err := strconv.ParseInt(l.Text, 10, 64)
	if err != nil {
		panic(err)
	}
	return time.UnixMilli(ms)
}

// begins is the next run, which must be the given attempt of a planned time.
func (r *roster) begins(by *actor, at time.Time, attempt int) {
	r.t.Helper()
	before := r.run
	r.run = by.await("running")
	if !planned(r.run).Equal(at) || r.run.Attempt != attempt || r.run.Token <= before.Token || r.run.At < time.Duration(at.UnixNano())-wallOffset()-clockTolerance {
		r.t.Errorf("%s runs %v, attempt %d, after %v; want %d, attempt %d", by.name, r.run, r.run.Attempt, before, at.UnixMilli(), attempt)
	}
	r.leader = by
	by.write("accepted")
}

// ends lets the run end.
func (r *roster) ends() {
	r.t.Helper()
	if l := r.leader.ask("proceed", "ended"); l.Text != "ok" || l.Token != r.run.Token {
		r.t.Errorf("%s: %v", r.leader.name, l)
	}
}

// recorded fails the test if a run has another outcome.
func (r *roster) recorded(c *coord.Client, l line, want trace.RunOutcome) {
	r.t.Helper()
	var st coord.ScheduleState
	eventually(r.t, fmt.Sprintf("the outcome of %v is %s", l, want), func() (ok bool) {
		var err error
		if st, err = coord.NewSchedule(c, r.lock, nil, nil).State(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		for _, x := range st.Runs {
			if x.Path == l.Path && x.Outcome != "" {
				if x.Outcome != want || x.Attempt != l.Attempt || !x.Planned.Equal(planned(l)) {
					r.t.Errorf("%+v of %v, want %s", x, l, want)
				}
				return true
			}
		}
		return false
	})
}

// runnerKilled: another process repeats the run in which the leader dies, and then runs the planned times after it.
func runnerKilled(t *testing.T, e servers) {
	r := newRoster(t, e, 2)
	c := r.client()
	var took figures[time.Duration]
	n := rounds(1)
	for i := range n {
		r.leader.write("accepted")
		r.ends()
		r.recorded(c, r.run, trace.RunDone)
		at := planned(r.run).Add(runEvery)
		r.begins(r.leader, at, 1)
		cut := r.run
		control := newExpiry(t, e, mostTimeout)
		killed := proc.Now()
		r.leader.Kill()
		control.Begin()
		r.begins(r.waiting, at, 2)
		took.add(r.run.At - killed)
		control.Judge(r.run.At-killed, "the next attempt after the kill")
		r.recorded(c, cut, trace.RunAbandoned)
		second := r.run
		r.ends()
		r.begins(r.leader, at.Add(runEvery), 1)
		r.recorded(c, second, trace.RunDone)
		r.join(r.start(fmt.Sprint("c", i), mostTimeout, shortMargin))
	}
	if _, refused, overlaps := r.resource.counts(); refused != 0 || overlaps != 0 {
		t.Errorf("%d writes refused, %d overlaps", refused, overlaps)
	}
	t.Logf("figure: kill -9 in a run of a schedule to its next attempt, session timeout %v: %v; %d rounds", mostTimeout, took, n)
}

// runnerPaused: a process is paused in a run, beyond its session. Another one runs the planned times after it. When the process
// resumes, its function sees the loss, its late writes and its outcome are refused, and it can lead again.
func runnerPaused(t *testing.T, e servers) {
	r := newRoster(t, e, 1)
	c := r.client()
	r.leader.write("accepted")
	n := rounds(1)
	for i := range n {
		paused, cut, mark := r.leader, r.run, r.leader.mark()
		paused.signal(syscall.SIGSTOP)
		r.begins(r.waiting, planned(cut).Add(runEvery), 1)
		paused.tell("check", "write", fmt.Sprintf("create /late%s/%d", r.lock, i))
		paused.signal(syscall.SIGCONT)
		if l := paused.await("checked"); !strings.HasPrefix(l.Text, "done: ") || !isLoss(l) {
			t.Errorf("round %d: after its pause %s sees: %s", i, paused.name, l.Text)
		}
		if l := paused.await("wrote"); l.Text != "refused" || l.Token != cut.Token {
			t.Errorf("round %d: after its pause %s wrote: %v", i, paused.name, l)
		}
		if l := paused.await("created"); l.Text != "fenced" {
			t.Errorf("round %d: the transaction under the guard: %s", i, l.Text)
		}
		if l := paused.of(cut, "ended"); !isLoss(l) {
			t.Errorf("round %d: the function ended with %v", i, l)
		}
		r.recorded(c, cut, trace.RunAbandoned)
		eventually(t, "the process is a candidate again", func() bool { return paused.hasSaid(mark, "waiting") })
		r.ends()
		r.begins(r.leader, planned(cut).Add(2*runEvery), 1)
		r.waiting = paused
	}
	if _, refused, overlaps := r.resource.counts(); refused != n || overlaps != n {
		t.Errorf("%d writes refused, %d overlaps without the fence, want %d", refused, overlaps, n)
	}
}
