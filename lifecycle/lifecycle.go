// Package lifecycle fits work with coord into frameworks that start and stop it: golang.org/x/sync/errgroup,
// sigs.k8s.io/controller-runtime and go.uber.org/fx. It imports none of them.
//
// A [Task] works until its context ends. Lead and WithClient make one:
//
//	task := lifecycle.Lead(coord.NewElection(c, "/leader", nil), reconcile)
//
//	g.Go(func() error { return task(ctx) }) // errgroup
//	err := mgr.Add(task)                    // a Manager of controller-runtime
//
//	hook := lifecycle.NewHook(task, func(error) { shutdowner.Shutdown(fx.ExitCode(1)) })
//	lc.Append(fx.StartStopHook(hook.Start, hook.Stop)) // fx
//
// Close the client after its tasks have returned: after Wait of the group, after Start of the Manager, or in a hook that is
// appended in the constructor of the client, since fx stops in reverse order. See docs/adapters.md.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// A Task works until ctx ends, and then returns nil. If it returns before, its error says why it cannot continue, and
// nil that its work is done.
//
// A Task is a Runnable and a LeaderElectionRunnable of controller-runtime.
type Task func(ctx context.Context) error

// Start runs the task. If it returns an error, a Manager of controller-runtime stops.
func (t Task) Start(ctx context.Context) error { return t(ctx) }

// NeedLeaderElection returns false: the task does not wait until the Manager is elected. A task of Lead has an
// election of its own.
func (t Task) NeedLeaderElection() bool { return false }

// Lead returns a Task that calls work in each term of the election that the process leads, with a context that ends with the
// term. It is coord.Election.Run, except that the end of ctx is no error.
//
// If a term is lost, its context ends. When work has returned, the process is a candidate again. Until work returns, it can
// act beside the next leader, and a process that was paused does not know of the loss: fence its writes by Term.Guard or
// Term.Token. When ctx ends, the task waits for work and resigns. If the error of work matches that of ctx, it is not returned. If work
// returns while its term stands, the task resigns and returns the error of work. If the service does not confirm
// the end of the term, the task also returns the error of coord.Hold.Release. If the client is closed, work loses its term, and the task returns coord.ErrClosed. If work panics, the task
// resigns, and the panic continues.
func Lead(e *coord.Election, work func(ctx context.Context, t *coord.Term) error) Task {
	return func(ctx context.Context) error {
		if work == nil {
			return e.Run(ctx, nil)
		}
		return unlessEnded(ctx, e.Run(ctx, func(held context.Context, t *coord.Term) error {
			return unlessEnded(ctx, work(held, t)) // joined with an error of resigning, it would hide that
		}))
	}
}

// WithClient returns a Task that opens a client, calls work with it, and closes it when work has returned, also by a
// panic. So nothing that work has started may use the client after work has returned. The result is the error of coord.Open; or
// those of work and Close, joined; coord.ErrInvalid if work is nil. Each call of the Task opens a client of its own.
func WithClient(b backend.Backend, o *coord.Options, work func(ctx context.Context, c *coord.Client) error) Task {
	return func(ctx context.Context) (err error) {
		if work == nil {
			return fmt.Errorf("lifecycle: %w: the function is nil", coord.ErrInvalid)
		}
		c, err := coord.Open(ctx, b, o)
		if err != nil {
			return unlessEnded(ctx, err)
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		return unlessEnded(ctx, work(ctx, c))
	}
}

// unlessEnded returns nil for an error that says that ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// A Hook runs a Task between the start and the stop of an application: Start and Stop are the functions for fx.StartStopHook. It
// is safe for concurrent use.
type Hook struct {
	task  Task
	ended func(error)

	mu  sync.Mutex
	run *run // nil: not started
}

type run struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the task has returned
	err    error         // of the task, when it is done
}

// NewHook returns a Hook for a task. If the task returns before Stop is called, ended is called with its error, nil if the
// work is done. Without that nothing tells the application that the task has ended. It may be nil, and must not call Stop.
func NewHook(t Task, ended func(error)) *Hook { return &Hook{task: t, ended: ended} }

// Start begins the task on a goroutine and returns. The context of the task has the values of ctx, and ends with Stop, since the ctx of
// a start ends with it. A panic of the task ends the process, and ended is not called.
func (h *Hook) Start(ctx context.Context) error {
	if h.task == nil {
		return fmt.Errorf("lifecycle: %w: the task is nil", coord.ErrInvalid)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run != nil {
		return errors.New("lifecycle: the hook was started before, and not stopped")
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &run{cancel: cancel, done: make(chan struct{}), err: errors.New("lifecycle: the task ended its goroutine (runtime.Goexit)")}
	h.run = r
	go func() {
		defer close(r.done)
		returned := false
		defer func() {
			if !returned {
				if v := recover(); v != nil {
					panic(v) // before ended, which can end the process without a word of it
				}
			}
			if h.ended != nil && ctx.Err() == nil {
				h.ended(r.err)
			}
		}()
		r.err = h.task(ctx)
		returned = true
	}()
	return nil
}

// Stop ends the context of the task, waits for the task, and returns its error. If ctx ends first, the error matches that of ctx, and
// the task continues until it returns: a leader leads until then, or until its session has expired. Another Stop waits again. Without
// a Start it returns nil.
func (h *Hook) Stop(ctx context.Context) error {
	h.mu.Lock()
	r := h.run
	h.mu.Unlock()
	if r == nil {
		return nil
	}
	r.cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
		select {
		case <-r.done: // select chooses at random if both have ended
		default:
			return fmt.Errorf("lifecycle: the task has not returned: %w", context.Cause(ctx))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run == r {
		h.run = nil
	}
	return r.err
}
