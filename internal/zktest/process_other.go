//go:build !linux

package zktest

import "syscall"

// childAttr: there is no parent-death signal here, so Close has to run.
func childAttr() *syscall.SysProcAttr { return nil }

// stopped cannot tell here.
func stopped(int) bool { return true }
