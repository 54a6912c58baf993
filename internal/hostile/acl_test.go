package hostile_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestPermissionsOnARealServer(t *testing.T) {
	t.Parallel()
	newClients := func(t *testing.T) (w *coordtest.World, a, b *coord.Client) {
		w = coordtest.OnServer(t, zookeeper.Options{})
		return w, w.Open("a", nil), w.Open("b", nil)
	}
	t.Run("a directory whose data may not be written works the long way", func(t *testing.T) {
		w, a, b := newClients(t)
		coordtest.WithPermissions(t, w.Path("/l"), zk.PermRead|zk.PermCreate|zk.PermDelete)
		var last int64
		for range 3 {
			for _, c := range []*coord.Client{a, b} {
				h := coordtest.MustLock(t, coord.NewMutex(c, "/l", nil))
				if h.Token() <= last {
					t.Errorf("token %d after %d", h.Token(), last)
				}
				last = h.Token()
				if _, err := coord.NewMutex(a, "/l", nil).TryLock(context.Background()); !errors.Is(err, coord.ErrLocked) {
					t.Errorf("TryLock: %v", err)
				}
				coordtest.MustRelease(t, h)
			}
		}
	})
	t.Run("a contender that may not be read is reported, and no node is left behind it", func(t *testing.T) {
		w, a, b := newClients(t)
		h := coordtest.MustLock(t, coord.NewMutex(a, "/l", nil))
		if _, err := w.Raw().SetACL(h.Path(), zk.WorldACL(zk.PermAdmin|zk.PermWrite), -1); err != nil {
			t.Fatal(err)
		}
		_, err := coord.NewMutex(b, "/l", nil).Lock(context.Background())
		coordtest.WantErr(t, err, coord.ErrDenied)
		w.Eventually("only the holder is left", func() bool { return len(w.Children("/l")) == 1 })
		coordtest.MustRelease(t, h)
	})
	t.Run("a directory in which nothing may be created is reported", func(t *testing.T) {
		w, a, _ := newClients(t)
		coordtest.WithPermissions(t, w.Path("/l"), zk.PermRead)
		_, err := coord.NewMutex(a, "/l", nil).Lock(context.Background())
		coordtest.WantErr(t, err, coord.ErrDenied)
	})
	t.Run("a directory that may not be read is reported, and no node is left in it", func(t *testing.T) {
		w, a, b := newClients(t)
		dir := w.Path("/l")
		coordtest.WithPermissions(t, dir, zk.PermCreate|zk.PermDelete|zk.PermWrite)
		_, err := coord.NewMutex(a, "/l", nil).Lock(context.Background())
		coordtest.WantErr(t, err, coord.ErrDenied)
		_, err = coord.NewMutex(b, "/l", nil).TryLock(context.Background())
		coordtest.WantErr(t, err, coord.ErrDenied)
		observer := w.Session("observer")
		w.Eventually("nothing is left in it", func() bool {
			stat, err := observer.Exists(context.Background(), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			return stat.NumChildren == 0 && stat.Cversion > 0
		})
	})
}

// noWrite grants every client to read, create and delete nodes, but not to write them.
func noWrite() zookeeper.Options {
	return zookeeper.Options{ACL: []zookeeper.ACL{{Scheme: "world", ID: "anyone", Perms: zookeeper.PermRead | zookeeper.PermCreate | zookeeper.PermDelete}}}
}

// asUser returns a backend with the credentials of a user, which owns the nodes that it
// creates.
func asUser(w *coordtest.World, user string, o zookeeper.Options) backend.Backend {
	o.SessionTimeout, o.Digest = coordtest.RealTimeout, user+":secret"
	return zookeeper.New(w.Addrs(user), &o)
}

// wantDenied fails the test unless err says that the node at path does not grant perm.
func wantDenied(t *testing.T, err error, path, perm string) {
	t.Helper()
	coordtest.WantErr(t, err, coord.ErrDenied)
	var e *backend.DeniedError
	if !errors.As(err, &e) || e.Path != path || e.Perm != perm {
		t.Errorf("error %v, want that %s does not grant %s", err, path, perm)
	} else if want := path + " does not grant " + perm; !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want that it says %q", err, want)
	}
}

