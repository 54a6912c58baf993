package zookeeper_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
)

func isOp(op int32) func(zkproxy.Frame) bool {
	return func(f zkproxy.Frame) bool { return f.Opcode == op }
}

func TestALateResultDoesNoHarm(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	proxy := s.link.Proxies[0]

	// A commit returns when its context ends, and is applied later.
	ctx, cancel := context.WithCancel(s.ctx)
	fault := proxy.Drop(isOp(zkproxy.OpCreate), zkproxy.HoldReply)
	done := make(chan error, 1)
	data := []byte("first")
	go func() {
		_, err := c.Commit(ctx, backend.Create(s.path("n"), data, backend.Ephemeral))
		done <- err
	}()
	s.await(fault.Hit(), "the reply")
	cancel()
	err := <-done
	if !errors.Is(err, backend.ErrUncertain) || !errors.Is(err, context.Canceled) {
		t.Fatalf("commit: %v", err)
	}
	fault.Release()
	if names := s.children(c); len(names) != 1 {
		t.Fatalf("children after the late commit and Sync: %v", names)
	}

	// A read: its watch is not armed when the late reply arrives.
	ctx, cancel = context.WithCancel(s.ctx)
	fault = proxy.Drop(isOp(zkproxy.OpGetData), zkproxy.HoldReply)
	w := backend.NewWatch()
	go func() {
		_, _, err := c.Get(ctx, s.path("n"), w)
		done <- err
	}()
	s.await(fault.Hit(), "the reply")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("get: %v", err)
	}
	fault.Release()
	armed := backend.NewWatch()
	if _, _, err := c.Get(s.ctx, s.path("n"), armed); err != nil {
		t.Fatal(err)
	}
	s.commit(o, backend.SetData(s.path("n"), []byte("second"), 0))
	s.await(armed.Fired(), "the watch of a read that was not given up")
	if w.Kind() != 0 {
		t.Errorf("the watch of a read that was given up fired: %v", w.Kind())
	}
	if phase, _ := c.Status(); phase != backend.PhaseConnected {
		t.Errorf("phase %v", phase)
	}
}

// The zk client encodes a request after its caller has given up.
func TestDataIsCopiedBeforeTheCallReturns(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(s.link)
	for _, ops := range [][]backend.Op{
		{backend.Create(s.path("a"), nil, backend.Persistent)},
		{backend.Create(s.path("b"), nil, backend.Persistent), backend.SetData(s.path("a"), nil, backend.AnyVersion)},
		{backend.SetData(s.path("a"), nil, backend.AnyVersion)},
	} {
		for i := range ops {
			ops[i].Data = []byte("given")
		}
		ctx, cancel := context.WithCancel(s.ctx)
		cancelled := make(chan struct{})
		go func() {
			defer close(cancelled)
			cancel()
		}()
		c.Commit(ctx, ops...) // applied or not
		for i := range ops {
			copy(ops[i].Data, "xxxxx") // the race detector reports a data race here
		}
		<-cancelled
	}
	for _, name := range s.children(c) {
		if data, _, err := c.Get(s.ctx, s.path(name), nil); err != nil || string(data) != "given" {
			t.Errorf("%s holds %q, %v", name, data, err)
		}
	}
}

func TestTooLargeRequestsAreRefusedLocally(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(s.link)
	many := make([]zookeeper.ACL, 400)
	for i := range many {
		many[i] = zookeeper.ACL{Scheme: "ip", ID: "10.0.0.0/8", Perms: zookeeper.PermRead}
	}
	guarded := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{ACL: many}))
	before := s.link.Proxies[0].Count()

	large := make([]byte, backend.MaxRequest+1)
	for i := range large {
		large[i] = 'p'
	}
	large[0] = '/'
	var creates []backend.Op
	for range 200 {
		creates = append(creates, backend.Create(s.path("n"), nil, backend.PersistentSequential))
	}
	_, err1 := c.Commit(s.ctx, backend.Create(s.path("n"), large, backend.Persistent))
	_, err2 := guarded.Commit(s.ctx, creates...)
	_, _, err3 := c.Get(s.ctx, string(large), nil)
	_, err4 := c.Exists(s.ctx, string(large), backend.NewWatch())
	err5 := c.Sync(s.ctx, string(large))
	err6 := c.Arm(s.ctx, 0, forData(string(large)))
	_, err7 := c.ReadMany(s.ctx, backend.Read{Path: s.path("n")}, backend.Read{Path: string(large)})
	err8 := c.WatchTree(s.ctx, string(large), backend.NewTreeWatch(0))
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8} {
		if !errors.Is(err, backend.ErrTooLarge) {
			t.Errorf("%d: %v", i+1, err)
		}
	}
	if after := s.link.Proxies[0].Count(); after.Requests() != before.Requests() {
		t.Errorf("sent: %v", after)
	}
	// A request just below the limit is accepted.
	large = large[:backend.MaxRequest-1000]
	s.commit(c, backend.Create(s.path("n"), large, backend.Persistent))
	if data, _, err := c.Get(s.ctx, s.path("n"), nil); err != nil || len(data) != len(large) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// The zk client's Create makes a plain node instead of a container, and its Multi returns an
