package backendtest

import (
	"fmt"

	"github.com/go-coord/coord/backend"
)

// armAll arms every form of watch, several of each, on n and on a missing node.
func (c *client) armAll(n string) []*backend.Watch {
	c.s.Helper()
	var ws []*backend.Watch
	for range 3 {
		for _, a := range armers() {
			w := backend.NewWatch()
			a.arm(c, n, w)
			ws = append(ws, w)
		}
		w := backend.NewWatch()
		if c.there(c.s.path("missing"), w) {
			c.s.Fatal("a missing node exists")
		}
		ws = append(ws, w)
	}
	return ws
}

func watchBreakLeaves() []leaf {
	// away makes c lose contact, runs meanwhile, and restores contact.
	away := func(c *client, meanwhile func()) {
		c.s.Helper()
		c.sync()
		c.link.Partition()
		c.phase(backend.PhaseSuspended)
		meanwhile()
		c.link.Heal()
		c.phase(backend.PhaseConnected)
	}
	return []leaf{
		{"(may) all fire LookAgain, though nothing happened", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			ws := c.armAll(n)
			away(c, func() {})
			for _, w := range ws {
				s.fires(w, backend.LookAgain)
			}
		}},
		{"(may) all fire LookAgain for a node deleted meanwhile, before a read shows it", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			ws := c.armAll(n)
			away(c, func() { o.remove(n) })
			if c.sync(); c.there(n, nil) {
				s.Fatal("the deleted node still exists")
			}
			for i, w := range ws {
				if w.Kind() != backend.LookAgain {
					s.Fatalf("watch %d has kind %q after a read showed the deletion", i, w.Kind())
				}
			}
		}},
		{"fire for a node deleted meanwhile, before a read shows it", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			for i, again := range []bool{false, true} {
				name := fmt.Sprint("n", i)
				n := o.create(name, "", backend.Persistent)
				c.sync()
				var ws []*backend.Watch
				for _, a := range armers() {
					w := backend.NewWatch()
					a.arm(c, n, w)
					ws = append(ws, w)
				}
				away(c, func() {
					o.remove(n)
					if again {
						o.create(name, "", backend.Persistent)
					}
				})
				if c.sync(); c.there(n, nil) != again {
					s.Fatalf("the node exists: %v, want %v", !again, again)
				}
				for i, w := range ws {
					if w.Kind() == 0 {
						s.Fatalf("watch %d has not fired after a read showed the deletion", i)
					}
				}
			}
		}},
		{"(may) all are marked before a read on the new contact returns", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			for _, f := range faults() {
				ws := c.armAll(n)
				f.drop(c.link)
				c.sync() // loses the request or its reply, and contact
				c.get(n, nil)
				for i, w := range ws {
					if w.Kind() != backend.LookAgain {
						s.Fatalf("%s: watch %d has kind %q after a read on the new contact", f.name, i, w.Kind())
					}
				}
			}
		}},
		{"(may) all fire LookAgain for a node deleted and created again meanwhile", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			ws := c.armAll(n)
			away(c, func() {
				o.remove(n)
				o.create("n", "", backend.Persistent)
			})
			for _, w := range ws {
				s.fires(w, backend.LookAgain)
			}
			w := backend.NewWatch()
			c.children(n, w)
			o.remove(n)
			s.fires(w, backend.Deleted) // armed again, on the new contact
		}},
		{"fire LookAgain for a node created meanwhile", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			w := backend.NewWatch()
			c.there(s.path("n"), w)
			away(c, func() { o.create("n", "", backend.Persistent) })
			s.fires(w, backend.LookAgain)
			if c.sync(); !c.there(s.path("n"), nil) {
				s.Fatal("the created node is missing")
			}
		}},
		{"are armed again by the next read and miss nothing, break after break", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			for i := range 12 {
				old := backend.NewWatch()
				c.get(n, old)
				faults()[i%2].drop(c.link)
				c.sync()
				if old.Kind() == backend.Deleted {
					s.Fatal("a watch fired with Deleted, and nothing was deleted")
				}
				w := backend.NewWatch()
				_, armed := c.get(n, w)
				stat := o.set(n, fmt.Sprint(i))
				if stat.Version != armed.Version+1 {
					s.Fatalf("armed at version %d, set made %d", armed.Version, stat.Version)
				}
				s.fires(w, backend.LookAgain)
			}
		}},
		{"do not fire when they were stopped during the break", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			ws := c.armAll(n)
			away(c, func() {
				for _, w := range ws {
					w.Stop()
				}
				o.remove(n)
			})
			for _, w := range ws {
				c.silent(w, "it was stopped")
			}
		}},
		{"all fire LookAgain when the session is lost, after Err is set", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			ws := c.armAll(n)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			o.remove(n)
			s.endsMarked(c, ws)
		}},
		{"all fire LookAgain when the service ends the session, after Err is set", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			ws := c.armAll(n)
			c.link.Expire(c.ID())
			// Contact may break before the client learns the reason, and a
			// break fires the watches too.
			for _, w := range ws {
				s.fires(w, backend.LookAgain)
			}
			c.lost()
		}},
		{"all fire LookAgain when the session is closed, after Err is set", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			ws := c.armAll(n)
			closed := make(chan error, 1)
			go func() { closed <- c.Close() }()
			s.endsMarked(c, ws)
			if err := <-closed; err != nil {
				s.Fatal(err)
			}
		}},
		{"never fire for a read after the session's end", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			w := backend.NewWatch()
			if _, err := c.Exists(s.ctx, n, w); err == nil {
				s.Fatal("exists on a closed session succeeded")
			}
			if hasFired(w) {
				s.Fatalf("the watch of a failed read has fired with %q", w.Kind())
			}
		}},
	}
}

// endsMarked waits for the watches of a session that ends and checks that Err was set when
// the first of them fired.
func (s *scene) endsMarked(c *client, ws []*backend.Watch) {
	s.Helper()
	for i, w := range ws {
		s.await(w.Fired(), "a watch of the session that ended")
		if err := c.Err(); err == nil {
			s.Fatalf("watch %d has fired, and Err is nil", i)
		}
		if w.Kind() != backend.LookAgain {
			s.Fatalf("watch %d fired with %q", i, w.Kind())
		}
	}
}
