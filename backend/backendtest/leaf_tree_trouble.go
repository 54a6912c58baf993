package backendtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
)

func treeTroubleLeaves() []leaf {
	return []leaf{
		onTrees("refuses invalid arguments", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			s.refused(c.WatchTree(s.ctx, n, nil), backend.ErrInvalid, "watch", n, 0)
			for _, bad := range []string{"", "n", n + "/", "/a//b", "/a\u200bb"} {
				w := backend.NewTreeWatch(0)
				s.refused(c.WatchTree(s.ctx, bad, w), backend.ErrBadPath, "watch", bad, 0)
				o.set(n, "new")
				c.tells(w)
			}
		}),
		onTrees("is over after a reconnect, before a read on the new contact returns", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			for _, f := range faults() {
				w, taken := c.tree(n, 0), c.tree(s.path("missing"), 0)
				o.set(n, "new")
				c.sync() // the change is waiting, and is dropped
				f.drop(c.link)
				c.sync()
				c.get(n, nil)
				s.isOver(w, "contact broke with a lost "+f.name)
				s.isOver(taken, "contact broke with a lost "+f.name)
				o.set(n, "newer")
				c.sync()
				s.isOver(w, "it stays so")
			}
			w := c.tree(n, 0)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			o.remove(n)
			c.link.Heal()
			c.phase(backend.PhaseConnected)
			if c.there(n, nil) {
				c.sync()
			}
			s.isOver(w, "contact broke")
			w = c.tree(n, 0)
			o.create("n", "", backend.Persistent)
			c.tells(w, treeChange(treeCreated, n))
		}),
		onTrees("is over at the end of the session, which has its error by then", func(s *scene) {
			for i, end := range []func(c *client){
				func(c *client) { c.link.Expire(c.ID()) },
				func(c *client) { c.link.Partition() },
				func(c *client) { c.Close() },
			} {
				c := s.open(fmt.Sprint("a", i))
				w := c.tree(s.svc.Root(), 0)
				c.sync()
				w.Take()
				end(c)
				over := false
				for !over { // the other sessions change the tree meanwhile
					s.awaitTree(w)
					_, over = w.Take()
				}
				if i < 2 {
					s.await(c.Done(), "the loss")
				}
				if c.Err() == nil {
					s.Fatal("the watch is over and Err is nil")
				}
				none := backend.NewTreeWatch(0)
				if err := c.WatchTree(s.ctx, s.svc.Root(), none); !errors.Is(err, backend.ErrSessionLost) && !errors.Is(err, backend.ErrClosed) {
					s.Fatalf("a tree watch on a session that has ended: %v", err)
				}
				if got, over := none.Take(); got != nil || over {
					s.Fatalf("an unarmed watch told %v, over %v", got, over)
				}
			}
		}),
		onTrees("is over when more changes wait than its limit, and the others go on", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			small, large := c.tree(n, 3), c.tree(n, 0)
			var want []backend.TreeChange
			for i := range 4 {
				for range 5 { // several changes of one node count once
					o.set(n, "new")
				}
				if i == 0 {
					want = append(want, treeChange(treeChanged, n))
				}
				want = append(want, treeChange(treeCreated, o.create(fmt.Sprint("n/", i), "", backend.Persistent)))
				c.sync()
				if i == 1 {
					c.tells(small, want...)
				}
			}
			c.tells(small, treeChange(treeChanged, n), want[3], want[4])
			for i := range 4 {
				o.create(fmt.Sprint("n/more", i), "", backend.Persistent)
			}
			c.sync()
			s.isOver(small, "too many changes were waiting")
			if got, over := large.Take(); over || len(got) != 9 {
				s.Fatalf("the other told %v, over %v", got, over)
			}
			again := c.tree(n, 3)
			o.set(n, "new")
			c.tells(again, treeChange(treeChanged, n))
			c.tells(large, treeChange(treeChanged, n))
		}),
		onTrees("is repeated when its request or its reply is lost", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			for i := range 6 {
				f := faults()[i%2]
				c.sync()
				f.drop(c.link)
				w := c.tree(n, 0)
				o.set(n, "new")
				c.sync()
				got, over := w.Take()
				if !over && len(got) != 1 {
					s.Fatalf("with a lost %s the watch told %v, and is not over", f.name, got)
				}
				w.Stop()
			}
		}),
		onTrees("is not armed when its context has ended", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			w := backend.NewTreeWatch(0)
			ctx, cancel := context.WithCancelCause(s.ctx)
			cause := errors.New("the reason")
			result := make(chan error, 1)
			go func() { result <- c.WatchTree(ctx, n, w) }()
			cancel(cause)
			s.refused(<-result, cause, "watch", n, 0)
			c.link.Heal()
			c.phase(backend.PhaseConnected)
			o.set(n, "new")
			c.tells(w)
		}),
		onTrees("waits for contact, and is armed on the new one", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			w := backend.NewTreeWatch(0)
			result := make(chan error, 1)
			go func() { result <- c.WatchTree(s.ctx, n, w) }()
			s.settle(o) // the call waits for contact now
			c.link.Heal()
			if err := <-result; err != nil {
				s.Fatal(err)
			}
			o.set(n, "new")
			c.sync()
			if got, over := w.Take(); !over && len(got) != 1 {
				s.Fatalf("the watch told %v, and is not over", got)
			}
		}),
	}
}

// awaitTree waits until the watch has something to take.
func (s *scene) awaitTree(w *backend.TreeWatch) {
	s.Helper()
	timer := time.NewTimer(s.limit)
	defer timer.Stop()
	select {
	case <-w.Ready():
	case <-timer.C:
		s.Fatalf("waited %v in vain for a tree watch", s.limit)
	}
}
