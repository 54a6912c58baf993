package etcd

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/go-coord/coord/backend"
)

// The servers of etcd remove no empty nodes, so the sessions do. A container has a second key, by which it
// is found: PREFIX:container/PATH.
//
// A session remembers the parents of the nodes that it has deleted, and looks at them after a while. Containers that
// have lost their children otherwise, by the end of a session above all, are found by a search through all
// second keys. One session at a time makes these searches: that which has the sweeper's key, which goes with its lease.
//
// A container is removed by a transaction that compares that the node is the one that was read and that nothing is
// below it. So a creation in it is either before that transaction, which then does nothing, or after it, and fails
// with ErrNotFound. The transaction also compares the epoch, as each commit does.

const (
	defaultInterval = time.Minute
	mostInterval    = 365 * 24 * time.Hour // ten times that, the time of a search, is still a Duration

	// sweepEvery is how often a session tries to search, on average, in intervals.
	sweepEvery = 10

	// mostEmptied is the number of nodes that a session remembers. The search finds the others.
	mostEmptied = 1 << 14

	// mostLooked is the number of nodes in one request.
	mostLooked = 32

	// sweepPage is the number of second keys in one request.
	sweepPage = 1 << 12

	// sweepPause is between two requests of a search.
	sweepPause = 10 * time.Millisecond
)

// emptied is the nodes that a session may have left without children, and from when on it looks at each.
type emptied struct {
	mu   sync.Mutex
	due  map[string]time.Time
	wake chan struct{} // capacity 1
}

func newEmptied() *emptied {
	return &emptied{due: make(map[string]time.Time), wake: make(chan struct{}, 1)}
}

// note remembers a node. A node that is in use is looked at when it was not for the whole time. It reports
// whether there was room.
func (e *emptied) note(path string, due time.Time) bool {
	if path == "/" {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.due[path]; !ok && len(e.due) >= mostEmptied {
		return false
	}
	e.due[strings.Clone(path)] = due
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return true
}

// noteOnce is note for a node that the session may remember already.
func (e *emptied) noteOnce(path string, due time.Time) bool {
	e.mu.Lock()
	_, ok := e.due[path]
	e.mu.Unlock()
	return ok || e.note(path, due)
}

// take returns the nodes that are due, and forgets them.
func (e *emptied) take(now time.Time) (paths []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for path, due := range e.due {
		if !due.After(now) {
			paths = append(paths, path)
			delete(e.due, path)
		}
	}
	return paths
}

func (e *emptied) none() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.due) == 0
}

// noteDeleted notes the parents of nodes that a commit has deleted, or may have deleted.
func (s *session) noteDeleted(ops []backend.Op) {
	if s.cfg.interval <= 0 {
		return
	}
	for i := range ops {
		if ops[i].Kind == backend.OpDelete {
			dir, _ := split(ops[i].Path)
			s.emptied.note(dir, time.Now().Add(s.cfg.interval))
		}
	}
}

// collect removes empty containers until the session is over.
func (s *session) collect() {
	defer s.work.Done()
	interval := s.cfg.interval
	// The searches of clients that start together begin at different times, also those of clients that are soon over.
	sweep := time.Now().Add(interval/10 + rand.N(sweepEvery*interval))
	timer := time.NewTimer(time.Until(sweep))
	defer timer.Stop()
	cursor := ""
	for {
		select {
		case <-s.done:
			return
		case <-s.emptied.wake:
			timer.Reset(max(min(interval/8, time.Until(sweep)), 0))
			continue
		case <-timer.C:
		}
		s.removeDue()
		if now := time.Now(); !now.Before(sweep) {
			cursor = s.sweep(cursor)
			sweep = now.Add(sweepEvery*interval/2 + rand.N(sweepEvery*interval))
		}
		if s.emptied.none() {
			timer.Reset(time.Until(sweep))
		} else {
			timer.Reset(interval / 8)
		}
	}
}

// removeDue looks at the nodes that are due.
func (s *session) removeDue() {
	paths := s.emptied.take(time.Now())
	for len(paths) > 0 {
		n := min(len(paths), mostLooked)
		empty, err := s.emptyContainers(paths[:n], nil)
		if err == nil {
			err = s.removeAll(empty)
		}
		if err != nil {
			for _, path := range paths {
				s.emptied.note(path, time.Now().Add(s.cfg.interval))
			}
			return
		}
		paths = paths[n:]
	}
}

// container is an empty container as a read has shown it.
type container struct {
	path string
	node *record
}

