//go:build unix

package top

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const stopLimit = 200 * time.Millisecond // for SIGTSTP to stop the process

// watchSize returns a channel that receives when the size of the terminal has changed.
func watchSize() (<-chan os.Signal, func()) {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	return resized, func() { signal.Stop(resized) }
}

// suspend gives the terminal back to the shell, and returns when it lets the process continue, or
// soon if there is no shell that could.
func (t *terminal) suspend(ctx context.Context) error {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	t.leave()
	if err := syscall.Kill(0, syscall.SIGTSTP); err == nil { // the whole pipeline, as the terminal would
		// The kernel discards the signal if no shell above could let the process continue. Then it
		// is not stopped, and nothing continues it.
		stopped := time.NewTimer(stopLimit)
		defer stopped.Stop()
		select {
		case <-continued:
		case <-stopped.C:
		case <-ctx.Done():
		}
	}
	return t.enter(ctx)
}
