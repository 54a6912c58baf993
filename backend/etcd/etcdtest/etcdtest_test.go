package etcdtest_test

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/etcd/etcdtest"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/internal/rawlink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The faults of a link do on etcd what they do in memory and on ZooKeeper.
func TestTheFaultsOfALink(t *testing.T) {
	t.Parallel()
	etcdtest.Each(t, &coordtest.Options{SessionTimeout: 20 * time.Second}, rawlink.TestFaults)
}

// Each fault ends the hold of a, and then b has the lock.
func TestTheFaultsThatEndSessions(t *testing.T) {
	t.Parallel()
	etcdtest.Each(t, &coordtest.Options{SessionTimeout: 3 * time.Second}, func(t *testing.T, s *coordtest.Service) {
		a := s.Client("a", nil)
		h := rawlink.Lock(t, a)
		for name, fault := range map[string]func(){
			"Expire":    s.Link("a").Expire,
			"Refuse":    func() { s.Link("a").Refuse(true) },
			"Blackhole": func() { s.Link("a").Blackhole(true) },
		} {
			fault()
			next := rawlink.Lock(t, s.Client("b", nil))
			<-h.Done()
			if !errors.Is(h.Err(), coord.ErrLost) || next.Token() <= h.Token() {
				t.Errorf("%s: the hold ended with %v; tokens %d and %d", name, h.Err(), h.Token(), next.Token())
			}
			s.Link("a").Refuse(false)
			s.Link("a").Blackhole(false)
			if err := next.Release(); err != nil && !errors.Is(err, coord.ErrLost) { // a busy machine loses such a short session
				t.Error(err)
			}
			h = rawlink.Lock(t, a)
		}
	})
}

func TestASessionOutlivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, &etcdtest.Options{Configure: func(cfg *embed.Config) { cfg.MaxTxnOps = 200 }})
	s := e.Service(t, &coordtest.Options{SessionTimeout: 20 * time.Second})
	a := s.Client("a", nil)
	h := rawlink.Lock(t, a)
	b, err := a.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, changed := b.Status()
	e.Stop()
	<-changed
	e.Restart()
	if err := h.Verify(t.Context()); err != nil {
		t.Errorf("the hold ended with %v", err)
	}
	c, err := coord.Open(t.Context(), etcd.New([]string{e.Addr()}, &etcd.Options{Prefix: "service1"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := coord.NewMutex(c, "/lock", nil).TryLock(t.Context()); !errors.Is(err, coord.ErrLocked) {
		t.Errorf("the lock of the service, through a client of its prefix: %v", err)
	}
}

// Two services on one server do not see each other.
func TestServicesHavePrefixesOfTheirOwn(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, nil)
	for range 2 {
		s := e.Service(t, nil)
		if _, err := coord.NewMutex(s.Client("a", nil), "/lock", nil).TryLock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
