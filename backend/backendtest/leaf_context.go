package backendtest

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
)

// A callCase is one call of a session.
type callCase struct {
	name   string
	op     string // the operation that the error names
	path   string // the path that the error names
	commit bool
	do     func(ctx context.Context, c backend.Session) error
}

// calls returns every kind of call that goes to the service and that it supports. n exists;
// the commits create nodes below it.
func (c *client) calls(n string) []callCase {
	all := []callCase{
		{"get", "get", n, false, func(ctx context.Context, c backend.Session) error {
			_, _, err := c.Get(ctx, n, nil)
			return err
		}},
		{"exists", "exists", n, false, func(ctx context.Context, c backend.Session) error {
			_, err := c.Exists(ctx, n, nil)
			return err
		}},
		{"children", "children", n, false, func(ctx context.Context, c backend.Session) error {
			_, _, err := c.Children(ctx, n, nil)
			return err
		}},
		{"arm", "arm", n, false, func(ctx context.Context, c backend.Session) error {
			data, children := backend.NewWatch(), backend.NewWatch()
			defer data.Stop()
			defer children.Stop()
			return c.Arm(ctx, math.MaxInt64, backend.Target{Path: n, Watch: data}, backend.Target{Path: n, Children: true, Watch: children})
		}},
		{"sync", "sync", n, false, func(ctx context.Context, c backend.Session) error {
			return c.Sync(ctx, n)
		}},
		{"commit of one", "create", n + "/one-", true, func(ctx context.Context, c backend.Session) error {
			_, err := c.Commit(ctx, backend.Create(n+"/one-", nil, backend.EphemeralSequential))
			return err
		}},
		{"commit of two", "commit", n + "/two-", true, func(ctx context.Context, c backend.Session) error {
			_, err := c.Commit(ctx,
				backend.Create(n+"/two-", nil, backend.PersistentSequential),
				backend.Check(n, backend.AnyVersion))
			return err
		}},
	}
	if c.Features().Has(backend.Trees) {
		all = append(all, callCase{"watch tree", "watch", n, false, func(ctx context.Context, c backend.Session) error {
			w := backend.NewTreeWatch(0)
			defer w.Stop()
			return c.WatchTree(ctx, n, w)
		}})
	}
	if c.Features().Has(backend.Batches) {
		all = append(all, callCase{"read many", "read", n, false, func(ctx context.Context, c backend.Session) error {
			_, err := c.ReadMany(ctx, backend.Read{Path: n}, backend.Read{Path: n, Children: true})
			return err
		}})
	}
	return all
}

// over checks the error of a call that the session, or ctx, ended.
func (c callCase) over(s *scene, err error, targets ...error) {
	s.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			s.Errorf("%s returned %v, want an error that matches %q", c.name, err, target)
			return
		}
	}
	var e *backend.Error
	if !errors.As(err, &e) {
		s.Errorf("%s returned %v (%T), which is not a *backend.Error", c.name, err, err)
		return
	}
	index := 0
	if c.commit {
		index = -1 // no operation is to blame
	}
	if e.Op != c.op || e.Path != c.path || e.Index != index {
		s.Errorf("%s returned an error that names %s %s [%d]", c.name, e.Op, e.Path, e.Index)
	}
}

type endedContext struct {
	name string
	ctx  context.Context
}

// endedContexts returns contexts that have ended in different ways.
func endedContexts(s *scene) []endedContext {
	canceled, cancel := context.WithCancel(s.ctx)
	cancel()
	cause, cancelCause := context.WithCancelCause(s.ctx)
	cancelCause(errors.New("the reason"))
	child, cancelChild := context.WithTimeout(cause, time.Hour)
	cancelChild()
	late, cancelLate := context.WithDeadline(s.ctx, time.Now().Add(-time.Second))
	cancelLate()
	lateCause, cancelLateCause := context.WithDeadlineCause(s.ctx, time.Now().Add(-time.Second), errors.New("too late"))
	cancelLateCause()
	return []endedContext{
		{"canceled", canceled}, {"canceled with a cause", cause}, {"child of one with a cause", child},
		{"late", late}, {"late with a cause", lateCause},
	}
}

