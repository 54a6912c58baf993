package coord_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/internal/zktest"
	"github.com/go-coord/coord/trace"
	"go.uber.org/goleak"
)

// world is a fresh service, in memory under fake time or on a real ZooKeeper.
type world struct {
	backendtest.Service
	t       *testing.T
	timeout time.Duration // of sessions
	waits   atomic.Int32  // how often a Lock has told that it waits
	fake    bool          // time is
}

type memoryService struct{ *memory.Store }

func (s memoryService) Root() string                      { return "/" }
func (s memoryService) Link(name string) backendtest.Link { return s.Store.Link(name) }

// The timeout of sessions. On a real server it is long enough that a machine with other
// work does not lose them.
const (
	worldTimeout = 3 * time.Second
	realTimeout  = 10 * time.Second
)

// onEach runs a test on memory, inside a synctest bubble, and on ZooKeeper,
// beside other tests.
func onEach(t *testing.T, f func(w *world)) {
	t.Parallel()
	onMemory(t, f)
	t.Run("zookeeper", func(t *testing.T) {
		t.Parallel()
		f(onServer(t, zookeeper.Options{}))
	})
}

// onServer returns a world on the ZooKeeper that the tests share, whose links open
// sessions with o and the timeout of real servers.
func onServer(t *testing.T, o zookeeper.Options) *world {
	t.Helper()
	o.SessionTimeout = realTimeout
	return &world{Service: zkservice.New(t, server.Get(t), o), t: t, timeout: realTimeout}
}

func onMemory(t *testing.T, f func(w *world)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(&memory.Options{SessionTimeout: worldTimeout})
			f(&world{Service: memoryService{st}, t: t, timeout: worldTimeout, fake: true})
		})
	})
}

// path is the absolute path of a recipe at p.
func (w *world) path(p string) string {
	if w.Root() == "/" {
		return p
	}
	return w.Root() + p
}

// open opens a client over the link called name, which the test closes. Hooks
// may be nil.
func (w *world) open(name string, hooks *backendtest.Hooks) *coord.Client {
	w.t.Helper()
	var b backend.Backend = w.Link(name)
	if hooks != nil {
		b = backendtest.Intercept(b, *hooks)
	}
	return open(w.t, b, &coord.Options{
		Namespace: w.path(""),
		Trace: func(_ context.Context, e trace.Event) {
			if _, ok := e.(trace.WaitBegan); ok {
				w.waits.Add(1)
			}
		},
	})
}

// settle returns when nothing moves any more, where that can be known: under
// fake time.
func (w *world) settle() {
	if w.fake {
		synctest.Wait()
	}
}

// session opens a plain session, which the test closes. On a real server its commits
// are settled.
func (w *world) session(name string) backend.Session {
	w.t.Helper()
	s, err := w.Link(name).Open(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	if w.fake {
		return s
	}
	return settled{s}
}

// settled is a session whose commits have no uncertain outcome while it lives: on a
// busy machine contact can break under any of them, and a test that only sets a scene
// has to know what is there. It is not for sequential nodes.
type settled struct{ backend.Session }

func (s settled) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	for {
		res, err := s.Session.Commit(ctx, ops...)
		sequential := slices.ContainsFunc(ops, func(op backend.Op) bool { return op.Mode.Sequential() })
		if !errors.Is(err, backend.ErrUncertain) || s.Err() != nil || ctx.Err() != nil || ops[0].Kind == backend.OpCheck || sequential {
			return res, err
		}
		if err := s.Sync(ctx, ops[0].Path); err != nil {
			return nil, err
		}
		// The operations are applied together, so the first one tells of all.
		data, _, err := s.Get(ctx, ops[0].Path, nil)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return nil, err
		}
		applied := err == nil
		switch ops[0].Kind {
		case backend.OpDelete:
			applied = !applied
		case backend.OpSetData:
			applied = applied && bytes.Equal(data, ops[0].Data)
		}
		if !applied {
			continue
		}
		res = make([]backend.Result, len(ops))
		for i, op := range ops {
			res[i].Path = op.Path
			if op.Kind != backend.OpSetData {
				continue
			}
			if res[i].Stat, err = s.Exists(ctx, op.Path, nil); err != nil {
				return nil, err
			}
		}
		return res, nil
	}
}

