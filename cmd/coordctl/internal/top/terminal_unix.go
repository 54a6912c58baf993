//go:build unix

package top

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// watchSize returns a channel that receives when the size of the terminal has changed.
func watchSize() (<-chan os.Signal, func()) {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	return resized, func() { signal.Stop(resized) }
}

// suspend gives the terminal back to the shell, and returns when it lets the process continue.
func (t *terminal) suspend(ctx context.Context) error {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	t.leave()
	if err := syscall.Kill(0, syscall.SIGTSTP); err == nil { // the whole pipeline, as the terminal would
		<-continued
	}
	return t.enter(ctx)
}
