package recipetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// at matches a read of the node at p, alone or among others.
func at(op, p string) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool {
		return c.Op == op && c.Path == p || slices.Contains(c.Reads, backend.Read{Path: p, Children: op == "children"}) && op != "exists"
	}
}

func TestCache_ANodeThatChangesBetweenItsListAndItsRead(t *testing.T) {
	gone := func(x *caching) { x.delete("/c/a/x", "/c/a") }
	come := func(x *caching) { x.create("/c/a", "/c/a/y") }
	for _, sc := range []struct {
		name          string
		before, after func(x *caching) // the read of the node, and after it before the reply is seen
	}{
		{"it is deleted", gone, nil},
		{"it is deleted and created again", func(x *caching) { gone(x); come(x) }, nil},
		{"it is created again while the reply that it is not there is under way", gone, come},
		{"it is created again and deleted while the reply that it is not there is under way", gone, func(x *caching) { come(x); x.delete("/c/a/y", "/c/a") }},
		{"it is deleted while the reply that shows it is under way", nil, gone},
		{"it is deleted and created again while the reply that shows it is under way", nil, func(x *caching) { gone(x); come(x) }},
		{"its parent is deleted and created again with it while the reply is under way", nil, func(x *caching) {
			gone(x)
			x.delete("/c/b", "/c")
			x.create("/c")
			come(x)
		}},
		{"contact breaks while the reply is under way, and it is created again", nil, func(x *caching) {
			x.w.Link("cache").Partition()
			gone(x)
			come(x)
			x.w.Link("cache").Heal()
		}},
	} {
		t.Run(sc.name, func(t *testing.T) {
			onMemories(t, func(w *world) {
				var before, after coordtest.Nth
				x := w.caching("/c", nil, &backendtest.Hooks{Before: before.Before, After: after.After})
				x.create("/c", "/c/a", "/c/a/x", "/c/b")
				// The steps before and after the read. The tree must not be compared while a
				// step changes it: the cache can be synced before the late reply comes.
				var steps sync.WaitGroup
				steps.Add(2)
				step := func(do func(*caching)) func(context.Context, backendtest.Call, error) error {
					return func(_ context.Context, _ backendtest.Call, err error) error {
						defer steps.Done()
						if do != nil {
							do(x)
							// The pause lets the cache see the watches that the step fires, and
							// finish the reads that follow, before the reply arrives.
							time.Sleep(time.Millisecond)
						}
						return err
					}
				}
				before.Arm(1, at("get", "/c/a"), step(sc.before))
				after.Arm(1, at("get", "/c/a"), step(sc.after))
				f := x.reader(nil)
				x.run()
				steps.Wait() // under fake time a read that is never made is a deadlock, and fails
				x.synced()
				x.equal(f)
				w.Settle()
				x.equal(f)
			})
		})
	}
}

// A list of children that arrives late is not applied to a parent that was recreated meanwhile.
func TestCache_AListThatArrivesLate(t *testing.T) {
	for name, during := range map[string]func(x *caching){
		"a child is deleted and created again": func(x *caching) {
			x.delete("/c/p/a")
			x.create("/c/p/a")
		},
		"the parent is created again with another child": func(x *caching) {
			x.delete("/c/p/a", "/c/p")
			x.create("/c/p", "/c/p/b")
		},
		"the parent is created again, after contact was lost": func(x *caching) {
			x.w.Link("cache").Partition()
			x.delete("/c/p/a", "/c/p")
			x.create("/c/p", "/c/p/b")
			x.w.Link("cache").Heal()
		},
		"the parent is deleted": func(x *caching) { x.delete("/c/p/a", "/c/p") },
	} {
		t.Run(name, func(t *testing.T) {
			withoutTrees(t, func(w *world) {
				var after coordtest.Nth
				x := w.caching("/c", nil, &backendtest.Hooks{After: after.After})
				x.create("/c", "/c/p", "/c/p/a")
				f := x.reader(nil)
				x.run().synced()
				x.equal(f)
				gone, held := make(chan struct{}), make(chan struct{})
				after.Arm(1, at("children", "/c/p"), func(_ context.Context, _ backendtest.Call, err error) error {
					<-gone
					during(x)
					time.Sleep(time.Millisecond)
					close(held)
					return err
				})
				x.create("/c/p/c")
				x.delete("/c/p/c")
				close(gone)
				<-held
				x.equal(f)
			})
		})
	}
}

