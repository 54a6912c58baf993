package etcd

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
)

// commit is a call of Commit under way.
type commit struct{ done chan struct{} }

// Commit applies the operations in one transaction. The first try assumes what the session has
// seen of the nodes, or the usual: that a node to create is missing, that one to delete has no
// children. Its compares test every assumption. If one fails, the same request returns the
// nodes as they are. They show the operation to blame, or else what the next try has to assume.
func (s *session) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if err := s.Limits().Refuse(ops); err != nil {
		return nil, err
	}
	if ops[0].Kind == backend.OpCreate && ops[0].Mode == backend.Container && !s.cfg.has.Has(backend.Containers) {
		return nil, &backend.Error{Op: "create", Path: ops[0].Path, Err: backend.ErrUnsupported}
	}
	results, err := s.commit(ctx, ops)
	if err == nil {
		return results, nil
	}
	var e *backend.Error
	if errors.As(err, &e) {
		return nil, err
	}
	e = &backend.Error{Op: "commit", Path: ops[0].Path, Index: -1, Err: err}
	if len(ops) == 1 {
		e.Op = ops[0].Kind.String()
	}
	return nil, e
}

func (s *session) commit(ctx context.Context, ops []backend.Op) ([]backend.Result, error) {
	if err := s.contextError(ctx); err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	c := &commit{done: make(chan struct{})}
	s.mu.Lock()
	s.commits[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.commits, c)
		s.mu.Unlock()
		close(c.done)
	}()
	var sent string // see send
	results, err := s.try(ctx, ops, &sent)
	if err != nil && sent != "" {
		s.doubt(sent)
		err = backend.Uncertain(err)
	}
	if err == nil || backend.IsUncertain(err) {
		s.noteDeleted(ops)
	}
	return results, err
}

// try is commit. If it fails and sent is a key, the deletion of that key may still happen.
func (s *session) try(ctx context.Context, ops []backend.Op, sent *string) ([]backend.Result, error) {
	nodes := nodesOf(ops)
	p := s.guess(ops)
	for tries := 0; ; {
		l, err := s.contact(ctx)
		if err != nil {
			return nil, err
		}
		if p != nil && s.horizon(l.revision.Load()) >= p.beyond {
			p.drop(s)
			p = nil // the service has come near a revision that the plan does not compare
		}
		if p == nil || s.inDoubt() {
			on, stop := l.call(ctx)
			if err = s.settle(on, l); err == nil && p == nil {
				var views map[string]*view
				if views, err = s.inspect(on, l, nodes); err == nil {
					p, err = s.exactly(ops, views)
				}
			}
			stop()
		}
		if over := s.over(ctx); over != nil {
			return nil, over
		}
		if err != nil {
			switch s.judge(l, err) {
			case refused:
				return nil, translate(err)
			case throttled:
				tries++
				s.pause(ctx, tries)
			case again:
			default:
				l.fail(err)
			}
			continue
		}
		before := l.revision.Load()
		on, stop := l.call(ctx)
		reply, err := s.send(on, l, p, nodes)
		full := is(err, rpctypes.ErrGRPCNoSpace) && s.mayHaveRun(on, l, p, before)
		stop()
		s.checkLease()
		if err != nil {
			over := s.over(ctx)
			what := unknown
			if over == nil {
				what = s.judge(l, err)
			}
			switch what {
			case refused:
				if over := s.over(ctx); over != nil {
					return nil, over
				}
				if full {
					return nil, backend.Uncertain(translate(err))
				}
				return nil, translate(err)
			case throttled:
				tries++
				s.pause(ctx, tries)
				continue
			case stale:
				l.fail(err)
				continue
			}
			if over == nil {
				l.fail(err)
				over = s.over(ctx)
			}
			if p.alone != "" {
				*sent = p.alone
				if over == nil {
					continue
				}
				return nil, over
			}
			s.doubt("")
			if over == nil {
				over = fmt.Errorf("etcd: %v", err) // only shown
			}
			return nil, backend.Uncertain(over)
		}
		if over := s.over(context.Background()); over != nil {
			return nil, backend.Uncertain(over)
		}
		if p.alone != "" {
			s.known.forget(ops[0].Path)
			if *sent == "" {
				s.keys.giveBack(p.alone)
			}
		}
		if p.alone != "" && reply.Responses[0].GetResponseDeleteRange().Deleted == 0 {
			// The key was that of an earlier node. There can be another one of its path.
			if *sent != "" {
				*sent = ""
				return nil, backend.Uncertain(errGone)
			}
			p = nil
			continue
		}
		if reply.Succeeded {
			return p.results(s, reply), nil
		}
		p.drop(s)
		views, err := s.refusal(reply, p, nodes)
		if errors.Is(err, errAgain) {
			p = nil
			continue
		}
		if err != nil {
			if over := s.over(ctx); over != nil {
				return nil, over
			}
			return nil, translate(err)
		}
		if p = nil; views != nil {
			if p, err = s.exactly(ops, views); err != nil && !errors.Is(err, errAgain) {
				return nil, err
			}
		}
	}
}

