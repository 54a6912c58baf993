package backendtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
)

func sessionLeaves() []leaf {
	return []leaf{
		{"has an ID of its own, the negotiated timeout, and begins connected", func(s *scene) {
			seen := make(map[int64]bool)
			for i := range 4 {
				c := s.open(fmt.Sprint("link", i/2))
				if c.ID() == 0 || seen[c.ID()] {
					s.Fatalf("ID %d, seen before: %v", c.ID(), seen)
				}
				seen[c.ID()] = true
				phase, changed := c.Status()
				if c.Timeout() != s.timeout || phase != backend.PhaseConnected || isClosed(changed) || isClosed(c.Done()) || c.Err() != nil {
					s.Fatalf("timeout %v, want %v; phase %v; error %v", c.Timeout(), s.timeout, phase, c.Err())
				}
			}
		}},
		{"is one of several on a link, each with a life of its own", func(s *scene) {
			a, b := s.open("a"), s.open("a")
			if err := a.Close(); err != nil {
				s.Fatal(err)
			}
			b.create("n", "", backend.Ephemeral)
			if b.Err() != nil || isClosed(b.Done()) {
				s.Fatalf("closing one session ended the other: %v", b.Err())
			}
		}},
		{"is not affected by the faults of another link", func(s *scene) {
			a, b := s.open("a"), s.open("b")
			_, changed := b.Status()
			a.link.Partition()
			a.phase(backend.PhaseSuspended)
			p := b.create("n", "", backend.Ephemeral)
			reached := isClosed(changed)
			a.lost()
			if s.fake {
				reached = isClosed(changed) // on a busy machine contact can break meanwhile
			}
			if b.sync(); !b.there(p, nil) || reached {
				s.Fatal("the partition of another link reached this one")
			}
		}},
		{"is not opened by a context that has ended", func(s *scene) {
			for _, e := range endedContexts(s) {
				_, err := s.svc.Link("a").Open(e.ctx)
				s.refusedOpen(err, e.ctx)
			}
		}},
		{"is waited for until ctx ends when there is no contact", func(s *scene) {
			link := s.svc.Link("a")
			link.Partition()
			defer link.Heal()
			cause := errors.New("the caller gave up")
			ctx, cancel := context.WithTimeoutCause(s.ctx, s.timeout/8, cause)
			defer cancel()
			m := pace.Start(s, nil)
			session, err := link.Open(ctx)
			if err == nil {
				session.Close()
				s.Fatal("a session was opened without contact")
			}
			s.refusedOpen(err, ctx)
			if !errors.Is(err, cause) {
				s.Fatalf("error %v does not match the cause", err)
			}
			s.prompt(m, s.timeout/8, "Open after its ctx ended")
		}},
		{"opens when contact comes while Open waits", func(s *scene) {
			link := s.svc.Link("a")
			link.Partition()
			type result struct {
				session backend.Session
				err     error
			}
			opened := make(chan result, 1)
			go func() {
				session, err := link.Open(s.ctx)
				opened <- result{session, err}
			}()
			timer := time.NewTimer(s.timeout / 4)
			defer timer.Stop()
			select {
			case r := <-opened:
				s.Fatalf("Open returned without contact: %v", r.err)
			case <-timer.C:
			}
			link.Heal()
			r := <-opened
			if r.err != nil {
				s.Fatal(r.err)
			}
			if err := r.session.Close(); err != nil {
				s.Fatal(err)
			}
		}},
		{"outlives the context that opened it", func(s *scene) {
			ctx, cancel := context.WithCancel(s.ctx)
			link := s.svc.Link("a")
			session, err := link.Open(ctx)
			if err != nil {
				s.Fatal(err)
			}
			s.Cleanup(func() { session.Close() })
			cancel()
			c := &client{session, s, link}
			c.create("n", "", backend.Ephemeral)
			c.sync()
			if c.Err() != nil {
				s.Fatalf("the session ended with the context of Open: %v", c.Err())
			}
		}},
		{"reports a suspension that is over before the next call of Status", func(s *scene) {
			c := s.open("a")
			for _, drop := range []func(){c.link.DropNextRequest, c.link.DropNextReply} {
				phase, changed := c.Status()
				if phase != backend.PhaseConnected {
					s.Fatalf("phase %v", phase)
				}
				drop()
				c.sync()
				s.await(changed, "the channel of Status, after a break")
				c.phase(backend.PhaseConnected)
			}
		}},
	}
}

// refusedOpen checks the error of an Open whose ctx ended.
func (s *scene) refusedOpen(err error, ctx context.Context) {
	s.Helper()
	s.refused(err, context.Cause(ctx), "open", "", 0)
	if !errors.Is(err, ctx.Err()) {
		s.Fatalf("error %v does not match %v", err, ctx.Err())
	}
}

// prompt checks that an event has happened at once when it was due, which is counted from the start of
// m. A busy machine may take half of a session's timeout, and the time in which it does other work.
func (s *scene) prompt(m *pace.Meter, due time.Duration, what string) {
	s.Helper()
	limit := 2 * time.Second
	if !s.fake {
		limit = max(limit, s.timeout/2)
	}
	m.Within(due+limit, what)
}
