package zookeeper

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

// A watchServer is a model of the watches that a server keeps for one session.
type watchServer struct {
	old         bool // of version 3.8.0: a watch replaces those of other modes at its path
	clock       int64
	nodes       map[string]*node
	data, child map[string]mode
	changes     []change
	send        func(frame any) // a wireReply or an event
}

type node struct{ mzxid, pzxid int64 }

type mode int8

const (
	oneShot mode = 1 << iota
	recursive
)

type change struct {
	path string
	kind int32
	at   int64
}

type wireReply struct {
	of   *simCall
	code int32
	stat node
	at   int64
}

func (v *watchServer) add(m map[string]mode, path string, x mode) {
	if v.old {
		m[path] = 0
	}
	m[path] |= x
}

// trigger reports whether the session gets an event. The server suppresses a second one for
// the same change.
func (v *watchServer) trigger(m map[string]mode, p string, kind int32, suppress bool) bool {
	fired := m[p]&oneShot != 0
	m[p] &^= oneShot
	for top := p; kind != eventChildrenChanged; top = path.Dir(top) {
		fired = fired || m[top]&recursive != 0
		if top == "/" {
			break
		}
	}
	if fired && !suppress {
		v.send(event{kind: kind, path: p})
	}
	return fired
}

// change makes a random change of one of the nodes, which are a chain.
func (v *watchServer) change(r *rand.Rand, chain []string) {
	i := r.IntN(len(chain))
	p, parent := chain[i], path.Dir(chain[i])
	v.clock++
	n, there := v.nodes[p]
	kind := int32(eventDataChanged)
	switch {
	case !there && v.nodes[parent] == nil:
		return
	case !there:
		kind = eventCreated
		v.nodes[p] = &node{v.clock, v.clock}
	case r.IntN(2) == 0 && (i == len(chain)-1 || v.nodes[chain[i+1]] == nil):
		kind = eventDeleted
		delete(v.nodes, p)
	default:
		n.mzxid = v.clock
	}
	v.changes = append(v.changes, change{p, kind, v.clock})
	fired := v.trigger(v.data, p, kind, false)
	if kind == eventDeleted {
		v.trigger(v.child, p, kind, fired)
	}
	if kind != eventDataChanged {
		v.nodes[parent].pzxid = v.clock
		v.trigger(v.child, parent, eventChildrenChanged, false)
	}
}

// serve handles a request.
func (v *watchServer) serve(x *simCall, throttle bool) {
	answer := wireReply{of: x, at: v.clock}
	n := v.nodes[x.c.path]
	if n != nil {
		answer.stat = *n
	}
	flag := len(x.c.frame) > 0 && x.c.frame[len(x.c.frame)-1] != 0
	switch op := x.c.op; {
	case op == opRemoveWatches:
		delete(v.data, x.c.tree.path)
		delete(v.child, x.c.tree.path)
	case throttle:
		answer.code = codeThrottled
	case op == opAddWatch:
		v.add(v.data, x.c.path, recursive)
		v.add(v.child, x.c.path, recursive)
	case op == opWatches:
		for _, i := range x.c.many.all {
			v.setWatch(i.key, x.since)
		}
	case n == nil && op != opExists:
		answer.code = codeNoNode
	case op == opChildren:
		if flag {
			v.add(v.child, x.c.path, oneShot)
		}
	default:
		if n == nil {
			answer.code = codeNoNode
		}
		if flag {
			v.add(v.data, x.c.path, oneShot)
		}
	}
	v.send(answer)
}

func (v *watchServer) setWatch(key watchKey, since int64) {
	n := v.nodes[key.path]
	switch {
	case n == nil:
		v.send(event{kind: eventDeleted, path: key.path})
	case key.kind == dataWatch && n.mzxid > since:
		v.send(event{kind: eventDataChanged, path: key.path})
	case key.kind == dataWatch:
		v.add(v.data, key.path, oneShot)
	case n.pzxid > since:
		v.send(event{kind: eventChildrenChanged, path: key.path})
	default:
		v.add(v.child, key.path, oneShot)
	}
}

