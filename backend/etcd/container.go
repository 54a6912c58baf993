package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// The servers of etcd remove no empty nodes, so the sessions do. A container has a second key, by which it
// is found: PREFIX:container/PATH.
//
// A session remembers the parents of the nodes that it has deleted, and looks at them after a while. Containers that
// have lost their children otherwise, by the end of a session above all, are found by a search through all
// second keys. One session at a time makes these searches: the session that has put the sweeper's key, which goes with its lease.
//
// A container is removed by a transaction that compares that the node is the one that was read and that nothing is
// below it. So a creation in it is either before that transaction, which then does nothing, or after it, and fails
// with ErrNotFound. The transaction also compares the epoch, as each commit does.

const (
	defaultInterval = time.Minute
	leastInterval   = 10 * time.Millisecond // a session looks at its nodes eight times as often
	mostInterval    = 365 * 24 * time.Hour  // ten times that, the time of a search, is still a Duration

	// sweepEvery is how often a session tries to search, on average, in intervals.
	sweepEvery = 10

	// mostEmptied and mostEmptiedSize limit the number and the size of the paths that a session remembers. The
	// search finds the others.
	mostEmptied     = 1 << 14
	mostEmptiedSize = 16 << 20

	// mostLooked and mostLookedSize limit the number and the size of the paths in one request. A removal has
	// each path five times, and a request has at most 1.5 MiB.
	mostLooked     = 32
	mostLookedSize = 200 << 10

	// sweepPage is the number of second keys in one request.
	sweepPage = 4 * mostLooked

	// collectPause is between two batches.
	collectPause = 10 * time.Millisecond
)

// emptied has the nodes that a session may have left without children, and when it looks at each.
type emptied struct {
	mu   sync.Mutex
	due  map[string]time.Time
	size int           // of the paths
	wake chan struct{} // capacity 1: there is a node, and there was none
}

func newEmptied() *emptied {
	return &emptied{due: make(map[string]time.Time), wake: make(chan struct{}, 1)}
}

