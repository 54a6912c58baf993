// Package coordtest is what the tests of the recipes share: a world to run in, clients, and
// hooks that strike at a given call.
package coordtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/trace"
)

// World is a fresh service, in memory under fake time or on a real ZooKeeper.
type World struct {
	backendtest.Service
	T       *testing.T
	Timeout time.Duration // of sessions
	Waits   atomic.Int32  // how often a call has begun to wait
	Fake    bool          // the world is in a synctest bubble, so its time is fake

	Without backend.Features // features that the store in memory lacks

	Skew time.Duration // error of the clocks of the clients that are opened from now on

	Revisions bool // the service numbers its nodes by revisions, as memory does with the option
	Spares    bool // the service writes nothing for a backend.Carry, and no real one does for an Absent
}

// MemoryService is a store in memory as a service.
type MemoryService struct{ *memory.Store }

func (s MemoryService) Root() string { return "/" }

func (s MemoryService) Link(name string) backendtest.Link { return s.Store.Link(name) }

// The timeout of sessions. On a real server it is long enough that a machine with other
// work does not lose them.
const (
	WorldTimeout = 3 * time.Second
	RealTimeout  = 10 * time.Second
)

// Limit is the longest wait for anything that has to happen. It protects from a test that hangs, and
// judges nothing, so that a busy machine does not reach it.
const Limit = time.Minute

// OnEach runs a test on memory, inside a synctest bubble, and on ZooKeeper,
// beside other tests.
func OnEach(t *testing.T, f func(w *World)) {
	t.Parallel()
	OnMemory(t, f)
	t.Run("zookeeper", func(t *testing.T) {
		t.Parallel()
		f(OnServer(t, zookeeper.Options{}))
	})
}

// NewWorld returns a world on a real service.
func NewWorld(t *testing.T, s backendtest.Service, revisions, spares bool) *World {
	return &World{Service: s, T: t, Timeout: RealTimeout, Revisions: revisions, Spares: spares}
}

// Elsewhere, if it is set, makes the services that stand for a ZooKeeper: a module with another
// backend runs tests on it. Tests of options of ZooKeeper are skipped then. interval is how long
// empty containers stay; they are not removed if it is negative. revisions says that the sequence
// numbers do not count the children of a node.
var Elsewhere func(t *testing.T, interval time.Duration) (s backendtest.Service, revisions bool)

// OnServer returns a world on the ZooKeeper that the tests share, whose links open
// sessions with o and the timeout of real servers.
func OnServer(t *testing.T, o zookeeper.Options) *World {
	t.Helper()
	if Elsewhere != nil {
		if !reflect.ValueOf(o).IsZero() {
			t.Skip("a test of options of ZooKeeper")
		}
		return elsewhere(t, -1)
	}
	o.SessionTimeout = RealTimeout
	return &World{Service: zkservice.New(t, Server.Get(t), o), T: t, Timeout: RealTimeout}
}

func elsewhere(t *testing.T, interval time.Duration) *World {
	s, revisions := Elsewhere(t, interval)
	return NewWorld(t, s, revisions, true)
}

// OnMemory runs a test on memory, inside a synctest bubble. If COORD_REVISIONS is set, the
// sequence numbers are those of OnRevisions.
func OnMemory(t *testing.T, f func(w *World)) {
	onMemory(t, "memory", memory.Options{Revisions: os.Getenv("COORD_REVISIONS") != ""}, f)
}

// OnCounters runs a test on memory whose sequence numbers count the children of each directory,
// as ZooKeeper's do.
func OnCounters(t *testing.T, f func(w *World)) { onMemory(t, "memory", memory.Options{}, f) }

// OnRevisions runs a test on a memory store whose sequence numbers are high and have gaps.
func OnRevisions(t *testing.T, f func(w *World)) {
	onMemory(t, "memory with revisions", memory.Options{Revisions: true}, f)
}

// OnMemoryWithoutTrees runs a test on memory stores that lack some features, so that what
// recipes do instead is tested.
func OnMemoryWithoutTrees(t *testing.T, f func(w *World)) {
	onMemory(t, "memory without trees", memory.Options{Without: backend.Trees | backend.Batches}, f)
}

// OnMemoryWithoutBatches is OnMemoryWithoutTrees for a store that has trees.
func OnMemoryWithoutBatches(t *testing.T, f func(w *World)) {
	onMemory(t, "memory without batches", memory.Options{Without: backend.Batches}, f)
}

func onMemory(t *testing.T, name string, o memory.Options, f func(w *World)) {
	o.SessionTimeout = WorldTimeout
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(&World{Service: MemoryService{memory.New(&o)}, T: t, Timeout: WorldTimeout, Fake: true, Without: o.Without, Revisions: o.Revisions, Spares: o.Revisions})
		})
	})
}

// OnMemoryCollecting is OnMemory on stores that remove empty containers soon.
func OnMemoryCollecting(t *testing.T, f func(w *World)) {
	onMemory(t, "memory", memory.Options{ContainerInterval: time.Second}, f)
	onMemory(t, "memory with revisions", memory.Options{ContainerInterval: time.Second, Revisions: true}, f)
}