// A simCall is a call with what its caller does when it returns.
type simCall struct {
	c       *call
	since   int64
	alone   bool // its caller has given up
	returns func(r wireReply) (again bool)
	gives   func()
}

// A simWatch is a watch that its caller believes to be armed.
type simWatch struct {
	*backend.Watch
	key    watchKey
	since  int64
	exists bool
}

func (w *simWatch) concerns(c change) bool {
	switch {
	case c.at <= w.since:
		return false
	case w.key.kind == dataWatch:
		return c.path == w.key.path
	}
	return c.path == w.key.path && c.kind == eventDeleted || path.Dir(c.path) == w.key.path && c.kind != eventDataChanged
}

type simTree struct {
	*backend.TreeWatch
	path  string
	since int64
}

// A watchModel is a session and its server. What they send to each other, what waits in the
// session's queue and what callers do at the end of a call takes its time.
type watchModel struct {
	*rand.Rand
	*testing.T
	server   watchServer
	busy     int // the server throttles one request of so many
	h        *hub
	queue    []*simCall // not written yet
	requests []*simCall // written, and not read by the server
	sent     []*simCall // written, and not answered
	wire     []any      // sent by the server
	callers  []func()   // will run
	watches  []*simWatch
	trees    []*simTree
}

var chain = []string{"/n", "/n/x", "/n/x/y"}

func newWatchModel(t *testing.T, seed uint64, old bool) *watchModel {
	m := &watchModel{T: t, Rand: rand.New(rand.NewPCG(seed, 1)), h: newHub()}
	m.busy = 2 + m.IntN(10)
	m.server = watchServer{old: old, nodes: map[string]*node{"/": {}}, data: make(map[string]mode), child: make(map[string]mode)}
	m.server.send = func(frame any) { m.wire = append(m.wire, frame) }
	m.h.remove = func(t *tree) {
		m.queue = append(m.queue, &simCall{c: &call{op: opRemoveWatches, tree: t}, returns: func(wireReply) bool { return false }})
	}
	return m
}

func (m *watchModel) place() string { return append(chain, "/")[m.IntN(len(chain)+1)] }

func (m *watchModel) start(x *simCall) {
	if x.c.many != nil {
		m.h.announce(x.c.many)
	}
	m.queue = append(m.queue, x)
}

// read makes a read with a watch. With hand set it is that of an Arm that reads node by node.
func (m *watchModel) read(op int32, p string, hand bool) {
	key := watchKey{p, dataWatch}
	if op == opChildren {
		key.kind = childWatch
	}
	w := &simWatch{Watch: backend.NewWatch(), key: key}
	inner := w.Watch
	if hand {
		inner = backend.NewWatch()
	}
	since := m.server.clock
	x := &simCall{c: &call{op: op, path: p, watch: inner, frame: encodeRead(nil, op, p, true)}}
	x.gives = func() { inner.Stop() }
	x.returns = func(r wireReply) bool {
		changed := r.stat.mzxid
		if key.kind == childWatch {
			changed = r.stat.pzxid
		}
		switch {
		case r.code == codeThrottled:
			return true
		case r.code == codeNoNode && (op != opExists || hand), hand && changed > since:
			inner.Stop()
			if hand {
				m.h.startle(backend.Target{Path: p, Children: key.kind == childWatch, Watch: w.Watch}, r.code != codeOK)
				w.Fire(backend.LookAgain)
			}
			return false
		case hand:
			stopped := m.IntN(4) == 0
			if stopped {
				w.Stop()
			}
			if m.h.hand(key, inner, w.Watch); stopped {
				return false
			}
		}
		w.since, w.exists = r.at, r.code == codeOK
		m.watches = append(m.watches, w)
		return false
	}
	m.start(x)
}

