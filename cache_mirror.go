package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// cacheReads is the maximum number of concurrent reads of a Cache.
const cacheReads = 32

// mirror maintains a Cache's copy during one session. All of it belongs to the
// goroutine of Run, except the reads, which only send their reply.
//
// It works in passes. A pass begins with each new contact. It reads the tree from
// the root down, each node before its children, with fresh watches, and keeps nodes
// that are unchanged. When it has read the whole tree, it follows the watches.
// Replies to reads of an earlier pass are ignored.
//
// In a pass these rules hold for each node in the copy that the pass has met:
//
//   - Its data has a watch that has not fired, or is queued to be read, or a read
//     is under way. The same holds for its children, unless it is ephemeral. The
//     watch on the children of its parent replaces none of this: each node is
//     tracked by itself, and lists of children only add names.
//   - A node is removed from the copy when it is known that it was deleted after
//     the latest list that has been handled. So the watch of that list fires for
//     the deletion, and if there is another node at the path by now, it will be
//     found. There are two proofs. The first is an event: all fired watches are
//     handled before a reply that came after them (see look), so an event that is
//     handled now is later than every list that was handled. The second is a read
//     that began after the list was handled and found no node. If a list named the
//     node while the read was under way, the order of the two is not known, and the
//     node is read again.
type mirror struct {
	*Cache
	s       *session
	replies chan cacheReply // of capacity cacheReads, so that reads do not wait for Run
	flying  int             // reads under way, of all passes
	changed <-chan struct{} // fires when the session's status may have changed

	// The fields below belong to the current pass.
	pass      uint32
	began     time.Time
	told      uint32 // the last pass that was traced as complete
	ws        *backend.WatchSet
	dataOf    map[*backend.Watch]*cacheNode // watches that are armed, or whose read is under way
	listOf    map[*backend.Watch]*cacheNode
	root      *cacheNode            // in the copy or not
	absent    bool                  // the root was missing: watch for its creation
	pending   map[string]*cacheNode // named by a list, not read yet
	queue     []cacheTask
	next      int // index in queue
	met       int // nodes that the pass has met and that are not gone
	unsettled int // nodes that Synced waits for
	buf       []byte
}

type cacheTask struct {
	n    *cacheNode
	list bool // read the children, not the data
}

type cacheReply struct {
	cacheTask
	pass   uint32
	exists bool // the read was Exists
	watch  *backend.Watch
	data   []byte
	names  []string
	stat   backend.Stat
	err    error
}

// mirror maintains the copy for as long as the session lives.
func (k *Cache) mirror(ctx context.Context, s *session) error {
	ctx, cancel := context.WithCancel(ctx)
	m := &mirror{Cache: k, s: s, replies: make(chan cacheReply, cacheReads)}
	defer func() {
		cancel()
		m.ws.Stop()
		for ; m.flying > 0; m.flying-- {
			<-m.replies
		}
	}()
	// The new session may read from a server that lags behind the one before, and
	// the copy must not go back.
	if err := s.b.Sync(ctx, k.path.full); err != nil {
		return err
	}
	_, m.changed = s.b.Status()
	m.begin()
	for {
		if m.unsettled == 0 && m.told != m.pass {
			m.tellSynced(ctx)
		}
		if err := m.send(ctx); err != nil {
			return err
		}
		select {
		case r := <-m.replies:
			m.flying--
			m.look()
			if err := m.take(r); err != nil {
				return err
			}
		case <-m.ws.Ready():
			m.look()
		case <-m.changed:
			m.look()
		case <-s.b.Done():
			return s.b.Err()
		case <-ctx.Done():
			return backend.ContextError(ctx)
		}
	}
}

// tellSynced traces that the pass is complete.
func (m *mirror) tellSynced(ctx context.Context) {
	m.told = m.pass
	if m.c.trace != nil {
		tell(ctx, m.c, trace.CacheSynced{Subject: m.subject(), Nodes: m.Len(), Took: time.Since(m.began), Again: m.pass > 1})
	}
}

// begin begins a pass.
func (m *mirror) begin() {
	m.ws.Stop()
	m.passes++
	m.pass, m.began = m.passes, time.Now()
	m.ws = backend.NewWatchSet()
	m.dataOf = make(map[*backend.Watch]*cacheNode)
	m.listOf = make(map[*backend.Watch]*cacheNode)
	m.pending = make(map[string]*cacheNode)
	m.queue, m.next = nil, 0
	m.absent = false
	m.met, m.unsettled = 0, 0
	m.root = m.nodes[m.path.given]
	if m.root == nil {
		m.root = &cacheNode{path: m.path.full}
	}
	m.unsettle(m.root)
	m.wantData(m.root)
}

