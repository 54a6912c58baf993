package etcd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// A service that was restored from a backup, or replaced by another cluster, has another history. What a
// session remembers of its own history is wrong there: its nodes can be missing, deleted ones can exist
// again, and revisions that it has seen come a second time with other contents. So the session is lost.
// It compares
//
//   - the cluster id of each reply with that of the first one;
//   - the revision of each reply to a request for keys, which are all linearizable, with the latest one that
//     the session had seen before the request;
//   - on each new link the latest put and the latest deletion that it has seen with the keys as they were
//     then: the service can have passed its revisions meanwhile. If they are compacted, and the keys have
//     changed since, nothing shows another history.

// past is what a session has seen of the history of the service.
type past struct {
	mu       sync.Mutex
	cluster  uint64
	revision int64
	put      trace // the latest put that the session has seen
	deleted  trace // its own latest deletion
}

// trace is a change of a key.
type trace struct {
	key string
	rev int64
}

func (t *trace) see(key []byte, rev int64) {
	if rev > t.rev {
		*t = trace{string(key), rev}
	}
}

func errOtherCluster(was, is uint64) error {
	return fmt.Errorf("%w: the server belongs to cluster %x, the session to cluster %x", backend.ErrSessionLost, is, was)
}

func errWentBack(format string, args ...any) error {
	return fmt.Errorf("%w: the service has returned to an earlier state, as after restoring a backup: %s", backend.ErrSessionLost, fmt.Sprintf(format, args...))
}

// seen returns the latest revision that the session has seen.
func (p *past) seen() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.revision
}

// note records a reply that has been checked. It returns an error if the reply is of another history: one
// of another cluster, or of an earlier revision than before, which the session had seen before the request.
func (p *past) note(req, reply any, before int64) error {
	if p == nil {
		return nil
	}
	r, ok := reply.(interface{ GetHeader() *pb.ResponseHeader })
	h := r.GetHeader()
	if !ok || h == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.noteCluster(h); err != nil {
		return err
	}
	switch q := req.(type) {
	case *pb.TxnRequest:
		r := reply.(*pb.TxnResponse)
		ops := q.Failure
		if r.Succeeded {
			ops = q.Success
		}
		for i, op := range ops {
			switch {
			case op.GetRequestPut() != nil:
				p.put.see(op.GetRequestPut().Key, h.Revision)
			case op.GetRequestDeleteRange() != nil:
				if r.Responses[i].GetResponseDeleteRange().Deleted > 0 {
					p.deleted.see(op.GetRequestDeleteRange().Key, h.Revision)
				}
			default:
				p.pairs(r.Responses[i].GetResponseRange().Kvs)
			}
		}
	case *pb.RangeRequest:
		p.pairs(reply.(*pb.RangeResponse).Kvs)
	case *pb.DeleteRangeRequest:
		if reply.(*pb.DeleteRangeResponse).Deleted > 0 {
			p.deleted.see(q.Key, h.Revision)
		}
	default:
		return nil // its revision can be that of a server that is behind
	}
	if h.Revision < before {
		return errWentBack("it is at revision %d, the session has seen %d", h.Revision, before)
	}
	p.revision = max(p.revision, h.Revision)
	return nil
}

// noteCluster needs the mutex.
func (p *past) noteCluster(h *pb.ResponseHeader) error {
	switch {
	case h.ClusterId == 0: // something between the client and the members that fills no header
	case p.cluster == 0:
		p.cluster = h.ClusterId
	case h.ClusterId != p.cluster:
		return errOtherCluster(p.cluster, h.ClusterId)
	}
	return nil
}

func (p *past) pairs(kvs []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		p.put.see(kv.Key, kv.ModRevision)
	}
}

// events records events of a watch stream.
func (p *past) events(r *pb.WatchResponse) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Header != nil {
		if err := p.noteCluster(r.Header); err != nil {
			return err
		}
	}
	for _, e := range r.Events {
		if e.Type == mvccpb.PUT {
			p.put.see(e.Kv.Key, e.Kv.ModRevision)
		}
		p.revision = max(p.revision, e.Kv.ModRevision)
	}
	return nil
}