func TestClientsWithDifferentCredentialsWorkBesideEachOther(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	w := coordtest.OnServer(t, zookeeper.Options{})
	ns := &coord.Options{Namespace: w.Path("/ns")}
	dir := w.Path("/ns/app")
	a, b := coordtest.Open(t, asUser(w, "a", zookeeper.Options{}), ns), coordtest.Open(t, asUser(w, "b", zookeeper.Options{}), ns)
	conn := w.Raw()
	votes := coord.Handler[string]{
		Prepare: func(context.Context, coord.Branch[string]) error { return nil },
		Commit:  func(context.Context, coord.Branch[string]) error { return nil },
		Abort:   func(context.Context, coord.Branch[string]) error { return nil },
	}
	// All recipes, in the same directories. The first client creates those above.
	for _, x := range []struct {
		c    *coord.Client
		name string
	}{{a, "/a"}, {b, "/b"}} {
		c := x.c
		coordtest.MustRelease(t, coordtest.MustLock(t, coord.NewMutex(c, "/app/locks"+x.name, nil)))
		coordtest.MustRelease(t, coordtest.MustLock(t, coord.NewRWMutex(c, "/app/rw"+x.name, nil)))
		coordtest.MustRelease(t, coordtest.MustLock(t, coord.NewSemaphore(c, "/app/sem"+x.name, 2, nil).Locker(2)))
		if _, err := coord.NewCounter(c, "/app/count"+x.name).Add(ctx, 1); err != nil {
			t.Error(err)
		}
		if _, err := coord.NewValue[string](c, "/app/values"+x.name, nil).Set(ctx, "v"); err != nil {
			t.Error(err)
		}
		if err := coord.NewBarrier(c, "/app/barriers"+x.name, nil).Set(ctx); err != nil {
			t.Error(err)
		}
		q := coord.NewQueue[string](c, "/app/queues"+x.name, nil)
		if _, err := q.Put(ctx, "i"); err != nil {
			t.Error(err)
		}
		if _, err := q.Pop(ctx); err != nil {
			t.Error(err)
		}
		m, err := coord.NewGroup[string](c, "/app/groups"+x.name, nil).Join(ctx, "id", "v")
		if err != nil {
			t.Error(err)
		} else if err := m.Leave(); err != nil {
			t.Error(err)
		}
		path := "/app/tx" + x.name
		sctx, stop := context.WithCancel(ctx)
		served := make(chan error, 1)
		go func() { served <- coord.NewParticipant(c, path, "site", votes).Serve(sctx) }()
		w.Eventually("the site is served", func() bool {
			there, _, err := conn.Exists(w.Path("/ns" + path + "/present/site"))
			return err == nil && there
		})
		co := coord.NewCoordinator[string](c, path, nil)
		if d, err := co.Propose(ctx, coord.Proposal[string]{ID: "1", Sites: []string{"site"}, Payload: "p"}); err != nil || !d.Commit {
			t.Errorf("%s: %+v, %v", path, d, err)
		}
		stop()
		coordtest.WantErr(t, <-served, context.Canceled)
	}

	acl := func(path string) string {
		t.Helper()
		list, _, err := conn.GetACL(path)
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, e := range list {
			user, _, _ := strings.Cut(e.ID, ":")
			text = append(text, user+" "+strconv.Itoa(int(e.Perms)))
		}
		slices.Sort(text)
		return strings.Join(text, ", ")
	}
	for _, name := range []string{"", "/locks", "/rw", "/sem", "/values", "/tx"} {
		if got := acl(dir + name); got != "a 31, anyone 5" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := acl(w.Path("/ns/_coord/journal")); got != "a 31, anyone 5" {
		t.Errorf("journal: %s", got)
	}
	for _, user := range []string{"a", "b"} {
		if err := conn.AddAuth("digest", []byte(user+":secret")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			"locks/x", "rw/x", "sem/x", "sem/x/requests", "sem/x/limit", "count/x", "values/x", "barriers/x", "queues/x", "queues/x/items", "groups/x",
			"tx/x", "tx/x/tx", "tx/x/sites", "tx/x/sites/site", "tx/x/serving", "tx/x/serving/site", "tx/x/present",
		} {
			first, rest, _ := strings.Cut(name, "/x")
			if got := acl(dir + "/" + first + "/" + user + rest); got != user+" 31" {
				t.Errorf("%s of %s: %s", name, user, got)
			}
		}
	}

	// A client cannot use the nodes that belong to the other.
	_, err := coord.NewMutex(b, "/app/locks/a", nil).Lock(ctx)
	wantDenied(t, err, dir+"/locks/a", "create")
	_, err = coord.NewMutex(b, "/app/locks/a/inner", nil).Lock(ctx)
	wantDenied(t, err, dir+"/locks/a", "create")
	_, err = coord.NewValue[string](b, "/app/values/a", nil).Set(ctx, "w")
	wantDenied(t, err, dir+"/values/a", "write")
	wantDenied(t, coord.NewBarrier(b, "/app/barriers/b", nil).Remove(ctx), dir+"/barriers", "delete")
	if err := coord.NewBarrier(a, "/app/barriers/a", nil).Remove(ctx); err != nil {
		t.Error(err)
	}
	bs, err := asUser(w, "b", zookeeper.Options{}).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer bs.Close()
	_, err = bs.Commit(ctx, backend.Delete(dir+"/locks/a", backend.AnyVersion))
	wantDenied(t, err, dir+"/locks", "delete")
	_, err = bs.Commit(ctx, backend.Check(dir+"/locks", 0), backend.SetData(dir+"/locks", nil, backend.AnyVersion))
	wantDenied(t, err, dir+"/locks", "write")
}

func TestTheACLOfParentsIsAnOption(t *testing.T) {
	t.Parallel()
	w := coordtest.OnServer(t, zookeeper.Options{})
	o := &coord.Options{Namespace: w.Path("")}
	owner := []zookeeper.ACL{{Scheme: "auth", Perms: zookeeper.PermAll}}
	a, b := coordtest.Open(t, asUser(w, "a", zookeeper.Options{ParentACL: owner}), o), coordtest.Open(t, asUser(w, "b", zookeeper.Options{}), o)
	coordtest.MustRelease(t, coordtest.MustLock(t, coord.NewMutex(a, "/app/a", nil)))
	_, err := coord.NewMutex(b, "/app/b", nil).Lock(context.Background())
	wantDenied(t, err, w.Path("/app"), "create")
}

func TestASemaphoreWhoseNodesMayNotBeWrittenOnARealServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	w := coordtest.OnServer(t, noWrite())
	coordtest.WithPermissions(t, w.Path("/s"), zk.PermAll)
	coordtest.WithPermissions(t, w.Path("/s/requests"), zk.PermAll)
	a, b := coord.NewSemaphore(w.Open("a", nil), "/s", 2, nil), coord.NewSemaphore(w.Open("b", nil), "/s", 2, nil)
	coordtest.MustRelease(t, coordtest.MustLock(t, a.Locker(2)))
	h := coordtest.MustLock(t, a.Locker(2))
	_, err := b.Acquire(ctx, 1)
	coordtest.WantErr(t, err, coord.ErrDenied)
	var e *backend.DeniedError
	if !errors.As(err, &e) || e.Perm != "write" || !strings.HasPrefix(e.Path, w.Path("/s/requests/_c_")) {
		t.Errorf("%v", err)
	}
	if n := len(w.Children("/s/requests")); n != 1 {
		t.Errorf("%d requests", n)
	}
	coordtest.MustRelease(t, h)
	coordtest.MustRelease(t, coordtest.MustLock(t, b.Locker(1)))
}

