//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/etcd/etcdtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/coordtest"
)

const (
	timeout = 8 * time.Second     // of the sessions of the replicas
	lease   = timeout - timeout/3 // after which a client without contact has lost its session
	longer  = 10 * time.Minute    // of the session of the observer, which outlives the server
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaMark) != "" {
		os.Exit(replicaMain())
	}
	goleak.VerifyTestMain(m)
}

// TestTheProbesSayWhatIsTrue runs two replicas as processes, asks their probes fifty times a second
// while they and the server are disturbed, and compares the answers with each other, with what was
// done, and with what the servers say.
func TestTheProbesSayWhatIsTrue(t *testing.T) {
	t.Run("zookeeper", func(t *testing.T) {
		t.Parallel()
		zk := coordtest.StartZooKeeper(t, nil)
		s := newStage(t, "zookeeper", func() *coordtest.Proxy { return coordtest.NewProxy(t, zk.Addrs()[0]) })
		s.observer = watch(t, s.record, zookeeper.New(zk.Addrs(), &zookeeper.Options{SessionTimeout: longer}))
		s.play(zk.Server(0))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		e := pgtest.Start(t, nil)
		s := newStage(t, "postgres", func() *coordtest.Proxy { return coordtest.NewRawProxy(t, e.Addr()) })
		s.observer = watch(t, s.record, postgres.New(e.URL(""), &postgres.Options{SessionTimeout: longer}))
		s.play(nil)
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		addr := etcdtest.Start(t, nil).Addr()
		s := newStage(t, "etcd", func() *coordtest.Proxy { return coordtest.NewRawProxy(t, addr) })
		s.observer = watch(t, s.record, etcd.New([]string{addr}, &etcd.Options{SessionTimeout: longer}))
		s.play(nil)
	})
}

// A stage is one run.
type stage struct {
	*record
	kind     string
	proxy    func() *coordtest.Proxy
	observer *coord.Election
	out      strings.Builder
}

func newStage(t *testing.T, kind string, proxy func() *coordtest.Proxy) *stage {
	return &stage{record: &record{t: t, more: make(chan struct{})}, kind: kind, proxy: proxy}
}

func (s *stage) start(name string) *replica { return start(s.t, s.record, name, s.kind, s.proxy()) }

// play plays all scenes. Without a server that can be killed, that scene is left out.
func (s *stage) play(server *coordtest.Server) {
	t := s.t
	a := s.start("a")
	s.says("a", "readyz", "200")
	b := s.start("b")
	s.says("b", "healthz", "200, connected")

	s.scene("cut off for a moment", a, b, []string{"a"}, func() (began, over time.Time) {
		a.proxy.Blackhole(true)
		began = s.did("nothing gets through")
		s.says("a", "healthz", "200, suspended")
		over = s.did("contact again")
		a.proxy.Blackhole(false)
		s.says("a", "healthz", "200, connected")
		return began, over
	})

	s.scene("cut off", a, b, []string{"a", "b"}, func() (began, over time.Time) {
		a.proxy.Blackhole(true)
		began = s.did("nothing gets through")
		s.says("a", "healthz", "200, lost")
		s.leads("b")
		s.says("b", "readyz", "200")
		over = s.did("contact again")
		a.proxy.Blackhole(false)
		s.says("a", "healthz", "200, connected")
		return began, over
	})

	s.scene("paused", b, a, []string{"b", "a"}, func() (began, over time.Time) {
		b.pause(t)
		began = s.did("SIGSTOP")
		s.leads("a")
		s.says("a", "readyz", "200")
		over = s.did("SIGCONT")
		b.signal(t, syscall.SIGCONT)
		s.says("b", "healthz", "200, connected")
		return began, over
	})

	leader, other := a, b
	if server != nil {
		var next string
		s.scene("the server is killed", a, b, nil, func() (began, over time.Time) {
			server.Kill()
			began = s.did("SIGKILL of the server")
			s.leader(noServer)
			s.says("a", "healthz", "200, lost")
			s.says("b", "healthz", "200, lost")
			over = s.did("it starts again")
			server.Restart()
			l, err := s.observer.Leader(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s.leader(nameOf(l))
			s.until("a replica is ready again", func() bool {
				for _, name := range []string{"a", "b"} {
					if x := s.latest(name, "readyz"); x.code == http.StatusOK && x.at.After(over) {
						next = name
					}
				}
				return next != ""
			})
			s.leads(next)
			s.says("a", "healthz", "200, connected")
			s.says("b", "healthz", "200, connected")
			return began, over
		})
		if next == "b" {
			leader, other = b, a
		}
	}

	s.scene("killed", leader, other, []string{leader.name, other.name}, func() (began, over time.Time) {
		leader.signal(t, syscall.SIGKILL)
		began = s.did("SIGKILL")
		s.leads(other.name)
		s.says(other.name, "readyz", "200")
		return began, time.Now()
	})

	third := s.start("c")
	s.says("c", "healthz", "200, connected")
	s.scene("stopped by SIGTERM", other, third, []string{other.name, "c"}, func() (began, over time.Time) {
		began = s.did("SIGTERM")
		other.signal(t, syscall.SIGTERM)
		s.leads("c")
		s.says("c", "readyz", "200")
		<-other.done
		s.says(other.name, "healthz", "no answer")
		s.says(other.name, "readyz", "no answer")
		if other.err != nil {
			t.Errorf("%s ends with %v", other.name, other.err)
		}
		return began, time.Now()
	})
	t.Logf("sessions of %v, a lease of %.2f s\n%s", timeout, lease.Seconds(), s.out.String())
}

// scene plays a scene in which the replica that leads, the subject, has no contact from the time began
// to the time over. It checks what status promises:
//
//   - no two replicas are ready at once: those in ready are, in this order (nil: one or two);
//   - the subject is not ready after the lease that followed began, until the contact is there again;
//   - it is not ready when the servers say that another one leads;
//   - /healthz is never a reason to restart a replica; during its shutdown a replica may report
//     that its client is closed.
func (s *stage) scene(what string, subject, other *replica, ready []string, play func() (began, over time.Time)) {
	t := s.t
	t.Helper()
	sc := scene{name: fmt.Sprintf("%s: %s", subject.name, what), replica: subject.name}
	from := time.Now()
	s.says(subject.name, "readyz", "200")
	began, over := play()
	sc.start, sc.end = began, time.Now()
	s.table(&s.out, sc, other.name)
	sc.start = from

	for _, a := range s.of(sc, "healthz") {
		stops := what == "stopped by SIGTERM" && a.replica == subject.name && a.phase == "closed"
		if a.code != 0 && a.code != http.StatusOK && !stops {
			t.Errorf("%s: /healthz of %s says %v", sc.name, a.replica, a)
		}
	}
	succeeded := s.succeeded(sc)
	var order []string
	var last time.Time // that the subject was ready without contact
	for _, a := range s.of(sc, "readyz") {
		if a.code != http.StatusOK {
			continue
		}
		order = append(order, a.replica)
		if a.replica == subject.name && a.at.Before(over) {
			last = a.at
		}
	}
	if ready := last.Sub(began); ready > lease {
		t.Errorf("%s: /readyz says 200 until %v after the last contact, and the lease is %v", sc.name, ready, lease)
	}
	if !succeeded.IsZero() && last.After(succeeded) {
		t.Errorf("%s: /readyz says 200 until %v after another replica leads", sc.name, last.Sub(succeeded))
	}
	order = slices.Compact(order)
	if ready != nil && !slices.Equal(order, ready) || len(order) > 2 {
		t.Errorf("%s: ready were, in this order, %q, want %q", sc.name, order, ready)
	}
}
