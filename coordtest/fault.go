package coordtest

import (
	"sync"
	"testing"

	"github.com/go-coord/coord/internal/zkproxy"
)

// A Fault affects one request or one reply. See Link.DropReply, Proxy.DropReply and the like. It is
// safe for concurrent use.
type Fault struct {
	tb      testing.TB
	what    string // "the reply of commit 1 at …"
	request bool   // of a link: the request is lost, else the reply
	path    string // of a link
	release func() // of a hold

	hit    <-chan struct{}
	struck chan struct{} // hit, of a link

	mu       sync.Mutex
	left     int // until it strikes
	canceled bool
	conn     int   // of a proxy: the latest request that it may strike at
	xid      int32 // the same
}

// newFault returns a fault that strikes at the n-th match.
func newFault(tb testing.TB, what string, n int) *Fault {
	tb.Helper()
	if n < 1 {
		tb.Fatalf("coordtest: %s: faults are counted from 1", what)
	}
	f := &Fault{tb: tb, what: what, left: n, struck: make(chan struct{}), release: func() {}}
	f.hit = f.struck
	return f
}

// Done is closed when the fault has struck: the connection is cut, or the frame is held.
func (f *Fault) Done() <-chan struct{} { return f.hit }

// Release lets what the fault holds, or will hold, continue. For a fault that loses, it does nothing.
func (f *Fault) Release() { f.release() }

// Cancel takes the fault back: it does not strike any more, and a held frame continues. Without it a
// fault that has not struck at the end of the test fails the test.
func (f *Fault) Cancel() {
	f.mu.Lock()
	f.canceled = true
	f.mu.Unlock()
	f.release()
}

// count counts a match, and reports whether the fault strikes. If another fault has taken the match,
// a fault that would strike waits for the next.
func (f *Fault) count(taken bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.canceled || f.left == 0 || taken && f.left == 1 {
		return false
	}
	f.left--
	return f.left == 0
}

// sees counts a request that passes a proxy. The n-th is struck, or the next one, if its connection ended
// before its reply.
func (f *Fault) sees(fr zkproxy.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left > 0 {
		f.left--
	}
	if f.left == 0 {
		f.conn, f.xid = fr.Conn, fr.Xid
	}
}

// strikes reports whether a request is the one to strike at.
func (f *Fault) strikes(fr zkproxy.Frame) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.canceled && f.left == 0 && f.conn == fr.Conn && f.xid == fr.Xid
}

// happened closes Done of a fault of a link.
func (f *Fault) happened() { close(f.struck) }

// expire ends the fault with the test.
func (f *Fault) expire() {
	f.mu.Lock()
	missed := !f.canceled
	f.canceled = true
	f.mu.Unlock()
	select {
	case <-f.hit:
		missed = false
	default:
	}
	f.release()
	if missed && !f.tb.Failed() && !f.tb.Skipped() {
		f.tb.Errorf("coordtest: the fault never struck: %s; the test has not tested the loss (use Fault.Cancel if no fault is needed)", f.what)
	}
}
