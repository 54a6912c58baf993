//go:build linux

package interop

import (
	"fmt"
	"slices"
	"testing"
)

// contestant is a kind of lock in another process.
type contestant struct {
	p    *peer
	kind string
}

func (c contestant) String() string { return c.p.name + " as " + c.kind }

// keptGivesWay: a client of coord takes a lock again that it has kept, and gives it up for the
// contenders of other libraries.
func keptGivesWay(t *testing.T, w *crew) {
	for _, next := range []contestant{{w.java[0], "mutex"}, {w.python[0], "curator"}, {w.python[0], "kazoo"}} {
		t.Run(next.String(), func(t *testing.T) {
			s := newScene(t)
			first := w.golang[0].lock(t, "kept", s.path).granted()
			first.release()
			again := w.golang[0].lock(t, "kept", s.path).granted()
			again.release()
			if again.czid != first.czid {
				t.Errorf("token %#x, want that of the kept node, %#x", again.czid, first.czid)
			}
			other := next.p.lock(t, next.kind, s.path).granted()
			if other.czid <= first.czid {
				t.Errorf("%v has token %#x after %#x", next, other.czid, first.czid)
			}
			other.release()
			s.empty()
		})
	}
}

// waitsInEveryDirection: each language holds once, and the others wait behind it and are
// granted in the order of their arrival.
func waitsInEveryDirection(t *testing.T, w *crew) {
	// Java as "mutex" never waits behind kazoo's own names here: it would not see them.
	golang := contestant{w.golang[0], "mutex"}
	java, byNumber := contestant{w.java[0], "mutex"}, contestant{w.java[0], "number"}
	python, kazoo := contestant{w.python[0], "curator"}, contestant{w.python[0], "kazoo"}
	for _, order := range [][]contestant{
		{golang, java, python},
		{golang, python, java},
		{golang, java, kazoo},
		{java, golang, kazoo},
		{java, kazoo, golang},
		{python, golang, java},
		{kazoo, golang, byNumber},
		{kazoo, byNumber, golang},
	} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			s := newScene(t)
			holder := order[0].p.lock(t, order[0].kind, s.path).granted()
			var line []*claim
			for i, c := range order[1:] {
				line = append(line, c.p.lock(t, c.kind, s.path))
				s.queued(2 + i)
			}
			for i, next := range line {
				for _, c := range line[i:] {
					c.pending()
				}
				holder.release()
				next.granted()
				if next.czid <= holder.czid {
					t.Errorf("%s has token %#x after %#x", next.p.name, next.czid, holder.czid)
				}
				holder = next
			}
			holder.release()
			s.empty()
		})
	}
}

func triesAreRefused(t *testing.T, w *crew) {
	s := newScene(t)
	m := s.mutex("ours")
	java, python := w.java[0], w.python[0]
	for _, c := range []contestant{{java, "mutex"}, {java, "number"}, {python, "curator"}, {python, "kazoo"}} {
		holder := c.p.lock(t, c.kind, s.path).granted()
		s.locked("while "+c.String()+" holds", m.TryLock)
		holder.release()
	}
	h := s.hold(m.TryLock)
	for _, c := range []contestant{{java, "mutex"}, {python, "curator"}, {python, "kazoo"}} {
		if c.p.try(t, c.kind, s.path) {
			t.Errorf("%v acquired a lock that coord holds", c)
		}
	}
	s.release(h)
	for _, c := range []contestant{{java, "mutex"}, {python, "curator"}, {python, "kazoo"}} {
		if !c.p.try(t, c.kind, s.path) {
			t.Errorf("%v could not acquire a free lock", c)
		}
	}
	// The attempts have left no node.
	s.empty()
}

func contendersOfAll(t *testing.T, w *crew) {
	s := newScene(t)
	m := s.mutex("ours")
	h := s.hold(m.Lock)
	claims := []*claim{w.java[0].lock(t, "mutex", s.path)}
	s.queued(2)
	claims = append(claims, w.python[0].lock(t, "curator", s.path))
	s.queued(3)
	claims = append(claims, w.golang[0].lock(t, "mutex", s.path))
	s.queued(4)
	// Curator's list would have another position for this one, see namesNotSeen.
	want := []string{"ours", "java1", "python1", "go1"}
	for _, p := range []contestant{{w.java[1], "mutex"}, {w.python[1], "kazoo"}} {
		p.p.tell(t, "list", p.kind, s.path)
		if got := p.p.await(t, "listed").words[1:]; !slices.Equal(got, want) {
			t.Errorf("%v lists %v, want %v", p, got, want)
		}
	}
	claims = append(claims, w.python[1].lock(t, "kazoo", s.path))
	s.queued(5)
	want = append(want, "python2")
	list, err := m.Contenders(s.ctx())
	if err != nil {
		t.Fatal(err)
	}
	var got, names []string
	for i, c := range list {
		got = append(got, string(c.Data))
		names = append(names, c.Path[len(s.path)+1:])
		if i > 0 && c.Token <= list[i-1].Token || c.Session == 0 {
			t.Errorf("contender %d has token %#x, session %#x", i, c.Token, c.Session)
		}
	}
	if line := s.line(nil); !slices.Equal(got, want) || !slices.Equal(names, line) {
		t.Errorf("Contenders lists %v at %v, want %v at %v", got, names, want, line)
	}
	s.release(h)
	for i, c := range claims {
		if c.granted(); c.czid != list[i+1].Token || c.node != list[i+1].Path {
			t.Errorf("%s holds %s with token %#x, Contenders returned %v", c.p.name, c.node, c.czid, list[i+1])
		}
		c.release()
	}
	s.empty()
}