// look handles the events that precede the next reply: a new contact, and the
// watches that have fired.
func (m *mirror) look() {
	for again := true; again; {
		select {
		case <-m.changed:
			var phase backend.Phase
			phase, m.changed = m.s.b.Status()
			if phase == backend.PhaseConnected {
				m.begin()
			}
		default:
			again = false
		}
	}
	for _, w := range m.ws.Take() {
		n, list := m.dataOf[w], false
		if n == nil {
			n, list = m.listOf[w], true
		}
		m.drop(w)
		switch {
		case n == nil || n.lost():
		case w.Kind() == backend.Deleted:
			m.remove(n)
		case list:
			m.wantList(n)
		default:
			if n == m.root {
				m.absent = false
			}
			m.wantData(n)
		}
	}
}

// drop forgets a watch.
func (m *mirror) drop(w *backend.Watch) {
	delete(m.dataOf, w)
	delete(m.listOf, w)
}

// touch resets the state of the node if it belongs to an earlier pass.
func (m *mirror) touch(n *cacheNode) {
	if n.pass != m.pass {
		n.pass, n.state = m.pass, 0
		m.met++
	}
}

func (m *mirror) wantData(n *cacheNode) {
	m.want(cacheTask{n, false}, dataQueued, dataFlying, dataAgain)
}

func (m *mirror) wantList(n *cacheNode) {
	m.want(cacheTask{n, true}, listQueued, listFlying, listAgain)
}

func (m *mirror) want(t cacheTask, queued, flying, again cacheState) {
	m.touch(t.n)
	switch {
	case t.n.state&flying != 0:
		t.n.state |= again
	case t.n.state&queued == 0:
		t.n.state |= queued
		m.queue = append(m.queue, t)
	}
}

// unsettle makes Synced wait for the node.
func (m *mirror) unsettle(n *cacheNode) {
	m.touch(n)
	if n.state&unsettled == 0 {
		n.state |= unsettled
		m.unsettled++
	}
}

func (m *mirror) settle(n *cacheNode) {
	if n.pass != m.pass || n.state&unsettled == 0 {
		return
	}
	n.state &^= unsettled
	m.unsettled--
	if m.unsettled > 0 {
		return
	}
	select {
	case <-m.synced:
	default:
		close(m.synced)
	}
}

// send starts queued reads, up to cacheReads at a time.
func (m *mirror) send(ctx context.Context) error {
	for m.flying < cacheReads && m.next < len(m.queue) {
		t := m.queue[m.next]
		m.queue[m.next] = cacheTask{}
		m.next++
		if m.next == len(m.queue) {
			m.queue, m.next = m.queue[:0], 0
		} else if m.next > 1024 && m.next > len(m.queue)/2 {
			m.queue = append([]cacheTask(nil), m.queue[m.next:]...)
			m.next = 0
		}
		if t.n.lost() {
			m.giveUp(t.n)
			continue
		}
		r := cacheReply{cacheTask: t, pass: m.pass, watch: m.ws.New()}
		if t.list {
			t.n.state = t.n.state&^listQueued | listFlying
			m.listOf[r.watch] = t.n
		} else {
			t.n.state = t.n.state&^dataQueued | dataFlying
			m.dataOf[r.watch] = t.n
			r.exists = t.n == m.root && m.absent
		}
		m.flying++
		if !m.c.goWork(func() { m.replies <- r.read(ctx, m.s.b) }) {
			m.flying--
			return ErrClosed
		}
	}
	return nil
}

// read performs the read. It stops a watch that is not armed.
func (r cacheReply) read(ctx context.Context, b backend.Session) cacheReply {
	armed := false
	switch {
	case r.list:
		r.names, r.stat, r.err = b.Children(ctx, r.n.path, r.watch)
	case r.exists:
		// The purpose is a watch for the creation of the node.
		_, r.err = b.Exists(ctx, r.n.path, r.watch)
		armed = isNotFound(r.err)
	default:
		r.data, r.stat, r.err = b.Get(ctx, r.n.path, r.watch)
	}
	if !armed && (r.exists || r.err != nil) {
		r.watch.Stop()
	}
	return r
}

