package backendtest

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
)

func limitLeaves() []leaf {
	return []leaf{
		{"allow a request that just fits", func(s *scene) {
			c := s.open("a")
			p := s.path("n")
			n := fitting(p)
			c.commit(backend.Create(p, make([]byte, n), backend.Persistent))
			if data, stat := c.get(p, nil); len(data) != n || int(stat.DataLength) != n {
				s.Fatalf("%d bytes came back, the Stat has %d, want %d", len(data), stat.DataLength, n)
			}
			c.commit(backend.SetData(p, make([]byte, n), 0))
			if stat := c.stat(p, nil); int(stat.DataLength) != n || stat.Version != 1 {
				s.Fatalf("got %+v", stat)
			}
		}},
		{"refuse one byte more, and the session goes on", func(s *scene) {
			c := s.open("a")
			p, q := s.path("n"), s.path("q")
			tooMuch := make([]byte, fitting(p)+1)
			_, err := c.Commit(s.ctx, backend.Create(p, tooMuch, backend.Persistent))
			s.refused(err, backend.ErrTooLarge, "create", p, 0)
			_, err = c.Commit(s.ctx, backend.SetData(p, tooMuch, 0))
			s.refused(err, backend.ErrTooLarge, "set", p, 0)
			half := tooMuch[:len(tooMuch)/2]
			_, err = c.Commit(s.ctx,
				backend.Create(q, nil, backend.Persistent),
				backend.Create(p, half, backend.Persistent),
				backend.SetData(p, half, 0),
				backend.Delete(q, 0))
			s.refused(err, backend.ErrTooLarge, "set", p, 2)
			if c.there(p, nil) || c.there(q, nil) || c.Err() != nil {
				s.Fatalf("a refused commit changed the tree; Err is %v", c.Err())
			}
		}},
		{"let many operations be one commit", func(s *scene) {
			c := s.open("a")
			n := 600
			if most := c.Limits().Ops; most > 0 {
				n = min(n, most)
			}
			var ops []backend.Op
			for range n {
				ops = append(ops, backend.Create(s.path("n-"), []byte("0123456789"), backend.PersistentSequential))
			}
			seen := make(map[string]bool)
			for _, r := range c.commit(ops...) {
				seen[r.Path] = true
			}
			if names, _ := c.children(s.svc.Root(), nil); len(names) != n || len(seen) != n {
				s.Fatalf("%d children and %d paths, want %d", len(names), len(seen), n)
			}
		}},
		{"are those that the session tells", func(s *scene) {
			c := s.open("a")
			l := c.Limits()
			if l.Bytes < 1 || l.Bytes > backend.MaxRequest || l.Ops < 0 || l.Checks < 0 || l.Sequence < math.MaxInt32 {
				s.Fatalf("limits %+v", l)
			}
			n := c.create("n", "", backend.Persistent)
			// One more than the session takes, or than it takes for certain.
			for kind, most := range map[backend.OpKind]int{backend.OpSetData: l.Ops, backend.OpCheck: l.Checks} {
				var ops []backend.Op
				for range min(max(most, 1), 1000) + 1 {
					ops = append(ops, backend.Op{Kind: kind, Path: n, Version: backend.AnyVersion})
				}
				_, err := c.Commit(s.ctx, ops...)
				switch {
				case most > 0:
					s.refused(err, backend.ErrTooLarge, kind.String(), n, most)
				case err != nil:
					s.Fatalf("%d operations without a limit: %v", len(ops), err)
				}
			}
			if c.Limits() != l || c.Err() != nil {
				s.Fatalf("the limits were %+v and are %+v; Err is %v", l, c.Limits(), c.Err())
			}
		}},
		{"refuse invalid arguments", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			before := c.picture(n, s.svc.Root())
			_, err := c.Commit(s.ctx)
			s.refused(err, backend.ErrInvalid, "commit", "", -1)
			for _, op := range []backend.Op{
				backend.Create(s.path("x"), nil, backend.Container+1),
				backend.Create(s.path("x"), nil, -1),
				backend.SetData(n, nil, -2),
				backend.Delete(n, -2),
				backend.Check(n, -1<<31),
				{Kind: 0, Path: n},
				{Kind: 9, Path: n},
			} {
				_, err := c.Commit(s.ctx, op)
				s.refused(err, backend.ErrInvalid, op.Kind.String(), op.Path, 0)
				_, err = c.Commit(s.ctx, backend.SetData(n, nil, 0), backend.Check(n, 1), op)
				s.refused(err, backend.ErrInvalid, op.Kind.String(), op.Path, 2)
			}
			if after := c.picture(n, s.svc.Root()); after != before {
				s.Fatalf("refused commits changed\n%s\nto\n%s", before, after)
			}
		}},
		{"refuse without asking the service", func(s *scene) {
			c := s.open("a")
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			m := pace.Start(s, nil)
			_, _, err := c.Get(s.ctx, "bad", nil)
			s.refused(err, backend.ErrBadPath, "get", "bad", 0)
			s.refused(c.Arm(s.ctx, 0), backend.ErrInvalid, "arm", "", 0)
			_, err = c.Commit(s.ctx, backend.Create("bad", nil, backend.Persistent))
			s.refused(err, backend.ErrBadPath, "create", "bad", 0)
			_, err = c.Commit(s.ctx, backend.Create(s.path("n"), make([]byte, backend.MaxRequest), backend.Persistent))
			s.refused(err, backend.ErrTooLarge, "create", s.path("n"), 0)
			_, err = c.Commit(s.ctx)
			s.refused(err, backend.ErrInvalid, "commit", "", -1)
			s.prompt(m, 0, "refusing")
		}},
	}
}