// mayHaveRun reports whether a transaction may have been applied although the server says that its
// database has reached its quota: a server that finds so when it applies a transaction reports that
// and has applied it. before is a revision from before the transaction was sent. The server has
// handled it, so a read now shows what it has written.
func (s *session) mayHaveRun(ctx context.Context, l *link, p *plan, before int64) bool {
	look := []*pb.RequestOp{head(s.key)}
	for _, w := range p.writes {
		if put := w.GetRequestPut(); put != nil {
			look = append(look, head(string(put.Key)))
		}
	}
	reply, err := l.kv.Txn(ctx, &pb.TxnRequest{Success: look})
	if err != nil {
		return true
	}
	if reply.Header.Revision == before {
		return false
	}
	for _, r := range reply.Responses[1:] {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 && kvs[0].ModRevision <= before {
			return false // it is as it was
		}
	}
	return true
}

// doubt records a commit of unknown outcome, or a lone deletion of a key.
func (s *session) doubt(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubts++
	if key != "" {
		s.unsure = append(s.unsure, key)
	}
}

// underWay returns channels that are closed when the commits under way have returned.
func (s *session) underWay() []<-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []<-chan struct{}
	for c := range s.commits {
		all = append(all, c.done)
	}
	return all
}

// nodesOf returns the nodes that decide about the operations: those that they name, and the
// parents of new ones. Only a deletion depends on the children of a node.
func nodesOf(ops []backend.Op) []question {
	var all []question
	seen := make(map[string]int, 2*len(ops))
	add := func(path string, alone bool) {
		at, ok := seen[path]
		if !ok {
			at = len(all)
			seen[path] = at
			all = append(all, question{path: path, since: -1, alone: true})
		}
		all[at].alone = all[at].alone && alone
	}
	for i := range ops {
		op := &ops[i]
		if op.Kind == backend.OpCreate || op.Kind == backend.OpAbsent {
			dir, _ := split(op.Path)
			add(dir, true)
		}
		if op.Kind != backend.OpCreate || !op.Mode.Sequential() {
			add(op.Path, op.Kind != backend.OpDelete)
		}
	}
	return all
}

// mostReread is the size of the paths that a request has a second time, for the case that its plan
// fails. Longer ones cost a request of their own then.
const mostReread = 64 << 10

var errGone = errors.New("etcd: the node was deleted, by this commit or before it")

// mostAlone is the size of the keys that settle deletes in one transaction, which names each twice.
const mostAlone = 1 << 18

