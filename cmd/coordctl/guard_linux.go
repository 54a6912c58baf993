package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/go-coord/coord/internal/supervise"
	"github.com/go-coord/coord/supervisor"
)

// guard runs the command, or listens, until that is over.
func (t *tool) guard(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end, err := t.ender(ctx)
	if err != nil {
		return err
	}
	w := &supervise.Watch{End: end, Say: func(text string) { t.say("%s", text) }}
	defer w.Close()
	defer cancel() // before Close, which waits for what ends with ctx
	if t.listen != "" {
		return t.guardListeners(ctx, w)
	}
	if err := findCommand(t.dashed[0]); err != nil {
		return err
	}
	_ = supervisor.FromEnv() // an outer guard is not that of the command
	pair, err := supervise.NewPair(true)
	if err != nil {
		return err
	}
	defer pair.Theirs.Close()
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer pair.Ours.Close()

	cmd := exec.Command(t.dashed[0], t.dashed[1:]...)
	cmd.Env = append(os.Environ(), supervise.Env+"="+pair.Env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.stdin, t.stdout, t.stderr
	f, ok := t.stdin.(*os.File)
	terminal := ok && isTerminal(f)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !terminal}
	more := make(chan os.Signal, 8)
	signal.Notify(more, furtherSignals(terminal)...)
	defer signal.Stop(more)
	if err := pair.Inherit(true); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return &exit{exitCannotRun, err}
	}
	pid := cmd.Process.Pid
	_ = pair.Inherit(false) // nothing else is started
	if !pair.Pidfd {
		w.TrustChild(pid)
	}
	source := w.Source(pair.Ours)
	receiving.Go(source.Receive)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reapUntil(pid)
	}()
	for over := false; !over; {
		var s os.Signal
		select {
		case <-ended:
			over = true
			continue
		case s = <-t.signals:
			if terminal && (s == os.Interrupt || s == syscall.SIGQUIT) {
				continue // the terminal has sent it to the command too
			}
		case s = <-more:
		}
		_ = syscall.Kill(pid, s.(syscall.Signal)) // it is not reaped yet
	}

	// The command has ended and is not reaped, so that neither its process id nor that of its group can have been reused.
	if os.Getpid() == 1 {
		_ = syscall.Kill(-1, syscall.SIGKILL)
	} else if !terminal {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	source.Drain()
	w.ChildEnded()
	_ = cmd.Wait()
	idle, stop := context.WithTimeout(ctx, t.endDelay+endLimit)
	defer stop()
	if n := w.Idle(idle); n > 0 {
		t.say("COMMAND has ended, and %d sessions of other processes have not: they end after their timeout if their processes die", n)
	}
	if status := (&process{cmd: cmd}).status(); status != 0 {
		return &exit{status, nil}
	}
	return nil
}

// furtherSignals are the signals to pass on beside those of main. Of a terminal the command gets its own.
func furtherSignals(terminal bool) (all []os.Signal) {
	list := []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM}
	if !terminal {
		list = append(list, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT)
	}
	for n := syscall.Signal(34); n <= 64; n++ { // those of real time
		list = append(list, n)
	}
	for _, s := range list {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	return all
}

// reapUntil returns when the child has ended, which it does not reap. It reaps all others: as process 1, guard is the parent of orphans.
func reapUntil(child int) {
	const pAll, wExited, wNoWait = 0, 0x4, 0x1000000
	for {
		var info [32]int32 // siginfo_t
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info)), wExited|wNoWait, 0, 0)
		pid := int(info[3+unsafe.Sizeof(uintptr(0))/8]) // behind three numbers, and a gap where pointers have 8 bytes
		switch {
		case errno == syscall.EINTR:
		case errno != 0 || pid == child:
			return
		default:
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	}
}

// guardListeners serves the processes that connect to the socket, until a signal has come and no session is left.
func (t *tool) guardListeners(ctx context.Context, w *supervise.Watch) error {
	l, err := supervise.Listen(ctx, t.listen)
	if err != nil {
		return &exit{exitFailed, err}
	}
	var (
		work  sync.WaitGroup
		mu    sync.Mutex
		conns = make(map[*net.UnixConn]struct{})
		over  bool
	)
	keep := func(conn *net.UnixConn) bool {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			conns[conn] = struct{}{}
		}
		return !over
	}
	defer work.Wait()
	defer func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		over = true
		for conn := range conns {
			conn.Close()
		}
	}()
	failed := make(chan error, 1)
	work.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			switch {
			case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.ENOMEM):
				time.Sleep(50 * time.Millisecond) // until there is room
				continue
			case err != nil:
				failed <- err
				return
			}
			if err := supervise.SameUser(conn); err != nil {
				t.say("%v", err)
				conn.Close()
				continue
			}
			work.Go(func() {
				defer conn.Close()
				if keep(conn) {
					w.Source(conn).Receive()
				}
				mu.Lock()
				defer mu.Unlock()
				delete(conns, conn)
			})
		}
	})
	select {
	case err := <-failed:
		return &exit{exitFailed, err}
	case <-t.signals:
	}
	idle, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	work.Go(func() {
		defer close(done)
		w.Idle(idle)
	})
	select {
	case <-done:
	case <-t.signals:
	}
	return nil
}