// Collect returns when the service has removed the containers that are empty, and those that become
// empty by that, up to three levels.
func (w *World) Collect() {
	w.T.Helper()
	if w.Fake {
		time.Sleep(3*time.Second + time.Millisecond)
		synctest.Wait()
		return
	}
	s := w.Session("collect")
	defer s.Close()
	if !s.Features().Has(backend.Containers) {
		return
	}
	// A service looks at all containers in passes, in the order of their names, in which /~collect is the last.
	// The pass that removes /~collect may have begun before the other containers became empty, the pass after it
	// has not. A session also looks at the parents of nodes that its commits have deleted, beside the passes.
	// The child of /~collect is deleted by the end of its session, so only a pass removes /~collect.
	for range 3 {
		path := w.Path("/~collect")
		other := w.Session("collect")
		for used := false; !used; {
			w.must(other.Commit(context.Background(), backend.Create(path, nil, backend.Container)))
			_, err := other.Commit(context.Background(), backend.Create(path+"/x", nil, backend.Ephemeral))
			if used = err == nil; !used && !errors.Is(err, backend.ErrNotFound) { // the service has collected it already
				w.T.Fatal(err)
			}
		}
		if err := other.Close(); err != nil {
			w.T.Fatal(err)
		}
		for gone := false; !gone; {
			watch := backend.NewWatch()
			_, err := s.Exists(context.Background(), path, watch)
			switch {
			case errors.Is(err, backend.ErrNotFound):
				watch.Stop()
				gone = true
			case err != nil:
				w.T.Fatal(err)
			default:
				<-watch.Fired()
			}
		}
	}
}

func (w *World) must(_ []backend.Result, err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// Path is the absolute path of a recipe at p.
func (w *World) Path(p string) string {
	if w.Root() == "/" {
		return p
	}
	return w.Root() + p
}

// Open opens a client over the link called name, which the test closes. Hooks
// may be nil.
func (w *World) Open(name string, hooks *backendtest.Hooks) *coord.Client {
	w.T.Helper()
	var b backend.Backend = w.Link(name)
	if hooks != nil {
		b = backendtest.Intercept(b, *hooks)
	}
	return OpenWith(w.T, b, &coord.Options{
		Namespace: w.Path(""),
		Trace: func(_ context.Context, e trace.Event) {
			if _, ok := e.(trace.WaitBegan); ok {
				w.Waits.Add(1)
			}
		},
	}, hook.Hooks{Skew: w.Skew})
}

// Settle returns when all goroutines are blocked, where that can be known: under fake time.
func (w *World) Settle() {
	if w.Fake {
		synctest.Wait()
	}
}

// Session opens a plain session, which the test closes. On a real server its commits
// are settled.
func (w *World) Session(name string) backend.Session {
	w.T.Helper()
	s, err := w.Link(name).Open(context.Background())
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { s.Close() })
	if w.Fake {
		return s
	}
	return settled{s}
}

// settled is a session whose commits have no uncertain outcome while it lives: on a
// busy machine contact can break under any of them, and a test that prepares the tree
// must know its state. It is not for sequential nodes.
type settled struct{ backend.Session }

func (s settled) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	for {
		res, err := s.Session.Commit(ctx, ops...)
		sequential := slices.ContainsFunc(ops, func(op backend.Op) bool { return op.Mode.Sequential() })
		if !errors.Is(err, backend.ErrUncertain) || s.Err() != nil || ctx.Err() != nil || ops[0].Kind == backend.OpCheck || ops[0].Kind == backend.OpAbsent || sequential {
			return res, err
		}
		if err := s.Sync(ctx, ops[0].Path); err != nil {
			return nil, err
		}
		// The operations are applied together, so the first one shows the outcome of all.
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

// Children lists the names under the recipe at p.
func (w *World) Children(p string) []string {
	w.T.Helper()
	return Children(w.T, w.Link("observer"), w.Path(p))
}

// Eventually waits for a condition that nothing signals. Under fake time the
// pauses cost nothing.
func (w *World) Eventually(what string, cond func() bool) {
	w.T.Helper()
	for began := time.Now(); !cond(); {
		if time.Since(began) > Limit {
			w.T.Fatalf("never happened: %s", what)
		}
		if w.Fake {
			time.Sleep(5 * time.Millisecond)
		} else {
			Pause(began)
		}
	}
}

// Pause sleeps between two looks at a condition that nothing signals, and that has been looked
// at since began. On a real server a look is a session of its own, and a condition may take
// as long as a session to expire. So a pause grows with the time that has passed, up to 100 ms.
func Pause(began time.Time) {
	time.Sleep(min(max(time.Since(began)/10, 5*time.Millisecond), 100*time.Millisecond))
}

// Empty waits until nothing is left under the recipe at p.
func (w *World) Empty(p string) {
	w.T.Helper()
	w.Eventually("no node left at "+p, func() bool { return len(w.Children(p)) == 0 })
}

// Lock starts a Lock.
func (w *World) Lock(ctx context.Context, m coord.Locker) *Locking {
	l := &Locking{W: w, Done: make(chan struct{})}
	go func() {
		defer close(l.Done)
		l.H, l.Err = m.Lock(ctx)
	}()
	return l
}

// Waiting starts a Lock and returns when it waits, in the queue or for another caller of its
// client.
func (w *World) Waiting(ctx context.Context, m coord.Locker) *Locking {
	w.T.Helper()
	n := w.Waits.Load()
	l := w.Lock(ctx, m)
	w.Eventually("the Lock waits", func() bool { return w.Waits.Load() > n })
	return l
}
