package backendtest

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

func createLeaves() []leaf {
	return []leaf{
		{"makes a persistent node that every session sees and that outlives its session", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "v", backend.Persistent)
			if p != s.path("n") {
				s.Fatalf("the result has path %q, want %q", p, s.path("n"))
			}
			other := s.open("b")
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			other.sync()
			data, stat := other.get(p, nil)
			if data != "v" || stat.EphemeralOwner != 0 {
				s.Fatalf("another session reads %q, owner %d; want %q of no owner", data, stat.EphemeralOwner, "v")
			}
		}},
		{"makes an ephemeral node owned by the session", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "v", backend.Ephemeral)
			if p != s.path("n") {
				s.Fatalf("the result has path %q, want %q", p, s.path("n"))
			}
			if stat := c.stat(p, nil); stat.EphemeralOwner != c.ID() {
				s.Fatalf("owner is %d, want the session %d", stat.EphemeralOwner, c.ID())
			}
		}},
		{"makes a sequential node and returns its path with the number", func(s *scene) {
			c := s.open("a")
			for _, mode := range []backend.CreateMode{backend.PersistentSequential, backend.EphemeralSequential} {
				p := c.create("n-", "v", mode)
				number(s, p, s.path("n-"))
				data, stat := c.get(p, nil)
				if data != "v" {
					s.Fatalf("the node holds %q, want v", data)
				}
				if owned := stat.EphemeralOwner == c.ID(); owned != mode.Ephemeral() {
					s.Fatalf("mode %d: owner is %d, the session is %d", mode, stat.EphemeralOwner, c.ID())
				}
			}
		}},
		{"makes a container where the service supports it, and fails with ErrUnsupported elsewhere", func(s *scene) {
			c := s.open("a")
			op := backend.Create(s.path("box"), []byte("v"), backend.Container)
			if !c.Features().Has(backend.Containers) {
				_, err := c.Commit(s.ctx, op)
				s.refused(err, backend.ErrUnsupported, "create", op.Path, 0)
				return
			}
			if p := c.commit(op)[0].Path; p != op.Path {
				s.Fatalf("the result has path %q, want %q", p, op.Path)
			}
			child := s.path("box/child")
			s.filled(c.inside("box", "v", func() error { return c.try(backend.Create(child, nil, backend.Ephemeral)) }))
			data, stat := c.get(op.Path, nil)
			if data != "v" || stat.EphemeralOwner != 0 {
				s.Fatalf("the container holds %q and has owner %d", data, stat.EphemeralOwner)
			}
			c.remove(child)
			_, err := c.Commit(s.ctx, op)
			if err != nil { // else the service has already removed it
				s.refused(err, backend.ErrExists, "create", op.Path, 0)
			}
		}},
		{"makes a container that goes with its last child, with its data, and with the event of a deletion", func(s *scene) {
			c := s.open("a")
			if !s.soon || !c.Features().Has(backend.Containers) {
				return
			}
			child := s.path("box/inner/child")
			s.filled(c.inside("box", "v", func() error {
				return c.inside("box/inner", "", func() error { return c.try(backend.Create(child, nil, backend.Persistent)) })
			}))
			c.set(s.path("box"), "written since")
			outer, inner, children := backend.NewWatch(), backend.NewWatch(), backend.NewWatch()
			c.get(s.path("box"), outer)
			c.stat(s.path("box/inner"), inner)
			c.children(s.path("box/inner"), children)
			last := c.commit(backend.Delete(child, backend.AnyVersion), backend.Create(s.path("n"), nil, backend.Persistent))[1].Czxid
			s.fires(children, backend.LookAgain)
			s.fires(inner, backend.Deleted)
			s.fires(outer, backend.Deleted)
			if c.there(s.path("box"), nil) {
				s.Fatal("the container is there after the event of its deletion")
			}
			if now := c.commit(backend.Create(s.path("box"), nil, backend.Persistent))[0].Czxid; now != 0 && last != 0 && now < last+3 {
				s.Fatalf("the containers went without commits of their own: zxid %d after %d", now, last)
			}
		}},
		{"makes a container that stays while it has a child, of whatever kind", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			if !s.soon || !c.Features().Has(backend.Containers) {
				return
			}
			first, child := s.path("persistent/first"), s.path("used/child")
			s.filled(c.inside("persistent", "v", func() error {
				if err := c.try(backend.Create(first, nil, backend.Persistent)); err != nil {
					return err
				}
				c.remove(first) // it was empty once
				return c.try(backend.Create(s.path("persistent/pin"), nil, backend.Persistent))
			}))
			s.filled(c.inside("ephemeral", "v", func() error { return o.try(backend.Create(s.path("ephemeral/pin"), nil, backend.Ephemeral)) }))
			s.filled(c.inside("container", "v", func() error { return c.try(backend.Create(s.path("container/inner"), nil, backend.Container)) })) // never used
			s.filled(c.inside("used", "v", func() error { return c.try(backend.Create(child, nil, backend.Persistent)) }))
			c.remove(child)
			c.gone(s.path("used"))
			for _, name := range []string{"persistent", "ephemeral"} {
				if data, _ := c.get(s.path(name), nil); data != "v" {
					s.Fatalf("the container %s with a child holds %q", name, data)
				}
			}
		}},
		{"tells of no other node that it is a container", func(s *scene) {
			c := s.open("a")
			for _, mode := range []backend.CreateMode{backend.Persistent, backend.Ephemeral, backend.PersistentSequential, backend.EphemeralSequential} {
				p := c.create("n-"+strconv.Itoa(int(mode)), "v", mode)
				_, read := c.get(p, nil)
				_, listed := c.children(p, nil)
				if read.Container || listed.Container || c.stat(p, nil).Container || c.set(p, "w").Container {
					s.Fatalf("a node of mode %d counts as a container", mode)
				}
			}
		}},
		{"makes a container alone only", func(s *scene) {
			c := s.open("a")
			_, err := c.Commit(s.ctx,
				backend.Create(s.path("n"), nil, backend.Persistent),
				backend.Create(s.path("box"), nil, backend.Container))
			s.refused(err, backend.ErrUnsupported, "create", s.path("box"), 1)
			if c.there(s.path("n"), nil) {
				s.Fatal("the refused commit created a node")
			}
		}},
		{"refuses a path that is taken", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "old", backend.Persistent)
			for _, mode := range []backend.CreateMode{backend.Persistent, backend.Ephemeral} {
				_, err := c.Commit(s.ctx, backend.Create(p, []byte("new"), mode))
				s.refused(err, backend.ErrExists, "create", p, 0)
			}
			if data, _ := c.get(p, nil); data != "old" {
				s.Fatalf("a refused create left %q, want old", data)
			}
		}},
		{"refuses a node whose parent is missing", func(s *scene) {
			c := s.open("a")
			for _, mode := range []backend.CreateMode{backend.Persistent, backend.Ephemeral,
				backend.PersistentSequential, backend.EphemeralSequential} {
				p := s.path("missing/n")
				_, err := c.Commit(s.ctx, backend.Create(p, nil, mode))
				s.refused(err, backend.ErrNotFound, "create", p, 0)
			}
			if c.there(s.path("missing"), nil) {
				s.Fatal("a refused create made the parent")
			}
		}},
		{"makes a node again where one was deleted, with a new creation id and version zero", func(s *scene) {
			c := s.open("a")
			p := c.create("n", "1", backend.Persistent)
			c.set(p, "2")
			before := c.stat(p, nil)
			c.remove(p)
			c.create("n", "3", backend.Persistent)
			data, after := c.get(p, nil)
			if data != "3" || after.Version != 0 || after.Czxid <= before.Mzxid {
				s.Fatalf("the new node holds %q with %+v, the old one had %+v", data, after, before)
			}
		}},
		{"gives one creation to one of many sessions", func(s *scene) {
			const n = 6
			errs := make(chan error, n)
			for i := range n {
				c := s.open(fmt.Sprint(i))
				go func() {
					_, err := c.Commit(s.ctx, backend.Create(s.path("n"), nil, backend.Persistent))
					errs <- err
				}()
			}
			won := 0
			for range n {
				if err := <-errs; err == nil {
					won++
				} else {
					s.refused(err, backend.ErrExists, "create", s.path("n"), 0)
				}
			}
			if won != 1 {
				s.Fatalf("%d creates of one path succeeded", won)
			}
		}},
	}
}

