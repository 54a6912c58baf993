package etcd_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/pace"
)

// A commit that its caller has given up reaches the server after the session's next call has
// returned. The server refuses it, because that call has begun a new epoch.
func TestACommitThatWasGivenUpIsRefusedWhenItComesLate(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	commit(t, a, backend.Create("/n", []byte("before"), backend.Persistent))
	for name, next := range map[string]func() error{
		"a Sync under way": nil,

		"a Sync":   func() error { return a.Sync(t.Context(), "/") },
		"a read":   func() error { _, _, err := a.Get(t.Context(), "/n", nil); return err },
		"a commit": func() error { _, err := a.Commit(t.Context(), backend.Check("/n", backend.AnyVersion)); return err },
	} {
		h := l.holdNext(puts)
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() {
			_, err := a.Commit(ctx, backend.SetData("/n", []byte("late"), backend.AnyVersion))
			given <- err
		}()
		await(t, h.hit, "the request")
		if name == "a Sync under way" {
			synced := make(chan error, 1)
			go func() { synced <- a.Sync(t.Context(), "/") }()
			next = func() error { return <-synced }
			for deadline := time.Now().Add(100 * time.Millisecond); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if len(synced) > 0 {
					t.Fatal("Sync has not waited for a commit under way")
				}
			}
		}
		cancel()
		if err := <-given; !errors.Is(err, backend.ErrUncertain) || !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: a commit that was given up: %v", name, err)
		}
		if err := next(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		close(h.release)
		await(t, h.done, "the answer")
		if !refused("/etcdserverpb.KV/Txn", h.reply) {
			t.Errorf("%s came before a commit that was given up, and the server accepted the commit", name)
		}
		if data, _, err := a.Get(t.Context(), "/n", nil); err != nil || string(data) != "before" {
			t.Errorf("%s: the node holds %q, %v", name, data, err)
		}
	}
}

// A session has seen an ephemeral node, which needs no watcher of its children. Another node of that
// path does.
func TestAWatchForTheChildrenOfANodeThatWasEphemeral(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, b, backend.Create("/d", nil, backend.Persistent))
	for name, arm := range map[string]func(path string, w *backend.Watch) error{
		"Arm": func(path string, w *backend.Watch) error {
			return a.Arm(t.Context(), math.MaxInt64, backend.Target{Path: path, Children: true, Watch: w})
		},
		"Children": func(path string, w *backend.Watch) error {
			_, _, err := a.Children(t.Context(), path, w)
			return err
		},
	} {
		for _, mode := range []backend.CreateMode{backend.Ephemeral, backend.EphemeralSequential} {
			path := commit(t, b, backend.Create("/d/"+name, nil, mode))[0].Path
			see := func() {
				if _, _, err := a.Children(t.Context(), "/d", nil); err != nil {
					t.Fatal(err)
				}
				if mode == backend.Ephemeral {
					if _, err := a.Exists(t.Context(), path, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			see()
			w := backend.NewWatch()
			if err := arm(path, w); err != nil {
				t.Fatal(err)
			}
			commit(t, b, backend.Delete(path, backend.AnyVersion))
			await(t, w.Fired(), "the deletion")
			if w.Kind() != backend.Deleted {
				t.Errorf("%s, %v: %v for a deletion", name, mode, w.Kind())
			}
			commit(t, b, backend.Create(path, nil, backend.Ephemeral))
			see()
			commit(t, b, backend.Delete(path, backend.AnyVersion))
			commit(t, b, backend.Create(path, nil, backend.Persistent))
			w = backend.NewWatch()
			if err := arm(path, w); err != nil {
				t.Fatal(err)
			}
			commit(t, b, backend.Create(path+"/child", nil, backend.Persistent))
			await(t, w.Fired(), "the creation of a child")
		}
	}
}

// The server makes a watcher late, when the read beside it has been answered, and the node has
// changed in between.
func TestAReadIsNotOlderThanItsWatcher(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a, b := open(t, l), open(t, s.link("b"))
	commit(t, b, backend.Create("/n", []byte("old"), backend.Persistent))
	h := l.holdNext(func(method string, body []byte) bool {
		var r pb.WatchRequest
		return method == "/etcdserverpb.Watch/Watch" && r.Unmarshal(body) == nil && r.GetCreateRequest() != nil
	})
	before := l.replied("/etcdserverpb.KV/Txn")
	w := backend.NewWatch()
	data := make(chan string, 1)
	go func() {
		got, _, err := a.Get(t.Context(), "/n", w)
		if err != nil {
			t.Errorf("get: %v", err)
		}
		data <- string(got)
	}()
	await(t, h.hit, "the request of the watcher")
	for l.replied("/etcdserverpb.KV/Txn") == before {
		time.Sleep(5 * time.Millisecond)
	}
	commit(t, b, backend.SetData("/n", []byte("new"), backend.AnyVersion))
	close(h.release)
	if got := <-data; got != "new" {
		await(t, w.Fired(), "the watch of a read that shows "+got)
	}
}

// A server answers everything but what comes on the stream of the watches. A read that has to
// wait for an event leaves it after half the lease.
func TestAServerThatKeepsEventsBackIsLeft(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 6 * time.Second})
	l := s.link("a")
	a, b := open(t, l), open(t, s.link("b"))
	commit(t, b, backend.Create("/n", nil, backend.Persistent))
	w := backend.NewWatch()
	if _, _, err := a.Get(t.Context(), "/n", w); err != nil {
		t.Fatal(err)
	}
	l.silence(true)
	commit(t, b, backend.SetData("/n", []byte("new"), 0))
	_, changed := a.Status()
	read := make(chan error, 1)
	go func() {
		data, _, err := a.Get(t.Context(), "/n", nil)
		if err == nil && string(data) != "new" {
			err = errors.New("it shows " + string(data))
		}
		read <- err
	}()
	await(t, changed, "the end of contact")
	l.silence(false)
	if err := <-read; err != nil {
		t.Errorf("the read: %v", err)
	}
	if w.Kind() != backend.LookAgain {
		t.Errorf("the watch has kind %q", w.Kind())
	}
}

