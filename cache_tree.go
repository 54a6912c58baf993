package coord

import "github.com/go-coord/coord/backend"

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

// withChildren returns stat with the fields about children of other, if these are
// newer.
func withChildren(stat, other backend.Stat) backend.Stat {
	if other.Pzxid >= stat.Pzxid {
		stat.Pzxid, stat.Cversion, stat.NumChildren = other.Pzxid, other.Cversion, other.NumChildren
	}
	return stat
}
