package line

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/parallel"
)

// Key names a lock for LockAll: the zero key is that of a nil one.
type Key struct {
	c      *core.Client
	path   nodepath.Path
	face   any    // the value of the program that stands for the lock
	joiner joiner // nil if no joint commit can have the lock
}

// NewKey returns the key of a lock that no joint commit can have.
func NewKey(c *core.Client, path nodepath.Path) Key { return Key{c: c, path: path} }

// For returns the key of the lock that the program gives as face. If this is not the value that stands
// for the lock, it is a wrapper of another package, whose own Lock must be called: no joint commit can
// have it.
func (k Key) For(face any) Key {
	if k.face != face {
		k.joiner = nil
	}
	return k
}

// Locker is a lock as LockAll sees it.
type Locker interface {
	Lock(ctx context.Context) (*core.Hold, error)
	// Key returns the key for what the program has given.
	Key() Key
}

// Set is the engine of a HoldSet.
type Set struct {
	holds []*core.Hold // in the order in which they were acquired
	done  chan struct{}

	mu  sync.Mutex
	err error
}

// LockAll is LockAll of package coord.
func LockAll(ctx context.Context, lockers []Locker) (*Set, error) {
	list, err := inOrder(lockers)
	if err != nil {
		return nil, err
	}
	s := &Set{done: make(chan struct{})}
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
		h.WhenEnded(s.end)
	}
	if err := s.Err(); err != nil {
		return nil, s.giveBack(ctx, err)
	}
	return s, nil
}

// lock acquires one lock.
func (s *Set) lock(ctx context.Context, l Locker) (wait context.Context, err error) {
	ctx = s.within(ctx)
	h, err := l.Lock(ctx)
	if err == nil {
		s.holds = append(s.holds, h)
	}
	return ctx, err
}

// within returns the context of the next acquisition: it ends also with the latest hold of the
// set, so that a loss ends the wait for the rest.
func (s *Set) within(ctx context.Context) context.Context {
	if n := len(s.holds); n > 0 {
		return s.holds[n-1].Context(ctx)
	}
	return ctx
}

