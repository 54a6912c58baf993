package coord

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/internal/line"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
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
// from holds on the same semaphore (Hold.Context), Acquire fails with ErrHeld, and TryAcquire
// with ErrLocked, when its permits and theirs exceed the limit, or when a request that came in
// between waits for these holds. (A TryAcquire is such a request too, for two round trips. If
// the limit was set after that request, Acquire waits.) Other holds of the process do not count.
//
// A Semaphore is safe for concurrent use and needs no closing. layout.md has its nodes.
type Semaphore struct {
	c        *core.Client
	path     core.Path
	requests string // the directory of requests
	limit    string // the node of the limit
	data     []byte // of the node
	hasID    bool
	bad      error // of the options
	adopt    bool
	want     atomic.Int64            // the limit that this client expects
	seen     atomic.Pointer[permits] // the limit that was last found and accepted

	mu  sync.Mutex
	set setting // from which want comes
}

// setting is a SetLimit that was applied. The zxids of two sessions are not compared: the service can have
// been restored from a backup between them.
type setting struct {
	session int64 // session.nth
	zxid    int64
}

func (x setting) after(other setting) bool {
	return x.session > other.session || x.session == other.session && x.zxid > other.zxid
}

// NewSemaphore returns the semaphore at path, which the caller expects to have limit
// permits. It does no I/O; a bad path or limit is reported by the first call.
func NewSemaphore(c *Client, path string, limit int, o *SemaphoreOptions) *Semaphore {
	s := &Semaphore{c: c.core(), path: c.core().Path(path)}
	s.requests = s.path.Full() + "/requests"
	s.limit = s.path.Full() + "/limit"
	s.want.Store(int64(limit))
	if o != nil {
		s.adopt = o.AdoptLimit
		s.data, s.bad = line.EncodeContender(o.ID, 0, slices.Clone(o.Data))
		s.hasID = o.ID != ""
	}
	return s
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
	return asHold(s.acquire(ctx, &acquisition{sem: s, op: "acquire", n: n}))
}

// TryAcquire acquires n permits if it need not wait for holders or waiters, and returns
// ErrLocked if not.
func (s *Semaphore) TryAcquire(ctx context.Context, n int) (*Hold, error) {
	return asHold(s.acquire(ctx, &acquisition{sem: s, op: "tryacquire", n: n, try: true}))
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
	return doUnder(ctx, p.s.path.Full(), func(ctx context.Context) (*core.Hold, error) {
		return p.s.acquire(ctx, &acquisition{sem: p.s, op: "acquire", n: p.n})
	}, f)
}

func (s *Semaphore) acquire(ctx context.Context, a *acquisition) (*core.Hold, error) {
	if err := s.check(ctx, a.op); err != nil {
		return nil, err
	}
	if err := s.bad; err != nil {
		return nil, core.OpError(a.op, s.path.Full(), err)
	}
	want := int(s.want.Load())
	switch {
	case a.n < 1:
		return nil, core.OpError(a.op, s.path.Full(), fmt.Errorf("%w: %d permits requested, want at least 1", ErrInvalid, a.n))
	case a.n > layout.MaxPermits:
		return nil, core.OpError(a.op, s.path.Full(), tooHeavy(a.n, layout.MaxPermits))
	case a.n > want && !s.adopt:
		return nil, core.OpError(a.op, s.path.Full(), tooHeavy(a.n, want))
	}
	if err := a.heldUnder(ctx); err != nil {
		return nil, core.OpError(a.op, s.path.Full(), err)
	}
	a.span = s.c.NewSpan("semaphore", s.path.Full(), a.op)
	a.HolderLookup = line.NewHolderLookup(s.hasID)
	return a.run(ctx)
}

func (s *Semaphore) recipeDir() core.RecipeDir {
	return core.NewRecipeDir(s.path.Full(), layout.KindSemaphore)
}

// check returns the error for a bad semaphore or an ended ctx.
func (s *Semaphore) check(ctx context.Context, op string) error {
	if err := s.path.Check(op); err != nil {
		return err
	}
	err := checkLimit(s.want.Load())
	if err == nil {
		err = backend.ContextError(ctx)
	}
	return core.OpError(op, s.path.Full(), err)
}

