package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
)

// closeLimit is the limit for "within a few seconds" in the contract of Close.
const closeLimit = 8 * time.Second

func closeLeaves() []leaf {
	return []leaf{
		{"ends the session with ErrClosed, once", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			_, changed := c.Status()
			for range 3 {
				if err := c.Close(); err != nil {
					s.Fatalf("close: %v", err)
				}
				phase, _ := c.Status()
				if phase != backend.PhaseLost || !isClosed(c.Done()) || !isClosed(changed) || !errors.Is(c.Err(), backend.ErrClosed) {
					s.Fatalf("after Close: phase %v, Done closed %v, Status closed %v, Err %v",
						phase, isClosed(c.Done()), isClosed(changed), c.Err())
				}
				if errors.Is(c.Err(), backend.ErrSessionLost) {
					s.Fatalf("Err after Close matches ErrSessionLost: %v", c.Err())
				}
			}
			for _, call := range c.calls(n) {
				err := call.do(s.ctx, c.Session)
				call.over(s, err, backend.ErrClosed)
				if errors.Is(err, backend.ErrUncertain) {
					s.Errorf("%s on a closed session is uncertain: %v", call.name, err)
				}
			}
		}},
		{"removes the session's nodes at once", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			for i := range 5 {
				c.create(fmt.Sprint("e", i), "", backend.Ephemeral)
			}
			c.create("plain", "", backend.Persistent)
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			o.sync()
			if names, _ := o.children(s.svc.Root(), nil); fmt.Sprint(names) != "[plain]" {
				s.Fatalf("children %v after Close, want only the persistent one", names)
			}
		}},
		{"ends the calls that wait for contact, and applies none of them", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "v", backend.Persistent)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			calls := c.calls(n)
			errs := make([]chan error, len(calls))
			for i, call := range calls {
				errs[i] = make(chan error, 1)
				go func() { errs[i] <- call.do(s.ctx, c.Session) }()
			}
			m := pace.Start(s, nil)
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			for i, call := range calls {
				// The lease may have ended the session first.
				err := <-errs[i]
				call.over(s, err, c.Err())
			}
			m.Within(closeLimit, "closing without contact")
			c.link.Heal()
			s.settle(o)
			if names, _ := o.children(n, nil); len(names) != 0 {
				s.Fatalf("calls of a closed session created %v", names)
			}
		}},
		{"without contact returns in time and leaves the nodes to the timeout", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			p := c.create("e", "", backend.Ephemeral)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			m := pace.Start(s, nil)
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			m.Within(closeLimit, "closing without contact")
			if !isClosed(c.Done()) || c.Err() == nil {
				s.Fatal("the session has not ended")
			}
			o.sync()
			o.gone(p)
		}},
		{"may come at any moment and any number of times, while calls run", func(s *scene) {
			o := s.open("o")
			for round := range 8 {
				c := s.open("a")
				name := fmt.Sprint("dir", round)
				dir := c.create(name, "", backend.Persistent)
				latency := s.delay(c.link)
				var mu sync.Mutex
				applied, uncertain := 0, 0
				var group sync.WaitGroup
				begun := make(chan struct{}, 4)
				for i := range 4 {
					mode := []backend.CreateMode{backend.PersistentSequential, backend.EphemeralSequential}[i%2]
					group.Go(func() {
						begun <- struct{}{}
						for {
							_, err := c.Commit(s.ctx, backend.Create(dir+"/"+fmt.Sprint(mode)+"-", nil, mode))
							_, _, readErr := c.Get(s.ctx, dir, nil)
							if readErr != nil && !errors.Is(readErr, backend.ErrClosed) {
								s.Errorf("get: %v", readErr)
							}
							mu.Lock()
							if mode == backend.PersistentSequential {
								if err == nil {
									applied++
								} else if errors.Is(err, backend.ErrUncertain) {
									uncertain++
								}
							}
							mu.Unlock()
							if err != nil {
								if !errors.Is(err, backend.ErrClosed) {
									s.Errorf("commit: %v", err)
								}
								return
							}
						}
					})
				}
				for range 4 {
					<-begun
				}
				timer := time.NewTimer(latency * time.Duration(round))
				<-timer.C
				for range 3 {
					group.Go(func() {
						if err := c.Close(); err != nil {
							s.Errorf("close: %v", err)
						}
						if !isClosed(c.Done()) || !errors.Is(c.Err(), backend.ErrClosed) {
							s.Errorf("Close returned before the session had ended: %v", c.Err())
						}
					})
				}
				group.Wait()
				o.sync()
				names, _ := o.children(dir, nil)
				for _, name := range names {
					if stat := o.stat(dir+"/"+name, nil); stat.EphemeralOwner != 0 {
						s.Fatalf("the ephemeral %s has outlived Close", name)
					}
				}
				if n := len(names); n < applied || n > applied+uncertain {
					s.Fatalf("%d nodes of %d successful and %d uncertain creates", n, applied, uncertain)
				}
			}
		}},
		{"ends the calls that are queued behind an abandoned one on a slow link", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "v", backend.Persistent)
			if l, ok := c.link.(slow); ok {
				defer l.SetLatency(0)
				l.SetLatency(3 * closeLimit)
			}
			for _, call := range c.calls(n) {
				if !call.commit {
					continue
				}
				ctx, cancel := context.WithTimeout(s.ctx, s.timeout/10)
				call.over(s, call.do(ctx, c.Session), context.DeadlineExceeded)
				cancel()
			}
			calls := c.calls(n)
			errs := make([]chan error, len(calls))
			for i, call := range calls {
				errs[i] = make(chan error, 1)
				go func() { errs[i] <- call.do(s.ctx, c.Session) }()
			}
			timer := time.NewTimer(s.timeout / 20) // by then the calls are probably under way
			<-timer.C
			m := pace.Start(s, nil)
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			for i, call := range calls {
				call.over(s, <-errs[i], c.Err())
			}
			m.Within(closeLimit, "the end of the calls under way")
			s.settle(o)
			if names, _ := o.children(n, nil); len(names) != 0 {
				s.Errorf("calls of a closed session created %v", names)
			}
		}},
		{"ends a session that waits for nothing but its watches", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			w := backend.NewWatch()
			c.children(n, w)
			waited := make(chan error, 1)
			go func() {
				<-w.Fired()
				waited <- c.Err()
			}()
			if err := c.Close(); err != nil {
				s.Fatal(err)
			}
			if err := <-waited; !errors.Is(err, backend.ErrClosed) {
				s.Fatalf("the waiter found Err %v", err)
			}
		}},
	}
}
