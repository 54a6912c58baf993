//go:build linux

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zkproxy"
)

// The disk of one of three members is full. etcd ends that member; sessions continue at the others,
// with their nodes. When there is room again the member is started and has all commits.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	if binary != "" {
		t.Skip("with the embedded server only")
	}
	d := newDisk(t)
	c := startCluster(t, []string{d.dir, "", ""})
	full := c.members[0]
	// One session at the member with that disk, and one at another member. Both know all.
	var sessions []backend.Session
	for i := range 2 {
		addrs := append(append([]string(nil), c.Addrs()[i:]...), c.Addrs()[:i]...)
		s := open(t, etcd.New(addrs, &etcd.Options{SessionTimeout: 20 * time.Second}))
		commit(t, s, backend.Create(fmt.Sprint("/e", i), nil, backend.Ephemeral))
		sessions = append(sessions, s)
	}
	d.fill(t, true)
	applied, uncertain := 0, 0
	for n := 0; full.running(); n++ {
		if n == 3000 {
			t.Fatal("the member goes on without a disk")
		}
		path := fmt.Sprintf("/n%d", n)
		_, err := sessions[n%2].Commit(t.Context(), backend.Create(path, make([]byte, 50_000), backend.Persistent))
		switch {
		case err == nil:
			applied++
		case errors.Is(err, backend.ErrUncertain):
			uncertain++
			if err := sessions[n%2].Sync(t.Context(), "/"); err != nil {
				t.Fatal(err)
			}
			if _, err := sessions[n%2].Exists(t.Context(), path, nil); err == nil {
				applied++
			} else if !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
		default:
			t.Fatalf("a commit with one full disk: %v", err)
		}
	}
	if said := full.lastWords(); !strings.Contains(said, "no space left on device") {
		t.Errorf("the member said\n%s", said)
	}
	for i, s := range sessions {
		if _, stat, err := s.Get(t.Context(), fmt.Sprint("/e", i), nil); err != nil || stat.EphemeralOwner != s.ID() {
			t.Errorf("session %d has the node %+v, %v", i, stat, err)
		}
	}
	full.Kill()
	d.fill(t, false)
	if err := full.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := full.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	names, _, err := open(t, etcd.New([]string{full.addr}, nil)).Children(t.Context(), "/", nil)
	if err != nil || len(names) != applied+2 {
		t.Errorf("the member has %d nodes, %v, want %d", len(names), err, applied+2)
	}
	t.Logf("figure: a full disk of one member of three: %d commits applied, %d uncertain before Sync, no session lost", applied, uncertain)
}

