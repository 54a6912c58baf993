package backendtest

import (
	"fmt"
	"sync"

	"github.com/go-coord/coord/backend"
)

func watchStopLeaves() []leaf {
	return []leaf{
		{"means that the watch does not fire", func(s *scene) {
			c, writer := s.open("a"), s.open("b")
			n := writer.create("n", "", backend.Persistent)
			c.sync()
			var ws []*backend.Watch
			for _, a := range armers() {
				w := backend.NewWatch()
				a.arm(c, n, w)
				w.Stop()
				w.Stop()
				ws = append(ws, w)
			}
			missing := backend.NewWatch()
			c.there(s.path("missing"), missing)
			missing.Stop()
			writer.set(n, "new")
			writer.create("n/child", "", backend.Persistent)
			writer.create("missing", "", backend.Persistent)
			writer.clear(n)
			for _, w := range append(ws, missing) {
				c.silent(w, "it was stopped")
			}
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			for _, w := range append(ws, missing) {
				if hasFired(w) {
					s.Fatal("the end of the session fired a stopped watch")
				}
			}
		}},
		{"of a watch that has fired changes nothing", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			w := backend.NewWatch()
			c.get(n, w)
			c.remove(n)
			s.fires(w, backend.Deleted)
			w.Stop()
			s.fires(w, backend.Deleted)
		}},
		{"of a watch leaves the others of the node alone", func(s *scene) {
			c, writer := s.open("a"), s.open("b")
			for i, a := range armers() {
				n := writer.create(fmt.Sprint("n", i), "", backend.Persistent)
				c.sync()
				var ws [5]*backend.Watch
				for j := range ws {
					ws[j] = backend.NewWatch()
					a.arm(c, n, ws[j])
				}
				ws[0].Stop()
				ws[2].Stop()
				ws[4].Stop()
				writer.remove(n)
				s.fires(ws[1], backend.Deleted)
				s.fires(ws[3], backend.Deleted)
				for _, j := range []int{0, 2, 4} {
					c.silent(ws[j], "it was stopped")
				}
			}
		}},
		{"before the read means that the read has no watch", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			w := backend.NewWatch()
			w.Stop()
			if data, _ := c.get(n, w); data != "v" {
				s.Fatalf("read %q", data)
			}
			c.remove(n)
			c.silent(w, "it was stopped before the read")
		}},
		{"leaves room for a new watch of the same node that misses nothing", func(s *scene) {
			c, writer := s.open("a"), s.open("b")
			n := writer.create("n", "", backend.Persistent)
			c.sync()
			for i := range 60 {
				a := armers()[i%2]
				old := backend.NewWatch()
				a.arm(c, n, old)
				old.Stop()
				if i%3 == 0 {
					writer.set(n, "unseen") // an event without a waiter
				}
				if i%3 == 1 {
					c.sync()
				}
				w := backend.NewWatch()
				a.arm(c, n, w)
				_, armed := c.get(n, nil)
				version := writer.set(n, "seen").Version
				s.fires(w, backend.LookAgain)
				c.sync()
				if _, now := c.get(n, nil); now.Version != version || armed.Version > version {
					s.Fatalf("version %d, the watch was armed at %d, the set made %d", now.Version, armed.Version, version)
				}
				if hasFired(old) {
					s.Fatal("a stopped watch has fired")
				}
			}
		}},
		{"may come at the same time as the event", func(s *scene) {
			c, writer := s.open("a"), s.open("b")
			n := writer.create("n", "", backend.Persistent)
			c.sync()
			for range 50 {
				w, control := backend.NewWatch(), backend.NewWatch()
				c.get(n, w)
				c.get(n, control)
				var group sync.WaitGroup
				group.Go(func() { writer.Commit(s.ctx, backend.SetData(n, nil, backend.AnyVersion)) })
				group.Go(w.Stop)
				group.Wait()
				s.fires(control, backend.LookAgain)
				if isClosed(w.Fired()) != (w.Kind() != 0) {
					s.Fatalf("Fired closed: %v, Kind: %v", isClosed(w.Fired()), w.Kind())
				}
			}
		}},
		{"of very many watches leaves a session that works", func(s *scene) {
			c, writer := s.open("a"), s.open("b")
			n := writer.create("n", "", backend.Persistent)
			c.sync()
			var ws []*backend.Watch
			for i := range 1000 {
				w := backend.NewWatch()
				if i%2 == 0 {
					c.children(n, w)
				} else {
					c.there(s.path(fmt.Sprint("missing", i%20)), w)
				}
				w.Stop()
				ws = append(ws, w)
			}
			last := backend.NewWatch()
			c.children(n, last)
			writer.create("missing1", "", backend.Persistent)
			writer.remove(n)
			s.fires(last, backend.Deleted)
			c.sync()
			for _, w := range ws {
				if hasFired(w) {
					s.Fatal("a stopped watch has fired")
				}
			}
		}},
	}
}
