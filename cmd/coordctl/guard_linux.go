package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/go-coord/coord/internal/supervise"
	"github.com/go-coord/coord/supervisor"
)

// guard runs the command, or listens, until that is over. Its messages delay nothing.
func (t *tool) guard(ctx context.Context) error {
	// Otherwise a message ends guard when nothing can read its standard error any more. Not ignored, since the command would inherit that.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	stderr := t.stderr
	m := newMessages(stderr)
	t.stderr = m
	defer func() {
		m.close()
		t.stderr = stderr
	}()
	err := t.guardUntilOver(ctx, stderr)
	var e *exit
	switch {
	case errors.As(err, &e) && e.err != nil:
		t.say("%v", e.err)
		return &exit{e.status, nil}
	case err != nil && e == nil:
		t.say("%v", err)
		return &exit{exitFailed, nil}
	}
	return err
}

func (t *tool) guardUntilOver(ctx context.Context, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end, err := t.ender(ctx)
	if err != nil {
		return err
	}
	sessions, connections := supervise.Room()
	w := &supervise.Watch{End: end, Say: func(text string) { t.say("%s", text) }, Room: sessions}
	defer w.Close()
	defer cancel() // before Close, which waits for what ends with ctx
	if t.listen != "" {
		return t.guardListeners(ctx, w, connections)
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
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.stdin, t.stdout, stderr
	terminal := t.atTerminal()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !terminal}
	more, stops := make(chan os.Signal, 8), make(chan os.Signal, 8)
	signal.Notify(more, furtherSignals(terminal)...)
	defer signal.Stop(more)
	signal.Notify(stops, unlessIgnored(stopSignals)...)
	defer signal.Stop(stops)
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
		reapUntil(pid, stopAs)
	}()
	for over := false; !over; {
		var s os.Signal
		select {
		case <-ended:
			over = true
			continue
		case s = <-t.signals:
			if terminal && (s == os.Interrupt || s == syscall.SIGQUIT || s == syscall.SIGHUP && !leadsSession()) {
				continue // the terminal has sent it to the command too
			}
		case s = <-more:
		case s = <-stops:
			if terminal {
				continue // as above
			}
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
	if n := t.awaitIdle(idle, w, 2); n > 0 {
		t.say("COMMAND has ended, and %d sessions have not: they end after their timeout if their processes have died", n)
	}
	if status := (&process{cmd: cmd}).status(); status != 0 {
		return &exit{status, nil}
	}
	return nil
}

// atTerminal reports whether a terminal sends its signals to the process group of this process: it is in the foreground, or a job with the
// terminal as its input, which a shell can bring there.
func (t *tool) atTerminal() bool {
	fd, err := syscall.Open("/dev/tty", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false // there is none
	}
	defer syscall.Close(fd)
	var group int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	f, ok := t.stdin.(*os.File)
	return errno == 0 && (int(group) == syscall.Getpgrp() || ok && isTerminal(f))
}

// leadsSession reports whether this process is the leader of its session. When the terminal hangs up, only the leader gets SIGHUP, and the
// others when it has ended.
func leadsSession() bool {
	id, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	return errno == 0 && int(id) == os.Getpid()
}

// furtherSignals are the signals to pass on beside those of main. Of a terminal the command gets its own.
func furtherSignals(terminal bool) []os.Signal {
	list := []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM}
	if !terminal {
		list = append(list, syscall.SIGWINCH, syscall.SIGCONT)
	}
	for n := syscall.Signal(34); n <= 64; n++ { // those of real time
		list = append(list, n)
	}
	return unlessIgnored(list)
}

// stopSignals stop a process by default. Guard stops only when its command has stopped.
var stopSignals = []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}

func unlessIgnored(list []syscall.Signal) (all []os.Signal) {
	for _, s := range list {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	return all
}

// stopAs stops this process by a signal that has stopped the command, so that a shell with job control sees the stop and can
// continue both. Without such a shell the kernel discards the signal. It returns when this process has continued.
func stopAs(s syscall.Signal) {
	if signal.Ignored(s) || !slices.Contains(stopSignals, s) {
		return // after SIGSTOP: no terminal sends it, and no shell continues the command
	}
	runtime.LockOSThread() // a signal to this thread stops the process before the call returns
	defer runtime.UnlockOSThread()
	var byDefault, handler [16]uint64 // struct sigaction; signal.Reset leaves the handler of the Go runtime in place
	const setSize = 8
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&byDefault)), uintptr(unsafe.Pointer(&handler)), setSize, 0, 0)
	_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), s)
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&handler)), 0, setSize, 0, 0)
}

