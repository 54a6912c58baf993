// Package gocronlock lets the processes of a cluster share the jobs of github.com/go-co-op/gocron/v2: a [Locker] for
// gocron.WithDistributedLocker, and an [Elector] for gocron.WithDistributedElector.
//
// gocron asks either of them before a run and tells neither of them the planned time. So neither can promise one run
// for each planned time: see their limits. If that is needed, use [coord.Schedule]: it claims each planned time once,
// whatever the clocks show, and keeps a history. It takes the cron expressions that gocron takes:
//
//	t, err := cron.ParseStandard("30 2 * * *") // github.com/robfig/cron/v3
//	err = coord.NewSchedule(c, "/schedules/report", t, nil).Run(ctx, report)
//
// # Loss
//
// gocron does not tell a job that its lock or its leadership is lost, and the context of the job does not end. A job
// that must stop then, or whose late writes could do harm, asks for the hold when it begins, works under the context
// of the hold, and fences its writes by the guard or the token:
//
//	func report(ctx context.Context) error {
//		h := locker.Hold("report")
//		ctx = h.Context(ctx)
//		_, err := coord.NewTxn(c).Under(h.Guard()).Add(latest.SetOp(build(ctx))).Commit(ctx)
//		return err
//	}
//
// A process that was paused continues its job until the job looks at the hold. Only the fence refuses its writes.
// gocron drops the error of Unlock. The Logger of the client gets a line for each hold that is lost.
package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/go-coord/coord"
)

// Options are the options of a Locker. Nil means the defaults.
type Options struct {
	// ID names the process in the list of contenders. It need not be unique.
	ID string

	// AtLeast is for how long a run holds its lock at least. It must exceed the differences between the clocks of
	// the processes, and be less than the interval between two planned times. The default is one second.
	// A negative time means no minimum.
	AtLeast time.Duration
}

// A Locker runs a job in one process at a time: a run begins only if no process runs a job of the same
// name. It is for gocron.WithDistributedLocker and gocron.WithDistributedJobLocker.
//
// Lock does not wait for another process. If the lock is not free, gocron leaves out this run, and calls AfterLockError of the
// job if there is one. While the client has no contact, Lock waits for contact, so a run can begin late.
//
// The lock is kept for Options.AtLeast, since the clocks of two processes differ: if a short job has released its lock
// before the clock of another process shows the planned time, that process runs it again. With a larger
// difference, or after the death of the process that holds the lock, a planned time can have two runs. An interval job (DurationJob) counts from the
// start of each scheduler, so its processes have different planned times: each of them runs the job.
//
// The lock ends with the session, also if the job has not returned. Then another process can begin a run beside the
// one that has lost its lock. This process begins none before the job has returned: until then Lock fails.
//
// gocron calls Unlock when the job has returned. This waits for the rest of AtLeast, or for the stop of the scheduler,
// and releases the lock. It also does if the job panics or ends its goroutine: without an AfterJobRunsWithPanic the panic ends
// the process after that wait only. Stop the scheduler before the client is
// closed. When the client is closed, the holds of running jobs are lost, and Lock returns coord.ErrClosed.
//
// A Locker is safe for concurrent use, has no goroutines and needs no closing.
type Locker struct {
	c       *coord.Client
	path    string
	id      string
	atLeast time.Duration

	mu   sync.Mutex
	runs map[string]*coord.Hold // by name: nil while Lock waits for the service
}

// NewLocker returns a Locker with the locks PATH/NAME, each a coord.Mutex, for jobs with the name NAME. In a NAME url.PathEscape replaces
// the characters that a path cannot contain.
//
// Give each job a name by gocron.WithName. The default is the name of its Go function: two closures of one function have the same, and the
// next version of the program may give it to another closure.
func NewLocker(c *coord.Client, path string, o *Options) *Locker {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.AtLeast == 0 {
		opts.AtLeast = time.Second
	}
	return &Locker{c: c, path: path, id: opts.ID, atLeast: opts.AtLeast, runs: make(map[string]*coord.Hold)}
}