// error for a container although it was created.
func TestAContainerIsOne(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(s.link)
	if !c.Features().Has(backend.Containers) {
		t.Fatal("no containers")
	}
	_, err := c.Commit(s.ctx, backend.Create(s.path("c"), nil, backend.Container), backend.Create(s.path("c/child"), nil, backend.Ephemeral))
	if !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("in a commit of two: %v", err)
	}
	if names := s.children(c); len(names) != 0 {
		t.Errorf("children: %v", names)
	}
	r := s.commit(c, backend.Create(s.path("c"), []byte("data"), backend.Container))
	if r[0].Path != s.path("c") {
		t.Errorf("path %q", r[0].Path)
	}
	if data, stat, err := c.Get(s.ctx, s.path("c"), nil); err != nil || string(data) != "data" || stat.EphemeralOwner != 0 {
		t.Errorf("%q, %+v, %v", data, stat, err)
	}
	s.commit(c, backend.Create(s.path("c/child"), nil, backend.Ephemeral))
	s.commit(c, backend.Delete(s.path("c/child"), 0))
	s.gone(c, s.path("c"))
	_, err = c.Commit(s.ctx, backend.Create(s.path("missing/c"), nil, backend.Container))
	if !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("without a parent: %v", err)
	}
}

// Stopped watches leave nothing in this process, and one watch for each path and kind on the
// server.
func TestStoppedWatchesDoNotAccumulate(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	path := s.path("n")
	s.commit(o, backend.Create(path, nil, backend.Persistent))
	if err := c.Sync(s.ctx, path); err != nil {
		t.Fatal(err)
	}
	var last *backend.Watch
	for range 300 {
		for _, arm := range []func(w *backend.Watch) error{
			func(w *backend.Watch) error { _, _, err := c.Get(s.ctx, path, w); return err },
			func(w *backend.Watch) error { _, err := c.Exists(s.ctx, path, w); return err },
			func(w *backend.Watch) error { _, _, err := c.Children(s.ctx, path, w); return err },
			func(w *backend.Watch) error {
				return c.Arm(s.ctx, math.MaxInt64, backend.Target{Path: path, Watch: w}, forChildren(path+"-missing"))
			},
			func(w *backend.Watch) error {
				return c.Arm(s.ctx, 0, backend.Target{Path: path, Children: true, Watch: w}) // fires
			},
			func(w *backend.Watch) error {
				if _, err := c.Exists(s.ctx, path+"-missing", w); !errors.Is(err, backend.ErrNotFound) {
					return err
				}
				return nil
			},
		} {
			last = backend.NewWatch()
			if err := arm(last); err != nil {
				t.Fatal(err)
			}
			last.Stop()
		}
	}
	if n := zookeeper.Interests(c); n != 0 {
		t.Errorf("the session holds on to %d watches", n)
	}
	w := backend.NewWatch()
	if _, _, err := c.Get(s.ctx, path, w); err != nil {
		t.Fatal(err)
	}
	s.link.Proxies[0].ResetCounts()
	s.commit(o, backend.Delete(path, 0))
	s.await(w.Fired(), "the watch that was not stopped")
	if w.Kind() != backend.Deleted || last.Kind() != 0 {
		t.Errorf("kinds %v and %v", w.Kind(), last.Kind())
	}
	// One deletion causes one event, however many watches were armed.
	if err := c.Sync(s.ctx, path); err != nil {
		t.Fatal(err)
	}
	if n := s.link.Proxies[0].Count().Events; n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestACallDoesNotWaitInTheClientsQueue(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(s.link)
	_, change := c.Status()
	s.link.Partition()
	s.await(change, "the suspension")
	const n = 100
	ctx, cancel := context.WithCancel(s.ctx)
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := c.Commit(ctx, backend.Create(s.path("n"), nil, backend.PersistentSequential))
			errs <- err
		}()
	}
	timer := time.AfterFunc(50*time.Millisecond, cancel)
	defer timer.Stop()
	for range n {
		if err := <-errs; !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUncertain) {
			t.Fatalf("a commit that was never sent: %v", err)
		}
	}
	s.link.Heal()
	if names := s.children(c); len(names) != 0 {
		t.Errorf("children: %v", names)
	}
}
