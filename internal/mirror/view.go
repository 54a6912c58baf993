package mirror

import (
	"iter"
	"sync"

	"github.com/go-coord/coord/internal/layout"
)

// A View keeps one decoded value for each version of the nodes of a Cache that were read. It
// leaves out nodes that belong to the library.
type View[V any] struct {
	k      *Cache
	decode func(path string, n Node) V

	mu      sync.RWMutex // Cache.mu may be taken while mu is held, not the other way round
	decoded map[string]*viewed[V]
}

// viewed is the value of one version of a node.
type viewed[V any] struct {
	of    Version
	value func() V // decodes at the first call
}

// NewView returns a view of the cache. decode runs without a lock, once for each version.
func NewView[V any](k *Cache, decode func(path string, n Node) V) *View[V] {
	return &View[V]{k: k, decode: decode, decoded: make(map[string]*viewed[V])}
}

// Get returns the value of the node at path, and whether the copy has one.
func (v *View[V]) Get(path string) (value V, ok bool) {
	v.mu.RLock()
	n, ok := v.k.Get(path)
	d := v.decoded[path]
	v.mu.RUnlock()
	if !ok || isStructure(path, n) {
		return value, false
	}
	if d == nil || d.of != n.Version() {
		v.mu.Lock()
		// The copy may have changed. Read under the lock, it only moves forward.
		if n, ok = v.k.Get(path); !ok || isStructure(path, n) {
			v.mu.Unlock()
			return value, false
		}
		if d = v.decoded[path]; d == nil || d.of != n.Version() {
			d = v.store(path, n)
		}
		v.mu.Unlock()
	}
	return d.value(), true
}

// isStructure reports whether a node belongs to the library and is no value: a directory, which is
// above recipes or of one, or a pin, see layout.Pin.
func isStructure(path string, n Node) bool {
	_, marked := layout.ParseMark(n.Data)
	return marked || layout.IsDirectory(n.Data, n.Stat) || layout.HasPin(path)
}

// All returns an iterator over the values of the node at path and of all nodes below it, as they
// are when the loop begins, in the order of their paths.
func (v *View[V]) All(path string) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
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
func (v *View[V]) at(path string, n Node) V {
	v.mu.RLock()
	d := v.decoded[path]
	v.mu.RUnlock()
	if d == nil || d.of != n.Version() {
		v.mu.Lock()
		now, ok := v.k.Get(path)
		switch d = v.decoded[path]; {
		case d != nil && d.of == n.Version():
		case ok && now.Version() == n.Version():
			d = v.store(path, n)
		default:
			d = v.lazy(path, n) // this loop alone still sees this version
		}
		v.mu.Unlock()
	}
	return d.value()
}

// store keeps the value of the present version of a node. The caller holds mu.
func (v *View[V]) store(path string, n Node) *viewed[V] {
	d := v.lazy(path, n)
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

// lazy returns a value that is decoded when it is read.
func (v *View[V]) lazy(path string, n Node) *viewed[V] {
	return &viewed[V]{of: n.Version(), value: sync.OnceValue(func() V { return v.decode(path, n) })}
}
