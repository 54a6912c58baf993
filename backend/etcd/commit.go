package etcd

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// commit is a call of Commit under way. Its caller can give it up when its request was sent. Then the
// request continues, and the next calls of the session wait for its reply: that costs no request, and their
// order is kept. Only if the reply is lost, or late, the session has to begin a new epoch.
type commit struct {
	done    chan struct{}
	replies chan txnReply // capacity 1

	// Guarded by the session's mu.
	answered bool   // there is a reply for the caller
	givenUp  bool   // the caller has returned
	alone    string // see plan.alone
	doubted  bool   // the reply is waited for no longer, and the outcome counts as unknown
}

type txnReply struct {
	*pb.TxnResponse
	err error
}

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
	if s.bare && !backend.OnlyDeletes(ops) {
		return nil, &backend.Error{Op: "commit", Path: ops[0].Path, Index: -1, Err: errBare}
	}
	results, err := s.commit(ctx, ops)
	if err != nil {
		return nil, contact.CommitError(ops, err)
	}
	return results, nil
}

func (s *session) commit(ctx context.Context, ops []backend.Op) ([]backend.Result, error) {
	if err := s.contextError(ctx); err != nil {
		return nil, err
	}
	if err := s.Enter(); err != nil {
		return nil, err
	}
	c := &commit{done: make(chan struct{}), replies: make(chan txnReply, 1)}
	s.mu.Lock()
	s.commits[c] = struct{}{}
	s.mu.Unlock()
	var sent string // see send
	results, err, givenUp := s.try(ctx, c, ops, &sent)
	if err != nil && sent != "" {
		s.doubt(sent)
		err = backend.Uncertain(err)
	}
	if err == nil || backend.IsUncertain(err) {
		s.noteDeleted(ops)
	}
	if !givenUp {
		s.finish(c)
	}
	return results, err
}

// finish ends a commit, with its caller or with its request.
func (s *session) finish(c *commit) {
	s.mu.Lock()
	delete(s.commits, c)
	delete(s.left, c)
	s.mu.Unlock()
	close(c.done)
	s.Leave()
}

// exchange sends a plan and returns the reply. If ctx ends first, it reports that the caller gives up, and
// abandoned handles the reply. again says that an earlier request of the plan may still arrive.
func (s *session) exchange(ctx context.Context, c *commit, l *link, p *plan, nodes []question, again bool) (txnReply, bool) {
	on, stop := l.call(context.Background())
	if ctx.Done() == nil {
		defer stop()
		reply, err := s.send(on, l, p, nodes)
		return txnReply{reply, err}, false
	}
	s.mu.Lock()
	c.answered, c.alone, c.doubted = false, p.alone, again
	if over := s.Ended(); over != nil {
		s.mu.Unlock()
		stop()
		return txnReply{err: over}, false
	}
	s.work.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.work.Done()
		reply, err := s.send(on, l, p, nodes)
		stop()
		s.mu.Lock()
		givenUp := c.givenUp
		c.answered = !givenUp
		s.mu.Unlock()
		if !givenUp {
			c.replies <- txnReply{reply, err}
			return
		}
		s.abandoned(l, c, p, reply, err)
		s.finish(c)
	}()
	select {
	case r := <-c.replies:
		return r, false
	case <-ctx.Done():
	}
	s.mu.Lock()
	givenUp := !c.answered
	if c.givenUp = givenUp; givenUp {
		if !c.doubted { // else its key is in doubt already, see commit
			s.left[c] = struct{}{}
		}
	}
	s.mu.Unlock()
	if givenUp {
		return txnReply{}, true
	}
	return <-c.replies, false
}

// abandoned handles the reply to a plan whose caller has returned. It learns nothing of the nodes: the data
// of the operations is the caller's again.
func (s *session) abandoned(l *link, c *commit, p *plan, reply *pb.TxnResponse, err error) {
	s.Left()
	switch {
	case err != nil:
		switch s.judge(l, err) {
		case refused, throttled, unsent:
		case stale:
			l.fail(err)
		default:
			l.fail(err)
			s.doubtLeft(c)
		}
	case p.alone != "":
		s.known.forget(p.outcomes[0].path)
		if s.settledLeft(c) {
			s.keys.giveBack(p.alone)
		}
	case !reply.Succeeded:
		p.drop(s)
		if !p.likely {
			_ = s.checkEpoch(reply.Responses[0].GetResponseRange()) // it ends the session
		}
	}
}

// try is commit. If it fails and sent is a key, the deletion of that key may still happen. givenUp says that
// the request continues without the caller.
func (s *session) try(ctx context.Context, c *commit, ops []backend.Op, sent *string) (results []backend.Result, err error, givenUp bool) {
	nodes := nodesOf(ops)
	p := s.guess(ops)
	for tries := 0; ; {
		l, err := s.contact(ctx)
		if err != nil {
			return nil, err, false
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
			return nil, over, false
		}
		if err != nil {
			switch s.judge(l, err) {
			case refused:
				return nil, translate(err), false
			case throttled:
				tries++
				s.pause(ctx, tries)
			case again, unsent:
			default:
				l.fail(err)
			}
			continue
		}
		before := l.revision.Load()
		r, givenUp := s.exchange(ctx, c, l, p, nodes, *sent != "")
		if givenUp {
			return nil, backend.Uncertain(s.contextError(ctx)), true
		}
		reply, err := r.TxnResponse, r.err
		full := false
		if is(err, rpctypes.ErrGRPCNoSpace) {
			on, stop := l.call(ctx)
			full = s.mayHaveRun(on, l, p, before)
			stop()
		}
		s.Left()
		if err != nil {
			over := s.over(ctx)
			what := unknown
			if over == nil {
				what = s.judge(l, err)
			}
			switch what {
			case refused:
				if over := s.over(ctx); over != nil {
					return nil, over, false
				}
				if full {
					return nil, backend.Uncertain(translate(err)), false
				}
				return nil, translate(err), false
			case throttled:
				tries++
				s.pause(ctx, tries)
				continue
			case stale:
				l.fail(err)
				continue
			case unsent:
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
				return nil, over, false
			}
			s.doubt("")
			if over == nil {
				over = fmt.Errorf("etcd: %v", err) // only shown
			}
			return nil, backend.Uncertain(over), false
		}
		if over := s.over(context.Background()); over != nil {
			return nil, backend.Uncertain(over), false
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
				return nil, backend.Uncertain(errGone), false
			}
			p = nil
			continue
		}
		if reply.Succeeded {
			return p.results(s, reply), nil, false
		}
		p.drop(s)
		views, err := s.refusal(reply, p, nodes)
		if errors.Is(err, errAgain) {
			p = nil
			continue
		}
		if err != nil {
			if over := s.over(ctx); over != nil {
				return nil, over, false
			}
			return nil, translate(err), false
		}
		if p = nil; views != nil {
			if p, err = s.exactly(ops, views); err != nil && !errors.Is(err, errAgain) {
				return nil, err, false
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

// doubtLeft records that the outcome of a commit that was given up is unknown, if it has no reply yet.
func (s *session) doubtLeft(c *commit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.left[c]; !ok {
		return
	}
	delete(s.left, c)
	c.doubted = true
	s.doubts++
	if c.alone != "" {
		s.unsure = append(s.unsure, c.alone)
	}
}

// settledLeft records the reply to a commit that was given up. It reports whether the outcome never counted
// as unknown.
func (s *session) settledLeft(c *commit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.left, c)
	return !c.doubted
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
