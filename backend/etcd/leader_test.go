//go:build linux

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/ensemble"
)

// The leader is paused, and then killed. Sessions of all three members go on with the next one.
func TestTheLeaderIsPausedAndKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	leader := func() ensemble.Server {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		s, err := c.Leader(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := leader()
	b := etcd.New(c.Addrs(), &etcd.Options{SessionTimeout: 20 * time.Second})
	var sessions []backend.Session
	for i := range 6 {
		s := open(t, b)
		commit(t, s, backend.Create(fmt.Sprint("/e", i), nil, backend.Ephemeral))
		sessions = append(sessions, s)
	}
	write := func(round string) {
		t.Helper()
		for i, s := range sessions {
			for {
				_, err := s.Commit(t.Context(), backend.SetData(fmt.Sprint("/e", i), []byte(round), backend.AnyVersion))
				if err == nil {
					break
				}
				if !errors.Is(err, backend.ErrUncertain) || s.Err() != nil {
					t.Fatalf("%s: session %d: %v", round, i, err)
				}
				if err := s.Sync(t.Context(), "/"); err != nil {
					t.Fatalf("%s: session %d: %v", round, i, err)
				}
			}
			data, stat, err := s.Get(t.Context(), fmt.Sprint("/e", i), nil)
			if err != nil || string(data) != round || stat.EphemeralOwner != s.ID() {
				t.Fatalf("%s: session %d reads %q, %+v, %v", round, i, data, stat, err)
			}
		}
	}
	write("before")
	if err := first.Pause(); err != nil {
		t.Fatal(err)
	}
	write("while the leader is paused")
	if err := first.Resume(); err != nil {
		t.Fatal(err)
	}
	write("after the pause")
	leader().Kill()
	write("after a leader was killed")
}
