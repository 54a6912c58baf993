package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// A bare session is one without a lease, see Options.OpenWithoutSpace. The root key takes the place of its session
// key: the root key has no lease, and no bare session writes it. So there are no epochs, and a commit of unknown
// outcome ends the session. Each commit compares the mod revisions of the nodes that it deletes: when it arrives
// late, it does nothing to a node that has followed. Reads of the root key take the place of keep-alives, so the
// session still notices by its own clock that it has lost contact.

var errBare = fmt.Errorf("%w: the session was opened without space and can only delete; free space and open another session", backend.ErrNoSpace)

var errUnsettled = fmt.Errorf("%w: a commit had no reply, and a session without a lease cannot rule out that it is applied later", backend.ErrSessionLost)

// openBare is openAt without a lease.
func (s *session) openBare(ctx context.Context, l *link) error {
	on, stop := l.call(ctx)
	defer stop()
	sent := s.now()
	reply, err := l.kv.Range(on, &pb.RangeRequest{Key: []byte(s.cfg.rootKey()), KeysOnly: true})
	if err != nil {
		return err
	}
	if len(reply.Kvs) == 0 {
		return rpctypes.ErrGRPCNoSpace // there is no tree, and no space for one
	}
	s.bare = true
	s.id = -1 - rand.Int64N(1<<62) // the ids of leases are positive
	s.key, s.keys = s.cfg.rootKey(), newKeyring(s.id)
	timeout := s.cfg.times.Timeout
	s.Grant(timeout, contact.Lease{From: sent, Length: s.cfg.times.Lease(timeout)})
	s.log.Warn("coord: the service has no space, so the session has no lease, and only reads and deletes", "session", contact.Hex(s.id), "server", l.target.String())
	return s.begin(ctx, l)
}

// renewals is the part of the keep-alive stream that keepAlive uses.
type renewals interface {
	Send(*pb.LeaseKeepAliveRequest) error
	Recv() (*pb.LeaseKeepAliveResponse, error)
}

// rootReads are the renewals of a bare session.
type rootReads struct {
	s *session
	l *link
}

func (r rootReads) Send(*pb.LeaseKeepAliveRequest) error { return nil }

func (r rootReads) Recv() (*pb.LeaseKeepAliveResponse, error) {
	reply, err := r.l.kv.Range(r.l.ctx, &pb.RangeRequest{Key: []byte(r.s.key), KeysOnly: true})
	if unsentBy(err) {
		r.l.leave()
		<-r.l.ctx.Done() // the next link renews; this one lasts while requests are under way on it
		return nil, r.l.reason()
	}
	if err != nil {
		return nil, err
	}
	answer := &pb.LeaseKeepAliveResponse{Header: reply.Header, ID: r.s.id}
	if len(reply.Kvs) > 0 {
		answer.TTL = int64(r.s.Timeout().Seconds())
	}
	return answer, nil
}
