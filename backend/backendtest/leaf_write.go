package backendtest

import (
	"bytes"
	"fmt"

	"github.com/go-coord/coord/backend"
)

func versionLeaves() []leaf {
	return []leaf{
		{"count the changes of the data", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "0", backend.Persistent)
			for i := range int32(4) {
				if stat := c.set(p, fmt.Sprint(i)); stat.Version != i+1 {
					s.Fatalf("version %d after change %d", stat.Version, i+1)
				}
			}
			if stat := c.stat(p, nil); stat.Version != 4 {
				s.Fatalf("version %d after 4 changes", stat.Version)
			}
		}},
		{"make a set conditional", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "0", backend.Persistent)
			c.commit(backend.SetData(p, []byte("1"), 0))
			for _, v := range []int32{0, 2, 1 << 30} {
				_, err := c.Commit(s.ctx, backend.SetData(p, []byte("no"), v))
				s.refused(err, backend.ErrBadVersion, "set", p, 0)
			}
			data, stat := c.get(p, nil)
			if data != "1" || stat.Version != 1 {
				s.Fatalf("refused sets left %q in version %d, want 1 in version 1", data, stat.Version)
			}
			c.commit(backend.SetData(p, []byte("2"), 1))
		}},
		{"make a delete conditional", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "0", backend.Persistent)
			c.set(p, "1")
			_, err := c.Commit(s.ctx, backend.Delete(p, 0))
			s.refused(err, backend.ErrBadVersion, "delete", p, 0)
			c.commit(backend.Delete(p, 1))
			if c.there(p, nil) {
				s.Fatal("the node still exists")
			}
		}},
		{"are checked by a check, which changes nothing", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "0", backend.Persistent)
			c.set(p, "1")
			before := c.stat(p, nil)
			c.commit(backend.Check(p, 1))
			c.commit(backend.Check(p, backend.AnyVersion))
			c.commit(backend.Check(p, 1), backend.Check(s.svc.Root(), backend.AnyVersion))
			_, err := c.Commit(s.ctx, backend.Check(p, 0))
			s.refused(err, backend.ErrBadVersion, "check", p, 0)
			_, err = c.Commit(s.ctx, backend.Check(s.path("missing"), backend.AnyVersion))
			s.refused(err, backend.ErrNotFound, "check", s.path("missing"), 0)
			if after := c.stat(p, nil); state(after) != state(before) {
				s.Fatalf("a check changed %+v to %+v", before, after)
			}
		}},
		{"do not matter with AnyVersion", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "0", backend.Persistent)
			c.set(p, "1")
			c.commit(backend.SetData(p, []byte("2"), backend.AnyVersion))
			c.commit(backend.Check(p, backend.AnyVersion))
			c.commit(backend.Delete(p, backend.AnyVersion))
		}},
		{"let one of many sessions win a compare and set", func(s *scene) {
			const n = 6
			c := s.open("a")
			p := c.create("n", "", backend.Persistent)
			errs := make(chan error, n)
			for i := range n {
				c := s.open(fmt.Sprint(i))
				go func() {
					_, err := c.Commit(s.ctx, backend.SetData(p, []byte{byte(i)}, 0))
					errs <- err
				}()
			}
			won := 0
			for range n {
				if err := <-errs; err == nil {
					won++
				} else {
					s.refused(err, backend.ErrBadVersion, "set", p, 0)
				}
			}
			if won != 1 {
				s.Fatalf("%d sets of version 0 succeeded", won)
			}
		}},
		{"of a missing node are not found", func(s *scene) {
			c := s.open("a")
			p := s.path("missing")
			_, err := c.Commit(s.ctx, backend.SetData(p, nil, backend.AnyVersion))
			s.refused(err, backend.ErrNotFound, "set", p, 0)
			_, err = c.Commit(s.ctx, backend.Delete(p, 3))
			s.refused(err, backend.ErrNotFound, "delete", p, 0)
			_, _, err = c.Get(s.ctx, p, nil)
			s.refused(err, backend.ErrNotFound, "get", p, 0)
			_, err = c.Exists(s.ctx, p, nil)
			s.refused(err, backend.ErrNotFound, "exists", p, 0)
			_, _, err = c.Children(s.ctx, p, nil)
			s.refused(err, backend.ErrNotFound, "children", p, 0)
		}},
	}
}

