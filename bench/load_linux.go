package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of the kernel's times; it is 100 on all systems that Go
// supports.
const ticksPerSecond = 100

// processorTimeOf returns the processor time of another process so far, with that of its children which have ended.
func processorTimeOf(pid int) (time.Duration, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name, in brackets, can contain any character. The third field comes after it.
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 15 {
		return 0, false
	}
	return ticks(fields[11:15]...)
}

// machineTime returns the used and the available processor time of the machine so far.
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
