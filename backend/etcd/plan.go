package etcd

import (
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
	key     string  // of the node that is created, or of the node that is deleted unless that is the whole commit
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

// drop gives back the keys of a plan that was not sent, or was refused.
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
// It does so if the session knows the key for a node that was deleted, and another node of the plan has it now.
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

// write adds the put of a node that exists, and keeps its owner.
func (p *plan) write(key string, r *record) {
	w := put(key, r.value(), 0)
	w.GetRequestPut().IgnoreLease = true
	p.writes = append(p.writes, w)
}
