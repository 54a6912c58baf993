package coordtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/coordtest"
)

// faultsOfALink has a test for each row of the table of the package.
var faultsOfALink = map[string]func(t *testing.T, s *coordtest.Service){
	"Cut leaves sessions and holds":               cutLeavesHolds,
	"Refuse ends holds after the lease":           func(t *testing.T, s *coordtest.Service) { withoutContact(t, s, (*coordtest.Link).Refuse) },
	"Blackhole ends holds after the lease":        func(t *testing.T, s *coordtest.Service) { withoutContact(t, s, (*coordtest.Link).Blackhole) },
	"Delay makes calls slower":                    delayed,
	"DropRequest loses the n-th commit at a path": func(t *testing.T, s *coordtest.Service) { dropped(t, s, true) },
	"DropReply loses the n-th reply at a path":    func(t *testing.T, s *coordtest.Service) { dropped(t, s, false) },
	"two faults strike at two commits":            twice,
	"recipes resolve a lost reply":                resolved,
	"Expire has ended the session":                expired,
}

func TestTheFaultsOfALinkInMemory(t *testing.T) {
	for name, f := range faultsOfALink {
		t.Run(name, func(t *testing.T) { coordtest.Memory(t, nil, f) })
	}
}

func TestTheFaultsOfALinkOnZooKeeper(t *testing.T) {
	t.Parallel()
	zk := coordtest.StartZooKeeper(t, nil)
	t.Run("faults", func(t *testing.T) { // which ends before the server does
		for name, f := range faultsOfALink {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var o *coordtest.Options
				if strings.Contains(name, "ends holds") {
					o = &coordtest.Options{SessionTimeout: 3 * time.Second} // the test waits for it
				}
				f(t, zk.Service(t, o))
			})
		}
	})
}

func cutLeavesHolds(t *testing.T, s *coordtest.Service) {
	a := s.Client("a", nil)
	h := must[*coord.Hold](t)(coord.NewMutex(a, "/lock", nil).Lock(t.Context()))
	id := session(t, a).ID()
	_, changed := session(t, a).Status()
	s.Link("a").Cut()
	<-changed
	if n := must[int64](t)(coord.NewCounter(a, "/n").Add(t.Context(), 1)); n != 1 {
		t.Errorf("the counter is %d", n)
	}
	if h.Err() != nil || session(t, a).ID() != id {
		t.Errorf("after the break the hold ended with %v", h.Err())
	}
}

func withoutContact(t *testing.T, s *coordtest.Service, fault func(l *coordtest.Link, on bool)) {
	a, b := s.Client("a", nil), s.Client("b", nil)
	h := must[*coord.Hold](t)(coord.NewMutex(a, "/lock", nil).Lock(t.Context()))
	next := make(chan *coord.Hold, 1)
	go func() {
		h, _ := coord.NewMutex(b, "/lock", nil).Lock(t.Context()) // nil at the end of the test
		next <- h
	}()
	fault(s.Link("a"), true)
	began := time.Now()
	<-h.Done()
	lease := time.Since(began)
	if !errors.Is(h.Err(), coord.ErrSessionLost) {
		t.Errorf("the hold ended with %v", h.Err())
	}
	second := <-next
	if second == nil || second.Token() <= h.Token() {
		t.Errorf("the next hold is %v", second)
	}
	if passed := time.Since(began); s.Fake() && (lease != s.SessionTimeout()-s.SessionTimeout()/3 || passed != s.SessionTimeout()) {
		t.Errorf("the loss was told after %v, and the next was granted after %v", lease, passed)
	}
	second.Release()
	fault(s.Link("a"), false)
	must[*coord.Hold](t)(coord.NewMutex(a, "/lock", nil).Lock(t.Context()))
}