func deleteLeaves() []leaf {
	return []leaf{
		{"refuses a node with children", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			child := c.create("dir/child", "", backend.Persistent)
			_, err := c.Commit(s.ctx, backend.Delete(dir, backend.AnyVersion))
			s.refused(err, backend.ErrNotEmpty, "delete", dir, 0)
			_, err = c.Commit(s.ctx, backend.Delete(dir, 0))
			s.refused(err, backend.ErrNotEmpty, "delete", dir, 0)
			c.remove(child)
			c.remove(dir)
			if c.there(dir, nil) || c.there(child, nil) {
				s.Fatal("a deleted node still exists")
			}
		}},
		{"takes the name from the parent's children and no other", func(s *scene) {
			c := s.open("a")
			for _, name := range []string{"a", "ab", "b"} {
				c.create(name, "", backend.Persistent)
			}
			c.create("b/a", "", backend.Persistent)
			c.remove(s.path("a"))
			if names, _ := c.children(s.svc.Root(), nil); fmt.Sprint(names) != "[ab b]" {
				s.Fatalf("children %v, want [ab b]", names)
			}
			if names, _ := c.children(s.path("b"), nil); fmt.Sprint(names) != "[a]" {
				s.Fatalf("children %v, want [a]", names)
			}
		}},
		{"removes an ephemeral of another session too", func(s *scene) {
			c, d := s.open("a"), s.open("b")
			p := c.create("n", "", backend.Ephemeral)
			d.sync()
			d.remove(p)
			if c.sync(); c.there(p, nil) {
				s.Fatal("the node still exists")
			}
		}},
	}
}

func dataLeaves() []leaf {
	return []leaf{
		{"that is empty reads as nil, like absent data", func(s *scene) {
			c := s.open("a")
			c.commit(backend.Create(s.path("nil"), nil, backend.Persistent),
				backend.Create(s.path("empty"), []byte{}, backend.Persistent),
				backend.Create(s.path("emptied"), []byte("v"), backend.Persistent))
			c.commit(backend.SetData(s.path("emptied"), []byte{}, 0))
			c.commit(backend.SetData(s.path("nil"), nil, 0))
			for _, name := range []string{"nil", "empty", "emptied"} {
				data, stat, err := c.Get(s.ctx, s.path(name), nil)
				if err != nil || data != nil || stat.DataLength != 0 {
					s.Fatalf("%s: data %#v, length %d, error %v; want nil, 0, none", name, data, stat.DataLength, err)
				}
			}
		}},
		{"comes back byte for byte", func(s *scene) {
			c := s.open("a")
			every := make([]byte, 256)
			for i := range every {
				every[i] = byte(i)
			}
			for i, data := range [][]byte{every, {0}, []byte("é\n"), bytes.Repeat([]byte("x"), 100_000)} {
				p := c.create(fmt.Sprint("n", i), string(data), backend.Persistent)
				if got, stat := c.get(p, nil); got != string(data) || int(stat.DataLength) != len(data) {
					s.Fatalf("data %d came back changed, %d bytes of %d", i, len(got), len(data))
				}
			}
		}},
		{"is copied on the way in", func(s *scene) {
			c := s.open("a")
			p, q := s.path("n"), s.path("m")
			buf := []byte("right")
			c.commit(backend.Create(p, buf, backend.Persistent), backend.Create(q, buf, backend.Persistent))
			copy(buf, "wrong")
			if data, _ := c.get(p, nil); data != "right" {
				s.Fatalf("a created node holds %q after its buffer was used again", data)
			}
			buf = []byte("RIGHT")
			c.commit(backend.SetData(q, buf, backend.AnyVersion))
			copy(buf, "WRONG")
			if data, _ := c.get(q, nil); data != "RIGHT" {
				s.Fatalf("a node that was set holds %q after its buffer was used again", data)
			}
		}},
		{"is copied on the way out", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "right", backend.Persistent)
			c.create("n/child", "", backend.Persistent)
			for range 2 {
				data, _, err := c.Get(s.ctx, p, nil)
				if err != nil || string(data) != "right" {
					s.Fatalf("got %q, %v", data, err)
				}
				copy(data, "wrong")
				names, _, err := c.Children(s.ctx, p, nil)
				if err != nil || len(names) != 1 || names[0] != "child" {
					s.Fatalf("children %q, %v", names, err)
				}
				names[0] = "wrong"
			}
		}},
		{"and the list of operations belong to the caller again after a commit", func(s *scene) {
			c := s.open("a")
			ops := []backend.Op{
				backend.Create(s.path("n-"), []byte("v"), backend.PersistentSequential),
				backend.Create(s.path("m"), nil, backend.Persistent),
			}
			results := c.commit(ops...)
			if ops[0].Path != s.path("n-") || string(ops[0].Data) != "v" || ops[1].Data != nil {
				s.Fatalf("the commit changed its arguments to %+v", ops)
			}
			ops[0], ops[1] = backend.Delete("/", 0), backend.Op{}
			if data, _ := c.get(results[0].Path, nil); data != "v" {
				s.Fatalf("the node holds %q", data)
			}
		}},
	}
}