func sequenceLeaves() []leaf {
	return []leaf{
		{"has at least ten digits, with leading zeros", func(s *scene) {
			c := s.open("a")
			p := c.create("n-", "", backend.PersistentSequential)
			number(s, p, s.path("n-"))
		}},
		{"grows with each child of the parent, whatever its name and mode", func(s *scene) {
			c, d := s.open("a"), s.open("b")
			dir := c.create("dir", "", backend.Persistent)
			last, creates := -1, 0
			for i := range 5 {
				for j, mode := range []backend.CreateMode{backend.PersistentSequential, backend.EphemeralSequential} {
					prefix := fmt.Sprintf("%s-%d-%d-", "dir/x", i, j)
					p := d.create(prefix, "", mode)
					n := number(s, p, s.path(prefix))
					if n <= last {
						s.Fatalf("number %d after %d, %d children were created before", n, last, creates)
					}
					last = n
					creates++
				}
				c.create(fmt.Sprintf("dir/plain-%d", i), "", backend.Persistent)
				creates++
			}
			names, _ := c.children(dir, nil)
			if len(names) != creates {
				s.Fatalf("%d children, want %d", len(names), creates)
			}
		}},
		{"does not use the number of a deleted child again", func(s *scene) {
			c := s.open("a")
			last := -1
			for range 5 {
				p := c.create("n-", "", backend.EphemeralSequential)
				n := number(s, p, s.path("n-"))
				if n <= last {
					s.Fatalf("number %d after %d", n, last)
				}
				last = n
				c.remove(p)
			}
		}},
		{"(may) is the parent's own and starts again with a new parent", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			first := number(s, c.create("dir/n-", "", backend.EphemeralSequential), dir+"/n-")
			for range 3 {
				c.create("dir/n-", "", backend.EphemeralSequential)
			}
			other := c.create("other", "", backend.Persistent)
			if n := number(s, c.create("other/n-", "", backend.EphemeralSequential), other+"/n-"); n != first {
				s.Fatalf("the first number under another parent is %d, was %d under the first", n, first)
			}
			names, _ := c.children(dir, nil)
			for _, name := range names {
				c.remove(dir + "/" + name)
			}
			c.commit(backend.Delete(dir, backend.AnyVersion), backend.Create(dir, nil, backend.Persistent))
			if n := number(s, c.create("dir/n-", "", backend.EphemeralSequential), dir+"/n-"); n != first {
				s.Fatalf("the first number under the new parent is %d, was %d under the old one", n, first)
			}
		}},
		{"(may) goes on within one commit", func(s *scene) {
			c := s.open("a")
			results := c.commit(
				backend.Create(s.path("a-"), nil, backend.PersistentSequential),
				backend.Create(s.path("b"), nil, backend.Persistent),
				backend.Create(s.path("c-"), nil, backend.EphemeralSequential))
			first := number(s, results[0].Path, s.path("a-"))
			if n := number(s, results[2].Path, s.path("c-")); n != first+2 {
				s.Fatalf("numbers %d and %d with a child created between, want 2 apart", first, n)
			}
		}},
		{"orders creations: the higher number has the higher creation id", func(s *scene) {
			c, d := s.open("a"), s.open("b")
			type node struct {
				n     int
				czxid int64
			}
			var nodes []node
			for i := range 10 {
				by := []*client{c, d}[i%2]
				p := by.create("n-", "", backend.EphemeralSequential)
				nodes = append(nodes, node{number(s, p, s.path("n-")), by.stat(p, nil).Czxid})
			}
			if !slices.IsSortedFunc(nodes, func(a, b node) int { return int(a.czxid - b.czxid) }) ||
				!slices.IsSortedFunc(nodes, func(a, b node) int { return a.n - b.n }) {
				s.Fatalf("number and creation id disagree: %v", nodes)
			}
		}},
		{"may stand alone as the name", func(s *scene) {
			c := s.open("a")
			dir := c.create("dir", "", backend.Persistent)
			p := c.create("dir/0", "", backend.PersistentSequential)
			if path.Dir(p) != dir {
				s.Fatalf("created %s, want a child of %s", p, dir)
			}
			number(s, p, dir+"/0")
		}},
	}
}

// number returns the sequence number of a path.
func number(s *scene, path, prefix string) int {
	s.Helper()
	digits, ok := strings.CutPrefix(path, prefix)
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || len(digits) < 10 || len(digits) > 10 && digits[0] == '0' || n < 0 {
		s.Fatalf("path %q is not %q followed by a number of at least ten digits", path, prefix)
	}
	return n
}