func delayed(t *testing.T, s *coordtest.Service) {
	a := s.Client("a", nil)
	n := coord.NewCounter(a, "/n")
	must[int64](t)(n.Add(t.Context(), 1))
	const d = 60 * time.Millisecond
	s.Link("a").Delay(d)
	began := time.Now()
	must[int64](t)(n.Get(t.Context()))
	if passed := time.Since(began); passed < 2*d || s.Fake() && passed != 2*d {
		t.Errorf("a read took %v with %v on each way", passed, d)
	}
	s.Link("a").Delay(0)
	began = time.Now()
	must[int64](t)(n.Get(t.Context()))
	if passed := time.Since(began); s.Fake() && passed != 0 {
		t.Errorf("a read took %v without a delay", passed)
	}
}

// session returns the session of a client, for plain nodes.
func session(t *testing.T, c *coord.Client) backend.Session {
	t.Helper()
	return must[backend.Session](t)(c.Session(t.Context()))
}

// node creates a node below the root of a service.
func node(s *coordtest.Service, path string) backend.Op {
	return backend.Create(s.Root()+path, nil, backend.Persistent)
}

func dropped(t *testing.T, s *coordtest.Service, request bool) {
	a := session(t, s.Client("a", nil))
	if s.Root() != "" {
		if _, err := a.Commit(t.Context(), backend.Create(s.Root(), nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Commit(t.Context(), node(s, "/dir"), node(s, "/dirt")); err != nil {
		t.Fatal(err)
	}
	fault := s.Link("a").DropReply
	if request {
		fault = s.Link("a").DropRequest
	}
	second, third := fault(2, "/dir"), fault(3, "/dir/")
	for i, c := range []struct {
		path string
		lost bool
	}{{"/dir/1", false}, {"/dirt/1", false}, {"/dir/2", true}, {"/dir/3", true}, {"/dir/4", false}} {
		_, err := a.Commit(t.Context(), node(s, c.path))
		if c.lost != errors.Is(err, coord.ErrUncertain) || !c.lost && err != nil {
			t.Errorf("commit %d at %s: %v", i, c.path, err)
		}
	}
	for i, f := range []*coordtest.Fault{second, third} {
		select {
		case <-f.Done():
		default:
			t.Errorf("fault %d is not done", i)
		}
	}
	if err := a.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	for path, lost := range map[string]bool{"/dir/1": false, "/dir/2": true, "/dir/3": true, "/dir/4": false} {
		_, err := a.Exists(t.Context(), s.Root()+path, nil)
		if missing := errors.Is(err, coord.ErrNotFound); missing != (lost && request) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := a.Commit(t.Context(), node(s, "/dir/2")); errors.Is(err, coord.ErrUncertain) {
		t.Errorf("a fault strikes twice: %v", err)
	}
}

func twice(t *testing.T, s *coordtest.Service) {
	b := session(t, s.Client("a", nil))
	if s.Root() != "" {
		must[[]backend.Result](t)(b.Commit(t.Context(), node(s, "")))
	}
	l := s.Link("a")
	faults := []*coordtest.Fault{l.DropReply(1, "/x"), l.DropRequest(1, "/x"), l.DropRequest(2, "/x")}
	for i := range 4 {
		_, err := b.Commit(t.Context(), node(s, fmt.Sprintf("/x%d", i)), node(s, "/x"))
		switch {
		case i < len(faults):
			if !errors.Is(err, backend.ErrUncertain) {
				t.Errorf("commit %d: %v", i, err)
			}
			<-faults[i].Done()
		case !errors.Is(err, backend.ErrExists): // by the first, which was applied
			t.Errorf("the last commit: %v", err)
		}
	}
}

func resolved(t *testing.T, s *coordtest.Service) {
	a := s.Client("a", &coord.Options{Namespace: "/app"})
	n := coord.NewCounter(a, "/n")
	must[int64](t)(n.Add(t.Context(), 1))
	f := s.Link("a").DropReply(1, "/app/n")
	if got := must[int64](t)(n.Add(t.Context(), 1)); got != 2 {
		t.Errorf("the counter is %d", got)
	}
	<-f.Done()
	f = s.Link("a").DropRequest(1, "/app/n")
	if got := must[int64](t)(n.Add(t.Context(), 1)); got != 3 {
		t.Errorf("the counter is %d", got)
	}
	<-f.Done()
}

func expired(t *testing.T, s *coordtest.Service) {
	a, b := s.Client("a", nil), s.Client("b", nil)
	lock := coord.NewMutex(a, "/lock", nil)
	h := must[*coord.Hold](t)(lock.Lock(t.Context()))
	s.Link("a").Expire()
	if _, err := session(t, b).Exists(t.Context(), h.Path(), nil); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("after Expire the node of the hold: %v", err)
	}
	<-h.Done()
	if !errors.Is(h.Err(), coord.ErrLost) {
		t.Errorf("the hold ended with %v", h.Err())
	}
	// The client continues with another session, and that one can expire too.
	h = must[*coord.Hold](t)(lock.Lock(t.Context()))
	s.Link("a").Blackhole(true)
	s.Link("a").Expire()
	if _, err := session(t, b).Exists(t.Context(), h.Path(), nil); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("after Expire behind a black hole the node of the hold: %v", err)
	}
	if h.Err() != nil {
		t.Errorf("a client without contact was told: %v", h.Err())
	}
	if s.Fake() { // it takes long
		<-h.Done()
	}
}

// What a test arms and does not meet, and what it asks of nothing, fails it.
func TestAFaultThatDoesNotStrikeFailsTheTest(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(ctx context.Context, s *coordtest.Service)
		want string
	}{
		"a reply that never came": {func(ctx context.Context, s *coordtest.Service) {
			n := coord.NewCounter(s.Client("a", nil), "/n")
			s.Link("a").DropReply(2, "/n")
			_, _ = n.Add(ctx, 1) // its outcome does not matter
		}, `never struck: the reply of commit 2 at "/n" over link "a"`},
		"a fault that was canceled": {func(_ context.Context, s *coordtest.Service) {
			s.Client("a", nil)
			s.Link("a").DropReply(1, "").Cancel()
		}, ""},
		"no session to expire": {func(_ context.Context, s *coordtest.Service) { s.Link("a").Expire() }, `link "a" has no session to expire`},
		"the zeroth":           {func(_ context.Context, s *coordtest.Service) { s.Link("a").DropRequest(0, "") }, "counted from 1"},
		"a condition that never holds": {func(_ context.Context, s *coordtest.Service) {
			s.Eventually("the moon is full", func() bool { return false })
		}, "never happened in 1m0s: the moon is full"},
	} {
		t.Run(name, func(t *testing.T) {
			coordtest.Memory(t, nil, func(t *testing.T, _ *coordtest.Service) {
				r := watch(t, func(tb testing.TB) { c.do(t.Context(), coordtest.New(tb, store{}, nil)) })
				if c.want == "" && r.said() != "" || !strings.Contains(r.said(), c.want) {
					t.Errorf("the test said %q, want %q", r.said(), c.want)
				}
			})
		})
	}
}

// Closing clients behind faults takes no time, and frees at once what they hold.
func TestFaultsEndBeforeTheClientsAreClosed(t *testing.T) {
	t.Parallel()
	zk := coordtest.StartZooKeeper(t, nil)
	began := time.Now()
	t.Run("inner", func(t *testing.T) {
		s := zk.Service(t, &coordtest.Options{SessionTimeout: 10 * time.Minute})
		for _, name := range []string{"a", "b", "c"} {
			must[*coord.Hold](t)(coord.NewMutex(s.Client(name, nil), "/lock-"+name, nil).Lock(t.Context()))
		}
		s.Link("a").Refuse(true)
		s.Link("b").Blackhole(true)
		s.Link("c").Delay(time.Hour)
	})
	c := must[*coord.Client](t)(coord.Open(t.Context(), zookeeper.New(zk.Addrs(), nil), nil))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // less than their timeout
	defer cancel()
	for _, name := range []string{"a", "b"} {
		if _, err := coord.NewMutex(c, fmt.Sprintf("/service1/lock-%s", name), nil).Lock(ctx); err != nil {
			t.Errorf("the lock of %s is taken %v after the test: %v", name, time.Since(began), err)
		}
	}
}
