package backendtest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/go-coord/coord/backend"
)

// An armer is a call that can arm a watch of a node that exists.
type armer struct {
	name     string
	children bool // the watch is for the children
	arm      func(c *client, path string, w *backend.Watch)
}

func armers() []armer {
	return []armer{
		{"get", false, func(c *client, path string, w *backend.Watch) { c.s.Helper(); c.get(path, w) }},
		{"exists", false, func(c *client, path string, w *backend.Watch) { c.s.Helper(); c.stat(path, w) }},
		{"children", true, func(c *client, path string, w *backend.Watch) { c.s.Helper(); c.children(path, w) }},
		{"arm", false, func(c *client, path string, w *backend.Watch) {
			c.s.Helper()
			c.arm(math.MaxInt64, backend.Target{Path: path, Watch: w})
		}},
		{"arm for children", true, func(c *client, path string, w *backend.Watch) {
			c.s.Helper()
			c.arm(math.MaxInt64, backend.Target{Path: path, Children: true, Watch: w})
		}},
	}
}

// A watchCase is one event and its effect on the watches of a node "n", which has a child
// "n/child" if family is set.
type watchCase struct {
	name   string
	family bool
	event  func(c *client, n string)
	// The kinds with which the watches of get, exists and arm, and those for the children,
	// fire; zero for silence.
	node, children backend.Kind
}

func watchCases() []watchCase {
	return []watchCase{
		{"a change of the data", false, func(c *client, n string) { c.set(n, "new") },
			backend.LookAgain, 0},
		{"a change to the same data", false, func(c *client, n string) { c.set(n, "v") },
			backend.LookAgain, 0},
		{"the deletion of the node", false, func(c *client, n string) { c.remove(n) },
			backend.Deleted, backend.Deleted},
		{"a child created", false, func(c *client, n string) { c.create("n/new", "", backend.Persistent) },
			0, backend.LookAgain},
		{"a sequential child created", false, func(c *client, n string) { c.create("n/new-", "", backend.EphemeralSequential) },
			0, backend.LookAgain},
		{"a child deleted", true, func(c *client, n string) { c.remove(n + "/child") },
			0, backend.LookAgain},
		{"a child's data changed", true, func(c *client, n string) { c.set(n+"/child", "new") },
			0, 0},
		{"a grandchild created", true, func(c *client, n string) { c.create("n/child/new", "", backend.Persistent) },
			0, 0},
		{"a sibling created, changed and deleted", false, func(c *client, n string) {
			p := c.create("n2", "", backend.Persistent)
			c.set(p, "new")
			c.remove(p)
		}, 0, 0},
		{"a check", false, func(c *client, n string) { c.commit(backend.Check(n, backend.AnyVersion)) },
			0, 0},
	}
}

