package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// launch starts a child and closes the channel when it has ended. The kernel kills the child
// however this process ends. It does so when the thread ends that started the child, so that
// thread stays locked.
func launch(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done, started := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status does not matter
		}
	}()
	return done, <-started
}
