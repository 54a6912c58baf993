package backendtest

import (
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
)

// A fault is a way to lose one request.
type fault struct {
	name  string
	drop  func(l Link)
	lands bool // the service handles the request
}

func faults() []fault {
	return []fault{
		{"request", Link.DropNextRequest, false},
		{"reply", Link.DropNextReply, true},
	}
}

func faultLeaves() []leaf {
	return []leaf{
		{"do not hurt a read, which is repeated", func(s *scene) {
			c := s.open("a")
			id := c.ID()
			n := c.create("n", "v", backend.Persistent)
			c.create("n/child", "", backend.Ephemeral)
			for _, f := range faults() {
				f.drop(c.link)
				if data, stat := c.get(n, nil); data != "v" || stat.NumChildren != 1 {
					s.Fatalf("get with a lost %s: %q, %+v", f.name, data, stat)
				}
				f.drop(c.link)
				if stat := c.stat(n, nil); stat.DataLength != 1 {
					s.Fatalf("exists with a lost %s: %+v", f.name, stat)
				}
				f.drop(c.link)
				if c.there(s.path("missing"), nil) {
					s.Fatalf("exists with a lost %s found a missing node", f.name)
				}
				f.drop(c.link)
				if names, _ := c.children(n, nil); fmt.Sprint(names) != "[child]" {
					s.Fatalf("children with a lost %s: %v", f.name, names)
				}
				f.drop(c.link)
				c.sync()
			}
			if c.Err() != nil || c.ID() != id {
				s.Fatalf("the session was %d, is %d; Err is %v", id, c.ID(), c.Err())
			}
		}},
		{"do not hurt the watch of a read that is repeated", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			for i, f := range faults() {
				for j, a := range armers() {
					n := o.create(fmt.Sprint("n", i, j), "", backend.Persistent)
					c.sync()
					w := backend.NewWatch()
					f.drop(c.link)
					a.arm(c, n, w)
					o.remove(n)
					s.await(w.Fired(), fmt.Sprintf("the watch of %s with a lost %s", a.name, f.name))
				}
				w := backend.NewWatch()
				f.drop(c.link)
				name := fmt.Sprint("missing", i)
				if c.there(s.path(name), w) {
					s.Fatal("a missing node exists")
				}
				o.create(name, "", backend.Persistent)
				s.fires(w, backend.LookAgain)
			}
		}},
		{"leave a commit uncertain: not applied with its request, applied once with its reply", func(s *scene) {
			c := s.open("a")
			id := c.ID()
			for _, f := range faults() {
				n := c.create("n-"+f.name, "", backend.Persistent)
				commits := [][]backend.Op{
					{backend.Create(n+"/s-", nil, backend.PersistentSequential)},
					{backend.Create(n+"/e-", nil, backend.EphemeralSequential), backend.SetData(n, []byte("v"), backend.AnyVersion)},
					{backend.SetData(n, []byte("v"), backend.AnyVersion)},
					{backend.Create(s.path("x-"+f.name), nil, backend.Ephemeral)},
				}
				for _, ops := range commits {
					f.drop(c.link)
					results, err := c.Commit(s.ctx, ops...)
					var e *backend.Error
					if !errors.Is(err, backend.ErrUncertain) || !errors.As(err, &e) || results != nil {
						s.Fatalf("a commit with a lost %s returned %v, %v", f.name, results, err)
					}
					if len(ops) > 1 && e.Op != "commit" || e.Path != ops[0].Path || e.Index != -1 {
						s.Fatalf("an uncertain commit of %d blames %s %s [%d]", len(ops), e.Op, e.Path, e.Index)
					}
				}
				c.sync()
				names, stat := c.children(n, nil)
				want := 0
				if f.lands {
					want = 2
				}
				if len(names) != want || int(stat.Version) != want {
					s.Fatalf("with a lost %s, children %v and version %d, want %d and %d", f.name, names, stat.Version, want, want)
				}
				if c.there(s.path("x-"+f.name), nil) != f.lands {
					s.Fatalf("with a lost %s, the ephemeral is missing or wrong", f.name)
				}
			}
			if c.Err() != nil || c.ID() != id {
				s.Fatalf("the session was %d, is %d; Err is %v", id, c.ID(), c.Err())
			}
		}},
		{"(may) leave a commit uncertain that the service refused", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			c.link.DropNextReply()
			_, err := c.Commit(s.ctx, backend.Create(n, nil, backend.Persistent))
			if !errors.Is(err, backend.ErrUncertain) || errors.Is(err, backend.ErrExists) {
				s.Fatalf("got %v, want an error that matches ErrUncertain only", err)
			}
		}},
		{"are resolved by Sync and a read", func(s *scene) {
			c := s.open("a")
			for i := range 10 {
				f := faults()[i%2]
				p := s.path(fmt.Sprint("n", i))
				f.drop(c.link)
				_, err := c.Commit(s.ctx, backend.Create(p, nil, backend.Ephemeral))
				if !errors.Is(err, backend.ErrUncertain) {
					s.Fatalf("got %v", err)
				}
				c.sync()
				there := c.there(p, nil)
				if there != f.lands {
					s.Fatalf("lost %s: the node exists after Sync: %v", f.name, there)
				}
				if there && c.stat(p, nil).EphemeralOwner != c.ID() {
					s.Fatal("the node is not owned by the session")
				}
			}
		}},
		{"make no false Deleted", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "", backend.Persistent)
			var ws []*backend.Watch
			for _, a := range armers() {
				w := backend.NewWatch()
				a.arm(c, n, w)
				ws = append(ws, w)
			}
			c.link.DropNextRequest()
			if _, err := c.Commit(s.ctx, backend.Delete(n, 0)); !errors.Is(err, backend.ErrUncertain) {
				s.Fatalf("got %v", err)
			}
			c.sync()
			for _, w := range ws {
				if w.Kind() == backend.Deleted { // LookAgain is right, since contact broke
					s.Fatal("a watch fired with Deleted, and the delete was not applied")
				}
			}
			if o.sync(); !o.there(n, nil) {
				s.Fatal("a delete whose request was lost was applied")
			}
		}},
		{"hide no change from a watch", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			var ws []*backend.Watch
			for _, a := range armers() {
				w := backend.NewWatch()
				a.arm(c, n, w)
				ws = append(ws, w)
			}
			c.link.DropNextReply()
			if _, err := c.Commit(s.ctx, backend.Delete(n, 0)); !errors.Is(err, backend.ErrUncertain) {
				s.Fatalf("got %v", err)
			}
			if c.sync(); c.there(n, nil) {
				s.Fatal("a delete whose reply was lost was not applied")
			}
			for _, w := range ws {
				if w.Kind() == 0 {
					s.Fatal("a read shows the deletion before the watch has fired")
				}
			}
		}},
	}
}
