package zkproxy

import (
	"errors"
	"slices"
	"sync"
)

// DropWhat is the action of a Fault on its frame.
type DropWhat int8

const (
	// DropRequest: the request is not forwarded; the connection is cut in its place. It is
	// certainly not applied.
	DropRequest DropWhat = iota + 1
	// DropReply: the request is forwarded; when its reply arrives, the connection is cut in
	// the reply's place. The server has certainly answered: the request was applied, or
	// refused with an error.
	DropReply
	// HoldRequest: the request, and all that this client sends after it, is
	// held until Release.
	HoldRequest
	// HoldReply: the request is forwarded, and its reply, and all that the
	// server sends after it, is held until Release.
	HoldReply
	// DropEvent: the watch event is not forwarded, and the connection is cut
	// in its place.
	DropEvent
	// HoldEvent: the watch event, and all that the server sends after it, is
	// held until Release.
	HoldEvent
)

func (w DropWhat) onReply() bool { return w == DropReply || w == HoldReply }
func (w DropWhat) onEvent() bool { return w == DropEvent || w == HoldEvent }
func (w DropWhat) holds() bool   { return w == HoldRequest || w == HoldReply || w == HoldEvent }

// A Fault affects one frame, the next that matches.
type Fault struct {
	proxy   *Proxy
	match   func(Frame) bool
	what    DropWhat
	hit     chan struct{}
	release chan struct{}

	hitOnce, releaseOnce sync.Once
	canceled             bool // guarded by Proxy.mu
}

// Drop arms a fault for the next frame that matches: an event for DropEvent and HoldEvent,
// else a request, connect frames and pings included. If several faults match a frame, the one
// armed first takes it. match is called for frames of several connections concurrently, in
// order for each, and must not block; nil matches every frame.
//
// When a connection ends between a request and the reply that a fault waits
// for, the fault is armed again for the next request that matches.
func (p *Proxy) Drop(match func(Frame) bool, what DropWhat) *Fault {
	f := &Fault{proxy: p, match: match, what: what, hit: make(chan struct{}), release: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// Hit is closed when the fault has happened: after the connection was cut, or when the frame
// is held.
func (f *Fault) Hit() <-chan struct{} { return f.hit }

// Release forwards the held frames. Called earlier, it makes the fault hold nothing.
func (f *Fault) Release() {
	f.releaseOnce.Do(func() { close(f.release) })
}

// Cancel ends the fault: it takes no frame any more, and releases held frames. A reply that
// it already waits for is still dropped.
func (f *Fault) Cancel() {
	f.Release()
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	f.canceled = true
	f.proxy.faults = slices.DeleteFunc(f.proxy.faults, func(o *Fault) bool { return o == f })
}

func (f *Fault) happened() { f.hitOnce.Do(func() { close(f.hit) }) }

// claim returns the fault that takes this frame, or nil.
func (p *Proxy) claim(frame Frame) *Fault {
	p.mu.Lock()
	armed := slices.Clone(p.faults)
	p.mu.Unlock()
	for _, f := range armed {
		if f.what.onEvent() != frame.isEvent() || f.match != nil && !f.match(frame) {
			continue
		}
		p.mu.Lock()
		i := slices.Index(p.faults, f) // another frame may have taken it meanwhile
		if i >= 0 {
			p.faults = slices.Delete(p.faults, i, i+1)
		}
		p.mu.Unlock()
		if i >= 0 {
			return f
		}
	}
	return nil
}

// rearm arms a fault again whose reply will not arrive.
func (p *Proxy) rearm(f *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f != nil && !f.canceled {
		p.faults = append(p.faults, f)
	}
}

// asked records a request that is forwarded.
func (c *conn) asked(r request) {
	c.mu.Lock()
	isCut := c.isCut
	if !isCut {
		c.pending[r.frame.Xid] = append(c.pending[r.frame.Xid], r)
	}
	c.mu.Unlock()
	if isCut {
		c.proxy.rearm(r.fault)
	}
}

// answered returns the request that a reply belongs to. The connect frames have no xid and
// are the first in each direction.
func (c *conn) answered(xid int32, first bool) request {
	if first {
		xid = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	queue := c.pending[xid]
	if len(queue) == 0 {
		return request{}
	}
	r := queue[0]
	if len(queue) == 1 {
		delete(c.pending, xid)
	} else {
		c.pending[xid] = queue[1:]
	}
	return r
}

// settle handles the frames that had to be dropped when the connection ended for another
// reason. They count as dropped: they were not forwarded, and the connection is cut.
func (c *conn) settle() {
	for _, l := range c.lines {
		for _, it := range l.rest() {
			if it.cut != nil {
				it.cut.happened()
			}
		}
	}
}

func isMalformed(err error) bool { return errors.Is(err, errMalformed) }