// test asks the service for the nodes that may have been deleted, as far as the client knows,
// while the call waited for others.
func (s *Set) test(ctx context.Context) error {
	for _, h := range s.holds {
		if h.IsDoubted() {
			if err := h.Verify(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// giveBack releases the holds of a set that was not completed for the reason why, and
// returns all errors joined. When ctx has ended, it waits for the releases under way as
// core.CleanUp.Wait does.
func (s *Set) giveBack(ctx context.Context, why error) error {
	type release struct {
		h   *core.Hold
		u   *core.CleanUp
		err chan error
	}
	var all []release
	for _, h := range slices.Backward(s.holds) {
		result := make(chan error, 1)
		u := h.On().Client().GoCleanUp(func(context.Context, *core.CleanUp) { result <- h.Release() })
		all = append(all, release{h, u, result})
		if u == nil {
			result <- h.Release() // the hold ended with its client
			continue
		}
		select {
		case <-u.Done:
		case <-ctx.Done(): // the next release does not wait for this one
		}
	}
	failed := []error{why}
	began := time.Now()
	for _, r := range all {
		if r.u != nil {
			r.h.On().WaitFor(r.u.Done, core.GiveUpWait-time.Since(began))
			r.u.Note(nodepath.Parent(r.h.Path()))
		}
		select {
		case err := <-r.err:
			if err != why { // the loss that ended the call is already in failed
				failed = append(failed, err)
			}
		default:
		}
	}
	return errors.Join(failed...)
}

// inOrder sorts the lockers. It refuses lockers that cannot be locked together.
func inOrder(lockers []Locker) ([]Locker, error) {
	if len(lockers) == 0 {
		return nil, errs.Op("lockall", "", fmt.Errorf("%w: no locker given", backend.ErrInvalid))
	}
	type path struct {
		c    *core.Client
		full string
	}
	seen := make(map[path]bool)
	for i, l := range lockers {
		if l == nil || l.Key().c == nil {
			return nil, errs.Op("lockall", "", fmt.Errorf("%w: locker %d of %d is nil", backend.ErrInvalid, i+1, len(lockers)))
		}
		k := l.Key()
		if err := k.path.Check("lockall"); err != nil {
			return nil, err
		}
		p := path{k.c, k.path.Full()}
		if seen[p] {
			return nil, errs.Op("lockall", p.full, fmt.Errorf("%w: two lockers have this path", backend.ErrInvalid))
		}
		seen[p] = true
	}
	list := slices.Clone(lockers)
	slices.SortStableFunc(list, func(a, b Locker) int { return cmp.Compare(a.Key().path.Full(), b.Key().path.Full()) })
	return list, nil
}

// end marks the set as ended. The first reason counts.
func (s *Set) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}

// firstLoss returns the loss of one of the holds, or nil.
func (s *Set) firstLoss() error {
	for _, h := range s.holds {
		if err := h.Err(); errors.Is(err, errs.ErrLost) {
			return err
		}
	}
	return nil
}

// Done is HoldSet.Done of package coord.
func (s *Set) Done() <-chan struct{} {
	s.Err() // compares the leases with the clock
	return s.done
}

// Err is HoldSet.Err of package coord.
func (s *Set) Err() error {
	if lost := s.firstLoss(); lost != nil {
		s.end(lost) // the goroutine that ended the hold may not have called end yet
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Context is HoldSet.Context of package coord.
func (s *Set) Context(parent context.Context) context.Context {
	for _, h := range s.holds {
		parent = h.Context(parent)
	}
	return parent
}

// Holds is HoldSet.Holds of package coord.
func (s *Set) Holds() []*core.Hold { return s.holds }

// Guard is HoldSet.Guard of package coord.
func (s *Set) Guard() core.Guard { return core.GuardAll(s.holds) }

// Verify is HoldSet.Verify of package coord.
func (s *Set) Verify(ctx context.Context) error {
	for _, h := range s.holds {
		if err := h.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Release is HoldSet.Release of package coord.
func (s *Set) Release() error {
	failed := make([]error, len(s.holds))
	parallel.Do(len(s.holds), func(i int) { failed[i] = s.holds[i].Release() })
	return errors.Join(failed...)
}

// neighbours returns the calls for those of the lockers, which are in path order, that one
// joint commit can have, counted from the first one, or nil if these are fewer than two.
func neighbours(ctx context.Context, lockers []Locker) []joint {
	first := lockers[0].Key().joiner
	if first == nil || len(lockers) == 1 {
		return nil
	}
	c := lockers[0].Key().c
	s, err := c.Live(ctx)
	if err != nil {
		return nil // Lock returns the error
	}
	const perLine = 2*128 + 256 // two operations, the name of the node, and the mark
	limits, size := s.Backend().Limits(), 0
	list := make([]joint, 0, len(lockers))
	for i, l := range lockers {
		j := l.Key().joiner
		if j == nil || l.Key().c != c {
			break
		}
		r := j.newRequest()
		size += perLine + 2*len(l.Key().path.Full()) + len(r.data)
		if size > limits.Bytes || limits.Ops > 0 && 2*(i+1) > limits.Ops {
			break
		}
		list = append(list, joint{joiner: j, l: j.line(), r: r})
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

// lockTogether acquires neighbours, and adds their holds to the set: the first n of the list.
// The next lock, if any, is one for whose local turn the call has to wait, or the first one had
// a node of the previous holder, which must not go unwatched during a commit. together reports
// whether all n were free.
func (s *Set) lockTogether(ctx context.Context, list []joint) (n int, wait context.Context, together bool, err error) {
	ctx = s.within(ctx)
	for i := range list {
		if err := list[i].begin(ctx, list[i].r); err != nil {
			return 0, ctx, false, err
		}
	}
	if err := list[0].enterTurn(ctx); err != nil {
		return 0, ctx, false, err
	}
	n = 1
	if b := list[0].r.reserved.state; b == noReserved || b == reservedKept { // a handed-over node is granted first
		for n < len(list) && list[n].tryTurn(ctx) {
			n++
		}
	}
	list = list[:n]
	enterTogether(ctx, list)
	together = true
	for i := range list {
		j := &list[i]
		if i > 0 {
			ctx = s.within(ctx)
		}
		if err := j.enterTurn(ctx); err != nil {
			return 0, ctx, false, err
		}
		j.r.beforeWait = func() {
			together = false
			leavePlaces(list[i+1:])
		}
		h, err := j.acquire(ctx, j.r)
		if err != nil {
			leavePlaces(list[i+1:])
			return 0, ctx, false, err
		}
		s.holds = append(s.holds, h)
	}
	return n, ctx, together, nil
}
