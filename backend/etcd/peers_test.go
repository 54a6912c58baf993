//go:build linux

package etcd_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// peers is the network between the members of a cluster. All connections of a member to another one
// go through it, so it can cut a member off from the others: then it loses all bytes in both
// directions, of old and of new connections, and resets nothing.
type peers struct {
	listeners []net.Listener // in front of each member
	wg        sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	members []*member
	off     map[*member]bool
	conns   map[*peerConn]bool
}

// peerConn is a connection of a member to another one.
type peerConn struct {
	from, to *member
	ends     []net.Conn // the second one is missing if the connection began while a member was cut off
	lossy    bool       // bytes are lost
}

func newPeers(n int) (*peers, error) {
	p := &peers{off: make(map[*member]bool), conns: make(map[*peerConn]bool)}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			p.close()
			return nil, err
		}
		p.listeners = append(p.listeners, l)
	}
	return p, nil
}

// add is called with each member before it is started, in the order of the listeners.
func (p *peers) add(m *member, addr string) {
	p.mu.Lock()
	l := p.listeners[len(p.members)]
	p.members = append(p.members, m)
	p.mu.Unlock()
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c, m, addr) })
		}
	})
}

func (p *peers) close() {
	for _, l := range p.listeners {
		l.Close()
	}
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (c *peerConn) close() {
	for _, end := range c.ends {
		end.Close()
	}
}

// cutOff cuts a member off from the others, or lets it meet them again. The connections that have
// lost bytes end then.
func (p *peers) cutOff(m *member, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off[m] = on
	for c := range p.conns {
		switch {
		case p.off[c.from] || p.off[c.to]:
			c.lossy = true
		case c.lossy:
			c.close()
		}
	}
}

// lossy counts the connections of a member that lose bytes.
func (p *peers) lossy(m *member) (made, accepted int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		switch {
		case !c.lossy:
		case c.from == m:
			made++
		case c.to == m:
			accepted++
		}
	}
	return made, accepted
}

func (p *peers) serve(client net.Conn, to *member, addr string) {
	defer client.Close()
	from := p.owner(client)
	if from == nil {
		return // it has ended
	}
	c := &peerConn{from: from, to: to, ends: []net.Conn{client}}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	c.lossy = p.off[from] || p.off[to]
	p.conns[c] = true
	if !c.lossy {
		server, err := net.Dial("tcp", addr) // to this machine, so it does not take long
		if err == nil {
			c.ends = append(c.ends, server)
		} else {
			c.close()
		}
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	for i, end := range c.ends {
		both.Go(func() { p.pass(c, end, c.ends[len(c.ends)-1-i]) })
	}
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// pass passes on what one end sends to the other one. If bytes are lost, the end of a connection is
// lost too.
func (p *peers) pass(c *peerConn, from, to net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		lossy := c.lossy
		p.mu.Unlock()
		if lossy && err == nil {
			continue
		}
		if err == nil {
			_, err = to.Write(b[:n])
		}
		if err != nil {
			from.Close()
			if !lossy {
				to.Close()
			}
			return
		}
	}
}

// owner returns the member whose process has the other end of a connection, or nil. The bytes do not
// tell it: the renewals of leases that a member passes on to the leader name no member.
func (p *peers) owner(c net.Conn) *member {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return nil
	}
	port := func(a net.Addr) int { return a.(*net.TCPAddr).Port }
	ends := fmt.Sprintf(": 0100007F:%04X 0100007F:%04X ", port(c.RemoteAddr()), port(c.LocalAddr()))
	_, line, found := bytes.Cut(table, []byte(ends))
	if !found {
		return nil
	}
	fields := strings.Fields(string(line[:min(len(line), 150)]))
	if len(fields) < 7 {
		return nil
	}
	want := "socket:[" + fields[6] + "]"
	p.mu.Lock()
	members := p.members
	p.mu.Unlock()
	for _, m := range members {
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", m.pid()))
		if err != nil {
			continue
		}
		for _, fd := range open {
			if at, err := os.Readlink(fd); err == nil && at == want {
				return m
			}
		}
	}
	return nil
}
