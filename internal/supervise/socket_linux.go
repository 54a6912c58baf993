package supervise

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// Numbers that package syscall does not have.
const (
	soPassPidfd = 76 // since Linux 6.5
	soPeerPidfd = 77 // the same
	scmPidfd    = 4
	pollIn      = 1
)

// ErrNoPidfd says that the kernel is older than Linux 6.5.
var ErrNoPidfd = errors.New("the kernel attaches no pidfd to messages (before Linux 6.5)")

// identify makes the kernel attach the sender to each message that the socket receives, and its pidfd if pidfd is set.
func identify(fd int, pidfd bool) error {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if !pidfd {
		return nil
	}
	err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, soPassPidfd, 1)
	if err == syscall.ENOPROTOOPT {
		return ErrNoPidfd
	}
	return os.NewSyscallError("setsockopt", err)
}

// Pair is a connected pair of sockets: that of the supervisor, and that of its child and all that inherit it.
type Pair struct {
	Ours   *net.UnixConn
	Theirs *os.File
	Env    string // the value of Env for the child
	Pidfd  bool   // reports have a pidfd
}

// NewPair makes a Pair. Without pidfd, it is as on an older kernel.
func NewPair(pidfd bool) (*Pair, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "supervisor")
	defer ours.Close() // FileConn has its own
	p := &Pair{Theirs: os.NewFile(uintptr(fds[1]), "reporter"), Pidfd: pidfd}
	err = identify(fds[0], pidfd)
	if errors.Is(err, ErrNoPidfd) {
		p.Pidfd, err = false, nil
	}
	var st syscall.Stat_t
	if err == nil {
		err = syscall.Fstat(fds[1], &st)
	}
	var conn net.Conn
	if err == nil {
		conn, err = net.FileConn(ours)
	}
	if err != nil {
		p.Theirs.Close()
		return nil, err
	}
	p.Ours = conn.(*net.UnixConn)
	p.Env = fmt.Sprintf("fd:%d:%d", fds[1], st.Ino)
	return p, nil
}

// Inherit sets whether processes that are started inherit the socket of the child, under the number that Env names.
func (p *Pair) Inherit(on bool) error {
	flags := uintptr(syscall.FD_CLOEXEC)
	if on {
		flags = 0
	}
	_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, p.Theirs.Fd(), syscall.F_SETFD, flags)
	if errno != 0 {
		return os.NewSyscallError("fcntl", errno)
	}
	return nil
}

// Listen returns a socket at a path for processes of this user. It replaces one that nothing listens on.
//
// Meanwhile it has locked the file path.lock, which it does not delete. Without the lock it could remove the socket of another
// process that has begun to listen since, or is between bind and listen. If another process has the lock, Listen fails.
func Listen(ctx context.Context, path string) (*net.UnixListener, error) {
	if !strings.HasPrefix(path, "@") { // an abstract name is no file, and ends with its process
		lock, err := lockFile(path + ".lock")
		if err != nil {
			return nil, err
		}
		defer lock.Close()
	}
	var cfg net.ListenConfig
	cfg.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		if e := raw.Control(func(fd uintptr) { err = identify(int(fd), true) }); e != nil {
			return e
		}
		return err
	}
	listen := func() (net.Listener, error) {
		old := syscall.Umask(0o177) // others may not connect
		defer syscall.Umask(old)
		return cfg.Listen(ctx, "unixpacket", path)
	}
	l, err := listen()
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(path) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		l, err = listen()
	}
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// lockFile locks a file, and makes it if it is missing. The lock ends with Close, and with the process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if err == syscall.EWOULDBLOCK {
			err = fmt.Errorf("another process is about to listen (%w)", err)
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

// abandoned reports whether there is a socket at the path that nothing listens on.
func abandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := net.Dial("unixpacket", path)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// A Process identifies a process as well as the kernel lets it: pidfds have inodes of their own since Linux 6.9. Before, a process of another PID
// namespace has no identity.
type Process struct {
	inode uint64
	pid   int
}

// Known reports whether the process has an identity.
func (p Process) Known() bool { return p != Process{} }

// PeerOf returns the process that has made a connection, and an error unless it is of this user, or root.
func PeerOf(conn *net.UnixConn) (p Process, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Process{}, err
	}
	var peer *syscall.Ucred
	from := sender{pidfd: -1}
	if e := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if pidfd, e := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, soPeerPidfd); e == nil {
			from.pidfd = pidfd
			defer syscall.Close(pidfd)
		}
		if err == nil {
			from.pid = int(peer.Pid)
		}
		p = from.process()
	}); e != nil {
		return Process{}, e
	}
	if err == nil && peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("reports of user %d are refused: this process has user %d", peer.Uid, os.Geteuid())
	}
	return p, err
}

// sender is the process that has sent a message.
type sender struct {
	pid   int // in the PID namespace of this process, 0 if it is not visible there
	pidfd int // -1 if there is none
}

// process returns the identity of the sender.
func (s sender) process() Process {
	const pidfs = 0x50494446
	var fs syscall.Statfs_t
	var st syscall.Stat_t
	if s.pidfd >= 0 && syscall.Fstatfs(s.pidfd, &fs) == nil && uint32(fs.Type) == pidfs && syscall.Fstat(s.pidfd, &st) == nil {
		return Process{inode: st.Ino}
	}
	return Process{pid: s.pid}
}

// senderOf returns the sender of a message. Descriptors that the message passes are closed.
func senderOf(control []byte) sender {
	from := sender{pidfd: -1}
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return from
	}
	for i := range messages {
		m := &messages[i]
		switch {
		case m.Header.Level != syscall.SOL_SOCKET:
		case m.Header.Type == syscall.SCM_CREDENTIALS:
			if cred, err := syscall.ParseUnixCredentials(m); err == nil {
				from.pid = int(cred.Pid)
			}
		case m.Header.Type == scmPidfd && len(m.Data) >= 4:
			from.pidfd = max(-1, int(int32(binary.NativeEndian.Uint32(m.Data)))) // else the kernel's error
		case m.Header.Type == syscall.SCM_RIGHTS:
			fds, _ := syscall.ParseUnixRights(m)
			for _, fd := range fds {
				syscall.Close(fd)
			}
		}
	}
	return from
}

// hasEnded reports whether the process of a pidfd has ended, with all its threads.
func hasEnded(pidfd uintptr) bool {
	poll := struct {
		fd              int32
		events, revents int16
	}{fd: int32(pidfd), events: pollIn}
	var now syscall.Timespec
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0 && poll.revents&pollIn != 0
		}
	}
}
