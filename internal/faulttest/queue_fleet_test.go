//go:build linux

package faulttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/itemlog"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zklog"
)

// fleetItems returns the number of items of a fleet.
func fleetItems() int {
	if long() {
		return 20_000
	}
	return 800
}

// fleetRounds returns the number of rounds, each with the faults of fleetFaults.
func fleetRounds() int {
	if long() {
		return 20
	}
	return 2
}

// wrongClock returns by how much the clocks of a consumer and of a producer are ahead, and those of
// another consumer and of another producer behind.
func wrongClock() time.Duration {
	if elsewhere() {
		return 0 // there the clocks of processes count
	}
	return 5 * time.Minute
}

// fleetTimeout returns the session timeout of the processes.
func fleetTimeout() time.Duration {
	if long() {
		return queueTimeout
	}
	return queueTimeout - 2*tick
}

// The lengths of pauses and of cut-offs: one that a session survives, and one that it does not.
func shortPause() time.Duration { return fleetTimeout() / 4 }
func longPause() time.Duration  { return fleetTimeout() + 2*tick }

const (
	// waitSlack is how long an item may wait for an idle consumer, while no item of its queue is
	// claimed, beyond what the faults explain and the pace of the machine.
	waitSlack = 2 * time.Second

	// waitTurns is how many writes, each of which takes as long as those of the control in the
	// same time, may be added to waitSlack: a busy machine, which runs a hundred threads for each
	// processor, is slow at each of some ten requests of a take, and at each step of their way.
	waitTurns = 50

	// raceSlack is how long it may wait while other consumers claim other items. An idle consumer
	// competes for the items at the head, and loses several times on a busy machine.
	raceSlack = 15 * time.Second
)

// TestAFleetPassesItemsThroughQueuesUnderFaults has four producers and eight consumers, each in a
// process of its own, pass items through a queue and a delay queue on three servers, while
// processes are killed, paused and cut off and servers are killed. The clocks of four of the
// processes are five minutes wrong. Some handlers fail, and some hang.
//
// The reports of all processes and the log of the service must show that no item was lost, that
// none was delivered again after an Ack that returned nil, or before it was due, and that no
// ready item waited for an idle consumer without a reason.
func TestAFleetPassesItemsThroughQueuesUnderFaults(t *testing.T) {
	ensemble.Require(t)
	const most = 3
	for i := range most {
		broken := runFleet(t)
		if broken == nil {
			return
		}
		t.Logf("figure: fleet: ensemble %d does not count, because its servers broke their guarantees: %v", i+1, broken)
	}
	t.Errorf("none of %d ensembles kept its guarantees: nothing was tested", most)
}

// fleet is the works with two queues and a record of all faults.
type fleet struct {
	*works
	delayed string // path of the delay queue
	control *fleetControl
	setUp   time.Duration // when the servers were about to start
	began   time.Duration
	offset  time.Duration // wall clock - monotonic

	faults   map[string]int
	next     int // index in fleetFaults
	pending  []pendingFault
	stopped  map[*actor]spans // paused
	cutOff   map[*actor]spans // without a network
	died     map[*actor]time.Duration
	busy     map[*actor]bool
	told     map[*actor]int // commands to a producer
	skew     map[*actor]time.Duration
	finished time.Duration
	servers  int             // killed
	masses   []time.Duration // from the silence of several idle consumers to the delivery of the next items
}

// pendingFault is the end of a fault.
type pendingFault struct {
	at time.Duration
	do func()
}

// runFleet returns an error if the servers broke their own guarantees.
func runFleet(t *testing.T) (broken error) {
	setUp := proc.Now()
	e := startServers(t, longSync, wholeLogs)
	f := &fleet{
		works: newWorks(t, e), setUp: setUp, faults: make(map[string]int), stopped: make(map[*actor]spans), cutOff: make(map[*actor]spans),
		died: make(map[*actor]time.Duration), busy: make(map[*actor]bool), told: make(map[*actor]int), skew: make(map[*actor]time.Duration),
	}
	f.delayed = f.path + "-delayed"
	f.control = newFleetControl(t, e)
	for i := range 4 {
		f.producers = append(f.producers, f.launchOne(fmt.Sprint("producer ", i), []time.Duration{wrongClock(), -wrongClock(), 0, 0}[i]))
	}
	for i, how := range []string{"0", "work", "0", "1", "8", "64", "work", "0"} {
		a := f.launchOne(fmt.Sprint("consumer ", i), []time.Duration{wrongClock(), -wrongClock(), 0, 0, 0, 0, 0, 0}[i])
		f.consumers = append(f.consumers, a)
		f.prefetch[a] = how
	}
	for _, a := range f.all {
		a.await("opened")
	}
	for _, a := range f.consumers {
		f.recruit(a)
	}
	f.began, f.offset = proc.Now(), wallOffset()

	rounds := fleetRounds()
	for i := range rounds {
		f.round(share(fleetItems()-(rounds+1)/3*2*massItems, rounds, i))
		if i%3 == 1 {
			f.mass(mostSilent)
			f.mass(mostSilent + 2)
		}
		t.Logf("round %d of %d after %v: %d deliveries of %d items", i+1, rounds, (proc.Now() - f.began).Round(time.Second/10), f.said["took"], f.total())
	}
	f.calm()
	return f.conclude()
}

