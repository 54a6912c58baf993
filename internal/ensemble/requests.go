package ensemble

import (
	"slices"
	"sync"

	"github.com/go-coord/coord/internal/zkproxy"
)

// Requests is the common part of Lines: the faults of requests and replies, and a proxy of bytes before the part that parses them. That
// part calls Tell and Claim.
type Requests struct {
	*zkproxy.Proxy

	mu    sync.Mutex
	tell  func(zkproxy.Frame)
	armed []*RequestFault
}

// RequestFault is the fault of one request or of its reply.
type RequestFault struct {
	What zkproxy.DropWhat

	requests      *Requests
	match         func(zkproxy.Frame) bool
	hit, release  chan struct{}
	once, unhands sync.Once
}

// OnFrame sets the function that is called for each frame.
func (r *Requests) OnFrame(f func(zkproxy.Frame)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell = f
}

// Tell calls the function of OnFrame.
func (r *Requests) Tell(f zkproxy.Frame) {
	r.mu.Lock()
	tell := r.tell
	r.mu.Unlock()
	if tell != nil {
		tell(f)
	}
}

// Drop arms a fault for the next request that matches.
func (r *Requests) Drop(match func(zkproxy.Frame) bool, what zkproxy.DropWhat) Fault {
	f := &RequestFault{What: what, requests: r, match: match, hit: make(chan struct{}), release: make(chan struct{})}
	f.Arm()
	return f
}

// Claim returns the fault that takes a request, or nil.
func (r *Requests) Claim(frame zkproxy.Frame) *RequestFault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, f := range r.armed {
		if f.match(frame) {
			r.armed = slices.Delete(r.armed, i, i+1)
			return f
		}
	}
	return nil
}

// Arm arms the fault again, if it is not canceled: it was claimed by a request whose reply does not come.
func (f *RequestFault) Arm() {
	f.requests.mu.Lock()
	defer f.requests.mu.Unlock()
	select {
	case <-f.release: // canceled
	default:
		f.requests.armed = append(f.requests.armed, f)
	}
}

// Hit is closed when the fault has happened.
func (f *RequestFault) Hit() <-chan struct{} { return f.hit }

// Happened closes Hit.
func (f *RequestFault) Happened() { f.once.Do(func() { close(f.hit) }) }

// Hold returns when the fault is canceled or the connection has ended. In the latter case it returns false.
func (f *RequestFault) Hold(ended <-chan struct{}) bool {
	f.Happened()
	select {
	case <-f.release:
	case <-ended:
	}
	select {
	case <-ended:
		return false
	default:
		return true
	}
}

// Cancel ends the fault. A held message is forwarded.
func (f *RequestFault) Cancel() {
	f.unhands.Do(func() { close(f.release) })
	f.requests.mu.Lock()
	defer f.requests.mu.Unlock()
	f.requests.armed = slices.DeleteFunc(f.requests.armed, func(o *RequestFault) bool { return o == f })
}
