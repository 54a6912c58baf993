package simulation_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// arbiter makes a run a function of its seed. Every call of every client stops at it, and so
// does every actor between two actions. When nothing moves any more, the arbiter draws one
// thing that happens next: a call reaches the store, a message of the store reaches a client,
// an actor continues, time passes, a fault occurs. Then it lets the client concerned react
// until nothing moves again. So of the things that could happen at the same time, whose order
// the scheduler would choose, one happens at a time.
//
// Candidates for a choice are first sorted in an order that does not depend on their arrival.
type arbiter struct {
	t       testing.TB
	seed    uint64
	draw    *rand.Rand
	st      *memory.Store
	truth   backend.Session // sees the store as it is, past the arbiter
	peers   []*peer
	direct  bool     // sessions are opened at once: the arbiter itself does it
	record  []string // of the history, if not nil
	verbose bool

	mu      sync.Mutex
	arrived []*simCall        // since the latest step
	said    []string          // likewise, by actors
	knows   map[string]bool   // the deletions that clients have learned of
	drawing []*simCall        // calls that ask for a name
	names   map[string]string // of the actors, by goroutine
	wake    chan struct{}     // of capacity 1: something has arrived

	now       atomic.Int64   // the number of the step
	waiting   []*simCall     // in an order that the seed determines
	hash      uint64         // of all that has happened
	ties      int            // calls in one step that could not be distinguished
	applied   func(*simCall) // is called for each commit that was applied
	committed func(*simCall) // is called for each commit that the store has answered
	uncertain int            // commits that were reported as uncertain
}

func newArbiter(t testing.TB, seed uint64, o *memory.Options) *arbiter {
	x := &arbiter{t: t, seed: seed, draw: rand.New(rand.NewPCG(seed, 0)), st: memory.New(o), wake: make(chan struct{}, 1), names: make(map[string]string), knows: make(map[string]bool)}
	var err error
	if x.truth, err = x.st.Open(context.Background()); err != nil {
		t.Fatal(err)
	}
	return x
}

// pass lets the caller wait until the arbiter lets it continue, and returns the error of the
// call.
func (x *arbiter) pass(ctx context.Context, c *simCall) error {
	if err := backend.ContextError(ctx); err != nil {
		return c.wrap(err)
	}
	c.done = make(chan struct{})
	x.mu.Lock()
	x.arrived = append(x.arrived, c)
	x.mu.Unlock()
	x.rouse()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	default:
	}
	c.abandoned = true
	err := backend.ContextError(ctx)
	if c.op == "commit" {
		err = backend.Uncertain(err) // it may still be applied
	}
	return c.wrap(err)
}

func (x *arbiter) rouse() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// tell adds to the history. Only the arbiter calls it.
func (x *arbiter) tell(parts ...string) {
	x.hash = addHash(x.hash, parts)
	if x.verbose || x.record != nil {
		line := fmt.Sprintf("%4d %v %s", x.now.Load(), time.Now().Format("05.000000000"), strings.Join(parts, " "))
		if x.record != nil {
			x.record = append(x.record, line)
		} else {
			x.t.Log(line)
		}
	}
}

// say adds to the history what an actor has found out.
func (x *arbiter) say(who, what string) {
	x.mu.Lock()
	x.said = append(x.said, who+": "+what)
	x.mu.Unlock()
}

// settle lets the clients react to the latest step, and takes their new calls. A little time
// passes, so that timers that two steps have started do not fire at the same moment.
func (x *arbiter) settle() {
	time.Sleep(time.Duration(1 + x.draw.IntN(4000)))
	synctest.Wait()
	x.absorb()
}

func (x *arbiter) absorb() {
	x.name()
	x.mu.Lock()
	arrived, said := x.arrived, x.said
	x.arrived, x.said = nil, nil
	x.mu.Unlock()
	select {
	case <-x.wake:
	default:
	}
	if len(said) > 1 {
		slices.SortStableFunc(said, func(a, b string) int {
			a, _, _ = strings.Cut(a, ":")
			b, _, _ = strings.Cut(b, ":")
			return cmp.Compare(a, b)
		})
	}
	for _, s := range said {
		x.tell(s)
	}
	if len(arrived) > 1 {
		keys := make(map[*simCall]string, len(arrived))
		for _, c := range arrived {
			keys[c] = c.key()
		}
		slices.SortFunc(arrived, func(a, b *simCall) int { return cmp.Compare(keys[a], keys[b]) })
		// Calls that cannot be distinguished continue together. (Of two commits the first has
		// another outcome than the second, so that would not help.)
		kept := arrived[:1]
		for _, c := range arrived[1:] {
			first := kept[len(kept)-1]
			if keys[c] != keys[first] {
				kept = append(kept, c)
				continue
			}
			x.tell("tie:", keys[c])
			if c.op == "commit" || c.from == nil {
				x.ties++
				kept = append(kept, c)
			} else {
				first.twins = append(first.twins, c)
			}
		}
		arrived = kept
	}
	for _, c := range arrived {
		if c.from == nil {
			continue
		}
		x.tell("asks:", c.key())
	}
	x.waiting = append(x.waiting, arrived...)
	x.collect()
	for _, p := range x.peers {
		p.wires = slices.DeleteFunc(p.wires, func(w *wire) bool {
			return w.over && len(w.in) == 0 && !slices.ContainsFunc(x.waiting, func(c *simCall) bool { return c.w == w })
		})
	}
}