// emptyContainers returns those of the nodes that are containers without children. It calls other, if that is not
// nil, for those that are no containers, with the revision in which the key of the node was put, or zero if there is none.
func (s *session) emptyContainers(paths []string, other func(path string, mod int64)) ([]container, error) {
	l, err := s.contact(context.Background())
	if err != nil {
		return nil, err
	}
	ops := []*pb.RequestOp{get(s.key)} // this is no read of the caller's
	for _, path := range paths {
		ops = append(ops, get(s.cfg.literalKey(path)), count(s.cfg.kids(path)))
	}
	reply, err := l.kv.Txn(l.ctx, &pb.TxnRequest{Success: ops})
	if err != nil {
		return nil, err
	}
	if err := s.checkEpoch(reply.Responses[0].GetResponseRange()); err != nil {
		return nil, err
	}
	var all []container
	for i, path := range paths {
		found, kids := reply.Responses[1+2*i].GetResponseRange().Kvs, reply.Responses[2+2*i].GetResponseRange().Count
		mod := int64(0)
		if len(found) > 0 {
			mod = found[0].ModRevision
			if r, err := decode(found[0]); err == nil && r.container {
				if kids == 0 {
					all = append(all, container{path, r})
				}
				continue
			}
		}
		if other != nil {
			other(path, mod)
		}
	}
	return all, nil
}

// removeAll removes containers that have no children still.
func (s *session) removeAll(all []container) error {
	if len(all) == 0 {
		return nil
	}
	l, err := s.contact(context.Background())
	if err != nil {
		return err
	}
	s.mu.Lock()
	epoch := s.epoch
	s.mu.Unlock()
	r := &pb.TxnRequest{Compare: []*pb.Compare{s.inEpoch(epoch)}}
	for _, c := range all {
		below := s.cfg.below(c.path)
		r.Compare = append(r.Compare, compareMod(c.node.key, c.node.mod), compareNone(below, after(below)))
		r.Success = append(r.Success, remove(c.node.key), remove(s.cfg.containerKey(c.path)))
	}
	reply, err := l.kv.Txn(l.ctx, r)
	switch {
	case err != nil:
		return err
	case !reply.Succeeded && len(all) > 1: // one of them is in use again
		return errors.Join(s.removeAll(all[:len(all)/2]), s.removeAll(all[len(all)/2:]))
	case !reply.Succeeded:
		return nil
	}
	for _, c := range all {
		s.known.forget(c.path)
		dir, _ := split(c.path)
		s.emptied.note(dir, time.Now().Add(s.cfg.interval))
	}
	return nil
}

// sweep searches for empty containers, unless another session does. It begins behind a second key, and returns
// where the next search begins. What it finds is removed if it is still empty an interval later: a client that makes a
// directory has that much time to use it.
func (s *session) sweep(cursor string) (next string) {
	l, err := s.contact(context.Background())
	if err != nil {
		return cursor
	}
	key := s.cfg.sweeperKey()
	mine, err := l.kv.Txn(l.ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{compareCreated(key, pb.Compare_EQUAL, 0)},
		Success: []*pb.RequestOp{put(key, nil, s.id)},
		Failure: []*pb.RequestOp{head(key)},
	})
	if err != nil {
		return cursor
	}
	if !mine.Succeeded {
		if kvs := mine.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].Lease != s.id {
			return cursor
		}
	}
	first := s.cfg.containerKey("/")
	from := first
	if cursor != "" {
		from = cursor + "\x00"
	}
	for {
		if l, err = s.contact(context.Background()); err != nil {
			return cursor
		}
		page, err := l.kv.Range(l.ctx, &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(after(first)), Limit: sweepPage, KeysOnly: true})
		if err != nil {
			return cursor
		}
		kvs := page.Kvs
		for len(kvs) > 0 {
			n := min(len(kvs), mostLooked)
			if !s.sweepSome(kvs[:n]) {
				return cursor
			}
			cursor, kvs = string(kvs[n-1].Key), kvs[n:]
			sleep(context.Background(), s.done, sweepPause)
		}
		if !page.More || len(page.Kvs) == 0 {
			return ""
		}
		from = cursor + "\x00"
	}
}

// sweepSome notes the empty ones of some containers, given by their second keys. It removes second keys
// without a container: clients of earlier versions, and commits that replace a node, leave them. It returns false if the search
// cannot go on.
func (s *session) sweepSome(kvs []*mvccpb.KeyValue) bool {
	marks := make(map[string]*mvccpb.KeyValue, len(kvs))
	paths := make([]string, len(kvs))
	for i, kv := range kvs {
		paths[i] = strings.TrimPrefix(string(kv.Key), s.cfg.containerKey(""))
		marks[paths[i]] = kv
	}
	stale := &pb.TxnRequest{}
	empty, err := s.emptyContainers(paths, func(path string, mod int64) {
		stale.Compare = append(stale.Compare, compareMod(s.cfg.literalKey(path), mod), compareMod(string(marks[path].Key), marks[path].ModRevision))
		stale.Success = append(stale.Success, remove(string(marks[path].Key)))
	})
	if err != nil {
		return false
	}
	if len(stale.Success) > 0 {
		l, err := s.contact(context.Background())
		if err != nil {
			return false
		}
		if _, err := l.kv.Txn(l.ctx, stale); err != nil {
			return false
		}
	}
	for _, c := range empty {
		if !s.emptied.noteOnce(c.path, time.Now().Add(s.cfg.interval)) {
			return false
		}
	}
	return true
}
