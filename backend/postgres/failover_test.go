//go:build linux

package postgres_test

import (
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
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
	if err := s.Promote(t.Context()); err != nil { // the former primary is not told
		t.Fatal(err)
	}
	next, err := coord.NewMutex(open(s.Addr()), "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Err() == nil {
		t.Error("two holders: the lease goes on at the former primary")
	}
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
}
