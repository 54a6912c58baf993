package etcd

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
)

// state is a node while its operations are applied one after the other.
type state struct {
	path  string
	view  *view // before the commit
	named bool  // by an operation, and not only as a parent

	exists  bool
	record  *record
	version int32
	fresh   int // one more than the operation that created it, or zero
	dirty   bool
	kids    int64
	at      int // the latest operation that changed it
}

// exactly returns the plan for the nodes as they were read, or the error of the operation that they refuse.
// It returns errAgain if they have changed since.
func (s *session) exactly(ops []backend.Op, views map[string]*view) (*plan, error) {
	p := newPlan(ops)
	states := make(map[string]*state, len(views))
	for path, v := range views {
		st := &state{path: path, view: v, exists: v.found != nil, kids: v.children}
		if st.exists {
			r := *v.found
			st.record, st.version = &r, r.version()
		}
		states[path] = st
	}
	for i := range ops {
		if err := p.apply(s, states, i); err != nil {
			p.drop(s)
			return nil, &backend.Error{Op: ops[i].Kind.String(), Path: ops[i].Path, Index: i, Err: err}
		}
	}
	p.emit(s, states)
	for how := apart; how == apart || how <= frozen && !p.fits(); how++ {
		p.assert(s, states, how)
	}
	if p.collides() { // a node was deleted since, and a new one has taken its key
		p.drop(s)
		return nil, errAgain
	}
	if !p.fits() {
		p.drop(s)
		return nil, &backend.Error{Op: ops[0].Kind.String(), Path: ops[0].Path,
			Err: fmt.Errorf("%w: the commit needs %d compares and %d requests, limit %d", backend.ErrTooLarge, len(p.compares)+1, len(p.requests(s)), mostRequests)}
	}
	return p, nil
}

// apply applies one operation.
func (p *plan) apply(s *session, states map[string]*state, i int) error {
	op := &p.ops[i]
	dir, _ := split(op.Path)
	parent, st := states[dir], states[op.Path]
	if op.Kind == backend.OpCreate && op.Mode.Sequential() {
		st = nil
	}
	if st != nil {
		st.named = true
	}
	switch op.Kind {
	case backend.OpCreate, backend.OpAbsent:
		switch {
		case !parent.exists:
			return backend.ErrNotFound
		case st != nil && st.exists:
			return backend.ErrExists
		case parent.record.ephemeral():
			return backend.ErrNoChildren
		case op.Kind == backend.OpAbsent:
			return nil
		}
		if st == nil {
			p.create(s, i, parent.fresh > 0)
		} else {
			p.outcomes[i] = outcome{kind: op.Kind, path: op.Path, number: -1}
			st.exists, st.version, st.fresh, st.at = true, 0, i+1, i
			st.record = &record{key: s.cfg.literalKey(op.Path), ctime: p.now, mtime: p.now, data: op.Data, container: op.Mode == backend.Container}
			if op.Mode.Ephemeral() {
				st.record.flags, st.record.lease = flagEphemeral, s.id
			}
			if parent.fresh > 0 {
				st.record.flags |= flagNewParent
			}
		}
		parent.kids++
		return nil
	}
	switch {
	case !st.exists:
		return backend.ErrNotFound
	case op.Version != backend.AnyVersion && op.Version != st.version:
		return backend.ErrBadVersion
	}
	switch op.Kind {
	case backend.OpSetData:
		st.version++
		st.dirty, st.at = true, i
		st.record.data, st.record.mtime = op.Data, p.now
		p.outcomes[i] = p.shown(st)
		p.outcomes[i].kind = op.Kind
		p.outcomes[i].record.mod = 0
	case backend.OpCarry:
		if !bytes.Equal(st.record.data, op.Data) {
			return backend.ErrBadVersion
		}
		p.outcomes[i] = p.shown(st)
		p.outcomes[i].kind = op.Kind
	case backend.OpDelete:
		if st.kids > 0 {
			return backend.ErrNotEmpty
		}
		p.outcomes[i] = outcome{kind: op.Kind, path: op.Path}
		if found := st.view.found; found != nil {
			p.outcomes[i].key = found.key
		}
		st.exists, st.fresh, st.dirty, st.at = false, 0, false, i
		if parent != nil {
			parent.kids--
		}
	}
	return nil
}

// shown returns the outcome of an operation that returns a Stat.
func (p *plan) shown(st *state) outcome {
	p.countOf(st.path)
	r := *st.record
	r.puts, r.delta = 1, st.version
	switch {
	case st.fresh > 0:
		r.created, r.birth, r.mod = 0, 0, 0
	default:
		if st.dirty {
			r.mod = 0
		}
		r.birth = st.view.found.czxid()
		r.created = r.birth
	}
	return outcome{path: st.path, record: &r}
}