// holds delays calls before they are sent.
type holds struct {
	mu   sync.Mutex
	held map[string]chan struct{} // by operation and path
}

func (h *holds) pass(what string) {
	h.mu.Lock()
	let := h.held[what]
	h.mu.Unlock()
	if let != nil {
		<-let
	}
}

func (h *holds) before(_ context.Context, c backendtest.Call) error {
	h.pass(c.Op + " " + c.Path)
	for _, r := range c.Reads {
		h.pass(map[bool]string{false: "get ", true: "children "}[r.Children] + r.Path)
	}
	return nil
}

// hold delays the calls of this kind until release is called.
func (h *holds) hold(what string) (release func()) {
	let := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		h.held = make(map[string]chan struct{})
	}
	h.held[what] = let
	return func() {
		h.mu.Lock()
		if h.held[what] == let { // else it is held anew
			delete(h.held, what)
		}
		h.mu.Unlock()
		close(let)
	}
}

// stalled is a backend whose sessions can stall a caller of Done. Run calls Done before it
// waits, so a test chooses what Run finds when it continues.
type stalled struct {
	backend.Backend
	h *holds
}

func (b stalled) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	return stalledSession{s, b.h}, err
}

type stalledSession struct {
	backend.Session
	h *holds
}

func (s stalledSession) Done() <-chan struct{} {
	s.h.pass("done")
	return s.Session.Done()
}

// A node is deleted and created again, and then a list of its parent's children is read, which
// names the new node. When the cache finds both, it must handle the deletion first, although
// there is no order between channels.
func TestCache_AnEventIsHandledBeforeALaterReply(t *testing.T) {
	onMemories(t, func(w *world) {
		var h holds
		link := backendtest.Intercept(w.Link("cache"), backendtest.Hooks{Before: h.before})
		c := coordtest.Open(w.T, stalled{link, &h}, nil)
		x := &caching{w: w, c: c, k: coord.NewCache(c, "/c", nil), s: w.Session("writer"), root: "/c", done: make(chan struct{})}
		x.ctx, x.stop = context.WithCancel(context.Background())
		x.create("/c", "/c/a", "/c/x")
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		for range 50 {
			w.Settle()
			list := h.hold("children /c")
			x.create("/c/b")
			w.Settle() // the list is requested, and held back
			run := h.hold("done")
			x.do(backend.SetData("/c/x", nil, backend.AnyVersion))
			w.Settle() // Run is stalled
			x.delete("/c/a")
			x.create("/c/a")
			list()
			w.Settle() // the reply has arrived
			run()
			x.equal(f)
			x.delete("/c/b")
			x.equal(f)
		}
	})
}

