package mirror

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// handleReply handles a reply.
func (m *syncer) handleReply(r reply) error {
	if r.pass != m.pass {
		r.watch.Stop()
		return nil
	}
	if errors.Is(r.err, backend.ErrUnsupported) && (r.arm || r.all) {
		m.trees, m.batches = m.trees && !r.arm, false
		m.beginPass()
		return nil
	}
	n := r.n
	if r.arm {
		if r.err == nil {
			m.queueData(n)
		}
		return r.err
	}
	if r.list {
		n.state &^= listInFlight
	} else {
		n.state &^= dataInFlight
	}
	if n.isGone() {
		r.watch.Stop()
		m.forgetWatch(r.watch)
		m.discard(n)
		return nil
	}
	if r.err != nil && !errs.IsNotFound(r.err) {
		return r.err
	}
	if r.list {
		return m.handleList(n, r)
	}
	switch {
	case r.exists:
		m.handleExists(n, r)
	case r.err != nil:
		m.handleMissing(n, r)
	default:
		m.handleData(n, r)
	}
	return nil
}

// handleExists handles the reply to the Exists of a missing root.
func (m *syncer) handleExists(n *node, r reply) {
	again := n.state&dataAgain != 0
	n.state &^= dataAgain
	if r.err == nil {
		m.forgetWatch(r.watch)
		m.rootMissing = false
		m.queueData(n)
		return
	}
	m.markComplete(n)
	if again {
		m.queueData(n)
	}
}

// handleMissing handles the reply that there is no node.
func (m *syncer) handleMissing(n *node, r reply) {
	m.forgetWatch(r.watch)
	again := n.state&listedDuringRead != 0
	n.state &^= dataAgain | listedDuringRead
	if again {
		m.queueData(n)
		return
	}
	m.remove(n)
}

// handleData handles the data of a node.
func (m *syncer) handleData(n *node, r reply) {
	data := r.data[:len(r.data):len(r.data)]
	again := n.state&dataAgain != 0
	n.state &^= dataAgain | listedDuringRead
	switch {
	case !n.inCopy:
		delete(m.pending, m.given(n.path))
		n.Data, n.Stat = data, r.stat
		m.update(nil, n)
	case n.Stat.Czxid == r.stat.Czxid:
		if n.Stat.Mzxid == r.stat.Mzxid && bytes.Equal(n.Data, data) { // it can be of another generation
			data = n.Data // unchanged: keep one copy
		}
		stat := r.stat
		if n.state&dataRead != 0 { // else that of the copy can be of another generation
			stat = withChildren(stat, n.Stat)
		}
		m.set(n, data, stat)
	default:
		// This is another node at the same path: nothing of the old one remains.
		fresh := &node{path: n.path, parent: n.parent, Node: Node{Data: data, Stat: r.stat}}
		if n.state&incomplete != 0 {
			m.markIncomplete(fresh)
		}
		out := n.below()
		m.update(out, fresh)
		m.discard(out...)
		if n == m.root {
			m.root = fresh
		}
		m.visit(fresh)
		fresh.state |= childCreated
		if m.dataOf[r.watch] != nil { // else the watch has fired
			m.dataOf[r.watch] = fresh
		}
		n = fresh
	}
	first := n.state&dataRead == 0
	n.state |= dataRead
	switch {
	case n.ephemeral():
		m.markComplete(n)
	case first && m.trees && r.stat.NumChildren == 0 && n.state&childCreated == 0:
		m.listed(n) // every later child is reported
	case first:
		m.queueList(n)
	}
	if again {
		m.queueData(n)
	}
}

// handleList handles the names of a node's children.
func (m *syncer) handleList(n *node, r reply) error {
	again := n.state&listAgain != 0
	n.state &^= listAgain
	// With trees a new node in place of the known one was reported before this reply.
	if r.err != nil || !m.trees && r.stat.Czxid != n.Stat.Czxid {
		// This is not the known node, which is gone: a read of the data that begins
		// now finds another node, or none.
		r.watch.Stop()
		m.forgetWatch(r.watch)
		m.queueData(n)
		return nil
	}
	m.set(n, n.Data, withChildren(n.Stat, r.stat))
	for _, name := range r.names {
		if err := m.handleName(n, name); err != nil {
			return err
		}
	}
	m.listed(n)
	if again {
		m.queueList(n)
	}
	return nil
}

// listed notes that all children of the node are known.
func (m *syncer) listed(n *node) {
	if n.state&listRead == 0 {
		n.state |= listRead
		// Nodes of the copy from before this pass that no list has named are gone.
		for child := n.first; child != nil; {
			at := child
			child = child.next
			if at.pass != m.pass {
				m.remove(at)
			}
		}
	}
	m.markComplete(n)
}

// handleName handles one name in a list of children.
func (m *syncer) handleName(parent *node, name string) error {
	if name == layout.Pin {
		return nil
	}
	m.buf = append(m.buf[:0], parent.path...)
	if parent.path != "/" {
		m.buf = append(m.buf, '/')
	}
	m.buf = append(m.buf, name...)
	given := m.buf[len(m.c.Root()):]
	n := m.nodes[string(given)]
	if n == nil {
		n = m.pending[string(given)]
	}
	fresh := n == nil || n.isGone()
	if !fresh && n.pass == m.pass {
		if n.state&dataInFlight != 0 {
			n.state |= listedDuringRead
		}
		return nil
	}
	if fresh {
		path := string(m.buf)
		if m.c.Rules().CheckPath(path) != nil {
			return nil // it cannot be read
		}
		n = &node{path: path, parent: parent}
	}
	// Only nodes that this pass has visited count: others in the copy may be gone.
	if m.limit > 0 && m.visited >= m.limit {
		return fmt.Errorf("%w: the tree has more than %d nodes", errs.ErrLimit, m.limit)
	}
	if fresh {
		m.pending[m.given(n.path)] = n
	}
	m.queueData(n)
	if parent.state&incomplete != 0 {
		m.markIncomplete(n)
	}
	return nil
}

// remove removes a deleted node from the copy, with everything below it.
func (m *syncer) remove(n *node) {
	if n == m.root {
		// The root may be created again.
		m.root = &node{path: n.path}
		if !m.trees {
			if n.state&incomplete != 0 {
				m.markIncomplete(m.root)
			}
			m.rootMissing = true
			m.queueData(m.root)
		}
	}
	if !n.inCopy {
		m.discard(n)
		return
	}
	out := n.below()
	m.update(out, nil)
	m.discard(out...)
}

// discard makes the pass ignore the nodes from now on. Nodes below them that are
// still queued are discarded when their turn comes.
func (m *syncer) discard(nodes ...*node) {
	for _, n := range nodes {
		if !n.gone && n.pass == m.pass {
			m.visited--
		}
		n.gone = true
		if path := m.given(n.path); m.pending[path] == n {
			delete(m.pending, path)
		}
		m.markComplete(n)
	}
}