// reapUntil returns when the child has ended, which it does not reap. It calls stopped when a signal has stopped the child. It reaps all
// others: as process 1, guard is the parent of orphans.
func reapUntil(child int, stopped func(syscall.Signal)) {
	const pAll, pPid, wNoHang, wStopped, wExited, wNoWait, cldStopped = 0, 1, 0x1, 0x2, 0x4, 0x1000000, 5
	for {
		pid, code, _, errno := waitID(pAll, 0, wExited|wStopped|wNoWait)
		switch {
		case errno == syscall.EINTR:
		case errno != 0:
			return
		case code == cldStopped:
			// It may have continued meanwhile: then there is no event to take.
			if taken, _, by, errno := waitID(pPid, pid, wStopped|wNoHang); errno == 0 && taken == child {
				stopped(by)
			}
		case pid == child:
			return
		default:
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	}
}

// waitID is waitid. It returns the child of the event, and what has happened to it; 0 without an event.
func waitID(kind, id, options int) (pid, code int, by syscall.Signal, err syscall.Errno) {
	const behind = 3 + unsafe.Sizeof(uintptr(0))/8 // three numbers, and a gap where pointers have 8 bytes
	var info [32]int32                             // siginfo_t
	_, _, err = syscall.Syscall6(syscall.SYS_WAITID, uintptr(kind), uintptr(id), uintptr(unsafe.Pointer(&info)), uintptr(options), 0, 0)
	return int(info[behind]), int(info[2]), syscall.Signal(info[behind+2]), err
}

// mostOfProcess bounds the connections of a process. Package supervisor makes one.
const mostOfProcess = 8

// connections are those of the processes that report.
type connections struct {
	watch *supervise.Watch
	most  int

	mu   sync.Mutex
	of   map[*net.UnixConn]supervise.Process
	over bool
}

// admit adds a connection, and reports false if it is to be closed.
func (c *connections) admit(conn *net.UnixConn, from supervise.Process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := 0
	for _, other := range c.of {
		if other == from && from.Known() {
			has++
		}
	}
	switch {
	case c.over:
		return false
	case has >= mostOfProcess || len(c.of) >= c.most:
		c.watch.SayOnce("too many connections, refusing further ones: sessions that they would report end after their timeout")
		return false
	}
	c.of[conn] = from
	return true
}

// serve reads the reports of each connection, on a goroutine of work, until the listener fails or is closed.
func (c *connections) serve(l *net.UnixListener, work *sync.WaitGroup) error {
	for {
		conn, err := l.AcceptUnix()
		switch {
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.ENOMEM):
			time.Sleep(50 * time.Millisecond) // until there is room
			continue
		case err != nil:
			return err
		}
		from, err := supervise.PeerOf(conn)
		if err != nil {
			c.watch.SayOnce(err.Error())
			conn.Close()
			continue
		}
		if !c.admit(conn, from) {
			conn.Close()
			continue
		}
		work.Go(func() {
			defer c.drop(conn)
			c.watch.Source(conn).Receive()
		})
	}
}

func (c *connections) drop(conn *net.UnixConn) {
	conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, conn)
}

// end closes all connections, and keeps none from then on.
func (c *connections) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for conn := range c.of {
		conn.Close()
	}
}

// guardListeners serves the processes that connect to the socket, until a signal has come and no session is left.
func (t *tool) guardListeners(ctx context.Context, w *supervise.Watch, most int) error {
	l, err := supervise.Listen(ctx, t.listen)
	if err != nil {
		return &exit{exitFailed, err}
	}
	conns := &connections{watch: w, most: most, of: make(map[*net.UnixConn]supervise.Process)}
	var work sync.WaitGroup
	defer work.Wait()
	defer conns.end()
	defer l.Close()
	failed := make(chan error, 1)
	work.Go(func() { failed <- conns.serve(l, &work) })
	select {
	case err := <-failed:
		return &exit{exitFailed, err}
	case <-t.signals:
	}
	t.awaitIdle(ctx, w, 1)
	return nil
}

// awaitIdle returns when no session is left, ctx ends, or that many signals have come. It returns the number of the sessions that are left.
// One signal can be that which has ended the command, and comes only now.
func (t *tool) awaitIdle(ctx context.Context, w *supervise.Watch, signals int) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := make(chan int, 1)
	go func() { left <- w.Idle(ctx) }()
	for {
		select {
		case n := <-left:
			return n
		case s := <-t.signals:
			if signals--; signals > 0 {
				t.say("%v: COMMAND has ended, and guard waits for its sessions to end, up to %v; another signal ends guard at once", s, t.endDelay+endLimit)
				continue
			}
			cancel()
		}
	}
}
