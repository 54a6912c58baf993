package zookeeper

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// farewell is the connection that the zk client gets once its session is over. There is no
// server behind it. It welcomes the zk client and lets it close. Without it the zk client
// would continue to dial, and check only once a second whether it has to end.
type farewell struct {
	taken func() // called when the client has begun to use it

	mu     sync.Mutex
	asked  bool
	out    []byte        // replies to be read
	more   chan struct{} // closed when out has grown
	closed bool
}

func newFarewell(taken func()) *farewell {
	return &farewell{taken: taken, more: make(chan struct{})}
}

// Write answers a frame of the client.
func (f *farewell) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.asked:
		f.asked = true
		f.taken()
		body := make([]byte, 4+4+8+4+16)
		binary.BigEndian.PutUint32(body[timeoutFrom:], 60_000)
		binary.BigEndian.PutUint64(body[8:], 1)
		binary.BigEndian.PutUint32(body[16:], 16)
		f.reply(body)
	case len(p) >= 12 && int32At(p, 8) == opClose:
		body := make([]byte, replySize)
		copy(body, p[4:8])
		f.reply(body)
	}
	return len(p), nil
}

func (f *farewell) reply(body []byte) {
	f.out = binary.BigEndian.AppendUint32(f.out, uint32(len(body)))
	f.out = append(f.out, body...)
	close(f.more)
	f.more = make(chan struct{})
}

func (f *farewell) Read(p []byte) (int, error) {
	for {
		f.mu.Lock()
		n, more, closed := copy(p, f.out), f.more, f.closed
		f.out = f.out[n:]
		f.mu.Unlock()
		if n > 0 || len(p) == 0 {
			return n, nil
		}
		if closed {
			return 0, io.EOF
		}
		<-more
	}
}

func (f *farewell) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.more)
		f.more = make(chan struct{})
	}
	return nil
}

// The rest of net.Conn.

func (f *farewell) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (f *farewell) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (f *farewell) SetDeadline(time.Time) error      { return nil }
func (f *farewell) SetReadDeadline(time.Time) error  { return nil }
func (f *farewell) SetWriteDeadline(time.Time) error { return nil }
