package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-zookeeper/zk"
)

// Get returns the data and the Stat of a node.
func (s *session) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	type result struct {
		data []byte
		stat backend.Stat
	}
	r, err := read(ctx, s, "get", path, w, func(path string) (r result, err error) {
		data, stat, err := s.zk.Get(path)
		if err == nil {
			r = result{data, statOf(stat)}
		}
		return r, err
	})
	if err != nil {
		stop(w)
		return nil, backend.Stat{}, err
	}
	if len(r.data) == 0 {
		r.data = nil
	}
	return r.data, r.stat, nil
}

// Exists returns the Stat of a node.
func (s *session) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	type result struct {
		found bool
		stat  backend.Stat
	}
	r, err := read(ctx, s, "exists", path, w, func(path string) (r result, err error) {
		found, stat, err := s.zk.Exists(path)
		if err == nil && found {
			r = result{true, statOf(stat)}
		}
		return r, err
	})
	switch {
	case err != nil:
		stop(w)
	case !r.found:
		err = &backend.Error{Op: "exists", Path: path, Err: backend.ErrNotFound}
	}
	return r.stat, err
}

// Children returns the names of the children of a node, and its Stat.
func (s *session) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	type result struct {
		names []string
		stat  backend.Stat
	}
	r, err := read(ctx, s, "children", path, w, func(path string) (r result, err error) {
		names, stat, err := s.zk.Children(path)
		if err == nil {
			r = result{names, statOf(stat)}
		}
		return r, err
	})
	if err != nil {
		stop(w)
		return nil, backend.Stat{}, err
	}
	if len(r.names) == 0 {
		r.names = nil
	}
	return r.names, r.stat, nil
}

// Arm arms several watches. It sends ZooKeeper's setWatches request, with which the zk client
// itself re-arms its watches after a reconnect. If the service does not know setWatches, Arm
// reads one node after the other.
func (s *session) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	err := backend.CheckTargets(targets)
	if err == nil {
		_, err = repeat(ctx, s, "arm", targets[0].Path,
			func() *expectation { return s.hub.expectMany(since, targets) },
			func(path string) (string, error) { return s.zk.Sync(path) })
		if errors.Is(err, backend.ErrUnsupported) {
			err = s.armEach(ctx, since, targets)
		}
	}
	if err != nil {
		for _, t := range targets {
			stop(t.Watch)
		}
	}
	return err
}

// armEach arms the watches of Arm by reads, and so not at one moment. Each read compares the
// node with since, to find out whether it came too late. The caller's watch is armed only
// after that comparison, or a deletion could fire it before.
func (s *session) armEach(ctx context.Context, since int64, targets []backend.Target) error {
	for _, t := range targets {
		key := keyOf(t)
		inner := backend.NewWatch()
		changed, err := repeat(ctx, s, "arm", t.Path,
			func() *expectation { return s.hub.expect(t.Path, inner) },
			func(path string) (int64, error) {
				if t.Children {
					_, stat, err := s.zk.Children(path)
					if err != nil {
						return 0, err
					}
					return stat.Pzxid, nil
				}
				found, stat, err := s.zk.Exists(path)
				if err == nil && !found {
					err = zk.ErrNoNode
				}
				if err != nil {
					return 0, err
				}
				return stat.Mzxid, nil
			})
		switch {
		case errors.Is(err, backend.ErrNotFound), err == nil && changed > since:
			inner.Stop()
			t.Watch.Fire(backend.LookAgain)
		case err != nil:
			inner.Stop()
			return err
		default:
			s.hub.hand(key, inner, t.Watch)
		}
	}
	return nil
}

// stop stops the watch of a failed call. The reply may have arrived just as the call was
// given up, and armed the watch.
func stop(w *backend.Watch) {
	if w != nil {
		w.Stop()
	}
}

// Sync brings the server up to date. ZooKeeper orders it after everything that it received
// before on this connection. A commit of another goroutine may still be in the zk client's
// queue, or on a connection that broke, so Sync waits until those commits have been answered
// or their connection is closed. A commit in a server's buffers for the old connection cannot
// be applied once the session has moved to a new one: another server refuses it, and the same
// server has dropped it.
func (s *session) Sync(ctx context.Context, path string) error {
	if err := checkRead("sync", path); err != nil {
		return err
	}
	for _, t := range s.tickets.underWay() {
		select {
		case <-t.done:
			continue
		case <-ctx.Done():
		case <-s.sealed:
		}
		break // read returns the reason
	}
	_, err := read(ctx, s, "sync", path, nil, func(path string) (struct{}, error) {
		_, err := s.zk.Sync(path)
		return struct{}{}, err
	})
	return err
}

