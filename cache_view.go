package coord

import (
	"iter"
	"sync"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/internal/layout"
)

// A CacheView reads the nodes of a Cache as values of type T, without a round trip. It decodes
// the data of a node once, at the first read of each version, and not at each read. It has no
// goroutine and holds nothing that needs closing: it is current as long as its Cache runs, and
// a node that is not read is not decoded. Any number of views, of different types, can use one
// Cache.
//
// If the codec refuses the data of a node, Get and All return that node with ErrDecode in Err and
// a zero Value. To keep the last good value of a single node over a bad change, use Value.Load.
//
// All readers share the memory that a Value refers to, so it must not be changed. Decode runs in
// the goroutine of the first reader of a version; other readers of that version wait for it. A
// CacheView is safe for concurrent use. A decoded value stays in memory with its node, and for
// some time after the node is deleted. The view keeps at most twice as many values as the Cache
// has nodes, and 64 more.
type CacheView[T any] struct {
	k     *Cache
	codec Codec[T]

	mu      sync.RWMutex // the Cache's mu may be taken while it is held, not the other way round
	decoded map[string]*viewed[T]
}

// viewed is the value of one version of a node.
type viewed[T any] struct {
	of    nodeVersion
	value func() Versioned[T] // decodes at the first call
}

// NewCacheView returns a view of the cache. The zero Codec is JSON.
func NewCacheView[T any](k *Cache, codec Codec[T]) *CacheView[T] {
	return &CacheView[T]{k: k, codec: codec.orJSON(), decoded: make(map[string]*viewed[T])}
}

// Get returns the value of the node at path, and whether the copy has one. A directory without a
// value has none. Cache describes the paths, and how far the copy can lag behind.
func (v *CacheView[T]) Get(path string) (Versioned[T], bool) {
	v.mu.RLock()
	n, ok := v.k.Get(path)
	d := v.decoded[path]
	v.mu.RUnlock()
	if !ok || isStructure(path, n) {
		return Versioned[T]{}, false
	}
	if d == nil || d.of != versionOf(n) {
		v.mu.Lock()
		// The copy may have changed. Read under the lock, it only moves forward.
		if n, ok = v.k.Get(path); !ok || isStructure(path, n) {
			v.mu.Unlock()
			return Versioned[T]{}, false
		}
		if d = v.decoded[path]; d == nil || d.of != versionOf(n) {
			d = v.store(path, n)
		}
		v.mu.Unlock()
	}
	return d.value(), true
}

// isStructure reports whether a node belongs to the library and is no value: a directory, which is
// above recipes or of one, or a pin, see layout.Pin.
func isStructure(path string, n CachedNode) bool {
	_, marked := layout.ParseMark(n.Data)
	return marked || layout.IsDirectory(n.Data, n.Stat) || layout.HasPin(path)
}

// All returns an iterator over the values of the node at path and of all nodes below it, in the
// order of their paths. The loop sees the copy as it was at one moment, as with Cache.Walk. Like
// Get it leaves out directories.
func (v *CacheView[T]) All(path string) iter.Seq2[string, Versioned[T]] {
	return func(yield func(string, Versioned[T]) bool) {
		for path, n := range v.k.Walk(path) {
			if isStructure(path, n) {
				continue
			}
			if !yield(path, v.at(path, n)) {
				return
			}
		}
	}
}

// at returns the value of a node that can be older than the copy.
func (v *CacheView[T]) at(path string, n CachedNode) Versioned[T] {
	v.mu.RLock()
	d := v.decoded[path]
	v.mu.RUnlock()
	if d == nil || d.of != versionOf(n) {
		v.mu.Lock()
		now, ok := v.k.Get(path)
		switch d = v.decoded[path]; {
		case d != nil && d.of == versionOf(n):
		case ok && versionOf(now) == versionOf(n):
			d = v.store(path, n)
		default:
			d = v.decode(path, n) // this loop alone still sees this version
		}
		v.mu.Unlock()
	}
	return d.value()
}

// store keeps the value of the present version of a node. The caller holds mu.
func (v *CacheView[T]) store(path string, n CachedNode) *viewed[T] {
	d := v.decode(path, n)
	v.decoded[path] = d
	if len(v.decoded) > 2*v.k.Len()+64 {
		for path := range v.decoded {
			if _, ok := v.k.Get(path); !ok {
				delete(v.decoded, path)
			}
		}
	}
	return d
}

func (v *CacheView[T]) decode(path string, n CachedNode) *viewed[T] {
	return &viewed[T]{of: versionOf(n), value: sync.OnceValue(func() Versioned[T] {
		val, err := v.codec.decode(n.Data)
		return Versioned[T]{
			Value: val, Czxid: n.Stat.Czxid, Version: n.Stat.Version, Mzxid: n.Stat.Mzxid,
			Err: core.OpError("decode", v.k.c.TreePath(path).Full(), err),
		}
	})}
}

func versionOf(n CachedNode) nodeVersion {
	return nodeVersion{true, n.Stat.Czxid, n.Stat.Mzxid, n.history}
}
