//go:build linux

package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// After the promotion of a synchronous standby, the former primary, which still runs, renews no lease: a holder that is
// connected to it learns of its loss before the new primary grants the lock to the next holder.
func TestFailover_AFormerPrimaryRenewsNoLease(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	at := func(addr string) backend.Backend {
		return postgres.New(urlOf([]string{addr}), &postgres.Options{SessionTimeout: 8 * time.Second, Schema: sharedSchema})
	}
	open := func(addr string) *coord.Client {
		t.Helper()
		client, err := coord.Open(t.Context(), at(addr), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	p, s := c.roles()
	h, err := coord.NewMutex(open(p.Addr()), "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Promote(t.Context()); err != nil { // the former primary still runs
		t.Fatal(err)
	}
	next, err := coord.NewMutex(open(s.Addr()), "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Err() == nil {
		t.Error("two holders: the former primary has renewed the lease")
	}
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
}

// A promoted asynchronous standby lacks the latest commits. The session that has seen them ends, and its lock is lost. A session that
// has seen none of them continues. New positions are higher than the lost ones.
func TestFailover_AnAsynchronousStandbyLacksCommits(t *testing.T) {
	t.Parallel()
	p := pgtest.Start(t, &pgtest.Options{Settings: clusterSettings})
	s, err := p.Standby(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	o := postgres.Options{SessionTimeout: time.Minute, Schema: sharedSchema}
	polls := o
	polls.Poll = o.SessionTimeout // so that it sees no commit of others
	url := urlOf([]string{p.Addr(), s.Addr()})
	client, err := coord.Open(t.Context(), postgres.New(url, &o), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	seen, err := client.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unseen := opened(t, postgres.New(url, &polls))
	create(t, unseen, "/kept", backend.Ephemeral)
	at, err := p.Exec(t.Context(), "", "SELECT pg_current_wal_lsn()")
	if err != nil {
		t.Fatal(err)
	}
	for has := ""; has != "t"; { // nothing signals that the standby has it
		if has, err = s.Exec(t.Context(), "", fmt.Sprintf("SELECT pg_last_wal_replay_lsn() >= '%s'", at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	h, err := coord.NewMutex(client, "/lost", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if err := errors.Join(s.Start(t.Context()), s.Promote(t.Context())); err != nil {
		t.Fatal(err)
	}
	ends(t, seen)
	<-h.Done()
	if !errors.Is(h.Err(), coord.ErrLost) {
		t.Errorf("the hold whose commit is lost: %v", h.Err())
	}
	if _, err := unseen.Exists(t.Context(), "/kept", nil); err != nil {
		t.Errorf("the session that has seen none of the lost commits: %v, %v", err, unseen.Err())
	}
	again, err := coord.NewMutex(client, "/lost", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again.Token() <= h.Token() {
		t.Errorf("token %d after %d", again.Token(), h.Token())
	}
}