func contextLeaves() []leaf {
	return []leaf{
		{"that has ended stops every call before it begins", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			for _, e := range endedContexts(s) {
				for _, call := range c.calls(n) {
					err := call.do(e.ctx, c.Session)
					call.over(s, err, e.ctx.Err(), context.Cause(e.ctx))
					if errors.Is(err, backend.ErrUncertain) {
						s.Errorf("%s, %s: nothing was sent, but the error matches ErrUncertain: %v", e.name, call.name, err)
					}
				}
			}
			c.sync()
			if names, _ := c.children(n, nil); len(names) != 0 {
				s.Fatalf("commits with ended contexts created %v", names)
			}
		}},
		{"that ends while the session is suspended ends every call", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			c.sync()
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			ctx, cancel := context.WithCancelCause(s.ctx)
			calls := c.calls(n)
			errs := make([]chan error, len(calls))
			for i, call := range calls {
				errs[i] = make(chan error, 1)
				go func() { errs[i] <- call.do(ctx, c.Session) }()
			}
			cause := errors.New("the reason")
			cancel(cause)
			m := pace.Start(s, nil)
			for i, call := range calls {
				call.over(s, <-errs[i], cause, context.Canceled)
			}
			s.prompt(m, 0, "calls whose ctx ended in suspension")
		}},
		{"with a deadline in the suspension ends every call then", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			c.sync()
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			ctx, cancel := context.WithTimeout(s.ctx, s.timeout/10)
			defer cancel()
			calls := c.calls(n)
			errs := make([]chan error, len(calls))
			for i, call := range calls {
				errs[i] = make(chan error, 1)
				go func() { errs[i] <- call.do(ctx, c.Session) }()
			}
			for i, call := range calls {
				call.over(s, <-errs[i], context.DeadlineExceeded)
			}
		}},
		{"that ends while a read is under way ends the read and nothing else", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			latency := s.delay(c.link)
			ended := 0
			for i := range 24 {
				for _, call := range c.calls(n) {
					if call.commit {
						continue
					}
					ctx, cancel := context.WithTimeoutCause(s.ctx, latency*time.Duration(i%6)/2+time.Duration(i), errors.New("too slow"))
					err := call.do(ctx, c.Session)
					if err != nil {
						ended++
						call.over(s, err, context.DeadlineExceeded, context.Cause(ctx))
					}
					cancel()
				}
			}
			if ended == 0 {
				s.Error("no read was ended: the test hit nothing")
			}
			if data, _ := c.get(n, nil); data != "v" || c.Err() != nil {
				s.Fatalf("read %q afterwards; Err is %v", data, c.Err())
			}
		}},
		{"that ends while a commit is under way leaves its outcome uncertain", func(s *scene) {
			s.abandon(func(*client, string, error) {})
		}},
		{"that ends after the call does nothing", func(s *scene) {
			c := s.open("a")
			ctx, cancel := context.WithCancel(s.ctx)
			n := s.path("n")
			if _, err := c.Commit(ctx, backend.Create(n, nil, backend.Ephemeral)); err != nil {
				s.Fatal(err)
			}
			w := backend.NewWatch()
			if _, _, err := c.Get(ctx, n, w); err != nil {
				s.Fatal(err)
			}
			cancel()
			c.silent(w, "only its context has ended")
			c.set(n, "new")
			s.fires(w, backend.LookAgain)
		}},
		{"that ended a read leaves its watch unarmed", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			ctx, cancel := context.WithCancel(s.ctx)
			cancel()
			get, exists, children, armed := backend.NewWatch(), backend.NewWatch(), backend.NewWatch(), backend.NewWatch()
			if _, _, err := c.Get(ctx, n, get); err == nil {
				s.Fatal("get with an ended context succeeded")
			}
			if _, err := c.Exists(ctx, n, exists); err == nil {
				s.Fatal("exists with an ended context succeeded")
			}
			if _, _, err := c.Children(ctx, n, children); err == nil {
				s.Fatal("children with an ended context succeeded")
			}
			if err := c.Arm(ctx, math.MaxInt64, backend.Target{Path: n, Watch: armed}); err == nil {
				s.Fatal("arm with an ended context succeeded")
			}
			c.remove(n)
			for _, w := range []*backend.Watch{get, exists, children, armed} {
				c.silent(w, "its read had failed")
			}
		}},
	}
}
