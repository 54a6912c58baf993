package backendtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// A scene is the environment of a leaf: one fresh service, and time limits.
type scene struct {
	testing.TB
	svc     Service
	timeout time.Duration // of a session
	limit   time.Duration // the longest wait for anything
	fake    bool          // time is fake
	soon    bool          // an empty container is removed soon
	ctx     context.Context
}

// newScene makes a service for t. Failures of the leaf go to tb, which is t itself except
// where the suite is under test.
func newScene(t *testing.T, tb testing.TB, h Harness) *scene {
	s := &scene{TB: tb, svc: h.New(t), timeout: h.SessionTimeout, fake: h.Leaf != nil, soon: h.Collects}
	if s.timeout <= 0 {
		tb.Fatal("the harness has no SessionTimeout")
	}
	s.limit = 10*time.Second + 4*s.timeout
	if !s.fake {
		s.limit += time.Minute // it judges nothing, and a busy machine must not reach it
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*s.limit)
	t.Cleanup(cancel)
	s.ctx = ctx
	return s
}

// path returns the path of a node below the root of the service.
func (s *scene) path(name string) string {
	if root := s.svc.Root(); root != "/" {
		return root + "/" + name
	}
	return "/" + name
}

// A client is a session whose calls must succeed, unless they are made on the
// session itself.
type client struct {
	backend.Session
	s    *scene
	link Link
}

// open opens a session over the link with that name and closes it at the end.
func (s *scene) open(link string) *client {
	s.Helper()
	l := s.svc.Link(link)
	session, err := l.Open(s.ctx)
	if err != nil {
		s.Fatalf("open over link %s: %v", link, err)
	}
	s.Cleanup(func() {
		l.Heal() // or Close would wait for its time limit
		if err := session.Close(); err != nil {
			s.Errorf("close at the end of the test: %v", err)
		}
	})
	return &client{Session: session, s: s, link: l}
}

func (c *client) commit(ops ...backend.Op) []backend.Result {
	c.s.Helper()
	results, err := c.Commit(c.s.ctx, ops...)
	if err != nil {
		c.s.Fatalf("commit: %v", err)
	}
	if len(results) != len(ops) {
		c.s.Fatalf("commit of %d operations returned %d results", len(ops), len(results))
	}
	return results
}

// try is commit of one operation that can be refused.
func (c *client) try(op backend.Op) error {
	_, err := c.Commit(c.s.ctx, op)
	return err
}

// create makes a node below the root and returns its path.
func (c *client) create(name string, data string, mode backend.CreateMode) string {
	c.s.Helper()
	return c.commit(backend.Create(c.s.path(name), []byte(data), mode))[0].Path
}

// inside makes a container and then runs fill, which creates nodes in it. A service that removes containers soon can
// remove this one before there is a node in it, or between two: then inside begins again.
func (c *client) inside(name, data string, fill func() error) error {
	for {
		_, err := c.Commit(c.s.ctx, backend.Create(c.s.path(name), []byte(data), backend.Container))
		if err != nil && !errors.Is(err, backend.ErrExists) {
			return err
		}
		if err := fill(); !errors.Is(err, backend.ErrNotFound) {
			return err
		}
	}
}

// filled fails the test if inside has failed.
func (s *scene) filled(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("a node in a container: %v", err)
	}
}

func (c *client) set(path, data string) backend.Stat {
	c.s.Helper()
	return c.commit(backend.SetData(path, []byte(data), backend.AnyVersion))[0].Stat
}

func (c *client) remove(path string) {
	c.s.Helper()
	c.commit(backend.Delete(path, backend.AnyVersion))
}

func (c *client) get(path string, w *backend.Watch) (string, backend.Stat) {
	c.s.Helper()
	data, stat, err := c.Get(c.s.ctx, path, w)
	if err != nil {
		c.s.Fatalf("get: %v", err)
	}
	return string(data), stat
}

func (c *client) stat(path string, w *backend.Watch) backend.Stat {
	c.s.Helper()
	stat, err := c.Exists(c.s.ctx, path, w)
	if err != nil {
		c.s.Fatalf("exists: %v", err)
	}
	return stat
}

