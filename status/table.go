package status

import (
	"iter"
	"time"
)

// table is a map with at most mostKept elements. The one that was used least recently makes room:
// a program can have a queue for each of its users.
type table[K comparable, V any] struct {
	entries map[K]*entry[V]
}

type entry[V any] struct {
	v    V
	used time.Time
}

// get returns the element at k, which it makes if it is missing.
func (t *table[K, V]) get(k K, now time.Time) *V {
	e := t.entries[k]
	if e == nil {
		t.makeRoom()
		e = &entry[V]{}
		if t.entries == nil {
			t.entries = make(map[K]*entry[V])
		}
		t.entries[k] = e
	}
	e.used = now
	return &e.v
}

func (t *table[K, V]) makeRoom() {
	if len(t.entries) < mostKept {
		return
	}
	var oldest K
	var used time.Time
	for k, e := range t.entries {
		if used.IsZero() || e.used.Before(used) {
			oldest, used = k, e.used
		}
	}
	delete(t.entries, oldest)
}

// find returns the element at k, or nil.
func (t *table[K, V]) find(k K) *V {
	if e := t.entries[k]; e != nil {
		return &e.v
	}
	return nil
}

func (t *table[K, V]) remove(k K) { delete(t.entries, k) }

func (t *table[K, V]) all() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for k, e := range t.entries {
			if !yield(k, &e.v) {
				return
			}
		}
	}
}
