package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zkproxy"
)

// TestClose closes sessions with calls under way, without contact, and beside a Dial that does not return.
func TestClose(t *testing.T) {
	t.Parallel()
	const most = 10 * time.Second
	closes := func(s *scene, c backend.Session) (took time.Duration) {
		s.Helper()
		start, m := time.Now(), pace.Start(s.T, nil)
		if err := c.Close(); err != nil {
			s.Errorf("close: %v", err)
		}
		took = time.Since(start)
		m.Within(most, "Close") // it takes 4.5 s at most, with the log
		if err := c.Err(); !errors.Is(err, backend.ErrClosed) {
			s.Errorf("Err: %v", err)
		}
		return took
	}

	t.Run("waits for a create that is answered soon", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, zookeeper.Options{})
		o, n := s.other(), 0
		s.quick(3, time.Second, func() time.Duration {
			c := s.open(s.link)
			fault := s.link.Proxies[0].Drop(isOp(zkproxy.OpCreate), zkproxy.HoldReply)
			done := make(chan error, 1)
			n++
			path := s.path(fmt.Sprint("n", n))
			go func() {
				_, err := c.Commit(s.ctx, backend.Create(path, nil, backend.Persistent))
				done <- err
			}()
			s.await(fault.Hit(), "the reply")
			go func() {
				<-c.Done()
				fault.Release()
			}()
			took := closes(s, c)
			if err := <-done; err != nil {
				t.Errorf("the create: %v", err)
			}
			if names := s.children(o); len(names) != n {
				t.Errorf("children: %v", names)
			}
			return took
		})
	})
	t.Run("does not end the session before a create is answered", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, zookeeper.Options{})
		c := s.open(s.link)
		fault := s.link.Proxies[0].Drop(isOp(zkproxy.OpCreate), zkproxy.HoldReply)
		end := s.link.Proxies[0].Drop(isOp(zkproxy.OpClose), zkproxy.HoldRequest)
		done := make(chan error, 1)
		go func() {
			// Without a ctx that can end: the call itself counts, and nothing beside it.
			_, err := c.Commit(context.Background(), backend.Create(s.path("n"), nil, backend.Persistent))
			done <- err
		}()
		s.await(fault.Hit(), "the reply")
		go func() {
			<-c.Done()
			select {
			case <-end.Hit():
				t.Error("the session was closed while a commit waited for its answer")
			case <-time.After(300 * time.Millisecond):
			}
			end.Cancel()
			fault.Release()
		}()
		closes(s, c)
		if err := <-done; err != nil {
			t.Errorf("the create: %v", err)
		}
	})
	t.Run("does not wait long for a create that is not", func(t *testing.T) {
		t.Parallel()
		for _, test := range []struct {
			ctx  func(s *scene) context.Context
			mode backend.CreateMode
		}{
			{func(s *scene) context.Context { return s.ctx }, backend.Ephemeral},
			{func(*scene) context.Context { return context.Background() }, backend.Container},
		} {
			s := newScene(t, zookeeper.Options{})
			c := s.open(s.link)
			fault := s.link.Proxies[0].Drop(func(f zkproxy.Frame) bool {
				return f.Opcode == zkproxy.OpCreate || f.Opcode == zkproxy.OpCreateContainer
			}, zkproxy.HoldReply)
			done := make(chan error, 1)
			go func() {
				_, err := c.Commit(test.ctx(s), backend.Create(s.path("n"), nil, test.mode))
				done <- err
			}()
			s.await(fault.Hit(), "the reply")
			closes(s, c)
			if err := <-done; !errors.Is(err, backend.ErrUncertain) || !errors.Is(err, backend.ErrClosed) {
				t.Errorf("the create: %v", err)
			}
			fault.Release()
		}
	})
	t.Run("ends the session on the server", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, zookeeper.Options{SessionTimeout: 10 * time.Second})
		o := s.other()
		s.quick(3, time.Second, func() time.Duration {
			c := s.open(s.link)
			s.commit(c, backend.Create(s.path("e"), nil, backend.Ephemeral))
			took := closes(s, c)
			if names := s.children(o); len(names) != 0 {
				t.Errorf("children: %v", names)
			}
			return max(took, closes(s, c))
		})
	})
	t.Run("catches a connection that comes back", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, zookeeper.Options{SessionTimeout: 10 * time.Second})
		c, o := s.open(s.link), s.other()
		s.commit(c, backend.Create(s.path("e"), nil, backend.Ephemeral))
		_, change := c.Status()
		s.link.Proxies[0].Cut()
		s.await(change, "the suspension")
		closes(s, c)
		if names := s.children(o); len(names) != 0 {
			t.Errorf("children: %v", names)
		}
	})
	t.Run("returns without contact", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, zookeeper.Options{})
		c := s.open(s.link)
		_, change := c.Status()
		s.link.Partition()
		s.await(change, "the suspension")
		closes(s, c)
	})
	t.Run("returns in a black hole, while it dials and before it is noticed", func(t *testing.T) {
		t.Parallel()
		for _, noticed := range []bool{false, true} {
			s := newScene(t, zookeeper.Options{SessionTimeout: 2 * time.Second})
			c := s.open(s.link)
			s.link.Blackhole()
			if noticed {
				s.phase(c, backend.PhaseSuspended)
			}
			closes(s, c)
		}
	})
	for _, late := range []string{"an error", "a connection"} {
		t.Run("fails when Dial does not return, and then returns "+late, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, zookeeper.Options{})
			var stuck, used atomic.Bool
			release := make(chan struct{})
			b := zookeeper.New(s.link.Addrs(), &zookeeper.Options{
				Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
					if stuck.Load() {
						<-release
						if late == "an error" {
							return nil, errors.New("released")
						}
						conn, err := net.Dial(network, address)
						return &watchedConn{conn, &used}, err
					}
					return new(net.Dialer).DialContext(ctx, network, address)
				},
			})
			c := s.open(b)
			stuck.Store(true)
			_, change := c.Status()
			s.link.Proxies[0].Cut()
			s.await(change, "the suspension")
			m := pace.Start(t, nil)
			err := c.Close()
			m.Within(most, "Close")
			var e *backend.Error
			if !errors.As(err, &e) || e.Op != "close" {
				t.Errorf("close: %v", err)
			}
			close(release)
			closes(s, c)
			if used.Load() {
				t.Error("a connection was used that came after the end of the session")
			}
		})
	}
}

// watchedConn is a connection that notes whether it is used.
type watchedConn struct {
	net.Conn
	used *atomic.Bool
}

func (c *watchedConn) Read(p []byte) (int, error) {
	c.used.Store(true)
	return c.Conn.Read(p)
}

func (c *watchedConn) Write(p []byte) (int, error) {
	c.used.Store(true)
	return c.Conn.Write(p)
}
