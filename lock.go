package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
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

	orderKey() orderKey
}

// A HoldSet is a set of holds that were acquired together, all or none. It is lost when
// any of its holds is lost. It has no token, since each hold has its own; holds of one
// commit have equal tokens. Fence writes under the set by Guard, or by the tokens of its
// Holds.
//
// It is safe for concurrent use.
type HoldSet struct {
	holds []*Hold // in the order in which they were acquired
	done  chan struct{}

	mu  sync.Mutex
	err error
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
	list, err := inOrder(lockers)
	if err != nil {
		return nil, err
	}
	s := &HoldSet{done: make(chan struct{})}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	for together := true; len(list) > 0; {
		var joints []joint
		if together {
			joints = neighbours(wait, list)
		}
		n := 1
		var err error
		if len(joints) > 0 {
			n, wait, together, err = s.lockTogether(wait, joints)
		} else {
			wait, err = s.lock(wait, list[0])
		}
		if err != nil {
			if lost := s.firstLoss(); lost != nil && ctx.Err() == nil {
				err = lost
			}
			return nil, s.giveBack(ctx, err)
		}
		list = list[n:]
	}
	if err := s.test(ctx); err != nil {
		return nil, s.giveBack(ctx, err)
	}
	for _, h := range s.holds {
		h.whenEnded(s.end)
	}
	if err := s.Err(); err != nil {
		return nil, s.giveBack(ctx, err)
	}
	return s, nil
}

// lock acquires one lock.
func (s *HoldSet) lock(ctx context.Context, l Locker) (wait context.Context, err error) {
	ctx = s.within(ctx)
	h, err := l.Lock(ctx)
	if err == nil {
		s.holds = append(s.holds, h)
	}
	return ctx, err
}

// within returns the context of the next acquisition: it ends also with the latest hold of the
// set, so that a loss ends the wait for the rest.
func (s *HoldSet) within(ctx context.Context) context.Context {
	if n := len(s.holds); n > 0 {
		return s.holds[n-1].Context(ctx)
	}
	return ctx
}

// test asks the service for the nodes that may have been deleted, as far as the client knows,
// while the call waited for others.
func (s *HoldSet) test(ctx context.Context) error {
	for _, h := range s.holds {
		if h.isDoubted() {
			if err := h.Verify(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// giveBack releases the holds of a set that was not completed for the reason why, and
// returns all errors joined. When ctx has ended, it waits for the releases under way as
// cleanUp.wait does.
func (s *HoldSet) giveBack(ctx context.Context, why error) error {
	type release struct {
		h   *Hold
		u   *cleanUp
		err chan error
	}
	var all []release
	for _, h := range slices.Backward(s.holds) {
		result := make(chan error, 1)
		u := h.s.c.goCleanUp(func(context.Context, *cleanUp) { result <- h.Release() })
		all = append(all, release{h, u, result})
		if u == nil {
			result <- h.Release() // the hold ended with its client
			continue
		}
		select {
		case <-u.done:
		case <-ctx.Done(): // the next release does not wait for this one
		}
	}
	errs := []error{why}
	began := time.Now()
	for _, r := range all {
		if r.u != nil {
			r.h.s.waitFor(r.u.done, giveUpWait-time.Since(began))
			r.u.note(parent(r.h.Path()))
		}
		select {
		case err := <-r.err:
			if err != why { // the loss that ended the call is already in errs
				errs = append(errs, err)
			}
		default:
		}
	}
	return errors.Join(errs...)
}

// inOrder sorts the lockers. It refuses lockers that cannot be locked together.
func inOrder(lockers []Locker) ([]Locker, error) {
	if len(lockers) == 0 {
		return nil, opError("lockall", "", fmt.Errorf("%w: no locker given", ErrInvalid))
	}
	type path struct {
		c    *Client
		full string
	}
	seen := make(map[path]bool)
	for i, l := range lockers {
		if l == nil || l.orderKey().client == nil {
			return nil, opError("lockall", "", fmt.Errorf("%w: locker %d of %d is nil", ErrInvalid, i+1, len(lockers)))
		}
		k := l.orderKey()
		if err := k.path.check("lockall"); err != nil {
			return nil, err
		}
		p := path{k.client, k.path.full}
		if seen[p] {
			return nil, opError("lockall", p.full, fmt.Errorf("%w: two lockers have this path", ErrInvalid))
		}
		seen[p] = true
	}
	list := slices.Clone(lockers)
	slices.SortStableFunc(list, func(a, b Locker) int { return cmp.Compare(a.orderKey().path.full, b.orderKey().path.full) })
	return list, nil
}

// whenEnded calls f when the hold ends, or at once if it has ended.
func (h *Hold) whenEnded(f func(error)) {
	h.checkLease()
	h.mu.Lock()
	err := h.err
	if err == nil {
		h.ends = append(h.ends, &onEnd{f: f})
	}
	h.mu.Unlock()
	if err != nil {
		f(err)
	}
}

// end marks the set as ended. The first reason counts.
func (s *HoldSet) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}

// firstLoss returns the loss of one of the holds, or nil.
func (s *HoldSet) firstLoss() error {
	for _, h := range s.holds {
		if err := h.Err(); errors.Is(err, ErrLost) {
			return err
		}
	}
	return nil
}

// Done returns a channel that is closed when any of the holds has ended.
func (s *HoldSet) Done() <-chan struct{} {
	s.Err() // compares the leases with the clock
	return s.done
}

// Err returns nil until one of the holds ends, and afterwards the Err of the first
// hold that ended.
func (s *HoldSet) Err() error {
	if lost := s.firstLoss(); lost != nil {
		s.end(lost) // the goroutine that ended the hold may not have called end yet
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Context returns a context that ends when parent or the set ends, with Err as
// its cause.
func (s *HoldSet) Context(parent context.Context) context.Context {
	for _, h := range s.holds {
		parent = h.Context(parent)
	}
	return parent
}

// Holds returns the holds in the order of their paths.
func (s *HoldSet) Holds() []*Hold { return slices.Clone(s.holds) }

// Guard returns the condition that none of the holds has ended.
func (s *HoldSet) Guard() Guard {
	var all Guard
	for i, h := range s.holds {
		g := h.Guard()
		all.checks = append(all.checks, g.checks...)
		if g.kept != nil && all.kept == nil {
			all.kept = make([]*Hold, len(s.holds))
		}
		if g.kept != nil {
			all.kept[i] = h
		}
	}
	return all
}

// Verify asks the service whether the nodes of all holds exist, as Hold.Verify.
func (s *HoldSet) Verify(ctx context.Context) error {
	for _, h := range s.holds {
		if err := h.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all of the holds in parallel, so it takes as long as one Release,
// also when some of them are lost. It returns their errors joined.
func (s *HoldSet) Release() error {
	errs := make([]error, len(s.holds))
	together(len(s.holds), func(i int) { errs[i] = s.holds[i].Release() })
	return errors.Join(errs...)
}
