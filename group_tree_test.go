package coord_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// denies returns hooks that refuse the data of nodes.
func denies(secret func(path string) bool) *backendtest.Hooks {
	return &backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "get" && secret(c.Path) {
				return backend.ErrDenied
			}
			return nil
		},
		Results: func(c backendtest.Call, results []backend.ReadResult) {
			for i, r := range c.Reads {
				if !r.Children && secret(r.Path) && results[i].Err == nil {
					results[i] = backend.ReadResult{Err: &backend.Error{Op: "get", Path: r.Path, Err: backend.ErrDenied}}
				}
			}
		},
	}
}

// hiding is a service that keeps the changes of nodes that may not be read out of its trees,
// as some ZooKeeper servers do.
type hiding struct {
	backend.Backend
	secret func(path string) bool
	zxids  bool // the trees report the commits of changes

	mu    sync.Mutex
	trees [][2]*backend.TreeWatch // the service's and the caller's
}

// hide returns the backend and the hooks that belong to it.
func hide(b backend.Backend, secret func(path string) bool, zxids bool, before *coordtest.Nth) backend.Backend {
	h := &hiding{Backend: b, secret: secret, zxids: zxids}
	hooks := denies(secret)
	denied := hooks.Before
	hooks.Before = func(ctx context.Context, c backendtest.Call) error {
		if err := before.Before(ctx, c); err != nil {
			return err
		}
		return denied(ctx, c)
	}
	hooks.After = func(_ context.Context, _ backendtest.Call, err error) error {
		h.pass() // a change is reported before a read that shows it
		return err
	}
	return backendtest.Intercept(h, *hooks)
}

func (h *hiding) Open(ctx context.Context) (backend.Session, error) {
	s, err := h.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &hidingSession{s, h}, nil
}

// pass reports what is not hidden.
func (h *hiding) pass() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.trees {
		changes, over := t[0].Take()
		for _, c := range changes {
			if !h.zxids {
				c.Zxid = 0
			}
			if !h.secret(c.Path) {
				t[1].Tell(c)
			}
		}
		if over {
			t[1].Over()
		}
	}
}

type hidingSession struct {
	backend.Session
	h *hiding
}

func (s *hidingSession) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	in := backend.NewTreeWatch(0)
	if err := s.Session.WatchTree(ctx, path, in); err != nil {
		return err
	}
	w.Arm(nil)
	s.h.mu.Lock()
	s.h.trees = append(s.h.trees, [2]*backend.TreeWatch{in, w})
	s.h.mu.Unlock()
	go func() {
		for {
			select {
			case <-in.Ready():
				s.h.pass()
			case <-s.Done():
				return
			}
		}
	}()
	return nil
}

// readerOfAHidingService returns the group of a client that may not read the members whose id
// begins with "secret".
func (w *world) readerOfAHidingService(zxids bool, before *coordtest.Nth) *coord.Group[string] {
	b := hide(w.Link("reader"), func(path string) bool { return strings.Contains(path, "-secret") }, zxids, before)
	return textGroup(coordtest.Open(w.T, b, &coord.Options{Namespace: w.Path("")}), false)
}

// onHiding runs f on services that tell the commits of changes, and on others.
func onHiding(t *testing.T, f func(w *world, zxids bool)) {
	for _, zxids := range []bool{true, false} {
		t.Run(fmt.Sprint("zxids ", zxids), func(t *testing.T) {
			onMemory(t, func(w *world) {
				if w.Revisions {
					return // such a service hides nothing, see backend.TreeWatch
				}
				f(w, zxids)
			})
		})
	}
}

// The tree reports nothing of members that may not be read. They are listed all the same.
func TestMembersThatATreeHidesAreReported(t *testing.T) {
	onHiding(t, func(w *world, zxids bool) {
		var before coordtest.Nth
		a := w.group("a", nil)
		watch := w.watch(context.Background(), w.readerOfAHidingService(zxids, &before))
		watch.until("")
		mustJoin(w.T, a, "open", "1")
		watch.until("open=1")
		w.Settle()
		secret := mustJoin(w.T, a, "secret", "1")
		got := watch.until("open=1 secret=")
		coordtest.WantErr(w.T, got[len(got)-1].Members[1].Err, coord.ErrDenied)
		other := mustJoin(w.T, a, "secret2", "1")
		watch.until("open=1 secret= secret2=")
		mustLeave(w.T, secret)
		watch.until("open=1 secret2=")
		mustLeave(w.T, other)
		watch.until("open=1")
		mustJoin(w.T, a, "more", "1")
		watch.until("more=1 open=1")
	})
}

// The number of children does not change if a hidden member joins and another member leaves.
func TestAHiddenMemberThatComesInPlaceOfAnotherIsReported(t *testing.T) {
	onHiding(t, func(w *world, zxids bool) {
		var before coordtest.Nth
		a := w.group("a", nil)
		mustJoin(w.T, a, "a", "1")
		b := mustJoin(w.T, a, "b", "1")
		watch := w.watch(context.Background(), w.readerOfAHidingService(zxids, &before))
		watch.until("a=1 b=1")
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "read" || c.Op == "get" }, func(context.Context, backendtest.Call, error) error {
			mustLeave(w.T, b)
			mustJoin(w.T, a, "secret", "1")
			return nil
		})
		mustJoin(w.T, a, "c", "1")
		watch.until("a=1 c=1 secret=")
	})
}