// collect takes the events that the store has sent, and finds the lost sessions.
func (x *arbiter) collect() {
	for _, p := range x.peers {
		for _, w := range p.wires {
			if !w.over && w.Session.Err() != nil {
				w.over = true
				x.tell("over:", p.name, w.Session.Err().Error())
				x.fail(w, w.Session.Err(), true)
			}
			w.collectTrees()
			for _, inner := range w.ws.Take() {
				if a := w.outer[inner]; a != nil {
					delete(w.outer, inner)
					w.in = append(w.in, simMessage{w: a.watch, kind: inner.Kind(), path: a.path})
				}
			}
		}
	}
}

// left is gone for callers that do not hold the mutex.
func (x *arbiter) left(c *simCall) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return c.gone()
}

// gone reports whether no caller waits for the call.
func (c *simCall) gone() bool {
	for _, t := range c.twins {
		if !t.abandoned {
			return false
		}
	}
	return c.abandoned
}

// answer lets the callers continue that wait for the call.
func (c *simCall) answer() {
	for _, t := range c.twins {
		if c.err != nil {
			t.err = c.err
		}
		close(t.done)
	}
	close(c.done)
}

// movable reports whether the first message of w can go on its way.
func (w *wire) movable() bool {
	if w.p.held > 0 || len(w.in) == 0 {
		return false
	}
	return w.over || !w.p.cut || w.in[0].c != nil
}

// able reports whether the i-th call can reach the store now. Calls of a session
// are handled in the order in which they were made as far as one had returned
// before the next began, and Sync comes behind all commits.
func (x *arbiter) able(i int) bool {
	c := x.waiting[i]
	switch {
	case c.after != "":
		return !x.busy(c.after)
	case c.from == nil:
		return true
	case c.op == "close":
		return c.from.held == 0
	}
	if c.from.held > 0 || c.from.cut {
		return false
	}
	for _, earlier := range x.waiting[:i] {
		if earlier.w == c.w && earlier.op == "commit" && (c.op == "sync" || x.left(earlier)) {
			return false
		}
	}
	return true
}

// busy reports whether an actor waits for a reply.
func (x *arbiter) busy(name string) bool {
	if slices.ContainsFunc(x.waiting, func(c *simCall) bool { return c.by == name }) {
		return true
	}
	for _, p := range x.peers {
		for _, w := range p.wires {
			if slices.ContainsFunc(w.in, func(m simMessage) bool { return m.c != nil && m.c.by == name }) {
				return true
			}
		}
	}
	return false
}

// step does one thing that can be done now, and reports whether there was any.
func (x *arbiter) step() bool {
	x.mu.Lock()
	x.waiting = slices.DeleteFunc(x.waiting, func(c *simCall) bool { return c.gone() && c.op != "commit" })
	x.mu.Unlock()
	n, held := 0, false
	for _, p := range x.peers {
		held = held || p.held > 0
		p.held = max(0, p.held-1)
	}
	for i := range x.waiting {
		if x.able(i) {
			n++
		}
	}
	for _, p := range x.peers {
		for _, w := range p.wires {
			if w.movable() {
				n++
			}
		}
	}
	if n == 0 {
		return held
	}
	x.now.Add(1)
	n = x.draw.IntN(n)
	for i, c := range x.waiting {
		if !x.able(i) {
			continue
		}
		if n--; n < 0 {
			x.waiting = slices.Delete(x.waiting, i, i+1)
			x.serve(c)
			return true
		}
	}
	for _, p := range x.peers {
		for _, w := range p.wires {
			if !w.movable() {
				continue
			}
			if n--; n < 0 {
				x.deliver(w)
				return true
			}
		}
	}
	panic("unreachable")
}

// serve lets a call reach the store.
func (x *arbiter) serve(c *simCall) {
	if c.from == nil {
		close(c.done)
		return
	}
	x.tell("store:", c.from.name, c.op, c.path)
	c.serve()
	for _, t := range c.twins {
		t.serve()
	}
	if c.op == "commit" && c.err == nil && x.applied != nil {
		x.applied(c)
	}
	if c.op == "commit" && x.committed != nil {
		x.committed(c)
	}
	switch c.op {
	case "open", "close":
		c.answer()
	default:
		x.collectReply(c)
	}
}

