package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
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
type RWMutex struct {
	c     *Client
	path  recipePath
	data  []byte // of the node
	hasID bool
	bad   error // of the options
}

// NewRWMutex returns the lock at path. It does no I/O; a bad path is reported by
// the first call.
func NewRWMutex(c *Client, path string, o *RWMutexOptions) *RWMutex {
	rw := &RWMutex{c: c, path: c.recipePath(path)}
	if o != nil {
		rw.data, rw.bad = encodeContender(o.ID, 0, slices.Clone(o.Data))
		rw.hasID = o.ID != ""
	}
	return rw
}

// Lock acquires the lock as its only holder, waiting as Mutex.Lock does.
func (rw *RWMutex) Lock(ctx context.Context) (*Hold, error) {
	return rw.lock(ctx, &request{op: "lock", kind: layout.WriteInfix})
}

// TryLock acquires the lock as its only holder if no other contender has it or waits
// for it, and returns ErrLocked if not.
func (rw *RWMutex) TryLock(ctx context.Context) (*Hold, error) {
	return rw.lock(ctx, &request{op: "trylock", kind: layout.WriteInfix, try: true})
}

// RLock acquires the lock as one of its readers, waiting as Mutex.Lock does.
func (rw *RWMutex) RLock(ctx context.Context) (*Hold, error) {
	return rw.lock(ctx, &request{op: "rlock", kind: layout.ReadInfix})
}

// TryRLock acquires the lock as one of its readers if no writer has it or waits for it,
// and returns ErrLocked if not.
func (rw *RWMutex) TryRLock(ctx context.Context) (*Hold, error) {
	return rw.lock(ctx, &request{op: "tryrlock", kind: layout.ReadInfix, try: true})
}

// Do runs f as the only holder, as Mutex.Do does.
func (rw *RWMutex) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return do(ctx, rw.path.full, rw.Lock, f)
}

// RLocker returns the readers' side as a Locker: its Lock is RLock, its TryLock
// TryRLock, and its Do runs as a reader.
func (rw *RWMutex) RLocker() Locker { return readLocker{rw} }

type readLocker struct{ rw *RWMutex }

func (r readLocker) Lock(ctx context.Context) (*Hold, error)    { return r.rw.RLock(ctx) }
func (r readLocker) TryLock(ctx context.Context) (*Hold, error) { return r.rw.TryRLock(ctx) }
func (r readLocker) Do(ctx context.Context, f func(context.Context, *Hold) error) error {
	return do(ctx, r.rw.path.full, r.rw.RLock, f)
}

// Contenders lists the holders and the waiters, as Mutex.Contenders does.
func (rw *RWMutex) Contenders(ctx context.Context) ([]Contender, error) {
	if err := rw.path.check("contenders"); err != nil {
		return nil, err
	}
	list, err := rw.line().contenders(ctx)
	return list, opError("contenders", rw.path.full, err)
}

// line returns the engine of the lock. Its rules, those of readers and writers among them,
// are in line.go; it waits in line_wait.go.
func (rw *RWMutex) line() *line { return &line{c: rw.c, dir: rw.path.full, kinds: layout.SharedLine} }

func (rw *RWMutex) lock(ctx context.Context, r *request) (*Hold, error) {
	if err := rw.begin(ctx, r); err != nil {
		return nil, err
	}
	return rw.acquire(ctx, r)
}

func (rw *RWMutex) newRequest() *request {
	return &request{op: "lock", kind: layout.WriteInfix, data: rw.data}
}

func (rw *RWMutex) begin(ctx context.Context, r *request) error {
	if err := rw.path.check(r.op); err != nil {
		return err
	}
	if err := rw.bad; err != nil {
		return opError(r.op, rw.path.full, err)
	}
	if err := backend.ContextError(ctx); err != nil {
		return opError(r.op, rw.path.full, err)
	}
	l := rw.line()
	if err := l.heldUnder(ctx, r); err != nil {
		return opError(r.op, rw.path.full, err)
	}
	r.data, r.holderLookup = rw.data, newHolderLookup(rw.hasID)
	r.span = rw.c.newSpan("rwmutex", rw.path.full, r.op)
	r.owner = l
	return nil
}

// takeTurn returns at once: each caller has a node of its own.
func (rw *RWMutex) takeTurn(context.Context, *request) error { return nil }