// The same with trees, where no list is read: the reply shows the new node, and a deletion that is
// handled after it would remove that node for a while.
func TestCache_ADeletionIsHandledBeforeALaterReplyThatShowsTheNextNode(t *testing.T) {
	onMemory(t, func(w *world) {
		var h holds
		link := backendtest.Intercept(w.Link("cache"), backendtest.Hooks{Before: h.before})
		c := coordtest.Open(w.T, stalled{link, &h}, nil)
		x := &caching{w: w, c: c, k: coord.NewCache(c, "/c", nil), s: w.Session("writer"), root: "/c", done: make(chan struct{})}
		x.ctx, x.stop = context.WithCancel(context.Background())
		x.create("/c", "/c/a", "/c/x")
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		const rounds = 20
		for range rounds {
			w.Settle()
			get, other := h.hold("get /c/a"), h.hold("get /c/x")
			x.do(backend.SetData("/c/a", nil, backend.AnyVersion))
			w.Settle() // the read is requested, and held back
			run := h.hold("done")
			x.do(backend.SetData("/c/x", nil, backend.AnyVersion))
			w.Settle() // Run is stalled
			x.delete("/c/a")
			x.create("/c/a")
			get()
			w.Settle() // the reply has arrived
			again := h.hold("get /c/a")
			for range 4 { // Run handles one thing after the other, and the reader sees each
				next := h.hold("done")
				run()
				w.Settle()
				run = next
			}
			run()
			w.Settle()
			again()
			other()
			x.equal(f)
		}
		if f.Flashes != 0 {
			w.T.Errorf("%d deletions of what was there in %d rounds", f.Flashes, rounds)
		}
	})
}

// A list is read from a node that has replaced the one in the copy, which the cache does not
// know yet. The names must not become children of the old node: they would be created twice.
func TestCache_AListOfARecreatedNodeIsNotThatOfTheOldOne(t *testing.T) {
	withoutTrees(t, func(w *world) {
		var h holds
		x := w.caching("/c", nil, &backendtest.Hooks{Before: h.before})
		x.create("/c", "/c/p", "/c/p/a")
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		list, data := h.hold("children /c/p"), h.hold("get /c/p")
		x.create("/c/p/z")
		x.do(backend.SetData("/c/p", nil, backend.AnyVersion))
		w.Settle() // both watches have fired, and both reads are held back
		x.delete("/c/p/z", "/c/p/a", "/c/p")
		x.create("/c/p", "/c/p/b")
		list()
		w.Settle()
		data()
		x.equal(f)
		if f.Flashes != 0 || f.Seen["/c/p/b"] != 1 {
			w.T.Errorf("%d deletions of what was there, events %v", f.Flashes, f.Seen)
		}
	})
}

func TestCache_ACacheEndsWhenTheServiceRefuses(t *testing.T) {
	onMemories(t, func(w *world) {
		for _, op := range []string{"get", "children"} {
			denied := at(op, "/c/secret")
			c := w.Open("cache", &backendtest.Hooks{
				Before: func(_ context.Context, c backendtest.Call) error {
					if c.Op != "read" && denied(c) {
						return backend.ErrDenied
					}
					return nil
				},
				Results: func(c backendtest.Call, results []backend.ReadResult) {
					for i, r := range c.Reads {
						if denied(backendtest.Call{Op: map[bool]string{false: "get", true: "children"}[r.Children], Path: r.Path}) {
							results[i] = backend.ReadResult{Err: &backend.Error{Op: op, Path: r.Path, Err: backend.ErrDenied}}
						}
					}
				},
			})
			x := &caching{w: w, c: c, k: coord.NewCache(c, "/c", nil), s: w.Session("writer"), root: "/c"}
			if op == "get" {
				x.create("/c", "/c/a", "/c/a/x", "/c/secret", "/c/secret/x")
			}
			err := x.k.Run(context.Background())
			coordtest.WantErr(w.T, err, coord.ErrDenied)
			if !strings.Contains(err.Error(), "/c/secret") {
				w.T.Errorf("the error does not name the node: %v", err)
			}
		}
	})
}

