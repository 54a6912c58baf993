package supervisor

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/supervise"
)

// reporter sends reports to the supervisor. Its calls to the system do not block.
type reporter struct {
	path string // of the supervisor's socket; "" if the socket was inherited

	mu       sync.Mutex
	fd       int // -1: none
	sessions []session
}

// Format makes all verbs leave out the sessions, which contain their passwords.
func (r *reporter) Format(f fmt.State, _ rune) { io.WriteString(f, "reporter to the supervisor") }

// session is one that has not ended.
type session struct {
	ticket  backend.Ticket
	message []byte
	sent    bool
}

func fromEnv() backend.Reporter {
	text := os.Getenv(supervise.Env)
	os.Unsetenv(supervise.Env)
	how, rest, _ := strings.Cut(text, ":")
	switch how {
	case "fd":
		if fd := inherited(rest); fd >= 0 {
			return &reporter{fd: fd}
		}
	case "unix":
		if rest != "" {
			return &reporter{path: rest, fd: -1}
		}
	}
	return nil
}

// inherited takes over the descriptor of "NUMBER:INODE", and returns -1 if it is not the supervisor's socket: the program that started
// this one may have closed it, and something else may have its number.
func inherited(text string) int {
	number, inode, _ := strings.Cut(text, ":")
	fd, err := strconv.ParseUint(number, 10, 16)
	ino, err2 := strconv.ParseUint(inode, 10, 64)
	if err != nil || err2 != nil || fd <= 2 {
		return -1
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(fd), &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK || st.Ino != ino {
		return -1
	}
	kind, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TYPE)
	if err != nil || kind != syscall.SOCK_SEQPACKET {
		return -1
	}
	syscall.CloseOnExec(int(fd))
	return int(fd)
}

// Opened is part of backend.Reporter.
func (r *reporter) Opened(t backend.Ticket) {
	message, err := supervise.Encode(supervise.Opened, t)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) == supervise.Most {
		r.endLocked(0)
	}
	r.sessions = append(r.sessions, session{ticket: t, message: message})
	r.sendLocked()
}

// Ended is part of backend.Reporter.
func (r *reporter) Ended(service string, id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.sessions, func(s session) bool { return s.ticket.Service == service && s.ticket.ID == id })
	if i >= 0 {
		r.endLocked(i)
	}
	r.sendLocked()
}

// endLocked removes a session. A report of that which is not sent costs the supervisor one request at most.
func (r *reporter) endLocked(i int) {
	s := r.sessions[i]
	r.sessions = slices.Delete(r.sessions, i, i+1)
	if message, err := supervise.Encode(supervise.Ended, s.ticket); err == nil && s.sent && r.fd >= 0 {
		_ = send(r.fd, message)
	}
}

// sendLocked sends the reports that the supervisor has not got yet. If it has been restarted, it gets all again.
func (r *reporter) sendLocked() {
	for range 2 {
		if r.fd < 0 && r.path != "" {
			r.fd = connect(r.path)
		}
		if r.fd < 0 {
			return
		}
		switch r.flushLocked() {
		case nil, syscall.EAGAIN, syscall.ENOBUFS:
			return // what does not fit is sent with the next report
		}
		if r.path != "" {
			syscall.Close(r.fd)
		}
		r.fd = -1
		for i := range r.sessions {
			r.sessions[i].sent = false
		}
	}
}

func (r *reporter) flushLocked() error {
	for i := range r.sessions {
		s := &r.sessions[i]
		if s.sent {
			continue
		}
		if err := send(r.fd, s.message); err != nil {
			return err
		}
		s.sent = true
	}
	return nil
}

func send(fd int, message []byte) error {
	for {
		err := syscall.Sendto(fd, message, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, nil)
		if err != syscall.EINTR {
			return err
		}
	}
}

// connect connects to the supervisor at a path, and returns -1 if none listens there, or one of another user.
func connect(path string) int {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err == nil {
		peer, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid()) {
			return fd
		}
	}
	syscall.Close(fd)
	return -1
}
