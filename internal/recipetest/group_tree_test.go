package recipetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// onHiding runs f on services that tell the commits of changes, and on others.
func onHiding(t *testing.T, f func(w *world, zxids bool)) {
	for _, zxids := range []bool{true, false} {
		t.Run(fmt.Sprint("zxids ", zxids), func(t *testing.T) {
			onMemory(t, func(w *world) {
				if w.Spares {
					return // such a service hides nothing, see backend.TreeWatch
				}
				f(w, zxids)
			})
		})
	}
}

// The tree reports nothing of members that may not be read. They are listed all the same.
func TestGroup_MembersThatATreeHidesAreReported(t *testing.T) {
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
func TestGroup_AHiddenMemberThatComesInPlaceOfAnotherIsReported(t *testing.T) {
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
func TestGroup_ALookEndsWhileMembersComeAndGo(t *testing.T) {
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

// A watch continues after the end of its tree watch, and reports all changes made meanwhile.
func TestGroup_AGroupWhoseTreeWatchIsOver(t *testing.T) {
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

func TestGroup_AGroupOfAServiceThatRefusesItsTrees(t *testing.T) {
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
func TestGroup_AWatchFindsWhatHappenedWithoutContact(t *testing.T) {
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
func TestGroup_AMemberReadBeforeTheSessionWasLostIsReported(t *testing.T) {
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
		if s.Features().Has(backend.Trees|backend.Batches) && !w.Spares && !lost.Load() {
			w.T.Error("the session was not lost during the look")
		}
	})
}

// treeKeeper keeps the watches of trees that its sessions have armed.
type treeKeeper struct {
	backend.Backend
	mu    sync.Mutex
	trees []*backend.TreeWatch
}

func (b *treeKeeper) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return treeSession{s, b}, nil
}

type treeSession struct {
	backend.Session
	b *treeKeeper
}

func (s treeSession) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	s.b.mu.Lock()
	s.b.trees = append(s.b.trees, w)
	s.b.mu.Unlock()
	return s.Session.WatchTree(ctx, path, w)
}

// The end of the last watch of a group stops the watch of the tree, which the service would keep up otherwise.
func TestGroup_AWatchThatHasEndedKeepsNoTree(t *testing.T) {
	onMemory(t, func(w *world) {
		keeper := &treeKeeper{Backend: w.Link("a")}
		c := coordtest.Open(w.T, keeper, &coord.Options{Namespace: w.Path("")})
		ctx, cancel := context.WithCancel(context.Background())
		<-coord.NewGroup[string](c, "/g", nil).Watch(ctx)
		cancel()
		w.Settle()
		keeper.mu.Lock()
		defer keeper.mu.Unlock()
		if len(keeper.trees) == 0 {
			w.T.Fatal("no tree is watched: the test shows nothing")
		}
		for _, tree := range keeper.trees {
			if tree.Tell(backend.TreeChange{Path: "/g/x", Kind: backend.TreeCreated}) {
				w.T.Error("the watch of the tree takes changes after the end")
			}
		}
	})
}
