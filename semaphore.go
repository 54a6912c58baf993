package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/semaphore"
)

// SemaphoreOptions may be nil.
type SemaphoreOptions struct {
	// ID names the caller, as MutexOptions.ID.
	ID string

	// Data is stored in the node of each acquisition, as MutexOptions.Data.
	Data []byte

	// AdoptLimit accepts the limit that is stored on the service, whatever limit this
	// client expects. Without it a different limit is an error.
	AdoptLimit bool
}

// A Semaphore is a number of permits, shared by all clients of one path, as in Curator. An
// acquisition takes any number of permits, all or none, so two callers never hold half of the
// permits each and wait for the other half.
//
// Requests are granted in the order in which their nodes were created. A small request does not
// overtake a large request that waits ahead of it. No client polls: a release wakes the first
// waiter, and each grant one more. So if the process of a waiter whose turn has come is paused,
// the waiters right behind it wait until it resumes or its session ends.
//
// The first client stores the limit on the service. A client that expects another limit is
// refused with ErrLimit unless it sets AdoptLimit. SetLimit changes the limit. A higher limit
// wakes waiters. A lower limit revokes no permits: no request is granted until the sum fits
// again. The held permits never exceed the limit that was stored when the latest holder reached
// the head of the queue.
//
// Holds have no token: fence by Guard. A crash or a lost session returns the permits.
//
// A semaphore is not reentrant: acquire at once the permits that belong together. If ctx derives
// from holds on the same semaphore (Hold.Context), a request that cannot be granted before their
// release fails, Acquire with ErrHeld and TryAcquire with ErrLocked:
//
//   - if the permits of these holds and of the request exceed the limit;
//   - if another request was made after these holds and waits for them. A TryAcquire is such a
//     request for two round trips. If the limit was set after the other request, Acquire waits.
//
// Other holds of the process do not count.
//
// A Semaphore is safe for concurrent use and needs no closing. layout.md has its nodes.
type Semaphore struct{ s *semaphore.Semaphore }

// NewSemaphore returns the semaphore at path, which the caller expects to have limit
// permits. It does no I/O; a bad path or limit is reported by the first call.
func NewSemaphore(c *Client, path string, limit int, o *SemaphoreOptions) *Semaphore {
	var cfg semaphore.Config
	if o != nil {
		cfg = semaphore.Config{ID: o.ID, Data: o.Data, AdoptLimit: o.AdoptLimit}
	}
	return &Semaphore{semaphore.New(c.core(), path, limit, cfg)}
}

// Acquire acquires n permits, waiting until ctx ends. ctx bounds the wait only, not the
// hold. A session lost while waiting does not end the wait: the caller goes to the tail
// of the queue with the next session. If the wait ends without permits, the caller's node
// is deleted as with Mutex.Lock.
//
// Errors: ErrLimit when n exceeds the limit, at once and also when the limit is lowered
// below n while the call waits; when this client expects another limit; and when the
// directory's sequence numbers are used up, until its contenders have left. ErrInvalid for
// n below 1, an invalid limit, or a limit node without a number. ErrDenied, before the
// wait, when this client may not write its own node in path/requests. And the errors of
// Mutex.Lock.
func (s *Semaphore) Acquire(ctx context.Context, n int) (*Hold, error) {
	return asHold(s.s.Acquire(ctx, n))
}

// TryAcquire acquires n permits if it need not wait for holders or waiters, and returns
// ErrLocked if not.
func (s *Semaphore) TryAcquire(ctx context.Context, n int) (*Hold, error) {
	return asHold(s.s.TryAcquire(ctx, n))
}

// Locker returns n permits as a Locker: its Lock is Acquire, its TryLock TryAcquire.
// So LockAll can take permits together with locks.
func (s *Semaphore) Locker(n int) Locker { return permitLocker{s, n} }

type permitLocker struct {
	s *Semaphore
	n int
}

func (p permitLocker) Lock(ctx context.Context) (*Hold, error)    { return p.s.Acquire(ctx, p.n) }
func (p permitLocker) TryLock(ctx context.Context) (*Hold, error) { return p.s.TryAcquire(ctx, p.n) }
func (p permitLocker) Do(ctx context.Context, f func(context.Context, *Hold) error) error {
	return doUnder(ctx, p.s.s, func(ctx context.Context) (*core.Hold, error) { return p.s.s.Acquire(ctx, p.n) }, f)
}

func (p permitLocker) orderKey() (k lockKey) {
	if p.s != nil && p.s.s != nil {
		k.at = p.s.s
	}
	return k
}

// SetLimit changes the limit for all clients. This Semaphore expects the new limit from
// now on; Semaphores without AdoptLimit that expect another limit refuse to acquire. All
// waiters read the new limit: a waiter at the head whose request fits is granted, and a
// waiter whose request exceeds the limit fails with ErrLimit.
//
// If the outcome is unknown when ctx or the session ends, the error matches
// ErrUncertain.
func (s *Semaphore) SetLimit(ctx context.Context, limit int) error { return s.s.SetLimit(ctx, limit) }

// Limit returns the limit that is stored on the service, or ErrNotFound if the
// semaphore has not been used yet.
func (s *Semaphore) Limit(ctx context.Context) (int, error) { return s.s.Limit(ctx) }

// A SemaphoreContender is a request for permits of a Semaphore.
type SemaphoreContender struct {
	Path    string    // of its node, absolute
	Weight  int       // the number of permits requested
	Granted bool      // it holds the permits, or may take them as soon as its client notices
	Session int64     // the owner of the node
	Since   time.Time // the creation of the node, by the service's clock
	ID      string
	Data    []byte
}

// Contenders lists the holders of permits and the waiters, in order, as
// Mutex.Contenders does. After the limit was lowered, a holder that got its permits
// without waiting can appear as not granted, until the contenders before it have left.
// Contenders costs three requests and one more for each contender.
func (s *Semaphore) Contenders(ctx context.Context) ([]SemaphoreContender, error) {
	list, err := s.s.Contenders(ctx)
	return faces(list, func(x semaphore.Contender) SemaphoreContender { return SemaphoreContender(x) }), err
}
