//go:build linux

package faulttest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/itemlog"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zklog"
)

// conclude ends the work, and judges it.
func (f *fleet) conclude() (broken error) {
	t := f.t
	t.Helper()
	for _, a := range f.consumers {
		a.tell("finish")
		a.await("finished")
	}
	f.finished = proc.Now()
	f.look()
	outages := f.control.close()
	if moved := wallOffset() - f.offset; moved.Abs() > 5*time.Millisecond {
		t.Logf("figure: fleet: the wall clock moved by %v", moved)
	}
	p := newPassage()
	left, looked := make(map[string]int64), make(map[string]time.Duration)
	for _, path := range []string{f.path, f.delayed} {
		f.drain(p, path)
		for path, owner := range f.left(path) {
			left[path], looked[path] = owner, proc.Now()
		}
	}
	log, dropped, err := f.log()
	if err != nil {
		return err
	}
	h := itemlog.New(map[string]itemlog.Queue{f.path: {Name: "q", Most: fleetAttempts}, f.delayed: {Name: "d", Most: fleetAttempts}})
	for _, x := range log {
		h.Apply(x)
	}
	for session, at := range h.Ended {
		p.ended[session] = f.monotonicOf(at)
	}
	for _, a := range f.all {
		p.add(a.name, a.Reports())
	}
	if err := takenBack(p, f.control.acknowledged(), dropped); err != nil {
		return err
	}
	for path, owner := range left {
		// On etcd a key goes with its lease, so there what is left is ours.
		at, ended := h.Ended[owner]
		killed, dead := f.killed(owner)
		switch {
		case f.e.Other != nil:
		case ended && f.monotonicOf(at)+limit/2 < looked[path]:
			broken = fmt.Errorf("a server has %s of the session %x, which ended at %v", path, owner, at)
			continue
		case !ended && dead && killed+limit/2 < looked[path]:
			// Nothing keeps it alive. A leader that begins on a busy machine can lose the end of a session.
			broken = fmt.Errorf("the servers have not ended the session %x, whose process was killed %v before", owner, looked[path]-killed)
			continue
		}
		t.Errorf("left behind: %s of the session %x; the log has%s", path, owner, story(log, path))
	}
	if want := f.total(); len(p.puts) != want {
		t.Errorf("%d values put, want %d", len(p.puts), want)
	}
	p.check()
	compareItems(h, p)
	if len(p.wrong)+len(h.Wrong) > 0 {
		t.Errorf("%d violations by the reports, %d by the log; %d transactions stand in a log and were dropped", len(p.wrong), len(h.Wrong), len(dropped))
	}
	p.wrong = append(h.Wrong, p.wrong...)
	waits, silence := f.waits(h, outages)
	f.summarize(p, h, log, waits, silence)
	p.report(t)
	return broken
}

// killed returns when the process of a session was killed.
func (f *fleet) killed(session int64) (at time.Duration, dead bool) {
	for a, at := range f.died {
		if slices.ContainsFunc(a.Reports(), func(l line) bool { return l.Session == session }) {
			return at, true
		}
	}
	return 0, false
}

// log returns all transactions, and the zxids of those that servers have dropped. The error says
// that the servers broke their own guarantees.
func (f *fleet) log() (log []zklog.Txn, dropped map[int64]bool, broken error) {
	f.t.Helper()
	if f.e.Other != nil {
		return wholeLog(f.t, f.e), nil, nil
	}
	log, dropped = allLogs(f.t, f.e)
	_, broken = zklog.Replay(log)
	return log, dropped, broken
}

