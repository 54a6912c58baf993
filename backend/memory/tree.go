package memory

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// tree holds the nodes and the counter of commits. All methods need the store's mutex.
type tree struct {
	zxid  int64
	end   int64                         // the highest sequence number
	nodes map[string]*node              // by path
	owned map[int64]map[string]struct{} // the paths of the ephemeral nodes of each open session that has had any

	revisions bool          // see Options.Revisions
	spares    bool          // see Options.Spares
	ahead     time.Duration // see Store.SetClock
}

type node struct {
	data      []byte
	czxid     int64
	mzxid     int64
	pzxid     int64
	ctime     int64
	mtime     int64
	owner     int64
	version   int32
	created   int64 // children ever created: the next sequence number
	container bool
	children  map[string]struct{} // nil until the first
}

func newTree() tree {
	return tree{end: math.MaxInt32, nodes: map[string]*node{"/": {}}, owned: make(map[int64]map[string]struct{})}
}

// changedAfter reports whether the children of n, or its data, have changed in a
// commit after since.
func (n *node) changedAfter(since int64, children bool) bool {
	if children {
		return n.pzxid > since
	}
	return n.mzxid > since
}

// stat returns the metadata of n as of the latest commit.
func (t *tree) stat(n *node) backend.Stat { return t.statAt(n, t.zxid) }

// statAt is stat during the commit zxid.
func (t *tree) statAt(n *node, zxid int64) backend.Stat {
	return backend.Stat{
		Czxid: n.czxid, Mzxid: n.mzxid, Pzxid: n.pzxid,
		Ctime: n.ctime, Mtime: n.mtime,
		Version: n.version,
		// ZooKeeper counts creations and reports creations and deletions.
		Cversion:       int32(2*n.created - int64(len(n.children))),
		EphemeralOwner: n.owner,
		DataLength:     int32(len(n.data)),
		NumChildren:    int32(len(n.children)),
		Container:      n.container && t.spares,
		AsOf:           zxid,
	}
}

