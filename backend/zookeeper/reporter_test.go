package zookeeper_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

func TestReporter_LearnsOfASessionBeforeItsFirstRequestAndOfItsClose(t *testing.T) {
	t.Parallel()
	r := coordtest.NewReports("zookeeper")
	s := newScene(t, zookeeper.Options{Reporter: r})
	early := -1
	r.Before = func() { early = s.link.Proxies[0].Count().AllRequests() }
	session := s.open(s.link)
	opened, ended := r.List()
	if len(opened) != 1 || opened[0].ID != session.ID() || opened[0].Timeout != session.Timeout() ||
		string(opened[0].Password) != string(zktest.SessionPassword(session.ID())) || opened[0].Server != s.link.Addrs()[0] || opened[0].Service != "zookeeper" {
		t.Fatalf("reported %v, want %v", opened, session)
	}
	if early != 1 {
		t.Errorf("%d requests before the report, want the connect request", early)
	}
	// A new connection of the same session is no news.
	_, change := session.Status()
	s.link.Proxies[0].Cut()
	s.await(change, "the end of contact")
	if err := session.Sync(s.ctx, "/"); err != nil {
		t.Fatal(err)
	}
	if again, _ := r.List(); len(again) != 1 || len(ended) != 0 {
		t.Errorf("reported %v, ended %v", again, ended)
	}
	session.Close()
	if _, ended := r.List(); !slices.Equal(ended, []int64{session.ID()}) {
		t.Errorf("ended %v after Close", ended)
	}
}

func TestReporter_LearnsOfAnExpiredSessionAndNotOfOneLostByItsClock(t *testing.T) {
	t.Parallel()
	r := coordtest.NewReports("zookeeper")
	s := newScene(t, zookeeper.Options{Reporter: r, SessionTimeout: 2 * time.Second})
	lost := s.open(s.link)
	s.link.Blackhole()
	s.await(lost.Done(), "the loss")
	lost.Close()
	if _, ended := r.List(); len(ended) != 0 {
		t.Errorf("ended %v, and the servers may still have it", ended)
	}
	s.link.Heal()
	expired := s.open(s.link)
	if err := zktest.ExpireSession(s.ctx, shared.Get(t).Addrs()[0], expired.ID(), nil); err != nil {
		t.Fatal(err)
	}
	s.await(expired.Done(), "the loss")
	<-r.News
	if _, ended := r.List(); !slices.Contains(ended, expired.ID()) || slices.Contains(ended, lost.ID()) {
		t.Errorf("ended %v, want %d", ended, expired.ID())
	}
}

type panicking struct{}

func (panicking) Opened(backend.Ticket) { panic("opened") }
func (panicking) Ended(string, int64)   { panic("ended") }

func TestReporter_ThatPanicsHarmsNoSession(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{Reporter: panicking{}})
	session := s.open(s.link)
	s.commit(session, backend.Create(s.path("node"), nil, backend.Ephemeral))
	session.Close()
}

// toEnd opens a session with an ephemeral node, and returns its ticket.
func (s *scene) toEnd(r *coordtest.Reports) (backend.Session, backend.Ticket) {
	s.Helper()
	session := s.open(s.link)
	s.commit(session, backend.Create(s.path("held"), nil, backend.Ephemeral))
	opened, _ := r.List()
	return session, opened[len(opened)-1]
}

func TestEnd_ClosesASessionAtOnce(t *testing.T) {
	t.Parallel()
	r := coordtest.NewReports("zookeeper")
	s := newScene(t, zookeeper.Options{Reporter: r})
	session, ticket := s.toEnd(r)
	s.link.Partition() // as a dead process, the owner makes no new connection, which would end that of End
	other := s.other()
	own := s.service.ZooKeeper("supervisor").Proxies[0]

	wrong := ticket
	wrong.Password = []byte("wrongwrongwrongw")
	_ = zookeeper.End(s.ctx, []string{own.Addr()}, nil, wrong) // the server may close the connection before its answer arrives
	if names := s.children(other); len(names) != 1 {
		t.Fatalf("a wrong password has ended the session: %v", names)
	}
	own.ResetCounts()
	gone := backend.NewWatch()
	if _, err := other.Exists(s.ctx, s.path("held"), gone); err != nil {
		t.Fatal(err)
	}
	if err := zookeeper.End(s.ctx, []string{own.Addr()}, nil, ticket); err != nil {
		t.Fatal(err)
	}
	if names := s.children(other); len(names) != 0 {
		t.Errorf("after End there is %v", names)
	}
	if c := own.Count(); c.Ops[zkproxy.OpConnect] != 1 || c.Ops[zkproxy.OpClose] != 1 || c.AllRequests() != 2 || c.Connections != 1 {
		t.Errorf("requests: %v", c)
	}
	s.link.Heal()
	s.await(session.Done(), "the loss")
	if !errors.Is(session.Err(), backend.ErrSessionLost) {
		t.Error(session.Err())
	}
	own.ResetCounts()
	_ = zookeeper.End(s.ctx, []string{own.Addr()}, nil, ticket) // as for a wrong password
	if n := own.Count().Connections; n != 1 {
		t.Errorf("%d connections for a session that has ended", n)
	}
}