func (m *watchModel) arm() {
	var targets []backend.Target
	for range 1 + m.IntN(3) {
		targets = append(targets, backend.Target{Path: m.place(), Children: m.IntN(2) == 0, Watch: backend.NewWatch()})
	}
	since := m.server.clock - m.Int64N(3)
	stop := func() {
		for _, t := range targets {
			t.Watch.Stop()
		}
	}
	x := &simCall{c: &call{op: opWatches, many: m.h.newArmList(targets)}, since: since, gives: stop}
	x.returns = func(r wireReply) bool {
		if r.code == codeThrottled {
			return true
		}
		if r.code != codeOK {
			stop() // it continues node by node, which is another action of this model
			return false
		}
		for _, t := range targets {
			m.watches = append(m.watches, &simWatch{Watch: t.Watch, key: keyOf(t), since: since, exists: true})
		}
		return false
	}
	m.start(x)
}

func (m *watchModel) watchTree() {
	t := &simTree{TreeWatch: backend.NewTreeWatch(0), path: m.place()}
	x := &simCall{c: &call{op: opAddWatch, path: t.path, treeWatch: t.TreeWatch}, gives: t.Stop}
	x.returns = func(r wireReply) bool {
		if r.code == codeThrottled {
			return true
		}
		t.since = r.at
		m.trees = append(m.trees, t)
		return false
	}
	m.start(x)
}

// returned hands an answer to the caller, later.
func (m *watchModel) returned(x *simCall, r wireReply) {
	if x.alone {
		return
	}
	m.callers = append(m.callers, func() {
		if x.c.many != nil && r.code != codeOK {
			m.h.forget(x.c.many)
		}
		if x.returns(r) {
			m.start(x)
		}
	})
}

// step makes one of the steps that are under way. It reports false if there is none.
func (m *watchModel) step() bool {
	var steps []func()
	if len(m.queue) > 0 {
		steps = append(steps, func() {
			x := m.queue[0]
			m.queue = m.queue[1:]
			if !m.h.sending(x.c) {
				m.returned(x, wireReply{code: codeUnimplemented})
				return
			}
			m.requests, m.sent = append(m.requests, x), append(m.sent, x)
		})
	}
	if len(m.requests) > 0 {
		steps = append(steps, func() {
			x := m.requests[0]
			m.requests = m.requests[1:]
			m.server.serve(x, m.IntN(m.busy) == 0)
		})
	}
	if len(m.wire) > 0 {
		steps = append(steps, func() {
			frame := m.wire[0]
			m.wire = m.wire[1:]
			switch f := frame.(type) {
			case event:
				m.h.event(f)
			case wireReply:
				m.sent = m.sent[1:]
				m.h.replied(f.of.c, f.code)
				m.returned(f.of, f)
			}
		})
	}
	if len(m.callers) > 0 {
		steps = append(steps, func() {
			i := m.IntN(len(m.callers))
			f := m.callers[i]
			m.callers = slices.Delete(m.callers, i, i+1)
			f()
		})
	}
	if len(steps) == 0 {
		return false
	}
	steps[m.IntN(len(steps))]()
	return true
}

func (m *watchModel) reconnect() {
	broke := m.sent
	m.requests, m.sent, m.wire = nil, nil, nil
	clear(m.server.data)
	clear(m.server.child)
	m.h.reconnected()
	for _, x := range broke {
		if x.alone || x.c.op == opRemoveWatches {
			continue
		}
		if x.c.many != nil {
			m.h.forget(x.c.many)
		}
		m.start(x)
	}
}

// giveUp ends the wait of a caller.
func (m *watchModel) giveUp() {
	waiting := slices.DeleteFunc(slices.Concat(m.queue, m.sent), func(x *simCall) bool { return x.alone || x.gives == nil })
	if len(waiting) == 0 {
		return
	}
	x := waiting[m.IntN(len(waiting))]
	if i := slices.Index(m.queue, x); i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
	}
	x.alone = true
	m.callers = append(m.callers, func() {
		if x.c.many != nil {
			m.h.forget(x.c.many)
		}
		x.gives()
	})
}

