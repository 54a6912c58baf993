//go:build linux

package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/zktest"
)

// smallDatabase makes a database on a disk of that many bytes. The write-ahead log is on another file system, since a server that
// cannot write it stops. Without the right to mount it does as zktest.Missing.
func smallDatabase(t *testing.T, server *pgtest.Server, bytes int64) (url string, small *disk) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "coord-small-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if small, err = mountDisk(t, dir, bytes, server.DataDir()); err != nil {
		zktest.Missing(t, err)
	}
	for _, sql := range []string{"CREATE TABLESPACE small LOCATION '" + dir + "'", "CREATE DATABASE small TABLESPACE small"} {
		if _, err := server.Exec(t.Context(), "", sql); err != nil {
			t.Fatal(err)
		}
	}
	return server.URL("small"), small
}

// On a full disk, commits that need space are refused with ErrNoSpace, no session is lost, and deletions work. With more space all
// commits work again.
func TestSpace_AFullDisk(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	const size = 24 << 20
	url, small := smallDatabase(t, server, size)
	b := postgres.New(url, &postgres.Options{SessionTimeout: time.Minute})
	s, other := opened(t, b), opened(t, b)
	create(t, s, "/d", backend.Persistent)
	var names []string
	for size := 100_000; size >= 100; size /= 10 {
		for {
			data := []byte(strings.Repeat(fmt.Sprintf("%016x", time.Now().UnixNano()), size/16))
			for i := range data {
				data[i] += byte(i*i*7 + len(names)*13 + i/16*31) // so that the server does not compress it
			}
			name := fmt.Sprint("/d/", len(names))
			if _, err := s.Commit(t.Context(), backend.Create(name, data, backend.Persistent)); err != nil {
				if !errors.Is(err, backend.ErrNoSpace) || errors.Is(err, backend.ErrUncertain) {
					t.Fatalf("a commit without space: %v", err)
				}
				break
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Fatal("no node fits")
	}
	for _, session := range []backend.Session{s, other} {
		if err := session.Err(); err != nil {
			t.Errorf("a session: %v", err)
		}
		if _, err := session.Exists(t.Context(), names[0], nil); err != nil {
			t.Error(err)
		}
	}
	for _, name := range names {
		if _, err := other.Commit(t.Context(), backend.Delete(name, -1)); err != nil {
			t.Fatalf("a deletion without space: %v", err)
		}
	}
	if err := small.resize(2 * size); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), backend.Create("/d/again", make([]byte, 100_000), backend.Persistent)); err != nil {
		t.Errorf("with space again: %v", err)
	}
	t.Logf("figure: %d nodes before the disk was full", len(names))
}
