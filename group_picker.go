package coord

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
)

// PickPolicy is the policy by which a Picker picks members.
type PickPolicy int8

const (
	// PickRoundRobin picks the members one after the other in the order of their ids.
	// It begins at a random member, so that processes that start together pick different members.
	PickRoundRobin PickPolicy = iota
	// PickRandom picks any member, each with the same probability.
	PickRandom
)

// String returns the policy in lower case.
func (p PickPolicy) String() string {
	switch p {
	case PickRoundRobin:
		return "round robin"
	case PickRandom:
		return "random"
	}
	return "unknown"
}

// A Picker picks one member of a group for each piece of work: the client side of a
// service with several instances. It follows the group and picks without a request
// to the service. It never picks an incarnation that a Watch of the same Group
// reported as gone before the pick began. A member that has died may be picked
// until the service has noticed.
//
// Members whose value cannot be read are not picked. A Picker is safe for
// concurrent use.
type Picker[T any] struct {
	g      *Group[T]
	v      *view[T]
	policy PickPolicy
	ended  chan struct{} // closed when the ctx given to Group.Picker ends

	mu   sync.Mutex
	last string // the id that was picked last
	err  error  // written before ended is closed
}

// Picker returns a picker that follows the group until ctx ends. Then the picker picks no
// member any more.
func (g *Group[T]) Picker(ctx context.Context, policy PickPolicy) (*Picker[T], error) {
	core.NeedContext(ctx)
	if err := g.path.Check("picker"); err != nil {
		return nil, err
	}
	if policy != PickRoundRobin && policy != PickRandom {
		return nil, core.OpError("picker", g.path.Full(), fmt.Errorf("%w: unknown policy %d", ErrInvalid, int8(policy)))
	}
	v, err := g.attach()
	if err != nil {
		return nil, core.OpError("picker", g.path.Full(), err)
	}
	p := &Picker[T]{g: g, v: v, policy: policy, ended: make(chan struct{})}
	context.AfterFunc(ctx, func() {
		p.mu.Lock()
		p.err = backend.ContextError(ctx)
		p.mu.Unlock()
		close(p.ended)
		g.detach(v)
	})
	return p, nil
}

// Next picks a member. If there is none, it waits for one until ctx ends. It fails
// when the Picker has ended: with the error of the Picker's ctx, ErrClosed, or the
// error with which the service refused.
func (p *Picker[T]) Next(ctx context.Context) (Member[T], error) {
	for {
		if err := backend.ContextError(ctx); err != nil {
			return Member[T]{}, core.OpError("next", p.g.path.Full(), err)
		}
		m, ok, changed, err := p.pick()
		if ok || err != nil {
			return m, err
		}
		select {
		case <-changed:
		case <-p.ended:
		case <-ctx.Done():
		}
	}
}

// TryNext picks a member, or reports false if none is known at the moment: the
// group is empty or has not been read yet, or the Picker has ended.
func (p *Picker[T]) TryNext() (Member[T], bool) {
	m, ok, _, _ := p.pick()
	return m, ok
}

// pick picks from the members that are known. If there is none to pick, changed is
// closed at the next change.
func (p *Picker[T]) pick() (m Member[T], ok bool, changed <-chan struct{}, err error) {
	r, changed, final := p.v.seen.Get()
	p.mu.Lock()
	defer p.mu.Unlock()
	err = p.err
	if err == nil && final {
		err = r.err
	}
	if err != nil {
		return m, false, nil, core.OpError("next", p.g.path.Full(), err)
	}
	if len(r.readable) == 0 {
		return m, false, changed, nil
	}
	i := 0
	if p.policy == PickRandom || p.last == "" { // an id is not empty
		i = int(p.g.c.Random("pick") % uint64(len(r.readable)))
	} else {
		// The order goes by id, because a place in the list shifts when members
		// come and go.
		var found bool
		i, found = slices.BinarySearchFunc(r.readable, p.last, func(m Member[T], id string) int { return strings.Compare(m.ID, id) })
		if found {
			i++
		}
		i %= len(r.readable)
	}
	m = r.readable[i]
	p.last = m.ID
	return m, true, nil, nil
}
