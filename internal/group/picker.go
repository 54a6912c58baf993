package group

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
)

// Policy is the policy by which a Picker picks members.
type Policy int8

// The policies. RoundRobin begins at a random member.
const (
	RoundRobin Policy = iota
	Random
)

// A Picker picks one member of a group for each piece of work. It reads the view that it shares with
// Watches, so it never picks an incarnation that a Watch of the same Group reported as gone before the
// pick began. It does not pick members whose value could not be read.
type Picker struct {
	g      *Group
	v      *view
	policy Policy
	ended  chan struct{} // closed when the ctx given to Group.Picker ends

	mu   sync.Mutex
	last string // the id that was picked last
	err  error  // written before ended is closed
}

// Picker returns a Picker that follows the group until ctx ends.
func (g *Group) Picker(ctx context.Context, policy Policy) (*Picker, error) {
	core.NeedContext(ctx)
	if err := g.path.Check("picker"); err != nil {
		return nil, err
	}
	if policy != RoundRobin && policy != Random {
		return nil, errs.Op("picker", g.path.Full(), fmt.Errorf("%w: unknown policy %d", backend.ErrInvalid, int8(policy)))
	}
	v, err := g.attach()
	if err != nil {
		return nil, errs.Op("picker", g.path.Full(), err)
	}
	p := &Picker{g: g, v: v, policy: policy, ended: make(chan struct{})}
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
func (p *Picker) Next(ctx context.Context) (Member, error) {
	for {
		if err := backend.ContextError(ctx); err != nil {
			return Member{}, errs.Op("next", p.g.path.Full(), err)
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
func (p *Picker) TryNext() (Member, bool) {
	m, ok, _, _ := p.pick()
	return m, ok
}

// pick picks from the members that are known. If there is none to pick, changed is
// closed at the next change.
func (p *Picker) pick() (m Member, ok bool, changed <-chan struct{}, err error) {
	r, changed, final := p.v.seen.Get()
	p.mu.Lock()
	defer p.mu.Unlock()
	err = p.err
	if err == nil && final {
		err = r.err
	}
	if err != nil {
		return m, false, nil, errs.Op("next", p.g.path.Full(), err)
	}
	if len(r.readable) == 0 {
		return m, false, changed, nil
	}
	i := 0
	if p.policy == Random || p.last == "" { // an id is not empty
		i = int(p.g.c.Random("pick") % uint64(len(r.readable)))
	} else {
		// The order goes by id, because a place in the list shifts when members
		// come and go.
		var found bool
		i, found = slices.BinarySearchFunc(r.readable, p.last, func(m Member, id string) int { return strings.Compare(m.ID, id) })
		if found {
			i++
		}
		i %= len(r.readable)
	}
	m = r.readable[i]
	p.last = m.ID
	return m, true, nil, nil
}
