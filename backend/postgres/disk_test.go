//go:build linux

package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// disk is a file system in memory that can be full. It is a mount that all processes see, since a server runs as another user
// and cannot enter the mount namespace of a process of root.
type disk struct{ dir string }

// mountDisk mounts a disk on a directory, with the owner and the mode of a directory that a server uses. It is unmounted when the
// test ends, and also if this process is killed: a shell waits for the end of a pipe. The error says that nothing can be mounted.
func mountDisk(t *testing.T, dir string, bytes int64, like string) (*disk, error) {
	t.Helper()
	info, err := os.Stat(like)
	if err != nil {
		t.Fatal(err)
	}
	of := info.Sys().(*syscall.Stat_t)
	guard := exec.Command("/bin/sh", "-c", `read line; umount -l "$1"`, "sh", dir)
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal of the terminal is not for it
	pipe, err := guard.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("size=%d,mode=%o,uid=%d,gid=%d", bytes, info.Mode().Perm(), of.Uid, of.Gid)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		pipe.Close()
		return nil, fmt.Errorf("needs the right to mount: %w", err)
	}
	if err := guard.Start(); err != nil {
		t.Fatal(errors.Join(err, syscall.Unmount(dir, syscall.MNT_DETACH)))
	}
	t.Cleanup(func() {
		if err := errors.Join(pipe.Close(), guard.Wait()); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return &disk{dir}, nil
}

// resize sets the size of the disk.
func (d *disk) resize(bytes int64) error {
	return os.NewSyscallError("mount", syscall.Mount("", d.dir, "", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", bytes)))
}

// fill limits the disk to its present content. The kernel refuses a size below what is used, and the server may write between
// the look and the remount.
func (d *disk) fill() error {
	for {
		var st syscall.Statfs_t
		if err := syscall.Statfs(d.dir, &st); err != nil {
			return os.NewSyscallError("statfs", err)
		}
		if err := d.resize(int64(st.Blocks-st.Bfree) * st.Bsize); !errors.Is(err, syscall.EINVAL) {
			return err
		}
	}
}
