//go:build !linux

package main

import "time"

// processorTimeOf is not known here.
func processorTimeOf(int) (time.Duration, bool) { return 0, false }

// machineTime is not known here.
func machineTime() (used, all time.Duration, known bool) { return 0, 0, false }
