// Package memory is the backend for tests and single processes: the whole
// contract of package backend in one process, without a server.
//
// A Store is the service. It is a backend itself; Link returns further connections to it,
// each with faults of its own, so that one test can have several clients and partition one of
// them. Sessions of a partitioned link really expire.
//
// The store works inside a testing/synctest bubble: it uses only package time and channels to
// tell time and to wait, runs no goroutine that lasts, and does everything in a fixed order.
// It stores nothing on disk and shares nothing between processes. It takes every path that
// backend.CheckPath takes, so also some that ZooKeeper refuses.
package memory

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// Options of a Store. The zero value of a field means its default.
type Options struct {
	// SessionTimeout is how long a session outlives the contact of its link.
	// The default is 10 s.
	SessionTimeout time.Duration

	// LossMargin is how much earlier than the store the client declares a
	// session without contact lost. The default is a third of the timeout. It
	// must be less than the timeout.
	LossMargin time.Duration

	// ContainerInterval is how often the store removes its empty containers, counted from the
	// moment when the first of them became empty. A container that becomes empty by such a removal
	// is removed by the next one. A container that never had a child stays. The default is a
	// minute, as ZooKeeper's; a negative interval means never. See also Store.ReapContainers.
	ContainerInterval time.Duration

	// Without are features that the store shall not have, for tests of what replaces them.
	Without backend.Features

	// Revisions numbers the sequential nodes by their commits, as a service does that has no
	// counter for each parent: the numbers have gaps and begin anywhere, they have more than
	// ten digits in time, and each Create tells its Czxid and its Siblings. They have no end. The store
	// Spares too.
	Revisions bool

	// Spares makes a Carry write nothing, and be refused if the node has other data. A Stat tells
	// containers, which ZooKeeper hides, and a store without this option too.
	Spares bool

	// Limits of one Commit, and the end of the sequence numbers. Zero fields mean those of
	// ZooKeeper, which limits the bytes, and whose numbers end at 2^31-1.
	Limits backend.Limits
}

// A Store is one service in memory. It is safe for concurrent use. There is
// nothing to close: an unreferenced store is garbage-collected.
type Store struct {
	timeout time.Duration
	margin  time.Duration
	has     backend.Features
	limits  backend.Limits
	bad     error // the error in the options; reported by Open
	link    *Link // the store's own link, without a name

	mu       sync.Mutex // guards all below, and the links and sessions of the store
	tree     tree
	watches  watches
	links    map[string]*Link
	sessions map[int64]*session // not ended by the store yet
	lastID   int64
	full     bool   // see SetFull
	scratch  change // of the commit under way, kept for its buffers

	interval time.Duration       // see Options.ContainerInterval
	emptied  map[string]struct{} // containers whose last child was deleted; nil: there are none
	waiting  bool                // a timer runs, at the end of which they are removed
}

// New returns an empty store. Nil options mean the defaults; bad ones are
// reported by Open.
func New(o *Options) *Store {
	var opts Options
	if o != nil {
		opts = *o
	}
	st := &Store{
		timeout:  opts.SessionTimeout,
		margin:   opts.LossMargin,
		has:      (backend.Containers | backend.Trees | backend.Batches | backend.Clock) &^ opts.Without,
		limits:   opts.Limits,
		tree:     newTree(),
		watches:  watches{paths: make(map[string]*pathWatches)},
		links:    make(map[string]*Link),
		sessions: make(map[int64]*session),
		lastID:   0x1000,
		interval: opts.ContainerInterval,
	}
	if st.interval == 0 {
		st.interval = time.Minute
	}
	if st.timeout == 0 {
		st.timeout = 10 * time.Second
	}
	if st.margin == 0 {
		st.margin = st.timeout / 3
	}
	if st.limits.Bytes == 0 {
		st.limits.Bytes = backend.MaxRequest
	}
	if st.limits.Sequence == 0 {
		st.limits.Sequence = math.MaxInt32
		if opts.Revisions {
			st.limits.Sequence = math.MaxInt64
		}
	}
	st.tree.end, st.tree.revisions, st.tree.spares = st.limits.Sequence, opts.Revisions, opts.Revisions || opts.Spares
	switch l := st.limits; {
	case opts.Revisions && l.Sequence < math.MaxInt64:
		st.bad = fmt.Errorf("%w: Revisions needs the highest Sequence limit, not %d", backend.ErrInvalid, l.Sequence)
	case l.Ops < 0, l.Checks < 0, l.Bytes < 0, l.Bytes > backend.MaxRequest, l.Sequence < math.MaxInt32:
		st.bad = fmt.Errorf("%w: a limit is out of range: %+v", backend.ErrInvalid, l)
	case st.timeout < 0:
		st.bad = fmt.Errorf("%w: negative session timeout %v", backend.ErrInvalid, st.timeout)
	case st.margin < 0 || st.margin >= st.timeout:
		st.bad = fmt.Errorf("%w: loss margin %v, want 0 or more and less than session timeout %v", backend.ErrInvalid, st.margin, st.timeout)
	}
	st.link = newLink(st, "")
	return st
}

