package main

import (
	"sync"
	"time"

	"github.com/go-coord/coord/internal/zkproxy"
)

// A tally counts the traffic through the proxies of a place, without pings and connects.
type tally struct {
	oneWay time.Duration

	mu sync.Mutex
	tallied
	chain   chain
	events  map[proxied]int      // by receiver
	writers map[proxied]struct{} // connections that wrote
}

// proxied identifies a connection: the proxy and the number of the connection there.
type proxied struct{ proxy, conn int }

type tallied struct {
	requests, events int
	up, down         int64
	frames           int
	// Events of clients that wrote nothing themselves: the event of a client's own deletion
	// does not wake it.
	woken, wakeUps int
}

func (t *tally) frame(proxy int, f zkproxy.Frame, now time.Time) {
	switch f.Opcode {
	case zkproxy.OpPing, zkproxy.OpConnect, zkproxy.OpClose:
		return
	}
	who := proxied{proxy, f.Conn}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frames++
	if f.Dir == zkproxy.Up {
		t.requests++
		t.chain.asked(who, f.Xid, now, t.oneWay)
		t.up += int64(f.Size)
		switch f.Opcode {
		case zkproxy.OpMulti, zkproxy.OpDelete:
			t.writers[who] = struct{}{}
		}
		return
	}
	t.down += int64(f.Size)
	if f.Opcode == zkproxy.OpEvent {
		t.tallied.events++
		t.events[who]++
		t.chain.told(now, t.oneWay)
		return
	}
	t.chain.answered(who, f.Xid, now, t.oneWay)
}

func (t *tally) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tallied = tallied{}
	t.events = make(map[proxied]int)
	t.writers = make(map[proxied]struct{})
	t.chain.begin()
}

// beginStep starts the count of round trips from zero.
func (t *tally) beginStep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chain.begin()
}

// trips returns the number of sequential round trips since the begin of the step, or the
// latest reset.
func (t *tally) trips() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chain.arrive(time.Now())
	return float64(t.chain.level)
}

func (t *tally) get() tallied {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.tallied
	for who, n := range t.events {
		if _, wrote := t.writers[who]; !wrote {
			r.woken++
			r.wakeUps += n
		}
	}
	return r
}

// A chain counts sequential round trips by cause and not by time, so that a busy machine does
// not change the count: a request that is sent after a reply has arrived comes after it. The
// delay of the proxies makes that certain: requests that do not wait for each other are sent
// long before the first of their replies arrives.
type chain struct {
	level   int // length of the chain of replies and events that have arrived
	pending map[asking]int
	sent    []arrival // requests, at the servers
	back    []arrival // replies and events, at the clients
}

type asking struct {
	who proxied
	xid int32
}

type arrival struct {
	at    time.Time
	level int
}

// begin clears the chain and the requests under way.
func (c *chain) begin() { *c = chain{pending: make(map[asking]int)} }

// arrive records the replies that have reached their clients.
func (c *chain) arrive(now time.Time) {
	for len(c.back) > 0 && !c.back[0].at.After(now) {
		c.level = max(c.level, c.back[0].level)
		c.back = c.back[1:]
	}
}

func (c *chain) asked(who proxied, xid int32, now time.Time, oneWay time.Duration) {
	c.arrive(now)
	c.pending[asking{who, xid}] = c.level + 1
	c.sent = append(c.sent, arrival{now.Add(oneWay), c.level + 1})
}

func (c *chain) answered(who proxied, xid int32, now time.Time, oneWay time.Duration) {
	if level, ok := c.pending[asking{who, xid}]; ok {
		delete(c.pending, asking{who, xid})
		c.back = append(c.back, arrival{now.Add(oneWay), level})
	}
}

// told records an event. Its cause is one of the requests that have reached the servers;
// nothing else is known about the waiting client.
func (c *chain) told(now time.Time, oneWay time.Duration) {
	level := 0
	for len(c.sent) > 0 && !c.sent[0].at.After(now) {
		level = max(level, c.sent[0].level)
		c.sent = c.sent[1:]
	}
	if level > 0 {
		c.back = append(c.back, arrival{now.Add(oneWay), level})
	}
}
