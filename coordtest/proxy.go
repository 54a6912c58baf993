package coordtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// A Proxy is a TCP proxy on the loopback interface between clients and one server. It is safe for
// concurrent use.
type Proxy struct {
	tb       testing.TB
	proxy    *zkproxy.Proxy
	target   string
	sessions *sessions // nil if the proxy is raw

	mu    sync.Mutex
	armed []armed
}

// armed is a fault with what it counts.
type armed struct {
	*Fault
	op, path string
}

// NewProxy returns a proxy for the ZooKeeper server at target ("host:port"), which the test closes.
// It knows the frames of ZooKeeper's protocol, and cuts a connection with another one, TLS
// included.
func NewProxy(tb testing.TB, target string) *Proxy { return newProxy(tb, target, false) }

// NewRawProxy returns a proxy for any server, which the test closes. It knows no frames: its methods
// DropRequest, DropReply, HoldRequest, HoldReply and Expire fail the test.
func NewRawProxy(tb testing.TB, target string) *Proxy { return newProxy(tb, target, true) }

func newProxy(tb testing.TB, target string, raw bool) *Proxy {
	tb.Helper()
	start := zkproxy.New
	if raw {
		start = zkproxy.NewRaw
	}
	z, err := start(target)
	if err != nil {
		tb.Fatalf("coordtest: proxy for %s: %v", target, err)
	}
	p := &Proxy{tb: tb, proxy: z, target: target}
	if !raw {
		p.sessions = newSessions()
		z.OnFrame(p.saw)
	}
	tb.Cleanup(p.close)
	return p
}

// Addr is the address to connect to.
func (p *Proxy) Addr() string { return p.proxy.Addr() }

// Cut closes all present connections at once, on both sides.
func (p *Proxy) Cut() { p.proxy.Cut() }

// Refuse closes all present connections, and new ones at once while it is on.
func (p *Proxy) Refuse(on bool) {
	p.proxy.Refuse(on)
	if on {
		p.proxy.Cut()
	}
}

// Blackhole loses everything in both directions while it is on. Connections stay open, new ones are
// accepted, and nothing arrives, not even the end of a connection. When it is switched off, the
// connections that have lost something are cut.
func (p *Proxy) Blackhole(on bool) { p.proxy.Blackhole(on) }

// Hold keeps back everything in both directions while it is on. Afterwards all of it continues, in
// order.
func (p *Proxy) Hold(on bool) { p.proxy.Hold(on) }

// Delay makes everything take d longer in each direction, from now on; 0 ends it. It adds latency
// and does not reduce throughput.
func (p *Proxy) Delay(d time.Duration) { p.proxy.SetDelay(d, d) }

// DropRequest loses the n-th request from now on, counted from 1, of a kind that names the node at
// path or one below it: it is not forwarded, and the connection is cut in its place.
//
// The kind op is "create", "delete" or "setData", for a request of one such operation; "multi", for
// one of several; "write" for all of these; "read"; "sync"; or "" for all that have a path. Pings and
// the requests that open or close a session never count. The path "" means any.
func (p *Proxy) DropRequest(n int, op, path string) *Fault {
	p.tb.Helper()
	return p.arm("the request", n, op, path, zkproxy.DropRequest)
}

// DropReply forwards the request, counted as DropRequest does, and cuts the connection in the
// place of its reply. The server has certainly handled the request.
func (p *Proxy) DropReply(n int, op, path string) *Fault {
	p.tb.Helper()
	return p.arm("the reply to the request", n, op, path, zkproxy.DropReply)
}

// HoldRequest holds the request, counted as DropRequest does, and all that its connection sends
// after it, until Fault.Release.
func (p *Proxy) HoldRequest(n int, op, path string) *Fault {
	p.tb.Helper()
	return p.arm("the request", n, op, path, zkproxy.HoldRequest)
}

// HoldReply forwards the request, counted as DropRequest does, and holds its reply, and all that
// the server sends after it, until Fault.Release.
func (p *Proxy) HoldReply(n int, op, path string) *Fault {
	p.tb.Helper()
	return p.arm("the reply to the request", n, op, path, zkproxy.HoldReply)
}

