//go:build linux

package faulttest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
)

// pendingFault is the end of a fault.
type pendingFault struct {
	at time.Duration
	do func()
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

// fleetFaults are the kinds of faults. Each round has some of them, in this order.
var fleetFaults = []string{
	"kill the leader", "kill a consumer", "pause a consumer", "cut off a producer", "kill a producer", "cut connections", "pause a consumer briefly",
	"kill a follower", "cut off a consumer", "kill a consumer", "pause a producer", "cut off a consumer briefly", "cut connections",
}

// faultsInRound is the number of faults of a round.
const faultsInRound = 7

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
