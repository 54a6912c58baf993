package backendtest

import (
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/backend"
)

// A Call is one call that a hook sees.
type Call struct {
	// Session is the session below the wrapper; calls on it bypass the hooks. It has the same
	// ID as the session above.
	Session backend.Session
	Op      string           // "get", "exists", "children", "arm", "watch" (WatchTree), "read" (ReadMany), "sync" or "commit"
	Path    string           // of a read; for a commit, an arm or a ReadMany the path of the first operation, target or read
	Ops     []backend.Op     // of a commit; not to be changed
	Targets []backend.Target // of an arm; not to be changed

	Tree  *backend.TreeWatch // of a WatchTree; Over, called by a hook at any time, ends it
	Reads []backend.Read     // of a ReadMany; not to be changed
}

// Hooks run around the calls of the sessions of one backend. Each hook may be nil. Hooks run
// on the caller's goroutine, may block (then they should observe ctx), and must be safe for
// concurrent use.
type Hooks struct {
	// Before runs before the call. If it returns an error, the call is not made and returns
	// that error: with backend.ErrUncertain this is a lost request.
	Before func(ctx context.Context, c Call) error

	// After runs when the call has returned, and its result replaces the call's error. With
	// an error the results of the call are dropped, and its watches are stopped where the
	// contract says that they are not armed. To lose a reply after the commit was applied,
	// After returns backend.ErrUncertain for a commit whose err is nil. To delay a reply, it
	// blocks. To change nothing, it returns err.
	After func(ctx context.Context, c Call, err error) error

	// Names may replace the names that a children call has returned, as a lagging replica
	// would. The hook owns the slice. For the children that a ReadMany has read, c is the
	// call that would have read them alone.
	Names func(c Call, names []string) []string

	// Results may change the results that a ReadMany has returned.
	Results func(c Call, results []backend.ReadResult)
}

// Intercept returns b with hooks around the calls of its sessions. Everything else passes
// through: sessions keep their ID, status, watches and errors. Errors of hooks are wrapped in
// a *backend.Error unless they are one.
//
// To lose the reply of the first commit after it was applied:
//
//	var once sync.Once
//	b = backendtest.Intercept(b, backendtest.Hooks{
//		After: func(_ context.Context, c backendtest.Call, err error) error {
//			if c.Op == "commit" && err == nil {
//				once.Do(func() { err = backend.ErrUncertain })
//			}
//			return err
//		},
//	})
//
// To lose requests, do the same in Before. To hold a reply until the test releases it:
//
//	After: func(ctx context.Context, c backendtest.Call, err error) error {
//		select {
//		case <-release:
//			return err
//		case <-ctx.Done():
//			return backend.Uncertain(context.Cause(ctx))
//		}
//	},
func Intercept(b backend.Backend, h Hooks) backend.Backend {
	return &intercepted{b, h}
}

type intercepted struct {
	below backend.Backend
	hooks Hooks
}

func (b *intercepted) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.below.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &interceptedSession{s, b.hooks}, nil
}

// interceptedSession wraps the calls that go to the service; the other methods are those of
// the session.
type interceptedSession struct {
	backend.Session
	hooks Hooks
}

// Unwrap returns the session below.
func (s *interceptedSession) Unwrap() backend.Session { return s.Session }

func (s *interceptedSession) Get(ctx context.Context, path string, w *backend.Watch) (data []byte, stat backend.Stat, err error) {
	c := Call{Session: s.Session, Op: "get", Path: path}
	err = s.around(ctx, c, one(w), func() (err error) {
		data, stat, err = s.Session.Get(ctx, path, w)
		return err
	})
	if err != nil {
		return nil, backend.Stat{}, err
	}
	return data, stat, nil
}

func (s *interceptedSession) Exists(ctx context.Context, path string, w *backend.Watch) (stat backend.Stat, err error) {
	c := Call{Session: s.Session, Op: "exists", Path: path}
	err = s.around(ctx, c, one(w), func() (err error) {
		stat, err = s.Session.Exists(ctx, path, w)
		return err
	})
	if err != nil {
		return backend.Stat{}, err
	}
	return stat, nil
}

