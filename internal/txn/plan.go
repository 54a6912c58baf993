package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// maxOps bounds the requests of one transaction: while the service applies a
// transaction, it handles no other client's write.
const maxOps = 1000

var errTooManySteps = fmt.Errorf("%w: the transaction has more than %d steps", backend.ErrTooLarge, maxOps)

// plan is a transaction as one attempt sends it to the service.
type plan struct {
	ops   []backend.Op
	parts []part

	refused *part // the operation whose Expand has returned a Conflict
}

// part is the guard, condition or operation to which some requests of a plan
// belong.
type part struct {
	name  string
	index int    // among the parts of its sort
	path  string // "" for a guard
	op    *Op    // nil for a guard or a condition

	first, n int // its requests
	product  int // of an operation with requests: the index of the request whose result is that of the operation
}

// again reports whether a transaction that was refused with err because of p can be tried again.
func (p *part) again(err error) bool { return p.op != nil && p.op.Again != nil && p.op.Again(err) }

func (p *plan) add(x part, ops ...backend.Op) error {
	x.first, x.n = len(p.ops), len(ops)
	x.product = x.first + product(ops, x.path)
	p.parts = append(p.parts, x)
	p.ops = append(p.ops, ops...)
	if len(p.ops) > maxOps {
		return errTooManySteps
	}
	return nil
}

// plan determines the requests of an attempt on s. The plan can come with an error.
func (t *Txn) plan(ctx context.Context, s *core.Session) (*plan, error) {
	if err := t.fits(s); err != nil {
		return nil, err
	}
	p := new(plan)
	var failed error
	note := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	for i, g := range t.guards {
		note(p.add(part{name: "guard", index: i}, g.Checks...))
	}
	for i, cond := range t.conds {
		note(p.add(part{name: cond.op, index: i, path: cond.path}, cond.request()))
	}
	for i := range t.ops {
		op := &t.ops[i]
		ops, err := op.Expand(ctx, s, p.ops)
		if c := (*Conflict)(nil); errors.As(err, &c) {
			return &plan{refused: &part{name: op.Name, index: i, path: op.Path}}, c.Err
		}
		if err != nil {
			return nil, errs.Op(op.Name, op.Path, err)
		}
		note(p.add(part{name: op.Name, index: i, path: op.Path, op: op}, ops...))
	}
	if failed == nil && len(p.ops) == 0 {
		failed = fmt.Errorf("%w: the transaction is empty", backend.ErrInvalid)
	}
	if failed == nil {
		failed = s.Backend().Limits().Refuse(p.ops)
	}
	return p, failed
}

// fits returns an error if the transaction is too large whatever its operations find.
func (t *Txn) fits(s *core.Session) error {
	var least []backend.Op
	for _, g := range t.guards {
		least = append(least, g.Checks...)
	}
	for _, op := range t.ops {
		least = append(least, op.Least...)
	}
	switch {
	case len(least)+len(t.conds) > maxOps:
		return errTooManySteps
	case len(least) == 0:
		return nil
	}
	return s.Backend().Limits().Refuse(least)
}

// product returns the index of the request that makes a recipe's operation on path: the last
// creation, or a later change of the created node, or else the last change of data. Pins do not
// count. Of a deletion it is the one that deletes path.
func product(ops []backend.Op, path string) int {
	if len(ops) > 0 && ops[0].Kind == backend.OpDelete {
		return max(slices.IndexFunc(ops, func(o backend.Op) bool { return o.Path == path }), 0)
	}
	set := 0
	for i := len(ops) - 1; i >= 0; i-- {
		switch {
		case layout.HasPin(ops[i].Path):
		case ops[i].Kind == backend.OpCreate && ops[set].Path == ops[i].Path:
			return max(set, i)
		case ops[i].Kind == backend.OpCreate:
			return i
		case ops[i].Kind == backend.OpSetData && set == 0:
			set = i
		}
	}
	return set
}

// blame returns the part that err is about, if the service refused that part because
// of its own state, and nil otherwise.
func (p *plan) blame(err error) *part {
	var e *backend.Error
	if p == nil || !errors.As(err, &e) || e.Index < 0 || e.Index >= len(p.ops) || e.Path != p.ops[e.Index].Path {
		return nil
	}
	switch {
	case errs.OfContext(err):
		return nil
	case errs.IsNotFound(err), errors.Is(err, backend.ErrExists), errors.Is(err, backend.ErrBadVersion),
		errors.Is(err, backend.ErrNotEmpty), errors.Is(err, backend.ErrNoChildren):
	default:
		return nil
	}
	for i := range p.parts {
		if x := &p.parts[i]; e.Index < x.first+x.n {
			return x
		}
	}
	return nil
}
