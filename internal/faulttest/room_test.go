//go:build linux

package faulttest

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// room is a fresh part of the tree of servers. Clients in this process reach it over links of
// their own.
type room struct {
	t               *testing.T
	e               servers
	root            string
	timeout, margin time.Duration

	mu    sync.Mutex
	links map[string]*link
}

// link is a connection to the servers with a line to each, in their order.
type link struct {
	backend.Backend
	room  *room
	lines []ensemble.Line

	mu  sync.Mutex
	ops map[int32]int // requests by opcode
}

func newRoom(t *testing.T, e servers, timeout, margin time.Duration) *room {
	t.Helper()
	r := &room{t: t, e: e, root: fmt.Sprintf("/t%d", time.Now().UnixNano()), timeout: timeout, margin: margin, links: make(map[string]*link)}
	s, err := backendAt(e.Addrs(), timeout, margin).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		_, err := s.Commit(t.Context(), backend.Create(r.root, nil, backend.Persistent))
		if err == nil || errors.Is(err, backend.ErrExists) { // an earlier try was applied
			return r
		}
		if !errors.Is(err, backend.ErrUncertain) || s.Err() != nil {
			t.Fatal(err)
		}
	}
}

// link returns the link with this name.
func (r *room) link(name string) *link { return r.linkWithout(name, 0) }

// linkWithout returns the link with this name. When it is new, its sessions lack some features.
func (r *room) linkWithout(name string, without backend.Features) *link {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.links[name]; l != nil {
		return l
	}
	l := &link{room: r, ops: make(map[int32]int)}
	var addrs []string
	for _, addr := range r.e.Addrs() {
		line := newLine(r.t, addr)
		line.OnFrame(l.saw)
		l.lines, addrs = append(l.lines, line), append(addrs, line.Addr())
	}
	l.Backend = ensemble.Backend(addrs, r.timeout, r.margin, without)
	r.links[name] = l
	return l
}

func (l *link) saw(f zkproxy.Frame) {
	if f.Dir != zkproxy.Up {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops[f.Opcode]++
}

// requests returns the number of requests by opcode.
func (l *link) requests() map[int32]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.ops)
}

// calls returns the number of requests that calls of a session have made.
func (l *link) calls() (n int) {
	for op, k := range l.requests() {
		switch op {
		case zkproxy.OpConnect, zkproxy.OpPing, zkproxy.OpClose, zkproxy.OpAuth:
		default:
			n += k
		}
	}
	return n
}

// expire ends a session of the link.
func (l *link) expire(session int64) { l.room.e.expire(l.room.t, session) }

// partition cuts the connections and refuses new ones.
func (l *link) partition() {
	for _, line := range l.lines {
		line.Refuse(true)
	}
	for _, line := range l.lines {
		line.Cut()
	}
}

// delay adds a latency in each direction.
func (l *link) delay(d time.Duration) {
	for _, line := range l.lines {
		line.SetDelay(d, d)
	}
}

// contender opens a client over a link of its own.
func (r *room) contender(name string) *contender {
	r.t.Helper()
	l := r.link(name)
	x := openContender(r.t, l, r.root)
	x.way = l
	return x
}
