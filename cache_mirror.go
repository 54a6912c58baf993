package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// cacheReads is how many reads of a Cache are under way at most.
const cacheReads = 32

// mirror is one session's part in keeping a Cache's copy. All of it belongs to the
// goroutine of Run, but the reads, which only send their reply.
//
// It works in passes. A pass begins with each contact: it reads the tree from the
// root down, each node before its children, with fresh watches, and keeps what is
// unchanged. When it has gone through, it follows the watches. Whatever an earlier pass
// still has under way is ignored.
//
// In a pass these hold of each node in the copy that the pass has come to:
//
//   - Its data has a watch that has not fired, or is to be read, or a read is
//     under way. The same goes for its children, unless it is ephemeral. The watch on the
//     children of its parent covers none of this: each node looks after itself, and
//     lists of children only add names.
//   - A node is taken out of the copy when it is known that it was deleted after the
//     latest list that has been handled: so the watch of that list fires for the
//     deletion, and if there is another node at the path by now, it will be found.
//     Known means, first, an event: all that has fired is handled before a reply
//     that came after it (see look), so an event that is handled now is later than every
//     list that was handled. Second, a read that began after the list was handled and
//     found nothing. If a list named the node while the read was under way, the order of
//     the two is not known, and it is read again.
type mirror struct {
	*Cache
	s       *session
	replies chan cacheReply // of capacity cacheReads: reads do not wait for Run
	flying  int             // reads under way, of all passes
	changed <-chan struct{} // the session's status may have changed

	// Of the pass at work.
	pass      uint32
	began     time.Time
	told      uint32 // the pass that Trace was told of
	ws        *backend.WatchSet
	dataOf    map[*backend.Watch]*cacheNode // watches of reads under way, and armed ones
	listOf    map[*backend.Watch]*cacheNode
	root      *cacheNode            // in the copy or not
	absent    bool                  // the root was not there: look whether it exists
	pending   map[string]*cacheNode // named by a list, and not read yet
	queue     []cacheTask
	next      int // in queue
	met       int // nodes that the pass has come to, and that are not gone
	unsettled int // those that Synced waits for
	buf       []byte
}

type cacheTask struct {
	n    *cacheNode
	list bool // of children
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

// mirror keeps the copy for as long as the session lives.
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
	// The session may read from a server that is behind the one before, and
	// what it reads is not to take the copy back.
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

// tellSynced tells that the pass has gone through.
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

// look handles what came before a reply that is to be handled: a new contact, and
// the watches that have fired.
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

// touch makes the state of the node one of this pass.
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

// send sends the reads that are due, as many as may be under way.
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

// read makes the read. A watch that is not armed is stopped.
func (r cacheReply) read(ctx context.Context, b backend.Session) cacheReply {
	armed := false
	switch {
	case r.list:
		r.names, r.stat, r.err = b.Children(ctx, r.n.path, r.watch)
	case r.exists:
		// What is wanted is a watch for the creation of the node.
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