// checkRead refuses a path locally. The longest valid path still fits into a request; servers
// drop the connection for a larger one.
func checkRead(op, path string) error {
	if err := backend.CheckPath(path); err != nil {
		return &backend.Error{Op: op, Path: path, Err: reason(err)}
	}
	if len(path) > backend.MaxRequest {
		return &backend.Error{Op: op, Path: path, Err: fmt.Errorf("%w: a path of %d bytes, limit %d", backend.ErrTooLarge, len(path), backend.MaxRequest)}
	}
	return nil
}

// read makes a request that changes nothing, and repeats it while contact breaks or servers
// are overloaded.
func read[T any](ctx context.Context, s *session, op, path string, w *backend.Watch, request func(path string) (T, error)) (T, error) {
	if err := checkRead(op, path); err != nil {
		var zero T
		return zero, err
	}
	var expect func() *expectation
	if w != nil {
		expect = func() *expectation { return s.hub.expect(path, w) }
	}
	return repeat(ctx, s, op, path, expect, request)
}

// repeat is read for a path that has been checked. expect announces the watches
// that a request arms; it may be nil.
func repeat[T any](ctx context.Context, s *session, op, path string, expect func() *expectation, request func(path string) (T, error)) (T, error) {
	var zero T
	fail := func(err error) (T, error) {
		return zero, &backend.Error{Op: op, Path: path, Err: err}
	}
	if err := s.enter(); err != nil {
		return fail(err)
	}
	defer s.leave()
	throttles := 0
	for {
		if err := s.whenConnected(ctx); err != nil {
			return fail(err)
		}
		marked := path
		var x *expectation
		if expect != nil {
			x = expect()
			marked = markedForWatch(path, x.id)
		}
		v, err := await(ctx, s, func() (T, error) { return request(marked) })
		if err == nil {
			return v, nil
		}
		if x != nil {
			s.hub.forget(x)
		}
		if left, ok := err.(*leftAlone); ok {
			return fail(left.cause)
		}
		switch verdict, mapped := judge(err); verdict {
		case refused:
			return fail(withNode(err, mapped, op, path))
		case expired:
			s.lose(errExpired)
		case throttled:
			throttles++
			if err := s.easeOff(ctx, throttles); err != nil {
				return fail(err)
			}
		default:
			if answered(err) {
				// This answer is not known for reads. If the session asked again, the server
				// would give the same answer at once, in a tight loop.
				return fail(fmt.Errorf("%w: %s", backend.ErrUnsupported, answerText(err)))
			}
		}
	}
}

// enter counts a call as active, unless the session is over.
func (s *session) enter() error {
	s.checkLease()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.active++
	return nil
}

// hold counts work that outlives its call. The call itself is already counted.
func (s *session) hold() {
	s.mu.Lock()
	s.active++
	s.mu.Unlock()
}

func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	if s.active == 0 && s.err != nil {
		close(s.idle)
	}
}

// whenConnected waits for contact. Calls wait here and not in the zk client's queue, which is
// short and never drops a request.
func (s *session) whenConnected(ctx context.Context) error {
	for {
		if err := backend.ContextError(ctx); err != nil {
			return err
		}
		s.checkLease()
		s.mu.Lock()
		linked, change, err := s.linked, s.change, s.err
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if linked {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
		}
	}
}

// leftAlone is the error of a request whose caller no longer waits for the outcome.
type leftAlone struct{ cause error }

func (l *leftAlone) Error() string { return l.cause.Error() }

// await makes a request of the zk client, which knows no contexts, and waits for it until ctx
// ends or the session is sealed. Then the error is a *leftAlone, and the request continues on
// its own.
func await[T any](ctx context.Context, s *session, request func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		// The zk client returns when the session is sealed.
		return request()
	}
	type outcome struct {
		v   T
		err error
	}
	c := make(chan outcome, 1)
	s.hold()
	go func() {
		defer s.leave()
		v, err := request()
		c <- outcome{v, err}
	}()
	select {
	case o := <-c:
		return o.v, o.err
	case <-ctx.Done():
	case <-s.sealed:
	}
	select {
	case o := <-c:
		return o.v, o.err
	default:
	}
	var zero T
	if err := backend.ContextError(ctx); err != nil {
		return zero, &leftAlone{err}
	}
	return zero, &leftAlone{s.ended()}
}

// ended returns why a session that is sealed is over.
func (s *session) ended() error {
	<-s.done
	return s.Err()
}

func statOf(st *zk.Stat) backend.Stat {
	return backend.Stat{
		Czxid:          st.Czxid,
		Mzxid:          st.Mzxid,
		Pzxid:          st.Pzxid,
		Ctime:          st.Ctime,
		Mtime:          st.Mtime,
		Version:        st.Version,
		Cversion:       st.Cversion,
		EphemeralOwner: st.EphemeralOwner,
		DataLength:     st.DataLength,
		NumChildren:    st.NumChildren,
		// The latest change of this node: it was as the reply shows it from there on.
		AsOf: max(st.Mzxid, st.Pzxid),
	}
}