// The servers receive the connect request and not the close request. The session ends after their shortest timeout, 1 s, and not
// after its own, 40 s.
func TestEnd_WhoseCloseIsLostShortensTheTimeout(t *testing.T) {
	t.Parallel()
	r := coordtest.NewReports("zookeeper")
	s := newScene(t, zookeeper.Options{Reporter: r})
	session, ticket := s.toEnd(r)
	s.link.Blackhole() // else the session continues on its connection, and renews its timeout
	own := s.service.ZooKeeper("supervisor").Proxies[0]
	own.Drop(func(f zkproxy.Frame) bool { return f.Opcode == zkproxy.OpClose }, zkproxy.DropRequest)
	begin := time.Now()
	if err := zookeeper.End(s.ctx, []string{own.Addr()}, nil, ticket); err == nil {
		t.Fatal("a lost close request is no error")
	}
	other := s.other()
	for len(s.children(other)) > 0 {
		gone := backend.NewWatch()
		if _, err := other.Exists(s.ctx, s.path("held"), gone); err == nil {
			s.await(gone.Fired(), "the end of the session")
		}
	}
	if took := time.Since(begin); took > session.Timeout()*2/3 {
		t.Errorf("the session lived for %v", took)
	}
}

// Servers that demand an identity of each client welcome the session, which renews it, and refuse to close it.
func TestEnd_WhereAnIdentityIsDemanded(t *testing.T) {
	t.Parallel()
	e := zktest.Run(t, &zktest.Options{
		MaxSessionTimeout: 40 * time.Second,
		Config:            map[string]string{"minSessionTimeout": "40000"}, // which a refused End sets
		JavaArgs:          []string{"-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes=digest"},
	})
	r := coordtest.NewReports("zookeeper")
	o := zookeeper.Options{Reporter: r, SessionTimeout: 40 * time.Second, Digest: "app:secret"}
	owner, err := zkproxy.New(e.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	session, err := zookeeper.New([]string{owner.Addr()}, &o).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if _, err := session.Commit(t.Context(), backend.Create("/held", nil, backend.Ephemeral)); err != nil {
		t.Fatal(err)
	}
	other, err := zookeeper.New(e.Addrs(), &zookeeper.Options{SessionTimeout: 40 * time.Second, Digest: "app:secret"}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	held := func() bool {
		t.Helper()
		if err := other.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		_, err := other.Exists(t.Context(), "/held", nil)
		return err == nil
	}
	var proxies []*zkproxy.Proxy
	var addrs []string
	for range 2 {
		p, err := zkproxy.New(e.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	opened, _ := r.List()
	owner.Refuse(true) // as a dead process, the owner makes no new connection, which would end that of End
	owner.Cut()
	connects := func() (n int) {
		for _, p := range proxies {
			one := p.Count().Ops[zkproxy.OpConnect]
			if one > 1 {
				t.Errorf("%d connections to one server", one)
			}
			n += one
			p.ResetCounts()
		}
		return n
	}
	if err := zookeeper.End(t.Context(), addrs, nil, opened[0]); err == nil {
		t.Error("without an identity the session was closed")
	} else {
		t.Log(err)
	}
	if n := connects(); n == 0 { // the server can close the connection before it sends an answer
		t.Error("no connection")
	}
	if !held() {
		t.Error("the session has ended")
	}
	if err := zookeeper.End(t.Context(), addrs, &zookeeper.Options{Digest: "other:pw"}, opened[0]); err != nil {
		t.Error(err)
	}
	if n := connects(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if held() {
		t.Error("the session lives")
	}
}