// drain takes the dead letters of a queue.
func (f *fleet) drain(p *passage, path string) {
	f.t.Helper()
	q := coord.NewQueue(f.c, path+"/dead", &coord.QueueOptions[string]{Codec: coord.Text()})
	for {
		it, err := q.TryTake(f.t.Context())
		if errors.Is(err, coord.ErrEmpty) {
			return
		}
		if err == nil {
			if _, twice := p.dead[it.ID]; twice {
				p.errorf("in the dead letters twice: %s", it.ID)
			}
			p.dead[it.ID] = it.Value
			err = it.Ack()
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// left waits until nothing is left of the items and the waits of a queue: no node of an item,
// and no ephemeral node. It returns the nodes that are there after limit, with their owners.
func (f *fleet) left(path string) map[string]int64 {
	t := f.t
	t.Helper()
	s, err := f.c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := make(map[string]int64)
	for began := time.Now(); time.Since(began) < limit; coordtest.Pause(began) {
		tree, err := coordtest.ReadTree(t.Context(), s, "", path, readsAtOnce)
		if err != nil {
			t.Fatal(err)
		}
		clear(left)
		for path, n := range tree {
			name := path[strings.LastIndexByte(path, '/')+1:]
			_, _, item := layout.CutID(name, layout.ItemPrefix)
			_, _, mark := layout.CutID(name, layout.MarkPrefix)
			if n.Owner != 0 || item || mark || layout.IsState(name) {
				left[path] = n.Owner
			}
		}
		if len(left) == 0 {
			break
		}
	}
	return left
}

// story returns the last ten transactions of a node, for a failure.
func story(log []zklog.Txn, path string) string {
	var lines []string
	for _, x := range log {
		for _, op := range x.Ops {
			if op.Path == path {
				lines = append(lines, fmt.Sprintf("\n%s %x of the session %x, error %d: type %d in %+v", x.Time.Format("15:04:05.000"), x.Zxid, x.Session, x.Err, op.Type, x.Ops))
				break
			}
		}
	}
	return strings.Join(lines[max(0, len(lines)-10):], "")
}

// monotonicOf returns a time of the servers, which are on this machine, by the clock of proc.Now.
func (f *fleet) monotonicOf(t time.Time) time.Duration { return time.Duration(t.UnixNano()) - f.offset }

// summarize prints the figures, and fails the test if there was too little of a fault, or if an
// item waited for too long.
func (f *fleet) summarize(p *passage, h *itemlog.Log, log []zklog.Txn, waits []wait, silence time.Duration) {
	t := f.t
	t.Helper()
	c := p.counts()
	say := func(what, format string, args ...any) {
		t.Logf("figure: fleet: %-24s %s", what, fmt.Sprintf(format, args...))
	}
	round := func(d time.Duration) time.Duration { return d.Round(time.Second / 10) }
	say("items", "%d, %d of them with a due time; %d producers and %d consumers; %v, after %v to start, and %v to judge",
		c.values, h.Due, len(f.producers), len(f.consumers), round(f.finished-f.began), round(f.began-f.setUp), round(proc.Now()-f.finished))
	for _, kind := range slices.Sorted(maps.Keys(f.faults)) {
		say("fault", "%s: %d", kind, f.faults[kind])
	}
	ended := 0
	for _, a := range f.all {
		ended += f.lost(a)
	}
	say("sessions lost", "%d by processes that lived; %d consumers killed, %d connections cut, %d servers killed", ended, f.kills, f.cuts, f.servers)
	say("deliveries", "%d, %d of them again, highest attempt %d", c.deliveries, c.again, c.highest)
	say("ends", "%d acked (%d more with an unknown outcome), %d acks lost, %d puts with an unknown outcome", c.acked, c.unknownAcks, c.lostAcks, c.unknown)
	nexts := 0
	for i := range log {
		if itemlog.AcksAndClaims(&log[i]) {
			nexts++
		}
	}
	say("claims by Acks", "%d commits acknowledged items and claimed the next ones", nexts)
	say("handlers", "%d failed (%d with a delay), %d hung beyond ClaimTimeout", c.nacked, c.delayed, c.hung)
	say("dead letters", "%d, after %d attempts each", len(p.dead), fleetAttempts)
	say("violations", "%d: items lost, left, delivered after an Ack, delivered early, or not as the log says", len(p.wrong))
	say("late", "%d items received by a process whose claim had gone with its session, after the Ack of another process", p.late)
	say("idle consumers silent", "%v until %d items were taken", f.masses, massItems)
	slices.SortFunc(waits, func(a, b wait) int { return cmp.Compare(b.still, a.still) })
	for _, w := range waits[:min(len(waits), 5)] {
		t.Logf("wait from %v on: %v", w.at.from-f.began, w)
	}
	longest := func(by func(wait) time.Duration) (l wait) {
		for _, w := range waits {
			if by(w) > by(l) {
				l = w
			}
		}
		return l
	}
	all, behind := longest(wait.length), longest(func(w wait) time.Duration { return w.behind })
	rest, still := longest(func(w wait) time.Duration { return w.rest }), longest(func(w wait) time.Duration { return w.still })
	say("longest wait", "%v", all)
	say("behind the silent", "%v", behind)
	say("longest silence", "%v until the session had ended or its consumer was back, session timeout %v", silence.Round(time.Millisecond), fleetTimeout())
	say("longest in races", "%v", rest)
	say("longest standstill", "%v", still)
	say("outages", "%d of the service, %v in all, longest %v", len(f.control.outages), f.control.outages.total().Round(time.Millisecond), f.control.longest().Round(time.Millisecond))
	say("pace", "%v for a write of the control, the slowest %v in one of these waits", f.control.pace(window[time.Duration]{f.began, f.finished}), max(f.control.pace(still.at), f.control.pace(rest.at), f.control.pace(behind.at)))
	reported := make(map[string]bool) // the queues whose waiters were logged
	report := func(w wait) {
		if !reported[w.lane] {
			t.Log(f.waiters(log, w))
		}
		reported[w.lane] = true
	}
	for _, w := range waits {
		slack := waitTurns * f.control.pace(w.at)
		if bound := waitSlack + slack; w.still > bound {
			t.Errorf("an item waited for %v without a reason, bound %v: %v", w.still, bound, w)
			report(w)
		}
		if bound := raceSlack + slack; w.rest > bound {
			t.Errorf("an item waited for %v, while others were claimed, bound %v: %v", w.rest, bound, w)
			report(w)
		}
		// It must not wait for more than one of the sessions.
		if bound := w.silence + waitSlack + slack; w.behind > bound {
			t.Errorf("an item waited for %v behind silent consumers, bound %v: %v", w.behind, bound, w)
			report(w)
		}
	}
	if c.again == 0 || len(p.dead) == 0 || c.nacked == 0 || c.delayed == 0 || c.hung == 0 || ended == 0 || h.Due == 0 || f.cuts == 0 || f.servers == 0 {
		t.Error("too few faults of some kind")
	}
	if nexts == 0 {
		t.Error("no commit has acknowledged an item and claimed the next one")
	}
}

// lost returns how many sessions a process has lost.
func (f *fleet) lost(a *actor) (n int) {
	for _, l := range a.Reports() {
		if l.Kind == "phase" && l.Text == coord.PhaseLost.String() {
			n++
		}
	}
	return n
}
