//go:build linux

package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
)

// electionTimeout leaves a candidate 4 s for its pings, since the margin takes the rest. The margin
// is the one for which the order of Done and the next term is guaranteed.
const (
	electionTimeout = 6 * time.Second
	electionMargin  = shortMargin
)

// The ways in which a leader's term ends here.
var faults = []string{"resign", "expire", "black hole", "pause", "kill"}

// The ways to be a candidate: commands of a worker.
var ways = []string{"leadership", "run"}

// TestLeadersAreReplaced has three candidates in three processes, and an observer in a
// fourth, and ends the terms of one leader after the other. The candidates that use the
// channel of Leadership and those that use Run swap half-way, and whenever a process is
// replaced.
func TestLeadersAreReplaced(t *testing.T) {
	ensemble.Require(t)
	n := len(faults)
	if long() {
		n = 100
	}
	r := newReign(t, startServers(t, shortSync))
	for i := range n {
		if i == n/2 {
			r.vacate()
			r.campaign(1)
		}
		r.round(i, faults[i%len(faults)])
	}
	// No candidate waits for ever: each one that lost a term leads again. Three are in the
	// queue, so three more terms are enough if none is lost in between.
	began := proc.Now()
	for i := range len(r.slots) {
		r.round(n+i, "resign")
	}
	for _, a := range r.slots {
		if _, ok := a.said("leading", func(l line) bool { return l.At > began }); !ok {
			t.Errorf("%s has not led again", a.name)
		}
	}
	r.vacate()
	r.check(n + len(r.slots))
}

// reign is three candidates and their observers.
type reign struct {
	*stage
	slots    []*actor
	all      []*actor       // including the killed ones
	way      map[*actor]int // index of ways
	observer *actor
	probe    *probe
	took     map[string]*figures[time.Duration] // from the fault to the next term
	told     figures[time.Duration]             // from the next term to the observer's news
	gap      figures[time.Duration]             // from Done of a leader without network to the next term
	late     int
	deposed  map[string]bool // nodes of terms that ended before a write was tried under them
	ends     int             // ends of terms, by the reports
	unheard  map[int64]bool  // tokens of terms whose leader could not be notified in time
}

func newReign(t *testing.T, e servers) *reign {
	t.Helper()
	r := &reign{
		stage: newStage(t, e), way: make(map[*actor]int),
		took: make(map[string]*figures[time.Duration]), deposed: make(map[string]bool), unheard: make(map[int64]bool),
	}
	r.probe = newProbe(t, e)
	r.observer = r.start("observer", mostTimeout, 0)
	r.observer.tell("observe")
	r.sees("vacant", 0, 0)
	for i := range 3 {
		r.slots = append(r.slots, r.candidate(i))
	}
	r.campaign(0)
	t.Cleanup(r.exclusive) // also when the test fails early
	return r
}

// candidate starts a candidate process.
func (r *reign) candidate(slot int) *actor {
	r.t.Helper()
	a := r.start(fmt.Sprintf("%c%d", 'a'+slot, len(r.all)), electionTimeout, electionMargin)
	r.all = append(r.all, a)
	return a
}

// enter makes the process a candidate in one of the ways.
func (r *reign) enter(a *actor, way int) {
	r.way[a] = way % len(ways)
	a.tell(ways[r.way[a]])
}

// campaign makes all processes candidates, in different ways.
func (r *reign) campaign(shift int) {
	for slot, a := range r.slots {
		r.enter(a, slot+shift)
	}
}

// said returns the actor's latest line of a kind for which ok holds.
func (a *actor) said(kind string, ok func(line) bool) (found line, any bool) {
	for _, l := range slices.Backward(a.Reports()) {
		if l.Kind == kind && ok(l) {
			return l, true
		}
	}
	return line{}, false
}

// sound fails the test if the actor gave up.
func (a *actor) sound() {
	a.t.Helper()
	if l, ok := a.said("failed", func(line) bool { return true }); ok {
		a.t.Fatalf("%s failed: %s", a.name, l.Text)
	}
}

// of waits for a report of a kind about one term.
func (a *actor) of(term line, kind string) (l line) {
	a.t.Helper()
	eventually(a.t, fmt.Sprintf("%s reports %q for token %#x", a.name, kind, term.Token), func() (ok bool) {
		a.sound()
		l, ok = a.said(kind, func(l line) bool { return l.Token == term.Token })
		return ok
	})
	return l
}

// sees waits until this is the observer's latest report, at some time after at.
func (r *reign) sees(text string, token int64, at time.Duration) line {
	r.t.Helper()
	var last line
	eventually(r.t, fmt.Sprintf("the observer sees %q, token %#x", text, token), func() bool {
		r.observer.sound()
		last, _ = r.observer.said("seen", func(line) bool { return true })
		return last.At > at && last.Text == text && last.Token == token
	})
	return last
}

// leader returns the leader by the candidates' reports, which may be outdated.
func (r *reign) leader() (who *actor, term line) {
	for _, a := range r.all {
		if l, ok := a.said("leading", func(line) bool { return true }); ok && l.Token > term.Token {
			who, term = a, l
		}
	}
	return who, term
}

