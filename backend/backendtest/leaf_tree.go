package backendtest

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord/backend"
)

const (
	treeCreated = backend.TreeCreated
	treeChanged = backend.TreeChanged
	treeDeleted = backend.TreeDeleted
)

// onTrees returns a leaf that runs if the service has trees. Elsewhere it checks that
// WatchTree is refused.
func onTrees(name string, run func(s *scene)) leaf {
	return leaf{name, func(s *scene) {
		c := s.open("a")
		if c.Features().Has(backend.Trees) {
			run(s)
			return
		}
		w := backend.NewTreeWatch(0)
		s.refused(c.WatchTree(s.ctx, s.svc.Root(), w), backend.ErrUnsupported, "watch", s.svc.Root(), 0)
		o := s.open("b")
		o.create("n", "", backend.Persistent)
		c.sync()
		c.tells(w)
	}}
}

// tree arms a tree watch.
func (c *client) tree(path string, limit int) *backend.TreeWatch {
	c.s.Helper()
	w := backend.NewTreeWatch(limit)
	if err := c.WatchTree(c.s.ctx, path, w); err != nil {
		c.s.Fatalf("watch tree: %v", err)
	}
	return w
}

// a change that a leaf expects, without the zxid.
func treeChange(kind backend.TreeKind, path string) backend.TreeChange {
	return backend.TreeChange{Path: path, Kind: kind}
}

// tells checks the changes that the watch, which belongs to c, has reported for all commits
// up to now.
func (c *client) tells(w *backend.TreeWatch, want ...backend.TreeChange) {
	c.s.Helper()
	c.sync()
	got, over := w.Take()
	for i := range got {
		got[i].Zxid = 0
	}
	if over || !slices.Equal(got, want) {
		c.s.Fatalf("the tree watch told %v (over: %v), want %v", got, over, want)
	}
}

// taken returns the changes that a watch has told, without their zxids.
func (c *client) taken(w *backend.TreeWatch) map[backend.TreeChange]bool {
	c.s.Helper()
	all, over := w.Take()
	if over {
		c.s.Fatal("over, though contact never broke")
	}
	taken := make(map[backend.TreeChange]bool)
	for _, change := range all {
		taken[treeChange(change.Kind, change.Path)] = true
	}
	return taken
}

// isOver checks that the watch is over, and so tells nothing.
func (s *scene) isOver(w *backend.TreeWatch, why string) {
	s.Helper()
	if got, over := w.Take(); !over || got != nil {
		s.Fatalf("the tree watch told %v (over: %v), want it over: %s", got, over, why)
	}
}

