package backendtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
)

func lossLeaves() []leaf {
	return []leaf{
		{"is not declared after a suspension that ends in time", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			id := c.ID()
			p := c.create("e", "v", backend.Ephemeral)
			for range 3 {
				c.sync()
				phase, changed := c.Status()
				if phase != backend.PhaseConnected {
					s.Fatalf("phase %v", phase)
				}
				c.link.Partition()
				s.await(changed, "the channel of Status, after a partition")
				c.phase(backend.PhaseSuspended)
				_, changed = c.Status()
				if err := c.Err(); err != nil || isClosed(c.Done()) {
					s.Fatalf("suspended, and Err is %v", err)
				}
				c.link.Heal()
				s.await(changed, "the channel of Status, after healing")
				c.phase(backend.PhaseConnected)
				c.sync()
			}
			o.sync()
			data, stat := o.get(p, nil)
			if data != "v" || stat.EphemeralOwner != id || c.ID() != id {
				s.Fatalf("the ephemeral holds %q of owner %d; the session was %d and is %d", data, stat.EphemeralOwner, id, c.ID())
			}
		}},
		{"does not fail calls that wait for contact which returns in time", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			calls := c.calls(n)
			errs := make([]chan error, len(calls))
			for i, call := range calls {
				errs[i] = make(chan error, 1)
				go func() { errs[i] <- call.do(s.ctx, c.Session) }()
			}
			c.link.Heal()
			for i, call := range calls {
				if err := <-errs[i]; err != nil {
					s.Errorf("%s made without contact: %v", call.name, err)
				}
			}
		}},
		{"is declared by the lease when contact does not return", func(s *scene) {
			c := s.open("a")
			c.sync()
			m := pace.Start(s, nil)
			c.link.Partition()
			c.lost()
			// The lease runs from the last answer before the partition, less the margin: the
			// loss is never declared later than the timeout, except for a late timer.
			m.Within(s.timeout+2*time.Second, "the declaration of the loss")
			phase, _ := c.Status()
			if phase != backend.PhaseLost {
				s.Fatalf("phase %v of a lost session", phase)
			}
			if err := c.Err(); errors.Is(err, backend.ErrClosed) {
				s.Fatalf("the error of a lost session matches ErrClosed: %v", err)
			}
		}},
		{"is declared before the service deletes the session's nodes", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			p := c.create("e", "", backend.Ephemeral)
			o.sync()
			w := backend.NewWatch()
			o.stat(p, w)
			c.link.Partition()
			// The observer may lose contact too on a busy machine.
			for s.await(w.Fired(), "the deletion"); w.Kind() != backend.Deleted; s.await(w.Fired(), "the deletion") {
				w = backend.NewWatch()
				if _, err := o.Exists(s.ctx, p, w); errors.Is(err, backend.ErrNotFound) {
					w.Stop()
					break
				} else if err != nil {
					s.Fatal(err)
				}
			}
			if err := c.Err(); !errors.Is(err, backend.ErrSessionLost) {
				s.Fatalf("the service has deleted the session's node, but its Err is %v", err)
			}
			if !isClosed(c.Done()) {
				s.Fatal("Err reports the loss but Done is open")
			}
		}},
		{"closes the channel of Status at each step", func(s *scene) {
			c := s.open("a")
			c.sync()
			var seen []backend.Phase
			phase, changed := c.Status()
			c.link.Partition()
			for seen = append(seen, phase); phase != backend.PhaseLost; {
				s.await(changed, "the channel of Status")
				if phase, changed = c.Status(); phase != seen[len(seen)-1] {
					seen = append(seen, phase)
				}
			}
			want := []backend.Phase{backend.PhaseConnected, backend.PhaseSuspended, backend.PhaseLost}
			if fmt.Sprint(seen) != fmt.Sprint(want) {
				s.Fatalf("phases %v, want %v", seen, want)
			}
			s.await(c.Done(), "Done")
		}},
		{"ends every call at once with ErrSessionLost, calls under way and new ones", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			calls := c.calls(n)
			errs := make([]chan error, len(calls))
			for i, call := range calls {
				errs[i] = make(chan error, 1)
				go func() { errs[i] <- call.do(s.ctx, c.Session) }()
			}
			c.lost()
			m := pace.Start(s, nil)
			over := func(call callCase, err error) {
				call.over(s, err, backend.ErrSessionLost)
				if ofContext(err) {
					s.Errorf("%s on a lost session returned %v, which matches the error of a context", call.name, err)
				}
			}
			if ofContext(c.Err()) {
				s.Errorf("Err of a lost session is %v, which matches the error of a context", c.Err())
			}
			for i, call := range calls {
				over(call, <-errs[i])
			}
			for _, call := range calls {
				err := call.do(s.ctx, c.Session)
				over(call, err)
				if errors.Is(err, backend.ErrUncertain) {
					s.Errorf("%s on a lost session is uncertain: %v", call.name, err)
				}
			}
			s.prompt(m, 0, "calls of a lost session")
		}},
		{"means that no commit of the session is applied any more", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			const n = 5
			errs := make(chan error, n)
			for i := range n {
				go func() {
					_, err := c.Commit(s.ctx, backend.Create(s.path(fmt.Sprint("n", i)), nil, backend.CreateMode(i%2)))
					errs <- err
				}()
			}
			c.lost()
			c.link.Heal()
			for range n {
				if err := <-errs; !errors.Is(err, backend.ErrSessionLost) {
					s.Fatalf("a commit that waited for contact returned %v", err)
				}
			}
			if _, err := c.Commit(s.ctx, backend.Create(s.path("late"), nil, backend.Persistent)); !errors.Is(err, backend.ErrSessionLost) {
				s.Fatalf("a commit after the loss returned %v", err)
			}
			next := s.open("a") // the healed link works for other sessions
			next.create("next", "", backend.Persistent)
			timer := time.NewTimer(s.timeout)
			defer timer.Stop()
			<-timer.C
			o.sync()
			if names, _ := o.children(s.svc.Root(), nil); fmt.Sprint(names) != "[next]" {
				s.Fatalf("children %v, want only that of the next session", names)
			}
			if phase, _ := c.Status(); phase != backend.PhaseLost || !errors.Is(c.Err(), backend.ErrSessionLost) {
				s.Fatalf("a lost session is %v, %v", phase, c.Err())
			}
		}},
		{"deletes the session's nodes though another session uses its link", func(s *scene) {
			c := s.open("a")
			p := c.create("e", "", backend.Ephemeral)
			c.link.Partition()
			c.lost()
			c.link.Heal()
			next := s.open("a")
			if next.ID() == c.ID() {
				s.Fatalf("the next session has the ID of the lost one, %d", c.ID())
			}
			next.sync()
			next.gone(p)
			if next.Err() != nil {
				s.Fatalf("the next session ended: %v", next.Err())
			}
		}},
		{"is reported at once when the service ends a session in contact", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "", backend.Persistent)
			p := c.create("e", "", backend.Ephemeral)
			c.link.Expire(c.ID())
			m := pace.Start(s, nil)
			c.lost()
			m.Within(s.timeout+2*time.Second, "the report of the loss")
			for _, call := range c.calls(n) {
				call.over(s, call.do(s.ctx, c.Session), backend.ErrSessionLost)
			}
			if o.sync(); o.there(p, nil) {
				s.Fatal("the ephemeral of the expired session still exists")
			}
		}},
		{"is reported when contact returns if the service has ended the session", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			p := c.create("e", "", backend.Ephemeral)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			c.link.Expire(c.ID())
			if o.sync(); o.there(p, nil) {
				s.Fatal("the ephemeral of the expired session still exists")
			}
			c.link.Heal()
			c.lost()
			if _, err := c.Commit(s.ctx, backend.Create(s.path("n"), nil, backend.Persistent)); !errors.Is(err, backend.ErrSessionLost) {
				s.Fatalf("a commit returned %v", err)
			}
		}},
		{"stays the reason after Close", func(s *scene) {
			c := s.open("a")
			c.link.Expire(c.ID())
			c.lost()
			if err := c.Close(); err != nil {
				s.Fatalf("closing a lost session: %v", err)
			}
			if err := c.Err(); !errors.Is(err, backend.ErrSessionLost) {
				s.Fatalf("Err is %v", err)
			}
		}},
	}
}
