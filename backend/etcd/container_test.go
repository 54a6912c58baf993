package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// keys returns the keys of the service with a prefix, behind that of the service.
func (s *service) keys(t *testing.T, prefix string) (all []string) {
	t.Helper()
	prefix = s.opts.Prefix + prefix
	end := []byte(prefix)
	end[len(end)-1]++
	r, err := pb.NewKVClient(s.admin).Range(t.Context(), &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end, KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range r.Kvs {
		all = append(all, strings.TrimPrefix(string(kv.Key), s.opts.Prefix))
	}
	return all
}

// removes matches the transaction that removes containers.
func removes(method string, body []byte) bool {
	var r pb.TxnRequest
	if method != "/etcdserverpb.KV/Txn" || r.Unmarshal(body) != nil {
		return false
	}
	for _, op := range r.Success {
		if d := op.GetRequestDeleteRange(); d != nil && strings.Contains(string(d.Key), ":container/") {
			return true
		}
	}
	return false
}

// goes waits until a node is deleted, and returns false if there was none.
func goes(t *testing.T, s backend.Session, path string) bool {
	t.Helper()
	for {
		w := backend.NewWatch()
		if _, err := s.Exists(t.Context(), path, w); errors.Is(err, backend.ErrNotFound) {
			w.Stop()
			return true
		} else if err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.Fired():
		case <-time.After(2 * time.Minute):
			t.Errorf("%s is still there", path)
			return false
		}
	}
}