func take[T any](m *watchModel, all *[]T) (x T, ok bool) {
	if len(*all) == 0 {
		return x, false
	}
	i := m.IntN(len(*all))
	x = (*all)[i]
	*all = slices.Delete(*all, i, i+1)
	return x, true
}

func (m *watchModel) act() {
	switch m.IntN(14) {
	case 0, 1:
		m.read([]int32{opGetData, opExists, opChildren}[m.IntN(3)], m.place(), false)
	case 2:
		m.read([]int32{opExists, opChildren}[m.IntN(2)], m.place(), true)
	case 3:
		m.arm()
	case 4, 5:
		m.watchTree()
	case 6, 7:
		if t, ok := take(m, &m.trees); ok {
			t.Stop()
		}
	case 8:
		if w, ok := take(m, &m.watches); ok {
			w.Stop()
		}
	case 9:
		m.giveUp()
	case 10:
		if m.IntN(10) == 0 {
			m.reconnect()
		}
	default:
		m.server.change(m.Rand, chain)
	}
}

// check runs when no call is under way: each change must have fired the watches that it concerns,
// and each tree watch must have reported it.
func (m *watchModel) check() error {
	kept := m.watches[:0]
	for _, w := range m.watches {
		kind, concerned, deleted := w.Kind(), false, false
		for _, c := range m.server.changes {
			concerned = concerned || w.concerns(c)
			deleted = deleted || w.concerns(c) && c.path == w.key.path && c.kind == eventDeleted
		}
		switch {
		case concerned && kind == 0:
			return fmt.Errorf("a watch of %+v since %d misses a change", w.key, w.since)
		case kind == backend.Deleted && !(deleted && w.exists):
			return fmt.Errorf("a watch of %+v since %d says that the node was deleted", w.key, w.since)
		case kind == 0:
			kept = append(kept, w)
		}
	}
	m.watches = kept
	trees := m.trees[:0]
	for _, t := range m.trees {
		told, over := t.Take()
		if over {
			continue
		}
		trees = append(trees, t)
		for _, c := range m.server.changes {
			within := c.path == t.path || t.path == "/" || strings.HasPrefix(c.path, t.path+"/")
			if c.at > t.since && within && !slices.ContainsFunc(told, func(x backend.TreeChange) bool { return x.Path == c.path }) {
				return fmt.Errorf("the tree at %s misses a change of %s", t.path, c.path)
			}
		}
		t.since = m.server.clock
	}
	m.trees = trees
	for _, w := range m.watches {
		w.since = m.server.clock
	}
	m.server.changes = nil
	return nil
}

// Watches of reads, of Arms and of trees are armed and stopped at the same places, while
// changes are made, callers give up, requests are throttled and contact breaks. Whatever
// overtakes what, no watch misses a change, and at the end neither side keeps anything.
func TestNoWatchIsLostWhateverOvertakesWhat(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{true, false} {
		for seed := range uint64(400) {
			m := newWatchModel(t, seed, old)
			for turn := range 40 {
				for range m.IntN(40) {
					if m.IntN(2) == 0 {
						m.act()
					} else {
						m.step()
					}
				}
				for m.step() {
				}
				if err := m.check(); err != nil {
					t.Fatalf("version 3.8.0: %v, seed %d, turn %d: %v", old, seed, turn, err)
				}
			}
			for _, w := range m.watches {
				w.Stop()
			}
			for _, w := range m.trees {
				w.Stop()
			}
			for m.step() {
			}
			for _, all := range []map[string]mode{m.server.data, m.server.child} {
				for path, modes := range all {
					if modes&recursive != 0 {
						t.Errorf("version 3.8.0: %v, seed %d: the server keeps the tree at %s", old, seed, path)
					}
				}
			}
			if len(m.h.armed)+len(m.h.arming)+len(m.h.trees) != 0 {
				t.Fatalf("version 3.8.0: %v, seed %d: left are %v, %v, %v", old, seed, m.h.armed, m.h.arming, m.h.trees)
			}
		}
	}
}
