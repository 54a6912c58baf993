package mirror

import (
	"cmp"
	"context"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// maxReads is the maximum number of concurrent reads. With batches, at most
// maxBatches requests are under way, each with up to batchSize reads.
const (
	maxReads   = 32
	maxBatches = 4
	batchSize  = 128
)

// syncer maintains the copy during one session. All of it belongs to the
// goroutine of Run, except the reads, which only send their reply.
//
// It works in passes. A pass begins with each new contact. It reads the tree from
// the root down, each node before its children, with fresh watches, and keeps nodes
// that are unchanged. When it has read the whole tree, it follows the watches.
// Replies to reads of an earlier pass are ignored.
//
// In a pass these rules hold for each node in the copy that the pass has visited:
//
//   - Its data has a watch that has not fired, or is queued to be read, or a read
//     is under way. The same holds for its children, unless it is ephemeral. The
//     watch on the children of its parent replaces none of this: each node is
//     tracked by itself, and lists of children only add names.
//   - A node is removed from the copy when it is known that it was deleted after
//     the latest list that has been handled. So the watch of that list fires for
//     the deletion, and if there is another node at the path by now, it will be
//     found. There are two proofs. The first is an event: all fired watches are
//     handled before a reply that came after them (see handleEvents), so an event that is
//     handled now is later than every list that was handled. The second is a read
//     that began after the list was handled and found no node. If a list named the
//     node while the read was under way, the order of the two is not known, and the
//     node is read again.
//
// If the service has trees, one watch of the tree replaces the watches of the nodes: a
// pass arms it, and then reads as above, without watches. All changes are handled
// before a reply that came after them, so a change that is handled now is later than
// every reply that was handled. It is applied to the nodes that the pass has visited:
//
//   - A deletion removes the node.
//   - A change of data, or a creation below a node whose data was read in the pass,
//     makes the node be read. A creation below a node whose data has yet to be read
//     makes the list of that node's children be read after its data.
//
// A change of any other node is ignored: a list that names the node has yet to be read.
// The list of a node that has no children is not read. When the watch is over, the next
// pass begins.
type syncer struct {
	*Cache
	s        *core.Session
	replies  chan []reply    // of capacity maxReads, so that reads do not wait for Run
	inFlight int             // requests under way, of all passes
	changed  <-chan struct{} // fires when the session's status may have changed
	trees    bool            // the service has trees
	batches  bool            // the service has batches

	// The fields below belong to the current pass.
	pass        uint32
	passBegan   time.Time
	traced      uint32                   // the last pass that was traced as complete
	tree        *backend.TreeWatch       // nil without trees
	watches     *backend.WatchSet        // nil with trees
	dataOf      map[*backend.Watch]*node // watches that are armed, or whose read is under way
	listOf      map[*backend.Watch]*node
	root        *node            // in the copy or not
	rootMissing bool             // the root was missing: watch for its creation
	pending     map[string]*node // named by a list, not read yet
	queue       []task
	next        int // index in queue
	visited     int // nodes that the pass has visited and that are not gone
	incomplete  int // nodes that Synced waits for
	buf         []byte
}

// task is a queued read, by default of the data.
type task struct {
	n    *node
	list bool // read the children, not the data
	arm  bool // arm the tree, and read nothing
}

// reply is a read and its answer.
type reply struct {
	task
	pass   uint32
	exists bool // the read was Exists
	all    bool // err is that of the whole batch
	watch  *backend.Watch
	data   []byte
	names  []string
	stat   backend.Stat
	err    error
}

// syncWith maintains the copy for as long as the session lives.
func (k *Cache) syncWith(ctx context.Context, s *core.Session) error {
	ctx, cancel := context.WithCancel(ctx)
	m := &syncer{Cache: k, s: s, replies: make(chan []reply, maxReads)}
	m.trees = s.Backend().Features().Has(backend.Trees)
	m.batches = s.Backend().Features().Has(backend.Trees | backend.Batches)
	defer func() {
		cancel()
		m.watches.Stop()
		m.tree.Stop()
		for ; m.inFlight > 0; m.inFlight-- {
			<-m.replies
		}
	}()
	// The new session may read from a server that lags behind the server of the
	// previous session, and the copy must not go back.
	if err := s.Backend().Sync(ctx, k.path.Full()); err != nil {
		return err
	}
	_, m.changed = s.Backend().Status()
	m.beginPass()
	for {
		if m.incomplete == 0 && m.traced != m.pass {
			m.traceSynced(ctx)
		}
		if err := m.startReads(ctx); err != nil {
			return err
		}
		select {
		case replies := <-m.replies:
			m.inFlight--
			err := m.handleEvents()
			for _, r := range replies {
				if err == nil {
					err = m.handleReply(r)
				}
			}
			if err != nil {
				return err
			}
			continue
		case <-m.watches.Ready():
		case <-m.tree.Ready():
		case <-m.changed:
		case <-s.Backend().Done():
			return s.Backend().Err()
		case <-ctx.Done():
			return s.ContextError(ctx)
		}
		if err := m.handleEvents(); err != nil {
			return err
		}
	}
}

// traceSynced traces that the pass is complete.
func (m *syncer) traceSynced(ctx context.Context) {
	m.traced = m.pass
	if m.c.IsTraced() {
		core.Emit(ctx, m.c, trace.CacheSynced{Subject: m.subject(), Nodes: m.Len(), Took: time.Since(m.passBegan), Again: m.pass > 1})
	}
}

// beginPass begins a pass.
func (m *syncer) beginPass() {
	m.watches.Stop()
	m.tree.Stop()
	m.watches, m.tree = nil, nil
	if m.trees {
		m.tree = backend.NewTreeWatch(0)
	} else {
		m.watches = backend.NewWatchSet()
	}
	m.passes++
	m.pass, m.passBegan = m.passes, time.Now()
	m.dataOf = make(map[*backend.Watch]*node)
	m.listOf = make(map[*backend.Watch]*node)
	m.pending = make(map[string]*node)
	m.queue, m.next = nil, 0
	m.rootMissing = false
	m.visited, m.incomplete = 0, 0
	m.root = m.nodes[m.path.Given()]
	if m.root == nil {
		m.root = &node{path: m.path.Full()}
	}
	m.markIncomplete(m.root)
	if m.trees {
		m.queue = append(m.queue, task{n: m.root, arm: true}) // the root is read when the tree is armed
		return
	}
	m.queueData(m.root)
}

// handleEvents handles the events that precede the next reply: a new contact, the changes of
// the tree, and the watches that have fired.
func (m *syncer) handleEvents() error {
	for again := true; again; {
		select {
		case <-m.changed:
			var phase backend.Phase
			phase, m.changed = m.s.Backend().Status()
			if phase == backend.PhaseConnected {
				m.beginPass()
			}
		default:
			again = false
		}
	}
	changes, over := m.tree.Take()
	if over {
		// Without contact the next pass begins with the next contact.
		if phase, _ := m.s.Backend().Status(); phase == backend.PhaseConnected {
			m.beginPass()
		}
		return nil
	}
	for _, c := range changes {
		if err := m.handleTreeChange(c); err != nil {
			return err
		}
	}
	for _, w := range m.watches.Take() {
		n, list := m.dataOf[w], false
		if n == nil {
			n, list = m.listOf[w], true
		}
		m.forgetWatch(w)
		switch {
		case n == nil || n.isGone():
		case w.Kind() == backend.Deleted:
			m.remove(n)
		case list:
			m.queueList(n)
		default:
			if n == m.root {
				m.rootMissing = false
			}
			m.queueData(n)
		}
	}
	return nil
}

// handleTreeChange handles a change of the tree.
func (m *syncer) handleTreeChange(c backend.TreeChange) error {
	n := m.find(c.Path)
	if n != nil && n.pass != m.pass {
		n = nil // its parent's children have yet to be listed
	}
	switch {
	case c.Kind == backend.TreeDeleted:
		if n != nil {
			m.remove(n)
		}
	case n != nil && c.Kind == backend.TreeChanged:
		m.queueData(n)
	case c.Kind != backend.TreeCreated:
	case c.Path == m.root.path:
		// A change after the creation can be included. The read under way may show neither.
		m.queueData(m.root)
		if m.root.state&dataInFlight != 0 {
			m.root.state |= listedDuringRead
		}
	default:
		dir := m.find(cmp.Or(nodepath.Parent(c.Path), "/"))
		switch {
		case dir == nil || dir.pass != m.pass:
		case dir.state&dataRead != 0:
			return m.handleName(dir, nodepath.Base(c.Path))
		default:
			dir.state |= childCreated
		}
	}
	return nil
}

// find returns the node at a path with the namespace, whether it is in the copy or yet
// to be read, or nil.
func (m *syncer) find(full string) *node {
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
	if n == nil || n.isGone() {
		return nil
	}
	return n
}

// forgetWatch removes the watch from the maps.
func (m *syncer) forgetWatch(w *backend.Watch) {
	delete(m.dataOf, w)
	delete(m.listOf, w)
}

// visit resets the state of the node if it belongs to an earlier pass.
func (m *syncer) visit(n *node) {
	if n.pass != m.pass {
		n.pass, n.state = m.pass, 0
		m.visited++
	}
}

// queueData queues a read of the node's data. If a read is under way, another one follows it.
func (m *syncer) queueData(n *node) {
	m.enqueue(task{n: n}, dataQueued, dataInFlight, dataAgain)
}

// queueList queues a read of the names of the node's children in the same way.
func (m *syncer) queueList(n *node) {
	m.enqueue(task{n: n, list: true}, listQueued, listInFlight, listAgain)
}

func (m *syncer) enqueue(t task, queued, inFlight, again readState) {
	m.visit(t.n)
	switch {
	case t.n.state&inFlight != 0:
		t.n.state |= again
	case t.n.state&queued == 0:
		t.n.state |= queued
		m.queue = append(m.queue, t)
	}
}

// markIncomplete makes Synced wait for the node.
func (m *syncer) markIncomplete(n *node) {
	m.visit(n)
	if n.state&incomplete == 0 {
		n.state |= incomplete
		m.incomplete++
	}
}

// markComplete ends the wait of Synced for the node, and closes Synced after the last such node.
func (m *syncer) markComplete(n *node) {
	if n.pass != m.pass || n.state&incomplete == 0 {
		return
	}
	n.state &^= incomplete
	m.incomplete--
	if m.incomplete > 0 {
		return
	}
	select {
	case <-m.synced:
	default:
		close(m.synced)
	}
}

// startReads starts queued reads, as many at a time as the limits allow.
func (m *syncer) startReads(ctx context.Context) error {
	most, size := maxReads, 1
	if m.batches {
		most, size = maxBatches, batchSize
	}
	for m.inFlight < most {
		batch := m.nextBatch(size)
		if len(batch) == 0 {
			return nil
		}
		m.inFlight++
		tree := m.tree
		if !m.c.GoWork(func() { m.replies <- readBatch(ctx, m.s.Backend(), tree, batch) }) {
			m.inFlight--
			return backend.ErrClosed
		}
	}
	return nil
}

// nextBatch takes up to size tasks from the queue.
func (m *syncer) nextBatch(size int) (batch []reply) {
	for len(batch) < size && m.next < len(m.queue) {
		t := m.queue[m.next]
		m.queue[m.next] = task{}
		m.next++
		if m.next == len(m.queue) {
			m.queue, m.next = m.queue[:0], 0
		} else if m.next > 1024 && m.next > len(m.queue)/2 {
			m.queue = append([]task(nil), m.queue[m.next:]...)
			m.next = 0
		}
		if t.n.isGone() {
			m.discard(t.n)
			continue
		}
		r := reply{task: t, pass: m.pass, watch: m.watches.New()}
		switch {
		case t.arm:
		case t.list:
			t.n.state = t.n.state&^listQueued | listInFlight
		default:
			t.n.state = t.n.state&^dataQueued | dataInFlight
			r.exists = t.n == m.root && m.rootMissing
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
func readBatch(ctx context.Context, b backend.Session, tree *backend.TreeWatch, batch []reply) []reply {
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
func (r reply) read(ctx context.Context, b backend.Session, tree *backend.TreeWatch) reply {
	armed := false
	switch {
	case r.arm:
		r.err = b.WatchTree(ctx, r.n.path, tree)
	case r.list:
		r.names, r.stat, r.err = b.Children(ctx, r.n.path, r.watch)
	case r.exists:
		// The purpose is a watch for the creation of the node.
		_, r.err = b.Exists(ctx, r.n.path, r.watch)
		armed = errs.IsNotFound(r.err)
	default:
		r.data, r.stat, r.err = b.Get(ctx, r.n.path, r.watch)
	}
	if !armed && (r.exists || r.err != nil) {
		r.watch.Stop()
	}
	return r
}
