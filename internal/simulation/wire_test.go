package simulation_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// peer is one client's way to the store, through the arbiter. It is the backend
// that the client is opened with.
type peer struct {
	x     *arbiter
	name  string
	link  *memory.Link
	wires []*wire // of sessions whose calls or watches are under way
	cut   bool    // partitioned
	held  int     // for so many steps no message of it moves
}

// actorKey is for the name of an actor in the context of its calls.
type actorKey struct{}

// wire is a session whose calls stop at the arbiter. The replies and events of the store reach
// the client one at a time, in the order in which the store sent them.
type wire struct {
	backend.Session // the store's
	p               *peer
	ws              *backend.WatchSet            // the store's halves of watches
	outer           map[*backend.Watch]*simWatch // the watches of the client, by the store's halves
	trees           []*simTree                   // that the store has armed
	in              []simMessage
	over            bool
}

// A simMessage is on its way from the store to a client: an event or a reply.
type simMessage struct {
	w    *backend.Watch
	kind backend.Kind
	path string

	tree   *simTree // it is over if change is zero
	change backend.TreeChange

	c *simCall
}

// A simCall waits for the arbiter: a call of a client, or the next
// step of an actor.
type simCall struct {
	from  *peer // nil for an actor
	w     *wire // nil for an actor and for Open
	op    string
	path  string
	ops   []backend.Op
	since int64 // of an arm
	arms  []*simWatch
	tree  *simTree
	reads []backend.Read
	twins []*simCall // that came with it and are the same

	by        string // the actor, if it is known
	after     string // an actor: this continues only while that actor waits for no reply, so that it sees one event at a time
	abandoned bool   // the caller has gone; guarded by the arbiter's mutex
	done      chan struct{}

	// The reply, before done is closed.
	data    []byte
	stat    backend.Stat
	names   []string
	results []backend.Result
	many    []backend.ReadResult
	session backend.Session
	err     error
}

// simWatch is a watch of a call.
type simWatch struct {
	c        *simCall
	path     string
	children bool // of an arm
	watch    *backend.Watch
	inner    *backend.Watch // the store's half, guarded by the arbiter's mutex
	armed    bool
}

// simTree is the tree watch of a call.
type simTree struct {
	c     *simCall
	watch *backend.TreeWatch
	inner *backend.TreeWatch // the store's half, guarded by the arbiter's mutex
	armed bool
}

// key distinguishes the calls that arrive in one step.
func (c *simCall) key() string {
	var b []byte
	if c.from != nil {
		b = append(b, c.from.name...)
	}
	b = append(append(append(append(b, ' '), c.op...), ' '), c.path...)
	for _, op := range c.ops {
		b = append(append(append(append(b, ' '), op.Kind.String()...), ' '), op.Path...)
		b = append(append(b, ' '), op.Data...)
		b = strconv.AppendInt(b, int64(op.Version), 10)
	}
	for _, a := range c.arms {
		b = append(append(b, " watched "...), a.path...)
	}
	for _, r := range c.reads {
		b = strconv.AppendBool(append(append(append(b, ' '), r.Path...), ' '), r.Children)
	}
	b = append(append(b, ' '), c.by...)
	if c.w != nil {
		b = strconv.AppendInt(append(b, ' '), c.w.ID(), 16)
	}
	return string(b)
}

// reply is what the store has answered, for the history.
func (c *simCall) reply() string {
	b := strconv.AppendInt(nil, c.stat.Czxid, 10)
	b = append(strconv.AppendInt(append(b, ' '), c.stat.Mzxid, 10), ' ')
	b = append(b, c.data...)
	for _, name := range c.names {
		b = append(append(b, ' '), name...)
	}
	for _, res := range c.results {
		b = append(append(b, ' '), res.Path...)
		b = strconv.AppendInt(append(b, ' '), res.Stat.Mzxid, 10)
	}
	for _, r := range c.many {
		b = strconv.AppendInt(append(b, ' '), r.Stat.Mzxid, 10)
		b = append(append(b, ' '), r.Data...)
		b = append(append(b, ' '), strings.Join(r.Names, " ")...)
	}
	if c.err != nil {
		b = append(append(b, ' '), c.err.Error()...)
	}
	return string(b)
}

