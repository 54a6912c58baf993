package backendtest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
)

func atomicLeaves() []leaf {
	return []leaf{
		{"applies all operations, with one zxid", func(s *scene) {
			c := s.open("a")
			old := c.create("old", "", backend.Persistent)
			dead := c.create("dead", "", backend.Persistent)
			c.commit(
				backend.Create(s.path("a"), []byte("a"), backend.Persistent),
				backend.SetData(old, []byte("b"), 0),
				backend.Delete(dead, 0),
				backend.Create(s.path("e"), nil, backend.Ephemeral))
			a, set, e := c.stat(s.path("a"), nil), c.stat(old, nil), c.stat(s.path("e"), nil)
			root := c.stat(s.svc.Root(), nil)
			if a.Czxid != set.Mzxid || a.Czxid != e.Czxid || root.Pzxid != 0 && a.Czxid != root.Pzxid || c.there(dead, nil) {
				s.Fatalf("create %d, set %d, ephemeral %d, parent %d: want one zxid, and the deleted node missing",
					a.Czxid, set.Mzxid, e.Czxid, root.Pzxid)
			}
		}},
		{"reports the path of what it created and the Stat of what it set", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			c.create("dir/before", "", backend.Persistent)
			r := c.commit(
				backend.Create(dir+"/n-", nil, backend.EphemeralSequential),
				backend.SetData(dir, nil, backend.AnyVersion),
				backend.Create(dir+"/after", nil, backend.Persistent),
				backend.Check(dir, 1))
			node, parent := c.stat(r[0].Path, nil), r[1].Stat
			if parent.Mzxid != node.Czxid {
				s.Fatalf("Mzxid %d of the set is not Czxid %d of the node created with it", parent.Mzxid, node.Czxid)
			}
			if parent.NumChildren != 2 || parent.Version != 1 || parent.AsOf != node.Czxid {
				s.Fatalf("the Stat of the set is %+v; want 2 children, version 1 and the position of this commit", parent)
			}
			if (parent.Cversion != 0 && parent.Cversion != 2*2-2) || parent.Pzxid != 0 && parent.Pzxid != node.Czxid {
				s.Fatalf("the Stat of the set is %+v; want cversion 2 and the pzxid of this commit, or zero", parent)
			}
			if r[2].Path != dir+"/after" {
				s.Fatalf("the path of the second create is %q", r[2].Path)
			}
			if now := c.stat(dir, nil); now.NumChildren != 3 || now.Mzxid != parent.Mzxid || now.Czxid != parent.Czxid {
				s.Fatalf("after the commit the parent has %+v, in its result it had %+v", now, parent)
			}
		}},
		{"tells the czxid and the siblings of what it created if it also sets the parent", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			for i := range int32(3) {
				results := c.commit(
					backend.Create(dir+"/n-", nil, backend.EphemeralSequential),
					backend.Create(fmt.Sprint(dir, "/m", i), nil, backend.Persistent),
					backend.SetData(dir, nil, backend.AnyVersion))
				for j, r := range results[:2] {
					if stat := c.stat(r.Path, nil); r.Czxid != stat.Czxid || r.Czxid != results[2].Stat.Mzxid || r.Siblings != 2*(i+1) {
						s.Fatalf("creation %d of commit %d told %+v, its Stat is %+v", j, i, r, stat)
					}
				}
			}
			results := c.commit(backend.Delete(dir+"/m0", 0), backend.Create(dir+"/m0", nil, backend.Persistent), backend.SetData(dir, nil, backend.AnyVersion))
			if r := results[1]; r.Siblings != 6 || r.Czxid != results[2].Stat.Mzxid {
				s.Fatalf("a node that replaced another told %+v", r)
			}
			// Without a SetData of the parent a service may tell nothing, but nothing wrong.
			// If it does not tell the siblings, its numbers count what the parent was given.
			r := c.commit(backend.Create(dir+"/alone", nil, backend.Persistent))[0]
			if stat := c.stat(r.Path, nil); r.Czxid != 0 && r.Czxid != stat.Czxid || r.Siblings != 0 && r.Siblings != 7 {
				s.Fatalf("a creation alone told %+v, its Stat is %+v", r, stat)
			}
			other := c.create("other", "", backend.Persistent)
			for given := range int32(3) {
				r := c.commit(backend.Create(other+"/n-", nil, backend.EphemeralSequential), backend.Create(other+"/m-", nil, backend.PersistentSequential))
				for i, prefix := range []string{other + "/n-", other + "/m-"} {
					switch n := number(s, r[i].Path, prefix); {
					case r[i].Siblings != 0 && r[i].Siblings != 2*given+2:
						s.Fatalf("a creation told %+v, the parent has %d children", r[i], 2*given+2)
					case r[i].Siblings == 0 && n != int(2*given)+i:
						s.Fatalf("creation %d was given %s, and told no siblings", int(2*given)+i, r[i].Path)
					}
				}
			}
		}},
		{"tells the same beside data that the parent carries, and keeps or replaces other data", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "mark", backend.Persistent)
			carry := backend.Carry(dir, []byte("mark"))
			join := backend.Create(dir+"/n-", nil, backend.EphemeralSequential)
			for i := range int32(3) {
				results := c.commit(join, carry)
				stat, parent := c.stat(results[0].Path, nil), results[1].Stat
				if results[0].Czxid != stat.Czxid || results[0].Siblings != i+1 {
					s.Fatalf("creation %d told %+v, its Stat is %+v", i, results[0], stat)
				}
				if now := c.stat(dir, nil); parent.NumChildren != i+1 || parent.Version != now.Version || parent.Czxid != now.Czxid || parent.Mzxid != now.Mzxid {
					s.Fatalf("the parent has %+v, the result told %+v", now, parent)
				}
			}
			if r := c.commit(carry)[0]; r.Stat.NumChildren != 3 || r.Stat.DataLength != 4 {
				s.Fatalf("alone it told %+v", r)
			}
			if data, _ := c.get(dir, nil); data != "mark" {
				s.Fatalf("the node has %q", data)
			}
			_, err := c.Commit(s.ctx, join, backend.Carry(s.path("missing"), nil))
			s.refused(err, backend.ErrNotFound, "carry", s.path("missing"), 1)
			c.set(dir, "other")
			if _, err := c.Commit(s.ctx, join, carry); err != nil {
				s.refused(err, backend.ErrBadVersion, "carry", dir, 1)
				if data, stat := c.get(dir, nil); data != "other" || stat.NumChildren != 3 {
					s.Fatalf("a refused commit left %q and %d children", data, stat.NumChildren)
				}
			} else if data, stat := c.get(dir, nil); data != "mark" || stat.NumChildren != 4 {
				s.Fatalf("the node has %q and %d children", data, stat.NumChildren)
			}
		}},
		{"reports the same Stat for a set of its own", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			c.create("dir/n", "", backend.Persistent)
			if r, now := c.set(dir, "value"), c.stat(dir, nil); state(r) != state(now) || r.AsOf != r.Mzxid {
				s.Fatalf("the set returned %+v, the node has %+v", r, now)
			}
		}},
		{"applies nothing when one operation is refused, and says which", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "v", backend.Persistent)
			dir := c.create("dir", "", backend.Persistent)
			c.create("dir/child", "", backend.Persistent)
			e := c.create("e", "", backend.Ephemeral)
			good := []backend.Op{
				backend.Create(s.path("new"), nil, backend.Persistent),
				backend.SetData(p, []byte("changed"), 0),
				backend.Create(dir+"/n-", nil, backend.EphemeralSequential),
				backend.Delete(e, backend.AnyVersion),
			}
			bad := []struct {
				op  backend.Op
				err error
			}{
				{backend.Create(dir, nil, backend.Persistent), backend.ErrExists},
				{backend.Create(s.path("missing/n-"), nil, backend.PersistentSequential), backend.ErrNotFound},
				{backend.SetData(dir, nil, 7), backend.ErrBadVersion},
				{backend.SetData(s.path("missing"), nil, 0), backend.ErrNotFound},
				{backend.Delete(dir, 0), backend.ErrNotEmpty},
				{backend.Delete(s.path("missing"), 0), backend.ErrNotFound},
				{backend.Check(dir, 7), backend.ErrBadVersion},
				{backend.Check(s.path("missing"), backend.AnyVersion), backend.ErrNotFound},
			}
			before := c.picture(s.svc.Root(), p, dir, e)
			w := backend.NewWatch()
			c.get(p, w)
			for _, b := range bad {
				for at := range len(good) + 1 {
					var ops []backend.Op
					ops = append(ops, good[:at]...)
					ops = append(ops, b.op)
					ops = append(ops, good[at:]...)
					results, err := c.Commit(s.ctx, ops...)
					s.refused(err, b.err, b.op.Kind.String(), b.op.Path, at)
					if results != nil {
						s.Fatalf("a refused commit returned results %+v", results)
					}
					if after := c.picture(s.svc.Root(), p, dir, e); after != before {
						s.Fatalf("refused at %d (%v), the commit changed\n%s\nto\n%s", at, err, before, after)
					}
				}
			}
			c.silent(w, "refused commits")
			// The same operations are applied when none is refused.
			c.commit(good...)
		}},
		{"blames the first operation that fails", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "", backend.Persistent)
			_, err := c.Commit(s.ctx,
				backend.Check(p, 0),
				backend.SetData(p, nil, 9),
				backend.Delete(s.path("missing"), 0),
				backend.Create(p, nil, backend.Persistent))
			s.refused(err, backend.ErrBadVersion, "set", p, 1)
		}},
		{"lets an operation see those before it", func(s *scene) {
			c := s.open("a")
			p, q := s.path("n"), s.path("n/child")
			r := c.commit(
				backend.Create(p, []byte("0"), backend.Persistent),
				backend.Create(q, nil, backend.Ephemeral),
				backend.SetData(p, []byte("1"), 0),
				backend.Check(p, 1),
				backend.SetData(p, []byte("2"), 1),
				backend.Delete(q, 0),
				backend.Delete(p, 2))
			if r[2].Stat.Version != 1 || r[4].Stat.Version != 2 || r[2].Stat.NumChildren != 1 {
				s.Fatalf("the sets report %+v and %+v", r[2].Stat, r[4].Stat)
			}
			if c.there(p, nil) || c.there(q, nil) {
				s.Fatal("a node that was deleted in its own commit exists")
			}
			_, err := c.Commit(s.ctx,
				backend.Create(p, nil, backend.Persistent),
				backend.Create(q, nil, backend.Persistent),
				backend.Delete(p, 0))
			s.refused(err, backend.ErrNotEmpty, "delete", p, 2)
		}},
		{"replaces a node by another one of the same path", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "old", backend.Persistent)
			c.set(p, "older")
			before := c.stat(p, nil)
			c.commit(backend.Delete(p, 1), backend.Create(p, []byte("new"), backend.Ephemeral))
			data, stat := c.get(p, nil)
			if data != "new" || stat.Czxid <= before.Mzxid || stat.Version != 0 || stat.EphemeralOwner != c.ID() {
				s.Fatalf("the new node holds %q with %+v", data, stat)
			}
			_, err := c.Commit(s.ctx, backend.Create(p, nil, backend.Persistent), backend.Delete(p, 0))
			s.refused(err, backend.ErrExists, "create", p, 0)
		}},
		{"can consist of checks only", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "", backend.Persistent)
			before := c.picture(p, s.svc.Root())
			for _, r := range c.commit(backend.Check(p, 0), backend.Check(p, 0), backend.Check(s.svc.Root(), backend.AnyVersion)) {
				if r != (backend.Result{}) {
					s.Fatalf("a check reports %+v", r)
				}
			}
			_, err := c.Commit(s.ctx, backend.Check(p, 0), backend.Check(p, 1))
			s.refused(err, backend.ErrBadVersion, "check", p, 1)
			if after := c.picture(p, s.svc.Root()); after != before {
				s.Fatalf("checks changed\n%s\nto\n%s", before, after)
			}
		}},
		{"can require that a node is absent", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "v", backend.Persistent)
			e := c.create("e", "", backend.Ephemeral)
			free, missing := s.path("free"), s.path("missing")
			set := backend.SetData(n, []byte("w"), backend.AnyVersion)
			before := c.picture(n, e)
			for _, test := range []struct {
				path string
				err  error
			}{{n, backend.ErrExists}, {missing + "/x", backend.ErrNotFound}, {e + "/x", backend.ErrNoChildren}} {
				absent := backend.Absent(test.path)
				_, err := c.Commit(s.ctx, absent)
				s.refused(err, test.err, "absent", test.path, 0)
				_, err = c.Commit(s.ctx, set, backend.Absent(free), absent, backend.Check(missing, 0))
				s.refused(err, test.err, "absent", test.path, 2)
			}
			_, err := c.Commit(s.ctx, backend.Absent(free), set, backend.Absent(free), backend.Check(n, 0))
			s.refused(err, backend.ErrBadVersion, "check", n, 3)
			_, err = c.Commit(s.ctx, backend.Create(free, nil, backend.Persistent), backend.Absent(free))
			s.refused(err, backend.ErrExists, "absent", free, 1)
			if after := c.picture(n, e); after != before || c.there(free, nil) {
				s.Fatalf("refused commits changed\n%s\nto\n%s", before, after)
			}
			c.commit(backend.Absent(free))
			if results := c.commit(backend.Absent(free), set, backend.Absent(missing)); results[1].Stat.Version != 1 || results[0].Path != "" {
				s.Fatalf("results %+v", results)
			}
			if o.sync(); o.there(free, nil) || o.there(missing, nil) {
				s.Fatal("a node that was required to be absent exists")
			}
			results := c.commit(backend.Absent(free), backend.Create(free, []byte("v"), backend.Ephemeral), backend.Delete(n, 1), backend.Absent(n))
			if results[1].Path != free || !c.there(free, nil) || c.there(n, nil) {
				s.Fatalf("results %+v", results)
			}
		}},
		{"is never partly visible to other sessions", func(s *scene) {
			writer, reader := s.open("a"), s.open("b")
			p, q := writer.create("p", "0", backend.Persistent), writer.create("q", "0", backend.Persistent)
			reader.sync()
			s.delay(writer.link) // gives a partial commit time to become visible
			s.delay(reader.link)
			const rounds = 50
			done := make(chan error, 1)
			go func() {
				for i := range rounds {
					v := fmt.Appendf(nil, "%d", i+1)
					if _, err := writer.Commit(s.ctx, backend.SetData(p, v, int32(i)), backend.SetData(q, v, int32(i))); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for {
				// q is read after p: its version must be at least that of p.
				_, first := reader.get(p, nil)
				_, second := reader.get(q, nil)
				if second.Version < first.Version {
					s.Fatalf("q has version %d after p was seen with version %d of the same commit", second.Version, first.Version)
				}
				_, err := reader.Commit(s.ctx, backend.Check(p, second.Version), backend.Check(q, second.Version))
				if err != nil && !errors.Is(err, backend.ErrBadVersion) {
					s.Fatal(err)
				}
				select {
				case err := <-done:
					if err != nil {
						s.Fatal(err)
					}
					if stat := writer.stat(q, nil); stat.Version != rounds {
						s.Fatalf("version %d after %d commits", stat.Version, rounds)
					}
					return
				default:
				}
			}
		}},
	}
}

// picture shows the data, the children and the Stats of some nodes.
func (c *client) picture(paths ...string) string {
	c.s.Helper()
	var b bytes.Buffer
	for _, p := range paths {
		data, stat := c.get(p, nil)
		names, _ := c.children(p, nil)
		fmt.Fprintf(&b, "%s %q %v %+v\n", p, data, names, state(stat))
	}
	return b.String()
}
