//go:build !race

package model

import (
	"fmt"
	"testing"
)

// The exhaustive model of Schedule: internal/schedule, with lookOnce, plan, claim, note and commitEnd. Two processes lead in turn
// and run two planned times, under MissedAll, with Overlap 1 and Attempts 2. An operator pauses, resumes, and asks for a run. Sessions
// are lost, processes die, outsiders delete the nodes of a claim and of the term, and replies and requests of claims are lost. The
// clock of the second process is ahead by one planned time.
//
// The queue of the candidates is not the subject (see the model of the line): a process gets the term when no other has it. The commit
// of an outcome has its reply, and is repeated at once if the state has changed.

// jobRules are the rules that the variants break.
type jobRules struct {
	noTerm        bool // a claim does not depend on the term
	noVersion     bool // a commit does not depend on the state that was read
	lostIsMade    bool // a claim whose reply is lost is taken as made
	lostIsNot     bool // or as not made
	besideLost    bool // a process leads beside a function that has lost its claim
	goneUnseen    bool // the leader does not look whether the node of a claim is gone
	goneAlways    bool // the leader takes the claims of others as gone
	twoCommits    bool // the node is deleted before the outcome is recorded
	noSince       bool // a Resume does not leave out what has passed
	pauseAttempts bool // another attempt is made in a pause
	noLimit       bool // an attempt is made beyond Attempts
	doneAgain     bool // a planned time is claimed although its run has ended
}

const (
	jobProcesses = 2
	jobSlots     = 3 // the planned times 1 and 2, and the run that was asked for
	jobAsked     = 2
	jobAttempts  = 2
)

// jobOutcome is that of the record of a slot.
type jobOutcome int8

const (
	jobOpen  jobOutcome = iota
	jobLasts            // is claimed
	jobDone
	jobAgain // was abandoned, and another attempt is due
	jobOver  // was abandoned for the last time
)

type jobRecord struct {
	outcome     jobOutcome
	by, attempt int8
}

// jobData is the state of the schedule.
type jobData struct {
	runs          [jobSlots]jobRecord
	paused, asked bool
	since         int8
}

// jobPC is the position of a process.
type jobPC int8

const (
	jobAway jobPC = iota
	jobLooks
	jobCommits // is about to commit what it has planned
	jobDoubts  // the reply was lost
	jobDead
)

type jobProcess struct {
	pc   jobPC
	live bool // its session, on the service
	read jobData
	ver  int8
	slot int8 // to be claimed, from 1; 0: only the state is written
	// The function.
	runs     int8 // its slot, from 1
	attempt  int8
	lost     bool // it knows that its claim is lost
	returned bool // it is about to record the outcome
	removed  bool // its node is deleted; only in a variant
}

type jobState struct {
	data jobData
	ver  int8
	term int8 // the process that has the term, from 1
	node [jobSlots]bool
	p    [jobProcesses]jobProcess
	now  int8

	ended  [jobSlots]bool // the claim has ended before its function returned
	called [jobSlots]int8 // the latest attempt
	out    [jobSlots]bool // was left out by a Resume

	ticks, losses, deaths, deletes, deposes, breaks, pauses, asks int8 // left
	bad                                                           jobFault
}

type jobFault string

func (f jobFault) Error() string { return string(f) }

const (
	jobTwo        = jobFault("two functions run, and each has its claim")
	jobTwice      = jobFault("an attempt is called twice")
	jobRepeated   = jobFault("a planned time is claimed again although its claim had not ended early")
	jobTooOften   = jobFault("an attempt beyond Attempts")
	jobInPause    = jobFault("a planned time is claimed in a pause")
	jobOfPause    = jobFault("a planned time of a pause is claimed")
	jobNoTerm     = jobFault("a claim without the term")
	jobBeside     = jobFault("a process claims beside its function that has lost its claim")
	jobUnclaimed  = jobFault("a function runs whose claim was not made")
	jobLeft       = jobFault("a planned time does not run")
	jobUnasked    = jobFault("a run that was asked for does not run")
	jobUnrepeated = jobFault("another attempt is not made")
	jobForgotten  = jobFault("a claim stays for which no function runs")
)

type jobModel struct {
	rules jobRules
	scope jobState // the budgets
}

type jobDo func(free bool, o jobState, what string, args ...any)

