package mirror

import (
	"bytes"

	"github.com/go-coord/coord/backend"
)

// A Node is the state of a node of the copy. The data must not be changed.
type Node struct {
	Data       []byte
	Stat       backend.Stat // NumChildren counts the children in the copy
	generation int32        // counts other data with the same numbers: the service was restored
}

// A Version identifies a node and its data among all that can exist at one path. A version number
// alone does not suffice: a node that is created again begins with the same number. The zero
// Version means no node; it differs from that of the service's root, which no commit has made.
type Version struct {
	exists       bool
	czxid, mzxid int64
	generation   int32
}

// Version returns the version of the node.
func (n Node) Version() Version {
	return Version{true, n.Stat.Czxid, n.Stat.Mzxid, n.generation}
}

// node is a node of the copy, or one that is to be read for it. A node that was deleted and
// created again is a new node.
type node struct {
	path   string // absolute, with the namespace
	parent *node

	// Once the node is in the copy, Cache.mu guards these fields: Run writes them
	// under the lock and reads them without it.
	Node
	first, prev, next *node // first child, siblings

	// The fields below are used by Run only.
	pass   uint32 // to which state belongs
	state  readState
	inCopy bool // it is, or was, in the copy
	gone   bool // removed from the copy, or discarded
}

// readState is the state of a node in a pass of Run.
type readState uint16

const (
	dataQueued   readState = 1 << iota // its data is queued to be read
	dataInFlight                       // a read of its data is under way
	dataAgain                          // its data must be read again after the read under way
	listQueued                         // the same for the names of its children
	listInFlight
	listAgain
	listRead         // its children have been read in this pass
	dataRead         // its data has been read in this pass
	listedDuringRead // a list of its parent's children named it while a read of its data was under way
	incomplete       // Synced waits for it
	childCreated     // a child was created before its data was read in this pass
)

func (n *node) ephemeral() bool { return n.Stat.EphemeralOwner != 0 }

// isGone reports whether the node has no place in the copy any more.
func (n *node) isGone() bool { return n.gone || n.parent != nil && n.parent.gone }

// all yields the node and everything below it, each before its children.
func (n *node) all(yield func(*node) bool) {
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
func (n *node) below() []*node {
	var list []*node
	for at := range n.all {
		list = append(list, at)
	}
	return list
}

// update removes nodes from the copy, in parent-first order, and then adds one;
// either may be missing. Readers see all of the change or nothing.
func (k *Cache) update(out []*node, in *node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(out) > 0 {
		out[0].unlink()
	}
	for _, n := range out {
		path := k.given(n.path)
		delete(k.nodes, path)
		k.noteChange(path, n.Version(), false)
	}
	if in != nil {
		path := k.given(in.path)
		in.inCopy = true
		in.Stat.NumChildren = 0 // counts the children in the copy
		in.link()
		k.nodes[path] = in
		k.noteChange(path, Version{}, true)
	}
}

// set stores new data and a new stat of a node of the copy.
func (k *Cache) set(n *node, data []byte, stat backend.Stat) {
	was := n.Version()
	stat.NumChildren = n.Stat.NumChildren
	other := n.Stat.Mzxid == stat.Mzxid && !bytes.Equal(n.Data, data)
	if n.Stat == stat && !other {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.Data, n.Stat = data, stat
	if other {
		n.generation++
	}
	if n.Version() != was {
		k.noteChange(k.given(n.path), was, true)
	}
}

// link makes the node a child of its parent.
func (n *node) link() {
	if n.parent == nil {
		return
	}
	n.parent.Stat.NumChildren++
	n.next = n.parent.first
	if n.next != nil {
		n.next.prev = n
	}
	n.parent.first = n
}

// unlink reverses link.
func (n *node) unlink() {
	if n.parent != nil {
		n.parent.Stat.NumChildren--
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

// withChildren returns stat with the fields about lists of children of other, a read of
// the same node, if that is newer.
func withChildren(stat, other backend.Stat) backend.Stat {
	if other.AsOf >= stat.AsOf {
		stat.Pzxid, stat.Cversion, stat.AsOf = other.Pzxid, other.Cversion, other.AsOf
	}
	return stat
}
