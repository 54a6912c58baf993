package main

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	mostMessages = 100         // that wait to be printed
	sayLimit     = time.Second // how long guard waits at its end until they are printed
)

// messages prints what guard says, on a goroutine of its own. Guard never waits for standard error: a pipe there can be full, with
// nothing that reads it, while a process dies whose sessions must be ended.
type messages struct {
	queue   chan []byte
	dropped atomic.Int64
	printed chan struct{} // closed when all is printed
}

func newMessages(w io.Writer) *messages {
	m := &messages{queue: make(chan []byte, mostMessages), printed: make(chan struct{})}
	go m.print(w)
	return m
}

func (m *messages) print(w io.Writer) {
	defer close(m.printed)
	// In the background a terminal can stop the process group of a thread that writes to it, unless the thread blocks the signal for that.
	runtime.LockOSThread() // for ever: the thread ends with the goroutine
	set := uint64(1) << (syscall.SIGTTOU - 1)
	const block = 0
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, block, uintptr(unsafe.Pointer(&set)), 0, unsafe.Sizeof(set), 0, 0)
	for b := range m.queue {
		_, _ = w.Write(b)
		if n := m.dropped.Swap(0); n > 0 {
			fmt.Fprintf(w, "coordctl: %d messages could not be printed\n", n)
		}
	}
}

// Write puts a message into the queue, or drops it.
func (m *messages) Write(b []byte) (int, error) {
	select {
	case m.queue <- bytes.Clone(b):
	default:
		m.dropped.Add(1)
	}
	return len(b), nil
}

// close waits until all messages are printed, for a bounded time.
func (m *messages) close() {
	close(m.queue)
	select {
	case <-m.printed:
	case <-time.After(sayLimit):
	}
}
