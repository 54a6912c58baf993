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
)

func lock(t *testing.T, c *coord.Client) *coord.Hold {
	t.Helper()
	h, err := coord.NewMutex(c, "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// The faults of a link do on PostgreSQL what they do in memory and on ZooKeeper.
func TestEach_MakesTheFaultsOfALink(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, &coordtest.Options{SessionTimeout: 20 * time.Second}, func(t *testing.T, s *coordtest.Service) {
		a := s.Client("a", nil)
		h := lock(t, a)
		n := coord.NewCounter(a, "/n")
		add := func(want int64) {
			t.Helper()
			if got, err := n.Add(t.Context(), 1); err != nil || got != want {
				t.Fatalf("the counter is %d, %v, want %d", got, err, want)
			}
		}
		add(1)
		b, err := a.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, changed := b.Status()
		s.Link("a").Cut()
		<-changed
		add(2)
		reply := s.Link("a").DropReply(1, "/n")
		add(3)
		<-reply.Done()
		request := s.Link("a").DropRequest(1, "/n")
		add(4)
		<-request.Done()
		if h.Err() != nil {
			t.Fatalf("the hold ended with %v", h.Err())
		}

		const d = 60 * time.Millisecond
		s.Link("a").Delay(d)
		began := time.Now()
		if got, err := n.Get(t.Context()); err != nil || got != 4 || time.Since(began) < 2*d {
			t.Errorf("the counter is %d, %v, after %v", got, err, time.Since(began))
		}
		s.Link("a").Delay(0)

		s.Link("a").Expire()
		next := lock(t, s.Client("b", nil))
		<-h.Done()
		if !errors.Is(h.Err(), coord.ErrLost) || next.Token() <= h.Token() {
			t.Errorf("the hold ended with %v; tokens %d and %d", h.Err(), h.Token(), next.Token())
		}
	})
}

// A session outlives a stop and a kill of the server, and services on it do not see each other.
func TestService_OutlivesTheServer(t *testing.T) {
	t.Parallel()
	e := pgtest.Start(t, nil)
	s := e.Service(t, &coordtest.Options{SessionTimeout: 30 * time.Second})
	a := s.Client("a", nil)
	h := lock(t, a)
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
