package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// A proxy ends each connection in good order after a while. No commit becomes uncertain, no watch fires
// without an event, none misses one, and the session is never suspended.
func TestEtcd_ConnectionThatEndsInGoodOrderInterruptsNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*front){"ordered": nil, "unordered": func(f *front) { f.rewrite = oldVersion }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFront(t, shared.get(t), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 2 * time.Second, MaxConnectionAgeGrace: 20 * time.Second})) // a busy machine needs a while for the next one
			if change != nil {
				change(f)
			}
			log := new(lines)
			o := &etcd.Options{SessionTimeout: 20 * time.Second, Prefix: fresh("goaway-" + name), Logger: slog.New(log)}
			s, other := open(t, etcd.New([]string{f.addr}, o)), open(t, etcd.New([]string{shared.get(t)}, o))
			commit(t, s, backend.Create("/d", nil, backend.Persistent), backend.Create("/quiet", nil, backend.Persistent))
			quiet := backend.NewWatchSet()
			for i := range 5 {
				if _, err := s.Exists(t.Context(), fmt.Sprint("/quiet/", i), quiet.New()); !errors.Is(err, backend.ErrNotFound) {
					t.Fatal(err)
				}
			}
			if _, _, err := s.Children(t.Context(), "/quiet", quiet.New()); err != nil {
				t.Fatal(err)
			}
			tree := backend.NewTreeWatch(100_000)
			defer tree.Stop()
			if err := s.WatchTree(t.Context(), "/d", tree); err != nil {
				t.Fatal(err)
			}
			_, suspended := s.Status()
			var wg sync.WaitGroup
			over := make(chan struct{})
			made := make([]int, 3)
			for i, by := range []backend.Session{s, s, other} {
				wg.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						if _, err := by.Commit(t.Context(), backend.Create(fmt.Sprintf("/d/%d-%d", i, made[i]), nil, backend.Persistent)); err != nil {
							t.Errorf("commit %d: %v", made[i], err)
							return
						}
						made[i]++
						time.Sleep(2 * time.Millisecond) // which leaves the processor to other tests
					}
				})
			}
			for f.conns.Load() < 4 && !t.Failed() {
				// A one-shot watch in between
				w := backend.NewWatch()
				if _, err := s.Exists(t.Context(), "/d", w); err != nil {
					t.Fatal(err)
				}
				w.Stop()
				time.Sleep(5 * time.Millisecond)
			}
			close(over)
			wg.Wait()
			select {
			case <-suspended:
				t.Errorf("the session was suspended\n%s", strings.Join(log.all, "\n"))
			default:
			}
			if n := len(quiet.Take()); n > 0 {
				t.Errorf("%d watches have fired without an event", n)
			}
			seen, all := make(map[string]int), made[0]+made[1]+made[2]
			for len(seen) < all {
				changes, end := tree.Take()
				if end {
					t.Fatal("the tree watch is over")
				}
				for _, c := range changes {
					if c.Kind != backend.TreeCreated {
						t.Fatalf("change %+v", c)
					}
					if seen[c.Path]++; seen[c.Path] > 1 {
						t.Fatalf("%s was reported twice", c.Path)
					}
				}
				if len(changes) == 0 {
					if err := s.Sync(t.Context(), "/"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond)
				}
			}
			commit(t, other, backend.Create("/quiet/0", nil, backend.Persistent))
			await(t, quiet.Ready(), "the watches of what has changed")
		})
	}
}

// A commit is under way when the server ends the connection. It is answered.
func TestEtcd_CommitUnderWayAtTheEndOfAConnectionIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFront(t, shared.get(t), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 300 * time.Millisecond, MaxConnectionAgeGrace: 20 * time.Second}))
	release := make(chan struct{})
	var once sync.Once
	held := make(chan struct{})
	f.delay = func(method string, body []byte) {
		if isAWrite(method, body) {
			once.Do(func() { close(held); <-release })
		}
	}
	s := openHeld(t, f, "goaway-commit")
	result := make(chan error, 1)
	go func() {
		_, err := s.Commit(context.Background(), backend.SetData("/n", []byte("x"), backend.AnyVersion))
		result <- err
	}()
	<-held
	for before := f.conns.Load(); f.conns.Load() == before; {
		time.Sleep(time.Millisecond)
	}
	if _, _, err := s.Get(t.Context(), "/n", nil); err != nil { // on the next connection
		t.Fatal(err)
	}
	close(release)
	if err := <-result; err != nil {
		t.Errorf("the commit: %v", err)
	}
}

// openHeld opens a session whose first commit the front delays.
func openHeld(t *testing.T, f *front, prefix string) backend.Session {
	t.Helper()
	delay := f.delay
	f.delay = nil
	o := &etcd.Options{SessionTimeout: 20 * time.Second, Prefix: fresh(prefix)}
	s := open(t, etcd.New([]string{f.addr}, o))
	commit(t, s, backend.Create("/n", nil, backend.Persistent))
	f.mu.Lock()
	f.delay = delay
	f.mu.Unlock()
	return s
}

// A Dial that does not return keeps neither Open nor Close waiting.
func TestEtcd_DialThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	defer close(stuck)
	hang := func(context.Context, string, string) (net.Conn, error) {
		<-stuck
		return nil, errors.New("too late")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := etcd.New([]string{"127.0.0.1:1"}, &etcd.Options{Dial: hang}).Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open: %v", err)
	}
	// The session has no contact, and the next dial hangs.
	dials := make(chan net.Conn, 10)
	first := true
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if !first {
			dials <- nil
			return hang(ctx, network, address)
		}
		first = false
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		dials <- c
		return c, err
	}
	s, err := etcd.New([]string{shared.get(t)}, &etcd.Options{SessionTimeout: 20 * time.Second, Dial: dial}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	(<-dials).Close()
	<-dials
	closed := make(chan struct{})
	go func() { defer close(closed); s.Close() }()
	await(t, closed, "Close")
}

// slowConn is a connection whose Close waits.
type slowConn struct {
	net.Conn
	begun   chan struct{} // closed by the first Close
	release chan struct{}
	once    sync.Once
}

func (c *slowConn) Close() error {
	c.once.Do(func() { close(c.begun); <-c.release })
	return c.Conn.Close()
}

// Open asks the other endpoints for their cluster, and one of them is silent. Close ends the connection to it. A Dial
// that returns only after Close leaves no connection.
func TestEtcd_CloseEndsTheComparisonOfClusters(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, late := range []bool{false, true} {
		good := shared.get(t)
		dialed := make(chan *slowConn, 100)
		hangs, release := make(chan struct{}), make(chan struct{})
		dial := func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == good {
				return new(net.Dialer).DialContext(ctx, network, address)
			}
			if late {
				<-hangs
				ctx = context.Background()
			}
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			slow := &slowConn{Conn: c, begun: make(chan struct{}), release: release}
			dialed <- slow
			return slow, nil
		}
		s, err := etcd.New([]string{good, silent.Addr().String()}, &etcd.Options{SessionTimeout: 20 * time.Second, Prefix: "joined", Dial: dial}).Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		if late {
			go func() { defer close(closed); s.Close() }()
			await(t, closed, "Close")
			close(hangs)
			close(release)
			await(t, (<-dialed).begun, "the end of the late connection")
			continue
		}
		go func() { defer close(closed); s.Close() }()
		await(t, (<-dialed).begun, "the end of the connection")
		close(release)
		await(t, closed, "Close")
	}
}
