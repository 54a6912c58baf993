package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// ownService returns a service on a server that no other test uses, so that its revision grows by the commits
// of the test only.
func ownService(t *testing.T) *service {
	t.Helper()
	srv, err := start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	return newService(t, srv.addr, etcd.Options{})
}

// revision returns the latest revision of the server.
func (s *service) revision(t *testing.T) int64 {
	t.Helper()
	r, err := s.roundTrip(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

// Names that end in ten digits or more, as identifiers and times do, take no more room in a commit than others.
func TestEtcd_ACommitOfNamesOfManyDigitsTakesAsManyOperations(t *testing.T) {
	t.Parallel()
	s := ownService(t)
	l := s.link("a")
	a := open(t, l)
	most := a.Limits().Ops
	near := (s.revision(t) + 10_000) * 128 // revisions that the service can reach soon
	for range 40 {                         // revisions that have been
		commit(t, a, backend.Create("/x-", nil, backend.PersistentSequential))
	}
	for _, c := range []struct{ name, format string }{
		{"nanoseconds", "/d/1795838891907735%03d"},
		{"milliseconds", "/d/1795838891%03d"},
		{"seconds", "/d/17958388%02d"},
		{"with a prefix", "/d/order-1795838891907735%03d"},
		{"many prefixes", "/d/order-%[1]d-1795838891907735%03[1]d"},
		{"twelve digits", "/d/9958388917%02d"},
		{"of revisions that have been", "/d/%010[3]d"},
		{"near", "/d/%010[2]d"},
		{"near, with prefixes", "/d/p%[1]d-%010[2]d"},
		{"each in its directory", "/d%[1]d/1795838891907735%03[1]d"},
		{"near, each in its directory", "/d%[1]d/n-%010[2]d"},
	} {
		for _, n := range []int{1, 8, 43, most} {
			var create, remove []backend.Op
			made := make(map[string]bool)
			for i := range n {
				path, _, _ := strings.Cut(fmt.Sprintf(c.format, i, near+int64(i)*1000, 128*(5+i/2)+i), "%!(EXTRA")
				create = append(create, backend.Create(path, nil, backend.Persistent))
				remove = append(remove, backend.Delete(path, backend.AnyVersion))
				for dir := path[:strings.LastIndexByte(path, '/')]; dir != "" && !made[dir]; dir = dir[:strings.LastIndexByte(dir, '/')] {
					made[dir] = true
					if _, err := a.Commit(t.Context(), backend.Create(dir, nil, backend.Persistent)); err != nil && !errors.Is(err, backend.ErrExists) {
						t.Fatal(err)
					}
				}
			}
			if _, err := a.Commit(t.Context(), create...); err != nil {
				t.Errorf("%s: %d creations (limit %d) such as %s: %v", c.name, n, most, create[0].Path, err)
				break
			}
			commit(t, a, remove...)
		}
	}
}

// A read of a name of many digits asks for nothing more than that of another name.
func TestEtcd_AReadOfANameOfManyDigitsIsTwoOperations(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	commit(t, a, backend.Create("/d/1795838891907735001", nil, backend.Persistent))
	ops := -1
	l.always(func(method string, body []byte) bool {
		var r pb.TxnRequest
		if method == "/etcdserverpb.KV/Txn" && r.Unmarshal(body) == nil {
			ops = len(r.Success)
		}
		return false
	}, func() {})
	for _, path := range []string{"/d/name", "/d/1795838891907735001", "/d/1795838891907735002"} {
		if _, err := a.Exists(t.Context(), path, nil); err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
		if ops != 2 {
			t.Errorf("a read of %s is %d operations", path, ops)
		}
	}
}

// A name that was free when the session looked is that of a sequential node when its commit arrives. The
// commit is refused, however many names of that kind it has.
func TestEtcd_ANameOfManyDigitsThatASequentialNodeGetsMeanwhile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		n      int
		format string // of index and number
	}{
		{"one", 1, "/d0/n-%010[2]d"},
		{"as many as a commit takes", 63, "/d0/n-%010[2]d"},
		{"with many prefixes", 63, "/d0/n-%[1]d-%010[2]d"},
		{"in many directories", 63, "/d%[1]d/n-%010[2]d"},
	} {
		for _, collide := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", c.what, collide), func(t *testing.T) {
				t.Parallel()
				s := ownService(t)
				l := s.link("a")
				a, b := open(t, l), open(t, s.link("b"))
				for i := range c.n {
					commit(t, a, backend.Create(fmt.Sprintf("/d%d", i), nil, backend.Persistent))
				}
				next := s.revision(t) + 1
				at := min(20, c.n/2) // the name that the sequential node gets
				var ops []backend.Op
				for i := range c.n {
					number := (next+int64(max(i-at, at-i)))*128 + min(max(int64(at-i), 0), 1) // of the revisions to come
					path, _, _ := strings.Cut(fmt.Sprintf(c.format, i, number), "%!(EXTRA")
					ops = append(ops, backend.Create(path, nil, backend.Persistent))
				}
				prefix := ops[at].Path[:len(ops[at].Path)-10]
				if !collide {
					prefix += "x-"
				}
				var got string
				l.before(puts, func() { got = commit(t, b, backend.Create(prefix, nil, backend.PersistentSequential))[0].Path })
				_, err := a.Commit(t.Context(), ops...)
				if !collide {
					if err != nil {
						t.Errorf("beside %s: %v", got, err)
					}
					return
				}
				if got != ops[at].Path {
					t.Fatalf("the sequential node is %s, want %s", got, ops[at].Path)
				}
				var e *backend.Error
				if !errors.Is(err, backend.ErrExists) || !errors.As(err, &e) || e.Index != at {
					t.Errorf("the commit beside %s: %v", got, err)
				}
				if _, err := b.Exists(t.Context(), ops[0].Path, nil); c.n > 1 && !errors.Is(err, backend.ErrNotFound) {
					t.Errorf("a part of the commit was applied: %v", err)
				}
			})
		}
	}
}

// The service passes the revisions of a name that no read has looked for. A session that has not heard of that finds the
// sequential node all the same.
func TestEtcd_ASequentialNodeOfARevisionThatTheSessionHasNotSeen(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	for _, n := range []string{"n-", "n-9"} {
		path := commit(t, b, backend.Create("/d/"+n, []byte("x"), backend.PersistentSequential))[0].Path
		w := backend.NewWatch()
		data, _, err := a.Get(t.Context(), path, w)
		if err != nil || string(data) != "x" {
			t.Errorf("%s: %q, %v", path, data, err)
		}
		if _, err := a.Commit(t.Context(), backend.Create(path, nil, backend.Persistent)); !errors.Is(err, backend.ErrExists) {
			t.Errorf("a creation of %s: %v", path, err)
		}
		commit(t, b, backend.Delete(path, backend.AnyVersion))
		<-w.Fired()
		if w.Kind() != backend.Deleted {
			t.Errorf("the watch of %s has kind %v", path, w.Kind())
		}
		path = commit(t, b, backend.Create("/d/"+n, []byte("x"), backend.PersistentSequential))[0].Path
		commit(t, a, backend.SetData(path, []byte("y"), 0))
		path = commit(t, b, backend.Create("/d/"+n, []byte("x"), backend.PersistentSequential))[0].Path
		commit(t, a, backend.Delete(path, 0))
	}
}
