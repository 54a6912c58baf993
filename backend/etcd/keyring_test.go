package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// keysBelow returns the keys of the children of a directory, in order.
func (s *service) keysBelow(t *testing.T, dir string) []string {
	t.Helper()
	kids := s.opts.Prefix + dir + "//"
	reply, err := pb.NewKVClient(s.admin).Range(t.Context(), &pb.RangeRequest{Key: []byte(kids), RangeEnd: []byte(s.opts.Prefix + dir + "/0"), KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range reply.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// A deleted key stays in the index of a server, and each count of the children visits it. A lock that
// was taken very often must not be slower for it.
func TestADirectoryDoesNotCollectDeletedKeys(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	used := make(map[string]bool)
	for _, name := range []string{"a", "b"} {
		c, err := coord.Open(t.Context(), s.link(name), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m := coord.NewMutex(c, "/lock", nil)
		for range 100 {
			h, err := m.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range s.keysBelow(t, "/lock") {
				used[key] = true
			}
			if err := h.Release(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(used) != 2 {
		t.Errorf("100 turns of each of two clients took %d keys", len(used))
	}
}

func TestASessionUsesItsKeysAgain(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	used := make(map[string]bool)
	make := func(by backend.Session, name string) string {
		path := commit(t, by, backend.Create("/d/"+name+"-", []byte(name), backend.EphemeralSequential))[0].Path
		for _, key := range s.keysBelow(t, "/d") {
			used[key] = true
		}
		return path
	}
	// However a node is deleted by its session, and whatever its name is.
	for i := range 8 {
		first, second, other := make(a, fmt.Sprint("first", i)), make(a, fmt.Sprint("second", i)), make(b, "other")
		commit(t, a, backend.Delete(first, backend.AnyVersion))
		third := make(a, fmt.Sprint("third", i))
		names, _, err := b.Children(t.Context(), "/d", nil)
		if err != nil || len(names) != 3 || !slices.Contains(names, third[3:]) || !slices.Contains(names, second[3:]) || !slices.Contains(names, other[3:]) {
			t.Fatalf("the children are %v, %v; want %s, %s, %s", names, err, second, third, other)
		}
		for _, path := range []string{second, third, other} {
			data, stat, err := b.Get(t.Context(), path, nil)
			if err != nil || !strings.HasPrefix(path, "/d/"+string(data)+"-") || stat.Version != 0 {
				t.Fatalf("%s has %q, %+v, %v", path, data, stat, err)
			}
		}
		switch i % 3 {
		case 0:
			commit(t, a, backend.Delete(second, backend.AnyVersion), backend.Delete(third, 0))
		case 1:
			commit(t, a, backend.Check("/d", backend.AnyVersion), backend.Delete(third, 0))
			commit(t, a, backend.Delete(second, 0))
		case 2: // the session looks first, since each node is named twice
			commit(t, a, backend.SetData(third, nil, 0), backend.Delete(third, 1), backend.Check(second, 0), backend.Delete(second, 0))
		}
		commit(t, b, backend.Delete(other, backend.AnyVersion))
	}
	gone := make(a, "gone")
	commit(t, b, backend.Delete(gone, backend.AnyVersion))
	if _, err := a.Commit(t.Context(), backend.Delete(gone, backend.AnyVersion)); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the deletion of a node that another session has deleted: %v", err)
	}
	make(a, "next")
	if len(used) != 3 {
		t.Errorf("three nodes at a time had %d keys", len(used))
	}
}

// A client that knows the key of a node must not take the next node with that key for it.
func TestTheNextNodeWithAKeyIsAnotherOne(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	of := func(op ...backend.Op) func(backend.Session, string) error {
		return func(s backend.Session, path string) error {
			ops := slices.Clone(op)
			for i := range ops {
				ops[i].Path = strings.Replace(ops[i].Path, "/PATH", path, 1)
			}
			_, err := s.Commit(t.Context(), ops...)
			return err
		}
	}
	for _, c := range []struct {
		name string
		do   func(s backend.Session, path string) error
		want error
	}{
		{"get", func(s backend.Session, path string) error { _, _, err := s.Get(t.Context(), path, nil); return err }, backend.ErrNotFound},
		{"exists", func(s backend.Session, path string) error { _, err := s.Exists(t.Context(), path, nil); return err }, backend.ErrNotFound},
		{"children", func(s backend.Session, path string) error {
			_, _, err := s.Children(t.Context(), path, nil)
			return err
		}, backend.ErrNotFound},
		{"read", func(s backend.Session, path string) error {
			all, err := s.ReadMany(t.Context(), backend.Read{Path: path})
			return errors.Join(err, all[0].Err)
		}, backend.ErrNotFound},
		{"a watch", func(s backend.Session, path string) error {
			w := backend.NewWatch()
			_, _, err := s.Get(t.Context(), path, w)
			return err
		}, backend.ErrNotFound},
		{"arm", func(s backend.Session, path string) error {
			w := backend.NewWatch()
			if err := s.Arm(t.Context(), 1<<60, backend.Target{Path: path, Watch: w}); err != nil {
				return err
			}
			if w.Kind() == 0 {
				return errors.New("the watch of a missing node has not fired")
			}
			return nil
		}, nil},
		{"check", of(backend.Check("/PATH", backend.AnyVersion)), backend.ErrNotFound},
		{"check of a version", of(backend.Check("/PATH", 0)), backend.ErrNotFound},
		{"check and create", of(backend.Check("/PATH", backend.AnyVersion), backend.Create("/d/new-", nil, backend.EphemeralSequential)), backend.ErrNotFound},
		{"delete", of(backend.Delete("/PATH", backend.AnyVersion)), backend.ErrNotFound},
		{"delete a version", of(backend.Delete("/PATH", 0)), backend.ErrNotFound},
		{"delete with others", of(backend.Check("/d", backend.AnyVersion), backend.Delete("/PATH", backend.AnyVersion)), backend.ErrNotFound},
		{"set", of(backend.SetData("/PATH", []byte("x"), backend.AnyVersion)), backend.ErrNotFound},
		{"set a version", of(backend.SetData("/PATH", []byte("x"), 0)), backend.ErrNotFound},
		{"carry", of(backend.Carry("/PATH", []byte("data"))), backend.ErrNotFound},
		{"create below", of(backend.Create("/PATH/x", nil, backend.Persistent)), backend.ErrNotFound},
		{"absent", of(backend.Absent("/PATH")), nil},
		{"create", of(backend.Create("/PATH", nil, backend.Ephemeral), backend.Delete("/PATH", 0)), nil},
	} {
		for _, who := range []struct {
			name string
			s    backend.Session
		}{{"its own session", a}, {"another session", b}} {
			first := commit(t, a, backend.Create("/d/n-", []byte("data"), backend.EphemeralSequential))[0].Path
			for _, s := range []backend.Session{a, b} {
				if _, _, err := s.Get(t.Context(), first, nil); err != nil {
					t.Fatal(err)
				}
			}
			key := s.keysBelow(t, "/d")
			commit(t, a, backend.Delete(first, backend.AnyVersion))
			next := commit(t, a, backend.Create("/d/n-", []byte("data"), backend.EphemeralSequential))[0].Path
			if now := s.keysBelow(t, "/d"); len(now) != 1 || !slices.Equal(now, key) {
				t.Fatalf("the keys were %q, and are %q", key, now)
			}
			if err := c.do(who.s, first); !errors.Is(err, c.want) {
				t.Errorf("%s by %s: %v, want %v", c.name, who.name, err, c.want)
			}
			names, _, err := b.Children(t.Context(), "/d", nil)
			if err != nil || fmt.Sprint(names) != "["+next[3:]+"]" {
				t.Fatalf("%s by %s: the children are %v, %v, want %s", c.name, who.name, names, err, next)
			}
			if data, stat, err := b.Get(t.Context(), next, nil); err != nil || string(data) != "data" || stat.Version != 0 {
				t.Fatalf("%s by %s: the next node has %q, %+v, %v", c.name, who.name, data, stat, err)
			}
			commit(t, a, backend.Delete(next, backend.AnyVersion))
		}
	}
}

// A node that can have children has a key that none had before: a client that knows an earlier node of
// its key can create nothing below that one.
func TestAPersistentNodeHasANewKey(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	long := bytes.Repeat([]byte("d"), 300) // so that the key has the name
	for _, c := range []struct {
		name string
		op   func(parent string) backend.Op
	}{
		{"create", func(parent string) backend.Op { return backend.Create(parent+"/x", nil, backend.Persistent) }},
		{"create a sequential one", func(parent string) backend.Op {
			return backend.Create(parent+"/x-", nil, backend.EphemeralSequential)
		}},
		{"absent", func(parent string) backend.Op { return backend.Absent(parent + "/x") }},
	} {
		for _, by := range []backend.Session{a, b} {
			first := commit(t, a, backend.Create("/d/n-", long, backend.EphemeralSequential))[0].Path
			for _, s := range []backend.Session{a, b} {
				if _, _, err := s.Get(t.Context(), first, nil); err != nil {
					t.Fatal(err)
				}
			}
			key := s.keysBelow(t, "/d")
			commit(t, a, backend.Delete(first, backend.AnyVersion))
			if _, err := a.Commit(t.Context(), backend.Check("/d", backend.AnyVersion), backend.Create("/d/n-", nil, backend.PersistentSequential), backend.Check("/missing", 0)); !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
			parent := commit(t, a, backend.Create("/d/n-", nil, backend.PersistentSequential))[0].Path
			if now := s.keysBelow(t, "/d"); len(key) != 1 || len(now) != 1 || key[0] == now[0] {
				t.Errorf("the keys were %q, and are %q", key, now)
			}
			if _, err := by.Commit(t.Context(), c.op(first)); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("%s below a deleted node: %v", c.name, err)
			}
			if keys := s.keysBelow(t, first); len(keys) > 0 {
				t.Errorf("%s below a deleted node: it has the children %q", c.name, keys)
			}
			commit(t, a, backend.Delete(parent, backend.AnyVersion))
			next := commit(t, a, backend.Create("/d/n-", long, backend.EphemeralSequential))[0].Path
			if now := s.keysBelow(t, "/d"); !slices.Equal(now, key) {
				t.Errorf("the keys were %q, and are %q", key, now)
			}
			commit(t, a, backend.Delete(next, backend.AnyVersion))
		}
	}
}

// A client that knows a deleted node with the key of another one names both in a commit. A server takes
// no request that writes a key twice.
func TestACommitThatNamesTwoNodesWithOneKey(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	create := func() string {
		path := commit(t, a, backend.Create("/d/n-", []byte("data"), backend.EphemeralSequential))[0].Path
		if _, _, err := b.Get(t.Context(), path, nil); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name string
		ops  func(first, next string) []backend.Op
	}{
		{"delete the first", func(first, next string) []backend.Op {
			return []backend.Op{backend.Delete(first, backend.AnyVersion), backend.SetData(next, nil, backend.AnyVersion)}
		}},
		{"delete the second", func(first, next string) []backend.Op {
			return []backend.Op{backend.SetData(first, nil, backend.AnyVersion), backend.Delete(next, backend.AnyVersion)}
		}},
		{"delete both", func(first, next string) []backend.Op {
			return []backend.Op{backend.Delete(first, backend.AnyVersion), backend.Delete(next, backend.AnyVersion)}
		}},
		{"set both", func(first, next string) []backend.Op {
			return []backend.Op{backend.SetData(first, nil, backend.AnyVersion), backend.SetData(next, nil, backend.AnyVersion)}
		}},
	} {
		first := create()
		commit(t, a, backend.Delete(first, backend.AnyVersion))
		next := create()
		_, err := b.Commit(t.Context(), c.ops(first, next)...)
		var e *backend.Error
		if !errors.Is(err, backend.ErrNotFound) || !errors.As(err, &e) || e.Index != 0 || e.Path != first {
			t.Errorf("%s: %v, want that %s is missing", c.name, err, first)
		}
		if data, stat, err := b.Get(t.Context(), next, nil); err != nil || string(data) != "data" || stat.Version != 0 {
			t.Errorf("%s: the second node has %q, %+v, %v", c.name, data, stat, err)
		}
		commit(t, a, backend.Delete(next, backend.AnyVersion))
	}
}

// A read shows a node, and a deletion of it overtakes the reply. So its session has its key to give, and
// takes it for that of the node.
func TestAKeyIsFreeBeforeAReadOfItsNodeReturns(t *testing.T) {
	t.Parallel()
	reads := func(method string, reply []byte) bool {
		var r pb.TxnResponse
		if method != "/etcdserverpb.KV/Txn" || r.Unmarshal(reply) != nil || !r.Succeeded {
			return false
		}
		return !slices.ContainsFunc(r.Responses, func(op *pb.ResponseOp) bool { return op.GetResponseRange() == nil })
	}
	for _, c := range []struct {
		name string
		ops  []backend.Op // on "/PATH"
		list bool         // the read is a list before the commit, else the commit's own
	}{
		{"a list", []backend.Op{backend.Delete("/PATH", backend.AnyVersion)}, true},
		{"a commit", []backend.Op{backend.SetData("/PATH", nil, backend.AnyVersion), backend.Delete("/PATH", backend.AnyVersion)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t, shared.get(t), etcd.Options{})
			l := s.link("a")
			a := open(t, l)
			commit(t, a, backend.Create("/d", nil, backend.Persistent))
			path := commit(t, a, backend.Create("/d/n-", nil, backend.EphemeralSequential))[0].Path
			ops := append(slices.Clone(c.ops), backend.Create("/d/n-", nil, backend.EphemeralSequential))
			for i := range c.ops {
				ops[i].Path = path
			}
			held := l.holdReply(reads)
			read := make(chan error, 1)
			go func() {
				if c.list {
					_, _, err := a.Children(t.Context(), "/d", nil)
					read <- err
					return
				}
				_, err := a.Commit(t.Context(), ops...)
				read <- err
			}()
			await(t, held.hit, "the reply")
			commit(t, a, backend.Delete(path, backend.AnyVersion))
			close(held.release)
			err := <-read
			if c.list {
				if err != nil {
					t.Fatal(err)
				}
				_, err = a.Commit(t.Context(), ops...)
			}
			if !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("the commit: %v, want that %s is missing", err, path)
			}
			if keys := s.keysBelow(t, "/d"); len(keys) > 0 {
				t.Errorf("the keys are %q", keys)
			}
		})
	}
}

// What was armed for a node hears of its deletion, and of no later node with its key.
func TestWatchesOfANodeDoNotHearOfTheNextOneWithItsKey(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	make := func(name string) string {
		return commit(t, a, backend.Create("/d/"+name+"-", nil, backend.EphemeralSequential))[0].Path
	}
	for range 10 {
		first := make("first")
		tree := backend.NewTreeWatch(0)
		if err := b.WatchTree(t.Context(), first, tree); err != nil {
			t.Fatal(err)
		}
		all := backend.NewTreeWatch(0)
		if err := b.WatchTree(t.Context(), "/d", all); err != nil {
			t.Fatal(err)
		}
		w := backend.NewWatch()
		if _, err := b.Exists(t.Context(), first, w); err != nil {
			t.Fatal(err)
		}
		commit(t, a, backend.Delete(first, backend.AnyVersion))
		next := make("next")
		commit(t, a, backend.SetData(next, []byte("x"), backend.AnyVersion))
		kept := backend.NewWatch()
		if _, err := b.Exists(t.Context(), next, kept); err != nil {
			t.Fatal(err)
		}
		if err := b.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		told, over := tree.Take()
		if len(told) != 1 || over || told[0].Path != first || told[0].Kind != backend.TreeDeleted {
			t.Errorf("the tree watch of %s was told %v, over %v", first, told, over)
		}
		told, over = all.Take()
		want := []backend.TreeChange{{Path: first, Kind: backend.TreeDeleted}, {Path: next, Kind: backend.TreeCreated}}
		for i := range told {
			told[i].Zxid = 0
		}
		if over || !slices.Equal(told, want) {
			t.Errorf("the tree watch of /d was told %v, over %v, want %v", told, over, want)
		}
		if w.Kind() != backend.Deleted {
			t.Errorf("the watch of %s: %v", first, w.Kind())
		}
		if kept.Kind() != 0 {
			t.Errorf("the watch of %s, which exists: %v", next, kept.Kind())
		}
		all.Stop()
		commit(t, a, backend.Delete(next, backend.AnyVersion))
		await(t, kept.Fired(), "the deletion")
		if err := b.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		if told, over := tree.Take(); len(told) > 0 || over {
			t.Errorf("the tree watch of %s was told %v of %s, over %v", first, told, next, over)
		}
		tree.Stop()
	}
}

// A request that deletes a key whatever it is must not find a later node there.
func TestAKeyIsNotUsedAgainWhileADeletionOfItIsUnderWay(t *testing.T) {
	t.Parallel()
	lone := func(path string) []backend.Op { return []backend.Op{backend.Delete(path, backend.AnyVersion)} }
	for _, c := range []struct {
		name    string
		drop    func(l *link) // what is lost of the first deletion
		cut     bool          // contact breaks while it is on its way
		giveUp  bool          // its caller does not wait for the held request
		another bool          // session deletes the node meanwhile
		second  func(path string) []backend.Op
		want    error // of the first deletion
	}{
		{name: "its reply is lost", drop: (*link).DropNextReply, want: backend.ErrUncertain},
		{name: "its request is lost", drop: (*link).DropNextRequest},
		{name: "it is late, and sent again", cut: true},
		{name: "it is given up", giveUp: true, want: backend.ErrUncertain},
		{name: "another session deletes the node", another: true, second: lone, want: backend.ErrUncertain},
		{name: "its session deletes the node", second: lone, want: backend.ErrUncertain},
		{name: "its session deletes the node and more", second: func(path string) []backend.Op {
			return append(lone(path), backend.Check("/d", backend.AnyVersion))
		}, want: backend.ErrUncertain},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t, shared.get(t), etcd.Options{})
			l := s.link("a")
			a, b := open(t, l), open(t, s.link("b"))
			commit(t, a, backend.Create("/d", nil, backend.Persistent))
			create := func() string {
				return commit(t, a, backend.Create("/d/n-", nil, backend.EphemeralSequential))[0].Path
			}
			first := create()
			var held *hold
			if c.drop != nil {
				c.drop(l)
			} else {
				held = l.holdNext(isDeletion)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			deleted := make(chan error, 1)
			go func() {
				_, err := a.Commit(ctx, backend.Delete(first, backend.AnyVersion))
				deleted <- err
			}()
			if held != nil {
				await(t, held.hit, "the deletion")
			}
			if c.second != nil {
				by := a
				if c.another {
					by = b
				}
				commit(t, by, c.second(first)...)
			}
			if c.giveUp {
				cancel()
			}
			if c.cut {
				l.bytes.Cut()
			}
			var err error
			over := c.second == nil // the first deletion
			if over {
				err = <-deleted
			}
			next := create()
			if held != nil {
				close(held.release)
				await(t, held.done, "the late deletion")
				cancel() // its caller gets no reply
			}
			if !over {
				err = <-deleted
			}
			if !errors.Is(err, c.want) {
				t.Errorf("the deletion: %v, want %v", err, c.want)
			}
			if _, err := b.Exists(t.Context(), next, nil); err != nil {
				t.Errorf("the next node: %v", err)
			}
		})
	}
}

// A creation of unknown outcome, or one that is refused, leaves no two nodes with one key.
func TestTheKeyOfACreationWithoutAReply(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	op := backend.Create("/d/n-", nil, backend.EphemeralSequential)
	for range 3 { // with a key that was used
		commit(t, a, backend.Delete(commit(t, a, op)[0].Path, backend.AnyVersion))
		l.DropNextReply()
		if _, err := a.Commit(t.Context(), op); !errors.Is(err, backend.ErrUncertain) {
			t.Fatalf("the creation without a reply: %v", err)
		}
		if _, err := a.Commit(t.Context(), op, backend.Check("/missing", backend.AnyVersion)); !errors.Is(err, backend.ErrNotFound) {
			t.Fatalf("the creation beside a missing node: %v", err)
		}
		commit(t, a, op)
	}
	names, _, err := a.Children(t.Context(), "/d", nil)
	keys := s.keysBelow(t, "/d")
	if err != nil || len(names) != 6 || len(keys) != 6 {
		t.Errorf("six nodes have the names %v and the keys %q, %v", names, keys, err)
	}
	for i, key := range keys {
		if !strings.HasSuffix(key, fmt.Sprintf(".%d", i+1)) {
			t.Errorf("the key of node %d is %q: those of refused creations are not used", i, key)
		}
	}
}

// A node that is created with long data, or a long name, has its name in the key: who lists the directory
// does not receive its value.
func TestNodesWithLongNamesOrData(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	var want []string
	for _, c := range []struct {
		name string
		data int
		key  bool // has the name
	}{{"n-", 0, false}, {"n-", 254, false}, {"n-", 255, true}, {strings.Repeat("n", 256), 0, false}, {strings.Repeat("n", 257), 0, true}, {strings.Repeat("n", 70_000), 0, true}} {
		data := bytes.Repeat([]byte("d"), c.data)
		before := s.keysBelow(t, "/d")
		path := commit(t, a, backend.Create("/d/"+c.name, data, backend.EphemeralSequential))[0].Path
		want = append(want, path[3:])
		for _, key := range s.keysBelow(t, "/d") {
			if !slices.Contains(before, key) && strings.Contains(key, "//"+c.name+"\x00") != c.key {
				t.Errorf("a name of %d bytes with %d bytes of data has the key %.40q", len(c.name), c.data, key)
			}
		}
		commit(t, b, backend.SetData(path, append(data, '!'), 0))
		if got, stat, err := a.Get(t.Context(), path, nil); err != nil || string(got) != string(data)+"!" || int(stat.DataLength) != c.data+1 {
			t.Errorf("%.20s has %q, %+v, %v", path, got, stat, err)
		}
	}
	got, _, err := open(t, s.link("c")).Children(t.Context(), "/d", nil)
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the children are %.100v, %v", got, err)
	}
}
