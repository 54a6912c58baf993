package etcd

import (
	"bytes"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
)

// guess returns a plan that assumes what the session has seen, or nil if the session has to read
// first. It leaves unusual cases to exactly: several operations for one node, and nodes that were
// replaced.
func (s *session) guess(ops []backend.Op) *plan {
	if s.bare {
		return nil // a guess that arrives late could delete a later node
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

// assume fills the plan of guess. rev is the latest revision that the session has seen. It returns false if
// the session has to read first.
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
	// The deletion of a node below which the same commit creates or deletes nodes is left to exactly.
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

// isParent reports whether the node is the parent of a node that the operations create, or of one that must be
// missing.
func isParent(ops []backend.Op, path string) bool {
	return slices.ContainsFunc(ops, func(op backend.Op) bool {
		dir, _ := split(op.Path)
		return (op.Kind == backend.OpCreate || op.Kind == backend.OpAbsent) && dir == path && op.Path != path
	})
}