// settled waits until the queue is complete: one candidate leads and has announced it, all
// others wait behind it, and the observer knows.
func (r *reign) settled() (leader *actor, term line) {
	r.t.Helper()
	var list []coord.Candidate
	eventually(r.t, "one candidate leads and the others wait", func() bool {
		for _, a := range r.slots {
			a.sound()
		}
		leader, term = r.leader()
		list = r.probe.contenders(r.t, r.election)
		if leader == nil || len(list) != len(r.slots) || list[0].Token != term.Token {
			return false
		}
		for i, c := range list[1:] {
			a := r.slots[slices.IndexFunc(r.slots, func(a *actor) bool { return a.name == c.ID })]
			if _, ok := a.said("waiting", func(l line) bool { return l.Path == c.Path }); !ok {
				return false
			}
			if c.Token <= list[i].Token {
				r.t.Errorf("in the queue: %v", list)
			}
		}
		return true
	})
	leader.of(term, "announced")
	r.sees(fmt.Sprintf("ready %s %d", leader.name, term.Token), term.Token, 0)
	return leader, term
}

// round ends the term of the leader, and waits for the next term.
func (r *reign) round(i int, fault string) {
	t := r.t
	t.Helper()
	old, term := r.settled()
	slot := slices.Index(r.slots, old)
	old.write("accepted")
	r.disturb(i)
	control := newExpiry(t, r.e, electionTimeout)
	// A deposed leader first checks, if it can, and writes all the same.
	r.probe.reset()
	// A process that does not run cannot be notified. If another client ends a session that
	// has contact, the service may report it in any order.
	r.unheard[term.Token] = fault == "kill" || fault == "pause" || fault == "expire"
	began := proc.Now()
	switch fault {
	case "resign":
		old.tell("resign")
		began = old.of(term, "releasing").At
	case "expire":
		r.expire(term.Session)
	case "black hole":
		old.blackhole(true)
	case "pause":
		old.signal(syscall.SIGSTOP)
	case "kill":
		old.Kill()
	}
	control.Begin()
	next, after := r.next(term)
	took := after.At - began
	what := fmt.Sprintf("round %d: the next term after the %s of the leader", i, fault)
	// The time that a commit takes on this machine at that moment is added.
	switch slowest := r.probe.slowest(); fault {
	case "resign":
		control.Pace.Judge(took, time.Second+slowest, what)
	case "expire":
		control.Pace.Judge(took, electionTimeout+2*tick+slowest, what)
	default:
		control.Judge(took, what)
	}
	control.End()
	if next == old || after.At < began {
		t.Errorf("round %d: %s leads with %#x after %s with %#x, %v after the %s of the leader",
			i, next.name, after.Token, old.name, term.Token, took, fault)
	}
	if r.took[fault] == nil {
		r.took[fault] = new(figures[time.Duration])
	}
	r.took[fault].add(took)
	next.of(after, "announced")
	next.write("accepted")
	seen := r.sees(fmt.Sprintf("ready %s %d", next.name, after.Token), after.Token, after.At)
	r.told.add(seen.At - after.At)
	if fault == "kill" {
		r.slots[slot] = r.candidate(slot)
		r.enter(r.slots[slot], r.way[old]+1)
		return
	}
	r.ends++
	r.deposed[term.Path] = true
	if fault == "pause" {
		old.tell("check", "write")
		old.signal(syscall.SIGCONT)
		checked := old.of(term, "checked")
		if !strings.HasPrefix(checked.Text, "done: ") || !isLoss(checked) {
			t.Errorf("round %d: after its pause %s sees: %s", i, old.name, checked.Text)
		}
		if wrote := old.await("wrote"); wrote.Text != "refused" || wrote.Token != term.Token {
			t.Errorf("round %d: after its pause %s wrote: %v", i, old.name, wrote)
		}
	}
	done := old.of(term, "done")
	if isLoss(done) == (fault == "resign") {
		t.Errorf("round %d: %s ended the term with %q", i, fault, done.Text)
	}
	switch fault {
	case "resign":
		if l := old.of(term, "released"); l.Text != "ok" {
			t.Errorf("round %d: %s resigned: %s", i, old.name, l.Text)
		}
	case "black hole":
		r.gap.add(after.At - done.At)
		if done.At >= after.At {
			r.late++
			t.Errorf("round %d: done at %v, %s leads at %v", i, done.At, next.name, after.At)
		}
	}
	if fault != "pause" {
		old.write("refused")
	}
	old.blackhole(false)
}

// next waits for the next term of any candidate.
func (r *reign) next(term line) (who *actor, after line) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("a term begins after token %#x", term.Token), func() bool {
		for _, a := range r.slots {
			a.sound()
		}
		who, after = r.leader()
		return after.Token > term.Token
	})
	return who, after
}

// expire makes the service end a session, as if it had timed out.
func (r *reign) expire(session int64) {
	r.t.Helper()
	r.e.expire(r.t, session)
}

// disturb cuts the observer's connections, or ends its session, in some rounds.
func (r *reign) disturb(i int) {
	switch i % 3 {
	case 1:
		for _, p := range r.observer.proxies {
			p.Cut()
		}
	case 2:
		if l, ok := r.observer.said("phase", func(l line) bool { return l.Text == "connected" }); ok {
			r.expire(l.Session)
		}
	}
}

// vacate makes all candidates leave, the leader last, so that there is no leader.
func (r *reign) vacate() {
	r.t.Helper()
	leader, term := r.settled()
	for _, a := range r.slots {
		if a != leader {
			a.ask("stop", "stopped")
		}
	}
	// A place that was given up is removed in the background, and observers treat the first
	// in the queue as the leader.
	eventually(r.t, "only the leader is left", func() bool { return len(r.probe.contenders(r.t, r.election)) == 1 })
	at := proc.Now()
	leader.ask("stop", "stopped")
	leader.of(term, "done")
	r.sees("vacant", 0, at)
	if list := r.probe.contenders(r.t, r.election); len(list) != 0 {
		r.t.Errorf("all have stopped, but these are in the queue: %v", list)
	}
}
