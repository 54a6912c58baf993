package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
)

func forData(path string) backend.Target {
	return backend.Target{Path: path, Watch: backend.NewWatch()}
}

func forChildren(path string) backend.Target {
	return backend.Target{Path: path, Children: true, Watch: backend.NewWatch()}
}

// arming starts an Arm in a goroutine.
func (s *scene) arming(ctx context.Context, c backend.Session, targets ...backend.Target) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.Arm(ctx, math.MaxInt64, targets...) }()
	return done
}

// hears waits until the session has received everything that is committed until now.
func (s *scene) hears(c backend.Session) {
	s.Helper()
	if err := c.Sync(s.ctx, s.service.Root()); err != nil {
		s.Fatalf("sync: %v", err)
	}
}

func (s *scene) says(t backend.Target, want backend.Kind) {
	s.Helper()
	if got := t.Watch.Kind(); got != want {
		s.Fatalf("the watch of %s has kind %v, want %v", t.Path, got, want)
	}
}

func TestAnArmIsOneRequestAndOneEventForEachNodeThatItIsTooLateFor(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	for _, name := range []string{"a", "b"} {
		s.commit(o, backend.Create(s.path(name), nil, backend.Persistent))
	}
	s.hears(c)
	a, b, missing := forData(s.path("a")), forChildren(s.path("b")), forData(s.path("missing"))
	proxy := s.link.Proxies[0]
	proxy.ResetCounts()
	if err := <-s.arming(s.ctx, c, a, b, missing); err != nil {
		t.Fatal(err)
	}
	n := proxy.Count()
	if n.Requests() != 1 || n.Ops[zkproxy.OpSetWatches] != 1 || n.Replies != 1 || n.Events != 1 {
		t.Errorf("an Arm of three: %v", n)
	}
	s.says(missing, backend.LookAgain)
	s.commit(o, backend.Delete(a.Path, 0), backend.Delete(b.Path, 0))
	s.hears(c)
	s.says(a, backend.Deleted)
	s.says(b, backend.Deleted)
	if n := zookeeper.Interests(c); n != 0 {
		t.Errorf("%d interests", n)
	}
}

func TestAnArmWhoseReplyComesLateArmsNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	n := s.path("n")
	s.commit(o, backend.Create(n, nil, backend.Persistent))
	s.hears(c)
	for _, what := range []zkproxy.DropWhat{zkproxy.HoldReply, zkproxy.HoldRequest} {
		data, children, missing := forData(n), forChildren(n), forData(n+"-missing")
		ctx, cancel := context.WithCancel(s.ctx)
		fault := s.link.Proxies[0].Drop(isOp(zkproxy.OpSetWatches), what)
		done := s.arming(ctx, c, data, children, missing)
		s.await(fault.Hit(), "the Arm")
		if zookeeper.Interests(c) == 0 {
			t.Error("an Arm under way is not known")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("arm: %v", err)
		}
		if n := zookeeper.Interests(c); n != 0 {
			t.Errorf("an Arm that was given up leaves %d interests", n)
		}
		fault.Release()
		s.hears(c)
		if n := zookeeper.Interests(c); n != 0 {
			t.Errorf("its reply brings %d interests", n)
		}
		// The server has armed the watches, which does no harm.
		again := forData(n)
		if err := <-s.arming(s.ctx, c, again); err != nil {
			t.Fatal(err)
		}
		s.commit(o, backend.SetData(n, nil, backend.AnyVersion))
		s.hears(c)
		s.says(again, backend.LookAgain)
		for _, given := range []backend.Target{data, children, missing} {
			s.says(given, 0)
		}
	}
}

