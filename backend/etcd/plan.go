package etcd

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
)

// plan is a commit as a transaction: compares, writes, and how its results are made of the
// replies.
type plan struct {
	ops      []backend.Op
	compares []*pb.Compare
	writes   []*pb.RequestOp
	counts   []string // nodes whose children are counted after the writes
	outcomes []outcome
	readers  []*reader // of the nodes, if the plan fails
	likely   bool      // it hardly ever fails, so it does not read the nodes then
	alone    string    // the key that it deletes without a compare, see session.send
	keys     []string  // of new ephemeral sequential nodes
	compared map[string]bool
	beyond   int64 // the first revision of a sequential node that the compares do not exclude
	now      int64
}

// outcome is what is known of an operation's result before its commit.
type outcome struct {
	kind    backend.OpKind
	path    string
	number  int     // the place of a sequential node, or negative
	record  *record // after a SetData or a Carry: mod is zero if it is that of the commit
	head    string  // the key whose version is to be asked for
	learned *record // what the cache learns, if the commit succeeds
	key     string  // of the node that is created, or of one that is deleted among other things
}

func newPlan(ops []backend.Op) *plan {
	return &plan{ops: ops, outcomes: make([]outcome, len(ops)), compared: make(map[string]bool), beyond: math.MaxInt64, now: time.Now().UnixMilli()}
}

func (p *plan) compare(c ...*pb.Compare) { p.compares = append(p.compares, c...) }

// once reports whether a compare is new to the plan.
func (p *plan) once(what, key string) bool {
	if p.compared[what+key] {
		return false
	}
	p.compared[what+key] = true
	return true
}

// drop gives the keys of a plan back that was not sent, or was refused.
func (p *plan) drop(s *session) { s.keys.giveBack(p.keys...) }

// countOf makes the plan count the children of a node.
func (p *plan) countOf(path string) {
	if !slices.Contains(p.counts, path) {
		p.counts = append(p.counts, path)
	}
}

// create adds the put of a new node.
func (p *plan) create(s *session, i int, newParent bool) {
	op := &p.ops[i]
	dir, _ := split(op.Path)
	r := &record{ctime: p.now, mtime: p.now, data: op.Data, container: op.Mode == backend.Container}
	if op.Mode.Ephemeral() {
		r.flags |= flagEphemeral
		r.lease = s.id
	}
	if newParent {
		r.flags |= flagNewParent
	}
	o := &p.outcomes[i]
	*o = outcome{kind: op.Kind, path: op.Path, number: -1, learned: r, key: s.cfg.literalKey(op.Path)}
	if op.Mode.Sequential() {
		p.countOf(dir) // a server visits all the children for that
		o.number = 0
		for j := range i {
			if p.outcomes[j].kind == backend.OpCreate && p.outcomes[j].number >= 0 {
				o.number++
			}
		}
		prefix := s.cfg.numbered(op.Path, o.number)
		if _, name := split(op.Path); op.Mode.Ephemeral() && len(name)+len(op.Data) <= mostNamed {
			prefix, r.name = s.cfg.nameless(dir, o.number), name
		}
		if op.Mode.Ephemeral() {
			o.key = s.keys.take(prefix)
			p.keys = append(p.keys, o.key)
		} else {
			o.key = s.keys.fresh(prefix)
		}
	}
	r.key = o.key
	p.writes = append(p.writes, put(o.key, r.value(), r.lease))
	if r.container {
		p.writes = append(p.writes, put(s.cfg.containerKey(op.Path), nil, 0))
	}
}

// requests returns the writes, and the reads that follow them.
func (p *plan) requests(s *session) []*pb.RequestOp {
	all := slices.Clone(p.writes)
	for _, path := range p.counts {
		all = append(all, count(s.cfg.kids(path)))
	}
	for i := range p.outcomes {
		if key := p.outcomes[i].head; key != "" {
			all = append(all, head(key))
		}
	}
	return all
}

// fits reports whether a server takes the transaction.
func (p *plan) fits() bool {
	n := len(p.writes) + len(p.counts)
	for i := range p.outcomes {
		if p.outcomes[i].head != "" {
			n++
		}
	}
	return len(p.compares)+1 <= mostRequests && n <= mostRequests
}

// collides reports whether the plan writes a key twice, which a server refuses whatever the compares say.
// Then the session takes the key for that of a node that is gone by now: another node of the plan has it.
func (p *plan) collides() bool {
	if len(p.writes) < 2 {
		return false
	}
	written := make(map[string]bool, len(p.writes))
	for _, w := range p.writes {
		key := w.GetRequestPut().GetKey()
		if key == nil {
			key = w.GetRequestDeleteRange().Key
		}
		if written[string(key)] {
			return true
		}
		written[string(key)] = true
	}
	return false
}

