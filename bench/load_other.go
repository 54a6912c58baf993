//go:build !linux

package main

import "time"

// processorTimeOf is not available on this system.
func processorTimeOf(int) (time.Duration, bool) { return 0, false }

// machineTime is not available on this system.
func machineTime() (used, all time.Duration, known bool) { return 0, 0, false }
