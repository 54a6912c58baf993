package coord

import (
	"context"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/holdset"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
)

// A Locker is a lock of this package: a *Mutex, a *RWMutex, its readers' side
// (RLocker), or a number of permits (Semaphore.Locker). Other packages can wrap one by
// embedding it.
type Locker interface {
	// Lock waits for the lock until ctx ends.
	Lock(ctx context.Context) (*Hold, error)
	// TryLock returns ErrLocked instead of waiting for other holders.
	TryLock(ctx context.Context) (*Hold, error)
	// Do runs f under the lock, as Mutex.Do.
	Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error

	orderKey() lockKey
}

// A HoldSet is a set of holds that were acquired together, all or none. It is lost when
// any of its holds is lost. It has no token, since each hold has its own; holds of one
// commit have equal tokens. Fence writes under the set by Guard, or by the tokens of its
// Holds.
//
// It is safe for concurrent use.
type HoldSet struct {
	s     *holdset.Set
	holds []*Hold
}

// LockAll acquires all of the locks, or none: mutexes, sides of readers-writer locks and permits
// of semaphores, of one client or several. Two callers never wait for each other if each uses
// LockAll, or locks one by one in the order of the paths. The order of the arguments matters
// only for locks at one path on several services: it must be the same for all callers.
//
// Mutexes and readers-writer locks of one client that are neighbours in the order of their paths
// are acquired by one commit and, if all are free, one round trip. Otherwise LockAll keeps the
// locks before the first busy lock, waits for that lock, and acquires the rest one by one. During
// the wait, TryLock of other callers can get ErrLocked, and clients give up locks that they keep
// (MutexOptions.Keep).
//
// If a lock cannot be acquired, or is lost during the call (ErrLost), LockAll releases the other
// locks in reverse order, also after ctx has ended, and joins all errors. ErrInvalid: no locker or
// a nil one, or a path twice with one client. ErrHeld, ErrUpgrade: one lock twice, by several
// clients.
func LockAll(ctx context.Context, lockers ...Locker) (*HoldSet, error) {
	list := make([]line.Locker, len(lockers))
	taken := make(map[*core.Hold]*Hold)
	for i, l := range lockers {
		list[i] = lockerOf{l, taken}
	}
	s, err := line.LockAll(ctx, list)
	if err != nil {
		return nil, err
	}
	set := &HoldSet{s: s}
	for _, h := range s.Holds() {
		face := taken[h]
		if face == nil {
			face = &Hold{h}
		}
		set.holds = append(set.holds, face)
	}
	return set, nil
}

// place is an engine that knows its client and its path.
type place interface {
	Where() (*core.Client, nodepath.Path)
}

// lockKey names a lock for LockAll. The zero key is that of a nil lock.
type lockKey struct {
	at   place
	lock *line.Lock // nil if no joint commit can have the lock
	face any        // the Locker of this package that stands for the lock
}

// lockerOf is a Locker for the engine, which calls Lock from the goroutine of LockAll.
type lockerOf struct {
	l     Locker
	taken map[*core.Hold]*Hold // the holds that Lock of l has returned
}

func (x lockerOf) Lock(ctx context.Context) (*core.Hold, error) {
	h, err := x.l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	x.taken[h.h] = h
	return h.h, nil
}

func (x lockerOf) key() (k lockKey) {
	if x.l != nil {
		k = x.l.orderKey()
	}
	return k
}

func (x lockerOf) Where() (*core.Client, nodepath.Path) {
	k := x.key()
	if k.at == nil {
		return nil, nodepath.Path{}
	}
	return k.at.Where()
}

func (x lockerOf) Joint() *line.Lock {
	k := x.key()
	if k.face != any(x.l) {
		return nil // x.l is a wrapper of another package, whose own Lock must be called
	}
	return k.lock
}

// Done returns a channel that is closed when any of the holds has ended.
func (s *HoldSet) Done() <-chan struct{} { return s.s.Done() }

// Err returns nil until one of the holds ends, and afterwards the Err of the first
// hold that ended.
func (s *HoldSet) Err() error { return s.s.Err() }

// Context returns a context that ends when parent or the set ends, with Err as
// its cause.
func (s *HoldSet) Context(parent context.Context) context.Context { return s.s.Context(parent) }

// Guard returns the condition that none of the holds has ended.
func (s *HoldSet) Guard() Guard { return Guard{s.s.Guard()} }

// Verify asks the service whether the nodes of all holds exist, as Hold.Verify.
func (s *HoldSet) Verify(ctx context.Context) error { return s.s.Verify(ctx) }

// Release releases all of the holds in parallel, so it takes as long as one Release,
// also when some of them are lost. It returns their errors joined.
func (s *HoldSet) Release() error { return s.s.Release() }

// Holds returns the holds in the order of their paths.
func (s *HoldSet) Holds() []*Hold { return slices.Clone(s.holds) }

// A Contender is a client's request in the queue for a lock. The first one holds the
// lock.
type Contender struct {
	Path    string    // of its node, absolute
	Token   int64     // Hold.Token, now or after the grant; zero for a reader, also after a downgrade
	Session int64     // the owner of the node
	Since   time.Time // the creation of the node, by the service's clock
	ID      string
	Data    []byte
}

// contendersOf returns the faces of contenders.
func contendersOf(list []line.Contender, err error) ([]Contender, error) {
	return faces(list, func(x line.Contender) Contender { return Contender(x) }), err
}

// RevokeOptions may be nil.
type RevokeOptions struct {
	By     string // the requester, for the holder to read; may be empty
	Reason string // the reason, likewise

	// ForceAfter is the time that the holder has to consent after the request. When it
	// has passed, the holder's node is deleted: the hold ends, with ErrRevoked if the
	// holder has read the request by then and otherwise with ErrDeleted; its guard
	// fails; and the next waiter is granted, perhaps before the former holder learns of
	// the loss. Zero means to wait for consent until ctx ends.
	ForceAfter time.Duration
}

func (o *RevokeOptions) config() *line.RevokeOptions { return (*line.RevokeOptions)(o) }