// results returns the results of a plan that has succeeded.
func (p *plan) results(s *session, reply *pb.TxnResponse) []backend.Result {
	rev := reply.Header.Revision
	answers := reply.Responses[len(p.writes):]
	counted := make(map[string]int64, len(p.counts))
	for _, path := range p.counts {
		counted[path], answers = answers[0].GetResponseRange().Count, answers[1:]
	}
	results := make([]backend.Result, len(p.ops))
	for i := range p.outcomes {
		o := &p.outcomes[i]
		switch o.kind {
		case backend.OpCreate:
			dir, _ := split(o.path)
			path := o.path
			if o.number >= 0 {
				path += fmt.Sprintf("%010d", rev*places+int64(o.number))
				ephemeral := p.ops[i].Mode.Ephemeral()
				s.known.setKey(path, keyOfNode{o.key, rev, ephemeral})
				if ephemeral {
					s.keys.created(path, o.key)
				}
			}
			results[i] = backend.Result{Path: path, Czxid: rev, Siblings: int32(counted[dir])}
			if o.learned != nil {
				o.learned.created, o.learned.mod, o.learned.puts = rev, rev, 1
				s.known.see(path, o.learned)
			}
		case backend.OpSetData, backend.OpCarry:
			r := *o.record
			if o.head != "" {
				kv := answers[0].GetResponseRange().Kvs[0]
				answers = answers[1:]
				r.puts = kv.Version
			}
			if r.mod == 0 {
				r.mod = rev
			}
			if r.created == 0 {
				r.created = rev
			}
			results[i].Stat = r.stat(counted[o.path]-p.later(i), rev)
			if o.learned != nil {
				s.known.see(o.path, &r)
			}
		case backend.OpDelete:
			s.known.forget(o.path)
			if s.keys.claim(o.path, o.key) {
				s.keys.giveBack(o.key)
			}
		}
	}
	return results
}

// later returns by how much the operations after i change the number of children of its node.
func (p *plan) later(i int) int64 {
	n := int64(0)
	for j := i + 1; j < len(p.ops); j++ {
		if dir, _ := split(p.ops[j].Path); dir != p.ops[i].Path || p.ops[j].Path == "/" {
			continue
		}
		switch p.ops[j].Kind {
		case backend.OpCreate:
			n++
		case backend.OpDelete:
			n--
		}
	}
	return n
}

// guess returns a plan by what the session has seen, or nil if it has to look first. It leaves
// everything that is unusual to exactly: nodes that several operations are for, and nodes that
// were replaced.
func (s *session) guess(ops []backend.Op) *plan {
	if s.bare {
		return nil // a guess that arrives late could delete a node that has followed
	}
	p := newPlan(ops)
	rev := int64(0)
	s.mu.Lock()
	if s.link != nil {
		rev = s.link.revision.Load()
	}
	s.mu.Unlock()
	if !s.assume(p, rev) {
		p.drop(s)
		return nil
	}
	return p
}

