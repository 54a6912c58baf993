package contact

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// ErrUnheard ends a session whose lease has passed.
var ErrUnheard = fmt.Errorf("%w: no renewal was answered within the lease", backend.ErrSessionLost)

// A Life is what a client knows of the life of its session: the lease, the phase, the calls under way, and why the session
// is over. The phase begins as suspended. It is lost, and stays so, from Finish on, which counts once. After Closing no call
// begins, and the session ends with backend.ErrClosed.
//
// The lease is renewed by the answers to renewals, and by nothing else. Enter, Status, Err and Left check it, and Watch does
// so while nothing calls them. When it has passed, they call the function that ends the session.
//
// A Life is safe for concurrent use. A session has a mutex of its own for state that changes with the phase, such as its connection. It
// holds that mutex when it calls Turn and Finish, but not when it calls a method that checks the lease.
type Life struct {
	now     func() Instant
	expire  func(error)
	ctx     context.Context
	cancel  context.CancelFunc
	pauses  Pauses
	timeout time.Duration

	mu      sync.Mutex
	lease   Lease
	phase   backend.Phase
	changed chan struct{} // closed and replaced at each change of phase
	err     error
	closing bool
	calls   int
	idle    chan struct{} // closed when no call is under way; nil while nothing waits for that
}

// NewLife returns the life of a session that is about to begin. expire is called with ErrUnheard when the lease has passed, possibly
// more than once. It calls Finish.
func NewLife(now func() Instant, expire func(error)) *Life {
	l := &Life{now: now, expire: expire, phase: backend.PhaseSuspended, changed: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Grant sets the timeout and the lease that the service has granted. It is called once, before any method that needs them.
func (l *Life) Grant(timeout time.Duration, lease Lease) { l.timeout, l.lease = timeout, lease }

func (l *Life) Timeout() time.Duration { return l.timeout }
func (l *Life) Done() <-chan struct{}  { return l.ctx.Done() }

// Lease returns the length of the lease.
func (l *Life) Lease() time.Duration { return l.lease.Length }

// Context returns a context that ends with the session.
func (l *Life) Context() context.Context { return l.ctx }

// TellPauses sets the function that is called after each pause of the process, see Pauses.
func (l *Life) TellPauses(f func(late time.Duration, asleep bool)) { l.pauses.Tell(f) }

// Left returns the rest of the lease, and ends the session if it has passed.
func (l *Life) Left() time.Duration {
	now := l.now()
	l.mu.Lock()
	left := l.lease.Left(now)
	alive := l.err == nil
	l.mu.Unlock()
	if alive && left <= 0 {
		l.expire(ErrUnheard)
	}
	return left
}

// Watch checks the lease until the session is over, on a goroutine that start starts.
func (l *Life) Watch(start func(func())) {
	l.pauses.Next(l.now(), 1, l.timeout) // at once
	start(func() {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-l.ctx.Done():
				l.pauses.Look(l.now()) // the end of the session can be noticed before the timer fires
				return
			case <-timer.C:
				left := l.Left()
				l.pauses.Look(l.now())
				wait := Soon(left, l.timeout)
				l.pauses.Next(l.now(), wait, l.timeout)
				timer.Reset(wait)
			}
		}
	})
}

// Renew renews the lease by an answer to a renewal that was sent at the instant. If the session is over or its lease has passed, Renew
// changes nothing and returns the reason. It does not end the session.
func (l *Life) Renew(sent Instant) error {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return l.err
	case l.lease.Left(now) <= 0:
		return ErrUnheard
	}
	l.lease.Renew(sent)
	return nil
}

// NoAnswer returns the error of a context that has ended while there is contact. If the answer to a renewal is overdue, it says so.
func (l *Life) NoAnswer(err error, from Target) error {
	now := l.now()
	l.mu.Lock()
	silent := l.lease.From.To(now)
	l.mu.Unlock()
	if silent < l.timeout/8+l.lease.Length/8 {
		return err
	}
	return &backend.NoContactError{Err: err, For: silent, Why: from.String() + ": no answer"}
}

// Status returns the phase, and a channel that is closed when it changes.
func (l *Life) Status() (backend.Phase, <-chan struct{}) {
	l.Left()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase, l.changed
}

// Err returns why the session is over, nil while it lives.
func (l *Life) Err() error {
	l.Left()
	return l.Ended()
}

// Ended is Err without the check of the lease.
func (l *Life) Ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Turn changes the phase of a session that is not over.
func (l *Life) Turn(to backend.Phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.phase != to {
		l.turn(to)
	}
}

func (l *Life) turn(to backend.Phase) {
	l.phase = to
	close(l.changed)
	l.changed = make(chan struct{})
}

// Finish ends the session for a reason, which it returns. It returns nil if the session is over already. first is called with the
// reason before anything shows that the session is over. It must not call methods of the Life.
func (l *Life) Finish(why error, first func(why error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil
	}
	if l.closing {
		why = backend.ErrClosed
	}
	first(why)
	l.err = why
	l.turn(backend.PhaseLost)
	l.cancel()
	return why
}

// Enter begins a call, and returns the error of a session that is over or closing. Without an error, Leave ends the call.
func (l *Life) Enter() error {
	l.Left()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return l.err
	case l.closing:
		return backend.ErrClosed
	}
	l.calls++
	return nil
}

// Leave ends a call.
func (l *Life) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	if l.calls == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// Closing begins Close, and reports whether this is the first time.
func (l *Life) Closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.closing
	l.closing = true
	return first
}

// Drain waits, after Closing, until no call is under way, for no longer than the limit. It returns earlier when ctx or the session ends.
func (l *Life) Drain(ctx context.Context, limit time.Duration) {
	l.mu.Lock()
	if l.calls == 0 || l.err != nil {
		l.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	l.idle = idle
	l.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	case <-l.ctx.Done():
	case <-ctx.Done():
	}
}