func watchLeaves() []leaf {
	leaves := []leaf{
		{"of exists on a missing node fires when it is created", func(s *scene) {
			for i, mode := range []backend.CreateMode{backend.Persistent, backend.Ephemeral} {
				watcher, writer := s.open("a"), s.open("b")
				for j, by := range []*client{watcher, writer} {
					name := fmt.Sprint("n", i, j)
					w, unrelated := backend.NewWatch(), backend.NewWatch()
					_, err := watcher.Exists(s.ctx, s.path(name), w)
					s.refused(err, backend.ErrNotFound, "exists", s.path(name), 0)
					_, err = watcher.Exists(s.ctx, s.path("other-"+name), unrelated)
					s.refused(err, backend.ErrNotFound, "exists", s.path("other-"+name), 0)
					by.create(name, "", mode)
					s.fires(w, backend.LookAgain)
					watcher.silent(unrelated, "it belongs to another node, which is still missing")
				}
			}
		}},
		{"(may) of exists on a missing node never fires Deleted for a node that was created and deleted", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			w := backend.NewWatch()
			if watcher.there(s.path("n"), w) {
				s.Fatal("the node exists")
			}
			writer.commit(backend.Create(s.path("n"), nil, backend.Persistent), backend.Delete(s.path("n"), 0))
			s.fires(w, backend.LookAgain)
		}},
		{"fires once for a change and the deletion in one commit", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			for i, a := range armers() {
				n := writer.create(fmt.Sprint("n", i), "", backend.Persistent)
				watcher.sync()
				w := backend.NewWatch()
				a.arm(watcher, n, w)
				writer.commit(backend.SetData(n, nil, 0), backend.Delete(n, 1))
				s.await(w.Fired(), "the watch of "+a.name)
				if watcher.sync(); watcher.there(n, nil) || a.children && w.Kind() != backend.Deleted {
					s.Fatalf("the watch of %s fired with %q", a.name, w.Kind())
				}
			}
		}},
		{"of get and children on a missing node is not armed", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			g, c := backend.NewWatch(), backend.NewWatch()
			_, _, err := watcher.Get(s.ctx, s.path("n"), g)
			s.refused(err, backend.ErrNotFound, "get", s.path("n"), 0)
			_, _, err = watcher.Children(s.ctx, s.path("n"), c)
			s.refused(err, backend.ErrNotFound, "children", s.path("n"), 0)
			writer.create("n", "", backend.Persistent)
			writer.create("n/child", "", backend.Persistent)
			writer.set(s.path("n"), "v")
			watcher.silent(g, "get had returned not found")
			watcher.silent(c, "children had returned not found")
		}},
		{"fires once and keeps its kind", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			for i, a := range armers() {
				name := fmt.Sprint("n", i)
				p := writer.create(name, "", backend.Persistent)
				watcher.sync()
				w := backend.NewWatch()
				a.arm(watcher, p, w)
				if a.children {
					writer.create(name+"/child", "", backend.Persistent)
					writer.remove(p + "/child")
				} else {
					writer.set(p, "new")
				}
				s.fires(w, backend.LookAgain)
				writer.set(p, "newer")
				writer.remove(p)
				watcher.sync()
				if w.Kind() != backend.LookAgain {
					s.Fatalf("%s: the kind became %v after a later event", a.name, w.Kind())
				}
			}
		}},
		{"fires for every watch of the node, in every session", func(s *scene) {
			writer := s.open("w")
			p := writer.create("n", "", backend.Persistent)
			var looks, dels []*backend.Watch
			for i := range 3 {
				c := s.open(fmt.Sprint(i))
				c.sync()
				for range 3 {
					for _, a := range armers() {
						w := backend.NewWatch()
						a.arm(c, p, w)
						if a.children {
							dels = append(dels, w)
						} else {
							looks = append(looks, w)
						}
					}
				}
			}
			writer.set(p, "new")
			for _, w := range looks {
				s.fires(w, backend.LookAgain)
			}
			writer.remove(p)
			for _, w := range dels {
				s.fires(w, backend.Deleted)
			}
		}},
		{"fires with Deleted when the node's session ends", func(s *scene) {
			for i, end := range []func(c *client){
				func(c *client) { c.Close() },
				func(c *client) { c.link.Expire(c.ID()) },
			} {
				owner, watcher := s.open(fmt.Sprint("owner", i)), s.open("w")
				name := fmt.Sprint("dir", i)
				dir := owner.create(name, "", backend.Persistent)
				e := owner.create(name+"/e", "", backend.Ephemeral)
				watcher.sync()
				var ws []*backend.Watch
				for _, a := range armers() {
					w := backend.NewWatch()
					a.arm(watcher, e, w)
					ws = append(ws, w)
				}
				parent := backend.NewWatch()
				watcher.children(dir, parent)
				end(owner)
				for _, w := range ws {
					s.fires(w, backend.Deleted)
				}
				s.fires(parent, backend.LookAgain)
			}
		}},
		{"that has fired is not armed by a later read", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			p, q := writer.create("p", "", backend.Persistent), writer.create("q", "", backend.Persistent)
			watcher.sync()
			w := backend.NewWatch()
			watcher.get(p, w)
			writer.set(p, "new")
			s.fires(w, backend.LookAgain)
			watcher.get(q, w)
			writer.remove(q)
			watcher.sync()
			if w.Kind() != backend.LookAgain {
				s.Fatalf("the kind became %v", w.Kind())
			}
		}},
		{"fires for a node that is replaced in one commit", func(s *scene) {
			watcher, writer := s.open("a"), s.open("b")
			p := writer.create("n", "", backend.Persistent)
			watcher.sync()
			for _, a := range armers() {
				w := backend.NewWatch()
				a.arm(watcher, p, w)
				writer.commit(backend.Delete(p, backend.AnyVersion), backend.Create(p, nil, backend.Persistent))
				s.await(w.Fired(), "the watch of a replaced node")
				watcher.sync()
			}
		}},
		{"is never missed while others write", func(s *scene) {
			const writers, writes, readers = 3, 40, 3
			n := s.open("w").create("n", "", backend.Persistent)
			var group sync.WaitGroup
			for i := range writers {
				c := s.open(fmt.Sprint("w", i))
				c.sync()
				s.delay(c.link) // so that readers have time to read between
				group.Go(func() {
					for made := 0; made < writes; {
						_, err := c.Commit(s.ctx, backend.SetData(n, []byte(strconv.Itoa(i)), backend.AnyVersion))
						switch {
						case err == nil:
							made++
						case backend.IsUncertain(err) && s.ctx.Err() == nil: // the connection broke on a busy machine; one more write
						default:
							s.Errorf("set: %v", err)
							return
						}
					}
				})
			}
			for i := range readers {
				c := s.open(fmt.Sprint("r", i))
				c.sync()
				group.Go(func() {
					var last int32 = -1
					for last < writers*writes {
						w := backend.NewWatch()
						var stat backend.Stat
						var err error
						if i%2 == 0 {
							_, stat, err = c.Get(s.ctx, n, w)
						} else {
							stat, err = c.Exists(s.ctx, n, w)
						}
						if err != nil {
							s.Errorf("read: %v", err)
							return
						}
						if stat.Version < last {
							s.Errorf("version %d was read after version %d", stat.Version, last)
							return
						}
						last = stat.Version
						if last >= writers*writes {
							w.Stop()
							return
						}
						select {
						case <-w.Fired():
						case <-s.ctx.Done():
							s.Errorf("a reader waits at version %d of %d", last, writers*writes)
							return
						}
					}
				})
			}
			group.Wait()
		}},
		{"is never missed while children come and go", func(s *scene) {
			const writers, rounds = 3, 20
			setup := s.open("w")
			dir := setup.create("dir", "", backend.Persistent)
			var writing, group sync.WaitGroup
			for i := range writers {
				c := s.open(fmt.Sprint("w", i))
				c.sync()
				s.delay(c.link) // so that readers have time to read between
				writing.Go(func() {
					for range rounds {
						r, err := c.Commit(s.ctx, backend.Create(dir+"/n-", nil, backend.EphemeralSequential))
						if err == nil {
							_, err = c.Commit(s.ctx, backend.Delete(r[0].Path, 0))
						}
						if err != nil {
							s.Errorf("commit: %v", err)
							return
						}
					}
				})
			}
			reader := s.open("r")
			reader.sync()
			written := make(chan struct{})
			group.Go(func() {
				for {
					w := backend.NewWatch()
					names, stat, err := reader.Children(s.ctx, dir, w)
					if err != nil {
						s.Errorf("children: %v", err)
						return
					}
					if len(names) != int(stat.NumChildren) {
						s.Errorf("%d names, the Stat of the same read has %d", len(names), stat.NumChildren)
						return
					}
					select {
					case <-w.Fired():
						continue
					case <-written:
					case <-s.ctx.Done():
						s.Errorf("the reader waits with %v, %+v", names, stat)
						return
					}
					if err := reader.Sync(s.ctx, dir); err != nil {
						s.Errorf("sync: %v", err)
						return
					}
					if hasFired(w) {
						continue
					}
					if !slices.Equal(names, []string{"last"}) {
						s.Errorf("no event came after the state %v, %+v", names, stat)
					}
					w.Stop()
					return
				}
			})
			writing.Wait()
			setup.create("dir/last", "", backend.Persistent)
			close(written)
			group.Wait()
		}},
	}
	for _, c := range watchCases() {
		leaves = append(leaves, leaf{"reacts to " + c.name + " as the contract says", c.run})
	}
	return leaves
}

// run arms each kind of watch, has the event caused by the watching session and by another
// one, and compares the watches that fire.
func (c watchCase) run(s *scene) {
	watcher, writer := s.open("a"), s.open("b")
	for _, by := range []*client{watcher, writer} {
		n := writer.create("n", "v", backend.Persistent)
		if c.family {
			writer.create("n/child", "", backend.Persistent)
		}
		watcher.sync()
		var ws []*backend.Watch
		for _, a := range armers() {
			w := backend.NewWatch()
			a.arm(watcher, n, w)
			ws = append(ws, w)
		}
		c.event(by, n)
		for i, w := range ws {
			want := c.node
			if armers()[i].children {
				want = c.children
			}
			if want == 0 {
				watcher.silent(w, armers()[i].name)
			} else {
				s.fires(w, want)
			}
			w.Stop()
		}
		writer.sync()
		writer.clear(n)
	}
}

// clear removes a node with its subtree, if it exists.
func (c *client) clear(path string) {
	c.s.Helper()
	if !c.there(path, nil) {
		return
	}
	names, _ := c.children(path, nil)
	for _, name := range names {
		c.clear(path + "/" + name)
	}
	c.remove(path)
}