// The server armed the watches on a connection that is closed now.
func TestAnArmIsMadeAgainOnTheNextConnection(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	proxy := s.link.Proxies[0]
	for i, what := range []zkproxy.DropWhat{zkproxy.DropRequest, zkproxy.DropReply, zkproxy.HoldRequest, zkproxy.HoldReply} {
		for _, gone := range []bool{false, true} {
			n := s.path(fmt.Sprint("n", i, gone))
			s.commit(o, backend.Create(n, nil, backend.Persistent))
			s.hears(c)
			older, data, children := forChildren(n), forData(n), forChildren(n)
			if err := <-s.arming(s.ctx, c, older); err != nil {
				t.Fatal(err)
			}
			_, change := c.Status()
			proxy.ResetCounts()
			fault := proxy.Drop(isOp(zkproxy.OpSetWatches), what)
			done := s.arming(s.ctx, c, data, children)
			s.await(fault.Hit(), "the Arm")
			if gone {
				s.commit(o, backend.Delete(n, 0))
			}
			if what == zkproxy.HoldRequest || what == zkproxy.HoldReply {
				s.link.Partition()
				s.await(change, "the suspension")
				fault.Release()
				s.link.Heal()
			}
			if err := <-done; err != nil {
				t.Fatalf("%v: %v", what, err)
			}
			if n := proxy.Count().Ops[zkproxy.OpSetWatches]; n != 2 {
				t.Errorf("%v: %d requests", what, n)
			}
			s.await(older.Watch.Fired(), "the older watch")
			if !gone {
				s.says(older, backend.LookAgain)
				s.says(data, 0)
				s.says(children, 0)
				s.commit(o, backend.Delete(n, 0))
			}
			s.hears(c)
			if gone && what != zkproxy.DropRequest && what != zkproxy.DropReply {
				s.says(data, backend.LookAgain)
			}
			if !gone {
				s.says(data, backend.Deleted)
			}
			s.says(children, data.Watch.Kind())
			if n := zookeeper.Interests(c); n != 0 {
				t.Errorf("%v: %d interests", what, n)
			}
		}
	}
}

// The event arrives between the request and the reply of an Arm, and belongs to a watch that
// was armed before.
func TestAnEventThatOvertakesTheReplyIsNotLost(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	n := s.path("n")
	s.commit(o, backend.Create(n, nil, backend.Persistent))
	s.hears(c)
	old := backend.NewWatch()
	if _, _, err := c.Get(s.ctx, n, old); err != nil {
		t.Fatal(err)
	}
	data, children := forData(n), forChildren(n)
	fault := s.link.Proxies[0].Drop(isOp(zkproxy.OpSetWatches), zkproxy.HoldRequest)
	done := s.arming(s.ctx, c, data, children)
	s.await(fault.Hit(), "the Arm")
	s.commit(o, backend.SetData(n, nil, 0))
	s.await(old.Fired(), "the watch of the read")
	fault.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.says(data, backend.LookAgain)
	s.says(children, 0)
	s.commit(o, backend.Delete(n, 1))
	s.hears(c)
	s.says(data, backend.LookAgain)
	s.says(children, backend.Deleted)
}

// A server that refuses a request ends the connection. A client with a long session waits
// long before it does so itself.
func TestAnArmOfVeryLongPathsFitsIntoARequest(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{SessionTimeout: 40 * time.Second})
	c := s.open(s.link)
	before := s.link.Proxies[0].Count().Connections
	long := s.path(strings.Repeat("x", (backend.MaxRequest-20)/4-len(s.path(""))))
	targets := []backend.Target{forData(long), forChildren(long), forData(long), forChildren(long)}
	if err := c.Arm(s.ctx, 0, targets...); err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		if target.Watch.Kind() != backend.LookAgain {
			t.Errorf("has kind %v for a missing node", target.Watch.Kind())
		}
	}
	if n := s.link.Proxies[0].Count().Connections; n != before {
		t.Errorf("%d connections, %d before", n, before)
	}
	if err := c.Arm(s.ctx, 0, append(targets, forData("/"+strings.Repeat("x", 50)))...); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("of more than fits: %v", err)
	}
}
