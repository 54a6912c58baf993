package etcd_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// held opens a session with an ephemeral node on the server. gone reports whether its node is gone.
func held(t *testing.T, addr string, o etcd.Options) (s backend.Session, r *coordtest.Reports, gone func() bool) {
	t.Helper()
	o.Prefix = "end" + strconv.Itoa(int(time.Now().UnixNano()))
	other := open(t, etcd.New([]string{addr}, &o))
	r = coordtest.NewReports("etcd")
	o.Reporter = r
	s = open(t, etcd.New([]string{addr}, &o))
	if _, err := s.Commit(t.Context(), backend.Create("/held", nil, backend.Ephemeral)); err != nil {
		t.Fatal(err)
	}
	return s, r, func() bool {
		t.Helper()
		if err := other.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		_, err := other.Exists(t.Context(), "/held", nil)
		return errors.Is(err, backend.ErrNotFound)
	}
}

func TestReporter_LearnsOfSessionsAndTheirEnds(t *testing.T) {
	t.Parallel()
	addr := shared.get(t)
	s, r, _ := held(t, addr, etcd.Options{})
	opened, ended := r.List()
	if len(opened) != 1 || opened[0].ID != s.ID() || opened[0].Timeout != s.Timeout() || opened[0].Server != addr || opened[0].Service != "etcd" || len(ended) != 0 {
		t.Fatalf("reported %v and %v, want %v", opened, ended, s)
	}
	s.Close()
	if _, ended := r.List(); !slices.Equal(slices.Compact(ended), []int64{s.ID()}) {
		t.Errorf("ended %v after Close", ended)
	}
}

// The next Open of the same Backend revokes the lease of a lost session, and reports that.
func TestReporter_KeepsASessionThatIsLostByItsClock(t *testing.T) {
	t.Parallel()
	proxy, err := zkproxy.NewRaw(shared.get(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	r := coordtest.NewReports("etcd")
	b := etcd.New([]string{proxy.Addr()}, &etcd.Options{Prefix: "end" + strconv.Itoa(int(time.Now().UnixNano())), SessionTimeout: 2 * time.Second, Reporter: r})
	s := open(t, b)
	proxy.Blackhole(true)
	<-s.Done()
	if _, ended := r.List(); len(ended) != 0 {
		t.Errorf("ended %v, and the servers may still have it", ended)
	}
	proxy.Blackhole(false)
	next := open(t, b)
	if opened, ended := r.List(); len(opened) != 2 || opened[1].ID != next.ID() || !slices.Equal(slices.Compact(ended), []int64{s.ID()}) {
		t.Errorf("opened %v, ended %v", opened, ended)
	}
}

// A user who may not write the key of the session gets a lease, and no session.
func TestReporter_LearnsThatASessionWasNotOpened(t *testing.T) {
	t.Parallel()
	addr, _ := startWithUsers(t, "coord", "coore")
	r := coordtest.NewReports("etcd")
	_, err := etcd.New([]string{addr}, &etcd.Options{Username: "alice", Password: "secret", Prefix: "other", Reporter: r}).Open(t.Context())
	if !errors.Is(err, backend.ErrDenied) {
		t.Fatal(err)
	}
	if opened, ended := r.List(); len(opened) != 1 || !slices.Contains(ended, opened[0].ID) {
		t.Errorf("opened %v, ended %x", opened, ended)
	}
}

func TestEnd_RevokesTheLease(t *testing.T) {
	t.Parallel()
	addr := shared.get(t)
	s, r, gone := held(t, addr, etcd.Options{})
	opened, _ := r.List()
	ticket := opened[0]
	ticket.Server = "192.0.2.1:1" // is no endpoint, and is not dialed
	endpoints := []string{"127.0.0.1:1", addr}
	if gone() {
		t.Fatal("there is no node")
	}
	for range 2 {
		if err := etcd.End(t.Context(), endpoints, nil, ticket); err != nil {
			t.Error(err)
		}
		if !gone() {
			t.Error("the node is there")
		}
	}
	<-s.Done()
	<-r.News
	if _, ended := r.List(); !slices.Equal(slices.Compact(ended), []int64{s.ID()}) {
		t.Errorf("ended %v", ended)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := etcd.End(ctx, endpoints[:1], nil, ticket); err == nil {
		t.Error("without a server")
	}
}

func TestEnd_NeedsAUserWhoMayWriteTheKeys(t *testing.T) {
	t.Parallel()
	addr, _ := startWithUsers(t, "coord", "coore")
	alice := etcd.Options{Username: "alice", Password: "secret", SessionTimeout: time.Minute}
	r := coordtest.NewReports("etcd")
	alice.Reporter = r
	s := open(t, etcd.New([]string{addr}, &alice))
	opened, _ := r.List()
	for name, o := range map[string]*etcd.Options{
		"no user":          nil,
		"a wrong password": {Username: "alice", Password: "other"},
	} {
		if err := etcd.End(t.Context(), []string{addr}, o, opened[0]); err == nil {
			t.Errorf("%s: the session was ended", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	if err := s.Sync(t.Context(), "/"); err != nil {
		t.Error(err)
	}
	if err := etcd.End(t.Context(), []string{addr}, &etcd.Options{Username: "alice", Password: "secret"}, opened[0]); err != nil {
		t.Error(err)
	}
	<-s.Done()
}
