//go:build linux

package interop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/zktest"
)

// election returns an election of coord on the scene's path, with a candidate in this
// process.
func (s *scene) election(who string) *coord.Election {
	return coord.NewElection(s.c, s.path, &coord.ElectionOptions{ID: who})
}

func TestElectionsOfGoJavaAndPython(t *testing.T) {
	t.Parallel()
	w := newCrew(t)
	play := func(name string, f func(t *testing.T, w *crew)) {
		t.Run(name, func(t *testing.T) { f(t, w) })
	}
	play("candidates in three languages lead in the order of their arrival", leadInEveryDirection)
	play("LeaderLatch, kazoo's Election and coord's take turns", takeTurnsAsLeaders)
	play("kazoo's Election sees coord's names only with a pattern", kazooMustBeTold)
	play("all languages list the leader and the candidates", candidatesOfAll)
	play("a candidate of Curator leads after a leader of coord that announced itself", curatorLeadsAfterAnAnnouncement)
	play("a candidate of kazoo leads after a leader of coord that announced itself", kazooLeadsAfterAnAnnouncement)
}

// leadInEveryDirection: each language leads once, and the others wait behind it and lead in
// the order of their arrival.
func leadInEveryDirection(t *testing.T, w *crew) {
	golang, java := contestant{w.golang[0], "election"}, contestant{w.java[0], "latch"}
	// Java never waits behind kazoo's own names here: it would not see them.
	python, kazoo := contestant{w.python[0], "latch"}, contestant{w.python[0], "election"}
	for _, order := range [][]contestant{
		{golang, java, python},
		{java, golang, kazoo},
		{python, java, golang},
		{golang, kazoo, {w.golang[1], "election"}},
		{java, {w.java[1], "latch"}, golang},
		{kazoo, golang, {w.python[1], "election"}},
	} {
		t.Run(fmt.Sprint(order), func(t *testing.T) { inOrder(t, order) })
	}
}

func inOrder(t *testing.T, order []contestant) {
	s := newScene(t)
	leader := order[0].p.lock(t, order[0].kind, s.path).granted()
	var line []*claim
	for i, c := range order[1:] {
		line = append(line, c.p.lock(t, c.kind, s.path))
		s.queued(2 + i)
	}
	for i, next := range line {
		for _, c := range line[i:] {
			c.pending()
		}
		leader.release()
		next.granted()
		if next.czid <= leader.czid {
			t.Errorf("%s has token %#x after %#x", next.p.name, next.czid, leader.czid)
		}
		leader = next
	}
	leader.release()
	s.empty()
}

func takeTurnsAsLeaders(t *testing.T, w *crew) {
	d := 3 * time.Second
	if long() {
		d = 5 * time.Minute
	}
	turns(t, w, "election", "latch", "latch", d)
}

// kazooMustBeTold: coord waits behind kazoo's names, but kazoo's Election ignores coord's
// nodes unless its lock is made with extra_lock_patterns=["-latch-"].
func kazooMustBeTold(t *testing.T, w *crew) {
	s := newScene(t)
	python := w.python[0].lock(t, "untold", s.path).granted()
	ours := w.golang[0].lock(t, "election", s.path)
	s.queued(2)
	told := w.python[1].lock(t, "election", s.path)
	s.queued(3)
	ours.pending()
	python.release()
	ours.granted()
	told.pending()
	second := w.python[0].lock(t, "untold", s.path)
	// Without the pattern it waits at most for nodes of its own kind: it sees no others.
	ours.release()
	told.granted().release()
	second.granted().release()

	ours = w.golang[0].lock(t, "election", s.path).granted()
	// The control: if it waits here, it does not need the pattern.
	w.python[0].lock(t, "untold", s.path).granted().release()
	ours.release()
	s.empty()
}