// Lock is part of gocron.Locker. The errors are those of coord.Mutex.TryLock. ErrLocked: a process runs the
// job, or a run of this process has not ended.
func (l *Locker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	l.mu.Lock()
	_, running := l.runs[name]
	if !running {
		l.runs[name] = nil
	}
	l.mu.Unlock()
	if running {
		return nil, fmt.Errorf("gocronlock: job %q: its last run in this process has not ended: %w", name, coord.ErrLocked)
	}
	var h *coord.Hold
	defer func() { // also after a panic
		if h == nil {
			l.end(name, nil)
		}
	}()
	h, err := coord.NewMutex(l.c, l.path+"/"+url.PathEscape(name), &coord.MutexOptions{ID: l.id}).TryLock(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[name] = h
	return &lock{l, name, h, time.Now()}, nil
}

// end ends the run with this hold. A second Unlock finds the next run.
func (l *Locker) end(name string, h *coord.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs[name] == h {
		delete(l.runs, name)
	}
}

// Hold returns the hold of the run of the job with this name in this process, or nil if no run has begun under this Locker. During a
// run it is the hold of that run, which can have ended: see its Err.
func (l *Locker) Hold(name string) *coord.Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[name]
}

// lock is the lock of a run.
type lock struct {
	l       *Locker
	name    string
	h       *coord.Hold
	granted time.Time
}

// Unlock gets a context that gocron ends when the scheduler stops, also before the job has returned.
func (x *lock) Unlock(ctx context.Context) error {
	defer x.l.end(x.name, x.h)
	rest := time.NewTimer(x.l.atLeast - time.Since(x.granted))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	case <-x.h.Done():
	}
	return x.h.Release()
}

// An Elector lets gocron run jobs in the process that leads an election. It is for gocron.WithDistributedElector.
//
// The process is a candidate while [Elector.Run] runs. gocron asks IsLeader before each run only: a job that has begun
// continues when the term is lost, beside the jobs of the next leader. Term tells the job of the loss, and has the
// token that grows from one leader to the next.
//
// A planned time has no run if no process leads at that moment, and two if the leader changes and the clocks of the two differ.
//
// The Elector does not answer a request to give the term up (Election.Revoke), since jobs may run. With
// RevokeOptions.ForceAfter the term ends by force.
//
// An Elector is safe for concurrent use.
type Elector struct {
	e    *coord.Election
	term atomic.Pointer[coord.Term]
}

// NewElector returns an Elector for an election. It does no I/O.
func NewElector(e *coord.Election) *Elector { return &Elector{e: e} }

// Run makes the process a candidate, term after term, until ctx ends. Then it resigns, and returns nil. Stop the scheduler before ctx
// ends, or the next leader begins jobs beside those that still run here. Otherwise the errors are those of
// coord.Election.Campaign and coord.Hold.Release. Run must not be called twice.
func (x *Elector) Run(ctx context.Context) error {
	for t, err := range x.e.Terms(ctx) {
		if err != nil {
			return err
		}
		x.term.Store(t)
		select {
		case <-t.Done():
		case <-ctx.Done():
		}
		x.term.Store(nil)
	}
	return nil
}

// Term returns the term in which the process leads, or nil.
func (x *Elector) Term() *coord.Term {
	if t := x.term.Load(); t != nil && t.Err() == nil {
		return t
	}
	return nil
}

var errNoLeader = errors.New("gocronlock: this process does not lead")

// IsLeader is part of gocron.Elector. It returns nil while the process leads. It asks no service, and compares the clock as
// coord.Hold.Err does, so a process that was paused does not take itself for the leader.
func (x *Elector) IsLeader(context.Context) error {
	if x.Term() == nil {
		return errNoLeader
	}
	return nil
}