// exclusion is how a plan makes certain that a new node does not get a name that a sequential node has got
// since the nodes were read. together and frozen cost one compare for each directory, for which a server
// reads all its children. They also fail for a creation there that does no harm.
type exclusion int

const (
	apart    exclusion = iota // a compare or two for each name
	together                  // no child of the directory is of the lowest revision of the names, or a later one
	frozen                    // no child of the directory was created since the nodes were read
)

// byChange returns the states in the order of their latest changes.
func byChange(states map[string]*state) []*state {
	all := make([]*state, 0, len(states))
	for _, st := range states {
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b *state) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return len(a.path) - len(b.path)
	})
	return all
}

// assert sets the compares: the nodes are as they were read.
func (p *plan) assert(s *session, states map[string]*state, how exclusion) {
	p.compares = nil
	all := byChange(states)
	before := make(map[string]int64) // the revisions before which the children of some nodes must be created
	gone := make(map[string]*state)  // deleted, even if there is a new one
	for _, st := range all {
		if found := st.view.found; found != nil && st.named && (!st.exists || st.fresh > 0) {
			gone[st.path] = st
		}
	}
	for _, st := range all {
		found := st.view.found
		dir, _ := split(st.path)
		switch {
		case found == nil:
			first := int64(math.MaxInt64)
			for _, way := range p.near(s, st.path, st.view.rev) {
				if way.created <= st.view.rev { // the view would show it
					continue
				}
				if first = min(first, way.created); how == apart {
					p.compare(compareNoneOf(way.keys, after(way.keys), way.created))
				}
			}
			if how == frozen && first < math.MaxInt64 {
				before[dir] = st.view.rev + 1
				break
			}
			if how == together && first < math.MaxInt64 {
				before[dir] = min(first, cmp.Or(before[dir], first))
			}
			p.compare(compareCreated(s.cfg.literalKey(st.path), pb.Compare_EQUAL, 0))
		case !st.named && found.regular():
			p.compare(compareBelow(found.key, flagEphemeral))
		default:
			p.compare(compareMod(found.key, found.mod))
		}
		if gone[st.path] != nil && gone[dir] == nil && !found.ephemeral() {
			p.childless(s, st.path, gone)
		}
	}
	for dir, rev := range before {
		p.compare(compareAllBefore(s.cfg.kids(dir), rev))
	}
}

// emit adds the writes in the order of the operations.
func (p *plan) emit(s *session, states map[string]*state) {
	type write struct {
		at int
		op *pb.RequestOp
	}
	var writes []write
	n := 0
	for i := range p.ops { // those of sequential nodes, which p.create has added
		if p.outcomes[i].kind == backend.OpCreate && p.outcomes[i].number >= 0 {
			writes = append(writes, write{i, p.writes[n]})
			n++
		}
	}
	for _, st := range byChange(states) {
		found := st.view.found
		key := s.cfg.literalKey(st.path)
		var r record
		if st.exists {
			r = *st.record
			r.delta, r.birth = st.version, 0
		}
		switch {
		case !st.exists && found != nil:
			writes = append(writes, write{st.at, remove(found.key)})
		case !st.exists:
		case st.fresh > 0 && (found == nil || found.key != key):
			if found != nil {
				writes = append(writes, write{st.fresh - 1, remove(found.key)})
			}
			writes = append(writes, write{st.fresh - 1, put(key, r.value(), r.lease)})
			if r.container {
				writes = append(writes, write{st.fresh - 1, put(s.cfg.containerKey(st.path), nil, 0)})
			}
			p.outcomes[st.fresh-1].learned = &r
		case st.fresh > 0:
			// A server takes no deletion and creation of one key in a transaction. So the put
			// replaces the node, and its header says so.
			r.delta, r.birth = st.version-int32(found.puts), bornNow
			writes = append(writes, write{st.fresh - 1, put(key, r.value(), r.lease)})
		case st.dirty:
			r.delta = st.version - int32(found.puts)
			if found.czxid() != found.created {
				r.birth = found.czxid()
			}
			w := put(found.key, r.value(), 0)
			w.GetRequestPut().IgnoreLease = true
			writes = append(writes, write{st.at, w})
		}
	}
	slices.SortStableFunc(writes, func(a, b write) int { return a.at - b.at })
	p.writes = p.writes[:0]
	for _, w := range writes {
		p.writes = append(p.writes, w.op)
	}
}

// childless adds compares for a node that must have no nodes below it, except nodes that the commit
// deletes. It adds one compare, and one more for each of these deletions.
func (p *plan) childless(s *session, path string, gone map[string]*state) {
	from := s.cfg.below(path)
	end := after(from)
	var but []string
	for _, st := range gone {
		if key := st.view.found.key; from <= key && key < end {
			but = append(but, key)
		}
	}
	slices.Sort(but)
	for _, key := range but {
		if from < key {
			p.compare(compareNone(from, key))
		}
		from = key + "\x00"
	}
	p.compare(compareNone(from, end))
}
