// Package fakeclock lets tests set the wall clock of a server.
package fakeclock

import (
	"cmp"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

//go:embed testdata/clock.c
var source []byte

// Clocks are the wall clocks of servers, which have numbers.
type Clocks struct{ dir string }

// New returns clocks that show the real time. On other systems than Linux it skips the test. Without a C compiler it does as
// zktest.Missing.
func New(t *testing.T) *Clocks {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the clock of a server can be set on Linux only")
	}
	c, err := Make(t)
	if err != nil {
		zktest.Missing(t, err)
	}
	return c
}

// Make is New for a test that can do without clocks. The error says what this machine lacks.
func Make(t *testing.T) (*Clocks, error) {
	t.Helper()
	cc, err := exec.LookPath(cmp.Or(os.Getenv("CC"), "gcc"))
	if err != nil {
		return nil, fmt.Errorf("no C compiler, to set the clock of a server: %w", err)
	}
	dir, err := os.MkdirTemp("", "coord-clock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c := &Clocks{dir}
	text := filepath.Join(dir, "clock.c")
	// A server can run as another user.
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(text, source, 0o644)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", c.library(), text, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("no library that sets the clock of a server: %w\n%s", err, out)
	}
	return c, nil
}

func (c *Clocks) library() string { return filepath.Join(c.dir, "clock.so") }

func (c *Clocks) file(id int) string { return filepath.Join(c.dir, fmt.Sprint("ahead", id)) }

// Env returns the environment that the server with a number needs. Set is called before the server starts.
func (c *Clocks) Env(id int) []string {
	return []string{"LD_PRELOAD=" + c.library(), "FAKE_CLOCK=" + c.file(id)}
}

// Set sets the clock of the server with a number ahead of the real time, or behind it, by whole seconds.
func (c *Clocks) Set(t *testing.T, id int, ahead time.Duration) {
	t.Helper()
	if err := c.Step(id, ahead); err != nil {
		t.Fatal(err)
	}
}

// Step is Set for a goroutine that is not that of the test.
func (c *Clocks) Step(id int, ahead time.Duration) error {
	b := binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second)))
	file, err := os.OpenFile(c.file(id), os.O_CREATE|os.O_WRONLY, 0o644) // the server has mapped it
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(b, 0)
	return err
}
