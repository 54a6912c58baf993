package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ticksPerSecond is USER_HZ, in which the kernel tells of times; it is 100 wherever
// Go runs.
const ticksPerSecond = 100

// processorTimeOf is what another process has used of the processors so far.
func processorTimeOf(pid int) (time.Duration, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name, in brackets, can hold anything. The third field comes behind it.
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 13 {
		return 0, false
	}
	return ticks(fields[11], fields[12])
}

// machineTime is what was used of the processors of the machine so far, and what
// there was.
func machineTime() (used, all time.Duration, known bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, 0, false
	}
	// user, nice, system, idle, waiting, irq, softirq, steal
	all, known = ticks(fields[1:9]...)
	idle, ok := ticks(fields[4], fields[5])
	return all - idle, all, known && ok
}

func ticks(fields ...[]byte) (sum time.Duration, ok bool) {
	for _, f := range fields {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(n) * time.Second / ticksPerSecond
	}
	return sum, true
}
