package main

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// process is the running command and its process group.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it and all of its group have ended

	mu   sync.Mutex
	over bool // it has ended; its id may have been reused
}

// startProcess starts a command with further variables in its environment.
func startProcess(command, env []string, stdin io.Reader, stdout, stderr io.Writer) (*process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	if f, ok := stdin.(*os.File); ok && isTerminal(f) {
		cmd.Stdin = nil // it is not in the foreground, so a read would stop it
	}
	cmd.SysProcAttr = attributes()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the command and waits for its end, on one operating-system thread that lives as
// long as the command. The kernel sends a child its parent-death signal when the thread that
// started it ends, and Go may end any thread to which no goroutine is locked.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.wait() // status returns the result
	close(p.ended)
}

// signal sends a signal to the process and its group, if it runs.
func (p *process) signal(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		signalGroup(p.cmd.Process, s)
	}
}

func (p *process) kill() { p.signal(os.Kill) }

// status returns the exit status that a shell would report for the process.
func (p *process) status() int {
	st := p.cmd.ProcessState
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return st.ExitCode()
}
