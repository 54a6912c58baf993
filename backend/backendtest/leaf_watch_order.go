package backendtest

import (
	"fmt"
	"sync"

	"github.com/go-coord/coord/backend"
)

func watchOrderLeaves() []leaf {
	return []leaf{
		{"(may) is that of the operations of one commit", func(s *scene) {
			s.wireOrder(func(writers []*client, nodes []string) {
				var ops []backend.Op
				for _, n := range nodes {
					ops = append(ops, backend.Delete(n, backend.AnyVersion))
				}
				writers[0].commit(ops...)
			})
		}},
		{"is that of the commits of one session", func(s *scene) {
			s.wireOrder(func(writers []*client, nodes []string) {
				for _, n := range nodes {
					writers[0].remove(n)
				}
			})
		}},
		{"is that of the commits of several sessions", func(s *scene) {
			s.wireOrder(func(writers []*client, nodes []string) {
				for i, n := range nodes {
					writers[i%len(writers)].remove(n)
				}
			})
		}},
		{"delivers the event before any read that shows the change", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			n := writer.create("n", "", backend.Persistent)
			watcher.sync()
			const rounds = 150
			var group sync.WaitGroup
			defer group.Wait()
			group.Go(func() {
				for i := range rounds {
					var err error
					if i%10 == 9 {
						_, err = writer.Commit(s.ctx, backend.Delete(n, backend.AnyVersion), backend.Create(n, nil, backend.Persistent))
					} else {
						_, err = writer.Commit(s.ctx, backend.SetData(n, nil, backend.AnyVersion))
					}
					if err != nil {
						s.Errorf("write %d: %v", i, err)
						return
					}
				}
				if _, err := writer.Commit(s.ctx, backend.Delete(n, backend.AnyVersion)); err != nil {
					s.Errorf("last delete: %v", err)
				}
			})
			for {
				w := backend.NewWatch()
				data, armed, err := watcher.Get(s.ctx, n, w)
				if err != nil {
					s.refused(err, backend.ErrNotFound, "get", n, 0)
					return
				}
				for { // until a read returns another state
					stat, err := watcher.Exists(s.ctx, n, nil)
					fired := w.Kind() != 0
					if err != nil {
						s.refused(err, backend.ErrNotFound, "exists", n, 0)
					}
					if err == nil && stat.Czxid == armed.Czxid && stat.Version == armed.Version {
						continue
					}
					if !fired {
						s.Fatalf("%q with %+v was read, then %+v (%v), and the watch between has not fired", data, armed, stat, err)
					}
					break
				}
			}
		}},
		{"delivers the event of a child before any read that shows it", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			dir := writer.create("dir", "", backend.Persistent)
			watcher.sync()
			for i := range 30 {
				w := backend.NewWatch()
				names, _ := watcher.children(dir, w)
				if len(names) != i {
					s.Fatalf("children %v, want %d", names, i)
				}
				p := writer.create("dir/n-", "", backend.PersistentSequential)
				watcher.sync()
				if !watcher.there(p, nil) {
					s.Fatalf("%s is missing after a sync", p)
				}
				if w.Kind() != backend.LookAgain {
					s.Fatalf("a read shows the new child and its parent's watch has kind %q", w.Kind())
				}
			}
		}},
		{"delivers the events of the nodes above and below before any read that shows them", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			dir := s.path("dir")
			child := dir + "/x"
			fired := func(w *backend.Watch, want backend.Kind, what string) {
				s.Helper()
				if w.Kind() != want {
					s.Fatalf("%s, and the watch has kind %q, want %q", what, w.Kind(), want)
				}
			}
			for range 10 {
				made := backend.NewWatch()
				if watcher.there(dir, made) {
					s.Fatalf("%s is there", dir)
				}
				writer.create("dir", "", backend.Persistent)
				writer.create("dir/x", "", backend.Persistent)
				for !watcher.there(child, nil) {
				}
				fired(made, backend.LookAgain, "a read shows a child of a new node")
				gone := backend.NewWatch()
				watcher.get(child, gone)
				writer.remove(child)
				for watcher.stat(dir, nil).NumChildren > 0 {
				}
				fired(gone, backend.Deleted, "a read shows no children")
				writer.create("dir/x", "", backend.Persistent)
				for !watcher.there(child, nil) {
				}
				gone = backend.NewWatch()
				watcher.get(child, gone)
				writer.remove(child)
				writer.remove(dir)
				for watcher.there(dir, nil) {
				}
				fired(gone, backend.Deleted, "a read shows that the parent is missing")
			}
		}},
		{"delivers the events of nodes far above and below before any read that shows them", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			dir := writer.create("dir", "", backend.Persistent)
			fired := func(w *backend.Watch, want backend.Kind, what string) {
				s.Helper()
				if w.Kind() != want {
					s.Fatalf("%s, and the watch has kind %q, want %q", what, w.Kind(), want)
				}
			}
			for i := range 12 {
				made := backend.NewWatch()
				watcher.children(dir, made)
				writer.create("dir/x", "", backend.Persistent)
				y := writer.create("dir/x/y", "", backend.Persistent)
				z := writer.create("dir/x/y/z", "", backend.Persistent)
				for !watcher.there(z, nil) {
				}
				fired(made, backend.LookAgain, "a read shows a node below a new child")
				gone := backend.NewWatch()
				watcher.get(z, gone)
				writer.remove(z)
				writer.remove(y)
				writer.remove(dir + "/x")
				for there := true; there; {
					switch i % 3 {
					case 0:
						there = watcher.there(dir+"/x", nil)
					case 1:
						names, _ := watcher.children(dir, nil)
						there = len(names) > 0
					case 2:
						there = watcher.stat(dir, nil).NumChildren > 0
					}
				}
				fired(gone, backend.Deleted, "a read shows that a node far above is missing")
			}
		}},
		{"delivers the event of an own write before the next read", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			for range 30 {
				look, del := backend.NewWatch(), backend.NewWatch()
				c.get(n, look)
				c.children(n, del)
				c.set(n, "new")
				c.get(n, nil)
				if look.Kind() != backend.LookAgain {
					s.Fatalf("after an own set and a read the watch has kind %q", look.Kind())
				}
				c.remove(n)
				if c.there(n, nil) || del.Kind() != backend.Deleted {
					s.Fatalf("after an own delete and a read the watch has kind %q", del.Kind())
				}
				c.create("n", "", backend.Persistent)
			}
		}},
	}
}

