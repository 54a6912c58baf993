package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// launch starts a child and closes the channel when it has ended. The kernel kills
// it when this process ends in whatever way. It does so already when the thread
// ends that started the child, so the thread is kept.
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
			_ = cmd.Wait() // how it ended matters to nobody
		}
	}()
	return done, <-started
}
