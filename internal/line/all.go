package line

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/holdset"
	"github.com/go-coord/coord/internal/nodepath"
)

// Locker is a lock as LockAll sees it.
type Locker interface {
	Lock(ctx context.Context) (*core.Hold, error)
	// Where returns the client and the path of the lock. The client is nil for a lock that is nil.
	Where() (*core.Client, nodepath.Path)
	// Joint returns the lock whose node a joint commit can create. It is nil for the permits of a Semaphore,
	// and for a Locker of another package, whose own Lock must be called.
	Joint() *Lock
}

// LockAll is LockAll of package coord.
func LockAll(ctx context.Context, lockers []Locker) (*holdset.Set, error) {
	list, err := inOrder(lockers)
	if err != nil {
		return nil, err
	}
	s := holdset.New()
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
			n, wait, together, err = lockTogether(wait, s, joints)
		} else {
			wait, err = lockOne(wait, s, list[0])
		}
		if err != nil {
			if lost := s.Loss(); lost != nil && ctx.Err() == nil {
				err = lost
			}
			return nil, s.GiveBack(ctx, err)
		}
		list = list[n:]
	}
	if err := s.Complete(ctx); err != nil {
		return nil, s.GiveBack(ctx, err)
	}
	return s, nil
}

// lockOne acquires one lock, and adds its hold to the set.
func lockOne(ctx context.Context, s *holdset.Set, l Locker) (wait context.Context, err error) {
	ctx = s.Within(ctx)
	h, err := l.Lock(ctx)
	if err == nil {
		s.Add(h)
	}
	return ctx, err
}

// inOrder sorts the lockers. It refuses lockers that cannot be locked together.
func inOrder(lockers []Locker) ([]Locker, error) {
	if len(lockers) == 0 {
		return nil, errs.Op("lockall", "", fmt.Errorf("%w: no locker given", backend.ErrInvalid))
	}
	type place struct {
		c    *core.Client
		full string
	}
	seen := make(map[place]bool)
	for i, l := range lockers {
		c, path := l.Where()
		if c == nil {
			return nil, errs.Op("lockall", "", fmt.Errorf("%w: locker %d of %d is nil", backend.ErrInvalid, i+1, len(lockers)))
		}
		if err := path.Check("lockall"); err != nil {
			return nil, err
		}
		at := place{c, path.Full()}
		if seen[at] {
			return nil, errs.Op("lockall", at.full, fmt.Errorf("%w: two lockers have this path", backend.ErrInvalid))
		}
		seen[at] = true
	}
	list := slices.Clone(lockers)
	slices.SortStableFunc(list, func(a, b Locker) int { return cmp.Compare(fullPath(a), fullPath(b)) })
	return list, nil
}

func fullPath(l Locker) string {
	_, path := l.Where()
	return path.Full()
}

// neighbours returns the calls of the first lockers, as many as one joint commit can have. The lockers are in
// path order. It returns nil if a joint commit can have fewer than two.
func neighbours(ctx context.Context, lockers []Locker) []joint {
	if lockers[0].Joint() == nil || len(lockers) == 1 {
		return nil
	}
	c, _ := lockers[0].Where()
	s, err := c.Live(ctx)
	if err != nil {
		return nil // Lock returns the error
	}
	const perLine = 2*128 + 256 // two operations, the name of the node, and the mark
	limits, size := s.Backend().Limits(), 0
	list := make([]joint, 0, len(lockers))
	for i, l := range lockers {
		k := l.Joint()
		if of, _ := l.Where(); k == nil || of != c {
			break
		}
		r := k.newRequest()
		size += perLine + 2*len(k.path.Full()) + len(r.data)
		if size > limits.Bytes || limits.Ops > 0 && 2*(i+1) > limits.Ops {
			break
		}
		list = append(list, joint{joiner: k.joiner, l: k.line(), r: r})
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

// lockTogether acquires the first n locks of the list, and adds their holds to the set. It stops before a
// lock for whose local turn the call would have to wait. If the previous holder of the first lock has
// handed its node over, n is 1: nothing would watch that node during a joint commit. together reports
// whether all n locks were free.
func lockTogether(ctx context.Context, s *holdset.Set, list []joint) (n int, wait context.Context, together bool, err error) {
	ctx = s.Within(ctx)
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
			ctx = s.Within(ctx)
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
		s.Add(h)
	}
	return n, ctx, together, nil
}