// employ starts a process and waits until it has a session.
func (f *fleet) employ(name string, skew time.Duration) *actor {
	f.t.Helper()
	a := f.launchOne(name, skew)
	a.await("opened")
	return a
}

// launchOne starts a process.
func (f *fleet) launchOne(name string, skew time.Duration) *actor {
	f.t.Helper()
	a := f.launch(name, workerSpec{SessionTimeout: fleetTimeout(), Skew: skew})
	f.skew[a] = skew
	f.all = append(f.all, a)
	return a
}

// recruit makes a process a consumer.
func (f *fleet) recruit(a *actor) {
	a.tell(strings.Join([]string{"fleet-consume", f.path, f.delayed, f.prefetch[a]}, " "))
}

// due ends the faults whose time has come.
func (f *fleet) due() {
	f.look()
	now := proc.Now()
	for i := 0; i < len(f.pending); i++ {
		if p := f.pending[i]; p.at <= now {
			f.pending = slices.Delete(f.pending, i, i+1)
			p.do()
			i = -1
		}
	}
}

// eventually waits for a condition, and ends faults meanwhile.
func (f *fleet) eventually(what string, cond func() bool) {
	f.t.Helper()
	eventually(f.t, what, func() bool {
		f.due()
		return cond()
	})
}

// put makes the producers put n values.
func (f *fleet) put(n int) {
	for i, a := range f.producers {
		k := share(n, len(f.producers), i)
		f.order(i, a, f.puts[a], k)
		f.puts[a] += k
	}
}

// order tells the producer at i to put the values from that number on.
func (f *fleet) order(i int, a *actor, from, n int) {
	a.tell(fmt.Sprintf("fleet-produce %s %s p%d %d %d %t", f.path, f.delayed, i, from, n, f.skew[a] == 0))
	f.told[a]++
}

// produced reports whether a producer has put all its values.
func (f *fleet) produced(a *actor) bool { return f.reports(a, "produced") == f.told[a] }

func (f *fleet) reports(a *actor, kind string) (n int) {
	for _, l := range a.Reports() {
		if l.Kind == kind {
			n++
		}
	}
	return n
}

func (f *fleet) allProduced() bool {
	return !slices.ContainsFunc(f.producers, func(a *actor) bool { return !f.produced(a) })
}

// fleetFaults are the kinds of faults. Each round has some of them, in this order.
var fleetFaults = []string{
	"kill the leader", "kill a consumer", "pause a consumer", "cut off a producer", "kill a producer", "cut connections", "pause a consumer briefly",
	"kill a follower", "cut off a consumer", "kill a consumer", "pause a producer", "cut off a consumer briefly", "cut connections",
}

// faultsInRound is the number of faults of a round.
const faultsInRound = 7

// round passes n items, with faults.
func (f *fleet) round(n int) {
	f.t.Helper()
	f.look()
	took := f.said["took"]
	f.put(n)
	for i := range faultsInRound {
		want := took + n*(i+1)/(faultsInRound+1)
		f.eventually("some items are taken", func() bool { return f.said["took"] >= want || f.allProduced() })
		kind := fleetFaults[f.next%len(fleetFaults)]
		f.next++
		f.faults[kind]++
		f.cause(kind)
	}
	f.eventually("all values are put", f.allProduced)
	f.eventually("most items are taken", func() bool { return f.length() <= mostWaiting })
}

// length returns the number of items in both queues, including claimed ones.
func (f *fleet) length() int {
	f.t.Helper()
	n, err := coord.NewQueue(f.c, f.path, fleetOptions(0)).Len(f.t.Context())
	m, err2 := coord.NewDelayQueue(f.c, f.delayed, fleetOptions(0)).Len(f.t.Context())
	if err := errors.Join(err, err2); err != nil {
		f.t.Fatal(err)
	}
	return n + m
}

