//go:build linux

package faulttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zkproxy"
)

// stage is the environment of one scenario: an ensemble, a lock and a resource.
type stage struct {
	t        *testing.T
	e        servers
	lock     string
	election string
	resource *resource
}

var stages atomic.Int64

func newStage(t *testing.T, e servers) *stage {
	t.Helper()
	n := stages.Add(1)
	return &stage{t: t, e: e, lock: fmt.Sprintf("/locks/%d", n), election: fmt.Sprintf("/elections/%d", n), resource: newResource(t)}
}

// actor is a worker process with its connections to the servers.
type actor struct {
	*proc.Worker[line]
	t       *testing.T
	name    string
	e       servers
	proxies []ensemble.Line // one in front of each server, only for this actor
	greeted []atomic.Int64  // by proxy: connections on which the session was established
	pings   atomic.Int64    // pings that were answered
	next    int             // index of the first report after those that await returned
}

// start starts a worker and waits until it has a session.
func (s *stage) start(name string, timeout, margin time.Duration) *actor {
	s.t.Helper()
	a := s.launch(name, workerSpec{SessionTimeout: timeout, LossMargin: margin})
	a.await("opened")
	return a
}

// launch starts a worker, with what the specification says beside the parts of the stage.
func (s *stage) launch(name string, spec workerSpec) *actor {
	t := s.t
	t.Helper()
	a := &actor{t: t, name: name, e: s.e, greeted: make([]atomic.Int64, len(s.e.Addrs()))}
	spec.Lock, spec.Election, spec.ID, spec.Resource = s.lock, s.election, name, s.resource.socket
	for i, addr := range s.e.Addrs() {
		p := newLine(t, addr)
		p.OnFrame(func(f zkproxy.Frame) {
			switch {
			case f.Dir == zkproxy.Down && f.Opcode == zkproxy.OpConnect && f.Session != 0:
				a.greeted[i].Add(1)
			case f.Dir == zkproxy.Down && f.Opcode == zkproxy.OpPing:
				a.pings.Add(1)
				if elsewhere() { // nothing else tells there that a connection is that of the session
					a.greeted[i].Add(1)
				}
			}
		})
		a.proxies = append(a.proxies, p)
		spec.Servers = append(spec.Servers, p.Addr())
	}
	var err error
	if a.Worker, err = proc.Start[line](workerRole, spec, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.end)
	return a
}

// end ends the process, and shows its last output if the test failed.
func (a *actor) end() {
	a.Kill()
	if text := a.Stderr(); text != "" {
		a.t.Errorf("%s wrote to standard error:\n%s", a.name, text)
	}
	if a.t.Failed() {
		var b strings.Builder
		all := a.Reports()
		for _, l := range all[max(0, len(all)-40):] {
			fmt.Fprintln(&b, l)
		}
		a.t.Logf("the last lines of %s:\n%s", a.name, b.String())
	}
}

func (a *actor) signal(sig syscall.Signal) {
	a.t.Helper()
	if err := a.Signal(sig); err != nil {
		a.t.Fatalf("%s: %v", a.name, err)
	}
}

// tell sends commands.
func (a *actor) tell(commands ...string) {
	a.t.Helper()
	if err := a.Tell(commands...); err != nil {
		a.t.Fatalf("%s: %v", a.name, err)
	}
}

// await returns the next line of a kind, and moves past it.
func (a *actor) await(kind string) line {
	a.t.Helper()
	l, ok := a.within(limit, kind)
	if !ok {
		a.t.Fatalf("%s never reported %q", a.name, kind)
	}
	return l
}