// wireOrder deletes a row of nodes in order, for some rounds, while two sessions watch them.
// It checks for each watch that fires that the watches of the nodes before it are marked.
func (s *scene) wireOrder(remove func(writers []*client, nodes []string)) {
	s.Helper()
	const rounds, width = 15, 12
	watchers := []*client{s.open("a"), s.open("b")}
	writers := []*client{s.open("c"), s.open("d"), s.open("a")}
	var nodes []string
	for i := range width {
		nodes = append(nodes, s.path(fmt.Sprint("n", (i*7)%width))) // no natural order
	}
	for range rounds {
		var ops []backend.Op
		for _, n := range nodes {
			ops = append(ops, backend.Create(n, nil, backend.Persistent))
		}
		writers[0].commit(ops...)
		var group sync.WaitGroup
		for i, c := range append(watchers, writers[1:]...) {
			c.sync()
			if i >= len(watchers) {
				continue
			}
			var ws []*backend.Watch
			for j, n := range nodes {
				w := backend.NewWatch()
				armers()[(i+j)%len(armers())].arm(c, n, w)
				ws = append(ws, w)
			}
			for j := range ws {
				group.Go(func() {
					select {
					case <-ws[j].Fired():
					case <-s.ctx.Done():
						s.Errorf("the watch of %s has not fired", nodes[j])
						return
					}
					for k := range j + 1 {
						if kind := ws[k].Kind(); kind != backend.Deleted {
							s.Errorf("deletion %d has fired its watch, and the watch of deletion %d has kind %q", j, k, kind)
						}
					}
				})
			}
		}
		remove(writers, nodes)
		group.Wait()
		if s.Failed() {
			return
		}
	}
}