// A batch of reads is refused after the deletion of one of its nodes was handled. The refusal is that of the
// other read too.
func TestCache_ABatchIsRefusedAfterTheFirstOfItsNodesIsGone(t *testing.T) {
	onMemory(t, func(w *world) {
		var after coordtest.Nth
		x := w.caching("/c", nil, &backendtest.Hooks{After: after.After})
		x.create("/c", "/c/a", "/c/b")
		batch, refuse := make(chan []backend.Read, 1), make(chan struct{})
		after.Arm(1, func(c backendtest.Call) bool { return c.Op == "read" }, func(_ context.Context, c backendtest.Call, _ error) error {
			batch <- c.Reads
			<-refuse
			return backend.ErrDenied
		})
		x.run()
		reads := <-batch
		if len(reads) != 2 {
			w.T.Fatalf("a batch of %d reads", len(reads))
		}
		x.delete(reads[0].Path)
		w.Settle() // the deletion is handled
		close(refuse)
		w.Settle()
		select {
		case <-x.done:
			coordtest.WantErr(w.T, x.err, coord.ErrDenied)
		default:
			w.T.Errorf("the cache continues with %v", coordtest.CopyOf(x.k, "/c"))
		}
	})
}

// Requests are sent one after the other. Synced is closed after the last that the copy needs.
func TestCache_SyncedMeansThatTheCopyIsWhole(t *testing.T) {
	onMemories(t, func(w *world) {
		send := make(chan struct{})
		x := w.caching("/c", nil, &backendtest.Hooks{Before: func(ctx context.Context, _ backendtest.Call) error {
			select {
			case <-send:
			case <-ctx.Done():
			}
			return nil
		}})
		x.create("/c", "/c/a", "/c/a/x", "/c/b")
		tree := x.tree()
		x.run()
		for sent := 0; ; sent++ {
			w.Settle()
			select {
			case <-x.k.Synced():
				if got := coordtest.CopyOf(x.k, "/c"); !maps.Equal(got, tree) {
					w.T.Errorf("synced after %d requests with %v, want %v", sent, got, tree)
				}
				return
			default:
			}
			select {
			case send <- struct{}{}:
			default:
				w.T.Fatalf("not synced, and no request is under way after %d", sent)
			}
		}
	})
}

// A node is replaced after its data was read and before its children were. The children of the new node
// belong to the first copy.
func TestCache_SyncedWaitsForTheChildrenOfANodeThatWasReplaced(t *testing.T) {
	withoutTrees(t, func(w *world) {
		var h holds
		x := w.caching("/c", nil, &backendtest.Hooks{Before: h.before})
		x.create("/c", "/c/a", "/c/a/x")
		list := h.hold("children /c/a")
		x.run()
		w.Settle() // the list is held back
		data := h.hold("get /c/a")
		x.do(backend.SetData("/c/a", nil, backend.AnyVersion))
		w.Settle() // the watch has fired, and the next read is held back: no watch is armed on the node
		x.delete("/c/a/x", "/c/a")
		x.create("/c/a", "/c/a/y")
		below := h.hold("get /c/a/y")
		data()
		w.Settle()
		list()
		w.Settle()
		select {
		case <-x.k.Synced():
			w.T.Errorf("synced with %v", coordtest.CopyOf(x.k, "/c"))
		default:
		}
		below()
		x.synced()
		x.equal()
	})
}

// The server of a new session can lag behind what the cache has seen.
func TestCache_ANewSessionReadsNothingBeforeItsServerHasCaughtUp(t *testing.T) {
	onMemories(t, func(w *world) {
		var mu sync.Mutex
		current := make(map[int64]bool)
		x := w.caching("/c", nil, &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Op == "sync" {
				current[c.Session.ID()] = true
			} else if !current[c.Session.ID()] {
				w.T.Errorf("a session sends a %s of %s before its server has caught up", c.Op, c.Path)
			}
			return err
		}})
		x.create("/c", "/c/a")
		x.run().synced()
		x.equal()
		session, err := x.c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("cache").Expire(session.ID())
		x.create("/c/b")
		x.equal()
		mu.Lock()
		defer mu.Unlock()
		if len(current) != 2 {
			w.T.Errorf("%d sessions, want 2", len(current))
		}
	})
}