// candidatesOfAll: every language lists the same leader and the same candidates.
func candidatesOfAll(t *testing.T, w *crew) {
	s := newScene(t)
	e := s.election("ours")
	leader := w.java[0].lock(t, "latch", s.path).granted()
	ours := s.lock(campaign(e))
	s.queued(2)
	claims := []*claim{w.python[0].lock(t, "latch", s.path)}
	s.queued(3)
	claims = append(claims, w.golang[0].lock(t, "election", s.path))
	s.queued(4)
	want := []string{"java1", "ours", "python1", "go1"}
	for _, c := range []contestant{{w.java[1], "latch"}, {w.python[1], "election"}} {
		c.p.tell(t, "list", c.kind, s.path)
		if got := c.p.await(t, "listed").words[1:]; !slices.Equal(got, want) {
			t.Errorf("%v lists %v, want %v", c, got, want)
		}
	}
	list, err := e.Contenders(s.ctx())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list {
		got = append(got, c.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("Contenders lists %v, want %v", got, want)
	}
	// WatchLeader sees leaders in all languages.
	seen := e.WatchLeader(s.ctx())
	sees := func(id, path string, token int64) {
		t.Helper()
		for deadline := time.After(limit); ; {
			select {
			case l, ok := <-seen:
				if !ok || l.Err != nil {
					t.Fatalf("observing ended: %v", l)
				}
				if l.ID == id && l.Path == path && l.Token == token {
					return
				}
			case <-deadline:
				t.Fatalf("never seen: %s at %s", id, path)
			}
		}
	}
	sees("java1", leader.node, leader.czid)
	leader.release()
	h := ours.hold()
	sees("ours", h.Path(), h.Token())
	s.release(h)
	for _, c := range claims {
		c.granted()
		sees(c.p.name, c.node, c.czid)
		c.release()
	}
	sees("", "", 0)
	s.empty()
}

// curatorLeadsAfterAnAnnouncement: a LeaderLatch watches the data of its predecessor, once,
// and acts only on a deletion. A change of that data uses up the watch.
func curatorLeadsAfterAnAnnouncement(t *testing.T, w *crew) {
	leadsAfterAnAnnouncement(t, contestant{w.java[0], "latch"})
}

func kazooLeadsAfterAnAnnouncement(t *testing.T, w *crew) {
	leadsAfterAnAnnouncement(t, contestant{w.python[0], "election"})
}

func leadsAfterAnAnnouncement(t *testing.T, c contestant) {
	s := newScene(t)
	term, err := s.election("ours").Campaign(s.ctx())
	if err != nil {
		t.Fatal(err)
	}
	next := c.p.lock(t, c.kind, s.path)
	s.queued(2)
	if err := term.Announce(s.ctx(), []byte("ready")); err != nil {
		t.Fatal(err)
	}
	next.pending()
	s.release(term.Hold)
	next.granted()
	if next.czid <= term.Token() {
		t.Errorf("%v leads with token %#x after %#x", c, next.czid, term.Token())
	}
	next.release()
	s.empty()
}

// TestAKilledLeaderIsFollowedByAnotherLanguage has a leader of each language die.
func TestAKilledLeaderIsFollowedByAnotherLanguage(t *testing.T) {
	t.Parallel()
	zktest.Require(t)
	const timeout = 6 * time.Second // a busy machine loses shorter sessions
	tr := newTroupe(t, timeout)
	rounds := 1
	if long() {
		rounds = 10
	}
	for name, other := range map[string]func() contestant{
		"Curator": func() contestant { return contestant{tr.java(t, "java"), "latch"} },
		"kazoo":   func() contestant { return contestant{tr.python(t, "python"), "election"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var took []string
			for range rounds {
				took = append(took, leadersDie(t, timeout, []contestant{
					{tr.golang(t, "go1"), "election"}, other(), {tr.golang(t, "go2"), "election"},
				})...)
			}
			t.Logf("figure: kill -9 of the leader to the next in another language, session timeout %v: %v", timeout, took)
		})
	}
}

// leadersDie lets the candidates lead one after the other, each until it is killed.
func leadersDie(t *testing.T, timeout time.Duration, order []contestant) (took []string) {
	s := newScene(t)
	for _, c := range order {
		c.p.await(t, "opened")
	}
	leader := order[0].p.lock(t, order[0].kind, s.path).granted()
	var line []*claim
	for i, c := range order[1:] {
		line = append(line, c.p.lock(t, c.kind, s.path))
		s.queued(2 + i)
	}
	for i, next := range line {
		for _, c := range line[i:] {
			c.pending()
		}
		control := newExpiry(t, timeout)
		killed := time.Now()
		leader.p.kill()
		control.Begin()
		next.granted()
		d := next.at.Sub(killed)
		took = append(took, fmt.Sprintf("%s to %s %v", leader.p.name, next.p.name, d.Round(time.Millisecond)))
		control.Judge(d, fmt.Sprintf("the grant to %s after the kill of %s", next.p.name, leader.p.name))
		if next.czid <= leader.czid {
			t.Errorf("%s leads with %#x after %#x, %v after the kill of %s", next.p.name, next.czid, leader.czid, d, leader.p.name)
		}
		leader = next
	}
	leader.release()
	s.empty()
	return took
}
