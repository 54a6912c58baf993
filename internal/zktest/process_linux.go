package zktest

import "syscall"

// childAttr has the kernel kill the server when the thread that started it
// ends, and so when this process ends, in whatever way. See spawner.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