// Members that come and go during each read do not keep a look from its end.
func TestALookEndsWhileMembersComeAndGo(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		a := w.group("a", nil)
		const joins = 100
		second := make(chan struct{}) // the watch has reported the result of another look
		reported := sync.OnceFunc(func() { close(second) })
		defer reported()
		var n atomic.Int32
		g := w.group("reader", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op != "get" && c.Op != "read" {
				return nil
			}
			if i := n.Add(1); i <= joins {
				mustJoin(w.T, a, fmt.Sprint("member ", i), "1")
				if i == joins {
					<-second
				}
			}
			return nil
		}})
		mustJoin(w.T, a, "member 0", "1")
		watch := w.watch(ctx, g)
		seen := 0
		for seen < 2 { // the first look has only the member that was there
			seen = len(watch.next().Members)
		}
		reported()
		for seen < joins+1 {
			seen = len(watch.next().Members)
		}
	})
}

// A watch goes on when its tree is over, with everything that happened meanwhile.
func TestAGroupWhoseTreeWatchIsOver(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		var tree *backend.TreeWatch
		armed := 0
		g := w.group("reader", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Tree != nil {
				tree = c.Tree
				armed++
			}
			return nil
		}})
		a := w.group("a", nil)
		watch := w.watch(context.Background(), g)
		watch.until("")
		x := mustJoin(w.T, a, "x", "0")
		for i := range 10 {
			watch.until(fmt.Sprint("x=", i))
			mu.Lock()
			tree.Over()
			mu.Unlock()
			if i%2 == 0 {
				w.Settle()
			}
			if i%3 == 0 {
				mustLeave(w.T, x)
				x = mustJoin(w.T, a, "x", fmt.Sprint(i+1))
			} else if err := x.SetValue(context.Background(), fmt.Sprint(i+1)); err != nil {
				w.T.Fatal(err)
			}
		}
		watch.until("x=10")
		if armed != 11 {
			w.T.Errorf("the tree was armed %d times, want 11", armed)
		}
	})
}

func TestAGroupOfAServiceThatRefusesItsTrees(t *testing.T) {
	onMemory(t, func(w *world) {
		var refused atomic.Int32
		g := w.group("reader", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "watch" || c.Op == "read" {
				refused.Add(1)
				return backend.ErrUnsupported
			}
			return nil
		}})
		a := w.group("a", nil)
		x := mustJoin(w.T, a, "x", "1")
		mustJoin(w.T, a, "y", "1")
		watch := w.watch(context.Background(), g)
		watch.until("x=1 y=1")
		if err := x.SetValue(context.Background(), "2"); err != nil {
			w.T.Fatal(err)
		}
		watch.until("x=2 y=1")
		mustLeave(w.T, x)
		watch.until("y=1")
		if n := refused.Load(); n != 1 {
			w.T.Errorf("%d requests were refused, want only that of the tree", n)
		}
	})
}

// The changes of a tree that waited while contact was lost are not all of them.
func TestAWatchFindsWhatHappenedWithoutContact(t *testing.T) {
	onMemories(t, func(w *world) {
		a := w.group("a", nil)
		x, y := mustJoin(w.T, a, "x", "1"), mustJoin(w.T, a, "y", "1")
		watch := w.watch(context.Background(), w.group("reader", nil))
		watch.until("x=1 y=1")
		w.Link("reader").Partition()
		mustLeave(w.T, x)
		if err := y.SetValue(context.Background(), "2"); err != nil {
			w.T.Fatal(err)
		}
		mustJoin(w.T, a, "z", "1")
		time.Sleep(w.Timeout / 4)
		w.Link("reader").Heal()
		watch.until("y=2 z=1")
	})
}

// A look reads a member, and then the session is lost. The next look finds the member as it
// was read, and reports it all the same.
func TestAMemberReadBeforeTheSessionWasLostIsReported(t *testing.T) {
	onMemories(t, func(w *world) {
		var before, after coordtest.Nth
		a := w.group("a", nil)
		mustLeave(w.T, mustJoin(w.T, a, "first", "1"))
		c := w.Open("reader", &backendtest.Hooks{Before: before.Before, After: after.After})
		watch := w.watch(context.Background(), textGroup(c, false))
		watch.until("")
		reads := func(c backendtest.Call) bool { return c.Op == "get" || c.Op == "read" }
		var lost atomic.Bool
		after.Arm(1, reads, func(_ context.Context, _ backendtest.Call, err error) error {
			mustLeave(w.T, mustJoin(w.T, a, "other", "1")) // so that the directory is read again
			time.Sleep(time.Second)                        // the tree reports it
			before.Arm(1, reads, func(context.Context, backendtest.Call, error) error {
				lost.Store(true)
				w.Link("reader").Expire((<-c.WatchState(context.Background())).Session)
				return nil
			})
			return err
		})
		mustJoin(w.T, a, "member", "1")
		watch.until("member=1")
		s := w.Session("features")
		defer s.Close()
		// With revisions a member that comes and goes leaves nothing to read.
		if s.Features().Has(backend.Trees|backend.Batches) && !w.Revisions && !lost.Load() {
			w.T.Error("the session was not lost during the look")
		}
	})
}