// kinds are the requests with a path, by the kinds of DropRequest.
var kinds = map[string][]string{
	"create":  {"create", "create2", "createContainer", "createTTL"},
	"delete":  {"delete"},
	"setData": {"setData"},
	"multi":   {"multi"},
	"write":   {"create", "create2", "createContainer", "createTTL", "delete", "setData", "setACL", "multi"},
	"read":    {"exists", "getData", "getACL", "getChildren", "getChildren2", "multiRead"},
	"sync":    {"sync"},
	"": {"create", "create2", "createContainer", "createTTL", "delete", "setData", "setACL", "multi", "exists", "getData", "getACL",
		"getChildren", "getChildren2", "multiRead", "sync", "checkWatches", "removeWatches", "addWatch", "setWatches", "setWatches2"},
}

func (p *Proxy) arm(what string, n int, op, path string, how zkproxy.DropWhat) *Fault {
	p.tb.Helper()
	if p.sessions == nil {
		p.tb.Fatal("coordtest: a raw proxy cannot tell requests apart")
	}
	if kinds[op] == nil {
		p.tb.Fatalf("coordtest: unknown kind of request %q", op)
	}
	f := newFault(p.tb, fmt.Sprintf("%s %d of kind %q at %q", what, n, op, path), n)
	p.mu.Lock()
	defer p.mu.Unlock()
	below := p.proxy.Drop(f.strikes, how)
	f.release, f.hit = below.Release, below.Hit()
	p.armed = append(p.armed, armed{f, op, path})
	return f
}

// saw counts a request for each fault. The proxy calls it before it looks for a fault that the
// request takes.
func (p *Proxy) saw(fr zkproxy.Frame) {
	p.sessions.saw(fr)
	if fr.Dir != zkproxy.Up {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.armed {
		if matches(fr, a.op, a.path) {
			a.sees(fr)
		}
	}
}

func matches(f zkproxy.Frame, op, path string) bool {
	if !slices.Contains(kinds[op], zkproxy.OpName(f.Opcode)) {
		return false
	}
	for _, sub := range f.Ops {
		if below(sub.Path, path) {
			return true
		}
	}
	return below(f.Path, path)
}

// Expire makes the server end all sessions that were opened or continued through the proxy, as if
// their timeout had passed. When it returns their ephemeral nodes are deleted. If there is none,
// it fails the test.
func (p *Proxy) Expire() {
	p.tb.Helper()
	if p.sessions == nil {
		p.tb.Fatal("coordtest: a raw proxy cannot expire sessions")
	}
	all := p.sessions.take()
	if len(all) == 0 {
		p.tb.Errorf("coordtest: no session to expire came through the proxy for %s", p.target)
	}
	ctx, cancel := context.WithTimeout(context.Background(), actionLimit)
	defer cancel()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if err := zktest.ExpireSession(ctx, p.target, id, []byte(all[id])); err != nil {
			p.tb.Errorf("coordtest: %v", err)
		}
	}
}

// close ends the proxy with the test.
func (p *Proxy) close() {
	p.mu.Lock()
	faults := p.armed
	p.mu.Unlock()
	for _, f := range faults {
		f.expire()
	}
	if err := p.proxy.Close(); err != nil {
		p.tb.Errorf("coordtest: close the proxy for %s: %v", p.target, err)
	}
}

// sessions has the passwords of the sessions that a proxy has seen, by their ids.
type sessions struct {
	mu  sync.Mutex
	all map[int64]string
	of  map[int]int64 // the session of each connection
}

func newSessions() *sessions {
	return &sessions{all: make(map[int64]string), of: make(map[int]int64)}
}

// saw notes a session that a server has granted, and forgets one that its client ends.
func (s *sessions) saw(f zkproxy.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case f.Dir == zkproxy.Down && f.Opcode == zkproxy.OpConnect && f.Err == 0 && f.Session != 0:
		s.all[f.Session] = f.Passwd
		s.of[f.Conn] = f.Session
	case f.Dir == zkproxy.Up && f.Opcode == zkproxy.OpClose:
		delete(s.all, s.of[f.Conn])
	}
}

// passwd returns the password of a session, or nil.
func (s *sessions) passwd(id int64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.all[id]; ok {
		return []byte(p)
	}
	return nil
}

// take returns all sessions, and forgets them.
func (s *sessions) take() map[int64]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = make(map[int64]string)
	return all
}