func (rw *RWMutex) acquire(ctx context.Context, r *request) (*Hold, error) {
	return r.owner.(*line).acquire(ctx, r)
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
	needContext(ctx)
	if err := rw.path.check("downgrade"); err != nil {
		return err
	}
	if h == nil || h.recipe == nil {
		return opError("downgrade", rw.path.full, fmt.Errorf("%w: the hold is nil or not from a lock", ErrInvalid))
	}
	if err := backend.ContextError(ctx); err != nil {
		return opError("downgrade", rw.path.full, err)
	}
	old, moving, err := rw.beginMove(h)
	if err != nil {
		return opError("downgrade", rw.path.full, err)
	}
	i := strings.LastIndex(old, layout.WriteInfix)
	next := old[:i] + layout.ReadInfix + old[i+len(layout.WriteInfix):]
	result := make(chan error, 1)
	move := func() {
		err := h.s.replace(old, next, rw.data)
		h.mu.Lock()
		if err == nil {
			h.path = next
		}
		h.moving = nil
		h.mu.Unlock()
		close(moving)
		switch {
		case isNotFound(err):
			h.nodeGone(context.Background(), old)
			err = h.Err()
		case isOver(err):
			h.lose(err)
			err = h.Err()
		case err == nil:
			if h.span != nil {
				h.span.emit(ctx, trace.HoldDowngraded{Subject: h.span.at(next), Token: h.token})
			}
		}
		result <- err
	}
	if !rw.c.goWork(move) {
		h.mu.Lock()
		h.moving = nil
		h.mu.Unlock()
		close(moving)
		return opError("downgrade", old, ErrClosed)
	}
	select {
	case err := <-result:
		return opError("downgrade", old, err)
	case <-ctx.Done():
		return opError("downgrade", old, backend.Uncertain(backend.ContextError(ctx)))
	}
}

// beginMove marks a writer's hold as about to move to another node.
func (rw *RWMutex) beginMove(h *Hold) (old string, moving chan struct{}, err error) {
	if err := h.Err(); err != nil {
		return "", nil, err
	}
	l := rw.line()
	h.mu.Lock()
	defer h.mu.Unlock()
	name, ok := strings.CutPrefix(h.path, l.dir+"/")
	q, known := l.kinds.Parse(name)
	switch {
	case h.s.c != rw.c, !ok, strings.Contains(name, "/"), !known, q.Shared, h.moving != nil:
		return "", nil, fmt.Errorf("%w: %s is not a writer's hold of this lock", ErrInvalid, h.path)
	case h.err != nil:
		return "", nil, h.err
	}
	h.moving = make(chan struct{})
	return h.path, h.moving, nil
}

// replace deletes the node at old and creates one at next, in one commit. If the reply
// is lost, it determines the outcome. The error matches ErrNotFound if an outsider
// deleted old.
func (s *session) replace(old, next string, data []byte) error {
	ctx := context.Background() // the session bounds it
	err := s.commitAgain(ctx, backend.Create(next, data, backend.Ephemeral), backend.Delete(old, backend.AnyVersion))
	if errors.Is(err, backend.ErrExists) {
		return nil // created by an attempt whose reply was lost, since the name is this hold's alone
	}
	return err
}

// Revoke asks all current holders, the writer or the readers, to give the lock up, as
// Mutex.Revoke does.
func (rw *RWMutex) Revoke(ctx context.Context, o *RevokeOptions) error {
	return rw.line().revoke(ctx, &rw.path, o)
}

func (rw *RWMutex) orderKey() (k orderKey) {
	if rw != nil {
		k = orderKey{rw.c, rw.path, rw}
	}
	return k
}

func (r readLocker) line() *line { return r.rw.line() }

func (r readLocker) newRequest() *request {
	return &request{op: "rlock", kind: layout.ReadInfix, data: r.rw.data}
}

func (r readLocker) begin(ctx context.Context, q *request) error    { return r.rw.begin(ctx, q) }
func (r readLocker) takeTurn(ctx context.Context, q *request) error { return r.rw.takeTurn(ctx, q) }
func (r readLocker) acquire(ctx context.Context, q *request) (*Hold, error) {
	return r.rw.acquire(ctx, q)
}

func (r readLocker) orderKey() orderKey {
	k := r.rw.orderKey()
	k.joiner = r
	return k
}
