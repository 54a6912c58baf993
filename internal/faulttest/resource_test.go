//go:build linux

package faulttest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-coord/coord/internal/fence"
)

// A resource is protected by the lock, see package fence. It lives in this process, and its
// writers are the workers.
type resource struct {
	socket   string
	register *fence.Register
}

// newResource returns a resource that lives as long as the test.
func newResource(t *testing.T) *resource {
	t.Helper()
	// The path of a socket must be short, so not in t.TempDir.
	dir, err := os.MkdirTemp("", "coord")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	s, err := fence.Listen(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &resource{socket, s.Register("")}
}

// counts returns the accepted and refused writes of the fenced register and the overlaps that
// the control counted.
func (r *resource) counts() (accepted, refused, overlaps int) { return r.register.Counts() }
