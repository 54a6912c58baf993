package backendtest

import (
	"fmt"
	"math"
	"time"

	"github.com/go-coord/coord/backend"
)

// state returns a Stat without the position of its read.
func state(stat backend.Stat) backend.Stat {
	stat.AsOf = 0
	return stat
}

func statLeaves() []leaf {
	return []leaf{
		{"has the position of the read, which never goes back and is no earlier than what it shows", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "", backend.Persistent)
			last := int64(0)
			check := func(what string, stat backend.Stat, since int64) {
				s.Helper()
				if stat.AsOf < max(stat.Czxid, stat.Mzxid, since, last) {
					s.Fatalf("%s: %+v, after a commit %d and a read as of %d", what, stat, since, last)
				}
				last = stat.AsOf
			}
			for range 3 {
				set := c.set(n, "v")
				if set.AsOf != set.Mzxid {
					s.Fatalf("a set with zxid %d is as of %d", set.Mzxid, set.AsOf)
				}
				_, stat := c.get(n, nil)
				check("get", stat, set.Mzxid)
				child := c.create("n/child", "", backend.Persistent)
				created := c.stat(child, nil).Czxid
				_, stat = c.children(n, nil)
				check("children", stat, created)
				c.remove(child)
				check("exists", c.stat(n, nil), set.Mzxid)
				// A change after the read is after its position.
				if late := o.set(n, "w"); late.Mzxid <= last {
					s.Fatalf("a read as of %d does not show the set with zxid %d", last, late.Mzxid)
				}
				c.sync()
			}
		}},
		{"of a new node", func(s *scene) {
			c := s.open("a")
			before := c.stat(s.svc.Root(), nil)
			p := c.create("n", "value", backend.Persistent)
			got := c.stat(p, nil)
			if got.Czxid == 0 || got.Czxid <= before.AsOf || got.Ctime == 0 {
				s.Fatalf("creation id and time of %+v, after a read as of %d", got, before.AsOf)
			}
			want := backend.Stat{
				Czxid: got.Czxid, Mzxid: got.Czxid, Pzxid: got.Pzxid,
				Ctime: got.Ctime, Mtime: got.Ctime, DataLength: 5, AsOf: got.AsOf,
			}
			if got != want {
				s.Fatalf("got %+v, want %+v", got, want)
			}
		}},
		{"is the same from every read", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "value", backend.Persistent)
			c.create("n/child", "", backend.Persistent)
			c.set(p, "other")
			_, get := c.get(p, nil)
			_, children := c.children(p, nil)
			if exists := c.stat(p, nil); state(get) != state(exists) || state(children) != state(exists) {
				s.Fatalf("get %+v, children %+v, exists %+v", get, children, exists)
			}
		}},
		{"shows a change of the data in Mzxid, Mtime, Version and DataLength only", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "value", backend.Persistent)
			before := c.stat(p, nil)
			after := c.set(p, "longer value")
			if after.Mzxid <= before.Mzxid || after.Mtime < before.Mtime {
				s.Fatalf("set changed %+v to %+v", before, after)
			}
			want := before
			want.Mzxid, want.Mtime, want.Version, want.DataLength = after.Mzxid, after.Mtime, 1, 12
			if state(after) != state(want) {
				s.Fatalf("set changed %+v to %+v", before, after)
			}
		}},
		{"(may) shows a change of the children in Pzxid, Cversion and NumChildren only", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			want := c.stat(dir, nil)
			var creates, children int32
			check := func(what string) {
				s.Helper()
				got := c.stat(dir, nil)
				if got.Pzxid <= want.Pzxid {
					s.Fatalf("%s: pzxid %d after %d", what, got.Pzxid, want.Pzxid)
				}
				// ZooKeeper reports twice the number of creations, less the number of
				// children.
				want.Pzxid, want.Cversion, want.NumChildren = got.Pzxid, 2*creates-children, children
				if state(got) != state(want) {
					s.Fatalf("%s: %+v, want %+v", what, got, want)
				}
			}
			for _, name := range []string{"dir/a", "dir/b", "dir/c"} {
				p := c.create(name, "", backend.Persistent)
				creates++
				children++
				check("a child created")
				if got := c.stat(p, nil).Czxid; got != want.Pzxid {
					s.Fatalf("the child has czxid %d, its parent pzxid %d", got, want.Pzxid)
				}
			}
			for _, name := range []string{"dir/b", "dir/a"} {
				c.remove(s.path(name))
				children--
				check("a child deleted")
			}
			c.create("dir/n-", "", backend.EphemeralSequential)
			creates++
			children++
			check("a sequential child created")
		}},
		{"does not show changes of a child", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			c.create("dir/a", "", backend.Persistent)
			before := c.stat(dir, nil)
			c.set(s.path("dir/a"), "new")
			c.create("dir/a/b", "", backend.Persistent)
			if after := c.stat(dir, nil); state(after) != state(before) {
				s.Fatalf("got %+v, want %+v as before", after, before)
			}
		}},
		{"(may) shows the end of an ephemeral child", func(s *scene) {
			c, d := s.open("a"), s.open("b")
			dir := c.create("dir", "", backend.Persistent)
			d.sync()
			d.create("dir/e", "", backend.Ephemeral)
			c.sync()
			before := c.stat(dir, nil)
			if err := d.Close(); err != nil {
				s.Fatal(err)
			}
			c.sync()
			after := c.stat(dir, nil)
			if after.NumChildren != 0 || after.Cversion != 2 || after.Pzxid <= before.Pzxid {
				s.Fatalf("got %+v after the child was deleted, %+v before", after, before)
			}
		}},
		{"(may) has times of the service's clock in milliseconds", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "", backend.Persistent)
			stat := c.set(p, "v")
			for _, ms := range []int64{stat.Ctime, stat.Mtime} {
				if off := time.Since(time.UnixMilli(ms)).Abs(); off > time.Minute {
					s.Fatalf("time %d of %+v is off by %v", ms, stat, off)
				}
			}
			if stat.Mtime < stat.Ctime {
				s.Fatalf("changed before it was created: %+v", stat)
			}
		}},
		{"has times of the service's own clock, if it has one", func(s *scene) {
			c, d := s.open("a"), s.open("b")
			if !c.Features().Has(backend.Clock) {
				return
			}
			p := c.create("n", "", backend.Persistent)
			d.sync()
			// Each commit tells between which bounds the service's clock differs from ours.
			began, low, high := time.Now(), int64(math.MinInt64), int64(math.MaxInt64)
			for i := range 20 {
				by := []*client{c, d}[i%2]
				_, contact := by.Status()
				sent := time.Since(began)
				stat := by.set(p, fmt.Sprint(i))
				answered := time.Since(began)
				select {
				case <-contact:
					low, high = math.MinInt64, math.MaxInt64 // it can be another clock
					continue
				default:
				}
				low = max(low, stat.Mtime*int64(time.Millisecond)-int64(answered))
				high = min(high, (stat.Mtime+1)*int64(time.Millisecond)-int64(sent))
				if low > high+int64(time.Millisecond) { // the clocks may run at different speeds
					s.Fatalf("commit %d, under way from %v to %v, has the time %d, which does not fit those of the commits before: off by %v",
						i, sent, answered, stat.Mtime, time.Duration(low-high))
				}
				time.Sleep(5 * time.Millisecond)
			}
		}},
		{"has creation ids that grow and never repeat", func(s *scene) {
			c, d := s.open("a"), s.open("b")
			var last int64
			for i := range 20 {
				by := []*client{c, d}[i%2]
				p := by.create("n", "", backend.Persistent)
				stat := by.stat(p, nil)
				if stat.Czxid <= last {
					s.Fatalf("creation id %d after %d", stat.Czxid, last)
				}
				last = stat.Czxid
				by.remove(p)
			}
		}},
	}
}