// within is await for a line that may not come.
func (a *actor) within(d time.Duration, kind string) (l line, came bool) {
	a.t.Helper()
	err := a.Await(d, func(all []line) bool {
		for i, l2 := range all[a.next:] {
			if l2.Kind == kind || l2.Kind == "failed" {
				l, a.next = l2, a.next+i+1
				return true
			}
		}
		return false
	})
	switch {
	case errors.Is(err, proc.ErrEnded):
		a.t.Fatalf("%s ended before it reported %q", a.name, kind)
	case err == nil && l.Kind != kind:
		a.t.Fatalf("%s failed: %s", a.name, l.Text)
	}
	return l, err == nil
}

// ask sends a command and returns the line that answers it.
func (a *actor) ask(command, answer string) line {
	a.t.Helper()
	a.tell(command)
	return a.await(answer)
}

// mark returns a position in the actor's output, for silent.
func (a *actor) mark() int { return len(a.Reports()) }

// silent fails the test if the actor has reported one of the kinds since mark. The end of a
// hold that was released may be reported late, and does not count.
func (a *actor) silent(mark int, kinds ...string) {
	a.t.Helper()
	for _, l := range a.Reports()[mark:] {
		if slices.Contains(kinds, l.Kind) && !(l.Kind == "done" && strings.HasSuffix(l.Text, " released")) {
			a.t.Errorf("%s reported: %v", a.name, l)
		}
	}
}

// hasSaid reports whether the actor has reported a line of a kind since mark.
func (a *actor) hasSaid(mark int, kind string) bool {
	return slices.ContainsFunc(a.Reports()[mark:], func(l line) bool { return l.Kind == kind })
}

// hold makes the actor the holder.
func (a *actor) hold() line {
	a.t.Helper()
	return a.ask("lock", "granted")
}

// wait makes the actor a waiter.
func (a *actor) wait() line {
	a.t.Helper()
	return a.ask("lock", "waiting")
}

// write makes the actor write without checking its hold.
func (a *actor) write(want string) {
	a.t.Helper()
	if l := a.ask("write", "wrote"); l.Text != want {
		a.t.Errorf("the write of %s with token %#x was %s, want %s", a.name, l.Token, l.Text, want)
	}
}

// stands makes the holder ask the service whether it still holds, and returns when the answer
// has come.
func (a *actor) stands() line {
	a.t.Helper()
	l := a.ask("verify", "verified")
	if l.Text != "ok" {
		a.t.Errorf("%s: %s", a.name, l.Text)
	}
	return l
}

// passTo hands the lock over, and returns the duration and the grant.
func (a *actor) passTo(b *actor) (time.Duration, line) {
	a.t.Helper()
	a.tell("release")
	releasing := a.await("releasing")
	granted := b.await("granted")
	if l := a.await("released"); l.Text != "ok" {
		a.t.Errorf("%s released: %s", a.name, l.Text)
	}
	if granted.At < releasing.At || granted.Token <= releasing.Token {
		a.t.Errorf("%s was granted token %#x at %v, %s released %#x at %v",
			b.name, granted.Token, granted.At, a.name, releasing.Token, releasing.At)
	}
	return granted.At - releasing.At, granted
}

// pin moves the actors' connections to one server and refuses them at the others.
func pin(s ensemble.Server, actors ...*actor) {
	for _, a := range actors {
		a.t.Helper()
		at := slices.Index(a.e.All(), s)
		for i, p := range a.proxies {
			p.Refuse(i != at)
		}
		before := a.greeted[at].Load()
		for _, p := range a.proxies {
			p.Cut()
		}
		if elsewhere() { // a renewal may have been answered before
			before = a.greeted[at].Load()
		}
		eventually(a.t, a.name+" connects to the chosen server", func() bool { return a.greeted[at].Load() > before })
	}
}

// unpin allows all servers again. Connections stay where they are.
func unpin(actors ...*actor) {
	for _, a := range actors {
		for _, p := range a.proxies {
			p.Refuse(false)
		}
	}
}

// blackhole drops all traffic between the actor and the servers.
func (a *actor) blackhole(on bool) {
	for _, p := range a.proxies {
		p.Blackhole(on)
	}
}