// SetLimit changes the limit for all clients. This Semaphore expects the new limit from
// now on; Semaphores without AdoptLimit that expect another limit refuse to acquire. All
// waiters read the new limit: a waiter at the head whose request fits is granted, and a
// waiter whose request exceeds the limit fails with ErrLimit.
//
// If the outcome is unknown when ctx or the session ends, the error matches
// ErrUncertain.
func (s *Semaphore) SetLimit(ctx context.Context, limit int) error {
	if err := s.check(ctx, "setlimit"); err != nil {
		return err
	}
	if err := checkLimit(int64(limit)); err != nil {
		return core.OpError("setlimit", s.path.Full(), err)
	}
	// Not repeated on another session: a later change by another client could be
	// undone.
	now, err := core.OnSessionOnce(ctx, s.c, func(ss *core.Session) (setting, error) {
		zxid, err := s.setLimit(ctx, ss, limit)
		return setting{ss.Number(), zxid}, err
	})
	if err != nil {
		return core.OpError("setlimit", s.path.Full(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.after(s.set) { // the replies of two calls may come in any order
		s.set = now
		s.want.Store(int64(limit))
	}
	return nil
}

// Limit returns the limit that is stored on the service, or ErrNotFound if the
// semaphore has not been used yet.
func (s *Semaphore) Limit(ctx context.Context) (int, error) {
	if err := s.check(ctx, "limit"); err != nil {
		return 0, err
	}
	l, err := core.OnSession(ctx, s.c, func(ss *core.Session) (permits, error) { return readLimit(ctx, ss, s.limit, nil) })
	return l.n, core.OpError("limit", s.path.Full(), err)
}

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
	if err := s.check(ctx, "contenders"); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, s.c, func(ss *core.Session) ([]SemaphoreContender, error) { return s.permitContenders(ctx, ss) })
	return list, core.OpError("contenders", s.path.Full(), err)
}

func (s *Semaphore) permitContenders(ctx context.Context, ss *core.Session) ([]SemaphoreContender, error) {
	names, err := ss.List(ctx, s.requests)
	if len(names) == 0 || err != nil {
		return nil, err
	}
	l, err := readLimit(ctx, ss, s.limit, nil)
	if err != nil && !core.IsNotFound(err) {
		return nil, err
	}
	var list []SemaphoreContender
	granted, sum := 0, int64(0) // the length of the granted prefix of the list
	for _, q := range layout.OrderPermits(names) {
		sum += int64(q.Weight)
		path := s.requests + "/" + q.Name
		data, stat, err := ss.Backend().Get(ctx, path, nil)
		if core.IsNotFound(err) {
			continue // deleted since the listing
		}
		if err != nil {
			return nil, err
		}
		x := SemaphoreContender{
			Path: path, Weight: q.Weight, Session: stat.EphemeralOwner,
			Since: time.UnixMilli(stat.Ctime),
		}
		x.ID, x.Data = layout.OpenContender(data)
		list = append(list, x)
		if sum <= int64(l.n) || stat.Version > 0 {
			granted = len(list)
		}
	}
	for i := range granted {
		list[i].Granted = true
	}
	return list, nil
}

// permitHolds is a Semaphore as the recipe of its holds.
type permitHolds Semaphore

func (s *permitHolds) Release(h *core.Hold) error {
	q, ok := layout.ParsePermit(core.Base(h.Path()))
	if !ok || !line.IsHighNumber(h.On(), q.Seq) {
		return h.Remove(nil)
	}
	_, err := h.RemoveWith(s.requests)
	return err
}

func (s *permitHolds) Leftovers(*core.Hold, error) core.Leftovers { return core.Leftovers{} }

func (s *permitHolds) Lost(*core.Hold) {}

// remove deletes a request. If its number is high, it deletes the directory too,
// provided that it is otherwise empty: see layout.LeftSoft.
func (s *Semaphore) remove(ctx context.Context, ss *core.Session, path string) error {
	if q, ok := layout.ParsePermit(core.Base(path)); ok && line.IsHighNumber(ss, q.Seq) {
		return line.RemoveWithDir(ctx, ss, path, s.requests)
	}
	return ss.Remove(ctx, path)
}

// checkNumber returns nil for a place whose number is valid. Otherwise it removes the
// node. The last contender to leave deletes the directory too, so that the numbers
// begin anew.
func (s *Semaphore) checkNumber(ctx context.Context, p *line.Place) error {
	if line.NumbersLeft(p.S, p.Seq) > layout.LeftClose {
		return nil
	}
	if err := s.remove(ctx, p.S, p.Path); err != nil {
		p.S.RemoveAndWait(p.Path)
		return err
	}
	switch _, err := p.S.Backend().Exists(ctx, s.requests, nil); {
	case core.IsNotFound(err):
		return core.ErrDrained
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: the sequence numbers of the directory are exhausted until all holders and waiters have left", ErrLimit)
}

// tooHeavy returns the error for a request that exceeds the limit.
func tooHeavy(n, limit int) error {
	return fmt.Errorf("%w: %d permits requested, limit %d", ErrLimit, n, limit)
}

func (p permitLocker) orderKey() (k line.Key) {
	if p.s != nil {
		k = line.Key{Client: p.s.c, Path: p.s.path}
	}
	return k
}