func treeLeaves() []leaf {
	return []leaf{
		onTrees("reports every change at and below its node, and no other", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n, sibling := o.create("n", "", backend.Persistent), o.create("n2", "", backend.Persistent)
			deep := o.create("n/deep", "", backend.Persistent)
			w := c.tree(n, 0)
			c.tells(w)
			for _, step := range []struct {
				do   func()
				want []backend.TreeChange
			}{
				{func() { o.set(n, "new") }, []backend.TreeChange{treeChange(treeChanged, n)}},
				{func() { o.create("n/deep/x", "", backend.Ephemeral) }, []backend.TreeChange{treeChange(treeCreated, deep+"/x")}},
				{func() { o.set(deep+"/x", "") }, []backend.TreeChange{treeChange(treeChanged, deep+"/x")}},
				{func() {
					o.create("n2/x", "", backend.Persistent)
					o.set(sibling, "new")
					o.create("m", "", backend.Ephemeral)
				}, nil},
				{func() { o.remove(deep + "/x"); o.remove(deep) }, []backend.TreeChange{treeChange(treeDeleted, deep+"/x"), treeChange(treeDeleted, deep)}},
				{func() { c.create("n/own", "", backend.Persistent) }, []backend.TreeChange{treeChange(treeCreated, n+"/own")}},
				{func() { c.remove(n + "/own"); o.remove(n) }, []backend.TreeChange{treeChange(treeDeleted, n+"/own"), treeChange(treeDeleted, n)}},
				{func() { o.create("n", "", backend.Persistent); o.create("n/y", "", backend.Persistent) }, []backend.TreeChange{treeChange(treeCreated, n), treeChange(treeCreated, n+"/y")}},
			} {
				step.do()
				c.tells(w, step.want...)
			}
		}),
		onTrees("follows a node that is missing, with its parent", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := s.path("p/n")
			w := c.tree(n, 0)
			o.create("p", "", backend.Persistent)
			c.tells(w)
			for range 2 {
				o.create("p/n", "", backend.Persistent)
				c.tells(w, treeChange(treeCreated, n))
				o.remove(n)
				c.tells(w, treeChange(treeDeleted, n))
			}
		}),
		onTrees("follows the root of the service", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			root := s.svc.Root()
			w := c.tree(root, 0)
			n := o.create("n", "", backend.Persistent)
			c.tells(w, treeChange(treeCreated, n))
			o.set(root, "new")
			c.tells(w, treeChange(treeChanged, root))
		}),
		onTrees("reports the zxid of the commit, or none", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			w := c.tree(s.path("n"), 0)
			n := o.create("n", "", backend.Persistent)
			for i, last := range []func() int64{
				func() int64 { return o.stat(n, nil).Czxid },
				func() int64 { return o.set(n, "new").Mzxid },
				func() int64 { o.set(n, "newer"); return o.set(n, "newest").Mzxid },
			} {
				zxid := last()
				c.sync()
				if got, over := w.Take(); over || len(got) != 1 || got[0].Zxid != 0 && got[0].Zxid != zxid {
					s.Fatalf("step %d: told %v, over %v, want zxid %#x or none", i, got, over, zxid)
				}
			}
		}),
		onTrees("keeps a deletion beside the creation after it", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			x := o.create("n/x", "", backend.Persistent)
			w := c.tree(n, 0)
			o.commit(backend.Delete(x, 0), backend.Create(x, nil, backend.Persistent))
			c.tells(w, treeChange(treeDeleted, x), treeChange(treeCreated, x))
			o.set(x, "1")
			o.set(n, "1")
			o.set(x, "2")
			o.remove(x)
			o.create("n/x", "", backend.Persistent)
			o.set(x, "3")
			c.tells(w, treeChange(treeChanged, n), treeChange(treeDeleted, x), treeChange(treeCreated, x))
			o.create("n/y", "", backend.Persistent)
			o.remove(n + "/y")
			c.tells(w, treeChange(treeDeleted, n+"/y"))
		}),
		onTrees("reports changes in the order of the commits and of their operations", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			w := c.tree(n, 0)
			var ops []backend.Op
			var want []backend.TreeChange
			for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(10) {
				p := fmt.Sprint(n, "/", i)
				ops = append(ops, backend.Create(p, nil, backend.Persistent))
				want = append(want, treeChange(treeCreated, p))
			}
			o.commit(ops[:5]...)
			o.commit(ops[5:]...)
			c.tells(w, want...)
		}),
		onTrees("reports a change before any read that shows it", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			w := c.tree(n, 0)
			const rounds = 100
			var group sync.WaitGroup
			defer group.Wait()
			group.Go(func() {
				for i := range rounds {
					if _, err := o.Commit(s.ctx, backend.Create(fmt.Sprint(n, "/", i), nil, backend.Persistent)); err != nil {
						s.Errorf("write %d: %v", i, err)
						return
					}
				}
			})
			told := make(map[string]bool)
			for reads, shown := 0, 0; shown < rounds; reads++ {
				var names []string
				if reads%2 == 1 && c.Features().Has(backend.Batches) {
					names = c.many(backend.Read{Path: n, Children: true})[0].Names
				} else {
					names, _ = c.children(n, nil)
				}
				all, over := w.Take()
				for _, change := range all {
					told[change.Path] = true
				}
				for _, name := range names {
					if over || !told[n+"/"+name] {
						s.Fatalf("a read shows %s, of which nothing was told; over: %v", name, over)
					}
				}
				if shown = len(names); s.Failed() {
					return
				}
			}
		}),
		onTrees("reports an own write before the next read", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			w := c.tree(n, 0)
			for i := range 20 {
				p := c.create(fmt.Sprint("n/", i), "", backend.Ephemeral)
				c.get(p, nil)
				if got, over := w.Take(); over || len(got) != 1 || got[0].Path != p || got[0].Kind != treeCreated {
					s.Fatalf("told %v, over %v", got, over)
				}
			}
		}),
		onTrees("reports a change before a watch of a read fires for a later one", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n, later := o.create("n", "", backend.Persistent), o.create("later", "", backend.Persistent)
			w := c.tree(n, 0)
			for i := range 20 {
				one := backend.NewWatch()
				c.get(later, one)
				p := o.create(fmt.Sprint("n/", i), "", backend.Persistent)
				o.set(later, "")
				s.fires(one, backend.LookAgain)
				if got, over := w.Take(); over || len(got) != 1 || got[0].Path != p {
					s.Fatalf("told %v, over %v", got, over)
				}
			}
		}),
		onTrees("changes nothing for the watches of reads and of Arm", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			x := o.create("n/x", "", backend.Persistent)
			w := c.tree(n, 0)
			for range 2 { // the second time with watches that have fired already
				for _, p := range []string{n, x} {
					for _, a := range armers() {
						one := backend.NewWatch()
						a.arm(c, p, one)
						if a.children {
							o.create(strings.TrimPrefix(p, s.path(""))+"/y", "", backend.Persistent)
							c.tells(w, treeChange(treeCreated, p+"/y"))
							o.remove(p + "/y")
							c.tells(w, treeChange(treeDeleted, p+"/y"))
						} else {
							o.set(p, "new")
							c.tells(w, treeChange(treeChanged, p))
						}
						s.fires(one, backend.LookAgain)
					}
				}
				missing, late := backend.NewWatch(), forData(n+"/none")
				c.there(n+"/none", missing)
				c.arm(math.MaxInt64, late)
				s.marked(late, backend.LookAgain, "its node is missing")
				missing.Stop()
				c.sync()
				for change := range c.taken(w) {
					if change != treeChange(treeDeleted, n+"/none") { // Arm may report it again
						s.Fatalf("told %v without a change", change)
					}
				}
				var ones []*backend.Watch
				for _, a := range armers() {
					one := backend.NewWatch()
					a.arm(c, x, one)
					ones = append(ones, one)
				}
				o.remove(x)
				for _, one := range ones {
					s.fires(one, backend.Deleted)
				}
				o.create("n/x", "", backend.Persistent)
				c.tells(w, treeChange(treeDeleted, x), treeChange(treeCreated, x))
			}
		}),
		onTrees("does not fire the watches of reads without cause", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			x := o.create("n/x", "", backend.Persistent)
			data, children := backend.NewWatch(), backend.NewWatch()
			c.get(n, data)
			c.children(n, children)
			w, inner := c.tree(n, 0), c.tree(x, 0)
			o.set(x, "new")
			c.tells(w, treeChange(treeChanged, x))
			inner.Stop()
			w.Stop()
			o.set(x, "newer")
			c.silent(data, "only a child has changed")
			c.silent(children, "only the data of a child has changed")
			o.set(n, "new")
			s.fires(data, backend.LookAgain)
			o.remove(x)
			s.fires(children, backend.LookAgain)
		}),
		onTrees("is independent of other tree watches, and silent after Stop", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			x := o.create("n/x", "", backend.Persistent)
			outer, same, inner, other := c.tree(n, 0), c.tree(n, 0), c.tree(x, 0), s.open("c").tree(n, 0)
			o.set(x, "new")
			for _, w := range []*backend.TreeWatch{outer, same, inner} {
				c.tells(w, treeChange(treeChanged, x))
			}
			o.set(x, "newer")
			c.sync()
			same.Stop()
			c.tells(same)
			o.set(n, "new")
			c.tells(same)
			c.tells(inner, treeChange(treeChanged, x))
			c.tells(outer, treeChange(treeChanged, x), treeChange(treeChanged, n))
			outer.Stop()
			inner.Stop()
			again := c.tree(n, 0)
			o.set(x, "newest")
			c.tells(outer)
			c.tells(inner)
			c.tells(again, treeChange(treeChanged, x))
			other.Stop()
		}),
		onTrees("with reads after its changes gives a copy of the tree while others write", func(s *scene) {
			c := s.open("a")
			top := c.create("n", "", backend.Persistent)
			w := c.tree(top, 0)
			var group sync.WaitGroup
			for i := range 3 {
				o := s.open(fmt.Sprint("writer", i))
				group.Go(func() {
					s.churn(o, top, uint64(i))
					// No later change repairs the copy if one of these is lost. The latest writer
					// adds at least its six, with no change of another kind in between.
					for k := range 6 {
						if _, err := o.Commit(s.ctx, backend.Create(fmt.Sprint(top, "/own", i, "-", k), nil, backend.Persistent)); err != nil {
							s.Errorf("creation %d of writer %d: %v", k, i, err)
						}
					}
				})
			}
			end := make(chan struct{})
			go func() { group.Wait(); close(end) }()
			copied := make(map[string]backend.Stat)
			copied[top] = c.stat(top, nil)
			follow := func() {
				changes, over := w.Take()
				if over {
					s.Fatal("over, though contact never broke")
				}
				for _, change := range changes {
					maps.DeleteFunc(copied, func(p string, _ backend.Stat) bool {
						return change.Kind == treeDeleted && (p == change.Path || strings.HasPrefix(p, change.Path+"/"))
					})
				}
				for _, change := range changes {
					stat, err := c.Exists(s.ctx, change.Path, nil)
					switch {
					case err == nil:
						copied[change.Path] = stat
					case errors.Is(err, backend.ErrNotFound):
						delete(copied, change.Path)
					default:
						s.Fatalf("exists: %v", err)
					}
				}
			}
			for running := true; running; {
				select {
				case <-w.Ready():
				case <-end:
					running = false
				}
				follow()
			}
			c.sync()
			follow()
			real := make(map[string]backend.Stat)
			var walk func(p string)
			walk = func(p string) {
				names, stat := c.children(p, nil)
				real[p] = stat
				for _, name := range names {
					walk(p + "/" + name)
				}
			}
			walk(top)
			for p, stat := range real {
				if copied[p].Czxid != stat.Czxid || copied[p].Mzxid != stat.Mzxid {
					s.Errorf("%s is %+v, in the copy %+v", p, stat, copied[p])
				}
			}
			if len(real) != len(copied) {
				s.Errorf("%d nodes, %d in the copy", len(real), len(copied))
			}
		}),
	}
}

// churn creates, changes and deletes nodes below top at random.
func (s *scene) churn(o *client, top string, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	for range 60 {
		p := fmt.Sprint(top, "/", r.IntN(4))
		if r.IntN(2) == 0 {
			p += fmt.Sprint("/", r.IntN(2))
		}
		op := []backend.Op{
			backend.Create(p, nil, backend.Persistent), backend.SetData(p, nil, backend.AnyVersion), backend.Delete(p, backend.AnyVersion),
		}[r.IntN(3)]
		ops := []backend.Op{op}
		if op.Kind == backend.OpDelete && r.IntN(2) == 0 {
			ops = append(ops, backend.Create(p, nil, backend.Persistent))
		}
		_, err := o.Commit(s.ctx, ops...)
		if err != nil && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrNotEmpty) {
			s.Errorf("churn: %v", err)
			return
		}
	}
}
