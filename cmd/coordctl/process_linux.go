package main

import (
	"os"
	"syscall"
	"unsafe"
)

// attributes give the command a group of its own, and make the kernel kill it when the thread
// that starts it ends. (If that thread has ended before the child could request this, package
// syscall makes the child kill itself.)
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func signalGroup(p *os.Process, s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-p.Pid, n)
	}
}

// wait returns when the process has ended. Other processes in its group are killed before the
// process is reaped, while the id of the group cannot have been reused.
func (p *process) wait() {
	awaitEnd(p.cmd.Process.Pid)
	p.mu.Lock()
	signalGroup(p.cmd.Process, syscall.SIGKILL)
	p.over = true
	p.mu.Unlock()
	_ = p.cmd.Wait()
}

// awaitEnd returns when the process has ended. It does not reap it.
func awaitEnd(pid int) {
	const pPid, wExited, wNoWait = 1, 0x4, 0x1000000
	var info [128]byte // siginfo_t
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pPid, uintptr(pid), uintptr(unsafe.Pointer(&info)), wExited|wNoWait, 0, 0)
		if errno != syscall.EINTR {
			return
		}
	}
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var is bool
	err = raw.Control(func(fd uintptr) {
		var state syscall.Termios
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TCGETS, uintptr(unsafe.Pointer(&state)))
		is = errno == 0
	})
	return err == nil && is
}
