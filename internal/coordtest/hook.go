package coordtest

import (
	"context"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// Creates reports whether a call is a commit that makes a node.
func Creates(c backendtest.Call) bool { return Commits(c, backend.OpCreate) }

// Deletes reports whether a call is a commit that deletes a node.
func Deletes(c backendtest.Call) bool { return Commits(c, backend.OpDelete) }

// Commits reports whether a call is a commit with an operation of this kind.
func Commits(c backendtest.Call, kind backend.OpKind) bool {
	for _, op := range c.Ops {
		if op.Kind == kind {
			return true
		}
	}
	return false
}

// Nth makes a hook do something at the n-th call that matches, once armed.
type Nth struct {
	mu    sync.Mutex
	match func(backendtest.Call) bool
	do    func(ctx context.Context, c backendtest.Call, err error) error
	n     int
}

// Arm makes the n-th matching call from now on, counted from 1, run do.
func (x *Nth) Arm(n int, match func(backendtest.Call) bool, do func(ctx context.Context, c backendtest.Call, err error) error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n, x.match, x.do = n, match, do
}

// Before is for a hook before a call.
func (x *Nth) Before(ctx context.Context, c backendtest.Call) error { return x.After(ctx, c, nil) }

// After is for a hook after a call.
func (x *Nth) After(ctx context.Context, c backendtest.Call, err error) error {
	x.mu.Lock()
	if x.n == 0 || !x.match(c) {
		x.mu.Unlock()
		return err
	}
	x.n--
	do := x.do
	hit := x.n == 0
	x.mu.Unlock()
	if !hit {
		return err
	}
	return do(ctx, c, err)
}

// Lose loses the reply.
func Lose(context.Context, backendtest.Call, error) error { return backend.ErrUncertain }

// Idle reports whether nothing is armed.
func (x *Nth) Idle() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.n == 0
}

// Silence is the result of each call of a dead process. It returns when the session or ctx
// ends.
func Silence(ctx context.Context, c backendtest.Call) error {
	err := backend.ErrSessionLost
	select {
	case <-c.Session.Done():
	case <-ctx.Done():
		err = backend.ContextError(ctx)
	}
	if c.Op == "commit" {
		return backend.Uncertain(err)
	}
	return err
}
