//go:build !linux

package main

import "os/exec"

// launch starts a child and closes the channel when it has ended.
func launch(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the exit status does not matter
	}()
	return done, nil
}