// Open starts a session that is in contact with the store for all its life.
func (st *Store) Open(ctx context.Context) (backend.Session, error) {
	return st.link.Open(ctx)
}

// Link returns the connection to the store that has this name; the same name returns the same
// link.
func (st *Store) Link(name string) *Link {
	st.mu.Lock()
	defer st.mu.Unlock()
	l := st.links[name]
	if l == nil {
		l = newLink(st, name)
		st.links[name] = l
	}
	return l
}

// SetSequence sets the number of the next sequential child of the node at path, for tests of
// the end of the number range. A store with Revisions has no such number.
func (st *Store) SetSequence(path string, next int64) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := st.tree.nodes[path]
	switch {
	case n == nil:
		return &backend.Error{Op: "set", Path: path, Err: backend.ErrNotFound}
	case st.tree.revisions:
		return &backend.Error{Op: "set", Path: path, Err: backend.ErrUnsupported}
	case next > st.tree.end:
		return &backend.Error{Op: "set", Path: path, Err: fmt.Errorf("%w: number %d, the highest is %d", backend.ErrInvalid, next, st.tree.end)}
	}
	n.created = next
	return nil
}

// SetClock makes the clock of the store, which the times of nodes are of, differ from that of the
// process. The default is no difference. A session notices no change of it, as when the clock of
// a server is set; Partition and Heal its link for what a change of servers does.
func (st *Store) SetClock(ahead time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.tree.ahead = ahead
}

// SetFull makes the store refuse, or accept again, commits that create or set a node, as etcd does when its
// database has reached its quota: their error is backend.ErrNoSpace. Commits that only check and delete continue,
// and so do reads. (Unlike etcd the store opens sessions meanwhile.)
func (st *Store) SetFull(full bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.full = full
}

// ReapContainers removes at once the containers that had children and have none now, and those
// that become empty by that. The store also does it by itself, see Options.ContainerInterval.
func (st *Store) ReapContainers() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		empty := st.tree.emptyContainers()
		if len(empty) == 0 {
			st.emptied = nil
			return
		}
		st.removeEmpty(empty)
	}
}

// collect removes the containers that were empty when the interval ended.
func (st *Store) collect() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.waiting = false
	paths := slices.Sorted(maps.Keys(st.emptied))
	st.emptied = nil
	st.removeEmpty(paths)
}

// removeEmpty removes those of the nodes that are empty containers. The caller holds mu.
func (st *Store) removeEmpty(paths []string) {
	for _, path := range paths {
		if st.tree.isEmptyContainer(path) {
			// Cannot fail: the node exists and has no children.
			_ = st.apply([]backend.Op{backend.Delete(path, backend.AnyVersion)}, nil, 0)
		}
	}
}

// noteEmptied notes the containers that the events of a commit have left empty, and starts the
// interval that ends with their removal. No timer runs while there are none, so an unused store
// does nothing. The caller holds mu.
func (st *Store) noteEmptied(events []event) {
	if st.interval < 0 {
		return
	}
	for _, e := range events {
		if e.what != deleted {
			continue
		}
		if dir, _ := split(e.path); st.tree.isEmptyContainer(dir) {
			if !st.waiting {
				st.waiting = true
				time.AfterFunc(st.interval, st.collect)
			}
			if st.emptied == nil {
				st.emptied = make(map[string]struct{})
			}
			st.emptied[dir] = struct{}{}
		}
	}
}

// endSession is the service's end of a session: it deletes the ephemerals in one commit, in
// the order of their paths. The caller holds mu.
func (st *Store) endSession(s *session) {
	if st.sessions[s.id] != s {
		return
	}
	delete(st.sessions, s.id)
	s.stopExpiry()
	if paths := st.tree.ephemerals(s.id); len(paths) > 0 {
		ops := make([]backend.Op, len(paths))
		for i, p := range paths {
			ops[i] = backend.Delete(p, backend.AnyVersion)
		}
		// Cannot fail: the nodes exist, and ephemerals have no children.
		_ = st.apply(ops, nil, 0)
	}
	delete(st.tree.owned, s.id)
}

// apply applies all operations or none, and fires the watches that they affect. The caller
// holds mu.
func (st *Store) apply(ops []backend.Op, results []backend.Result, owner int64) error {
	c := &st.scratch
	err := st.tree.apply(c, ops, results, owner)
	if err == nil {
		st.noteEmptied(c.events)
		st.watches.fire(c.events, st.tree.zxid)
	}
	c.reset()
	return err
}