// cause causes a fault.
func (f *fleet) cause(kind string) {
	f.t.Helper()
	brief := strings.HasSuffix(kind, " briefly")
	length := longPause()
	if brief {
		length = shortPause()
	}
	switch kind := strings.TrimSuffix(kind, " briefly"); kind {
	case "kill a consumer":
		f.killConsumer(f.choose(f.consumers, true))
	case "kill a producer":
		f.killProducer(f.choose(f.producers, false))
	case "pause a consumer":
		f.pause(f.consumers[f.choose(f.consumers, true)], length)
	case "pause a producer":
		f.pause(f.producers[f.choose(f.producers, false)], length)
	case "cut off a consumer":
		f.isolate(f.consumers[f.choose(f.consumers, true)], length)
	case "cut off a producer":
		f.isolate(f.producers[f.choose(f.producers, false)], length)
	case "cut connections":
		f.cut(f.producers[f.choose(f.producers, false)])
		f.cut(f.consumers[f.choose(f.consumers, true)])
	case "kill the leader":
		f.e.followers(f.t) // all servers are back
		f.killServer(f.e.leader(f.t))
	case "kill a follower":
		f.killServer(f.e.followers(f.t)[rand.N(2)])
	default:
		f.t.Fatalf("no such fault: %s", kind)
	}
}

// choose returns the index of a process without a fault, if possible of one that works on an item.
func (f *fleet) choose(all []*actor, working bool) int {
	f.t.Helper()
	from, chosen := rand.N(len(all)), -1
	f.eventually("a process has no fault", func() bool {
		for i := range all {
			at := (from + i) % len(all)
			if f.busy[all[at]] {
				continue
			}
			chosen = at
			if kind := f.latest[all[at]].Kind; !working || kind == "took" || kind == "acking" || kind == "hanging" {
				break
			}
		}
		return chosen >= 0
	})
	return chosen
}

// killConsumer kills the consumer at i, and starts another one in its place.
func (f *fleet) killConsumer(i int) {
	f.t.Helper()
	f.slay(f.consumers[i])
	f.kills++
	f.succeed(i)
}

// slay kills a process.
func (f *fleet) slay(a *actor) {
	f.died[a] = proc.Now()
	a.Kill()
}

// succeed starts a consumer in place of a dead one.
func (f *fleet) succeed(i int) {
	f.t.Helper()
	dead := f.consumers[i]
	a := f.employ(dead.name+"'", f.skew[dead])
	f.consumers[i] = a
	f.prefetch[a] = f.prefetch[dead]
	f.recruit(a)
}

// killProducer kills the producer at i, and starts another one that continues with its next value.
func (f *fleet) killProducer(i int) {
	f.t.Helper()
	dead := f.producers[i]
	f.slay(dead)
	a := f.employ(dead.name+"'", f.skew[dead])
	f.producers[i] = a
	next := 0
	for _, o := range f.all {
		for _, l := range o.Reports() {
			for _, it := range l.Items {
				var p, n int
				if _, err := fmt.Sscanf(it.Value, "p%d-%d", &p, &n); err == nil && p == i && l.Kind == "putting" {
					next = max(next, n+1)
				}
			}
		}
	}
	f.puts[a] = f.puts[dead]
	delete(f.puts, dead)
	f.order(i, a, next, f.puts[a]-next)
}

// killServer kills a server and starts it again. It does not wait until the server serves.
func (f *fleet) killServer(s ensemble.Server) {
	f.t.Helper()
	s.Kill()
	if err := s.Launch(); err != nil {
		f.t.Fatal(err)
	}
	f.servers++
}

// pause stops a process for some time.
func (f *fleet) pause(a *actor, d time.Duration) {
	f.t.Helper()
	from := proc.Now()
	a.signal(syscall.SIGSTOP)
	f.until(a, d, func() {
		a.signal(syscall.SIGCONT)
		f.stopped[a] = append(f.stopped[a], window[time.Duration]{from, proc.Now()})
	})
}

// isolate drops all traffic of a process for some time.
func (f *fleet) isolate(a *actor, d time.Duration) {
	from := proc.Now()
	a.blackhole(true)
	f.until(a, d, func() {
		a.blackhole(false)
		f.cutOff[a] = append(f.cutOff[a], window[time.Duration]{from, proc.Now()})
	})
}

