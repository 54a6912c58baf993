//go:build linux

package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/proc"
)

// disks are file systems in memory that can be full, one for the data of each server. They
// are mounted in the mount namespace of a process of their own; other processes reach them
// below that process's root in /proc. So they disappear with that process, which ends with
// this one.
type disks struct {
	*proc.Worker[string] // which answers each command with "ok" or an error
	asked                int
	dir                  string
}

const (
	diskCount = 3
	diskSize  = 2 << 30 // only used space takes memory
)

// newDisks returns an error if they cannot be mounted.
func newDisks(t *testing.T) (*disks, error) {
	t.Helper()
	d := &disks{dir: t.TempDir()}
	var err error
	d.Worker, err = proc.Start[string](disksRole, d.dir, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
	if err != nil {
		return nil, fmt.Errorf("no mount namespace: %w", err)
	}
	t.Cleanup(func() {
		if err := d.Quit(limit); err != nil {
			t.Errorf("the process that mounts the disks: %v", err)
		}
	})
	return d, d.answer()
}

// answer returns the next answer.
func (d *disks) answer() error {
	d.asked++
	text := ""
	err := d.Await(limit, func(said []string) bool {
		if len(said) < d.asked {
			return false
		}
		text = said[d.asked-1]
		return true
	})
	switch {
	case err != nil:
		return fmt.Errorf("the process that mounts the disks: %w", err)
	case text != "ok":
		return errors.New(text)
	}
	return nil
}

// dataDir returns the data directory of the server with a number.
func (d *disks) dataDir(id int) string {
	return fmt.Sprintf("/proc/%d/root%s/%d/data", d.Pid(), d.dir, id)
}

// full limits the disk to its present content, or restores its size.
func (d *disks) full(id int, on bool) error {
	verb := "free"
	if on {
		verb = "full"
	}
	if err := d.Tell(fmt.Sprint(verb, " ", id)); err != nil {
		return err
	}
	return d.answer()
}

// disksMain is the process that mounts the disks.
func disksMain(task []byte) int {
	var dir string
	if json.Unmarshal(task, &dir) != nil {
		return 1
	}
	var out proc.Output
	say := func(err error) {
		s := "ok"
		if err != nil {
			s = err.Error()
		}
		out.Report(s)
	}
	mount := func(id int, flags uintptr, size int64) error {
		where := filepath.Join(dir, strconv.Itoa(id))
		if err := os.MkdirAll(where, 0o755); err != nil {
			return err
		}
		return os.NewSyscallError("mount", syscall.Mount("tmpfs", where, "tmpfs", flags, fmt.Sprintf("size=%d", size)))
	}
	// These mounts must not be visible outside.
	err := os.NewSyscallError("mount", syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	for id := 1; id <= diskCount && err == nil; id++ {
		err = mount(id, 0, diskSize)
	}
	say(err)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		verb, number, _ := strings.Cut(in.Text(), " ")
		id, err := strconv.Atoi(number)
		switch {
		case err != nil:
		case verb == "full":
			// The kernel refuses a size below what is used, and the server may write after
			// the look.
			for err = syscall.EINVAL; errors.Is(err, syscall.EINVAL); {
				var st syscall.Statfs_t
				if err = syscall.Statfs(filepath.Join(dir, number), &st); err == nil {
					err = mount(id, syscall.MS_REMOUNT, int64(st.Blocks-st.Bfree)*st.Bsize)
				}
			}
		default:
			err = mount(id, syscall.MS_REMOUNT, diskSize)
		}
		say(err)
	}
	return 0
}

// brake slows down the flushes of servers.
type brake struct{ library, dir string }

// newBrake compiles the library that servers have to preload.
func newBrake(t *testing.T) (*brake, error) {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	b := &brake{dir: t.TempDir()}
	b.library = filepath.Join(b.dir, "slowdisk.so")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O", "-o", b.library, "testdata/slowdisk.c", "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("no C compiler: %w: %s", err, out)
	}
	return b, nil
}

func (b *brake) file(id int) string { return filepath.Join(b.dir, "delay-"+strconv.Itoa(id)) }

// env returns the environment that the server with a number needs.
func (b *brake) env(id int) []string {
	return []string{"LD_PRELOAD=" + b.library, "COORD_SLOW_DISK=" + b.file(id)}
}

// slow makes each flush of a server take longer, or as long as usual.
func (b *brake) slow(id int, by time.Duration) error {
	if by == 0 {
		return os.Remove(b.file(id))
	}
	return os.WriteFile(b.file(id), []byte(strconv.FormatInt(by.Milliseconds(), 10)), 0o644)
}