// note remembers a node. A further note of the same node postpones the look, so that a node in use is not looked
// at. It reports whether there was room.
func (e *emptied) note(path string, due time.Time) bool {
	if path == "/" {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.due[path]; !ok {
		if len(e.due) >= mostEmptied || e.size+len(path) > mostEmptiedSize {
			return false
		}
		e.size += len(path)
	}
	e.due[strings.Clone(path)] = due
	if len(e.due) == 1 {
		select {
		case e.wake <- struct{}{}:
		default:
		}
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
			e.size -= len(path)
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
	interval := s.cfg.interval
	// The searches of clients that start together begin at different times, also those of clients that are soon over.
	sweep := time.Now().Add(interval/10 + rand.N(sweepEvery*interval))
	timer := time.NewTimer(time.Until(sweep))
	defer timer.Stop()
	cursor := ""
	for {
		select {
		case <-s.Done():
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

// errRefused marks the error of a request that the service has refused, and will refuse again.
var errRefused = errors.New("etcd: the service refused the request")

// errInUse is the error of a removal of several containers when one of them, or the epoch of the session, has changed.
var errInUse = errors.New("etcd: a container is in use again")

// ask sends a request of the collection.
func (s *session) ask(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	l, err := s.contact(context.Background())
	if err != nil {
		return nil, err
	}
	on, stop := l.call(context.Background())
	defer stop()
	reply, err := l.kv.Txn(on, r)
	if err != nil && s.judge(l, err) == refused && !is(err, rpctypes.ErrGRPCNoSpace) {
		err = fmt.Errorf("%w: %w", errRefused, translate(err))
	}
	return reply, err
}

// inBatches calls f for the nodes, for as many at a time as one request takes. When the service has refused
// a batch, the batches are smaller, so that one node keeps no other from its removal. A single node that is
// refused is passed: the search comes to it again. Another error ends it, and rest is the nodes that are left.
func (s *session) inBatches(paths []string, f func(paths []string) error) (rest []string, err error) {
	for most := mostLooked; len(paths) > 0; {
		n, size := 1, len(paths[0])
		for n < min(len(paths), most) && size+len(paths[n]) <= mostLookedSize {
			size += len(paths[n])
			n++
		}
		switch err := f(paths[:n]); {
		case err == nil:
			paths, most = paths[n:], min(2*most, mostLooked)
		case !errors.Is(err, errRefused) && !errors.Is(err, errInUse):
			return paths, err
		case n > 1:
			most = n / 2
		case errors.Is(err, errInUse):
			s.emptied.note(paths[0], time.Now().Add(s.cfg.interval))
			paths = paths[1:]
		default:
			s.refusedOnce(paths[0], err)
			paths = paths[1:]
		}
		contact.Sleep(context.Background(), s.Done(), collectPause)
	}
	return nil, nil
}

// refusedOnce logs the first container that the service does not let the session collect.
func (s *session) refusedOnce(path string, err error) {
	s.uncollected.Do(func() {
		if len(path) > 200 {
			path = path[:200] + "…"
		}
		s.log.Warn("coord: the service refuses to remove an empty container, retrying at intervals; later refusals are not logged",
			"session", contact.Hex(s.id), "path", path, "error", err)
	})
}

// removeDue looks at the nodes that are due.
func (s *session) removeDue() {
	rest, _ := s.inBatches(s.emptied.take(time.Now()), func(paths []string) error {
		empty, err := s.emptyContainers(paths, func(path string, mod int64) {
			if mod == 0 { // perhaps the reply to its removal was lost
				s.noteParent(path)
			}
		})
		if err != nil {
			return err
		}
		return s.removeAll(empty)
	})
	for _, path := range rest {
		s.emptied.note(path, time.Now().Add(s.cfg.interval))
	}
}

// noteParent notes the parent of a node that was removed.
func (s *session) noteParent(path string) {
	dir, _ := split(path)
	s.emptied.noteOnce(dir, time.Now().Add(s.cfg.interval))
}

// container is an empty container as a read has shown it.
type container struct {
	path string
	node *record
}

// emptyContainers returns those of the nodes that are containers without children. It calls other, if that is not
// nil, for those that are no containers, with the revision in which the key of the node was put, or zero if there is none.
func (s *session) emptyContainers(paths []string, other func(path string, mod int64)) ([]container, error) {
	ops := []*pb.RequestOp{get(s.key)} // this is no read of the caller's
	for _, path := range paths {
		ops = append(ops, get(s.cfg.literalKey(path)), count(s.cfg.kids(path)))
	}
	reply, err := s.ask(&pb.TxnRequest{Success: ops})
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

// removeAll removes containers, if all of them have no children still.
func (s *session) removeAll(all []container) error {
	if len(all) == 0 {
		return nil
	}
	s.mu.Lock()
	epoch := s.epoch
	s.mu.Unlock()
	r := &pb.TxnRequest{Compare: []*pb.Compare{s.inEpoch(epoch)}}
	for _, c := range all {
		below := s.cfg.below(c.path)
		r.Compare = append(r.Compare, compareMod(c.node.key, c.node.mod), compareNone(below, after(below)))
		r.Success = append(r.Success, remove(c.node.key), remove(s.cfg.containerKey(c.path)))
		s.known.forget(c.path)
	}
	reply, err := s.ask(r)
	switch {
	case err != nil:
		return err
	case !reply.Succeeded:
		return errInUse
	}
	for _, c := range all {
		s.noteParent(c.path)
	}
	return nil
}

// maySweep reports whether this session is the one that searches.
func (s *session) maySweep() bool {
	key := s.cfg.sweeperKey()
	// A transaction that can put a key is refused when there is no space. So it comes after a look.
	reply, err := s.ask(&pb.TxnRequest{Success: []*pb.RequestOp{head(key)}})
	if err != nil {
		return false
	}
	if kvs := reply.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0].Lease == s.id
	}
	reply, err = s.ask(&pb.TxnRequest{
		Compare: []*pb.Compare{compareCreated(key, pb.Compare_EQUAL, 0)},
		Success: []*pb.RequestOp{put(key, nil, s.id)},
	})
	return err == nil && reply.Succeeded
}

// sweep searches for empty containers, unless another session does. It begins behind a second key, and returns
// where the next search begins. What it finds is removed if it is still empty an interval later: a client that makes a
// directory has that much time to use it.
func (s *session) sweep(cursor string) (next string) {
	if !s.maySweep() {
		return cursor
	}
	first := s.cfg.containerKey("/")
	for {
		from := first
		if cursor != "" {
			from = cursor + "\x00"
		}
		page, err := s.secondKeys(from, after(first))
		if err != nil {
			return cursor
		}
		marks := make(map[string]*mvccpb.KeyValue, len(page.Kvs))
		paths := make([]string, len(page.Kvs))
		for i, kv := range page.Kvs {
			paths[i] = strings.TrimPrefix(string(kv.Key), s.cfg.containerKey(""))
			marks[paths[i]] = kv
		}
		rest, err := s.inBatches(paths, func(paths []string) error { return s.sweepSome(paths, marks) })
		if done := len(paths) - len(rest); done > 0 {
			cursor = string(page.Kvs[done-1].Key)
		}
		if err != nil {
			return cursor
		}
		if !page.More || len(page.Kvs) == 0 {
			return ""
		}
	}
}

func (s *session) secondKeys(from, end string) (*pb.RangeResponse, error) {
	l, err := s.contact(context.Background())
	if err != nil {
		return nil, err
	}
	on, stop := l.call(context.Background())
	defer stop()
	return l.kv.Range(on, &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), Limit: sweepPage, KeysOnly: true})
}

var errNoRoom = errors.New("etcd: the list of containers to remove is full")

// sweepSome notes the empty ones of some containers, given with their second keys. It removes second keys
// without a container: clients of earlier versions, and commits that replace a node, leave them.
func (s *session) sweepSome(paths []string, marks map[string]*mvccpb.KeyValue) error {
	stale := &pb.TxnRequest{}
	empty, err := s.emptyContainers(paths, func(path string, mod int64) {
		stale.Compare = append(stale.Compare, compareMod(s.cfg.literalKey(path), mod), compareMod(string(marks[path].Key), marks[path].ModRevision))
		stale.Success = append(stale.Success, remove(string(marks[path].Key)))
	})
	if err != nil {
		return err
	}
	if len(stale.Success) > 0 {
		if _, err := s.ask(stale); err != nil {
			return err
		}
	}
	for _, c := range empty {
		if !s.emptied.noteOnce(c.path, time.Now().Add(s.cfg.interval)) {
			return errNoRoom
		}
	}
	return nil
}
