//go:build linux

package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// smallDatabase makes a database in a file system of that many bytes. It returns the connection string, and a function that doubles
// the file system. The write-ahead log is on another file system, since a server that cannot write it stops.
func smallDatabase(t *testing.T, server *pgtest.Server, bytes int) (url string, enlarge func()) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "coord-small-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", bytes)); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() { // the server holds files open
		server.Kill()
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	data := filepath.Join(dir, "space")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chown", "--reference="+server.DataDir(), data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, sql := range []string{"CREATE TABLESPACE small LOCATION '" + data + "'", "CREATE DATABASE small TABLESPACE small"} {
		if _, err := server.Exec(t.Context(), "", sql); err != nil {
			t.Fatal(err)
		}
	}
	return server.URL("small"), func() {
		t.Helper()
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", 2*bytes)); err != nil {
			t.Fatal(err)
		}
	}
}

// On a full disk, commits that need space are refused with ErrNoSpace, no session is lost, and deletions work. With more space all
// commits work again.
func TestSpace_AFullDisk(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	url, enlarge := smallDatabase(t, server, 24<<20)
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
	enlarge()
	if _, err := s.Commit(t.Context(), backend.Create("/d/again", make([]byte, 100_000), backend.Persistent)); err != nil {
		t.Errorf("with space again: %v", err)
	}
	t.Logf("figure: %d nodes before the disk was full", len(names))
}