// assume is guess, after a revision. It returns false if the session has to look first.
func (s *session) assume(p *plan, rev int64) bool {
	ops := p.ops
	p.likely = true
	named := make(map[string]*backend.Op, len(ops))
	for i := range ops {
		op := &ops[i]
		dir, _ := split(op.Path)
		known := s.known.sequential(op.Path)
		key := known.key
		sequential := key != ""
		if !sequential {
			key = s.cfg.literalKey(op.Path)
		}
		seen := s.known.record(op.Path)
		if op.Kind != backend.OpCreate || !op.Mode.Sequential() {
			if named[op.Path] != nil {
				return false
			}
			named[op.Path] = op
		}
		switch op.Kind {
		case backend.OpCreate, backend.OpAbsent:
			fresh := false
			switch parent := named[dir]; {
			case parent != nil && parent.Kind == backend.OpCreate:
				if fresh = true; parent.Mode.Ephemeral() {
					return false
				}
			case parent != nil && parent.Kind != backend.OpCheck && parent.Kind != backend.OpSetData && parent.Kind != backend.OpCarry:
				return false
			case p.once("parent", dir):
				dirKey, r := s.known.key(dir), s.known.record(dir)
				if dirKey == "" && r == nil && s.looksSequential(dir, rev) {
					return false
				}
				if dirKey == "" {
					dirKey = s.cfg.literalKey(dir)
				}
				if r != nil && (r.key != dirKey || !r.regular()) {
					return false
				}
				if r == nil {
					p.likely = false
				}
				// A Carry shows that the parent is as it was seen.
				if r == nil || r.ephemeral() || !carries(ops, dir) {
					p.compare(compareBelow(dirKey, flagEphemeral))
				}
			}
			if op.Kind == backend.OpAbsent || !op.Mode.Sequential() {
				p.likely = false
			}
			if op.Kind == backend.OpAbsent || !op.Mode.Sequential() {
				if sequential {
					return false
				}
				if !fresh {
					p.compare(compareCreated(key, pb.Compare_EQUAL, 0))
					for _, way := range p.near(s, op.Path, rev) {
						p.compare(compareNoneOf(way.keys, after(way.keys), way.created))
					}
				}
			}
			if op.Kind == backend.OpCreate {
				p.create(s, i, fresh)
			}
			continue
		}
		// A node that the session has seen has the key that it had then, or the compares fail.
		if seen == nil && !sequential && s.looksSequential(op.Path, rev) || seen != nil && (seen.key != key || !seen.regular()) {
			return false
		}
		switch op.Kind {
		case backend.OpCheck, backend.OpDelete:
			if op.Kind == backend.OpCheck || op.Version != backend.AnyVersion || seen == nil {
				p.likely = false
			}
			if op.Kind == backend.OpDelete && len(ops) == 1 && op.Version == backend.AnyVersion && len(key) <= mostAlone && s.keys.claim(op.Path, key) {
				p.alone = key
				p.writes = append(p.writes, remove(key))
				p.outcomes[i] = outcome{kind: op.Kind, path: op.Path}
				continue
			}
			if op.Version != backend.AnyVersion {
				p.compare(compareVersion(key, pb.Compare_EQUAL, int64(op.Version)+1), compareBelow(key, flagIrregular))
			}
			switch {
			case sequential:
				p.compare(compareCreated(key, pb.Compare_EQUAL, known.created))
			case op.Version == backend.AnyVersion:
				p.compare(compareCreated(key, pb.Compare_GREATER, 0))
			}
			if op.Kind == backend.OpDelete {
				// An ephemeral node has no children.
				if !known.ephemeral {
					p.compare(compareNone(s.cfg.kids(op.Path), after(s.cfg.kids(op.Path))))
				}
				p.writes = append(p.writes, remove(key))
				p.outcomes[i] = outcome{kind: op.Kind, path: op.Path, key: known.key}
			}
		case backend.OpSetData:
			if seen == nil {
				return false
			}
			p.likely = p.likely && op.Version == backend.AnyVersion
			p.compare(compareCreated(key, pb.Compare_EQUAL, seen.created), compareBelow(key, flagIrregular))
			next := *seen
			next.mtime, next.data, next.mod = p.now, op.Data, 0
			o := outcome{kind: op.Kind, path: op.Path, record: &next, learned: &next}
			if op.Version == backend.AnyVersion {
				o.head = key
			} else {
				p.compare(compareVersion(key, pb.Compare_EQUAL, int64(op.Version)+1))
				next.puts = int64(op.Version) + 2
			}
			p.outcomes[i] = o
			p.write(key, &next)
			p.countOf(op.Path)
		case backend.OpCarry:
			if seen == nil || seen.mod == 0 || !bytes.Equal(seen.data, op.Data) {
				return false
			}
			if seen.ephemeral() && isParent(ops, op.Path) { // which relies on the Carry
				return false
			}
			p.compare(compareMod(key, seen.mod))
			p.outcomes[i] = outcome{kind: op.Kind, path: op.Path, record: seen}
			p.countOf(op.Path)
		}
	}
	// A node that has lost its children in the commit, or was given some.
	for i := range ops {
		op := &ops[i]
		if op.Kind != backend.OpCreate && op.Kind != backend.OpDelete {
			continue
		}
		dir, _ := split(op.Path)
		if parent := named[dir]; parent != nil && parent != op && parent.Kind == backend.OpDelete {
			return false
		}
	}
	return !p.collides() && p.fits()
}

// looksSequential reports whether the path can be that of a sequential node that was created up to a
// revision.
func (s *session) looksSequential(path string, rev int64) bool {
	ways, _ := near(s.cfg.sequences(path), rev)
	return len(ways) > 0
}

// near returns the ways in which a node can get the path by a sequential creation before the transaction
// is handled, if the session has seen this revision.
func (p *plan) near(s *session, path string, rev int64) []sequence {
	ways, beyond := near(s.cfg.sequences(path), s.horizon(rev))
	p.beyond = min(p.beyond, beyond)
	return ways
}

// carries reports whether a Carry of the node is among the operations.
func carries(ops []backend.Op, path string) bool {
	return slices.ContainsFunc(ops, func(op backend.Op) bool { return op.Kind == backend.OpCarry && op.Path == path })
}

// isParent reports whether the node is the parent of one that the operations want missing.
func isParent(ops []backend.Op, path string) bool {
	return slices.ContainsFunc(ops, func(op backend.Op) bool {
		dir, _ := split(op.Path)
		return (op.Kind == backend.OpCreate || op.Kind == backend.OpAbsent) && dir == path && op.Path != path
	})
}

// write adds the put of a node that exists, and keeps its owner.
func (p *plan) write(key string, r *record) {
	w := put(key, r.value(), 0)
	w.GetRequestPut().IgnoreLease = true
	p.writes = append(p.writes, w)
}

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

// exactly returns the plan for nodes as they are, or the error of the operation that they refuse. It
// returns errAgain if they are not so any more.
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

// exclusion is how a plan makes certain that a new node gets no name that a sequential node has been given
// since the nodes were read. The first costs a compare or two for each name. The others cost one for each
// directory. A server reads all the children for it, and a creation there makes it fail that does no harm:
// with together after the revision of one of the names has come, with frozen at once.
type exclusion int

const (
	apart exclusion = iota
	together
	frozen
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

// childless adds compares for a node that must have nothing below it but what the commit deletes.
// For each deletion that is one compare.
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