// In a journal that another user's client has created, a receipt can be created and written, but
// not deleted.
func TestAReceiptThatMayNotBeDeletedGoesWithItsSession(t *testing.T) {
	coordtest.OnMemory(t, func(w *coordtest.World) {
		ctx, cancel := context.WithCancel(context.Background())
		var refused atomic.Int32
		hooks := &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if coordtest.Deletes(c) && strings.HasPrefix(c.Path, "/_coord/journal/") {
					refused.Add(1)
					return backend.ErrDenied
				}
				return nil
			},
			After: func(_ context.Context, c backendtest.Call, err error) error {
				if len(c.Ops) == 2 && err == nil {
					cancel()
					return backend.ErrUncertain
				}
				return err
			},
		}
		c := w.Open("a", hooks)
		_, err := coord.NewValue[string](c, "/v", nil).Set(ctx, "v")
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		time.Sleep(time.Hour)
		if n := refused.Load(); n != 1 {
			w.T.Errorf("%d deletions of the receipt, want one", n)
		}
		if n := len(w.Children("/_coord/journal")); n != 1 {
			w.T.Errorf("%d receipts, want one", n)
		}
		if err := c.Close(); err != nil {
			w.T.Error(err)
		}
		w.Empty("/_coord/journal")
	})
}

// The permissions that suffice, and those that do not, as the manual states them.
func TestPermissionsThatRecipesNeed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	w := coordtest.OnServer(t, noWrite())
	a, b := w.Open("a", nil), w.Open("b", nil)

	for name, locker := range map[string]func(c *coord.Client) coord.Locker{
		"mutex":  func(c *coord.Client) coord.Locker { return coord.NewMutex(c, "/m", nil) },
		"writer": func(c *coord.Client) coord.Locker { return coord.NewRWMutex(c, "/rw", nil) },
		"reader": func(c *coord.Client) coord.Locker { return coord.NewRWMutex(c, "/rw", nil).RLocker() },
	} {
		for range 2 {
			h := coordtest.MustLock(t, locker(a))
			if name != "reader" {
				waiter := w.Waiting(ctx, locker(b))
				coordtest.MustRelease(t, h)
				h = waiter.Hold()
			}
			coordtest.MustRelease(t, h)
		}
	}
	term, err := coord.NewElection(a, "/e", nil).Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := term.Announce(ctx, nil); err != nil {
		t.Error(err)
	}
	wantDenied(t, term.Announce(ctx, nil), strings.Replace(term.Path(), "latch-", "ready-", 1), "write")
	if err := term.Release(); err != nil {
		t.Error(err)
	}
	m, err := coord.NewGroup[string](a, "/g", nil).Join(ctx, "id", "v")
	if err != nil {
		t.Fatal(err)
	}
	if list, err := coord.NewGroup[string](b, "/g", nil).Members(ctx); err != nil || len(list) != 1 {
		t.Errorf("members: %v, %v", list, err)
	}
	coordtest.WantErr(t, m.SetValue(ctx, "w"), coord.ErrDenied)
	if err := m.Leave(); err != nil {
		t.Error(err)
	}
	_, err = coord.NewValue[string](a, "/v", nil).Set(ctx, "v")
	coordtest.WantErr(t, err, coord.ErrDenied)
	_, err = coord.NewQueue[string](a, "/q", nil).Put(ctx, "v")
	coordtest.WantErr(t, err, coord.ErrDenied)
	_, err = coord.NewSemaphore(a, "/s", 1, nil).Acquire(ctx, 1)
	coordtest.WantErr(t, err, coord.ErrDenied)
}
