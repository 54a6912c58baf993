package coord

import (
	"context"

	"github.com/go-coord/coord/internal/line"
)

// RWMutexOptions may be nil.
type RWMutexOptions struct {
	// ID names the caller, as MutexOptions.ID.
	ID string

	// Data is stored in the node of each acquisition, as MutexOptions.Data.
	Data []byte
}

// An RWMutex is a lock that one writer or any number of readers hold (the shared locks of
// the ZooKeeper recipe guide). All contenders are in one queue, in the order in which their
// nodes were created. A reader waits for the nearest earlier writer, a writer for all
// earlier contenders. So writers do not starve, and no reader overtakes a waiting writer.
// When a writer releases, all readers up to the next writer are granted at once. Among the
// writers, only the writer behind the last reader wakes.
//
// A writer's hold has a token that is greater than that of every earlier writer. Readers
// have no token, since several hold the lock at a time: they fence by Guard. Losses are as
// for a Mutex.
//
// A writer can become a reader, see Downgrade. A reader cannot become the writer, since it
// would wait for itself: Lock and TryLock refuse with ErrUpgrade if their ctx derives from
// a read hold on the same lock (Hold.Context). Lock and RLock refuse with ErrHeld if their
// ctx derives from a writer's hold. Both also apply between several clients of one service.
//
// Do not acquire the read lock again under a read hold, but pass the Hold. If a writer
// comes in between, the second acquisition waits for the writer, and the writer waits for
// the read hold. With the ctx of the read hold, RLock then fails with ErrHeld; without a
// writer it succeeds. With another ctx it waits.
//
// Curator's InterProcessReadWriteLock and an RWMutex exclude each other on one path, except
// beside a writer of Curator's that downgrades: see layout.md, which also describes the
// nodes. An RWMutex is safe for concurrent use and needs no closing.
type RWMutex struct{ rw *line.RWMutex }

// NewRWMutex returns the lock at path. It does no I/O; a bad path is reported by
// the first call.
func NewRWMutex(c *Client, path string, o *RWMutexOptions) *RWMutex {
	var opts RWMutexOptions
	if o != nil {
		opts = *o
	}
	return &RWMutex{line.NewRWMutex(c.core(), path, opts.ID, opts.Data)}
}

// Lock acquires the lock as its only holder, waiting as Mutex.Lock does.
func (rw *RWMutex) Lock(ctx context.Context) (*Hold, error) {
	return asHold(rw.rw.Write.Lock(ctx))
}

// TryLock acquires the lock as its only holder if no other contender has it or waits
// for it, and returns ErrLocked if not.
func (rw *RWMutex) TryLock(ctx context.Context) (*Hold, error) {
	return asHold(rw.rw.Write.TryLock(ctx))
}

// RLock acquires the lock as one of its readers, waiting as Mutex.Lock does.
func (rw *RWMutex) RLock(ctx context.Context) (*Hold, error) {
	return asHold(rw.rw.Read.Lock(ctx))
}

// TryRLock acquires the lock as one of its readers if no writer has it or waits for it,
// and returns ErrLocked if not.
func (rw *RWMutex) TryRLock(ctx context.Context) (*Hold, error) {
	return asHold(rw.rw.Read.TryLock(ctx))
}

// Do runs f as the only holder, as Mutex.Do does.
func (rw *RWMutex) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return doUnder(ctx, rw.rw.Write, rw.rw.Write.Lock, f)
}

// RLocker returns the readers' side as a Locker: its Lock is RLock, its TryLock
// TryRLock, and its Do runs as a reader.
func (rw *RWMutex) RLocker() Locker { return readLocker{rw} }

type readLocker struct{ rw *RWMutex }

func (r readLocker) Lock(ctx context.Context) (*Hold, error)    { return r.rw.RLock(ctx) }
func (r readLocker) TryLock(ctx context.Context) (*Hold, error) { return r.rw.TryRLock(ctx) }
func (r readLocker) Do(ctx context.Context, f func(context.Context, *Hold) error) error {
	return doUnder(ctx, r.rw.rw.Read, r.rw.rw.Read.Lock, f)
}

// Contenders lists the holders and the waiters, as Mutex.Contenders does.
func (rw *RWMutex) Contenders(ctx context.Context) ([]Contender, error) {
	return contendersOf(rw.rw.Write.Contenders(ctx))
}

// Downgrade turns a writer's hold into a reader's, without releasing the lock in
// between: one commit deletes the writer's node and creates a reader's node with the
// same number. Readers that wait right behind are granted. A waiting writer is granted
// when these readers and this one have released. The hold stays the same and keeps its
// token, but its Path and Guard change.
//
// If ctx ends first, the error matches ErrUncertain, and the downgrade continues in the
// background. ErrInvalid: h is not a writer's hold of this lock.
func (rw *RWMutex) Downgrade(ctx context.Context, h *Hold) error {
	if h == nil {
		return rw.rw.Downgrade(ctx, nil)
	}
	return rw.rw.Downgrade(ctx, h.h)
}

// Revoke asks all current holders, the writer or the readers, to give the lock up, as
// Mutex.Revoke does.
func (rw *RWMutex) Revoke(ctx context.Context, o *RevokeOptions) error {
	return rw.rw.Write.Revoke(ctx, o.config())
}

func (rw *RWMutex) orderKey() (k lockKey) {
	if rw != nil && rw.rw != nil {
		k = lockKey{rw.rw.Write, rw.rw.Write, rw}
	}
	return k
}

func (r readLocker) orderKey() (k lockKey) {
	if r.rw != nil && r.rw.rw != nil {
		k = lockKey{r.rw.rw.Read, r.rw.rw.Read, r}
	}
	return k
}
