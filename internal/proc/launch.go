package proc

import (
	"os/exec"
	"runtime"
)

// Launch starts a child. The channel is closed when it has ended. read, if it is not nil, is called
// when the child has begun, and reads its pipes to their ends: the end of the child closes them.
//
// The kernel kills the child when the thread ends that started it, and Go may end any thread to
// which no goroutine is locked. So that thread stays locked.
func Launch(cmd *exec.Cmd, read func()) (exited <-chan struct{}, err error) {
	bind(cmd)
	done, started := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if read != nil {
			read()
		}
		_ = cmd.Wait() // cmd.ProcessState holds the exit status
	}()
	return done, <-started
}
