//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/trace"
)

// A scene is one lock path, a client of coord in this process, and an observer that reads the
// tree without the recipes.
type scene struct {
	t        *testing.T
	path     string
	c        *coord.Client
	observer backend.Session
}

func newScene(t *testing.T) *scene {
	t.Helper()
	b := zookeeper.New(server.Get(t).Addrs(), &zookeeper.Options{SessionTimeout: usualTimeout})
	c, err := coord.Open(t.Context(), b, &coord.Options{Trace: func(_ context.Context, e trace.Event) {
		if e, ok := e.(trace.WaitBegan); ok {
			waiting.Store(e.Node, true)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := b.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &scene{t: t, path: fmt.Sprintf("/interop/%d", ids.Add(1)), c: c, observer: s}
}

// mutex returns a lock of coord on the scene's path, with who as its data.
func (s *scene) mutex(who string) *coord.Mutex {
	return coord.NewMutex(s.c, s.path, &coord.MutexOptions{Data: []byte(who)})
}

// newExpiry returns the control for a process with the timeout that is killed.
func newExpiry(t *testing.T, timeout time.Duration) *coordtest.Expiry {
	t.Helper()
	p, err := zkproxy.New(server.Get(t).Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	at := func(addr string, timeout time.Duration) backend.Backend {
		return zookeeper.New([]string{addr}, &zookeeper.Options{SessionTimeout: timeout})
	}
	return coordtest.NewExpiry(t, at(p.Addr(), timeout), at(server.Get(t).Addrs()[0], usualTimeout), timeout, p.Blackhole)
}

// ctx returns a context for one step.
func (s *scene) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	s.t.Cleanup(cancel)
	return ctx
}

// line returns the names of the nodes at the path, ordered by their numbers.
func (s *scene) line(w *backend.Watch) []string {
	s.t.Helper()
	names, _, err := s.observer.Children(s.t.Context(), s.path, w)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		s.t.Fatal(err)
	}
	slices.SortFunc(names, func(a, b string) int {
		x, _ := numberOf(a)
		y, _ := numberOf(b)
		return int(x - y)
	})
	return names
}

// queued waits until there are n nodes and the last one's owner waits: owners in coord report
// it, the others watch the data of an earlier node. (The server does not report watches on
// children, such as coord's.)
func (s *scene) queued(n int) {
	s.t.Helper()
	for deadline := time.Now().Add(limit); ; {
		names := s.line(nil)
		if len(names) == n {
			_, told := waiting.Load(s.path + "/" + names[n-1])
			if told || s.watches(names[n-1], names[:n-1]) {
				return
			}
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("never happened: %d in the queue and the last waits; in the queue: %v", n, names)
		}
		time.Sleep(5 * time.Millisecond) // there is no signal for it
	}
}

// watches asks the server whether the owner of a node watches one of the others.
func (s *scene) watches(name string, others []string) bool {
	s.t.Helper()
	stat, err := s.observer.Exists(s.t.Context(), s.path+"/"+name, nil)
	if errors.Is(err, backend.ErrNotFound) {
		return false
	}
	if err != nil {
		s.t.Fatal(err)
	}
	// Paths, each followed by the sessions that watch it.
	text, err := server.Get(s.t).Servers()[0].FourLetter(s.t.Context(), "wchp")
	if err != nil {
		s.t.Fatal(err)
	}
	path, owner := "", fmt.Sprintf("0x%x", stat.EphemeralOwner)
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		session, ok := strings.CutPrefix(l, "\t")
		switch {
		case !ok:
			path = l
		case session == owner && slices.Contains(others, strings.TrimPrefix(path, s.path+"/")):
			return true
		}
	}
	return false
}

// empty waits until there is no contender.
func (s *scene) empty() {
	s.t.Helper()
	ctx := s.ctx()
	for {
		w := backend.NewWatch()
		names := s.line(w)
		if len(names) == 0 {
			w.Stop()
			return
		}
		select {
		case <-w.Fired():
		case <-ctx.Done():
			s.t.Fatalf("nodes left at %s: %v", s.path, names)
		}
	}
}

// locking is a Lock of coord under way.
type locking struct {
	t    *testing.T
	done chan struct{}
	h    *coord.Hold
	err  error
}

func (s *scene) lock(lock func(context.Context) (*coord.Hold, error)) *locking {
	l := &locking{t: s.t, done: make(chan struct{})}
	ctx := s.ctx()
	go func() {
		defer close(l.done)
		l.h, l.err = lock(ctx)
	}()
	return l
}

func (l *locking) hold() *coord.Hold {
	l.t.Helper()
	<-l.done
	if l.err != nil {
		l.t.Fatal(l.err)
	}
	return l.h
}

func (l *locking) pending() {
	l.t.Helper()
	select {
	case <-l.done:
		l.t.Errorf("Lock returned while another held the lock: %v", l.err)
	default:
	}
}

// hold acquires a lock of coord at once.
func (s *scene) hold(lock func(context.Context) (*coord.Hold, error)) *coord.Hold {
	s.t.Helper()
	h, err := lock(s.ctx())
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}

func (s *scene) release(h *coord.Hold) {
	s.t.Helper()
	if err := h.Release(); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) locked(what string, try func(context.Context) (*coord.Hold, error)) {
	s.t.Helper()
	if _, err := try(s.ctx()); !errors.Is(err, coord.ErrLocked) {
		s.t.Errorf("%s: %v, want ErrLocked", what, err)
	}
}