func (m *jobModel) next(s jobState, step func(keepAction, jobState)) error {
	if s.bad != "" {
		return s.bad
	}
	rest := true
	do := func(free bool, o jobState, what string, args ...any) {
		rest = rest && !free
		o.judge()
		step(keepAction{fmt.Sprintf(what, args...), free}, o)
	}
	for i := range int8(jobProcesses) {
		m.process(s, i, do)
		m.function(s, i, do)
		m.faults(s, i, do)
	}
	m.others(s, do)
	if rest {
		return s.atRest()
	}
	return nil
}

// clock returns the time by the clock of a process.
func (s *jobState) clock(i int8) int8 { return s.now + i }

// plan is Schedule.plan. It reports whether there is something to commit.
func (m *jobModel) plan(s *jobState, i int8) (d jobData, slot int8, commits bool) {
	d = s.data
	lasts := false
	for k := range d.runs {
		r := &d.runs[k]
		gone := r.outcome == jobLasts && !s.node[k] && !m.rules.goneUnseen
		if m.rules.goneAlways && r.outcome == jobLasts && r.by != i {
			gone = true
		}
		if gone {
			r.outcome, commits = jobAgain, true
			if r.attempt >= jobAttempts && !m.rules.noLimit {
				r.outcome = jobOver
			}
		}
		lasts = lasts || r.outcome == jobLasts
	}
	if lasts {
		return d, 0, commits
	}
	claim := func(k int, attempt int8) (jobData, int8, bool) {
		d.runs[k] = jobRecord{jobLasts, i, attempt}
		return d, int8(k) + 1, true
	}
	for k, r := range d.runs {
		if r.outcome == jobAgain && (!d.paused || k == jobAsked || m.rules.pauseAttempts) {
			return claim(k, r.attempt+1)
		}
	}
	if d.asked {
		d.asked = false
		return claim(jobAsked, 1)
	}
	for k := range jobAsked {
		at := int8(k) + 1
		open := d.runs[k].outcome == jobOpen || m.rules.doneAgain && d.runs[k].outcome == jobDone
		if open && !d.paused && at > d.since && at <= s.clock(i) {
			return claim(k, 1)
		}
	}
	return d, 0, commits
}

func (m *jobModel) process(s jobState, i int8, do jobDo) {
	p, o := &s.p[i], s
	q := &o.p[i]
	name := i + 1
	switch p.pc {
	case jobAway:
		if s.term == 0 && p.live && (!p.lost || m.rules.besideLost) {
			o.term, q.pc = name, jobLooks
			do(true, o, "process %d leads", name)
		}
	case jobLooks:
		if p.live && p.runs > 0 && !p.lost && !s.has(i) {
			return // the watch of the claim fires before a read shows that its node is gone
		}
		if p.lost && !m.rules.besideLost || s.term != name && !m.rules.noTerm {
			q.pc = jobAway
			if s.term == name {
				o.term = 0
			}
			do(true, o, "process %d resigns", name)
			return
		}
		d, slot, commits := m.plan(&s, i)
		if commits && p.live {
			q.read, q.ver, q.slot, q.pc = d, s.ver, slot, jobCommits
			do(true, o, "process %d plans %+v", name, d)
		}
	case jobCommits:
		if !p.live {
			return // it notices the end of its session
		}
		applies := (s.term == name || m.rules.noTerm) && (s.ver == p.ver || m.rules.noVersion)
		if !applies {
			q.pc = jobLooks
			do(true, o, "the commit of process %d is refused", name)
		} else {
			o.apply(i)
			q.pc = jobLooks
			o.call(i)
			do(true, o, "process %d commits", name)
		}
		if s.breaks > 0 && p.slot > 0 {
			b := s
			b.breaks--
			b.p[i].pc = jobDoubts
			do(false, b, "the request of process %d is lost", name)
			if applies {
				b.apply(i)
				do(false, b, "process %d commits, and the reply is lost", name)
			}
		}
	case jobDoubts:
		if !p.live {
			return
		}
		r := s.data.runs[p.slot-1]
		made := s.node[p.slot-1] && r.by == i && r.attempt == p.read.runs[p.slot-1].attempt
		q.pc = jobLooks
		if made && !m.rules.lostIsNot || m.rules.lostIsMade {
			o.call(i)
		}
		do(true, o, "process %d looks for its claim", name)
	}
}

// apply applies the commit of a process.
func (s *jobState) apply(i int8) {
	p := &s.p[i]
	if p.slot > 0 {
		k := p.slot - 1
		before, planned := s.data.runs[k], k != jobAsked
		switch {
		case planned && s.data.paused:
			s.bad = jobInPause
		case planned && s.out[k] && before.outcome == jobOpen:
			s.bad = jobOfPause
		case s.term != i+1:
			s.bad = jobNoTerm
		case p.lost:
			s.bad = jobBeside
		case before.outcome != jobOpen && !s.ended[k]:
			s.bad = jobRepeated
		case p.read.runs[k].attempt > jobAttempts:
			s.bad = jobTooOften
		}
		s.node[k], s.ended[k] = true, false
	}
	s.data, s.ver = p.read, s.ver+1
}

