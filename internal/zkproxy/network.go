package zkproxy

import "time"

// Cut closes all present connections at once, on both sides. Delayed and held frames on them
// are lost. It returns the number of connections.
func (p *Proxy) Cut() int {
	return p.cutIf(func(*conn) bool { return true })
}

func (p *Proxy) cutIf(match func(*conn) bool) int {
	p.mu.Lock()
	var cut []*conn
	for c := range p.conns {
		if match(c) {
			cut = append(cut, c)
		}
	}
	p.mu.Unlock()
	for _, c := range cut {
		c.cut()
	}
	return len(cut)
}

// CutConn closes the connection with this number (see Frame.Conn) at once, and reports
// whether it existed.
func (p *Proxy) CutConn(number int) bool {
	return p.cutIf(func(c *conn) bool { return c.number == number }) > 0
}

// Refuse closes new connections at once while it is on.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Blackhole loses everything in both directions while it is on: connections stay open, new
// ones are accepted, and nothing is forwarded, not even the end of a connection. So neither
// side learns of the other, as in a network failure.
//
// When Blackhole is switched off, its connections are cut, since they have lost bytes: a
// black hole swallows, Hold delays.
func (p *Proxy) Blackhole(on bool) { p.blackhole(on, Up, Down) }

// BlackholeUp is Blackhole from the client to the server only: the frames of the server still
// arrive.
func (p *Proxy) BlackholeUp(on bool) { p.blackhole(on, Up) }

// BlackholeDown is Blackhole from the server to the client only: requests are still applied.
func (p *Proxy) BlackholeDown(on bool) { p.blackhole(on, Down) }

func (p *Proxy) blackhole(on bool, dirs ...Dir) {
	p.mu.Lock()
	var lifted []*conn
	for _, dir := range dirs {
		p.black[dir] = on
		for c := range p.conns {
			if on {
				c.blacken(dir)
			} else if c.isBlack(dir) {
				lifted = append(lifted, c)
			}
		}
	}
	p.mu.Unlock()
	for _, c := range lifted {
		c.cut()
	}
}

// Hold keeps back everything in both directions while it is on. Afterwards the held frames
// are forwarded in order; none is lost.
func (p *Proxy) Hold(on bool) { p.hold(on, Up, Down) }

// HoldUp is Hold from the client to the server only.
func (p *Proxy) HoldUp(on bool) { p.hold(on, Up) }

// HoldDown is Hold from the server to the client only.
func (p *Proxy) HoldDown(on bool) { p.hold(on, Down) }

func (p *Proxy) hold(on bool, dirs ...Dir) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range dirs {
		switch {
		case on && p.held[dir] == nil:
			p.held[dir] = make(chan struct{})
		case !on && p.held[dir] != nil:
			close(p.held[dir])
			p.held[dir] = nil
		}
	}
}

// SetDelay delays every frame that arrives from now on by up or down. It adds latency and
// does not reduce throughput: frames keep their order and spacing, and many can be under way.
// So the time of an operation, divided by up + down, is its number of round trips.
func (p *Proxy) SetDelay(up, down time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = [2]time.Duration{Up: up, Down: down}
}