// seen is the call as hooks see it.
func (c *simCall) seen(s backend.Session) backendtest.Call {
	seen := backendtest.Call{Session: s, Op: c.op, Path: c.path, Ops: c.ops, Reads: c.reads}
	if c.tree != nil {
		seen.Tree = c.tree.watch
	}
	if c.op == "arm" {
		for _, a := range c.arms {
			seen.Targets = append(seen.Targets, backend.Target{Path: a.path, Children: a.children, Watch: a.watch})
		}
	}
	return seen
}

// wrap is the error of a call, as the contract has it.
func (c *simCall) wrap(err error) error {
	var e *backend.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	e = &backend.Error{Op: c.op, Path: c.path, Err: err}
	if c.op == "commit" {
		e.Index = -1
		if len(c.ops) == 1 {
			e.Op = c.ops[0].Kind.String()
		}
	}
	return e
}

func (p *peer) Open(ctx context.Context) (backend.Session, error) {
	p.x.mu.Lock()
	direct := p.x.direct
	p.x.mu.Unlock()
	if direct {
		s, err := p.link.Open(ctx)
		if err != nil {
			return nil, err
		}
		return p.wire(s), nil
	}
	c := &simCall{from: p, op: "open"}
	if err := p.x.pass(ctx, c); err != nil {
		return nil, err
	}
	return c.session, nil
}

func (p *peer) wire(s backend.Session) *wire {
	w := &wire{Session: s, p: p, ws: backend.NewWatchSet(), outer: make(map[*backend.Watch]*simWatch)}
	p.wires = append(p.wires, w)
	return w
}

func (w *wire) call(ctx context.Context, c *simCall) error {
	c.w, c.from = w, w.p
	c.by, _ = ctx.Value(actorKey{}).(string)
	if err := w.Session.Err(); err != nil {
		return c.wrap(err)
	}
	err := w.p.x.pass(ctx, c)
	if err != nil && !(c.op == "exists" && errors.Is(err, backend.ErrNotFound)) {
		for _, a := range c.arms {
			a.watch.Stop()
		}
		if c.tree != nil {
			c.tree.watch.Stop()
		}
	}
	return err
}

// read is a call that may arm a watch.
func (w *wire) read(op, path string, watch *backend.Watch) *simCall {
	c := &simCall{op: op, path: path}
	if watch != nil {
		c.arms = []*simWatch{{c: c, path: path, watch: watch}}
	}
	return c
}

func (w *wire) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	if err := backend.CheckTargets(targets); err != nil {
		return err
	}
	c := &simCall{op: "arm", path: targets[0].Path, since: since}
	for _, t := range targets {
		c.arms = append(c.arms, &simWatch{c: c, path: t.Path, children: t.Children, watch: t.Watch})
	}
	return w.call(ctx, c)
}

func (w *wire) Get(ctx context.Context, path string, watch *backend.Watch) ([]byte, backend.Stat, error) {
	c := w.read("get", path, watch)
	if err := w.call(ctx, c); err != nil {
		return nil, backend.Stat{}, err
	}
	return c.data, c.stat, nil
}

func (w *wire) Exists(ctx context.Context, path string, watch *backend.Watch) (backend.Stat, error) {
	c := w.read("exists", path, watch)
	if err := w.call(ctx, c); err != nil {
		return backend.Stat{}, err
	}
	return c.stat, nil
}

func (w *wire) Children(ctx context.Context, path string, watch *backend.Watch) ([]string, backend.Stat, error) {
	c := w.read("children", path, watch)
	if err := w.call(ctx, c); err != nil {
		return nil, backend.Stat{}, err
	}
	return c.names, c.stat, nil
}

func (w *wire) WatchTree(ctx context.Context, path string, watch *backend.TreeWatch) error {
	if !w.Features().Has(backend.Trees) {
		return w.Session.WatchTree(ctx, path, watch)
	}
	if err := backend.CheckTree(path, watch); err != nil {
		return err
	}
	c := &simCall{op: "watch", path: path}
	c.tree = &simTree{c: c, watch: watch}
	return w.call(ctx, c)
}

