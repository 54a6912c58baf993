package sweep

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
)

// field is the environment of all cells: one server, and an observer's session.
type field struct {
	addr string
	eyes backend.Session
	pace *pace.Meter // of the machine and of the observer's session
	root string
	last atomic.Int64
}

func newField(t *testing.T) *field {
	t.Helper()
	addr := oneServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s, err := backendAt(addr, observing, 0).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	m := pace.Start(t, func() { _ = s.Sync(context.Background(), "/") })
	return &field{addr: addr, eyes: s, pace: m, root: fmt.Sprintf("/sweep-%d", time.Now().UnixNano())}
}

// result is the outcome of a cell.
type result struct {
	spot
	what       string // the frame that was hit
	struck     bool
	violations []string
	late       []string // what took too long on a machine that did other work
	steps      []string // for a report
	ended      map[string]int
	uncertain  int
	solved     int64
	expiries   int  // sessions that the fault has ended
	losses     int  // sessions that were lost without a fault: the machine was slow
	next       bool // the victim continued with another session
	stall      time.Duration
	requests   map[string]int64 // requests of each player
	took       time.Duration
}

// bound is the longest stall that a fault may cause. A broken connection is replaced at once,
// and so is a session that the service has ended, so no player waits for a timeout: the lease
// is less than one. If a session was lost that the service has not ended, the others wait
// until the service ends it.
func (r *result) bound() time.Duration {
	if r.losses > 0 || r.frame == closing {
		return 2*timeout + 2*tick
	}
	return timeout
}

// play runs a cell.
func (f *field) play(r *recipe, s spot) *result {
	began := time.Now()
	x := &cell{
		recipe: r, spot: s, addr: f.addr, eyes: f.eyes, pace: f.pace, lost: f.pace.Lost(),
		ns:    fmt.Sprintf("%s/%d", f.root, f.last.Add(1)),
		by:    make(map[string]*player),
		ended: make(map[string]int),
		state: make(map[string]any),
	}
	x.ctx, x.cancel = context.WithTimeout(context.Background(), limit)
	defer x.cancel()
	armed, disarm := context.WithCancel(context.Background())
	defer disarm()
	for _, name := range append(r.players, "fresh") {
		p := x.join(name)
		if p == nil {
			break
		}
		defer p.proxy.Close()
		x.by[name] = p
		if name == s.who {
			x.strike = p.arm(armed, s)
		}
	}
	for _, name := range r.players {
		if x.going() {
			x.by[name].open()
		}
	}
	if x.going() {
		r.play(x)
		x.step("the end")
	}
	out := &result{spot: s, requests: make(map[string]int64)}
	if x.going() {
		x.clean("while the clients live", limit, false, false)
	}
	for _, name := range r.players {
		out.requests[name] = x.by[name].seen[request].Load()
	}
	if x.going() {
		x.again()
	}
	for _, p := range x.by {
		p.mu.Lock()
		if n := len(p.sessions); n > 1 && p.name == s.who {
			out.next = true
		}
		p.mu.Unlock()
		out.losses += p.losses()
	}
	x.end()
	if x.strike != nil {
		disarm()
		<-x.strike.done
		out.struck = x.strike.struck()
		if out.struck {
			out.what = x.strike.what
			if s.fault.expires() {
				out.expiries = 1
				out.losses = max(out.losses-1, 0)
			}
			out.stall = x.stall(x.strike.at)
			x.judge(out.stall, out.bound(), "without progress after the fault")
		}
	}
	for _, p := range x.by {
		out.solved += p.solved.Load()
	}
	out.violations, out.late, out.ended, out.uncertain, out.steps = x.violations, x.late, x.ended, x.uncertain, x.last
	out.took = time.Since(began)
	return out
}

// again makes a fresh client use the recipe, at once: nodes left by the other clients, which
// are still open, would block it for ever.
func (x *cell) again() {
	p := x.by["fresh"]
	if !p.open() {
		return
	}
	x.fresh(x, p)
	x.step("fresh has succeeded")
	if x.going() {
		x.clean("after a fresh client", limit, false, true)
	}
}

// end closes the clients.
func (x *cell) end() {
	for _, p := range x.by {
		if p.c == nil {
			continue
		}
		began := time.Now()
		if err := p.c.Close(); err != nil {
			x.violation("close %s: %v", p.name, err)
		}
		x.judge(time.Since(began), 2*timeout, "to close "+p.name)
	}
	if x.going() {
		// A session whose close request was lost lasts for its timeout.
		began := time.Now()
		x.clean("after all clients are closed", limit, true, true)
		x.judge(time.Since(began), 2*timeout+2*tick, "until no node was left")
	}
}

// stall returns the longest time without a step since the fault.
func (x *cell) stall(since time.Time) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	var most time.Duration
	for _, at := range x.steps {
		if at.After(since) {
			most = max(most, at.Sub(since))
			since = at
		}
	}
	return most
}