// Packets vanish, in both directions, and nothing is reset. A session leaves a server for another
// one when a renewal has no answer for half its lease; commits under way are then uncertain. Where no
// server can be reached it knows of its loss before its nodes are deleted.
func TestABlackHole(t *testing.T) {
	t.Parallel()
	var proxies []*zkproxy.Proxy
	var addrs []string
	for range 2 {
		p, err := zkproxy.NewRaw(shared.get(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	o := etcd.Options{SessionTimeout: 12 * time.Second, Prefix: "black-hole"}
	longer := o
	longer.SessionTimeout = time.Minute
	a, see := open(t, etcd.New(addrs, &o)), open(t, etcd.New([]string{shared.get(t)}, &longer))
	commit(t, a, backend.Create("/n", nil, backend.Ephemeral))
	used, other := proxies[0], proxies[1]
	for used.Open()+other.Open() > 1 && t.Context().Err() == nil { // Open has asked the other one for its cluster
		time.Sleep(time.Millisecond)
	}
	if used.Open() == 0 {
		used, other = other, used
	}
	before := other.Count().Connections
	used.Blackhole(true)
	if _, err := a.Commit(t.Context(), backend.SetData("/n", []byte("v"), 0)); !errors.Is(err, backend.ErrUncertain) {
		t.Fatalf("a commit into a black hole: %v", err)
	}
	if err := a.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	data, stat, err := a.Get(t.Context(), "/n", nil)
	if err != nil || len(data) > 0 || stat.EphemeralOwner != a.ID() {
		t.Fatalf("the node holds %q, %+v, %v", data, stat, err)
	}
	if other.Count().Connections == before {
		t.Fatal("no connection by the other way")
	}
	w := backend.NewWatch()
	if _, err := see.Exists(t.Context(), "/n", w); err != nil {
		t.Fatal(err)
	}
	m := pace.Start(t, nil)
	other.Blackhole(true)
	await(t, a.Done(), "the loss")
	if lost := m.Lost(); w.Kind() != 0 && lost > 2*time.Second { // the margin is 4 s
		t.Logf("the order of the deletion and the loss is not judged: the machine did other work for %v", lost)
	} else if w.Kind() != 0 {
		t.Errorf("the node is deleted before the session knows of its loss")
	}
	if !errors.Is(a.Err(), backend.ErrSessionLost) {
		t.Error(a.Err())
	}
	await(t, w.Fired(), "the deletion")
	if w.Kind() != backend.Deleted {
		t.Errorf("the watch has fired with %q", w.Kind())
	}
}

// A lost session whose lease the servers still keep is ended by the next Open, so none of its commits
// can be applied afterwards.
func TestTheNextSessionEndsALostOne(t *testing.T) {
	t.Parallel()
	p, err := zkproxy.NewRaw(shared.get(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	o := etcd.Options{SessionTimeout: 10 * time.Second, LossMargin: 5 * time.Second, Prefix: "next-session"}
	b := etcd.New([]string{p.Addr()}, &o)
	lost, see := open(t, b), open(t, etcd.New([]string{shared.get(t)}, &o))
	commit(t, lost, backend.Create("/n", nil, backend.Ephemeral))
	p.Blackhole(true)
	await(t, lost.Done(), "the loss")
	p.Blackhole(false)
	if _, err := see.Exists(t.Context(), "/n", nil); err != nil {
		t.Fatal("this tests nothing: ", err)
	}
	next := open(t, b)
	if _, err := see.Exists(t.Context(), "/n", nil); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the node of the lost session: %v", err)
	}
	if next.ID() == lost.ID() {
		t.Error("the next session has the ID of the lost one")
	}
}

// The leader is cut off from the other members, but not from its clients. The others elect another
// leader, and commits continue there. The one that is cut off acknowledges none. When it meets the others
// again it has all commits.
func TestALeaderThatIsCutOffFromTheOthers(t *testing.T) {
	t.Parallel()
	c := startClusterOn(t, nil, true)
	s, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	alone := s.(*member)
	var others []string
	for _, m := range c.members {
		if m != alone {
			others = append(others, m.addr)
		}
	}
	o := etcd.Options{SessionTimeout: 20 * time.Second}
	at, beside := open(t, etcd.New([]string{alone.addr}, &o)), open(t, etcd.New(others, &o))
	commit(t, at, backend.Create("/n", nil, backend.Persistent))
	c.peers.cutOff(alone, true)
	if made, accepted := c.peers.lossy(alone); made == 0 || accepted == 0 {
		t.Errorf("of the connections that are cut off, the member has made %d and accepted %d", made, accepted)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*election)
	defer cancel()
	if _, err := at.Commit(ctx, backend.SetData("/n", []byte("alone"), 0)); err == nil {
		t.Fatal("a leader without the others acknowledges a commit")
	}
	for {
		_, err := beside.Commit(t.Context(), backend.SetData("/n", []byte("beside"), backend.AnyVersion))
		if err == nil {
			break
		}
		if !errors.Is(err, backend.ErrUncertain) {
			t.Fatalf("a commit at the others: %v", err)
		}
		if err := beside.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
	}
	next, err := c.Leader(t.Context())
	for err == nil && next == ensemble.Server(alone) { // until it knows that it leads no more
		next, err = c.Leader(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	c.peers.cutOff(alone, false)
	if err := alone.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, _, err := open(t, etcd.New([]string{alone.addr}, &o)).Get(t.Context(), "/n", nil)
	if err != nil || string(data) != "beside" {
		t.Errorf("the member that was cut off has %q, %v", data, err)
	}
}