func (w *wire) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	if !w.Features().Has(backend.Batches) {
		return w.Session.ReadMany(ctx, reads...)
	}
	if err := backend.CheckReads(reads); err != nil {
		return nil, err
	}
	c := &simCall{op: "read", path: reads[0].Path, reads: slices.Clone(reads)}
	if err := w.call(ctx, c); err != nil {
		return nil, err
	}
	return c.many, nil
}

func (w *wire) Sync(ctx context.Context, path string) error {
	return w.call(ctx, &simCall{op: "sync", path: path})
}

func (w *wire) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if err := backend.CheckOps(ops); err != nil {
		return nil, err
	}
	c := &simCall{op: "commit", path: ops[0].Path, ops: slices.Clone(ops)}
	for i := range c.ops {
		c.ops[i].Data = slices.Clone(c.ops[i].Data) // the caller may reuse it when ctx has ended
	}
	if err := w.call(ctx, c); err != nil {
		return nil, err
	}
	return c.results, nil
}

// Close has no outcome that is worth a wait, but the moment at which the store
// ends the session is the arbiter's to choose.
func (w *wire) Close() error {
	if w.Session.Err() == nil {
		return w.p.x.pass(context.Background(), &simCall{from: w.p, w: w, op: "close"})
	}
	return nil
}

// serve makes a call at the store. The arbiter calls it, with nothing else running.
func (c *simCall) serve() {
	ctx := context.Background()
	if c.op == "open" {
		s, err := c.from.link.Open(ctx)
		if c.err = err; err == nil {
			c.session = c.from.wire(s)
		}
		return
	}
	s := c.w.Session
	inner := make([]*backend.Watch, len(c.arms))
	var targets []backend.Target
	for i, a := range c.arms {
		inner[i] = c.w.ws.New()
		targets = append(targets, backend.Target{Path: a.path, Children: a.children, Watch: inner[i]})
		c.w.outer[inner[i]] = a
	}
	var first *backend.Watch
	if len(inner) > 0 {
		first = inner[0]
	}
	switch c.op {
	case "get":
		c.data, c.stat, c.err = s.Get(ctx, c.path, first)
	case "exists":
		c.stat, c.err = s.Exists(ctx, c.path, first)
	case "children":
		c.names, c.stat, c.err = s.Children(ctx, c.path, first)
	case "arm":
		c.err = s.Arm(ctx, c.since, targets...)
	case "watch":
		c.tree.arm(s)
	case "read":
		c.many, c.err = s.ReadMany(ctx, c.reads...)
	case "sync":
		c.err = s.Sync(ctx, c.path)
	case "commit":
		c.results, c.err = s.Commit(ctx, c.ops...)
	case "close":
		c.err = s.Close()
	}
	failed := c.err != nil && !(c.op == "exists" && errors.Is(c.err, backend.ErrNotFound))
	for i, a := range c.arms {
		if failed {
			inner[i].Stop()
			delete(c.w.outer, inner[i])
			continue
		}
		c.w.p.x.mu.Lock()
		a.inner = inner[i]
		c.w.p.x.mu.Unlock()
		if !a.armed {
			a.armed = a.watch.Arm(func(*backend.Watch) { a.disarm() })
			if !a.armed {
				a.disarm()
			}
		}
	}
}

// arm arms the store's half of a tree watch.
func (a *simTree) arm(s backend.Session) {
	inner := backend.NewTreeWatch(0)
	if a.c.err = s.WatchTree(context.Background(), a.c.path, inner); a.c.err != nil {
		return
	}
	x := a.c.w.p.x
	x.mu.Lock()
	a.inner = inner
	x.mu.Unlock()
	a.c.w.trees = append(a.c.w.trees, a)
	if !a.armed {
		a.armed = a.watch.Arm(func(*backend.TreeWatch) { a.disarm() })
		if !a.armed {
			a.disarm()
		}
	}
}

// disarm stops the store's half of a tree watch.
func (a *simTree) disarm() {
	x := a.c.w.p.x
	x.mu.Lock()
	inner := a.inner
	a.inner = nil
	x.mu.Unlock()
	inner.Stop()
}

