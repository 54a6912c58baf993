package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/trace"
)

// recipe is one scenario.
type recipe struct {
	name    string
	players []string
	without backend.Features // that the service lacks
	// play is the scenario. It begins when each player has a client. When it returns, every
	// part has ended and nothing is held.
	play func(x *cell)
	// fresh completes the recipe with one new client, on the paths of play.
	fresh func(x *cell, p *player)
	// answered is called after each commit of a player; nil: never.
	answered func(p *player, c backendtest.Call, err error)
	// rests describes nodes that must not be left when all players are idle, or returns "".
	// Ephemeral nodes must never be left. Nil means that no other node matters.
	rests func(paths []string) string
}

// cell is one run of a scenario.
type cell struct {
	*recipe
	spot   spot
	addr   string
	eyes   backend.Session // an observer's session
	pace   *pace.Meter
	lost   time.Duration // that the machine had lost before the cell
	ns     string
	ctx    context.Context // ends when the cell is stuck or has failed
	cancel context.CancelFunc
	by     map[string]*player
	strike *strike

	mu         sync.Mutex
	violations []string
	late       []string
	ended      map[string]int // the documented errors of calls
	uncertain  int            // those of them that match ErrUncertain
	steps      []time.Time
	last       []string
	state      map[string]any // objects of the scenario
}

// player is a client of a cell, with a proxy of its own.
type player struct {
	x       *cell
	name    string
	proxy   ensemble.Line
	under   backend.Backend
	c       *coord.Client
	session atomic.Int64 // its latest session, by the server's replies
	seen    [4]atomic.Int64
	waits   atomic.Int64 // number of calls that have reported that they wait
	grants  atomic.Int64 // number of times that it has entered a resource
	nexts   atomic.Int64 // number of its commits that have acknowledged an item and claimed the next one
	solved  atomic.Int64 // requests of unknown outcome that the library has resolved

	mu       sync.Mutex
	sessions []backend.Session
}

// Open counts the sessions of a client.
func (p *player) Open(ctx context.Context) (backend.Session, error) {
	s, err := p.under.Open(ctx)
	if err == nil {
		p.mu.Lock()
		p.sessions = append(p.sessions, s)
		p.mu.Unlock()
	}
	return s, err
}

// lost reports whether the player has lost a session, or will lose it soon.
func (p *player) lost() bool {
	k := p.x.strike
	if k != nil && k.p == p && k.fault.expires() && k.struck() {
		return true
	}
	return p.losses() > 0
}

// lostWith reports whether the player has lost the session of h, or will lose it soon.
func (p *player) lostWith(h *coord.Hold) bool {
	k := p.x.strike
	if k != nil && k.p == p && k.fault.expires() && k.struck() && k.session == h.Session() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.sessions, func(s backend.Session) bool { return s.ID() == h.Session() && s.Err() != nil })
}

// losses counts the lost sessions.
func (p *player) losses() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.sessions {
		if s.Err() != nil {
			n++
		}
	}
	return n
}

// lossy reports whether any player has lost a session.
func (x *cell) lossy() bool {
	for _, p := range x.by {
		if p.lost() {
			return true
		}
	}
	return false
}

// join adds a player without a client.
func (x *cell) join(name string) *player {
	proxy, err := ensemble.NewLine(x.addr)
	if err != nil {
		x.violation("no proxy: %v", err)
		return nil
	}
	p := &player{x: x, name: name, proxy: proxy}
	p.under = backendAt(proxy.Addr(), timeout, x.without)
	if x.answered != nil {
		p.under = backendtest.Intercept(p.under, backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			x.answered(p, c, err)
			return err
		}})
	}
	proxy.OnFrame(func(f zkproxy.Frame) {
		if f.Dir == zkproxy.Up {
			if what, ok := kind(f); ok {
				p.seen[what].Add(1)
			}
		} else if f.Opcode == zkproxy.OpConnect && f.Session != 0 && f.Err == 0 {
			p.session.Store(f.Session)
		}
	})
	return p
}

// open gives the player a client.
func (p *player) open() bool {
	c, err := coord.Open(p.x.ctx, p, &coord.Options{
		Namespace: p.x.ns,
		Trace: func(_ context.Context, e trace.Event) {
			switch e.(type) {
			case trace.WaitBegan:
				p.waits.Add(1)
			case trace.OutcomeResolved:
				p.solved.Add(1)
			}
		},
	})
	p.c = c
	return p.ok("open", err)
}

// ok records the result of a call. If the call failed with an error that is allowed after the
// loss of a session, and a session was lost, the scenario continues with false. Any other
// error is a violation and ends the cell.
func (p *player) ok(what string, err error, may ...error) bool {
	x := p.x
	if err == nil {
		x.step(p.name + " " + what)
		return true
	}
	x.step(fmt.Sprintf("%s %s: %v", p.name, what, err))
	for _, m := range may {
		if errors.Is(err, m) && p.lost() {
			x.mu.Lock()
			x.ended[what+": "+m.Error()]++
			if errors.Is(err, coord.ErrUncertain) {
				x.uncertain++
			}
			x.mu.Unlock()
			return false
		}
	}
	x.violation("%s %s: %v", p.name, what, err)
	return false
}

// gave is ok for the result of Release. If a reply was lost, and the node is deleted, the
// client cannot know which request deleted it.
func (p *player) gave(what string, err error) bool {
	if !errors.Is(err, coord.ErrUncertain) || errors.Is(err, coord.ErrLost) {
		return p.ok(what, err, coord.ErrLost)
	}
	p.x.mu.Lock()
	p.x.uncertain++
	p.x.mu.Unlock()
	p.x.step(fmt.Sprintf("%s %s: %v", p.name, what, err))
	return true
}

