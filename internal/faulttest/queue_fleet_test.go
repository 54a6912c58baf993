//go:build linux

package faulttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
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

func longPause() time.Duration { return fleetTimeout() + 2*tick }

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
