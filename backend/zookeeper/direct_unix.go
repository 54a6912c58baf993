//go:build unix

package zookeeper

import (
	"net"
	"syscall"
)

// directConn writes to a TCP connection without waiting.
type directConn struct {
	raw   syscall.RawConn
	again func(fd uintptr) bool // a value, since a method would be allocated each time

	// The arguments and results of again.
	p   []byte
	n   int
	err error
}

// newDirectConn returns nil if conn is anything but a TCP connection, which could do more in
// its Write than the system call.
func newDirectConn(conn net.Conn) *directConn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	d := &directConn{raw: raw}
	d.again = d.once
	return d
}

// write writes as many bytes of p as the operating system takes at once.
func (d *directConn) write(p []byte) (int, error) {
	d.p, d.n, d.err = p, 0, nil
	if err := d.raw.Write(d.again); err != nil {
		return 0, err
	}
	return d.n, d.err
}

func (d *directConn) once(fd uintptr) bool {
	n, err := syscall.Write(int(fd), d.p)
	for err == syscall.EINTR {
		n, err = syscall.Write(int(fd), d.p)
	}
	switch {
	case err == nil:
		d.n = n
	case err != syscall.EAGAIN:
		d.err = err
	}
	return true
}