// call calls the function for what a process has claimed.
func (s *jobState) call(i int8) {
	p := &s.p[i]
	k := p.slot - 1
	if k < 0 {
		return
	}
	p.runs, p.attempt, p.slot = k+1, p.read.runs[k].attempt, 0
	twice := p.attempt <= s.called[k]
	s.called[k] = p.attempt
	if s.bad != "" {
		return
	}
	if twice {
		s.bad = jobTwice
	}
	if r := s.data.runs[k]; !(r.by == i && r.attempt == p.attempt && r.outcome == jobLasts) && !s.ended[k] {
		s.bad = jobUnclaimed
	}
}

// has reports whether the process runs a function whose claim still exists.
func (s *jobState) has(i int8) bool {
	p := &s.p[i]
	if p.runs == 0 || !p.live || p.lost {
		return false
	}
	r := s.data.runs[p.runs-1]
	return s.node[p.runs-1] && r.by == i && r.attempt == p.attempt
}

func (m *jobModel) function(s jobState, i int8, do jobDo) {
	p, o := &s.p[i], s
	q := &o.p[i]
	name := i + 1
	over := func(o *jobState) {
		q := &o.p[i]
		q.runs, q.attempt, q.lost, q.returned, q.removed = 0, 0, false, false, false
	}
	switch {
	case p.runs == 0 || p.pc == jobDead:
	case p.lost:
		over(&o)
		do(true, o, "the function of process %d returns after its loss", name)
	case !p.live:
	case p.removed:
		if o.data.runs[p.runs-1] == (jobRecord{jobLasts, i, p.attempt}) {
			o.data.runs[p.runs-1].outcome = jobDone
			o.ver++
		}
		over(&o)
		do(true, o, "process %d records the outcome", name)
	case !s.has(i):
		q.lost = true
		do(true, o, "process %d sees that its claim is gone", name)
	case !p.returned:
		q.returned = true
		do(true, o, "the function of process %d returns", name)
	default:
		o.node[p.runs-1] = false
		if m.rules.twoCommits {
			q.removed = true
		} else {
			o.data.runs[p.runs-1].outcome = jobDone
			o.ver++
			over(&o)
		}
		do(true, o, "process %d ends its claim", name)
	}
}

// loses ends the session of a process, and with it its nodes.
func (s *jobState) loses(i int8) {
	s.p[i].live = false
	if s.term == i+1 {
		s.term = 0
	}
	for k, r := range s.data.runs {
		if s.node[k] && r.by == i {
			s.node[k], s.ended[k] = false, true
		}
	}
}

func (m *jobModel) faults(s jobState, i int8, do jobDo) {
	p, o := &s.p[i], s
	q := &o.p[i]
	name := i + 1
	switch {
	case p.pc == jobDead:
		return
	case !p.live:
		q.live, q.pc, q.slot, q.lost = true, jobAway, 0, p.runs > 0
		do(true, o, "process %d has another session", name)
		return
	}
	if s.losses > 0 {
		o.losses--
		o.loses(i)
		do(false, o, "process %d loses its session", name)
	}
	if o := s; s.deaths > 0 {
		o.deaths--
		o.loses(i)
		o.p[i] = jobProcess{pc: jobDead}
		do(false, o, "process %d dies", name)
	}
}

func (m *jobModel) others(s jobState, do jobDo) {
	if o := s; s.ticks > 0 {
		o.ticks--
		o.now++
		do(false, o, "the next planned time comes")
	}
	if o := s; s.data.paused {
		o.data.paused = false
		if !m.rules.noSince {
			o.data.since = s.now
		}
		o.ver++
		for k := range jobAsked {
			o.out[k] = o.out[k] || s.data.runs[k].outcome == jobOpen && int8(k) < s.now
		}
		do(false, o, "Resume")
	} else if s.pauses > 0 {
		o.pauses--
		o.data.paused = true
		o.ver++
		do(false, o, "Pause")
	}
	if o := s; s.asks > 0 {
		o.asks--
		o.data.asked = true
		o.ver++
		do(false, o, "RunNow")
	}
	if o := s; s.term > 0 && s.deposes > 0 {
		o.deposes--
		o.term = 0
		do(false, o, "an outsider ends the term of process %d", s.term)
	}
	for k := range s.node {
		if o := s; s.node[k] && s.deletes > 0 {
			o.deletes--
			o.node[k], o.ended[k] = false, true
			do(false, o, "an outsider deletes the node of claim %d", k+1)
		}
	}
}

