//go:build linux

package interop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

// crew are the workers of the tests that kill none of them: two of each language.
type crew struct{ golang, java, python [2]*peer }

func newCrew(t *testing.T) *crew {
	t.Helper()
	tr := newTroupe(t, usualTimeout)
	w := &crew{}
	for i := range 2 {
		w.java[i] = tr.java(t, fmt.Sprintf("java%d", i+1))
		w.python[i] = tr.python(t, fmt.Sprintf("python%d", i+1))
		w.golang[i] = tr.golang(t, fmt.Sprintf("go%d", i+1))
	}
	for _, p := range w.all() {
		p.await(t, "opened")
	}
	return w
}

func (w *crew) all() []*peer { return slices.Concat(w.golang[:], w.java[:], w.python[:]) }

func TestLocksOfGoJavaAndPython(t *testing.T) {
	t.Parallel()
	w := newCrew(t)
	play := func(name string, f func(t *testing.T, w *crew)) {
		t.Run(name, func(t *testing.T) { f(t, w) })
	}
	play("six workers in three languages take turns in the order of their numbers", takeTurns)
	play("kazoo may keep its names if Java orders by number", takeTurnsByNumber)
	play("Curator does not see kazoo's names, and the room shows it", namesNotSeen)
	play("the second contender waits, in every direction", waitsInEveryDirection)
	play("a try does not overtake waiters", triesAreRefused)
	play("a client of coord that keeps a lock gives way to Curator and kazoo", keptGivesWay)
	play("all languages list all contenders in one order", contendersOfAll)
	play("readers of Go and Java share, writers exclude each other", readersAndWriters)
	play("a queued writer of Java keeps waiting when coord's writer downgrades", downgradeKeepsJavaOut)
	play("a lock changes hands many times between readers and writers", readersAndWritersTakeTurns)
	play("Curator's Revoker asks a holder of coord", curatorRevokesOurs)
	play("coord asks a revocable holder of Curator", oursRevokesCurators)
}

func takeTurns(t *testing.T, w *crew) {
	d := 6 * time.Second
	if long() {
		d = 10 * time.Minute
	}
	turns(t, w, "mutex", "mutex", "curator", d)
}

func takeTurnsByNumber(t *testing.T, w *crew) {
	d := 3 * time.Second
	if long() {
		d = 2 * time.Minute
	}
	turns(t, w, "mutex", "number", "kazoo", d)
}

// turns makes all workers acquire one lock in a loop. The room checks that no two have it,
// and that each grant goes to a node with a higher number and a higher token than the one
// before; all three languages report the path of their node.
func turns(t *testing.T, w *crew, golang, java, python string, d time.Duration) {
	s, r := newScene(t), newRoom(t)
	for i := range 2 {
		w.golang[i].tell(t, "loop", golang, s.path, r.addr)
		w.java[i].tell(t, "loop", java, s.path, r.addr)
		w.python[i].tell(t, "loop", python, s.path, r.addr)
	}
	// The loops have to run for this time.
	time.Sleep(d)
	few := func(p *peer) bool { return r.turnsOf(p.name) < 5 }
	for end := time.Now().Add(limit); slices.ContainsFunc(w.all(), few) && time.Now().Before(end); { // a busy machine
		time.Sleep(5 * time.Millisecond)
	}
	for _, p := range w.all() {
		p.tell(t, "stop")
	}
	for _, p := range w.all() {
		p.await(t, "looped")
		// In a fair queue all have the same share, except for the start.
		if few(p) {
			t.Errorf("%s had %d turns", p.name, r.turnsOf(p.name))
		}
		p.silent(t, "state", "lost")
	}
	s.empty()
	total, list, overlaps, wrong := r.state()
	if overlaps > 0 || wrong != "" {
		t.Errorf("%d overlaps; %s", overlaps, wrong)
	}
	t.Logf("figure: Curator's %s, kazoo's Lock named as %s's and coord's %s on one path for %v: %d turns (%s), %d overlaps",
		java, python, golang, d, total, list, overlaps)
}

// namesNotSeen shows why kazoo's names do not work: Curator compares "<uuid>__lock__…" as a
// whole with the numbers of its own nodes, and sorts it behind its own. It is also the
// control: a room that saw no overlap here would prove nothing.
func namesNotSeen(t *testing.T, w *crew) {
	s, r := newScene(t), newRoom(t)
	peers := slices.Concat(w.java[:], w.python[:])
	for i := range 2 {
		w.java[i].tell(t, "loop", "mutex", s.path, r.addr)
		w.python[i].tell(t, "loop", "kazoo", s.path, r.addr)
	}
	for deadline := time.Now().Add(limit); ; {
		if _, _, overlaps, _ := r.state(); overlaps > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Error("no overlap: then kazoo's own names work with Curator's mutex")
			break
		}
		time.Sleep(5 * time.Millisecond) // there is no signal for it
	}
	for _, p := range peers {
		p.tell(t, "stop")
	}
	for _, p := range peers {
		p.await(t, "looped")
	}
	s.empty()
}

// TestAKilledHolderIsFollowedByAnotherLanguage kills a holder of each language. Its session
// ends with the timeout, and the next waiter gets the lock.
func TestAKilledHolderIsFollowedByAnotherLanguage(t *testing.T) {
	t.Parallel()
	zktest.Require(t)
	const timeout = 6 * time.Second // a busy machine loses shorter sessions
	tr := newTroupe(t, timeout)
	rounds := 1
	if long() {
		rounds = 10
	}
	var took []string
	for range rounds {
		s := newScene(t)
		peers := []*peer{tr.java(t, "java"), tr.python(t, "python"), tr.golang(t, "go1"), tr.golang(t, "go2")}
		for _, p := range peers {
			p.await(t, "opened")
		}
		java, python, first, last := peers[0], peers[1], peers[2], peers[3]
		holder := first.lock(t, "mutex", s.path).granted()
		line := []*claim{java.lock(t, "mutex", s.path)}
		s.queued(2)
		line = append(line, python.lock(t, "kazoo", s.path))
		s.queued(3)
		line = append(line, last.lock(t, "mutex", s.path))
		s.queued(4)
		for i, next := range line {
			for _, c := range line[i:] {
				c.pending()
			}
			control := newExpiry(t, timeout)
			killed := time.Now()
			holder.p.kill()
			control.Begin()
			next.granted()
			d := next.at.Sub(killed)
			took = append(took, fmt.Sprintf("%s to %s %v", holder.p.name, next.p.name, d.Round(time.Millisecond)))
			control.Judge(d, fmt.Sprintf("the grant to %s after the kill of %s", next.p.name, holder.p.name))
			if next.czid <= holder.czid {
				t.Errorf("%s was granted %#x after %#x, %v after the kill of %s", next.p.name, next.czid, holder.czid, d, holder.p.name)
			}
			holder = next
		}
		holder.release()
		s.empty()
	}
	t.Logf("figure: kill -9 of the holder to the next grant in another language, session timeout %v: %v", timeout, took)
}
