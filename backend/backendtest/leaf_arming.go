package backendtest

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// forData and forChildren return targets with a new watch.
func forData(path string) backend.Target {
	return backend.Target{Path: path, Watch: backend.NewWatch()}
}

func forChildren(path string) backend.Target {
	return backend.Target{Path: path, Children: true, Watch: backend.NewWatch()}
}

// marked checks the kind of a watch at this moment; zero means that it has not fired.
func (s *scene) marked(t backend.Target, want backend.Kind, why string) {
	s.Helper()
	if got := t.Watch.Kind(); got != want {
		s.Fatalf("the watch of %s (children %v) has kind %q, want %q: %s", t.Path, t.Children, got, want, why)
	}
}

func armLeaves() []leaf {
	return []leaf{
		{"arms all of its watches, each for its own events", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			p, q, r := o.create("p", "", backend.Persistent), o.create("q", "", backend.Persistent), o.create("r", "", backend.Persistent)
			c.sync()
			targets := []backend.Target{
				forData(p), forChildren(q), forChildren(p), forData(q), forData(p), forChildren(s.svc.Root()), forData(r),
			}
			c.arm(math.MaxInt64, targets...)
			want := make([]backend.Kind, len(targets))
			for _, step := range []struct {
				do    func()
				fires map[int]backend.Kind
			}{
				{func() { o.set(q, "new") }, map[int]backend.Kind{3: backend.LookAgain}},
				{func() { o.create("p/child", "", backend.Persistent) }, map[int]backend.Kind{2: backend.LookAgain}},
				{func() { o.remove(r) }, map[int]backend.Kind{5: backend.LookAgain, 6: backend.Deleted}},
				{func() { o.remove(q) }, map[int]backend.Kind{1: backend.Deleted}},
				{func() { o.set(p, "new") }, map[int]backend.Kind{0: backend.LookAgain, 4: backend.LookAgain}},
			} {
				step.do()
				c.sync()
				for i, kind := range step.fires {
					want[i] = kind
				}
				for i, target := range targets {
					s.marked(target, want[i], "after the events up to now")
				}
			}
		}},
		{"fires the watch of a missing node before it returns, and arms the others", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n, gone := o.create("n", "", backend.Persistent), o.create("gone", "", backend.Persistent)
			o.remove(gone)
			c.sync()
			for _, known := range []bool{false, true} {
				since := int64(math.MaxInt64)
				if known {
					since = c.stat(n, nil).Czxid
				}
				targets := []backend.Target{forData(gone), forData(n), forChildren(gone), forChildren(s.path("never")), forChildren(n)}
				c.arm(since, targets...)
				for _, i := range []int{0, 2, 3} {
					s.marked(targets[i], backend.LookAgain, "its node is missing")
				}
				s.marked(targets[1], 0, "nothing has happened")
				s.marked(targets[4], 0, "nothing has happened")
				o.remove(n)
				s.fires(targets[1].Watch, backend.Deleted)
				s.fires(targets[4].Watch, backend.Deleted)
				o.create("n", "", backend.Persistent)
				c.sync()
			}
		}},
		{"fires by since for the changes that it came too late for", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			child := o.create("n/child", "", backend.Persistent)
			o.set(n, "new")
			o.remove(child)
			last := o.stat(o.create("n/last", "", backend.Persistent), nil).Czxid
			other := o.create("other", "", backend.Persistent)
			c.sync()
			now := c.stat(n, nil) // Czxid < Mzxid < last
			late := func(since int64) (data, children bool) {
				s.Helper()
				targets := []backend.Target{forChildren(n), forData(n)}
				c.arm(since, targets...)
				for _, t := range targets {
					if kind := t.Watch.Kind(); kind != 0 {
						s.marked(t, backend.LookAgain, "an Arm that came too late")
					}
				}
				children, data = hasFired(targets[0].Watch), hasFired(targets[1].Watch)
				o.set(other, "new")
				c.sync()
				if children != hasFired(targets[0].Watch) || data != hasFired(targets[1].Watch) {
					s.Fatal("a watch fired when Arm had returned, and nothing had happened")
				}
				for _, t := range targets {
					t.Watch.Stop()
				}
				return data, children
			}
			for _, test := range []struct {
				since          int64
				data, children bool
			}{
				{0, true, true}, {now.Czxid, true, true}, {now.Mzxid - 1, true, true},
				{now.Mzxid, false, true}, {last - 1, false, true},
				{last, false, false}, {last + 1, false, false}, {math.MaxInt64, false, false},
			} {
				if data, children := late(test.since); data != test.data || children != test.children {
					s.Fatalf("a node changed at %#x, with children changed at %#x, and since %#x: data %v, children %v; want %v, %v",
						now.Mzxid, last, test.since, data, children, test.data, test.children)
				}
			}
		}},
		{"fires by since for a child that one commit has replaced, and not for new data of one", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			child := o.create("n/child", "", backend.Persistent)
			since := o.stat(o.create("n/other", "", backend.Persistent), nil).Czxid
			o.set(child, "new")
			c.sync()
			t := forChildren(n)
			c.arm(since, t)
			c.silent(t.Watch, "only the data of a child has changed since")
			t.Watch.Stop()
			o.commit(backend.Delete(child, backend.AnyVersion), backend.Create(child, nil, backend.Persistent))
			c.sync()
			t = forChildren(n)
			c.arm(since, t)
			s.marked(t, backend.LookAgain, "a child is another node than the one of since")
		}},
		{"misses no change of a node that the commit since created", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			for i := range 4 {
				n := s.path(fmt.Sprint("n", i))
				c.commit(backend.Create(n, nil, backend.Persistent), backend.Create(n+"/child", nil, backend.Persistent))
				made := c.stat(n, nil).Czxid
				if i%2 == 1 {
					o.set(n, "new")
					o.remove(n + "/child")
					c.sync()
				}
				data, children := forData(n), forChildren(n)
				c.arm(made, data, children)
				if i%2 == 1 {
					s.marked(data, backend.LookAgain, "the data has changed since")
					s.marked(children, backend.LookAgain, "the children have changed since")
					continue
				}
				c.silent(data.Watch, "nothing has happened since the node was made")
				c.silent(children.Watch, "nothing has happened since the node was made")
				o.set(n, "new")
				o.remove(n + "/child")
				s.fires(data.Watch, backend.LookAgain)
				s.fires(children.Watch, backend.LookAgain)
			}
		}},
		{"does not mistake a recreated node for the old one", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			_, before := c.get(n, nil)
			o.commit(backend.Delete(n, 0), backend.Create(n, nil, backend.Persistent))
			c.sync()
			data, children := forData(n), forChildren(n)
			c.arm(before.Czxid, data, children)
			s.marked(data, backend.LookAgain, "the node was replaced")
			s.marked(children, backend.LookAgain, "the node was replaced")
		}},
		{"does not report a deletion before it, though older watches do", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			for i := range 20 {
				n := o.create(fmt.Sprint("n", i), "", backend.Persistent)
				c.sync()
				old, oldChildren := backend.NewWatch(), backend.NewWatch()
				c.get(n, old)
				c.children(n, oldChildren)
				o.remove(n)
				if i%2 == 0 {
					c.sync()
				}
				data, children := forData(n), forChildren(n)
				c.arm(math.MaxInt64, data, children)
				s.fires(old, backend.Deleted)
				s.fires(oldChildren, backend.Deleted)
				if i%2 == 0 {
					s.marked(data, backend.LookAgain, "the node was missing")
				}
				s.await(data.Watch.Fired(), "the watch of a deleted node")
				s.await(children.Watch.Fired(), "the watch of a deleted node")
				s.marked(children, data.Watch.Kind(), "the same as the watch for the data")
			}
		}},
		{"shares a node with the watches of reads", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			for i, late := range []bool{false, true} {
				n := o.create(fmt.Sprint("n", i), "", backend.Persistent)
				made := o.stat(n, nil).Czxid
				o.set(n, "new")
				c.sync()
				read, after := backend.NewWatch(), backend.NewWatch()
				c.get(n, read)
				armed, other := forData(n), forData(n)
				since := int64(math.MaxInt64)
				if late {
					since = made
				}
				c.arm(since, armed)
				c.get(n, after)
				c.arm(math.MaxInt64, other)
				o.remove(n)
				s.fires(after, backend.Deleted)
				s.fires(other.Watch, backend.Deleted)
				if !late {
					s.fires(read, backend.Deleted)
					s.fires(armed.Watch, backend.Deleted)
					continue
				}
				s.await(read.Fired(), "the watch of a read, by the deletion at the latest")
				s.fires(armed.Watch, backend.LookAgain)
			}
		}},
		{"(may) checks all of its nodes at one moment", func(s *scene) {
			const rounds, width = 40, 6
			c, o := s.open("a"), s.open("b")
			s.delay(c.link)
			latency := s.delay(o.link)
			for round := range rounds {
				var ops, deletes []backend.Op
				var targets []backend.Target
				for i := range width {
					n := s.path(fmt.Sprint("n", i))
					ops = append(ops, backend.Create(n, nil, backend.Persistent))
					deletes = append(deletes, backend.Delete(n, 0))
					targets = append(targets, forData(n), forChildren(n))
				}
				o.commit(ops...)
				c.sync()
				var group sync.WaitGroup
				group.Go(func() {
					timer := time.NewTimer(latency * time.Duration(round%8) / 2)
					<-timer.C
					if _, err := o.Commit(s.ctx, deletes...); err != nil {
						s.Errorf("delete: %v", err)
					}
				})
				c.arm(math.MaxInt64, targets...)
				group.Wait()
				for _, t := range targets {
					s.await(t.Watch.Fired(), "a watch of a node that is deleted")
				}
				for _, t := range targets {
					s.marked(t, targets[0].Watch.Kind(), "the same as that of another node deleted in the same commit")
				}
			}
		}},
		{"accepts watches of a set", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			ws := backend.NewWatchSet()
			defer ws.Stop()
			var targets []backend.Target
			for i := range 5 {
				n := o.create(fmt.Sprint("n", i), "", backend.Persistent)
				targets = append(targets, backend.Target{Path: n, Children: i%2 == 0, Watch: ws.New()})
			}
			o.remove(targets[3].Path)
			c.sync()
			c.arm(math.MaxInt64, targets...)
			if got := ws.Take(); len(got) != 1 || got[0] != targets[3].Watch || got[0].Kind() != backend.LookAgain {
				s.Fatalf("%d watches have fired, want that of the missing node", len(got))
			}
			targets[0].Watch.Stop()
			for _, i := range []int{2, 1, 0} {
				o.remove(targets[i].Path)
			}
			c.sync()
			if got := ws.Take(); len(got) != 2 || got[0] != targets[2].Watch || got[1] != targets[1].Watch || ws.Len() != 1 {
				s.Fatalf("%d watches have fired, %d are left", len(got), ws.Len())
			}
		}},
		{"misses nothing between a read and itself, while others write", func(s *scene) {
			const writers, writes, readers = 2, 30, 4
			n := s.open("w").create("n", "", backend.Persistent)
			var group sync.WaitGroup
			for i := range writers {
				c := s.open(fmt.Sprint("w", i))
				c.sync()
				s.delay(c.link) // so that some writes overlap a read
				group.Go(func() {
					for range writes {
						_, err := c.Commit(s.ctx, backend.SetData(n, []byte(strconv.Itoa(i)), backend.AnyVersion),
							backend.Create(n+"/c-", nil, backend.PersistentSequential))
						if err != nil {
							s.Errorf("write: %v", err)
							return
						}
						for range 2 + i { // or each write would hide the loss of the previous write
							if err := c.Sync(s.ctx, n); err != nil {
								s.Errorf("sync: %v", err)
								return
							}
						}
					}
				})
			}
			for i := range readers {
				c := s.open(fmt.Sprint("r", i))
				c.sync()
				s.delay(c.link)
				group.Go(func() {
					for {
						stat, err := c.Exists(s.ctx, n, nil)
						if err == nil && stat.Version == writers*writes {
							return
						}
						t, since := forData(n), stat.AsOf
						if i%2 == 1 {
							t = forChildren(n)
						}
						if err == nil {
							err = c.Arm(s.ctx, since, t)
						}
						var now backend.Stat
						if err == nil {
							now, err = c.Exists(s.ctx, n, nil)
						}
						if err == nil && state(now) != state(stat) && t.Watch.Kind() == 0 {
							s.Errorf("%+v was read, then %+v, and the watch armed between has not fired", stat, now)
							return
						}
						if err != nil {
							s.Errorf("read: %v", err)
							return
						}
						select {
						case <-t.Watch.Fired():
						case <-s.ctx.Done():
							s.Errorf("a reader waits at version %d of %d", stat.Version, writers*writes)
							return
						}
					}
				})
			}
			group.Wait()
		}},
	}
}