// collectTrees takes the changes that the store has sent, and drops the tree watches that are over.
func (w *wire) collectTrees() {
	w.trees = slices.DeleteFunc(w.trees, func(a *simTree) bool {
		w.p.x.mu.Lock()
		inner := a.inner
		w.p.x.mu.Unlock()
		changes, over := inner.Take()
		for _, c := range changes {
			w.in = append(w.in, simMessage{tree: a, change: c, path: c.Path})
		}
		if over {
			w.in = append(w.in, simMessage{tree: a, path: a.c.path})
		}
		return over || inner == nil
	})
}

// disarm stops the store's half of a watch.
func (a *simWatch) disarm() {
	x := a.c.w.p.x
	x.mu.Lock()
	inner := a.inner
	a.inner = nil
	x.mu.Unlock()
	if inner != nil {
		inner.Stop()
	}
}

// fail ends the calls and messages under way when contact, or the session, ends. A commit
// becomes uncertain, whether its request or its reply was lost, unless it was never sent. Reads
// are repeated if the session lives. Events become LookAgain.
func (x *arbiter) fail(w *wire, why error, over bool) {
	var failed, events []simMessage
	for _, m := range w.in {
		if m.c == nil {
			m.kind, m.change = backend.LookAgain, backend.TreeChange{}
			events = append(events, m)
			continue
		}
		c := m.c
		if c.op != "commit" && !over {
			for _, c := range append(c.twins, c) {
				for _, a := range c.arms {
					if a.inner != nil {
						delete(w.outer, a.inner)
						a.disarm()
					}
				}
				if c.tree != nil {
					c.tree.disarm()
				}
				c.data, c.stat, c.names, c.results, c.many, c.err = nil, backend.Stat{}, nil, nil, nil, nil
			}
			x.waiting = append(x.waiting, c)
			continue
		}
		if c.op == "commit" {
			c.lose(why)
		} else {
			c.err = c.wrap(why)
		}
		failed = append(failed, simMessage{c: c})
	}
	kept := x.waiting[:0]
	for _, c := range x.waiting {
		switch {
		case c.w != w:
			kept = append(kept, c)
		case c.op == "close":
			if over {
				failed = append(failed, simMessage{c: c})
			} else {
				kept = append(kept, c)
			}
		case over && c.op != "commit":
			c.err = c.wrap(why)
			failed = append(failed, simMessage{c: c})
		case c.op == "commit" && (over || x.draw.IntN(2) == 0):
			if over && x.draw.IntN(2) == 0 {
				c.err = c.wrap(why) // it was never sent
			} else {
				c.lose(why)
			}
			failed = append(failed, simMessage{c: c})
		default:
			kept = append(kept, c)
		}
	}
	clear(x.waiting[len(kept):])
	x.waiting = kept
	w.in = append(failed, events...)
}

// lose makes the outcome of a commit unknown.
func (c *simCall) lose(why error) {
	c.results, c.err = nil, c.wrap(backend.Uncertain(why))
}

// breakContact loses what is under way between p and the store. Contact returns at
// once, unless it is to stay broken.
func (x *arbiter) breakContact(p *peer, stay bool) {
	if p.cut {
		return
	}
	x.collect()
	for _, w := range p.wires {
		if !w.over {
			x.fail(w, nil, false)
		}
	}
	p.link.Partition()
	if p.cut = stay; !stay {
		p.link.Heal()
	}
}

func (x *arbiter) heal(p *peer) {
	if p.cut {
		p.cut = false
		p.link.Heal()
		x.settle()
	}
}

var everyFault = []string{"reaping", "reaping", "partition", "partition", "blip", "expiry", "expiry", "lost request", "lost reply",
	"lost reply", "expiry while cut off", "cancel", "cancel", "pause", "latency", "reaping", "outsider's delete", "outsider's write", "close"}

