package coord

import "github.com/go-coord/coord/backend"

// cacheNode is a node of a Cache's copy, or one that is to be read for it. A node
// that was deleted and created again is another cacheNode.
type cacheNode struct {
	path   string // absolute, with the namespace
	parent *cacheNode

	// Once the node is in the copy these are guarded by Cache.mu: Run writes them
	// under the lock, and reads them without.
	data              []byte
	stat              backend.Stat
	first, prev, next *cacheNode // child, siblings

	// Run's own.
	pass  uint32 // that state speaks of
	state cacheState
	in    bool // it is, or was, in the copy
	gone  bool // taken out of the copy, or given up
}

// cacheState is what a pass of Run knows of a node.
type cacheState uint16

const (
	dataQueued cacheState = 1 << iota // its data is to be read
	dataFlying                        // a read of its data is under way
	dataAgain                         // and another is wanted after that
	listQueued                        // the same of its children
	listFlying
	listAgain
	listRead  // children have been read in this pass
	verified  // data has been read in this pass
	foundAnew // a list of its parent named it while a read of its data was under way
	unsettled // Synced waits for it
)

func (n *cacheNode) cached() CachedNode { return CachedNode{Data: n.data, Stat: n.stat} }

func (n *cacheNode) ephemeral() bool { return n.stat.EphemeralOwner != 0 }

// lost reports whether there is no place for the node in the copy any more.
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

// change takes nodes out of the copy, each parent before its children, and then puts
// one in; either may be missing. Who reads sees all of it or nothing.
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

// set gives a node of the copy what was read anew.
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

// unlink undoes link.
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

// nodeVersion tells apart what can stand at one path: which node it is, and which
// data it has. A version number alone does not: a node that is created again
// begins with the same. The zero nodeVersion is no node; it is not that of the service's
// root, which no commit has made.
type nodeVersion struct {
	there        bool
	czxid, mzxid int64
}

func (n *cacheNode) version() nodeVersion { return nodeVersion{true, n.stat.Czxid, n.stat.Mzxid} }

// withChildren returns stat with what it says of the children replaced by what
// other says, if that is newer.
func withChildren(stat, other backend.Stat) backend.Stat {
	if other.Pzxid >= stat.Pzxid {
		stat.Pzxid, stat.Cversion, stat.NumChildren = other.Pzxid, other.Cversion, other.NumChildren
	}
	return stat
}