// The reply to a read of a node that is gone comes while the next node at its path is read. The deletion of
// that one is not missed.
func TestCache_ADeletionBesideALateReplyOfAnEarlierNode(t *testing.T) {
	onMemory(t, func(w *world) {
		var h holds
		x := w.caching("/c", nil, &backendtest.Hooks{After: func(ctx context.Context, c backendtest.Call, err error) error {
			h.before(ctx, c)
			return err
		}})
		x.create("/c", "/c/a")
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		first := h.hold("get /c/b")
		x.create("/c/b")
		w.Settle() // the reply is held back
		x.delete("/c/b")
		w.Settle()
		second := h.hold("get /c/b")
		x.create("/c/b")
		w.Settle() // both replies are held back
		first()
		w.Settle()
		x.delete("/c/b")
		w.Settle()
		second()
		w.Settle()
		x.equal(f)
	})
}

// A refusal ends Run at once, although another read is not answered.
func TestCache_ARefusalDoesNotWaitForOtherReads(t *testing.T) {
	withoutTrees(t, func(w *world) {
		x := w.caching("/c", nil, &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			switch c.Path {
			case "/c/silent":
				<-ctx.Done()
			case "/c/secret":
				return backend.ErrDenied
			}
			return nil
		}})
		x.create("/c", "/c/silent", "/c/secret")
		x.run()
		w.Settle()
		select {
		case <-x.done:
			coordtest.WantErr(w.T, x.err, coord.ErrDenied)
		default:
			w.T.Error("Run waits for the read that is not answered")
		}
	})
}

// The watch of the tree can be over at any time. The cache then reads everything again, and
// misses nothing.
func TestCache_ACacheWhoseTreeWatchIsOver(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		var tree *backend.TreeWatch
		armed := 0
		x := w.caching("/c", nil, &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Tree != nil {
				tree = c.Tree
				armed++
			}
			return nil
		}})
		over := func() {
			mu.Lock()
			defer mu.Unlock()
			tree.Over()
		}
		x.create("/c", "/c/a", "/c/a/x", "/c/b")
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		for i := range 10 {
			over()
			x.delete("/c/a/x", "/c/a")
			x.create("/c/a", fmt.Sprint("/c/new", i))
			if i%2 == 0 {
				w.Settle()
				over()
			}
			x.do(backend.SetData("/c/b", nil, backend.AnyVersion))
			x.create("/c/a/x")
			x.equal(f)
		}
		if armed < 11 {
			w.T.Errorf("the tree was armed %d times", armed)
		}
	})
}

// A service that says it has trees, and refuses them, is followed without.
func TestCache_ACacheOfAServiceThatRefusesItsTrees(t *testing.T) {
	for _, refused := range []string{"watch", "read"} {
		t.Run(refused, func(t *testing.T) {
			onMemory(t, func(w *world) {
				x := w.caching("/c", nil, &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if c.Op == refused {
						return backend.ErrUnsupported
					}
					return nil
				}})
				x.create("/c", "/c/a", "/c/a/x", "/c/b")
				f := x.reader(nil)
				x.run().synced()
				x.equal(f)
				x.delete("/c/a/x")
				x.create("/c/b/y")
				x.do(backend.SetData("/c", nil, backend.AnyVersion))
				x.equal(f)
			})
		})
	}
}

// A child that is created while the data of its parent is read, or the list of the parent's
// children, has no list that names it.
func TestCache_AChildThatIsCreatedWhileItsParentIsRead(t *testing.T) {
	for _, op := range []string{"get", "children"} {
		for _, late := range []bool{false, true} { // before the read, or when its reply is under way
			t.Run(fmt.Sprint(op, late), func(t *testing.T) {
				onMemories(t, func(w *world) {
					var before, after coordtest.Nth
					x := w.caching("/c", nil, &backendtest.Hooks{Before: before.Before, After: after.After})
					x.create("/c", "/c/p", "/c/b")
					if op == "children" {
						x.create("/c/p/old")
					}
					step := func(_ context.Context, _ backendtest.Call, err error) error {
						x.create("/c/p/new", "/c/p/new/below")
						x.do(backend.SetData("/c/p/new", nil, 0))
						time.Sleep(time.Millisecond) // the cache sees the changes before the reply
						return err
					}
					if late {
						after.Arm(1, at(op, "/c/p"), step)
					} else {
						before.Arm(1, at(op, "/c/p"), step)
					}
					f := x.reader(nil)
					x.run().synced()
					w.Settle()
					x.equal(f)
				})
			})
		}
	}
}

