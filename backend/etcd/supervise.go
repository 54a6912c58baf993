package etcd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// A session has three channels to its server: requests, keep-alives and the watch stream. A server can
// answer on some of them only, so each has a clock of its own, and half a lease of silence on one of them
// breaks the link:
//
//   - keep-alives: see keepAlive;
//   - requests: link.await. If each server in turn has left a read without an answer, or each a write, the
//     session is over: its keep-alives would keep its nodes, and callers without a context, for ever;
//   - the watch stream: hub.prove. While watches are in use, the server has to prove that it sends events.
//
// While this process is paused, the answers wait to be read, and the clocks run. So each of them looks several
// times at what is left. A look that comes late shows the pause, and the server gets half of its time again.

var (
	errMute       = errors.New("etcd: the server answers keep-alives but no requests")
	errUnanswered = fmt.Errorf("%w: no server answers its requests, although keep-alives are answered", backend.ErrSessionLost)
)

// requestKind tells reads from writes: a service without a majority can answer one and not the other.
type requestKind int

const (
	readRequest requestKind = iota
	writeRequest
	requestKinds
)

func kindOfRequest(req any) requestKind {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return readRequest
	case *pb.TxnRequest:
		for _, op := range r.Success {
			if op.GetRequestRange() == nil {
				return writeRequest
			}
		}
		return readRequest
	}
	return writeRequest
}

const (
	// trickle is more traffic than keep-alives make in half a lease. A request of a connection that has
	// carried so much meanwhile is waited for longer: its reply may be large and the network slow.
	trickle = 64 << 10
	// mostWaits is how many times half a lease the answer to one request can take all the same.
	mostWaits = 16
)

// deadline is the time that a server has for an answer.
type deadline struct {
	length time.Duration
	since  contact.Instant
	looked contact.Instant // the latest look
	next   time.Duration   // when the next one was due after it
}

// looks is how many times a deadline is looked at, at least.
const looks = 4

func newDeadline(now contact.Instant, length time.Duration) deadline {
	return deadline{length: length, since: now, looked: now, next: length / looks}
}

// look returns when to look again, or zero if the time is over.
func (d *deadline) look(now contact.Instant) time.Duration {
	if d.looked.To(now) > d.next+d.length/looks {
		d.since = within(d.since, now, d.length/2)
	}
	d.looked = now
	d.next = max(min(d.length-d.since.To(now), d.length/looks), 0)
	if d.next > 0 {
		d.next = max(d.next, time.Millisecond)
	}
	return d.next
}

// within returns the instant, or the one that is at most so long ago.
func within(at, now contact.Instant, most time.Duration) contact.Instant {
	if at.To(now) > most {
		return contact.Instant{Mono: now.Mono - most, Wall: now.Wall - most}
	}
	return at
}

// await supervises a request until the returned function is called.
func (l *link) await(kind requestKind) (answered func()) {
	if l.patience == 0 {
		return func() {}
	}
	var timer *time.Timer
	before, waits, limit := l.traffic.Load(), 0, newDeadline(l.now(), l.patience)
	started := make(chan struct{})
	timer = time.AfterFunc(limit.next, func() {
		<-started
		now := l.now()
		if next := limit.look(now); next > 0 {
			timer.Reset(next)
			return
		}
		carried := l.traffic.Load()
		if waits++; waits < mostWaits && carried-before > trickle {
			before, limit = carried, newDeadline(now, l.patience)
			timer.Reset(limit.next)
			return
		}
		if l.fail(errMute) {
			l.hung(kind)
		}
	})
	close(started)
	return func() { timer.Stop() }
}

// silence counts the links in a row that have broken because a request of a kind had no answer.
type silence [requestKinds]atomic.Int32

// hung records that a link has left a request without an answer.
func (s *session) hung(kind requestKind) {
	if int(s.silent[kind].Add(1)) >= max(2, len(s.servers.Targets())) {
		s.end(errUnanswered)
	}
}

// adopt makes a link one of the session, before the session uses it.
func (s *session) adopt(l *link) {
	l.patience, l.now = s.Lease()/2, s.now
	l.hung = s.hung
	l.silent = &s.silent
	l.past, l.changed = &s.past, s.another
}

// watchedConn counts the bytes of the connection of a link, and notes that it is broken. gRPC is told
// afterwards.
type watchedConn struct {
	net.Conn
	l *link
}

func (c watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.note(n, err)
	return n, err
}

func (c watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.note(n, err)
	return n, err
}

func (c watchedConn) note(n int, err error) {
	c.l.traffic.Add(int64(n))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.l.cut.Store(true)
	}
}

// pulse is the supervision of the watch stream.
type pulse struct {
	proved contact.Instant // when the stream was proved last, or was not needed
	asking bool            // a proof was asked for
	since  contact.Instant // when, for the first time
	fenced bool            // there will be an event of the session key
	least  int64           // the revision that the proof must reach
}

// pulses is the number of times in a lease at which the stream is looked after.
const pulses = 12

// prove asks for a proof of the stream when the latest one is a sixth of the lease old. Servers whose
// progress replies are in order prove with one of them. The others prove with the event of a new epoch,
// which is a write: there fence is true. An error means that there was no proof for
// half the lease.
func (h *hub) prove(l *link) (fence bool, err error) {
	now, lease := h.s.now(), h.s.Lease()
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.pulse
	if h.looked.To(now) > 3*lease/pulses { // this process was paused
		p.since = within(p.since, now, lease/6)
		for _, w := range h.creating {
			w.since = within(w.since, now, lease/4)
		}
	}
	h.looked = now
	switch {
	case h.link != l || h.ended:
	case len(h.watchers) == 0:
		*p = pulse{proved: now}
	case p.asking && p.since.To(now) > lease/3:
		return false, errNoProgress
	case len(h.creating) > 0 && h.creating[0].since.To(now) > lease/2:
		return false, errNoProgress
	case !p.asking && p.proved.To(now) < lease/6:
	default:
		fence = !l.ordered && !p.fenced
		again := p.asking
		if !again {
			p.asking, p.since, p.least = true, now, l.revision.Load()
		}
		p.fenced = !l.ordered
		if l.ordered {
			if again {
				h.mark()
			}
			h.ask()
		}
	}
	return fence, nil
}

// fence makes an event of the session key.
func (h *hub) fence(l *link) {
	defer l.work.Done()
	ctx, stop := l.call(l.ctx)
	defer stop()
	err := h.s.newEpoch(ctx, l, l.revision.Load())
	if err == nil || l.reason() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pulse.fenced = false
	if is(err, rpctypes.ErrGRPCNoSpace) {
		h.alive(l.revision.Load()) // no such event comes
	}
}

// alive records that the stream shows all events up to a revision.
func (h *hub) alive(rev int64) {
	if h.pulse.asking && rev >= h.pulse.least {
		h.pulse = pulse{proved: h.s.now()}
	}
}