// until ends a fault of a process after some time.
func (f *fleet) until(a *actor, d time.Duration, end func()) {
	f.busy[a] = true
	f.pending = append(f.pending, pendingFault{proc.Now() + d, func() {
		end()
		f.busy[a] = false
	}})
}

// calm waits until no fault is left, the queues are empty and all consumers ask for items.
func (f *fleet) calm() {
	f.t.Helper()
	f.eventually("all faults end", func() bool { return len(f.pending) == 0 })
	f.eventually("all values are put", f.allProduced)
	f.eventually("the queues are empty", func() bool { return f.length() == 0 })
	f.eventually("all consumers are idle", func() bool {
		return !slices.ContainsFunc(f.consumers, func(a *actor) bool { return f.askingSince(a) == 0 })
	})
}

// askingSince returns when the present call that takes from the queue began, or zero if there is
// none, or the consumer has no session.
func (f *fleet) askingSince(a *actor) (since time.Duration) {
	phase, session := "", int64(0)
	for _, l := range a.Reports() {
		switch {
		case l.Kind == "phase":
			phase = l.Text
			if since != 0 && session != l.Session {
				since = l.At // it has to begin to wait again
			}
			session = l.Session
		case l.Text != "q":
		case l.Kind == "asking":
			since = l.At
		case l.Kind == "took":
			since = 0
		}
	}
	if phase != coord.PhaseConnected.String() {
		return 0
	}
	return since
}

// massItems is the number of items that are put when several idle consumers fall silent.
const massItems = 32

