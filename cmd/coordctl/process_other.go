//go:build !linux

package main

import (
	"os"
	"syscall"
)

// On other systems the command is a plain child: there is no signal at its parent's death,
// and signals reach only the command.

func attributes() *syscall.SysProcAttr { return nil }

func signalGroup(p *os.Process, s os.Signal) { _ = p.Signal(s) }

// wait returns when the process has ended. Package os knows when the process has been reaped,
// and sends it no signal then.
func (p *process) wait() {
	_ = p.cmd.Wait()
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
}

// isTerminal reports whether f could be a terminal. Other devices count too.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
