package postgres_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// A crash loses commits that are not durable yet, and no answered commit. Later commits have higher positions than all earlier
// ones.
func TestEarlyRelease_ACrashLosesNoAnsweredCommit(t *testing.T) {
	t.Parallel()
	// The server flushes commits that no client waits for as late as possible.
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "0"}})
	b := postgres.New(server.URL(""), &postgres.Options{SessionTimeout: time.Minute, EarlyRelease: true})
	for round := range 2 {
		answered := make(map[string]int64)
		var mu sync.Mutex
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		enough := make(chan struct{})
		for i := range 4 {
			s, err := b.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer s.Close()
				for n := 0; ; n++ {
					path := fmt.Sprintf("/n-%d-%d-%d", round, i, n)
					r, err := s.Commit(ctx, backend.Create(path, nil, backend.Persistent))
					if err != nil {
						return
					}
					mu.Lock()
					answered[path] = r[0].Czxid
					if len(answered) == 100 {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		<-enough
		if err := server.StopNow(); err != nil {
			t.Fatal(err)
		}
		cancel()
		wg.Wait()
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		highest := int64(0)
		for path, z := range maps.All(answered) {
			highest = max(highest, z)
			if st, err := s.Exists(t.Context(), path, nil); err != nil || st.Czxid != z {
				t.Errorf("round %d: %s was created at %d: %d, %v", round, path, z, st.Czxid, err)
			}
		}
		r, err := s.Commit(t.Context(), backend.Create(fmt.Sprintf("/after-%d", round), nil, backend.Persistent))
		if err != nil || r[0].Czxid>>40 <= highest>>40 {
			t.Errorf("round %d: a commit after the crash at %d, one before it at %d: %v", round, r[0].Czxid, highest, err)
		}
		t.Logf("figure: round %d: %d commits were answered before the crash", round, len(answered))
		s.Close()
	}
}