// names returns the children's names in order.
func (n *node) names() []string {
	names := make([]string, 0, len(n.children))
	for name := range n.children {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// read answers one read of many.
func (t *tree) read(r backend.Read) (result backend.ReadResult) {
	n := t.nodes[r.Path]
	switch {
	case n == nil:
		op := "get"
		if r.Children {
			op = "children"
		}
		result.Err = &backend.Error{Op: op, Path: r.Path, Err: backend.ErrNotFound}
	case r.Children:
		result.Names = n.names()
	default:
		result.Stat = t.stat(n)
		if len(n.data) > 0 {
			result.Data = slices.Clone(n.data)
		}
	}
	return result
}

// put adds a node, or one that is there already.
func (t *tree) put(path string, n *node) {
	t.nodes[path] = n
	if n.owner == 0 {
		return
	}
	if t.owned[n.owner] == nil {
		t.owned[n.owner] = make(map[string]struct{})
	}
	t.owned[n.owner][path] = struct{}{}
}

// remove removes a node.
func (t *tree) remove(path string, n *node) {
	delete(t.nodes, path)
	delete(t.owned[n.owner], path)
}

// ephemerals returns the paths of a session's ephemeral nodes in order.
func (t *tree) ephemerals(owner int64) []string { return slices.Sorted(maps.Keys(t.owned[owner])) }

func (t *tree) emptyContainers() []string {
	var paths []string
	for p := range t.nodes {
		if t.isEmptyContainer(p) {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return paths
}

// isEmptyContainer reports whether there is a container at path that had children and has none.
func (t *tree) isEmptyContainer(path string) bool {
	n := t.nodes[path]
	return n != nil && n.container && n.created > 0 && len(n.children) == 0
}

// change collects the events of one commit and the means to undo it.
type change struct {
	events []event
	undo   []undo
	past   map[*node]int64 // children created since a counter reached its end
	named  int64           // sequential nodes
}

// reset empties c and keeps its buffers unless they have grown large.
func (c *change) reset() {
	if cap(c.undo) > 64 {
		*c = change{}
		return
	}
	clear(c.events)
	clear(c.undo)
	c.events, c.undo, c.past, c.named = c.events[:0], c.undo[:0], nil, 0
}

type event struct {
	path string
	what eventType
}

type eventType int8

const (
	created eventType = iota
	deleted
	dataChanged
	childrenChanged
)

// undo restores one node to what it was: missing, or saved. child is the name
// of a child that the commit added to or removed from the node's children.
type undo struct {
	path  string
	node  *node // nil: was missing
	saved node
	child string
	added bool
}

// apply applies all operations or none, and collects the events in c. results may be nil;
// otherwise it is as long as ops. All operations have one zxid.
func (t *tree) apply(c *change, ops []backend.Op, results []backend.Result, owner int64) error {
	zxid, now := t.zxid+1, time.Now().Add(t.ahead).UnixMilli()
	for i := range ops {
		path, stat, err := t.applyOne(c, &ops[i], zxid, now, owner)
		if err != nil {
			t.takeBack(c)
			return &backend.Error{Op: ops[i].Kind.String(), Path: ops[i].Path, Index: i, Err: err}
		}
		if results != nil {
			results[i] = backend.Result{Path: path, Stat: stat}
		}
	}
	t.zxid = zxid
	return nil
}

func (t *tree) applyOne(c *change, op *backend.Op, zxid, now, owner int64) (path string, stat backend.Stat, err error) {
	switch op.Kind {
	case backend.OpCreate:
		path, err = t.create(c, op, zxid, now, owner)
		return path, stat, err
	case backend.OpAbsent:
		_, err = t.room(op.Path)
		return "", stat, err
	}
	n := t.nodes[op.Path]
	if n == nil {
		return "", stat, backend.ErrNotFound
	}
	if op.Version != backend.AnyVersion && op.Version != n.version {
		return "", stat, backend.ErrBadVersion
	}
	if op.Kind == backend.OpCarry && t.spares {
		if !bytes.Equal(n.data, op.Data) {
			return "", stat, backend.ErrBadVersion
		}
		return "", t.statAt(n, zxid), nil
	}
	switch op.Kind {
	case backend.OpSetData, backend.OpCarry:
		c.undo = append(c.undo, undo{path: op.Path, node: n, saved: *n})
		if !bytes.Equal(n.data, op.Data) {
			n.data = slices.Clone(op.Data)
		}
		n.version++
		n.mzxid, n.mtime = zxid, now
		c.events = append(c.events, event{op.Path, dataChanged})
		stat = t.statAt(n, zxid)
	case backend.OpDelete:
		if len(n.children) > 0 {
			return "", stat, backend.ErrNotEmpty
		}
		dir, name := split(op.Path)
		parent := t.nodes[dir]
		c.undo = append(c.undo, undo{path: op.Path, node: n, saved: *n},
			undo{path: dir, node: parent, saved: *parent, child: name})
		t.remove(op.Path, n)
		delete(parent.children, name)
		parent.pzxid = zxid
		c.events = append(c.events, event{op.Path, deleted}, event{dir, childrenChanged})
	}
	return "", stat, nil
}

// room returns the parent of a node that can be created at path.
func (t *tree) room(path string) (*node, error) {
	dir, _ := split(path)
	parent := t.nodes[dir]
	switch {
	case parent == nil:
		return nil, backend.ErrNotFound
	case t.nodes[path] != nil:
		return nil, backend.ErrExists
	case parent.owner != 0:
		return nil, backend.ErrNoChildren
	}
	return parent, nil
}

func (t *tree) create(c *change, op *backend.Op, zxid, now, owner int64) (string, error) {
	path := op.Path
	dir, _ := split(path)
	if parent := t.nodes[dir]; parent != nil && op.Mode.Sequential() {
		path = appendSequence(path, t.number(c, parent, zxid))
	}
	parent, err := t.room(path)
	if err != nil {
		return "", err
	}
	name := path[strings.LastIndexByte(path, '/')+1:]
	c.undo = append(c.undo, undo{path: path}, undo{path: dir, node: parent, saved: *parent, child: name, added: true})
	n := &node{
		data:  slices.Clone(op.Data),
		czxid: zxid, mzxid: zxid, pzxid: zxid, ctime: now, mtime: now,
		container: op.Mode == backend.Container,
	}
	if op.Mode.Ephemeral() {
		n.owner = owner
	}
	t.put(path, n)
	if parent.children == nil {
		parent.children = make(map[string]struct{})
	}
	parent.children[name] = struct{}{}
	// At the end of its range ZooKeeper's counter keeps its last value, and so does this one:
	// a smaller value is not stored, nor is the zxid that belongs to it. Within one commit
	// the counter continues into the negative numbers.
	if parent.created < t.end {
		parent.created, parent.pzxid = parent.created+1, zxid
	} else {
		if c.past == nil {
			c.past = make(map[*node]int64)
		}
		c.past[parent]++
	}
	c.events = append(c.events, event{path, created}, event{dir, childrenChanged})
	return path, nil
}

// number returns the sequence number of the next child of parent. A counter overflows at its
// end, as one of ZooKeeper's 32 bits does. With revisions the number is the zxid and, below it,
// the place in the commit.
func (t *tree) number(c *change, parent *node, zxid int64) int64 {
	if t.revisions {
		c.named++
		return zxid<<24 + c.named - 1
	}
	past := c.past[parent]
	if past == 0 {
		return parent.created
	}
	return past - 1 - t.end - 1
}

// tell sets what the results of creations tell.
func (t *tree) tell(ops []backend.Op, results []backend.Result) {
	if !t.revisions {
		backend.Tell(ops, results)
		return
	}
	for i := range ops {
		if ops[i].Kind != backend.OpCreate {
			continue
		}
		results[i].Czxid = t.zxid
		dir, _ := split(ops[i].Path)
		if parent := t.nodes[dir]; parent != nil {
			results[i].Siblings = int32(len(parent.children))
		}
	}
}

func (t *tree) takeBack(c *change) {
	for i := len(c.undo) - 1; i >= 0; i-- {
		u := &c.undo[i]
		if u.node == nil {
			t.remove(u.path, t.nodes[u.path])
			continue
		}
		*u.node = u.saved
		t.put(u.path, u.node)
		if u.child == "" {
			continue
		}
		if u.added {
			delete(u.node.children, u.child)
		} else {
			u.node.children[u.child] = struct{}{}
		}
	}
}

// split returns the parent's path and the node's name. "/" is its own parent.
func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", path[i+1:]
	}
	return path[:i], path[i+1:]
}

// appendSequence appends the number to the path as ZooKeeper does: ten characters with
// leading zeros, the sign included, or more if they do not suffice.
func appendSequence(path string, v int64) string {
	var buf [128]byte
	b := append(buf[:0], path...)
	width := 10
	if v < 0 {
		b = append(b, '-')
		v, width = -v, width-1
	}
	digits := 1
	for x := v; x >= 10; x /= 10 {
		digits++
	}
	for ; digits < width; digits++ {
		b = append(b, '0')
	}
	return string(strconv.AppendInt(b, v, 10))
}
