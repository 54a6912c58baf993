package etcd

import (
	"context"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// inDoubt reports whether there is a commit of unknown outcome.
func (s *session) inDoubt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubts != s.settled || len(s.left) > 0
}

// settle makes certain that no commit of unknown outcome is applied any more, if there is one. First it waits
// for the replies to commits that their callers have given up.
func (s *session) settle(ctx context.Context, l *link) error {
	if !s.inDoubt() {
		return nil
	}
	if err := s.awaitLeft(ctx); err != nil {
		return err
	}
	select {
	case s.settler <- struct{}{}:
		defer func() { <-s.settler }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	doubts, unsure := s.doubts, slices.Clone(s.unsure)
	none := doubts == s.settled
	s.mu.Unlock()
	if none {
		return nil
	}
	if s.bare {
		s.end(errUnsettled)
		return errUnsettled
	}
	for first := true; first || len(unsure) > 0; first = false {
		n, size := 0, 0
		for n < min(len(unsure), mostRequests-1) && (n == 0 || size+len(unsure[n]) <= mostAlone) {
			size += len(unsure[n])
			n++
		}
		if err := s.newEpoch(ctx, l, 0, unsure[:n]...); err != nil {
			return err
		}
		unsure = unsure[n:]
		s.mu.Lock()
		s.unsure = slices.Delete(s.unsure, 0, n)
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = max(s.settled, doubts)
	return nil
}

// A reply to a commit that was given up is late after a part of the lease, within these limits.
const (
	leastLate = 50 * time.Millisecond
	mostLate  = 500 * time.Millisecond
)

// awaitLeft waits for the replies to the commits that were given up. If a reply is late, the outcome of its
// commit counts as unknown.
func (s *session) awaitLeft(ctx context.Context) error {
	s.mu.Lock()
	left := slices.Collect(maps.Keys(s.left))
	s.mu.Unlock()
	if len(left) == 0 {
		return nil
	}
	timer := time.NewTimer(min(max(s.Lease()/16, leastLate), mostLate))
	defer timer.Stop()
	late := false
	for _, c := range left {
		if late {
			s.doubtLeft(c)
			continue
		}
		select {
		case <-c.done:
		case <-timer.C:
			late = true
			s.doubtLeft(c)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// newEpoch begins a new epoch, later than a revision, unless another call does so at the same time.
// The service refuses commits of the earlier epoch that it has not handled by then. In any case newEpoch
// deletes the keys.
func (s *session) newEpoch(ctx context.Context, l *link, rev int64, keys ...string) error {
	drop := make([]*pb.RequestOp, len(keys))
	for i, key := range keys {
		drop[i] = remove(key)
	}
	if s.bare {
		return rpctypes.ErrGRPCNoSpace
	}
	s.mu.Lock()
	from := s.epoch
	s.mu.Unlock()
	for epoch := from; ; {
		reply, err := l.kv.Txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{s.inEpoch(epoch)},
			Success: append([]*pb.RequestOp{put(s.key, nil, s.id)}, drop...),
			Failure: append([]*pb.RequestOp{head(s.key)}, drop...),
		})
		if err != nil {
			return err
		}
		if reply.Succeeded {
			s.sawEpoch(epoch + 1)
			return nil
		}
		got := reply.Responses[0].GetResponseRange()
		if err := s.checkEpoch(got); err != nil {
			return err
		}
		if epoch = got.Kvs[0].Version; epoch > from && got.Kvs[0].ModRevision > rev {
			return nil
		}
	}
}

func (s *session) inEpoch(epoch int64) *pb.Compare {
	return compareVersion(s.key, pb.Compare_EQUAL, epoch)
}

func (s *session) sawEpoch(epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch = max(s.epoch, epoch)
}

// checkEpoch learns the epoch from the session key, and ends the session if that is missing.
func (s *session) checkEpoch(r *pb.RangeResponse) error {
	if len(r.Kvs) == 0 {
		s.end(errRevoked)
		return errRevoked
	}
	s.sawEpoch(r.Kvs[0].Version)
	return nil
}