// mass makes the n consumers silent that have been idle for longest, and then passes items.
func (f *fleet) mass(n int) {
	f.t.Helper()
	f.calm()
	victims := slices.Clone(f.consumers)
	slices.SortFunc(victims, func(a, b *actor) int { return cmp.Compare(f.askingSince(a), f.askingSince(b)) })
	victims = victims[:n]
	f.faults[fmt.Sprintf("%d idle consumers fall silent", n)]++
	took := f.said["took"]
	for i, a := range victims {
		switch {
		case long() && i == 1:
			f.pause(a, longPause())
		case long() && i == 2:
			f.isolate(a, longPause())
		default:
			f.slay(a)
			f.kills++
		}
	}
	began := proc.Now()
	f.put(massItems)
	f.eventually("the items are taken", func() bool { return f.said["took"] >= took+massItems })
	f.masses = append(f.masses, proc.Now()-began)
	for i, a := range f.consumers {
		if _, dead := f.died[a]; dead {
			f.succeed(i)
		}
	}
}

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
	return log, dropped, zklog.Replay(log)
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
	var walk func(path string)
	walk = func(path string) {
		names, stat, err := s.Children(t.Context(), path, nil)
		if errors.Is(err, backend.ErrNotFound) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path[strings.LastIndexByte(path, '/')+1:]
		_, _, item := layout.CutID(name, layout.ItemPrefix)
		_, _, mark := layout.CutID(name, layout.MarkPrefix)
		if stat.EphemeralOwner != 0 || item || mark || layout.IsState(name) {
			left[path] = stat.EphemeralOwner
		}
		for _, name := range names {
			walk(path + "/" + name)
		}
	}
	for began := time.Now(); time.Since(began) < limit; coordtest.Pause(began) {
		if err := s.Sync(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		clear(left)
		walk(path)
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

// wallOffset returns the difference of the wall clock and the clock of monotonic.
func wallOffset() time.Duration {
	best, offset := time.Hour, time.Duration(0)
	for range 10 {
		from, wall, to := proc.Now(), time.Now(), proc.Now()
		if to-from < best {
			best, offset = to-from, time.Duration(wall.UnixNano())-from-(to-from)/2
		}
	}
	return offset
}

// monotonicOf returns a time of the servers, which are on this machine, by the clock of monotonic.
func (f *fleet) monotonicOf(t time.Time) time.Duration { return time.Duration(t.UnixNano()) - f.offset }

// waits finds the longest waits of ready items for idle consumers. The second result is the
// longest time in which a consumer was silent and its session lived: servers on a busy machine end
// a session late.
func (f *fleet) waits(h *itemlog.Log, outages spans) (waits []wait, silence time.Duration) {
	var items []available
	for _, it := range h.Items {
		a := available{name: it.String(), lane: it.Queue.Name}
		for _, r := range it.Ready {
			a.ready = append(a.ready, window[time.Duration]{f.monotonicOf(r.From), f.monotonicOf(r.To)})
		}
		items = append(items, a)
	}
	hind := hindrances{outages: outages, starved: f.control.gaps, claims: make(map[string][]time.Duration)}
	for lane, all := range h.Taken {
		for _, at := range all {
			hind.claims[lane] = append(hind.claims[lane], f.monotonicOf(at))
		}
		slices.Sort(hind.claims[lane])
	}
	var idlers []idler
	for _, a := range f.all {
		if f.prefetch[a] == "" {
			continue // a producer
		}
		c := f.careerOf(a, h)
		for _, s := range c.sessions {
			hind.silent = append(hind.silent, s.silent)
			hind.absent = append(hind.absent, union(s.silent, c.gaps.and(s.life)))
		}
		for lane, asked := range c.asked {
			idlers = append(idlers, idler{a.name, lane, asked.and(c.connected), c.gaps})
		}
	}
	for _, s := range hind.silent {
		for _, w := range s {
			silence = max(silence, w.to-w.from)
		}
	}
	return longestWaits(idlers, items, hind, waitSeen), silence
}

// waitSeen is the shortest wait that is looked at.
const waitSeen = 20 * time.Millisecond

// career is what became of a consumer.
type career struct {
	asked     map[string]spans // by lane
	connected spans            // it had contact and was not paused
	sessions  []sessionLife
	gaps      spans // it did not run, without being paused
}

// sessionLife is one session of a consumer. The service can end it long after its client has lost
// it and has another one.
type sessionLife struct {
	life   spans
	silent spans // the consumer was dead, paused, without contact or had another session
}

func (f *fleet) careerOf(a *actor, h *itemlog.Log) (c career) {
	end, dead := f.died[a]
	if !dead {
		end = f.finished
	}
	c.asked = make(map[string]spans)
	asking := make(map[string]time.Duration)
	stop := func(lane string, at time.Duration) {
		if from, ok := asking[lane]; ok {
			c.asked[lane] = append(c.asked[lane], window[time.Duration]{from, at})
			delete(asking, lane)
		}
	}
	type start struct {
		session int64
		from    time.Duration
	}
	var contact start
	var sessions []start
	contacts := make(map[int64]spans) // by session
	lose := func(at time.Duration) {
		if contact.session == 0 {
			return
		}
		if ended, ok := h.Ended[contact.session]; ok {
			at = min(at, f.monotonicOf(ended))
		}
		had := window[time.Duration]{contact.from, at}
		c.connected = append(c.connected, had)
		contacts[contact.session] = append(contacts[contact.session], had)
		contact = start{}
	}
	cutOff := slices.Clone(f.cutOff[a])
	for _, l := range a.Reports() {
		switch l.Kind {
		case "asking":
			asking[l.Text] = l.At
		case "took":
			stop(l.Text, l.At)
		case "gap":
			c.gaps = append(c.gaps, window[time.Duration]{l.At - l.Delay, l.At})
		case "phase":
			lose(l.At)
			if l.Text != coord.PhaseConnected.String() {
				continue
			}
			contact = start{l.Session, l.At}
			if n := len(sessions); n == 0 || sessions[n-1].session != l.Session {
				sessions = append(sessions, contact)
			}
		}
	}
	lose(end)
	for lane := range asking {
		stop(lane, end)
	}
	// Connections that were cut off are cut in the end, and the client connects again.
	for i, w := range cutOff {
		at := slices.IndexFunc(c.connected, func(x window[time.Duration]) bool { return x.from >= w.to })
		if at >= 0 {
			cutOff[i].to = c.connected[at].from
		}
	}
	c.connected = union(c.connected)
	for _, s := range sessions {
		to := f.finished
		if ended, ok := h.Ended[s.session]; ok {
			to = min(to, f.monotonicOf(ended))
		}
		life := spans{{s.from, to}}
		c.sessions = append(c.sessions, sessionLife{life, union(life.minus(union(contacts[s.session])), union(f.stopped[a], cutOff).and(life))})
	}
	c.connected = c.connected.minus(union(cutOff, f.stopped[a]))
	c.gaps = union(c.gaps).minus(union(f.stopped[a]))
	for lane := range c.asked {
		c.asked[lane] = union(c.asked[lane])
	}
	return c
}

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
	told := make(map[string]bool) // by lane
	tell := func(w wait) {
		if !told[w.lane] {
			t.Log(f.waiters(log, w))
		}
		told[w.lane] = true
	}
	for _, w := range waits {
		slack := waitTurns * f.control.pace(w.at)
		if bound := waitSlack + slack; w.still > bound {
			t.Errorf("an item waited for %v without a reason, bound %v: %v", w.still, bound, w)
			tell(w)
		}
		if bound := raceSlack + slack; w.rest > bound {
			t.Errorf("an item waited for %v, while others were claimed, bound %v: %v", w.rest, bound, w)
			tell(w)
		}
		// It must not wait for more than one of the sessions.
		if bound := w.silence + waitSlack + slack; w.behind > bound {
			t.Errorf("an item waited for %v behind silent consumers, bound %v: %v", w.behind, bound, w)
			tell(w)
		}
	}
	if c.again == 0 || len(p.dead) == 0 || c.nacked == 0 || c.delayed == 0 || c.hung == 0 || ended == 0 || h.Due == 0 || f.cuts == 0 || f.servers == 0 {
		t.Error("too few faults of some kind")
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

// fleetControl measures when the service answers nobody: a client for each server writes all the
// time, and the service is out when none of them gets an answer.
type fleetControl struct {
	cancel  context.CancelFunc
	over    sync.WaitGroup
	each    []spans   // by server: the times without an answer
	acked   [][]int64 // by server: the zxids of the writes
	writes  []spans   // by server: from a request to its answer
	outages spans
	gaps    spans // in which this process did not run
}

// leastOutage is the shortest time without an answer that counts.
const leastOutage = 100 * time.Millisecond

func newFleetControl(t *testing.T, e servers) *fleetControl {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	x := &fleetControl{cancel: cancel, each: make([]spans, len(e.Addrs())), acked: make([][]int64, len(e.Addrs())), writes: make([]spans, len(e.Addrs()))}
	for i, addr := range e.Addrs() {
		x.over.Go(func() {
			for from := proc.Now(); ctx.Err() == nil; {
				from = x.write(ctx, i, addr, from)
			}
		})
	}
	x.over.Go(func() {
		watchGaps(ctx, func(l line) { x.gaps = append(x.gaps, window[time.Duration]{l.At - l.Delay, l.At}) })
	})
	t.Cleanup(func() { x.close() })
	return x
}

// write writes on one session until it ends. It returns since when there was no answer.
func (x *fleetControl) write(ctx context.Context, i int, addr string, from time.Duration) time.Duration {
	s, err := backendAt([]string{addr}, queueTimeout, 0).Open(ctx)
	if err != nil {
		return from
	}
	defer s.Close()
	op := backend.Create(fmt.Sprint("/control-", i), nil, backend.Persistent)
	for {
		sent := proc.Now()
		res, err := s.Commit(ctx, op)
		switch {
		case errors.Is(err, backend.ErrExists):
			op = backend.SetData(op.Path, nil, backend.AnyVersion)
		case err == nil:
			x.acked[i] = append(x.acked[i], res[0].Stat.Mzxid)
			x.writes[i] = append(x.writes[i], window[time.Duration]{sent, proc.Now()})
			if now := proc.Now(); now-from > leastOutage {
				x.each[i] = append(x.each[i], window[time.Duration]{from, now})
			}
		case ctx.Err() != nil || s.Err() != nil:
			return from
		}
		select {
		case <-time.After(leastOutage / 2):
		case <-ctx.Done():
			return from
		}
		if err == nil {
			from = proc.Now()
		}
	}
}

// pace returns how long a write took in that time, the median of the server that was the fastest
// then, but not more than a machine that still does its work needs: what takes longer is an outage.
// It is for use after close.
func (x *fleetControl) pace(at window[time.Duration]) (least time.Duration) {
	for _, writes := range x.writes {
		var took []time.Duration
		for _, w := range writes {
			if w.from < at.to && w.to > at.from {
				took = append(took, w.to-w.from)
			}
		}
		if slices.Sort(took); len(took) > 0 {
			if d := took[len(took)/2]; least == 0 || d < least {
				least = d
			}
		}
	}
	return min(least, 2*leastOutage)
}

// close ends the measurement, and returns the times in which no server answered.
func (x *fleetControl) close() spans {
	x.cancel()
	x.over.Wait()
	if x.outages == nil && len(x.each) > 0 {
		x.outages = union(x.each[0])
		for _, s := range x.each[1:] {
			x.outages = x.outages.and(union(s))
		}
	}
	return x.outages
}

// acknowledged returns the zxids of all writes, after close.
func (x *fleetControl) acknowledged() []int64 { return slices.Concat(x.acked...) }

func (x *fleetControl) longest() (d time.Duration) {
	for _, w := range x.outages {
		d = max(d, w.to-w.from)
	}
	return d
}