// cacheNode is a node of a Cache's copy, or one that is to be read for it. A node
// that was deleted and created again is a new cacheNode.
type cacheNode struct {
	path   string // absolute, with the namespace
	parent *cacheNode

	// Once the node is in the copy, Cache.mu guards these fields: Run writes them
	// under the lock and reads them without it.
	data              []byte
	stat              backend.Stat
	first, prev, next *cacheNode // first child, siblings

	// The fields below are used by Run only.
	pass  uint32 // to which state belongs
	state cacheState
	in    bool // it is, or was, in the copy
	gone  bool // removed from the copy, or given up
}

// cacheState is the state of a node in a pass of Run.
type cacheState uint16

const (
	dataQueued cacheState = 1 << iota // its data is queued to be read
	dataFlying                        // a read of its data is under way
	dataAgain                         // and must be read again after that
	listQueued                        // the same for its children
	listFlying
	listAgain
	listRead  // its children have been read in this pass
	verified  // its data has been read in this pass
	foundAnew // a list of its parent's children named it while a read of its data was under way
	unsettled // Synced waits for it
)

func (n *cacheNode) cached() CachedNode { return CachedNode{Data: n.data, Stat: n.stat} }

func (n *cacheNode) ephemeral() bool { return n.stat.EphemeralOwner != 0 }

// lost reports whether the node has no place in the copy any more.
func (n *cacheNode) lost() bool { return n.gone || n.parent != nil && n.parent.gone }

// all yields the node and everything below it, each before its children.
func (n *cacheNode) all(yield func(*cacheNode) bool) {
	for at := n; ; {
		if !yield(at) {
			return
		}
		if at.first != nil {
			at = at.first
			continue
		}
		for at != n && at.next == nil {
			at = at.parent
		}
		if at == n {
			return
		}
		at = at.next
	}
}

// below returns the node and everything below it.
func (n *cacheNode) below() []*cacheNode {
	var list []*cacheNode
	for at := range n.all {
		list = append(list, at)
	}
	return list
}

// change removes nodes from the copy, in parent-first order, and then adds one;
// either may be missing. Readers see all of the change or nothing.
func (k *Cache) change(out []*cacheNode, in *cacheNode) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(out) > 0 {
		out[0].unlink()
	}
	for _, n := range out {
		path := k.given(n.path)
		delete(k.nodes, path)
		k.mark(path, n.version(), false)
	}
	if in != nil {
		path := k.given(in.path)
		in.in = true
		in.link()
		k.nodes[path] = in
		k.mark(path, nodeVersion{}, true)
	}
}

// set stores new data and a new stat of a node of the copy.
func (k *Cache) set(n *cacheNode, data []byte, stat backend.Stat) {
	was := n.version()
	if n.stat == stat {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.data, n.stat = data, stat
	if n.version() != was {
		k.mark(k.given(n.path), was, true)
	}
}

// link makes the node a child of its parent.
func (n *cacheNode) link() {
	if n.parent == nil {
		return
	}
	n.next = n.parent.first
	if n.next != nil {
		n.next.prev = n
	}
	n.parent.first = n
}

// unlink reverses link.
func (n *cacheNode) unlink() {
	if n.next != nil {
		n.next.prev = n.prev
	}
	if n.prev != nil {
		n.prev.next = n.next
	} else if n.parent != nil {
		n.parent.first = n.next
	}
	n.prev, n.next = nil, nil
}

// nodeVersion identifies a node and its data among all that can exist at one path.
// A version number alone does not suffice: a node that is created again begins with
// the same number. The zero nodeVersion means no node; it differs from that of the
// service's root, which no commit has made.
type nodeVersion struct {
	there        bool
	czxid, mzxid int64
}

func (n *cacheNode) version() nodeVersion { return nodeVersion{true, n.stat.Czxid, n.stat.Mzxid} }

// withChildren returns stat with the fields about children of other, a read of the same
// node, if that is newer.
func withChildren(stat, other backend.Stat) backend.Stat {
	if other.AsOf >= stat.AsOf {
		stat.Pzxid, stat.Cversion, stat.NumChildren = other.Pzxid, other.Cversion, other.NumChildren
		stat.AsOf = other.AsOf
	}
	return stat
}
