//go:build linux

package faulttest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
)

// The ensembles. With a margin of (syncLimit + 2) ticks the package guarantees its order:
// Done of a lost hold before the next grant.
const (
	tick        = 500 * time.Millisecond
	shortSync   = 2
	shortMargin = (shortSync + 2) * tick
	longSync    = 10
	longMargin  = (longSync + 2) * tick
	mostTimeout = 20 * tick // the largest that servers grant by default
)

// TestTwoProcesses makes two processes use one lock while one of them, the network, or a
// server fails. Scenarios that affect only processes run concurrently on one ensemble.
func TestTwoProcesses(t *testing.T) {
	ensemble.Require(t)
	together(t,
		subtest{"processes", func(t *testing.T) {
			e := startServers(t, shortSync)
			together(t,
				subtest{"a killed holder is succeeded within the session timeout", func(t *testing.T) { holderKilled(t, e) }},
				subtest{"a holder without network is notified before the next grant", func(t *testing.T) { holderBlackholed(t, e) }},
				subtest{"a paused holder sees its loss at its first check", func(t *testing.T) { holderPaused(t, e) }},
				subtest{"a newcomer waits for a client that keeps the lock", func(t *testing.T) { keeperMet(t, e) }},
				subtest{"a waiter that loses its session goes on and is granted", func(t *testing.T) { waiterExpires(t, e) }},
			)
		}},
		subtest{"servers", func(t *testing.T) {
			e := startServers(t, shortSync)
			t.Run("no client loses the lock when the leader is killed", func(t *testing.T) { leaderKilled(t, e) })
			t.Run("no client loses the lock when a follower is killed", func(t *testing.T) { followerKilled(t, e) })
			t.Run("a waiter whose server is killed keeps its place", func(t *testing.T) { waiterKeepsPlace(t, e) })
		}},
		subtest{"pauses", func(t *testing.T) {
			e := startServers(t, longSync)
			t.Run("no client loses the lock when the leader is paused", func(t *testing.T) { leaderPaused(t, e) })
			t.Run("a margin too small lets the next grant come first", func(t *testing.T) { leaderPausedTooLong(t, e) })
		}},
		subtest{"margins", func(t *testing.T) {
			e := startServers(t, longSync)
			t.Run("a margin large enough covers pings that a follower answers without its leader", func(t *testing.T) { marginCovers(t, e) })
		}},
	)
}

// holderKilled: only the servers release the lock of a dead process, when its session has
// timed out.
func holderKilled(t *testing.T, e servers) {
	const timeout = 5 * time.Second
	s := newStage(t, e)
	var took figures[time.Duration]
	violations, n := 0, rounds(3)
	holder := s.start("worker 0", timeout, 0)
	held := holder.hold()
	for i := range n {
		next := s.start(fmt.Sprintf("worker %d", i+1), timeout, 0)
		next.wait()
		holder.write("accepted")
		control := newExpiry(t, e, timeout)
		killed := proc.Now()
		holder.Kill()
		control.Begin()
		granted := next.await("granted")
		took.add(granted.At - killed)
		control.Judge(granted.At-killed, "the next grant after the kill")
		if granted.Token <= held.Token {
			violations++
			t.Errorf("round %d: granted token %#x after %#x, %v after the kill", i, granted.Token, held.Token, granted.At-killed)
		}
		holder, held = next, granted
		holder.write("accepted")
	}
	t.Logf("figure: kill -9 of the holder to the next grant, session timeout %v: %v; %d rounds, %d violations", timeout, took, n, violations)
}

// keeperMet: how long another client waits for a lock that a client keeps (MutexOptions.Keep). A
// client that lives gives way at once; one that does not, when its session has timed out.
func keeperMet(t *testing.T, e servers) {
	const timeout = 5 * time.Second
	for _, v := range []struct {
		state  string
		strike func(keeper *actor)
		lives  bool
	}{
		{"idle", func(*actor) {}, true},
		{"busy", func(a *actor) { a.ask("cycle", "cycling") }, true},
		{"paused", func(a *actor) { a.signal(syscall.SIGSTOP) }, false},
		{"cut off", func(a *actor) { a.blackhole(true) }, false},
		{"killed", func(a *actor) { a.Kill() }, false},
	} {
		var took figures[time.Duration]
		n := rounds(1)
		for i := range n {
			s := newStage(t, e)
			keeper := s.launch("keeper", workerSpec{SessionTimeout: timeout, Keep: time.Hour})
			keeper.await("opened")
			first := keeper.hold()
			if l := keeper.ask("release", "released"); l.Text != "ok" {
				t.Fatalf("released: %s", l.Text)
			}
			if again := keeper.hold(); again.Token != first.Token {
				t.Fatalf("%s: the lock was not kept: token %#x after %#x", v.state, again.Token, first.Token)
			}
			keeper.ask("release", "released")
			newcomer := s.start("newcomer", timeout, 0)
			control := newExpiry(t, e, timeout)
			v.strike(keeper)
			control.Begin()
			newcomer.tell("lock")
			want, granted := newcomer.await("want"), newcomer.await("granted")
			took.add(granted.At - want.At)
			what := fmt.Sprintf("round %d: the wait for a kept lock whose client is %s", i, v.state)
			if v.lives {
				control.Pace.Judge(granted.At-want.At, 2*time.Second, what)
				control.End()
			} else {
				control.Judge(granted.At-want.At, what)
			}
			if granted.Token <= first.Token {
				t.Errorf("%s, round %d: granted token %#x after %#x", v.state, i, granted.Token, first.Token)
			}
			newcomer.write("accepted")
			switch v.state {
			case "paused":
				keeper.signal(syscall.SIGCONT)
				keeper.wait()
				newcomer.passTo(keeper)
			case "cut off":
				keeper.blackhole(false)
				keeper.wait()
				newcomer.passTo(keeper)
			}
		}
		t.Logf("figure: a newcomer waits for a kept lock whose client is %s, session timeout %v: %v; %d rounds", v.state, timeout, took, n)
	}
}