// children lists the names under the recipe at p.
func (w *world) children(p string) []string {
	w.t.Helper()
	return children(w.t, w.Link("observer"), w.path(p))
}

// eventually waits for a condition that nothing signals. Under fake time the
// pauses cost nothing.
func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			w.t.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// empty waits until nothing is left under the recipe at p.
func (w *world) empty(p string) {
	w.t.Helper()
	w.eventually("no node left at "+p, func() bool { return len(w.children(p)) == 0 })
}

// locking is a Lock under way.
type locking struct {
	w    *world
	done chan struct{}
	h    *coord.Hold
	err  error
}

func (w *world) lock(ctx context.Context, m *coord.Mutex) *locking {
	l := &locking{w: w, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.h, l.err = m.Lock(ctx)
	}()
	return l
}

// waiting starts a Lock and returns when it waits, in line or for another caller
// of its client.
func (w *world) waiting(ctx context.Context, m *coord.Mutex) *locking {
	w.t.Helper()
	n := w.waits.Load()
	l := w.lock(ctx, m)
	w.eventually("the Lock waits", func() bool { return w.waits.Load() > n })
	return l
}

// hold waits for the lock.
func (l *locking) hold() *coord.Hold {
	l.w.t.Helper()
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		l.w.t.Fatal("the lock was never granted")
	}
	if l.err != nil {
		l.w.t.Fatal(l.err)
	}
	return l.h
}

// pending fails the test if the Lock has returned.
func (l *locking) pending() {
	l.w.t.Helper()
	select {
	case <-l.done:
		l.w.t.Fatalf("Lock returned %v, %v while another held the lock", l.h, l.err)
	default:
	}
}

// prime makes the directory of a lock known to a client, so that its next
// request is the one that makes a node.
func prime(t *testing.T, m *coord.Mutex) {
	t.Helper()
	mustRelease(t, mustLock(t, m))
}

// creates reports whether a call is a commit that makes a node.
func creates(c backendtest.Call) bool { return commits(c, backend.OpCreate) }

// deletes reports whether a call is a commit that deletes a node.
func deletes(c backendtest.Call) bool { return commits(c, backend.OpDelete) }

func commits(c backendtest.Call, kind backend.OpKind) bool {
	for _, op := range c.Ops {
		if op.Kind == kind {
			return true
		}
	}
	return false
}

// nth makes a hook do something at the n-th call that matches, once armed.
type nth struct {
	mu    sync.Mutex
	match func(backendtest.Call) bool
	do    func(ctx context.Context, c backendtest.Call, err error) error
	n     int
}

// arm makes the n-th matching call from now on, counted from 1, run do.
func (x *nth) arm(n int, match func(backendtest.Call) bool, do func(ctx context.Context, c backendtest.Call, err error) error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n, x.match, x.do = n, match, do
}

func (x *nth) before(ctx context.Context, c backendtest.Call) error { return x.after(ctx, c, nil) }

func (x *nth) after(ctx context.Context, c backendtest.Call, err error) error {
	x.mu.Lock()
	if x.n == 0 || !x.match(c) {
		x.mu.Unlock()
		return err
	}
	x.n--
	do := x.do
	hit := x.n == 0
	x.mu.Unlock()
	if !hit {
		return err
	}
	return do(ctx, c, err)
}

// lose loses the reply.
func lose(context.Context, backendtest.Call, error) error { return backend.ErrUncertain }

func wantErr(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error %v, want one that matches %q", err, target)
		}
	}
}

// server is the real ZooKeeper that the tests share: one server, or in the long
// form an ensemble of three. Tests that kill or pause servers start their own.
var server zktest.Shared

func TestMain(m *testing.M) {
	if long() {
		server.Options = &zktest.Options{Servers: 3}
	}
	goleak.VerifyTestMain(server.Main(m))
}
