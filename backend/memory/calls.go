package memory

import (
	"context"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// read runs one read against the store's tree until its reply arrives. see is
// called with the store's mutex held; it reads the node at path, which may
// be nil, and returns the read's error.
func (s *session) read(ctx context.Context, op, path string, see func(*node) error) error {
	if backend.CheckPath(path) != nil {
		err := backend.CheckPath(path).(*backend.Error)
		err.Op = op
		return err
	}
	for {
		if err := s.travel(ctx); err != nil {
			return &backend.Error{Op: op, Path: path, Err: err}
		}
		contact, err := s.begin(ctx, false)
		if err != nil {
			return &backend.Error{Op: op, Path: path, Err: err}
		}
		seen := see(s.store.tree.nodes[path])
		ok, err := s.end(ctx, contact)
		switch {
		case err != nil:
			return &backend.Error{Op: op, Path: path, Err: err}
		case !ok:
			continue
		case seen != nil:
			return &backend.Error{Op: op, Path: path, Err: seen}
		}
		return nil
	}
}

// travel waits for the latency of a read's request.
func (s *session) travel(ctx context.Context) error {
	s.store.mu.Lock()
	due, prev := s.due()
	s.store.mu.Unlock()
	if due == 0 {
		return nil
	}
	t := time.NewTimer(due)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.done:
		return nil
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
	if prev != nil {
		<-prev // arrives within the same instant
	}
	return nil
}

// due reserves the place of a request on the link. It returns the latency of the request and
// a channel that is closed when the commit sent before it has arrived. Requests of one
// session arrive in the order in which they were sent, even if the latency was changed in
// between. The caller holds mu.
func (s *session) due() (time.Duration, chan struct{}) {
	if s.link.latency == 0 && s.lastDue.IsZero() {
		return 0, nil
	}
	now := time.Now()
	if s.link.latency == 0 && !s.lastDue.After(now) {
		s.lastDue = time.Time{}
		return 0, nil
	}
	due := now.Add(s.link.latency)
	if due.Before(s.lastDue) {
		due = s.lastDue
	}
	s.lastDue = due
	// At least a nanosecond: a request that waits must not overtake an earlier one.
	return max(due.Sub(now), 1), s.lastSent
}

// stopUnless stops the watch of a read that failed.
func stopUnless(ok bool, w *backend.Watch) {
	if !ok && w != nil {
		w.Stop()
	}
}

func (s *session) Get(ctx context.Context, path string, w *backend.Watch) (data []byte, stat backend.Stat, err error) {
	err = s.read(ctx, "get", path, func(n *node) error {
		if n == nil {
			return backend.ErrNotFound
		}
		data, stat = nil, s.store.tree.stat(n)
		if len(n.data) > 0 {
			data = slices.Clone(n.data)
		}
		if w != nil {
			s.store.watches.arm(s, w, path, false, true)
		}
		return nil
	})
	stopUnless(err == nil, w)
	if err != nil {
		return nil, backend.Stat{}, err
	}
	return data, stat, nil
}

func (s *session) Exists(ctx context.Context, path string, w *backend.Watch) (stat backend.Stat, err error) {
	missing := false
	err = s.read(ctx, "exists", path, func(n *node) error {
		if w != nil {
			s.store.watches.arm(s, w, path, false, n != nil)
		}
		missing = n == nil
		if missing {
			return backend.ErrNotFound
		}
		stat = s.store.tree.stat(n)
		return nil
	})
	if err != nil {
		e := err.(*backend.Error)
		stopUnless(e.Err == backend.ErrNotFound, w)
		return backend.Stat{}, err
	}
	return stat, nil
}

func (s *session) Children(ctx context.Context, path string, w *backend.Watch) (names []string, stat backend.Stat, err error) {
	err = s.read(ctx, "children", path, func(n *node) error {
		if n == nil {
			return backend.ErrNotFound
		}
		names, stat = n.names(), s.store.tree.stat(n)
		if w != nil {
			s.store.watches.arm(s, w, path, true, true)
		}
		return nil
	})
	stopUnless(err == nil, w)
	if err != nil {
		return nil, backend.Stat{}, err
	}
	return names, stat, nil
}

func (s *session) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	err := backend.CheckTargets(targets)
	if err == nil {
		err = s.read(ctx, "arm", targets[0].Path, func(*node) error {
			for _, t := range targets {
				n := s.store.tree.nodes[t.Path]
				if n == nil || n.changedAfter(since, t.Children) {
					s.store.watches.startle(s, t.Path, n == nil || !t.Children, n == nil || t.Children)
					t.Watch.Fire(backend.LookAgain)
					continue
				}
				s.store.watches.arm(s, t.Watch, t.Path, t.Children, true)
			}
			return nil
		})
	}
	for _, t := range targets {
		stopUnless(err == nil, t.Watch)
	}
	return err
}