// judge finds two functions that have their claims.
func (s *jobState) judge() {
	if s.bad == "" && s.has(0) && s.has(1) {
		s.bad = jobTwo
	}
}

// atRest checks a state in which nothing happens without a decision or a fault.
func (s *jobState) atRest() error {
	if s.p[0].pc == jobDead && s.p[1].pc == jobDead {
		return nil
	}
	for k, r := range s.data.runs {
		at := int8(k) + 1
		switch planned := k != jobAsked; {
		case r.outcome == jobLasts && s.node[k]:
			return jobForgotten
		case r.outcome == jobLasts, r.outcome == jobAgain && !(planned && s.data.paused):
			return jobUnrepeated
		case planned && r.outcome == jobOpen && !s.data.paused && at <= s.now && !s.out[k]:
			return jobLeft
		}
	}
	if s.data.asked {
		return jobUnasked
	}
	return nil
}

func (m *jobModel) explore(t *testing.T) Result[keepAction] {
	t.Helper()
	start := m.scope
	for i := range start.p {
		start.p[i].live = true
	}
	return exploreAll(t, "of a schedule", Model[jobState, keepAction]{Start: start, Next: m.next, Free: func(a keepAction) bool { return a.free }})
}

// Each scope is explored completely.
func TestASchedule(t *testing.T) {
	t.Parallel()
	for name, scope := range map[string]jobState{
		"losses and a lost reply":      {ticks: 2, losses: 2, breaks: 1},
		"a death and a loss":           {ticks: 2, deaths: 1, losses: 1, breaks: 1},
		"an outsider":                  {ticks: 2, deletes: 1, deposes: 1, losses: 1, breaks: 1},
		"a pause and a loss":           {ticks: 2, pauses: 1, losses: 2},
		"a pause, and a run asked":     {ticks: 2, pauses: 1, asks: 1, losses: 1, breaks: 1},
		"two pauses with a lost reply": {ticks: 2, pauses: 2, breaks: 1, losses: 1},
	} {
		t.Run(name, func(t *testing.T) {
			mustHold(t, (&jobModel{scope: scope}).explore(t))
		})
	}
}

// Each rule is needed: without it a guarantee is violated in the way that the trace shows.
func TestAScheduleWithoutOneOfItsRules(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name  string
		rules jobRules
		scope jobState
		fault error
	}{
		{"a claim without the term", jobRules{noTerm: true}, jobState{ticks: 1, deposes: 1}, jobNoTerm},
		{"a commit over a later state", jobRules{noVersion: true}, jobState{ticks: 1, pauses: 1}, jobInPause},
		{"a lost reply is taken as a claim", jobRules{lostIsMade: true}, jobState{ticks: 1, breaks: 1}, jobUnclaimed},
		{"a lost reply is taken as no claim", jobRules{lostIsNot: true}, jobState{ticks: 1, breaks: 1}, jobForgotten},
		{"a leader beside its lost function", jobRules{besideLost: true}, jobState{ticks: 2, deletes: 1}, jobBeside},
		{"a claim that is gone stays", jobRules{goneUnseen: true}, jobState{ticks: 1, deaths: 1}, jobUnrepeated},
		{"the claim of another process is gone", jobRules{goneAlways: true}, jobState{ticks: 1, deposes: 1}, jobRepeated},
		{"the node is deleted before the outcome", jobRules{twoCommits: true}, jobState{ticks: 1, deposes: 1}, jobRepeated},
		{"what was planned in a pause runs", jobRules{noSince: true}, jobState{ticks: 1, pauses: 1}, jobOfPause},
		{"an attempt in a pause", jobRules{pauseAttempts: true}, jobState{ticks: 1, pauses: 1, losses: 1}, jobInPause},
		{"no limit of the attempts", jobRules{noLimit: true}, jobState{ticks: 1, losses: 2}, jobTooOften},
		{"a planned time runs again", jobRules{doneAgain: true}, jobState{ticks: 1}, jobRepeated},
	} {
		t.Run(v.name, func(t *testing.T) {
			mustViolate(t, (&jobModel{rules: v.rules, scope: v.scope}).explore(t), v.fault, 0)
		})
	}
}
