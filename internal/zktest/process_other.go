//go:build !linux

package zktest

import "syscall"

// childAttr is empty: there is no parent-death signal on this system, so Close has to run.
func childAttr() *syscall.SysProcAttr { return nil }

// stopped cannot find out on this system.
func stopped(int) bool { return true }
