//go:build !linux

package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// guard runs the command. On this system no process can prove the death of another one.
func (t *tool) guard(context.Context) error {
	if t.listen != "" {
		return usage("--listen needs Linux")
	}
	if err := findCommand(t.dashed[0]); err != nil {
		return err
	}
	t.say("%s has no pidfd: the sessions of COMMAND end after their timeout, as without guard", runtime.GOOS)
	cmd := exec.Command(t.dashed[0], t.dashed[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.stdin, t.stdout, t.stderr
	cmd.Env = os.Environ()
	if err := cmd.Start(); err != nil {
		return &exit{exitCannotRun, err}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // status returns the result
	}()
	for {
		select {
		case s := <-t.signals:
			if s != os.Interrupt { // a terminal has sent that to the command too
				_ = cmd.Process.Signal(s.(syscall.Signal))
			}
			continue
		case <-done:
		}
		break
	}
	if status := (&process{cmd: cmd}).status(); status != 0 {
		return &exit{status, nil}
	}
	return nil
}
