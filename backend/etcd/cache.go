package etcd

import "sync"

// cache is what a session remembers of nodes: the keys of sequential nodes, which never change while
// the nodes exist, and the headers of nodes that it has seen, which a commit needs for a write without a read before
// it. A commit compares what it took from here, so a stale entry costs a second request at most.
type cache struct {
	mu   sync.Mutex
	keys generations[keyOfNode]
	seen generations[*record]
}

// keyOfNode is the key of a sequential node. It can be that of a later node by now, with another create
// revision.
type keyOfNode struct {
	key       string
	created   int64
	ephemeral bool
}

// most is the number of entries in each of two generations.
const (
	mostKeys = 1 << 16
	mostSeen = 1 << 12
	mostData = 256 // of an entry, in bytes
)

func newCache() *cache { return new(cache) }

// key returns the key of the sequential node at path, or "".
func (c *cache) key(path string) string { return c.sequential(path).key }

// sequential returns what is known of the key of the sequential node at path.
func (c *cache) sequential(path string) keyOfNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, _ := c.keys.get(path, mostKeys)
	return k
}

func (c *cache) setKey(path string, k keyOfNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys.put(path, k, mostKeys)
}

// ephemeral reports whether the node at path was an ephemeral one when it was seen.
func (c *cache) ephemeral(path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.seen.get(path, mostSeen); ok {
		return r.ephemeral()
	}
	k, _ := c.keys.get(path, mostKeys)
	return k.ephemeral
}

func (c *cache) forgetKey(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys.remove(path)
}

// record returns the latest record of the node at path, or nil. It is not changed.
func (c *cache) record(path string) *record {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, _ := c.seen.get(path, mostSeen)
	return r
}

// see remembers a record, unless it is older than what is known of the same key. A record of
// another key replaces any: two nodes of one path can exist at once, and a session that sees the
// older one must not continue with what it knew of the other.
func (c *cache) see(path string, r *record) {
	kept := *r
	if len(kept.data) > mostData {
		kept.data = nil
		kept.mod = 0 // what it had is not known any more
	} else {
		kept.data = append([]byte(nil), kept.data...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.seen.get(path, mostSeen); ok && old.key == r.key && old.mod > r.mod {
		return
	}
	c.seen.put(path, &kept, mostSeen)
}

// forget drops what is known of a node that is missing.
func (c *cache) forget(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys.remove(path)
	c.seen.remove(path)
}

// generations is a map that forgets what was not used for long.
type generations[V any] struct{ young, old map[string]V }

func (g *generations[V]) get(key string, most int) (V, bool) {
	if v, ok := g.young[key]; ok {
		return v, true
	}
	v, ok := g.old[key]
	if ok {
		g.put(key, v, most)
	}
	return v, ok
}

func (g *generations[V]) put(key string, v V, most int) {
	if g.young == nil {
		g.young = make(map[string]V)
	}
	g.young[key] = v
	if len(g.young) > most {
		g.young, g.old = nil, g.young
	}
}

func (g *generations[V]) remove(key string) {
	delete(g.young, key)
	delete(g.old, key)
}
