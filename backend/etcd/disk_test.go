//go:build linux

package etcd_test

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// disk is a file system in memory that can be full. It is mounted in the mount namespace of a
// thread, which others reach below that thread's root in /proc. So it disappears with this process.
type disk struct {
	dir   string // as others see it
	full  chan bool
	shrug chan error
}

const diskSize = 1 << 30 // only used space takes memory

// newDisk skips the test if nothing can be mounted.
func newDisk(t *testing.T) *disk {
	t.Helper()
	d, err := mountDisk(t)
	if err != nil {
		t.Skipf("no disk: %v", err)
	}
	return d
}

// mountDisk fails if nothing can be mounted.
func mountDisk(t *testing.T) (*disk, error) {
	t.Helper()
	at := t.TempDir()
	d := &disk{full: make(chan bool), shrug: make(chan error)}
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with this function
		err := os.NewSyscallError("unshare", syscall.Unshare(syscall.CLONE_NEWNS|syscall.CLONE_FS))
		if err == nil {
			err = os.NewSyscallError("mount", syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		}
		if err == nil {
			err = mountMemory(at, 0, diskSize)
		}
		d.dir = fmt.Sprintf("/proc/%d/task/%d/root%s", os.Getpid(), syscall.Gettid(), at)
		d.shrug <- err
		for full := range d.full {
			size := int64(diskSize)
			if full {
				var st syscall.Statfs_t
				if err = syscall.Statfs(at, &st); err == nil {
					size = int64(st.Blocks-st.Bfree)*st.Bsize + 1<<20
				}
			}
			d.shrug <- mountMemory(at, syscall.MS_REMOUNT, size)
		}
	}()
	t.Cleanup(func() { close(d.full) })
	return d, <-d.shrug
}

func mountMemory(at string, flags uintptr, size int64) error {
	return os.NewSyscallError("mount", syscall.Mount("tmpfs", at, "tmpfs", flags, fmt.Sprintf("size=%d", size)))
}

// fill leaves one megabyte, or makes room again.
func (d *disk) fill(t *testing.T, on bool) {
	t.Helper()
	if err := d.limit(on); err != nil {
		t.Fatal(err)
	}
}

func (d *disk) limit(on bool) error {
	d.full <- on
	return <-d.shrug
}