// holderBlackholed: client and servers lose contact, and neither side is notified. The client
// must give up first.
func holderBlackholed(t *testing.T, e servers) {
	const timeout = 6 * time.Second
	s := newStage(t, e)
	var gap, told figures[time.Duration]
	violations, n := 0, rounds(2)
	holder := s.start("worker a", timeout, shortMargin)
	other := s.start("worker b", timeout, shortMargin)
	holder.hold()
	for i := range n {
		held := holder.stands()
		holder.write("accepted")
		other.wait()
		began := proc.Now()
		holder.blackhole(true)
		done, granted := holder.await("done"), other.await("granted")
		gap.add(granted.At - done.At)
		told.add(done.At - began)
		if done.At >= granted.At || granted.Token <= held.Token || !isLoss(done) {
			violations++
			t.Errorf("round %d: done with token %#x (%s) at %v, the other granted %#x at %v", i, done.Token, done.Text, done.At, granted.Token, granted.At)
		}
		// The fence stops a holder that does not check Done.
		other.write("accepted")
		holder.write("refused")
		holder.blackhole(false)
		holder, other = other, holder
	}
	_, refused, overlaps := s.resource.counts()
	if refused != n || overlaps != n {
		t.Errorf("%d writes refused, %d overlaps without the fence, want %d", refused, overlaps, n)
	}
	t.Logf("figure: network of the holder lost, session timeout %v, margin %v: Done before the next grant by %v; %d rounds, %d violations",
		timeout, shortMargin, gap, n, violations)
	t.Logf("figure: network lost to Done: %v", told)
}

// holderPaused: a process that does not run cannot be notified. It must see its loss as soon
// as it runs and checks, and the resource must refuse its write if it does not check.
func holderPaused(t *testing.T, e servers) {
	const timeout = 5 * time.Second
	s := newStage(t, e)
	var look figures[time.Duration]
	violations, n := 0, rounds(3)
	holder := s.start("worker a", timeout, 0)
	other := s.start("worker b", timeout, 0)
	for i := range n {
		held := holder.hold()
		holder.write("accepted")
		other.wait()
		holder.signal(syscall.SIGSTOP)
		granted := other.await("granted")
		other.write("accepted")
		// When the holder resumes, it first checks, and then writes all the same.
		holder.tell("check", "write")
		woken := proc.Now()
		holder.signal(syscall.SIGCONT)
		checked, wrote := holder.await("checked"), holder.await("wrote")
		look.add(checked.At - woken)
		if !strings.HasPrefix(checked.Text, "done: ") || !isLoss(checked) || wrote.Text != "refused" || granted.Token <= held.Token {
			violations++
			t.Errorf("round %d: the holder saw %q, its write was %s, its token %#x, the other's %#x", i, checked.Text, wrote.Text, held.Token, granted.Token)
		}
		if l := other.ask("check", "checked"); l.Text != "stands" {
			t.Errorf("round %d: the other's hold: %s", i, l.Text)
		}
		other.ask("release", "released")
	}
	_, refused, overlaps := s.resource.counts()
	if refused != n || overlaps != n {
		t.Errorf("%d writes refused, %d overlaps without the fence, want %d", refused, overlaps, n)
	}
	t.Logf("figure: SIGCONT of the holder to its first check, which shows the loss: %v; %d rounds, %d late writes refused, %d overlaps without the fence, %d violations",
		look, n, refused, overlaps, violations)
}

// isLoss reports whether a line reports a hold that was lost with its session.
func isLoss(l line) bool { return strings.Contains(l.Text, "lost") }
