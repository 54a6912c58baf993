//go:build !linux

package proc

import "os/exec"

// bind does nothing: there is no parent-death signal on this system, so the parent has to end its
// children.
func bind(*exec.Cmd) {}
