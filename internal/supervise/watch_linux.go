package supervise

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/go-coord/coord/backend"
)

// Bounds of a supervisor. Each session and each connection needs a descriptor.
const (
	mostSessions    = 16384 // of all processes
	mostConnections = 4096
	reserve         = 256 // descriptors to reach the servers, and for what is open otherwise
)

// Room returns the number of sessions and of connections for which this process has descriptors, and enough others to end the sessions.
func Room() (sessions, connections int) {
	limit := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	room := int(min(limit.Cur, mostSessions+mostConnections+reserve)) - reserve
	return min(mostSessions, max(Most, room*3/4)), min(mostConnections, max(Most, room/4))
}

// A Watch keeps the sessions that processes report, until they have ended or their process has. Then it ends them.
type Watch struct {
	// End ends a session whose process has died. It is called on a goroutine of its own, and returns after a bounded time.
	End func(backend.Ticket)
	// Say tells the user what cannot be done. It does not block: reports wait for it.
	Say func(text string)
	// Room is the largest number of sessions of all processes. Each process has at most Most.
	Room int

	mu       sync.Mutex
	child    int // the direct child, not reaped yet, whose reports count without a pidfd; 0: none
	sessions []*watched
	changed  chan struct{} // closed and replaced when there are fewer; nil while nothing waits for that
	told     []string
	work     sync.WaitGroup
}

// watched is a session, and the proof of the death of its process: the pidfd that has come with its report.
type watched struct {
	ticket  backend.Ticket
	from    *Source
	pid     int
	process Process
	pidfd   *os.File // nil: that of the direct child, which has no pidfd
}

// A Source is a socket from which a Watch reads reports.
type Source struct {
	watch *Watch
	conn  *net.UnixConn

	mu           sync.Mutex // held from the read of a report until it counts
	buf, control []byte
}

// Source returns a socket as a source of reports.
func (w *Watch) Source(conn *net.UnixConn) *Source {
	return &Source{watch: w, conn: conn, buf: make([]byte, MaxMessage+1), control: make([]byte, 256)}
}

// Receive reads reports until the connection ends. The end of a connection ends no session.
func (x *Source) Receive() {
	raw, err := x.conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool { return x.read(int(fd)) != syscall.EAGAIN })
}

// Drain reads the reports that have arrived.
func (x *Source) Drain() {
	raw, err := x.conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { x.read(int(fd)) }) // it fails when the connection has ended, and all is read then
}

// read reads until there is nothing to read: EAGAIN, or nil at the end of the connection.
func (x *Source) read(fd int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		n, size, _, _, err := syscall.Recvmsg(fd, x.buf, x.control, syscall.MSG_DONTWAIT|syscall.MSG_CMSG_CLOEXEC)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return err
		case n == 0 && size == 0:
			return nil
		}
		x.handle(x.buf[:n], senderOf(x.control[:size]))
	}
}

// handle handles a report.
func (x *Source) handle(message []byte, from sender) {
	kind, ticket, err := Decode(message)
	taken := false
	switch {
	case err != nil:
		x.watch.SayOnce("a report is malformed, ignoring it")
	case kind == Opened:
		taken = x.watch.opened(x, from, ticket)
	case kind == Ended:
		x.watch.remove(func(o *watched) bool {
			return o.from == x && o.pid == from.pid && o.ticket.Service == ticket.Service && o.ticket.ID == ticket.ID
		})
	}
	if !taken && from.pidfd >= 0 {
		syscall.Close(from.pidfd)
	}
}

// SayOnce says something the first time.
func (w *Watch) SayOnce(text string) {
	const most = 100 // other users can choose from many texts
	w.mu.Lock()
	first := len(w.told) < most && !slices.Contains(w.told, text)
	if first {
		w.told = append(w.told, text)
	}
	w.mu.Unlock()
	if first {
		w.Say(text)
	}
}

