package coord

import (
	"bytes"
	"cmp"
	"context"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// cacheReads is the maximum number of concurrent reads of a Cache. With batches, at most
// cacheBatches requests are under way, each with up to cacheBatch reads.
const (
	cacheReads   = 32
	cacheBatches = 4
	cacheBatch   = 128
)

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
//
// If the service has trees, one watch of the tree replaces the watches of the nodes: a
// pass arms it, and then reads as above, without watches. All changes are handled
// before a reply that came after them, so a change that is handled now is later than
// every reply that was handled. It is applied to the nodes that the pass has met:
//
//   - A deletion removes the node.
//   - A change of data, or a creation below a node whose data was read in the pass,
//     makes the node be read. A creation below a node whose data has yet to be read
//     makes the list of that node's children be read after its data.
//
// A change of any other node is ignored: a list that names the node has yet to be read.
// The list of a node that has no children is not read. When the watch is over, the next
// pass begins.
type mirror struct {
	*Cache
	s       *core.Session
	replies chan []cacheReply // of capacity cacheReads, so that reads do not wait for Run
	flying  int               // requests under way, of all passes
	changed <-chan struct{}   // fires when the session's status may have changed
	trees   bool              // the service has trees
	batches bool              // and batches

	// The fields below belong to the current pass.
	pass      uint32
	began     time.Time
	told      uint32                        // the last pass that was traced as complete
	tree      *backend.TreeWatch            // nil without trees
	ws        *backend.WatchSet             // nil with trees
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
	arm  bool // arm the tree, and read nothing
}

type cacheReply struct {
	cacheTask
	pass   uint32
	exists bool // the read was Exists
	all    bool // err is that of the whole batch
	watch  *backend.Watch
	data   []byte
	names  []string
	stat   backend.Stat
	err    error
}

// mirror maintains the copy for as long as the session lives.
func (k *Cache) mirror(ctx context.Context, s *core.Session) error {
	ctx, cancel := context.WithCancel(ctx)
	m := &mirror{Cache: k, s: s, replies: make(chan []cacheReply, cacheReads)}
	m.trees = s.Backend().Features().Has(backend.Trees)
	m.batches = s.Backend().Features().Has(backend.Trees | backend.Batches)
	defer func() {
		cancel()
		m.ws.Stop()
		m.tree.Stop()
		for ; m.flying > 0; m.flying-- {
			<-m.replies
		}
	}()
	// The new session may read from a server that lags behind the one before, and
	// the copy must not go back.
	if err := s.Backend().Sync(ctx, k.path.Full()); err != nil {
		return err
	}
	_, m.changed = s.Backend().Status()
	m.begin()
	for {
		if m.unsettled == 0 && m.told != m.pass {
			m.tellSynced(ctx)
		}
		if err := m.send(ctx); err != nil {
			return err
		}
		select {
		case replies := <-m.replies:
			m.flying--
			err := m.look()
			for _, r := range replies {
				if err == nil {
					err = m.take(r)
				}
			}
			if err != nil {
				return err
			}
			continue
		case <-m.ws.Ready():
		case <-m.tree.Ready():
		case <-m.changed:
		case <-s.Backend().Done():
			return s.Backend().Err()
		case <-ctx.Done():
			return s.ContextError(ctx)
		}
		if err := m.look(); err != nil {
			return err
		}
	}
}

// tellSynced traces that the pass is complete.
func (m *mirror) tellSynced(ctx context.Context) {
	m.told = m.pass
	if m.c.IsTraced() {
		core.Emit(ctx, m.c, trace.CacheSynced{Subject: m.subject(), Nodes: m.Len(), Took: time.Since(m.began), Again: m.pass > 1})
	}
}

// begin begins a pass.
func (m *mirror) begin() {
	m.ws.Stop()
	m.tree.Stop()
	m.ws, m.tree = nil, nil
	if m.trees {
		m.tree = backend.NewTreeWatch(0)
	} else {
		m.ws = backend.NewWatchSet()
	}
	m.passes++
	m.pass, m.began = m.passes, time.Now()
	m.dataOf = make(map[*backend.Watch]*cacheNode)
	m.listOf = make(map[*backend.Watch]*cacheNode)
	m.pending = make(map[string]*cacheNode)
	m.queue, m.next = nil, 0
	m.absent = false
	m.met, m.unsettled = 0, 0
	m.root = m.nodes[m.path.Given()]
	if m.root == nil {
		m.root = &cacheNode{path: m.path.Full()}
	}
	m.unsettle(m.root)
	if m.trees {
		m.queue = append(m.queue, cacheTask{n: m.root, arm: true}) // the root is read when the tree is armed
		return
	}
	m.wantData(m.root)
}

// look handles the events that precede the next reply: a new contact, the changes of
// the tree, and the watches that have fired.
func (m *mirror) look() error {
	for again := true; again; {
		select {
		case <-m.changed:
			var phase backend.Phase
			phase, m.changed = m.s.Backend().Status()
			if phase == backend.PhaseConnected {
				m.begin()
			}
		default:
			again = false
		}
	}
	changes, over := m.tree.Take()
	if over {
		// Without contact the next pass begins with the next contact.
		if phase, _ := m.s.Backend().Status(); phase == backend.PhaseConnected {
			m.begin()
		}
		return nil
	}
	for _, c := range changes {
		if err := m.treeChanged(c); err != nil {
			return err
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
	return nil
}

// treeChanged handles a change of the tree.
func (m *mirror) treeChanged(c backend.TreeChange) error {
	n := m.known(c.Path)
	if n != nil && n.pass != m.pass {
		n = nil // its parent's children have yet to be listed
	}
	switch {
	case c.Kind == backend.TreeDeleted:
		if n != nil {
			m.remove(n)
		}
	case n != nil && c.Kind == backend.TreeChanged:
		m.wantData(n)
	case c.Kind != backend.TreeCreated:
	case c.Path == m.root.path:
		// A change after the creation can be included. The read under way may show neither.
		m.wantData(m.root)
		if m.root.state&dataFlying != 0 {
			m.root.state |= foundAnew
		}
	default:
		dir := m.known(cmp.Or(core.Parent(c.Path), "/"))
		switch {
		case dir == nil || dir.pass != m.pass:
		case dir.state&verified != 0:
			return m.named(dir, core.Base(c.Path))
		default:
			dir.state |= childCame
		}
	}
	return nil
}

// known returns the node at a path with the namespace, whether it is in the copy or yet
// to be read, or nil.
func (m *mirror) known(full string) *cacheNode {
	if full == m.root.path {
		return m.root
	}
	if len(full) <= len(m.root.path) {
		return nil // above the root
	}
	given := full[len(m.c.Root()):]
	n := m.nodes[given]
	if n == nil {
		n = m.pending[given]
	}
	if n == nil || n.lost() {
		return nil
	}
	return n
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
	m.want(cacheTask{n: n}, dataQueued, dataFlying, dataAgain)
}

func (m *mirror) wantList(n *cacheNode) {
	m.want(cacheTask{n: n, list: true}, listQueued, listFlying, listAgain)
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

// send starts queued reads, as many at a time as the limits allow.
func (m *mirror) send(ctx context.Context) error {
	most, size := cacheReads, 1
	if m.batches {
		most, size = cacheBatches, cacheBatch
	}
	for m.flying < most {
		batch := m.batch(size)
		if len(batch) == 0 {
			return nil
		}
		m.flying++
		tree := m.tree
		if !m.c.GoWork(func() { m.replies <- readBatch(ctx, m.s.Backend(), tree, batch) }) {
			m.flying--
			return ErrClosed
		}
	}
	return nil
}

// batch takes up to size tasks from the queue.
func (m *mirror) batch(size int) (batch []cacheReply) {
	for len(batch) < size && m.next < len(m.queue) {
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
		switch {
		case t.arm:
		case t.list:
			t.n.state = t.n.state&^listQueued | listFlying
		default:
			t.n.state = t.n.state&^dataQueued | dataFlying
			r.exists = t.n == m.root && m.absent
		}
		if r.watch != nil && t.list {
			m.listOf[r.watch] = t.n
		} else if r.watch != nil {
			m.dataOf[r.watch] = t.n
		}
		batch = append(batch, r)
		if t.arm {
			break
		}
	}
	return batch
}

// readBatch performs the reads of a batch, and returns it with the answers.
func readBatch(ctx context.Context, b backend.Session, tree *backend.TreeWatch, batch []cacheReply) []cacheReply {
	if len(batch) == 1 {
		batch[0] = batch[0].read(ctx, b, tree)
		return batch
	}
	reads := make([]backend.Read, len(batch))
	for i, r := range batch {
		reads[i] = backend.Read{Path: r.n.path, Children: r.list}
	}
	results, err := b.ReadMany(ctx, reads...)
	for i := range batch {
		r := &batch[i]
		if err != nil {
			r.err, r.all = err, true
			continue
		}
		r.data, r.names, r.stat, r.err = results[i].Data, results[i].Names, results[i].Stat, results[i].Err
	}
	return batch
}

// read performs one read. It stops a watch that is not armed.
func (r cacheReply) read(ctx context.Context, b backend.Session, tree *backend.TreeWatch) cacheReply {
	armed := false
	switch {
	case r.arm:
		r.err = b.WatchTree(ctx, r.n.path, tree)
	case r.list:
		r.names, r.stat, r.err = b.Children(ctx, r.n.path, r.watch)
	case r.exists:
		// The purpose is a watch for the creation of the node.
		_, r.err = b.Exists(ctx, r.n.path, r.watch)
		armed = core.IsNotFound(r.err)
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
	history           int32      // how often other data had the same numbers: the service was restored
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
	childCame // a child was created before its data was read in this pass
)

func (n *cacheNode) cached() CachedNode {
	return CachedNode{Data: n.data, Stat: n.stat, history: n.history}
}

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
		in.stat.NumChildren = 0 // counts the children in the copy
		in.link()
		k.nodes[path] = in
		k.mark(path, nodeVersion{}, true)
	}
}

// set stores new data and a new stat of a node of the copy.
func (k *Cache) set(n *cacheNode, data []byte, stat backend.Stat) {
	was := n.version()
	stat.NumChildren = n.stat.NumChildren
	other := n.stat.Mzxid == stat.Mzxid && !bytes.Equal(n.data, data)
	if n.stat == stat && !other {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.data, n.stat = data, stat
	if other {
		n.history++
	}
	if n.version() != was {
		k.mark(k.given(n.path), was, true)
	}
}

// link makes the node a child of its parent.
func (n *cacheNode) link() {
	if n.parent == nil {
		return
	}
	n.parent.stat.NumChildren++
	n.next = n.parent.first
	if n.next != nil {
		n.next.prev = n
	}
	n.parent.first = n
}

// unlink reverses link.
func (n *cacheNode) unlink() {
	if n.parent != nil {
		n.parent.stat.NumChildren--
	}
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
	history      int32
}

func (n *cacheNode) version() nodeVersion {
	return nodeVersion{true, n.stat.Czxid, n.stat.Mzxid, n.history}
}

// withChildren returns stat with the fields about lists of children of other, a read of
// the same node, if that is newer.
func withChildren(stat, other backend.Stat) backend.Stat {
	if other.AsOf >= stat.AsOf {
		stat.Pzxid, stat.Cversion, stat.AsOf = other.Pzxid, other.Cversion, other.AsOf
	}
	return stat
}