// step records progress.
func (x *cell) step(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.steps = append(x.steps, time.Now())
	x.last = append(x.last, what)
}

// violation records a broken guarantee and ends the cell. Consequences of that end are not
// violations of their own.
func (x *cell) violation(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.violations) > 0 && x.ctx.Err() != nil {
		return
	}
	what := fmt.Sprintf(format, args...)
	if x.ctx.Err() != nil {
		what = "stuck: " + what
	}
	x.violations = append(x.violations, what)
	x.cancel()
}

// judge reports a duration beyond its bound, unless the machine has done other work for so long since
// the cell began.
func (x *cell) judge(d, bound time.Duration, what string) {
	switch lost := x.pace.Lost() - x.lost; {
	case d <= bound:
	case d-lost <= bound:
		x.mu.Lock()
		x.late = append(x.late, fmt.Sprintf("%v %s, want at most %v; the machine did other work for %v", d, what, bound, lost))
		x.mu.Unlock()
	default:
		x.violation("%v %s, want at most %v; the machine did other work for %v", d, what, bound, lost)
	}
}

// going reports whether the cell still runs.
func (x *cell) going() bool { return x.ctx.Err() == nil }

// until polls a condition that has no signal.
func (x *cell) until(what string, cond func() bool) bool {
	for !cond() {
		t := time.NewTimer(2 * time.Millisecond)
		select {
		case <-t.C:
		case <-x.ctx.Done():
			t.Stop()
			x.violation("never happened: %s", what)
			return false
		}
	}
	x.step(what)
	return true
}

// await waits for a channel.
func await[T any](x *cell, what string, ch <-chan T) (v T, ok bool) {
	select {
	case v, ok = <-ch:
		x.step(what)
		return v, ok
	case <-x.ctx.Done():
		x.violation("never came: %s", what)
		return v, false
	}
}

// together runs the parts of a scenario concurrently and joins them.
func (x *cell) together(parts ...func()) {
	var wg sync.WaitGroup
	for _, f := range parts {
		wg.Go(f)
	}
	wg.Wait()
}

// rest is called in the middle of a scenario. If the fault hits a ping or a reconnection,
// rest waits for it.
func (x *cell) rest() {
	k := x.strike
	if k == nil {
		return
	}
	switch {
	case k.frame == ping:
	case k.frame == connect && k.n > 1:
		k.p.proxy.Cut()
	default:
		return
	}
	await(x, "the fault at rest", k.hit)
	await(x, "the end of the fault", k.done)
	x.until("contact is back", k.p.connected)
	// Waiters have to check again now. This gives a waiter that continues without a check time to
	// show.
	before, since := k.p.seen[request].Load(), time.Now()
	x.until("checked again, or not", func() bool {
		return k.p.seen[request].Load() > before || time.Since(since) > 50*time.Millisecond
	})
}

// connected reports whether the player's latest session has contact.
func (p *player) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	phase, _ := p.sessions[len(p.sessions)-1].Status()
	return phase == backend.PhaseConnected
}

// tree lists all nodes below the namespace except the journal.
func (x *cell) tree(ctx context.Context) (all map[string]backend.Stat, err error) {
	all = make(map[string]backend.Stat)
	var walk func(path string) error
	walk = func(path string) error {
		names, stat, err := x.eyes.Children(ctx, path, nil)
		if errors.Is(err, backend.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		all[strings.TrimPrefix(path, x.ns)] = stat
		for _, name := range names {
			if err := walk(path + "/" + name); err != nil {
				return err
			}
		}
		return nil
	}
	return all, walk(x.ns)
}

// paths lists the nodes below the namespace in order.
func (x *cell) paths() []string {
	all, err := x.tree(x.ctx)
	if err != nil {
		x.violation("list the tree: %v", err)
	}
	return slices.Sorted(maps.Keys(all))
}

// count counts the nodes whose path contains each of the parts.
func (x *cell) count(parts ...string) int {
	n := 0
	for _, p := range x.paths() {
		if !slices.ContainsFunc(parts, func(s string) bool { return !strings.Contains(p, s) }) {
			n++
		}
	}
	return n
}

const journal = "/_coord/"

// litter describes nodes that exist and should not. With all, the journal counts too.
func (x *cell) litter(ctx context.Context, all, rests bool) string {
	tree, err := x.tree(ctx)
	if err != nil {
		return err.Error()
	}
	for _, p := range slices.Sorted(maps.Keys(tree)) {
		if tree[p].EphemeralOwner != 0 && (all || !strings.HasPrefix(p, journal)) {
			return "left behind: " + p
		}
	}
	if rests && x.rests != nil {
		return x.rests(slices.Sorted(maps.Keys(tree)))
	}
	return ""
}

// clean waits until no such node is left.
func (x *cell) clean(when string, within time.Duration, all, rests bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), within)
	defer cancel()
	var left string
	for ctx.Err() == nil {
		if left = x.litter(ctx, all, rests); left == "" {
			return
		}
		t := time.NewTimer(3 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	x.violation("%s: %s", when, left)
}

// on returns the object with this name, and makes it if it does not exist.
func on[T any](x *cell, name string, make func() T) T {
	x.mu.Lock()
	defer x.mu.Unlock()
	if v, ok := x.state[name]; ok {
		return v.(T)
	}
	v := make()
	x.state[name] = v
	return v
}