func (s *interceptedSession) Children(ctx context.Context, path string, w *backend.Watch) (names []string, stat backend.Stat, err error) {
	c := Call{Session: s.Session, Op: "children", Path: path}
	err = s.around(ctx, c, one(w), func() (err error) {
		names, stat, err = s.Session.Children(ctx, path, w)
		return err
	})
	if err != nil {
		return nil, backend.Stat{}, err
	}
	if s.hooks.Names != nil {
		names = s.hooks.Names(c, names)
	}
	return names, stat, nil
}

func (s *interceptedSession) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	c := Call{Session: s.Session, Op: "arm", Targets: slices.Clone(targets)}
	if len(targets) > 0 {
		c.Path = targets[0].Path
	}
	var watches []*backend.Watch
	for _, t := range targets {
		watches = append(watches, t.Watch)
	}
	return s.around(ctx, c, watches, func() error { return s.Session.Arm(ctx, since, targets...) })
}

func (s *interceptedSession) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	c := Call{Session: s.Session, Op: "watch", Path: path, Tree: w}
	err := s.around(ctx, c, nil, func() error { return s.Session.WatchTree(ctx, path, w) })
	if err != nil {
		w.Stop()
	}
	return err
}

func (s *interceptedSession) ReadMany(ctx context.Context, reads ...backend.Read) (results []backend.ReadResult, err error) {
	c := Call{Session: s.Session, Op: "read", Reads: slices.Clone(reads)}
	if len(reads) > 0 {
		c.Path = reads[0].Path
	}
	err = s.around(ctx, c, nil, func() (err error) {
		results, err = s.Session.ReadMany(ctx, reads...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.hooks.Names != nil {
		for i, r := range reads {
			if r.Children && results[i].Err == nil {
				results[i].Names = s.hooks.Names(Call{Session: s.Session, Op: "children", Path: r.Path}, results[i].Names)
			}
		}
	}
	if s.hooks.Results != nil {
		s.hooks.Results(c, results)
	}
	return results, nil
}

func (s *interceptedSession) Sync(ctx context.Context, path string) error {
	c := Call{Session: s.Session, Op: "sync", Path: path}
	return s.around(ctx, c, nil, func() error { return s.Session.Sync(ctx, path) })
}

func (s *interceptedSession) Commit(ctx context.Context, ops ...backend.Op) (results []backend.Result, err error) {
	c := Call{Session: s.Session, Op: "commit", Ops: slices.Clone(ops)}
	if len(ops) > 0 {
		c.Path = ops[0].Path
	}
	err = s.around(ctx, c, nil, func() (err error) {
		results, err = s.Session.Commit(ctx, ops...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// around makes the call between its hooks.
func (s *interceptedSession) around(ctx context.Context, c Call, watches []*backend.Watch, call func() error) error {
	if s.hooks.Before != nil {
		if err := s.hooks.Before(ctx, c); err != nil {
			return wrap(c, err)
		}
	}
	err := call()
	if s.hooks.After == nil {
		return err
	}
	after := s.hooks.After(ctx, c, err)
	if after == nil {
		return nil
	}
	if armed(c, err) && !armed(c, after) {
		for _, w := range watches {
			w.Stop()
		}
	}
	return wrap(c, after)
}

// one returns the watch of a read as a slice, empty without a watch.
func one(w *backend.Watch) []*backend.Watch {
	if w == nil {
		return nil
	}
	return []*backend.Watch{w}
}

// armed reports whether a read that returned err has armed its watch.
func armed(c Call, err error) bool {
	return err == nil || c.Op == "exists" && errors.Is(err, backend.ErrNotFound)
}

func wrap(c Call, err error) error {
	var e *backend.Error
	if errors.As(err, &e) {
		return err
	}
	e = &backend.Error{Op: c.Op, Path: c.Path, Err: err}
	if c.Op == "commit" {
		e.Index = -1
		if len(c.Ops) == 1 {
			e.Op = c.Ops[0].Kind.String()
		}
	}
	return e
}