// same checks that a new link leads to the history that the session knows. It ends the session, and
// returns an error, if it does not.
func (s *session) same(ctx context.Context, l *link) error {
	s.past.mu.Lock()
	put, deleted := s.past.put, s.past.deleted
	s.past.mu.Unlock()
	ops := []*pb.RequestOp{get(s.key)}
	for _, t := range []trace{put, deleted} {
		if t.rev > 0 {
			op := head(t.key)
			op.GetRequestRange().Revision = t.rev
			ops = append(ops, op)
		}
	}
	s.mu.Lock()
	epoch := s.epoch
	s.mu.Unlock()
	reply, err := l.kv.Txn(ctx, &pb.TxnRequest{Success: ops})
	old := is(err, rpctypes.ErrGRPCCompacted) || status.Code(err) == codes.PermissionDenied
	switch {
	case is(err, rpctypes.ErrGRPCFutureRev):
		return s.another(errWentBack("it has not reached revision %d", max(put.rev, deleted.rev)))
	case old:
		if reply, err = l.kv.Txn(ctx, &pb.TxnRequest{Success: ops[:1]}); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	own := reply.Responses[0].GetResponseRange()
	if len(own.Kvs) > 0 && own.Kvs[0].Version < epoch {
		return s.another(errWentBack("the session has epoch %d, expected %d", own.Kvs[0].Version, epoch))
	}
	if !old {
		answers := reply.Responses[1:]
		if put.rev > 0 {
			kvs := answers[0].GetResponseRange().Kvs
			if len(kvs) == 0 || kvs[0].ModRevision != put.rev {
				return s.another(errWentBack("revision %d is another change", put.rev))
			}
			answers = answers[1:]
		}
		if deleted.rev > 0 && len(answers[0].GetResponseRange().Kvs) > 0 {
			return s.another(errWentBack("a key exists that revision %d has deleted", deleted.rev))
		}
	}
	return s.checkEpoch(own)
}

// another ends the session because of another history.
func (s *session) another(why error) error {
	s.end(why)
	return why
}

// clusters is what a backend knows of the clusters of its endpoints.
type clusters struct {
	mu    sync.Mutex
	ids   map[contact.Target]uint64
	asked map[contact.Target]bool // once, and there was no answer
}

const (
	probeWait  = 500 * time.Millisecond // how long Open waits for the cluster ids of the other endpoints
	probeLimit = 5 * time.Second
)

// differ returns the endpoints whose cluster has to be asked for, and whether to wait for them.
func (x *clusters) differ(at contact.Target, id uint64, all []contact.Target) (others []contact.Target, wait bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ids == nil {
		x.ids, x.asked = make(map[contact.Target]uint64), make(map[contact.Target]bool)
	}
	x.ids[at] = id
	for _, t := range all {
		if known := x.ids[t]; t != at && t.Address != "" && known != id {
			others = append(others, t)
			wait = wait || !x.asked[t]
			x.asked[t] = true
		}
	}
	return others, wait
}

func (x *clusters) note(at contact.Target, id uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ids[at] = id
	x.asked[at] = false
}

// oneCluster compares the cluster of a new session with those of the other endpoints: a part of the clients
// would use one cluster, and a part the other. It asks each endpoint once, and again if it has named another
// cluster. It waits for a moment; if an endpoint answers later, the session is lost then.
func (s *session) oneCluster(ctx context.Context, l *link) error {
	s.mu.Lock()
	tried := s.tried // without success, or without an answer yet: these are compared when they are used
	s.mu.Unlock()
	untried := slices.DeleteFunc(s.servers.Targets(), func(t contact.Target) bool { return slices.Contains(tried, t) })
	others, wait := s.cfg.clusters.differ(l.target, l.cluster, untried)
	if len(others) == 0 {
		return nil
	}
	found := make(chan error, len(others))
	for _, other := range others {
		s.work.Go(func() { found <- s.compare(other, l) })
	}
	if !wait {
		return nil
	}
	timer := time.NewTimer(probeWait)
	defer timer.Stop()
	for range others {
		select {
		case err := <-found:
			if err != nil {
				return err
			}
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// compare asks one endpoint for its cluster.
func (s *session) compare(at contact.Target, l *link) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	stop := context.AfterFunc(l.ctx, cancel)
	defer stop()
	other, err := s.cfg.dialLink(ctx, &contact.Attempt{Target: at}, nil)
	if err != nil {
		return nil // it is compared when the session comes to use it
	}
	defer func() { other.fail(errBroken); other.close() }()
	switch {
	case other.cluster == 0:
		return nil
	case other.cluster != l.cluster:
		err = contact.Invalid("the endpoints belong to different clusters: %s to %x, %s to %x", l.target, l.cluster, at, other.cluster)
	default:
		// The id comes from the settings, so clusters with the same ones have the same id.
		has := s.hasKey(ctx, other)
		if !has.known || !has.there && !s.hasKey(ctx, l).there {
			return nil
		}
		if !has.there {
			err = contact.Invalid("the endpoints belong to different clusters, both with id %x: %s lacks a key that was written at %s", l.cluster, at, l.target)
		}
	}
	s.cfg.clusters.note(at, other.cluster)
	if err != nil {
		s.end(fmt.Errorf("%w: %w", backend.ErrSessionLost, err))
	}
	return err
}

// hasKey reports whether a server has the session key.
func (s *session) hasKey(ctx context.Context, l *link) (has struct{ known, there bool }) {
	reply, err := l.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.key), KeysOnly: true})
	if err == nil {
		has.known, has.there = true, len(reply.Kvs) > 0
	}
	return has
}