// fault breaks something, and reports whether that was possible.
func (x *sim) fault() bool {
	what := everyFault[x.draw.IntN(len(everyFault))]
	if slices.Contains(x.sc.without, what) {
		return false
	}
	s := x.slots[x.draw.IntN(len(x.slots))]
	p := s.p
	if what == "expiry while cut off" {
		for _, other := range x.slots {
			if other.p.cut {
				s, p = other, other.p // which does not learn of it
			}
		}
	}
	detail := p.name
	switch what {
	case "partition":
		if p.cut {
			return false
		}
		x.breakContact(p, true)
	case "blip":
		if p.cut {
			return false
		}
		x.breakContact(p, false)
	case "expiry", "expiry while cut off":
		var w *wire
		for _, other := range p.wires {
			if !other.over {
				w = other
			}
		}
		if w == nil || p.cut != (what == "expiry while cut off") {
			return false
		}
		x.mu().Lock()
		x.early[w.ID()] = true
		x.mu().Unlock()
		p.link.Expire(w.ID())
	case "lost request", "lost reply":
		var able []*simCall
		for i, c := range x.waiting {
			if c.from == p && c.w != nil && c.op != "close" && !c.w.over && x.able(i) {
				able = append(able, c)
			}
		}
		if len(able) == 0 {
			return false
		}
		c := able[x.draw.IntN(len(able))]
		detail = c.from.name + " " + c.op + " " + c.path
		if what == "lost reply" {
			x.waiting = slices.Delete(x.waiting, slices.Index(x.waiting, c), slices.Index(x.waiting, c)+1)
			x.tell(what, detail)
			x.serve(c)
		} else if c.op == "commit" {
			x.waiting = slices.Delete(x.waiting, slices.Index(x.waiting, c), slices.Index(x.waiting, c)+1)
			c.lose(nil)
			c.w.in = append(c.w.in, simMessage{c: c})
		}
		x.breakContact(p, false)
	case "cancel":
		a := x.actors[x.draw.IntN(len(x.actors))]
		a.mu.Lock()
		cancel := a.cancel
		a.cancel = nil
		a.mu.Unlock()
		if cancel == nil {
			return false
		}
		detail = a.name
		cancel()
	case "pause":
		p.held = 5 + x.draw.IntN(60)
	case "reaping": // of containers that are empty at the moment
		detail = ""
		before, _ := x.truth.Exists(context.Background(), "/", nil)
		_, err := x.truth.Exists(context.Background(), x.sc.dir, nil)
		x.arbiter.st.ReapContainers()
		after, _ := x.truth.Exists(context.Background(), "/", nil)
		_, err2 := x.truth.Exists(context.Background(), x.sc.dir, nil)
		if before.Pzxid == after.Pzxid && (err == nil) == (err2 == nil) {
			return false
		}
	case "latency":
		detail = ""
		x.idle(time.Duration(x.draw.IntN(300_000_000)))
	case "outsider's delete", "outsider's write":
		if x.sc.dir == "" {
			return false
		}
		list, _, _ := x.truth.Children(context.Background(), x.sc.dir, nil)
		if len(list) == 0 {
			return false
		}
		path := x.sc.dir + "/" + list[x.draw.IntN(len(list))]
		detail = path
		op := backend.SetData(path, nil, backend.AnyVersion)
		if what == "outsider's delete" {
			stat, err := x.truth.Exists(context.Background(), path, nil)
			if err != nil {
				return false
			}
			x.mu().Lock()
			x.outside[path] = true
			x.deleted[path] = stat.Czxid
			// A downgrade may be under way, of which its holder does not know yet.
			x.outside[strings.Replace(path, "__READ__", "__WRIT__", 1)] = true
			x.mu().Unlock()
			op = backend.Delete(path, backend.AnyVersion)
		}
		if _, err := x.truth.Commit(context.Background(), op); err != nil {
			return false
		}
	case "close":
		if p.cut || s.users > 1 {
			return false // of two callers in one process one may continue for a moment or not
		}
		old := s.client()
		s.open()
		x.joined.Go(func() { old.Close() })
	}
	x.tell(what+":", detail)
	x.note(what)
	return true
}

// mend ends what is broken.
func (x *sim) mend() {
	select {
	case <-x.calm:
	default:
		close(x.calm)
		x.tell("calm")
	}
	for _, p := range x.peers {
		x.heal(p)
		p.held = 0
	}
}