// The reply that there is no root is under way when the root is created.
func TestCache_ARootThatIsCreatedWhileItIsRead(t *testing.T) {
	onMemories(t, func(w *world) {
		var after coordtest.Nth
		x := w.caching("/c", nil, &backendtest.Hooks{After: after.After})
		after.Arm(1, at("get", "/c"), func(_ context.Context, _ backendtest.Call, err error) error {
			x.create("/c", "/c/a")
			time.Sleep(time.Millisecond) // the cache sees the changes before the reply
			return err
		})
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
	})
}

// lateTrees is a service whose tree watches report only when pass is called.
type lateTrees struct {
	backend.Backend
	from, to *backend.TreeWatch
}

type lateTreesSession struct {
	backend.Session
	b *lateTrees
}

func (b *lateTrees) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	return lateTreesSession{s, b}, err
}

func (s lateTreesSession) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	s.b.from, s.b.to = backend.NewTreeWatch(0), w
	w.Arm(nil)
	return s.Session.WatchTree(ctx, path, s.b.from)
}

func (b *lateTrees) pass() {
	changes, _ := b.from.Take()
	for _, c := range changes {
		b.to.Tell(c)
	}
}

// The root is created and changed before the cache sees the reply that shows its creation. Its
// tree then reports both as one change.
func TestCache_ARootThatIsCreatedAndChangedWhileItIsRead(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		s, b := w.Session("writer"), &lateTrees{Backend: w.Link("cache")}
		commit := func(op backend.Op) {
			if _, err := s.Commit(ctx, op); err != nil {
				w.T.Error(err)
			}
		}
		var before, after coordtest.Nth
		before.Arm(1, at("get", "/c"), func(context.Context, backendtest.Call, error) error {
			commit(backend.Create("/c", []byte("created"), backend.Persistent))
			return nil
		})
		after.Arm(1, at("get", "/c"), func(_ context.Context, _ backendtest.Call, err error) error {
			commit(backend.SetData("/c", []byte("changed"), backend.AnyVersion))
			b.pass()
			return err
		})
		k := coord.NewCache(coordtest.Open(w.T, backendtest.Intercept(b, backendtest.Hooks{Before: before.Before, After: after.After}), nil), "/c", nil)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			k.Run(ctx)
		}()
		<-k.Synced()
		w.Settle()
		if n, ok := k.Get("/c"); !ok || string(n.Data) != "changed" {
			w.T.Errorf("the copy has %q, %v", n.Data, ok)
		}
		cancel()
		<-ended
	})
}

// The root is created while the reply that it is not there is under way, and the watch of that request
// reports it first.
func TestCache_ARootThatIsCreatedWhileItIsLookedFor(t *testing.T) {
	looked := 0
	onMemories(t, func(w *world) {
		var after coordtest.Nth
		x := w.caching("/c", nil, &backendtest.Hooks{After: after.After})
		after.Arm(1, func(c backendtest.Call) bool { return c.Op == "exists" && c.Path == "/c" }, func(_ context.Context, _ backendtest.Call, err error) error {
			looked++
			x.create("/c", "/c/a")
			time.Sleep(time.Millisecond) // the cache sees the creation before the reply
			return err
		})
		x.run().synced()
		if !after.Idle() {
			return // the service watches the tree
		}
		x.equal(x.reader(nil))
	})
	if looked == 0 {
		t.Error("no cache looks for its root")
	}
}
