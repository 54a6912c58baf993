package recipetest

import (
	"context"
	"strings"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// denies returns hooks that refuse the data of nodes.
func denies(secret func(path string) bool) *backendtest.Hooks {
	return &backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "get" && secret(c.Path) {
				return backend.ErrDenied
			}
			return nil
		},
		Results: func(c backendtest.Call, results []backend.ReadResult) {
			for i, r := range c.Reads {
				if !r.Children && secret(r.Path) && results[i].Err == nil {
					results[i] = backend.ReadResult{Err: &backend.Error{Op: "get", Path: r.Path, Err: backend.ErrDenied}}
				}
			}
		},
	}
}

// hiding is a service that keeps the changes of nodes that may not be read out of its trees,
// as some ZooKeeper servers do.
type hiding struct {
	backend.Backend
	secret func(path string) bool
	zxids  bool // the trees report the commits of changes

	mu    sync.Mutex
	trees [][2]*backend.TreeWatch // the service's and the caller's
}

// hide returns the backend and the hooks that belong to it.
func hide(b backend.Backend, secret func(path string) bool, zxids bool, before *coordtest.Nth) backend.Backend {
	h := &hiding{Backend: b, secret: secret, zxids: zxids}
	hooks := denies(secret)
	denied := hooks.Before
	hooks.Before = func(ctx context.Context, c backendtest.Call) error {
		if err := before.Before(ctx, c); err != nil {
			return err
		}
		return denied(ctx, c)
	}
	hooks.After = func(_ context.Context, _ backendtest.Call, err error) error {
		h.pass() // a change is reported before a read that shows it
		return err
	}
	return backendtest.Intercept(h, *hooks)
}

func (h *hiding) Open(ctx context.Context) (backend.Session, error) {
	s, err := h.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &hidingSession{s, h}, nil
}

// pass reports what is not hidden.
func (h *hiding) pass() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.trees {
		changes, over := t[0].Take()
		for _, c := range changes {
			if !h.zxids {
				c.Zxid = 0
			}
			if !h.secret(c.Path) {
				t[1].Tell(c)
			}
		}
		if over {
			t[1].Over()
		}
	}
}

type hidingSession struct {
	backend.Session
	h *hiding
}

func (s *hidingSession) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	in := backend.NewTreeWatch(0)
	if err := s.Session.WatchTree(ctx, path, in); err != nil {
		return err
	}
	w.Arm(nil)
	s.h.mu.Lock()
	s.h.trees = append(s.h.trees, [2]*backend.TreeWatch{in, w})
	s.h.mu.Unlock()
	go func() {
		for {
			select {
			case <-in.Ready():
				s.h.pass()
			case <-s.Done():
				return
			}
		}
	}()
	return nil
}

// readerOfAHidingService returns the group of a client that may not read the members whose id
// begins with "secret".
func (w *world) readerOfAHidingService(zxids bool, before *coordtest.Nth) *coord.Group[string] {
	b := hide(w.Link("reader"), func(path string) bool { return strings.Contains(path, "-secret") }, zxids, before)
	return textGroup(coordtest.Open(w.T, b, &coord.Options{Namespace: w.Path("")}), false)
}
