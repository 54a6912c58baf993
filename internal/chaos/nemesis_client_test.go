//go:build linux

package chaos

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

func (n *nemesis) client(r *rand.Rand, about *event) *actor {
	a := n.r.actors[r.IntN(len(n.r.actors))]
	about.ID = a.name
	return a
}

func (n *nemesis) cut(r *rand.Rand, _ *event) error {
	for range 3 {
		n.r.actors[r.IntN(len(n.r.actors))].each(func(p *zkproxy.Proxy) { p.Cut() })
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
	}
	return nil
}

// lose drops traffic between a client and the servers. Unless all traffic is dropped, this
// can be for less than the lease. Otherwise the client holds the mutex and leads, and the
// fault lasts until other clients have acquired both; the client must have been notified
// before that.
func (n *nemesis) lose(r *rand.Rand, about *event, what func(p *zkproxy.Proxy, on bool)) error {
	a := n.client(r, about)
	if about.Op != "network lost" && r.IntN(2) == 0 {
		a.each(func(p *zkproxy.Proxy) { what(p, true) })
		time.Sleep(lease / 2) // the length of the fault
		a.each(func(p *zkproxy.Proxy) { what(p, false) })
		return nil
	}
	if err := a.linger(); err != nil {
		return err
	}
	succeeded := n.succeeded()
	a.each(func(p *zkproxy.Proxy) { what(p, true) })
	err := until("other clients succeed the one that is cut off", limit, succeeded)
	a.each(func(p *zkproxy.Proxy) { what(p, false) })
	a.tell("go")
	return err
}

// linger makes a client keep the mutex and the leadership until the test lets it continue.
func (a *actor) linger(more ...string) error {
	kinds := append([]string{"lingering mutex", "lingering election"}, more...)
	before := make(map[string]int)
	for _, k := range kinds {
		before[k] = a.heard(k)
	}
	a.tell("linger")
	for _, k := range kinds {
		if err := a.await(k, before[k]+1, limit); err != nil {
			return err
		}
	}
	return nil
}

// succeeded returns a function that reports whether other clients have held the mutex and
// have led since, by their writes to the resource. The client that has both now does not
// write meanwhile.
func (n *nemesis) succeeded() func() bool {
	name := filepath.Join(n.r.dir, "resource.jsonl")
	size := int64(0)
	if info, err := os.Stat(name); err == nil {
		size = info.Size()
	}
	return func() bool {
		f, err := os.Open(name)
		if err != nil {
			return false
		}
		defer f.Close()
		b, err := io.ReadAll(io.NewSectionReader(f, size, 1<<30))
		return err == nil && bytes.Contains(b, []byte(`"w":"mutex"`)) && bytes.Contains(b, []byte(`"w":"election"`))
	}
}

func (n *nemesis) blackhole(r *rand.Rand, about *event) error {
	return n.lose(r, about, (*zkproxy.Proxy).Blackhole)
}

func (n *nemesis) halfOpenUp(r *rand.Rand, about *event) error {
	return n.lose(r, about, (*zkproxy.Proxy).BlackholeUp)
}

func (n *nemesis) halfOpenDown(r *rand.Rand, about *event) error {
	return n.lose(r, about, (*zkproxy.Proxy).BlackholeDown)
}

func (n *nemesis) delay(r *rand.Rand, about *event) error {
	a := n.client(r, about)
	up, down := time.Duration(r.IntN(150))*time.Millisecond, time.Duration(r.IntN(150))*time.Millisecond
	a.each(func(p *zkproxy.Proxy) { p.SetDelay(up, down) })
	time.Sleep(time.Duration(1000+r.IntN(1500)) * time.Millisecond) // the length of the fault
	a.each(func(p *zkproxy.Proxy) { p.SetDelay(0, 0) })
	return nil
}

// stopClient stops a client that has the mutex and leads, until other clients have acquired
// both. When the client resumes, its first step is a write.
func (n *nemesis) stopClient(r *rand.Rand, about *event) error {
	a := n.client(r, about)
	if err := a.linger("lingering schedule", "lingering overlap"); err != nil {
		return err
	}
	if err := a.worker().Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	succeeded := n.succeeded()
	a.tell("go")
	err := until("other clients succeed the one that is stopped", limit, succeeded)
	return errors.Join(err, a.worker().Signal(syscall.SIGCONT))
}

func (n *nemesis) killClient(r *rand.Rand, about *event) error {
	a := n.client(r, about)
	a.worker().Kill()
	time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
	if err := a.launch(); err != nil {
		return err
	}
	return a.await("opened", 1, limit)
}

func (n *nemesis) expire(r *rand.Rand, about *event) error {
	a := n.client(r, about)
	if err := until("the client has a session", limit, func() bool { return a.session() != 0 }); err != nil {
		return err
	}
	old := a.session()
	n.rec.say(event{Kind: "expire", Work: "fault", Session: old})
	ctx, cancel := n.ctx()
	defer cancel()
	if err := n.r.servers().Expire(ctx, old); err != nil {
		return err
	}
	return until("the client has another session", limit, func() bool { return a.session() != old })
}

// connectionLimit opens all connections that the servers grant to one address, and cuts those
// of a client. The running servers must refuse more.
func (n *nemesis) connectionLimit(r *rand.Rand, about *event) error {
	a := n.client(r, about)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	refused := func(addr string) bool {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return true // it is down
		}
		conns = append(conns, c)
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err = c.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	for _, addr := range n.r.e.Addrs() {
		for range mostConnections {
			c, err := net.DialTimeout("tcp", addr, time.Second)
			if err != nil {
				break // it is down
			}
			conns = append(conns, c)
		}
	}
	if err := until("a server refuses connections", limit, func() bool {
		return !slices.ContainsFunc(n.r.e.Servers(), func(s *zktest.Server) bool { return s.Alive() && !s.Paused() && !refused(s.Addr()) })
	}); err != nil {
		return err
	}
	a.each(func(p *zkproxy.Proxy) { p.Cut() })
	time.Sleep(time.Duration(1000+r.IntN(1000)) * time.Millisecond) // the length of the fault
	return nil
}