func ephemeralLeaves() []leaf {
	return []leaf{
		{"nodes have no children", func(s *scene) {
			c := s.open("a")
			e := c.create("e", "", backend.Ephemeral)
			for _, mode := range []backend.CreateMode{backend.Persistent, backend.Ephemeral,
				backend.PersistentSequential, backend.EphemeralSequential} {
				_, err := c.Commit(s.ctx, backend.Create(e+"/n", nil, mode))
				s.refused(err, backend.ErrNoChildren, "create", e+"/n", 0)
			}
			f := s.path("f")
			_, err := c.Commit(s.ctx,
				backend.Create(f, nil, backend.Ephemeral),
				backend.Create(f+"/n", nil, backend.Persistent))
			s.refused(err, backend.ErrNoChildren, "create", f+"/n", 1)
		}},
		{"nodes are deleted when their session closes, and only those", func(s *scene) {
			c, d, o := s.open("a"), s.open("a"), s.open("b")
			mine, sequential := c.create("mine", "", backend.Ephemeral), c.create("n-", "", backend.EphemeralSequential)
			plain := c.create("plain", "", backend.Persistent)
			others := d.create("others", "", backend.Ephemeral)
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			o.sync()
			if o.there(mine, nil) || o.there(sequential, nil) {
				s.Fatal("an ephemeral of the closed session still exists")
			}
			if !o.there(plain, nil) || !o.there(others, nil) {
				s.Fatal("a node of no session or of another session is missing")
			}
		}},
		{"nodes are deleted when the service ends their session, and only those", func(s *scene) {
			c, d, o := s.open("a"), s.open("a"), s.open("b")
			mine, sequential := c.create("mine", "", backend.Ephemeral), c.create("n-", "", backend.EphemeralSequential)
			plain := c.create("plain", "", backend.Persistent)
			others := d.create("others", "", backend.Ephemeral)
			c.link.Expire(c.ID())
			o.sync()
			if o.there(mine, nil) || o.there(sequential, nil) {
				s.Fatal("an ephemeral of the expired session still exists")
			}
			if !o.there(plain, nil) || !o.there(others, nil) {
				s.Fatal("a node of no session or of another session is missing")
			}
			c.lost()
			if err := d.Err(); err != nil {
				s.Fatalf("the other session ended: %v", err)
			}
		}},
		{"nodes live as long as their session has contact", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			p := c.create("e", "", backend.Ephemeral)
			o.sync()
			timer := time.NewTimer(3 * s.timeout)
			defer timer.Stop()
			for idle := true; idle; {
				_, breaks := o.Status()
				w := backend.NewWatch()
				o.get(p, w)
				select {
				case <-timer.C:
					idle = false
				case <-w.Fired():
					// On a busy machine the contact of the observer can break.
					if w.Kind() == backend.Deleted || !isClosed(breaks) {
						s.Fatal("an event fired for the node of an idle session")
					}
				}
			}
			if o.sync(); !o.there(p, nil) || c.Err() != nil {
				s.Fatalf("the node of an idle session was deleted; Err is %v", c.Err())
			}
		}},
		{"nodes cannot be taken over: owner and creation id stay", func(s *scene) {
			c, d := s.open("a"), s.open("b")
			p := c.create("e", "", backend.Ephemeral)
			d.sync()
			before := d.stat(p, nil)
			if after := d.set(p, "written by another"); after.EphemeralOwner != c.ID() || after.Czxid != before.Czxid {
				s.Fatalf("a write by another session changed %+v to %+v", before, after)
			}
			if err := d.Close(); err != nil {
				s.Fatal(err)
			}
			if c.sync(); !c.there(p, nil) {
				s.Fatal("the node was deleted with a session that does not own it")
			}
		}},
	}
}