func (s *session) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	if !s.store.has.Has(backend.Trees) {
		w.Stop()
		return &backend.Error{Op: "watch", Path: path, Err: backend.ErrUnsupported}
	}
	err := backend.CheckTree(path, w)
	if err == nil {
		err = s.read(ctx, "watch", path, func(*node) error {
			s.store.watches.armTree(s, w, path)
			return nil
		})
	}
	if err != nil {
		w.Stop()
	}
	return err
}

// batch is the number of reads in one request. Each request is a moment of its own.
const batch = 128

func (s *session) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	if !s.store.has.Has(backend.Batches) {
		return nil, &backend.Error{Op: "read", Path: firstPath(reads), Err: backend.ErrUnsupported}
	}
	if err := backend.CheckReads(reads); err != nil {
		return nil, err
	}
	results := make([]backend.ReadResult, len(reads))
	for from := 0; from < len(reads); from += batch {
		to := min(from+batch, len(reads))
		err := s.read(ctx, "read", reads[0].Path, func(*node) error {
			for i := from; i < to; i++ {
				results[i] = s.store.tree.read(reads[i])
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

func firstPath(reads []backend.Read) string {
	if len(reads) == 0 {
		return ""
	}
	return reads[0].Path
}

func (s *session) Sync(ctx context.Context, path string) error {
	// Every session reads the one tree, and requests arrive in order.
	return s.read(ctx, "sync", path, func(*node) error { return nil })
}

func (s *session) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if err := s.store.limits.Refuse(ops); err != nil {
		return nil, err
	}
	if ops[0].Kind == backend.OpCreate && ops[0].Mode == backend.Container && !s.store.has.Has(backend.Containers) {
		return nil, &backend.Error{Op: "create", Path: ops[0].Path, Err: backend.ErrUnsupported}
	}
	results, err := s.commit(ctx, ops)
	if err == nil {
		return results, nil
	}
	if _, ok := err.(*backend.Error); ok {
		return nil, err
	}
	e := &backend.Error{Op: "commit", Path: ops[0].Path, Index: -1, Err: err}
	if len(ops) == 1 {
		e.Op = ops[0].Kind.String()
	}
	return nil, e
}

func (s *session) commit(ctx context.Context, ops []backend.Op) ([]backend.Result, error) {
	contact, err := s.begin(ctx, true)
	if err != nil {
		return nil, err
	}
	if due, prev := s.due(); due > 0 {
		sent := make(chan struct{})
		s.lastSent = sent
		s.store.mu.Unlock()
		return s.commitLater(ctx, ops, contact, due, prev, sent)
	}
	results, failed := s.applyAndFire(ops)
	ok, err := s.end(ctx, contact)
	return outcome(results, failed, ok, err)
}

// outcome returns the reply to the caller of a commit that the store has handled.
func outcome(results []backend.Result, failed error, ok bool, err error) ([]backend.Result, error) {
	switch {
	case err != nil || !ok:
		return nil, backend.Uncertain(err)
	case failed != nil:
		return nil, failed
	}
	return results, nil
}

// applyAndFire needs the store's mutex.
func (s *session) applyAndFire(ops []backend.Op) ([]backend.Result, error) {
	if s.store.full && !backend.OnlyDeletes(ops) {
		return nil, &backend.Error{Op: "commit", Path: ops[0].Path, Index: -1, Err: backend.ErrNoSpace}
	}
	results := make([]backend.Result, len(ops))
	if err := s.store.apply(ops, results, s.id); err != nil {
		return nil, err
	}
	s.store.tree.tell(ops, results)
	return results, nil
}

// commitLater sends a commit over a link with latency. The request is under way from here on:
// it arrives even if ctx ends meanwhile, unless contact breaks or the session ends.
func (s *session) commitLater(ctx context.Context, ops []backend.Op, contact int, due time.Duration, prev, sent chan struct{}) ([]backend.Result, error) {
	ops = slices.Clone(ops)
	for i := range ops {
		ops[i].Data = slices.Clone(ops[i].Data) // the caller may reuse it when ctx has ended
	}
	var results []backend.Result
	var failed error
	arrived := make(chan bool, 1)
	time.AfterFunc(due, func() {
		defer close(sent)
		if prev != nil {
			<-prev
		}
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		if s.contact != contact || s.err != nil {
			arrived <- false
			return
		}
		results, failed = s.applyAndFire(ops)
		arrived <- true
	})
	select {
	case <-ctx.Done():
		return nil, backend.Uncertain(backend.ContextError(ctx))
	case <-s.done:
		// This commit no longer arrives, so the next commit's caller must not wait for it.
		return nil, backend.Uncertain(s.Err())
	case ok := <-arrived:
		s.store.mu.Lock()
		if !ok {
			err := s.err
			s.store.mu.Unlock()
			return nil, backend.Uncertain(err)
		}
		ok, err := s.end(ctx, contact)
		return outcome(results, failed, ok, err)
	}
}
