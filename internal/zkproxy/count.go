package zkproxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Counts are totals of the frames that arrived at the proxy, forwarded or not, except those
// swallowed by a black hole. A frame is counted before it is forwarded, so when a client has
// its reply, both the request and the reply are counted.
type Counts struct {
	Ops         map[int32]int // requests by opcode, pings and connects included
	AllReplies  int           // pings and connects included
	Replies     int           // likewise without those that Requests leaves out
	Events      int
	BytesUp     int64
	BytesDown   int64
	Connections int // accepted and not refused
}

// Requests is the number of requests without pings, connects and what else belongs to the handshake (OpAuth).
func (c Counts) Requests() int {
	return c.AllRequests() - c.Ops[OpPing] - c.Ops[OpConnect] - c.Ops[OpAuth]
}

// AllRequests is the number of requests with pings and connects.
func (c Counts) AllRequests() int {
	n := 0
	for _, k := range c.Ops {
		n += k
	}
	return n
}

// String lists the requests by name, for logs.
func (c Counts) String() string {
	var b strings.Builder
	for _, op := range slices.Sorted(maps.Keys(c.Ops)) {
		fmt.Fprintf(&b, "%s %d, ", OpName(op), c.Ops[op])
	}
	fmt.Fprintf(&b, "replies %d, events %d, bytes %d up %d down, connections %d", c.Replies, c.Events, c.BytesUp, c.BytesDown, c.Connections)
	return b.String()
}

// Count returns the totals since the start or the last ResetCounts.
func (p *Proxy) Count() Counts { return p.counter.get() }

// ResetCounts sets all totals to zero.
func (p *Proxy) ResetCounts() { p.counter.reset() }

type counter struct {
	mu sync.Mutex
	c  Counts
}

func (n *counter) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.c = Counts{Ops: make(map[int32]int)}
}

func (n *counter) get() Counts {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.c
	c.Ops = maps.Clone(c.Ops)
	return c
}

func (n *counter) connection() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.c.Connections++
}

func (n *counter) frame(f Frame) {
	n.bytes(f.Dir, f.Size)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case f.Dir == Up:
		n.c.Ops[f.Opcode]++
	case f.isEvent():
		n.c.Events++
	default:
		n.c.AllReplies++
		if f.Opcode != OpPing && f.Opcode != OpConnect && f.Opcode != OpAuth {
			n.c.Replies++
		}
	}
}

func (n *counter) bytes(dir Dir, k int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if dir == Up {
		n.c.BytesUp += int64(k)
	} else {
		n.c.BytesDown += int64(k)
	}
}