// opened keeps a session, and reports whether it has taken over the pidfd. A session that its process reports again, by a new connection, is
// replaced. Of more than Most sessions of a process the latest are kept: reports of ends can have been lost.
func (w *Watch) opened(x *Source, from sender, t backend.Ticket) bool {
	s := &watched{ticket: t, from: x, pid: from.pid, process: from.process()}
	w.mu.Lock()
	has, replaced := 0, -1
	for i, o := range slices.Backward(w.sessions) {
		if o.process != s.process || o.from != x && o.process.inode == 0 {
			continue // of another process; on older kernels perhaps of the same
		}
		has++
		if o.ticket.Service == t.Service && o.ticket.ID == t.ID {
			replaced, has = i, 0
			break
		}
		if has == Most {
			replaced = i
		}
	}
	proven := from.pidfd >= 0 || w.child != 0 && from.pid == w.child
	many, full := has == Most, replaced < 0 && len(w.sessions) >= w.Room
	if proven && !full {
		if replaced >= 0 {
			w.sessions[replaced].close()
			w.sessions = slices.Delete(w.sessions, replaced, replaced+1)
		}
		if from.pidfd >= 0 {
			_ = syscall.SetNonblock(from.pidfd, true) // so that the runtime waits for it
			s.pidfd = os.NewFile(uintptr(from.pidfd), "pidfd")
			w.work.Go(func() { w.await(s) })
		}
		w.sessions = append(w.sessions, s)
	}
	w.mu.Unlock()
	switch {
	case !proven:
		w.SayOnce("a session was reported without a proof of its process, ignoring it: it ends after its timeout")
	case full:
		w.SayOnce("too many sessions were reported, ignoring further ones: they end after their timeout")
	case many:
		w.SayOnce(fmt.Sprintf("a process has reported more than %d sessions, ignoring the oldest: they end after their timeout", Most))
	}
	return s.pidfd != nil
}

func (s *watched) close() {
	if s.pidfd != nil {
		s.pidfd.Close()
	}
}

// await ends a session when its process has died. It returns earlier when the session has ended.
func (w *Watch) await(s *watched) {
	raw, err := s.pidfd.SyscallConn()
	if err != nil {
		return
	}
	if err := raw.Read(hasEnded); err != nil {
		return // closed
	}
	s.from.Drain()
	w.end(s)
}

// end ends a session whose process has died, unless the process has reported its end.
func (w *Watch) end(s *watched) {
	w.mu.Lock()
	there := slices.Contains(w.sessions, s)
	w.mu.Unlock()
	if there {
		w.End(s.ticket)
		w.remove(func(o *watched) bool { return o == s })
	}
}

func (w *Watch) remove(which func(*watched) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.sessions)
	w.sessions = slices.DeleteFunc(w.sessions, func(s *watched) bool {
		gone := which(s)
		if gone {
			s.close()
		}
		return gone
	})
	if len(w.sessions) < n && w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// TrustChild makes the reports of the direct child count although they have no pidfd, until ChildEnded.
func (w *Watch) TrustChild(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.child = pid
}

// ChildEnded ends the sessions that the direct child has reported without a pidfd. It is called when the child has ended, and all
// reports were read, and before it is reaped: its process id is its own until then.
func (w *Watch) ChildEnded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.child = 0
	for _, s := range w.sessions {
		if s.pidfd == nil {
			w.work.Go(func() { w.end(s) })
		}
	}
}

// Idle returns when no session is left, or ctx has ended. It returns the number of those that are left.
func (w *Watch) Idle(ctx context.Context) int {
	for {
		w.mu.Lock()
		n := len(w.sessions)
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed := w.changed
		w.mu.Unlock()
		if n == 0 {
			return 0
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return n
		}
	}
}

// Close forgets all sessions, and returns when no End is under way. No Source is in use any more.
func (w *Watch) Close() {
	w.remove(func(*watched) bool { return true })
	w.work.Wait()
}
