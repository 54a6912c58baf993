package etcd_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/zkproxy"
)

// reports is a Reporter that keeps what it learns.
type reports struct {
	before func() // called first by Opened

	mu     sync.Mutex
	opened []backend.Ticket
	ended  []int64
	news   chan struct{} // capacity 1: Ended was called
}

func newReports() *reports { return &reports{news: make(chan struct{}, 1)} }

func (r *reports) Opened(t backend.Ticket) {
	if r.before != nil {
		r.before()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = append(r.opened, t)
}

func (r *reports) Ended(service string, id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if service == "etcd" {
		r.ended = append(r.ended, id)
	}
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *reports) list() (opened []backend.Ticket, ended []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.opened), slices.Clone(r.ended)
}

// held opens a session with an ephemeral node on the server. gone reports whether its node is gone.
func held(t *testing.T, addr string, o etcd.Options) (s backend.Session, r *reports, gone func() bool) {
	t.Helper()
	o.Prefix = "end" + strconv.Itoa(int(time.Now().UnixNano()))
	other := open(t, etcd.New([]string{addr}, &o))
	r = newReports()
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
	opened, ended := r.list()
	if len(opened) != 1 || opened[0].ID != s.ID() || opened[0].Timeout != s.Timeout() || opened[0].Server != addr || opened[0].Service != "etcd" || len(ended) != 0 {
		t.Fatalf("reported %v and %v, want %v", opened, ended, s)
	}
	s.Close()
	if _, ended := r.list(); !slices.Equal(slices.Compact(ended), []int64{s.ID()}) {
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
	r := newReports()
	b := etcd.New([]string{proxy.Addr()}, &etcd.Options{Prefix: "end" + strconv.Itoa(int(time.Now().UnixNano())), SessionTimeout: 2 * time.Second, Reporter: r})
	s := open(t, b)
	proxy.Blackhole(true)
	<-s.Done()
	if _, ended := r.list(); len(ended) != 0 {
		t.Errorf("ended %v, and the servers may still have it", ended)
	}
	proxy.Blackhole(false)
	next := open(t, b)
	if opened, ended := r.list(); len(opened) != 2 || opened[1].ID != next.ID() || !slices.Equal(slices.Compact(ended), []int64{s.ID()}) {
		t.Errorf("opened %v, ended %v", opened, ended)
	}
}

func TestEnd_RevokesTheLease(t *testing.T) {
	t.Parallel()
	addr := shared.get(t)
	s, r, gone := held(t, addr, etcd.Options{})
	opened, _ := r.list()
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
	<-r.news
	if _, ended := r.list(); !slices.Equal(slices.Compact(ended), []int64{s.ID()}) {
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
	r := newReports()
	alice.Reporter = r
	s := open(t, etcd.New([]string{addr}, &alice))
	opened, _ := r.list()
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