// collectReply puts the reply behind the events that the store has sent before.
func (x *arbiter) collectReply(c *simCall) {
	x.collect()
	c.w.in = append(c.w.in, simMessage{c: c})
}

// deliver lets the first message reach the client.
func (x *arbiter) deliver(w *wire) {
	m := w.in[0]
	w.in = slices.Delete(w.in, 0, 1)
	if m.tree != nil {
		x.tell("tree:", w.p.name, m.change.Kind.String(), m.path)
		if m.change.Kind == 0 {
			m.tree.watch.Over()
		} else {
			m.tree.watch.Tell(m.change)
		}
		return
	}
	if m.c == nil {
		x.tell("event:", w.p.name, m.kind.String(), m.path)
		if m.kind == backend.Deleted {
			x.mu.Lock()
			x.knows[w.p.name+m.path] = true
			x.mu.Unlock()
		}
		m.w.Fire(m.kind)
		return
	}
	if x.left(m.c) {
		x.tell("nobody:", w.p.name)
		return
	}
	if m.c.op == "commit" && errors.Is(m.c.err, backend.ErrUncertain) {
		x.uncertain++
	}
	x.tell("reply:", w.p.name, m.c.op, m.c.path, m.c.reply())
	m.c.answer()
}

// idle lets time pass until a call arrives, or for d.
func (x *arbiter) idle(d time.Duration) (arrived bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-x.wake:
		arrived = true
	case <-t.C:
	}
	synctest.Wait()
	x.absorb()
	return arrived
}

// stuck lists the waiting calls, when nothing moves any more.
func (x *arbiter) stuck() string {
	var b strings.Builder
	for _, c := range x.waiting {
		fmt.Fprintf(&b, "; %s", c.key())
	}
	for _, p := range x.peers {
		for _, w := range p.wires {
			fmt.Fprintf(&b, "; %s cut %t held %d has %d messages", p.name, p.cut, p.held, len(w.in))
		}
	}
	return b.String()
}

// name lets the callers that ask for a name continue, one after the other.
func (x *arbiter) name() {
	var list []*simCall
	for {
		x.mu.Lock()
		list = append(list, x.drawing...)
		x.drawing = nil
		x.mu.Unlock()
		if len(list) == 0 {
			return
		}
		slices.SortStableFunc(list, func(a, b *simCall) int { return cmp.Compare(a.path, b.path) })
		if len(list) > 1 && list[0].path == list[1].path {
			x.ties++
			x.tell("tie:", list[0].path)
		}
		close(list[0].done)
		list = list[1:]
		synctest.Wait()
	}
}

// addHash adds texts to an FNV hash.
func addHash(h uint64, parts []string) uint64 {
	for _, p := range parts {
		for i := range len(p) {
			h = (h ^ uint64(p[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return h
}

// mix returns a hash of a number and some texts.
func mix(v uint64, parts ...string) uint64 {
	v = addHash(v, parts)
	v ^= v >> 30
	v *= 0xbf58476d1ce4e5b9
	v ^= v >> 27
	v *= 0x94d049bb133111eb
	return v ^ v>>31
}

// drawer returns the source of random numbers of one client, which several actors may share. The
// arbiter lets one goroutine at a time draw a name, in the order of the purposes and actors. So
// goroutines that are about to do the same are in an order that the seed decides. A number that is
// not for a name depends on the time only.
func (x *arbiter) drawer(name string, shared *bool) func(what string) uint64 {
	n := make(map[string]uint64) // one draws at a time
	seed := mix(x.seed, name)
	return func(what string) uint64 {
		switch what {
		case "pause", "spread", "pick", "open":
			return mix(seed^uint64(time.Now().UnixNano()), what)
		}
		c := &simCall{op: "draw", path: name + " " + what, done: make(chan struct{})}
		if *shared {
			c.path += x.self() // which takes time
		}
		x.mu.Lock()
		x.drawing = append(x.drawing, c)
		x.mu.Unlock()
		x.rouse()
		<-c.done
		n[what]++
		return mix(seed+n[what]<<32, what)
	}
}

// self returns the name of the actor that runs in this goroutine, or "".
func (x *arbiter) self() string {
	id := goroutine()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.names[id]
}

// goroutine returns the number of this goroutine: inside the library, nothing else distinguishes an
// actor's calls from another's.
func goroutine() string {
	var buf [40]byte
	text := buf[len("goroutine "):runtime.Stack(buf[:], false)]
	return string(text[:bytes.IndexByte(text, ' ')])
}
