package sweep

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// fault is the fault that hits a frame.
type fault int8

const (
	noFault      fault = iota
	requestLost        // and the connection breaks with it
	replyLost          // and the connection breaks with it; the request was answered
	cutBefore          // contact is lost for some time, and the request with it
	cutAfter           // contact is lost for some time after the request was answered
	expiryBefore       // the session ends, and the request never arrives
	expiryAfter        // the request was answered, and the session ends before the reply arrives
)

var faults = []fault{requestLost, replyLost, cutBefore, cutAfter, expiryBefore, expiryAfter}

func (f fault) String() string {
	return [...]string{"no fault", "request lost", "reply lost", "cut before", "cut after", "expiry before", "expiry after"}[f]
}

func (f fault) expires() bool { return f == expiryBefore || f == expiryAfter }

func (f fault) drop() zkproxy.DropWhat {
	switch f {
	case requestLost:
		return zkproxy.DropRequest
	case replyLost:
		return zkproxy.DropReply
	case cutBefore, expiryBefore:
		return zkproxy.HoldRequest
	default:
		return zkproxy.HoldReply
	}
}

// away is the duration of a cut: shorter than any lease.
const away = timeout / 20

// frame is the kind of the frame that a fault hits.
type frame int8

const (
	request frame = iota // any frame that is none of the others
	ping
	connect
	closing
)

func (k frame) String() string { return [...]string{"request", "ping", "connect", "close"}[k] }

// kind returns the kind of a frame that the client has sent. Frames that are only the
// consequence of a broken connection have none.
func kind(f zkproxy.Frame) (frame, bool) {
	switch f.Opcode {
	case zkproxy.OpConnect:
		return connect, true
	case zkproxy.OpPing:
		return ping, true
	case zkproxy.OpClose:
		return closing, true
	case zkproxy.OpAuth:
		return 0, false
	}
	return request, true
}

// spot identifies a cell: the n-th frame of its kind of a client, and the fault.
type spot struct {
	who   string
	frame frame
	n     int64
	fault fault
}

func (s spot) String() string {
	if s.fault == noFault {
		return "no fault"
	}
	return fmt.Sprintf("%s %s %d %s", s.who, s.frame, s.n, s.fault)
}

// strike is an armed fault.
type strike struct {
	spot
	p       *player
	armed   ensemble.Fault
	what    string        // the frame that it hit
	at      time.Time     // time of the hit; valid once hit is closed
	session int64         // session that it hit; valid once hit is closed
	hit     chan struct{} // closed when the fault has happened
	done    chan struct{} // closed when contact is restored, or the fault was canceled
}

// arm arms a fault. It ends with ctx at the latest. If the connection ends for another reason
// before the reply that the fault waits for, the next frame of the kind is hit.
func (p *player) arm(ctx context.Context, s spot) *strike {
	k := &strike{spot: s, p: p, hit: make(chan struct{}), done: make(chan struct{})}
	var seen atomic.Int64
	k.armed = p.proxy.Drop(func(f zkproxy.Frame) bool {
		what, ok := kind(f)
		if !ok || what != s.frame || seen.Add(1) < s.n {
			return false
		}
		k.what = zkproxy.OpName(f.Opcode) // read after the hit
		if len(f.Ops) > 0 {
			k.what += "("
			for i, op := range f.Ops {
				if i > 0 {
					k.what += " "
				}
				k.what += zkproxy.OpName(op.Opcode)
			}
			k.what += ")"
		}
		return true
	}, s.fault.drop())
	go k.run(ctx)
	return k
}

func (k *strike) run(ctx context.Context) {
	defer close(k.done)
	defer k.armed.Cancel()
	select {
	case <-k.armed.Hit():
	case <-ctx.Done():
		return
	}
	k.at, k.session = time.Now(), k.p.session.Load()
	close(k.hit)
	switch k.fault {
	case cutBefore, cutAfter:
		k.p.proxy.Refuse(true)
		k.p.proxy.Cut()
		t := time.NewTimer(away)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		k.p.proxy.Refuse(false)
	case expiryBefore, expiryAfter:
		// A client that reconnects at once would keep its session.
		k.p.proxy.Refuse(true)
		k.p.proxy.Cut()
		if err := expire(ctx, k.p.x.addr, k.session); err != nil {
			k.p.x.violation("cannot expire %#x: %v", k.session, err)
		}
		k.p.proxy.Refuse(false)
	}
}

// struck reports whether the fault has happened.
func (k *strike) struck() bool {
	select {
	case <-k.hit:
		return true
	default:
		return false
	}
}