// send sends a plan. The key of an ephemeral, sequential node of this session goes with the lease, and
// is that of no other node while the commit has its claim, see keyring. So its deletion, if it is all
// that a commit does, needs no compare, not even of the epoch: it can be sent again, and one that
// arrives late does nothing, once the key is deleted. So settle deletes the keys for which the outcome
// is not known; no node gets them again. The reply tells whether there was the key.
func (s *session) send(ctx context.Context, l *link, p *plan, nodes []question) (*pb.TxnResponse, error) {
	if p.alone == "" {
		return l.kv.Txn(ctx, s.request(p, nodes, l.revision.Load()))
	}
	reply, err := l.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte(p.alone)})
	if err != nil {
		return nil, err
	}
	answer := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: reply}}
	return &pb.TxnResponse{Header: reply.Header, Succeeded: true, Responses: []*pb.ResponseOp{answer}}, nil
}

// request returns the request for a plan. If the plan fails, the reply has the session key and,
// where they fit, the nodes. A plan that hardly ever fails is the smaller without them: clients and
// servers handle the reads of both branches, and servers write them to their logs.
func (s *session) request(p *plan, nodes []question, rev int64) *pb.TxnRequest {
	s.mu.Lock()
	epoch := s.epoch
	s.mu.Unlock()
	r := &pb.TxnRequest{Compare: append([]*pb.Compare{s.inEpoch(epoch)}, p.compares...), Success: p.requests(s)}
	p.readers = p.readers[:0]
	if p.likely {
		return r
	}
	r.Failure = []*pb.RequestOp{get(s.key)}
	size := 0
	for _, q := range nodes {
		reader := s.reader(q, rev)
		size += len(reader.ops) * len(q.path)
		if len(r.Failure)+len(reader.ops) > mostRequests || size > mostReread {
			p.readers, r.Failure = nil, r.Failure[:1]
			break
		}
		p.readers = append(p.readers, reader)
		r.Failure = append(r.Failure, reader.ops...)
	}
	return r
}

// refusal reads the reply to a plan that has failed. It returns nil if the reply does not have
// the nodes.
func (s *session) refusal(reply *pb.TxnResponse, p *plan, nodes []question) (map[string]*view, error) {
	answers := reply.Responses
	if p.likely {
		return nil, nil
	}
	if err := s.checkEpoch(answers[0].GetResponseRange()); err != nil {
		return nil, err
	}
	answers = answers[1:]
	if len(p.readers) < len(nodes) {
		return nil, nil
	}
	views := make(map[string]*view, len(nodes))
	for _, r := range p.readers {
		v, err := r.view(s, reply.Header.Revision, answers[:len(r.ops)])
		if err != nil {
			return nil, err
		}
		views[v.path], answers = v, answers[len(r.ops):]
	}
	return views, nil
}

// inspect reads the nodes that decide about a commit, all as of one revision. It begins each
// request with the session key: this is no read of the caller's.
func (s *session) inspect(ctx context.Context, l *link, nodes []question) (map[string]*view, error) {
	views := make(map[string]*view, len(nodes))
	rev := int64(0)
	for len(nodes) > 0 {
		ops := []*pb.RequestOp{get(s.key)}
		var readers []*reader
		for _, q := range nodes {
			r := s.reader(q, l.revision.Load())
			if len(readers) > 0 && len(ops)+len(r.ops) > mostRequests {
				break
			}
			readers, ops = append(readers, r), append(ops, r.ops...)
		}
		for _, op := range ops[1:] {
			op.GetRequestRange().Revision = rev
		}
		reply, err := l.kv.Txn(ctx, &pb.TxnRequest{Success: ops})
		if is(err, rpctypes.ErrGRPCCompacted) {
			return nil, errAgain // the first part is too old for the others by now
		}
		if err != nil {
			return nil, err
		}
		if err := s.checkEpoch(reply.Responses[0].GetResponseRange()); err != nil {
			return nil, err
		}
		if rev == 0 {
			rev = reply.Header.Revision
		}
		answers := reply.Responses[1:]
		for _, r := range readers {
			v, err := r.view(s, rev, answers[:len(r.ops)])
			if err != nil {
				return nil, err
			}
			views[v.path], answers = v, answers[len(r.ops):]
		}
		nodes = nodes[len(readers):]
	}
	return views, nil
}
