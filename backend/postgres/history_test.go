package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// opened opens a session that is closed at the end of the test.
func opened(t *testing.T, b backend.Backend) backend.Session {
	t.Helper()
	s, err := b.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// create creates a node and returns the position of the commit, also if its reply is lost.
func create(t *testing.T, s backend.Session, path string, mode backend.CreateMode) int64 {
	t.Helper()
	for {
		r, err := s.Commit(t.Context(), backend.Create(path, nil, mode))
		if err == nil {
			return r[0].Czxid
		}
		if !backend.IsUncertain(err) {
			t.Fatal(err)
		}
		if err := s.Sync(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		stat, err := s.Exists(t.Context(), path, nil)
		if err == nil {
			return stat.Czxid
		}
		if !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
	}
}

// ends waits until a session is lost.
func ends(t *testing.T, s backend.Session) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(time.Minute):
		t.Fatal("the session has not ended")
	}
	if err := s.Err(); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("the session ended with %v", err)
	}
}

// program runs a program of PostgreSQL.
func program(t *testing.T, name string, args ...string) {
	t.Helper()
	bin, err := pgtest.Find()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(bin, name), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// restart stops a server, runs a function, and starts the server again.
func restart(t *testing.T, server *pgtest.Server, between func()) {
	t.Helper()
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	between()
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// backUp copies the files of a stopped server. restore replaces the files by the copy.
func backUp(t *testing.T, server *pgtest.Server) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", server.DataDir(), server.DataDir()+"-copy").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func restore(t *testing.T, server *pgtest.Server) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(server.DataDir()), os.Rename(server.DataDir()+"-copy", server.DataDir())); err != nil {
		t.Fatal(err)
	}
}

// An older copy replaces the files of a server. Other sessions then commit more than was lost, in an epoch of the same number. A session
// that has seen the lost commits ends when it connects again. A session that has seen none of them continues.
func TestHistory_RestoredFiles(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: time.Minute})
	holder, idle := opened(t, s.link("holder")), opened(t, s.link("idle"))
	create(t, holder, "/before", backend.Persistent)
	if err := idle.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	s.link("idle").Partition()
	restart(t, server, func() { backUp(t, server) })
	var seen int64
	for i := range 3 {
		seen = create(t, holder, fmt.Sprint("/held-", i), backend.Ephemeral)
	}
	s.link("holder").Partition()
	restart(t, server, func() { restore(t, server) })
	fresh := opened(t, s.link("fresh"))
	var z int64
	for i := 0; z < seen+5; i++ { // a lower position would show the loss without the history
		z = create(t, fresh, fmt.Sprint("/fresh-", i), backend.Persistent)
		if z>>40 != seen>>40 {
			t.Fatalf("position %#x, want the epoch of %#x", z, seen)
		}
	}
	s.link("holder").Heal()
	ends(t, holder)
	s.link("idle").Heal()
	if _, _, err := idle.Get(t.Context(), "/before", nil); err != nil {
		t.Errorf("the session that has seen nothing of what is lost: %v", err)
	}
	create(t, idle, "/idle", backend.Ephemeral)
}

// An administrator restores a dump of the schema under running clients. The connection of a session does not break, and
// other sessions commit more than is lost before its next commit. This commit is refused, and the session ends.
func TestHistory_ADumpRestoredUnderClients(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: time.Minute}) // keep-alives are rare
	holder := opened(t, s.link("holder"))
	create(t, holder, "/before", backend.Persistent)
	dump := filepath.Join(t.TempDir(), "dump.sql")
	program(t, "pg_dump", "-n", s.opts.Schema, "-f", dump, server.URL(""))
	seen := create(t, holder, "/held", backend.Ephemeral)
	if err := s.exec("DROP SCHEMA " + s.opts.Schema + " CASCADE"); err != nil {
		t.Fatal(err)
	}
	program(t, "psql", "-qX", "-1", "-v", "ON_ERROR_STOP=1", "-f", dump, server.URL(""))
	fresh := opened(t, s.link("fresh"))
	var z int64
	for i := 0; z < seen+5; i++ {
		z = create(t, fresh, fmt.Sprint("/fresh-", i), backend.Persistent)
	}
	if _, err := holder.Commit(t.Context(), backend.Create("/after", nil, backend.Persistent)); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("a commit of a session whose history is gone: %v", err)
	}
	ends(t, holder)
	if _, err := fresh.Exists(t.Context(), "/after", nil); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("its commit was applied: %v", err)
	}
}

// The same without other clients: the commit itself finds that the tables were replaced.
func TestHistory_ADumpRestoredUnderOneClient(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: time.Minute})
	holder := opened(t, s.link("holder"))
	dump := filepath.Join(t.TempDir(), "dump.sql")
	program(t, "pg_dump", "-n", s.opts.Schema, "-f", dump, server.URL(""))
	create(t, holder, "/held", backend.Ephemeral)
	if err := s.exec("DROP SCHEMA " + s.opts.Schema + " CASCADE"); err != nil {
		t.Fatal(err)
	}
	program(t, "psql", "-qX", "-1", "-v", "ON_ERROR_STOP=1", "-f", dump, server.URL(""))
	if _, err := holder.Commit(t.Context(), backend.Create("/after", nil, backend.Persistent)); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("a commit of a session whose history is gone: %v", err)
	}
}

// A dump is restored on another cluster, the second host of the connection string, and the first host ends.
func TestHistory_ADumpInAnotherCluster(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"fsync": "off"}
	one, two := pgtest.Start(t, &pgtest.Options{Settings: settings}), pgtest.Start(t, &pgtest.Options{Settings: settings})
	b := postgres.New(urlOf([]string{one.Addr(), two.Addr()}), &postgres.Options{SessionTimeout: time.Minute})
	holder := opened(t, b)
	create(t, holder, "/before", backend.Persistent)
	dump := filepath.Join(t.TempDir(), "dump.sql")
	program(t, "pg_dump", "-n", "coord", "-f", dump, one.URL(""))
	seen := create(t, holder, "/held", backend.Ephemeral)
	one.Kill()
	program(t, "psql", "-qX", "-1", "-v", "ON_ERROR_STOP=1", "-f", dump, two.URL(""))
	ends(t, holder)
	fresh := opened(t, b)
	if z := create(t, fresh, "/held", backend.Ephemeral); z <= seen {
		t.Errorf("position %d after %d", z, seen)
	}
	if _, err := fresh.Exists(t.Context(), "/before", nil); err != nil {
		t.Error(err)
	}
}

// A session with a later history begins a new epoch on a server whose sessions are connected. These continue, and reads with
// watches do not wait for events up to a position without a commit.
func TestHistory_ANewEpochUnderClients(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute})
	a := opened(t, s.link("a"))
	create(t, a, "/n", backend.Persistent)
	w := backend.NewWatch()
	defer w.Stop()
	if _, _, err := a.Get(t.Context(), "/n", w); err != nil {
		t.Fatal(err)
	}
	if err := s.exec(fmt.Sprintf("SELECT %s.attach(1, 2, 5::bigint << 40, gen_random_uuid())", s.opts.Schema)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, st, err := a.Get(ctx, "/n", nil); err != nil || st.AsOf>>40 != 6 {
		t.Fatalf("position %#x: %v", st.AsOf, err)
	}
	if z := create(t, a, "/m", backend.Ephemeral); z>>40 != 6 {
		t.Errorf("position %#x, want epoch 6", z)
	}
	if err := a.Err(); err != nil {
		t.Error(err)
	}
}