// No read waits for an event that the hub holds. A server that gives no proof of its turn is left all the
// same, after half the lease.
func TestAServerThatDoesNotAnswerProgressRequestsIsLeft(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 6 * time.Second})
	l := s.link("a")
	a, b := open(t, l), open(t, s.link("b"))
	commit(t, b, backend.Create("/n", nil, backend.Persistent))
	l.rewriteWatches(func(r *pb.WatchResponse) {
		if !r.Created && !r.Canceled && len(r.Events) == 0 { // a progress reply
			r.WatchId, r.Canceled = 1<<40, true // of no watcher of the session
		}
	})
	w := backend.NewWatch()
	if _, _, err := a.Get(t.Context(), "/n", w); err != nil {
		t.Fatal(err)
	}
	_, changed := a.Status()
	commit(t, b, backend.SetData("/n", []byte("new"), 0))
	if etcd.Ordered(versionOf(t, shared.get(t))) { // else events are not held
		await(t, changed, "the end of contact")
	}
	await(t, w.Fired(), "the watch")
	if err := a.Err(); err != nil {
		t.Error(err)
	}
}

// A machine that was suspended, or a clock that was set, shows at the next call that the lease has
// passed. The server does not know of it yet.
func TestAJumpOfTheWallClockIsNoticedByTheNextCall(t *testing.T) {
	for name, call := range map[string]func(s backend.Session) error{
		"Err":    func(s backend.Session) error { return s.Err() },
		"Get":    func(s backend.Session) error { _, _, err := s.Get(t.Context(), "/", nil); return err },
		"Sync":   func(s backend.Session) error { return s.Sync(t.Context(), "/") },
		"Commit": func(s backend.Session) error { _, err := s.Commit(t.Context(), backend.Delete("/a", 0)); return err },
		"Arm": func(s backend.Session) error {
			return s.Arm(t.Context(), 1, backend.Target{Path: "/", Watch: backend.NewWatch()})
		},
	} {
		b := etcd.New([]string{shared.get(t)}, &etcd.Options{SessionTimeout: 30 * time.Second, Prefix: "jump"})
		var ahead atomic.Int64
		etcd.SetAhead(b, func() time.Duration { return time.Duration(ahead.Load()) })
		s := open(t, b)
		// A renewal between a jump and a call would take the new time for its own. There is none
		// within an eighth of the timeout, unless the machine is very slow.
		ahead.Store(int64(5 * time.Second))
		if err := s.Err(); err != nil {
			t.Fatalf("%s: after a jump within the lease: %v", name, err)
		}
		ahead.Store(int64(time.Minute))
		err := call(s)
		if !errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrUncertain) {
			t.Errorf("%s: %v", name, err)
		}
		await(t, s.Done(), "the end")
	}
}

// An answer to a keep-alive takes long. The lease runs from the request.
func TestTheLeaseRunsFromTheRequestAndNotFromItsAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 20 * time.Second, LossMargin: 4 * time.Second})
	l := s.link("a")
	a := open(t, l)
	keepAlive := func(method string, _ []byte) bool { return method == "/etcdserverpb.Lease/LeaseKeepAlive" }
	h := l.holdNext(keepAlive)
	await(t, h.hit, "a keep-alive")
	next := l.holdNext(keepAlive) // it follows the answer at once, and gets none
	defer close(next.release)
	sent, m := time.Now(), pace.Start(t, nil)
	timer := time.NewTimer(5 * time.Second) // less than half the lease of 16 s
	defer timer.Stop()
	<-timer.C
	before := l.replied("/etcdserverpb.Lease/LeaseKeepAlive")
	close(h.release)
	for l.replied("/etcdserverpb.Lease/LeaseKeepAlive") == before {
		if time.Since(sent) > time.Minute {
			t.Fatal("the answer to the keep-alive does not arrive")
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.Partition()
	defer l.Heal()
	await(t, a.Done(), "the loss")
	m.Within(19*time.Second, "a lease of 16 s from the request of the latest keep-alive") // from the answer it would end after 21 s
}