// A shop locks each customer once. The directories of these locks go when they were not used for a while.
func TestEtcd_LocksLeaveNoDirectories(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{ContainerInterval: 300 * time.Millisecond})
	c, err := coord.Open(t.Context(), s.link("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const locks = 300
	for i := range locks {
		h, err := coord.NewMutex(c, fmt.Sprintf("/shop/customers/%d/lock", i), nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
	}
	b := open(t, s.link("b"))
	if !goes(t, b, "/shop") {
		t.Fatalf("%d keys are left", len(s.keys(t, "/")))
	}
	for _, prefix := range []string{"/", ":container"} {
		for _, key := range s.keys(t, prefix) {
			if strings.Contains(key, "shop") {
				t.Errorf("the key %q is left", key)
			}
		}
	}
	// The path can be used again.
	h, err := coord.NewMutex(c, "/shop/customers/1/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
}

// A client creates a node in a container at the moment at which a session removes the container: either the container
// stays, with its data, until that child is gone, or the creation finds nothing.
func TestEtcd_ACreationInAContainerThatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	for _, mode := range []backend.CreateMode{backend.Persistent, backend.Ephemeral, backend.PersistentSequential, backend.EphemeralSequential, backend.Container} {
		s := newService(t, shared.get(t), etcd.Options{ContainerInterval: 100 * time.Millisecond})
		s.keepSweeper(t, t.Context()) // a search can find the child that is a container, too
		l := s.link("a")
		a, b := open(t, l), open(t, s.link("b"))
		var child string
		created := make(chan struct{})
		l.before(removes, func() {
			child = commit(t, b, backend.Create("/box/child", nil, mode))[0].Path
			close(created)
		})
		for _, path := range []string{"/box", "/control"} {
			commit(t, a, backend.Create(path, []byte("data"), backend.Container))
			commit(t, a, backend.Create(path+"/n", nil, backend.Persistent))
			commit(t, a, backend.Delete(path+"/n", backend.AnyVersion))
		}
		<-created
		goes(t, b, "/control")
		if data, stat, err := b.Get(t.Context(), "/box", nil); err != nil || string(data) != "data" || !stat.Container || stat.NumChildren != 1 {
			t.Fatalf("mode %d: the container with a new child: %q, %+v, %v", mode, data, stat, err)
		}
		// The removal is first: its transaction is applied when the request of the creation arrives.
		s.link("b").before(puts, func() {
			if _, err := a.Commit(t.Context(), backend.Delete(child, backend.AnyVersion)); err != nil {
				t.Error(err)
			}
			goes(t, a, "/box")
		})
		if _, err := b.Commit(t.Context(), backend.Create("/box/late", nil, mode)); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("mode %d: a creation in a container that is gone: %v", mode, err)
		}
		for _, key := range s.keys(t, "/") {
			if strings.Contains(key, "late") {
				t.Errorf("mode %d: the node %q has no parent", mode, key)
			}
		}
	}
}

// A container that is used again and again stays, if it was not empty for the whole time.
func TestEtcd_AContainerInUseStays(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{ContainerInterval: 2 * time.Second})
	a := open(t, s.link("a"))
	made := commit(t, a, backend.Create("/box", nil, backend.Container))[0].Czxid
	commit(t, a, backend.Create("/control", nil, backend.Container))
	commit(t, a, backend.Create("/control/n", nil, backend.Persistent))
	commit(t, a, backend.Delete("/control/n", backend.AnyVersion))
	w := backend.NewWatch()
	if _, err := a.Exists(t.Context(), "/control", w); err != nil {
		t.Fatal(err)
	}
	for last := time.Now(); ; {
		n := commit(t, a, backend.Create("/box/n-", nil, backend.EphemeralSequential))[0].Path
		commit(t, a, backend.Delete(n, backend.AnyVersion))
		if pause := time.Since(last); pause > time.Second {
			t.Skipf("the machine stood still for %v", pause)
		}
		last = time.Now()
		select {
		case <-w.Fired():
			if stat, err := a.Exists(t.Context(), "/box", nil); err != nil || stat.Czxid != made {
				t.Errorf("the container in use: %+v, %v", stat, err)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Sessions that are over leave containers: with children that go with a lease, never used ones, and those
// that they would have looked at. One of the other sessions finds them.
func TestEtcd_ContainersOfDeadSessionsAreFound(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{ContainerInterval: 200 * time.Millisecond})
	off := s.opts
	off.ContainerInterval = -1
	dead, err := etcd.New([]string{s.server}, &off).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/top", "/top/used", "/top/ephemeral", "/top/never"} {
		commit(t, dead, backend.Create(path, nil, backend.Container))
	}
	commit(t, dead, backend.Create("/top/used/n", nil, backend.Persistent))
	commit(t, dead, backend.Delete("/top/used/n", backend.AnyVersion))
	commit(t, dead, backend.Create("/top/ephemeral/n", nil, backend.Ephemeral))
	for _, path := range []string{"/kept", "/replaced"} {
		commit(t, dead, backend.Create(path, nil, backend.Container))
	}
	commit(t, dead, backend.Create("/kept/n", nil, backend.Persistent))
	commit(t, dead, backend.Delete("/replaced", backend.AnyVersion), backend.Create("/replaced", nil, backend.Persistent))
	dead.Close()
	const sessions = 6
	var links []*link
	var all []backend.Session
	for i := range sessions {
		links = append(links, s.link(fmt.Sprint(i)))
		all = append(all, open(t, links[i]))
	}
	goes(t, all[0], "/top")
	for _, path := range []string{"/kept", "/kept/n", "/replaced"} {
		if _, err := all[0].Exists(t.Context(), path, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if keys := s.keys(t, ":container"); len(keys) != 1 || keys[0] != ":container/kept" {
		t.Errorf("the second keys %q are left", keys)
	}
	// Nobody but the one session searches.
	searching := 0
	for i, l := range links {
		if l.requested("/etcdserverpb.KV/Range") > 0 {
			searching++
			all[i].Close()
		}
	}
	if searching != 1 {
		t.Errorf("%d of %d sessions have searched", searching, sessions)
	}
	// Another one takes over.
	rest := open(t, s.link("rest"))
	commit(t, rest, backend.Create("/later", nil, backend.Container))
	goes(t, rest, "/later")
}

// Clients of versions before this one read the header of a container as that of a persistent node, and write it without
// the mark: then it is one.
func TestEtcd_AContainerThatAnEarlierVersionWrites(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{ContainerInterval: 100 * time.Millisecond})
	a := open(t, s.link("a"))
	for _, path := range []string{"/written", "/control"} {
		commit(t, a, backend.Create(path, []byte("data"), backend.Container))
		commit(t, a, backend.Create(path+"/n", nil, backend.Persistent))
	}
	kv := pb.NewKVClient(s.admin)
	key := []byte(s.opts.Prefix + "//written")
	r, err := kv.Range(t.Context(), &pb.RangeRequest{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	v := r.Kvs[0].Value
	// That version knows the flags 0xc3. The flag 0x02 says that two bytes of length and a name precede the data.
	if len(v) != 17+2+4 || v[0] != 0x02 || string(v[17:]) != "\x00\x00data" {
		t.Fatalf("the value of a container is %q", v)
	}
	old := append(append([]byte{0}, v[1:17]...), "mine"...)
	if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: key, Value: old}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/written", "/control"} {
		commit(t, a, backend.Delete(path+"/n", backend.AnyVersion))
	}
	goes(t, a, "/control")
	if data, stat, err := a.Get(t.Context(), "/written", nil); err != nil || string(data) != "mine" || stat.Container {
		t.Errorf("the node that was written: %q, %+v, %v", data, stat, err)
	}
	if _, err := a.Commit(t.Context(), backend.SetData("/written", []byte("x"), backend.AnyVersion)); err != nil {
		t.Error(err)
	}
}

// keepSweeper takes the key of the session that searches for containers, so that none searches.
func (s *service) keepSweeper(t *testing.T, ctx context.Context) {
	t.Helper()
	if _, err := pb.NewKVClient(s.admin).Put(ctx, &pb.PutRequest{Key: []byte(s.opts.Prefix + ":sweeper")}); err != nil {
		t.Fatal(err)
	}
}

// deadSession opens a session that collects nothing.
func (s *service) deadSession(t *testing.T) backend.Session {
	t.Helper()
	off := s.opts
	off.ContainerInterval = -1
	return open(t, etcd.New([]string{s.server}, &off))
}

// The paths of many containers do not fit into one request. Both the session that has deleted the last children, and a
// search, remove them, and the containers behind them. One path is so long that the service refuses its removal.
func TestEtcd_EmptyContainersWithLongPaths(t *testing.T) {
	t.Parallel()
	for _, searching := range []bool{false, true} {
		t.Run(fmt.Sprintf("searching=%v", searching), func(t *testing.T) {
			t.Parallel()
			s := newService(t, shared.get(t), etcd.Options{ContainerInterval: 300 * time.Millisecond})
			l := s.link("a")
			var by backend.Session
			if searching {
				by = s.deadSession(t)
			} else {
				s.keepSweeper(t, t.Context())
				by = open(t, l)
			}
			paths := []string{"/" + strings.Repeat("b", 310_000), "/z"}
			for i := range 40 {
				paths = append(paths, fmt.Sprintf("/%02d%s", i, strings.Repeat("x", 60_000)))
			}
			for _, path := range paths {
				commit(t, by, backend.Create(path, nil, backend.Container))
			}
			for _, path := range paths[1:] {
				commit(t, by, backend.Create(path+"/n", nil, backend.Persistent))
				commit(t, by, backend.Delete(path+"/n", backend.AnyVersion))
			}
			if searching {
				open(t, l)
			}
			for _, path := range paths[1:] {
				if !goes(t, by, path) {
					t.FailNow()
				}
			}
		})
	}
}

// A removal is denied, as for a user without the permission. The other containers are removed, also those that
// come later; the denied one is tried by each search only, and reported once.
func TestEtcd_ADeniedRemovalIsPassed(t *testing.T) {
	t.Parallel()
	const key, end = "t", "u"
	addr, auth := startWithUsers(t, key, end)
	log := new(lines)
	s := newService(t, addr, etcd.Options{Username: "alice", Password: "secret", ContainerInterval: 100 * time.Millisecond, Logger: slog.New(log)})
	s.keepSweeper(t, asRoot(t, auth))
	l := s.link("a")
	a := open(t, l)
	const n = 40
	for i := range n {
		commit(t, a, backend.Create(fmt.Sprintf("/d%02d", i), nil, backend.Container))
		commit(t, a, backend.Create(fmt.Sprintf("/d%02d/n", i), nil, backend.Persistent))
	}
	ctx := asRoot(t, auth)
	denied := s.opts.Prefix + "//d07"
	for _, r := range []*authpb.Permission{
		{PermType: authpb.READWRITE, Key: []byte(key), RangeEnd: []byte(denied)},
		{PermType: authpb.READ, Key: []byte(denied)},
		{PermType: authpb.READWRITE, Key: []byte(denied + "\x00"), RangeEnd: []byte(end)},
	} {
		if _, err := auth.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: "team", Perm: r}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := auth.RoleRevokePermission(ctx, &pb.AuthRoleRevokePermissionRequest{Role: "team", Key: []byte(key), RangeEnd: []byte(end)}); err != nil {
		t.Fatal(err)
	}
	tries := 0
	var mu sync.Mutex
	l.always(func(method string, body []byte) bool {
		return removes(method, body) && strings.Contains(string(body), denied)
	}, func() { mu.Lock(); tries++; mu.Unlock() })
	for i := range n {
		commit(t, a, backend.Delete(fmt.Sprintf("/d%02d/n", i), backend.AnyVersion))
	}
	for i := range n {
		if i != 7 {
			goes(t, a, fmt.Sprintf("/d%02d", i))
		}
	}
	log.await(t, "refuses to remove") // the denied one alone can be tried last
	mu.Lock()
	before := tries
	mu.Unlock()
	// Ten passes later, it was not tried again.
	for range 10 {
		commit(t, a, backend.Create("/later", nil, backend.Container))
		commit(t, a, backend.Create("/later/n", nil, backend.Persistent))
		commit(t, a, backend.Delete("/later/n", backend.AnyVersion))
		goes(t, a, "/later")
	}
	mu.Lock()
	defer mu.Unlock()
	if before == 0 || before > 16 || tries != before { // batches that have been removed let the next ones grow
		t.Errorf("%d requests with the denied removal, and %d of them later", tries, tries-before)
	}
	if n := log.count("refuses to remove"); n != 1 {
		t.Errorf("the denied removal was reported %d times", n)
	}
}

// The reply to a removal is lost. The container above goes all the same, without a search.
func TestEtcd_TheReplyToARemovalIsLost(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{ContainerInterval: 200 * time.Millisecond})
	s.keepSweeper(t, t.Context())
	l := s.link("a")
	a, see := open(t, l), open(t, s.link("see"))
	for _, path := range []string{"/top", "/top/box"} {
		commit(t, a, backend.Create(path, nil, backend.Container))
	}
	commit(t, a, backend.Create("/top/box/n", nil, backend.Persistent))
	lost := make(chan struct{})
	reply := l.holdReply(func(method string, body []byte) bool {
		var r pb.TxnResponse
		return method == "/etcdserverpb.KV/Txn" && r.Unmarshal(body) == nil && r.Succeeded && len(r.Responses) == 2 && r.Responses[0].GetResponseDeleteRange() != nil && r.Responses[1].GetResponseDeleteRange() != nil
	})
	go func() {
		defer close(lost)
		<-reply.hit
		l.bytes.Cut()
		close(reply.release)
	}()
	commit(t, a, backend.Delete("/top/box/n", backend.AnyVersion))
	goes(t, see, "/top/box")
	await(t, lost, "the removal")
	goes(t, see, "/top")
}

// The database has reached its quota. The session that searches for empty containers still removes them, which frees space.
func TestEtcd_WithoutSpaceContainersGo(t *testing.T) {
	t.Parallel()
	s := smallService(t)
	dead := s.deadSession(t)
	s.opts.ContainerInterval = 200 * time.Millisecond
	a := open(t, s.link("a"))
	commit(t, dead, backend.Create("/box", nil, backend.Container))
	commit(t, dead, backend.Create("/box/n", nil, backend.Persistent))
	// Only a search removes a container that no client has used. So the removal shows that this session has the sweeper's key.
	commit(t, dead, backend.Create("/unused", nil, backend.Container))
	goes(t, a, "/unused")
	commit(t, dead, backend.Create("/data", nil, backend.Persistent))
	for size := 100_000; size > 0; size /= 10 {
		for {
			if _, err := dead.Commit(t.Context(), backend.Create("/data/n-", make([]byte, size), backend.PersistentSequential)); errors.Is(err, backend.ErrNoSpace) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	commit(t, dead, backend.Delete("/box/n", backend.AnyVersion))
	goes(t, dead, "/box")
}

// A session with an interval beyond the limits opens, and its search does not panic.
func TestEtcd_ContainersWithIntervalsBeyondTheLimits(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{1, math.MaxInt64} {
		s := newService(t, shared.get(t), etcd.Options{ContainerInterval: interval})
		a := open(t, s.link("a"))
		commit(t, a, backend.Create("/box", nil, backend.Container))
		if interval == 1 {
			goes(t, a, "/box")
		}
	}
}
