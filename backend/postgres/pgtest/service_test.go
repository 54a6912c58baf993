//go:build linux

package pgtest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/internal/rawlink"
)

// The faults of a link do on PostgreSQL what they do in memory and on ZooKeeper.
func TestEach_MakesTheFaultsOfALink(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, &coordtest.Options{SessionTimeout: 20 * time.Second}, rawlink.TestFaults)
}

// A session outlives a stop and a kill of the server, and services on it do not see each other.
func TestService_OutlivesTheServer(t *testing.T) {
	t.Parallel()
	e := pgtest.Start(t, nil)
	s := e.Service(t, &coordtest.Options{SessionTimeout: 30 * time.Second})
	a := s.Client("a", nil)
	h := rawlink.Lock(t, a)
	b, err := a.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []func() error{e.Stop, func() error { e.Kill(); return nil }} {
		_, changed := b.Status()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		<-changed
		if err := e.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.Verify(t.Context()); err != nil {
			t.Fatalf("the hold ended with %v", err)
		}
	}
	c, err := coord.Open(t.Context(), postgres.New(e.URL(""), nil), nil) // of the schema coord
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := coord.NewMutex(c, "/lock", nil).TryLock(t.Context()); !errors.Is(err, coord.ErrLocked) {
		t.Errorf("the lock of the service, through a client of its schema: %v", err)
	}
	if _, err := coord.NewMutex(e.Service(t, nil).Client("a", nil), "/lock", nil).TryLock(t.Context()); err != nil {
		t.Errorf("the lock of another service: %v", err)
	}
}
