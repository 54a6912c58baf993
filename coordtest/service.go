package coordtest

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// Options are the settings of a Service. Nil means the defaults.
type Options struct {
	// SessionTimeout is that of all sessions. The default is 10 s, on which sessions survive the
	// pauses of a busy machine. With less, tests on real servers wait less for the loss of a
	// session, and more often lose one that they should not.
	SessionTimeout time.Duration
}

func (o *Options) timeout() time.Duration {
	if o == nil || o.SessionTimeout == 0 {
		return 10 * time.Second
	}
	return o.SessionTimeout
}

// Each runs f in two subtests: "memory", on a memory store inside a testing/synctest bubble, and
// "zookeeper", on a ZooKeeper server of its own, which takes about half a second to start. The
// latter is skipped, or fails, as the package comment says.
func Each(t *testing.T, o *Options, f func(t *testing.T, s *Service)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { Memory(t, o, f) })
	t.Run("zookeeper", func(t *testing.T) {
		if testing.Short() {
			t.Skip("-short: in memory only")
		}
		f(t, StartZooKeeper(t, nil).service(t, "", o))
	})
}

// Memory runs f on a memory store inside a testing/synctest bubble. The t of f is the bubble's.
func Memory(t *testing.T, o *Options, f func(t *testing.T, s *Service)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := New(t, newMemory(o), o)
		s.fake = true
		f(t, s)
	})
}

// A Provider is what a Service is made of: a service with a tree of nodes for one test. The
// packages of this module provide memory and ZooKeeper, and etcdtest provides etcd.
type Provider interface {
	// Root is the path below which the test works: a namespace, or "".
	Root() string

	// Connect makes the connection of a link. It is called once for each name.
	Connect(name string) (Connection, error)
}

// A Connection is a backend with the faults of a network. Its sessions are opened with the timeout of
// the Options that the Service got.
type Connection interface {
	backend.Backend
	Cut()                       // breaks the connections, once
	Refuse(on bool)             // breaks the connections, and refuses new ones while it is on
	Blackhole(on bool)          // loses everything while it is on, and resets nothing
	Delay(d time.Duration)      // delays each request and each reply
	Expire(session int64) error // ends a session, and returns when the service has done so
	Close() error               // ends what the connection consists of; its sessions are closed
}

// A Service is one fresh tree of nodes for one test, with its links. It is safe for concurrent
// use. Everything ends with the test: first the faults of the links, then the clients, then the
// links, then what the service runs on.
type Service struct {
	tb       testing.TB
	provider Provider
	timeout  time.Duration
	fake     bool

	mu    sync.Mutex
	links map[string]*Link
}

// New returns a service that p provides, for one test. A wrapper such as Each calls it.
func New(tb testing.TB, p Provider, o *Options) *Service {
	s := &Service{tb: tb, provider: p, timeout: o.timeout(), links: make(map[string]*Link)}
	tb.Cleanup(s.close)
	return s
}

// Client opens a client over the link called name. Its Namespace is that of o, which may be nil,
// below Root. The test closes it.
func (s *Service) Client(name string, o *coord.Options) *coord.Client {
	s.tb.Helper()
	var opts coord.Options
	if o != nil {
		opts = *o
	}
	opts.Namespace = s.Root() + strings.TrimSuffix(opts.Namespace, "/")
	l := s.Link(name)
	c, err := coord.Open(s.tb.Context(), l, &opts)
	if err != nil {
		s.tb.Fatalf("coordtest: open client %q: %v", name, err)
	}
	s.tb.Cleanup(func() {
		s.heal() // or Close would wait for contact
		c.Close()
	})
	return c
}

// Link returns the link called name.
func (s *Service) Link(name string) *Link {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.links[name]; l != nil {
		return l
	}
	c, err := s.provider.Connect(name)
	if err != nil {
		s.tb.Fatalf("coordtest: link %q: %v", name, err)
	}
	l := newLink(s, name, c)
	s.links[name] = l
	return l
}

// Root is the namespace below which the clients of the service work, "" for none.
func (s *Service) Root() string { return strings.TrimSuffix(s.provider.Root(), "/") }

// SessionTimeout is the timeout of all sessions: a client that loses contact loses its holds
// before it has passed, and the service ends the session when it has, or soon after.
func (s *Service) SessionTimeout() time.Duration { return s.timeout }

// Fake reports whether time is that of a synctest bubble.
func (s *Service) Fake() bool { return s.fake }

// Eventually waits until cond returns true, which it calls again and again. It fails the test if
// that takes longer than 30 s and three session timeouts. In memory the pauses cost no time. Call it
// on the goroutine of the test. Prefer to wait on a channel where there is one.
func (s *Service) Eventually(what string, cond func() bool) {
	s.tb.Helper()
	began, limit := time.Now(), 30*time.Second+3*s.timeout
	for !cond() {
		passed := time.Since(began)
		if passed > limit {
			s.tb.Fatalf("coordtest: never happened in %v: %s", limit, what)
		}
		// A condition that takes as long as a session to expire is not looked at every few milliseconds.
		time.Sleep(min(max(passed/20, 5*time.Millisecond), 100*time.Millisecond))
	}
}

// all returns the links in the order of their names, so that a test in memory is repeatable.
func (s *Service) all() []*Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Link
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		all = append(all, s.links[name])
	}
	return all
}

func (s *Service) heal() {
	for _, l := range s.all() {
		l.heal()
	}
}

func (s *Service) close() {
	for _, l := range s.all() {
		l.close()
	}
}
