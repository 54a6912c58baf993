package coord

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// take handles a reply.
func (m *mirror) take(r cacheReply) error {
	if r.pass != m.pass {
		r.watch.Stop()
		return nil
	}
	if errors.Is(r.err, backend.ErrUnsupported) && (r.arm || r.all) {
		m.trees, m.batches = m.trees && !r.arm, false
		m.begin()
		return nil
	}
	n := r.n
	if r.arm {
		if r.err == nil {
			m.wantData(n)
		}
		return r.err
	}
	if r.list {
		n.state &^= listFlying
	} else {
		n.state &^= dataFlying
	}
	if n.lost() {
		r.watch.Stop()
		m.drop(r.watch)
		m.giveUp(n)
		return nil
	}
	if r.err != nil && !core.IsNotFound(r.err) {
		return r.err
	}
	if r.list {
		return m.takeList(n, r)
	}
	switch {
	case r.exists:
		m.takeExists(n, r)
	case r.err != nil:
		m.takeMissing(n, r)
	default:
		m.takeData(n, r)
	}
	return nil
}

// takeExists handles the reply to the Exists of a missing root.
func (m *mirror) takeExists(n *cacheNode, r cacheReply) {
	again := n.state&dataAgain != 0
	n.state &^= dataAgain
	if r.err == nil {
		m.drop(r.watch)
		m.absent = false
		m.wantData(n)
		return
	}
	m.settle(n)
	if again {
		m.wantData(n)
	}
}

// takeMissing handles the reply that there is no node.
func (m *mirror) takeMissing(n *cacheNode, r cacheReply) {
	m.drop(r.watch)
	again := n.state&foundAnew != 0
	n.state &^= dataAgain | foundAnew
	if again {
		m.wantData(n)
		return
	}
	m.remove(n)
}

// takeData handles the data of a node.
func (m *mirror) takeData(n *cacheNode, r cacheReply) {
	data := r.data[:len(r.data):len(r.data)]
	again := n.state&dataAgain != 0
	n.state &^= dataAgain | foundAnew
	switch {
	case !n.in:
		delete(m.pending, m.given(n.path))
		n.data, n.stat = data, r.stat
		m.change(nil, n)
	case n.stat.Czxid == r.stat.Czxid:
		if n.stat.Mzxid == r.stat.Mzxid && bytes.Equal(n.data, data) { // it can be of another history
			data = n.data // unchanged: keep one copy
		}
		stat := r.stat
		if n.state&verified != 0 { // else that of the copy can be of another history
			stat = withChildren(stat, n.stat)
		}
		m.set(n, data, stat)
	default:
		// This is another node at the same path: nothing of the old one remains.
		fresh := &cacheNode{path: n.path, parent: n.parent, data: data, stat: r.stat}
		if n.state&unsettled != 0 {
			m.unsettle(fresh)
		}
		out := n.below()
		m.change(out, fresh)
		m.giveUp(out...)
		if n == m.root {
			m.root = fresh
		}
		m.touch(fresh)
		fresh.state |= childCame
		if m.dataOf[r.watch] != nil { // else the watch has fired
			m.dataOf[r.watch] = fresh
		}
		n = fresh
	}
	first := n.state&verified == 0
	n.state |= verified
	switch {
	case n.ephemeral():
		m.settle(n)
	case first && m.trees && r.stat.NumChildren == 0 && n.state&childCame == 0:
		m.listed(n) // every later child is reported
	case first:
		m.wantList(n)
	}
	if again {
		m.wantData(n)
	}
}

// takeList handles the names of a node's children.
func (m *mirror) takeList(n *cacheNode, r cacheReply) error {
	again := n.state&listAgain != 0
	n.state &^= listAgain
	// With trees a new node in place of the known one was reported before this reply.
	if r.err != nil || !m.trees && r.stat.Czxid != n.stat.Czxid {
		// This is not the known node, which is gone: a read of the data that begins
		// now finds another node, or none.
		r.watch.Stop()
		m.drop(r.watch)
		m.wantData(n)
		return nil
	}
	m.set(n, n.data, withChildren(n.stat, r.stat))
	for _, name := range r.names {
		if err := m.named(n, name); err != nil {
			return err
		}
	}
	m.listed(n)
	if again {
		m.wantList(n)
	}
	return nil
}

// listed notes that all children of the node are known.
func (m *mirror) listed(n *cacheNode) {
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
	m.settle(n)
}

// named handles one name in a list of children.
func (m *mirror) named(parent *cacheNode, name string) error {
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
	fresh := n == nil || n.lost()
	if !fresh && n.pass == m.pass {
		if n.state&dataFlying != 0 {
			n.state |= foundAnew
		}
		return nil
	}
	if fresh {
		path := string(m.buf)
		if m.c.Rules().CheckPath(path) != nil {
			return nil // it cannot be read
		}
		n = &cacheNode{path: path, parent: parent}
	}
	// Only nodes that this pass has met count: others in the copy may be gone.
	if m.limit > 0 && m.met >= m.limit {
		return fmt.Errorf("%w: the tree has more than %d nodes", ErrLimit, m.limit)
	}
	if fresh {
		m.pending[m.given(n.path)] = n
	}
	m.wantData(n)
	if parent.state&unsettled != 0 {
		m.unsettle(n)
	}
	return nil
}

// remove removes a deleted node from the copy, with everything below it.
func (m *mirror) remove(n *cacheNode) {
	if n == m.root {
		// The root may be created again.
		m.root = &cacheNode{path: n.path}
		if !m.trees {
			if n.state&unsettled != 0 {
				m.unsettle(m.root)
			}
			m.absent = true
			m.wantData(m.root)
		}
	}
	if !n.in {
		m.giveUp(n)
		return
	}
	out := n.below()
	m.change(out, nil)
	m.giveUp(out...)
}

// giveUp makes the pass ignore the nodes from now on. Nodes below them that are
// still queued are given up when their turn comes.
func (m *mirror) giveUp(nodes ...*cacheNode) {
	for _, n := range nodes {
		if !n.gone && n.pass == m.pass {
			m.met--
		}
		n.gone = true
		if path := m.given(n.path); m.pending[path] == n {
			delete(m.pending, path)
		}
		m.settle(n)
	}
}