// children returns the names in order.
func (c *client) children(path string, w *backend.Watch) ([]string, backend.Stat) {
	c.s.Helper()
	names, stat, err := c.Children(c.s.ctx, path, w)
	if err != nil {
		c.s.Fatalf("children: %v", err)
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return names, stat
}

// arm arms the watches of targets.
func (c *client) arm(since int64, targets ...backend.Target) {
	c.s.Helper()
	if err := c.Arm(c.s.ctx, since, targets...); err != nil {
		c.s.Fatalf("arm: %v", err)
	}
}

// there reports whether the node exists.
func (c *client) there(path string, w *backend.Watch) bool {
	c.s.Helper()
	_, err := c.Exists(c.s.ctx, path, w)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		c.s.Fatalf("exists: %v", err)
	}
	return err == nil
}

// sync brings the session up to date, and with it the events of its watches.
func (c *client) sync() {
	c.s.Helper()
	if err := c.Sync(c.s.ctx, c.s.svc.Root()); err != nil {
		c.s.Fatalf("sync: %v", err)
	}
}

// gone waits until the node is deleted.
func (c *client) gone(path string) {
	c.s.Helper()
	for {
		w := backend.NewWatch()
		if !c.there(path, w) {
			w.Stop()
			return
		}
		c.s.await(w.Fired(), "the deletion of "+path)
	}
}

// await waits for a channel to be closed.
func (s *scene) await(ch <-chan struct{}, what string) {
	s.Helper()
	timer := time.NewTimer(s.limit)
	defer timer.Stop()
	select {
	case <-ch:
	case <-timer.C:
		s.Fatalf("waited %v in vain for %s", s.limit, what)
	}
}

// fires waits for the watch and checks its kind.
func (s *scene) fires(w *backend.Watch, kind backend.Kind) {
	s.Helper()
	s.await(w.Fired(), "a watch to fire")
	if got := w.Kind(); got != kind {
		s.Fatalf("the watch fired with %q, want %q", got, kind)
	}
}

// silent checks that no commit up to now fires the watch, which belongs to c.
func (c *client) silent(w *backend.Watch, why string) {
	c.s.Helper()
	c.sync()
	if hasFired(w) {
		c.s.Fatalf("the watch fired (%v): %s", w.Kind(), why)
	}
}

func hasFired(w *backend.Watch) bool { return isClosed(w.Fired()) || w.Kind() != 0 }

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// phase waits until the session is in the phase.
func (c *client) phase(want backend.Phase) {
	c.s.Helper()
	timer := time.NewTimer(c.s.limit)
	defer timer.Stop()
	for {
		got, changed := c.Status()
		if got == want {
			return
		}
		if got == backend.PhaseLost {
			c.s.Fatalf("the session is lost, want it %v: %v", want, c.Err())
		}
		select {
		case <-changed:
		case <-timer.C:
			c.s.Fatalf("waited %v for the session to be %v, it is %v", c.s.limit, want, got)
		}
	}
}

// ofContext reports whether err matches the error of a context that has ended.
func ofContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// lost waits until the session is lost.
func (c *client) lost() {
	c.s.Helper()
	c.s.await(c.Done(), "the loss of the session")
	if err := c.Err(); !errors.Is(err, backend.ErrSessionLost) {
		c.s.Fatalf("Err of a lost session is %v", err)
	}
}

// refused checks an error in full: the target that it matches and the operation that it
// blames.
func (s *scene) refused(err, target error, op, path string, index int) {
	s.Helper()
	if !errors.Is(err, target) {
		s.Fatalf("got error %v, want one that matches %q", err, target)
	}
	var e *backend.Error
	if !errors.As(err, &e) {
		s.Fatalf("error %v (%T) is not a *backend.Error", err, err)
	}
	if e.Op != op || e.Path != path || e.Index != index {
		s.Fatalf("error %v blames %s %s [%d], want %s %s [%d]", err, e.Op, e.Path, e.Index, op, path, index)
	}
	if target != backend.ErrUncertain && errors.Is(err, backend.ErrUncertain) {
		s.Fatalf("error %v matches ErrUncertain", err)
	}
}