// fitting returns the number of bytes of data that fit into a commit of one operation.
func fitting(path string) int {
	zeros := make([]byte, backend.MaxRequest)
	lo, hi := 0, len(zeros)
	for lo < hi {
		mid := (lo + hi + 1) / 2
		op := backend.Op{Kind: backend.OpSetData, Path: path, Data: zeros[:mid]}
		if backend.CheckOps([]backend.Op{op}) == nil {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

func pathLeaves() []leaf {
	everywhere := map[string]string{
		"empty": "", "relative": "a", "relative with a slash": "a/b", "trailing slash": "/a/", "empty segment": "/a//b",
		"dot": "/a/.", "dots": "/../a", "NUL": "/a\x00b", "newline": "/a\nb", "delete character": "/a\x7fb", "not UTF-8": "/a\xff",
		"bidirectional": "/a\u202eb", "zero width": "/a\u200bb", "private use": "/a\ue000", "a noncharacter": "/a\ufffe",
	}
	// Some services refuse these paths, and tell so.
	somewhere := map[string]string{
		"beyond the basic plane": "/a\U0001f600", "a special": "/a\ufffd", "the service's own": "/zookeeper", "below the service's own": "/zookeeper/quota",
	}
	// refused returns the bad paths on the service.
	refused := func(c *client) map[string]string {
		bad := maps.Clone(everywhere)
		for name, p := range somewhere {
			if c.CheckPath(p) != nil {
				bad[name] = p
			}
		}
		return bad
	}
	return []leaf{
		{"that are bad are refused by every call", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			for name, p := range refused(c) {
				w := backend.NewWatch()
				s.refused(c.CheckPath(p), backend.ErrBadPath, "check", p, 0)
				_, _, err := c.Get(s.ctx, p, w)
				s.refused(err, backend.ErrBadPath, "get", p, 0)
				_, err = c.Exists(s.ctx, p, w)
				s.refused(err, backend.ErrBadPath, "exists", p, 0)
				_, _, err = c.Children(s.ctx, p, w)
				s.refused(err, backend.ErrBadPath, "children", p, 0)
				err = c.Arm(s.ctx, 0, backend.Target{Path: p, Watch: w})
				s.refused(err, backend.ErrBadPath, "arm", p, 0)
				s.refused(c.Sync(s.ctx, p), backend.ErrBadPath, "sync", p, 0)
				for _, op := range []backend.Op{
					backend.Create(p, nil, backend.EphemeralSequential),
					backend.SetData(p, nil, 0),
					backend.Delete(p, backend.AnyVersion),
					backend.Check(p, backend.AnyVersion),
				} {
					_, err := c.Commit(s.ctx, op)
					s.refused(err, backend.ErrBadPath, op.Kind.String(), p, 0)
					_, err = c.Commit(s.ctx, backend.SetData(n, nil, backend.AnyVersion), op)
					s.refused(err, backend.ErrBadPath, op.Kind.String(), p, 1)
				}
				if hasFired(w) {
					s.Fatalf("%s: the watch of a refused read has fired", name)
				}
			}
			if stat := c.stat(n, nil); stat.Version != 0 {
				s.Fatalf("refused commits changed %+v", stat)
			}
		}},
		{"may hold every other character", func(s *scene) {
			c := s.open("a")
			names := []string{"ä", "日本", "a b", " ", "%2F", "a.b", "...", ".a", "-1", "_c_x-lock-0000000001", "\\", "\"'", strings.Repeat("x", 500)}
			for _, name := range []string{"\U0001f600", "\ufffd", "zookeeper"} {
				if c.CheckPath(s.path(name)) == nil {
					names = append(names, name)
				}
			}
			for _, name := range names {
				p := c.create(name, name, backend.Persistent)
				if data, _ := c.get(p, nil); data != name {
					s.Fatalf("%q holds %q", name, data)
				}
			}
			got, _ := c.children(s.svc.Root(), nil)
			if len(got) != len(names) {
				s.Fatalf("children %q, want %q", got, names)
			}
			for _, name := range got {
				c.remove(s.path(name))
			}
		}},
		{"may be deep", func(s *scene) {
			c := s.open("a")
			var ops []backend.Op
			p := s.path("d")
			for range 60 {
				ops = append(ops, backend.Create(p, nil, backend.Persistent))
				p += "/d"
			}
			c.commit(ops...)
			if !c.there(ops[59].Path, nil) || c.there(p, nil) {
				s.Fatal("the tree is not as deep as it was made")
			}
		}},
		{"begin at the root, which can be read and neither created nor deleted", func(s *scene) {
			c := s.open("a")
			if _, stat := c.get("/", nil); stat.EphemeralOwner != 0 {
				s.Fatalf("the root has %+v", stat)
			}
			stat := c.stat("/", nil)
			names, again := c.children("/", nil)
			if again.Czxid != stat.Czxid {
				s.Fatalf("the root has %+v and %+v", stat, again)
			}
			if first, _, _ := strings.Cut(s.svc.Root()[1:], "/"); first != "" && !slices.Contains(names, first) {
				s.Fatalf("children of the root %v, want %s among them", names, first)
			}
			c.commit(backend.Check("/", backend.AnyVersion))
			if err := c.Sync(s.ctx, "/"); err != nil {
				s.Fatal(err)
			}
			for _, mode := range []backend.CreateMode{backend.Persistent, backend.PersistentSequential, backend.Container} {
				_, err := c.Commit(s.ctx, backend.Create("/", nil, mode))
				s.refused(err, backend.ErrBadPath, "create", "/", 0)
			}
			_, err := c.Commit(s.ctx, backend.Delete("/", backend.AnyVersion))
			s.refused(err, backend.ErrBadPath, "delete", "/", 0)
			_, err = c.Commit(s.ctx, backend.Absent("/"))
			s.refused(err, backend.ErrBadPath, "absent", "/", 0)
			_, err = c.Commit(s.ctx, backend.Check("/", backend.AnyVersion), backend.Delete("/", 0))
			s.refused(err, backend.ErrBadPath, "delete", "/", 1)
		}},
		{"of a prefix do not mix", func(s *scene) {
			c := s.open("a")
			c.create("job", "1", backend.Persistent)
			c.create("jobs", "2", backend.Persistent)
			c.create("jobs/a", "3", backend.Persistent)
			w := backend.NewWatch()
			if names, _ := c.children(s.path("job"), w); len(names) != 0 {
				s.Fatalf("children %v, want none", names)
			}
			c.remove(s.path("jobs/a"))
			c.remove(s.path("jobs"))
			c.silent(w, "only a node changed whose name has this name as a prefix")
			c.remove(s.path("job"))
			s.fires(w, backend.Deleted)
		}},
		{"are named in the error as they were given", func(s *scene) {
			c := s.open("a")
			for i := range 3 {
				p := s.path(fmt.Sprint("missing", i))
				_, _, err := c.Get(s.ctx, p, nil)
				if !errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), p) {
					s.Fatalf("error %q, want one that names %s", err, p)
				}
			}
		}},
	}
}
