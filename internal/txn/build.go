package txn

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
)

// A Txn is a transaction that is built, and then committed any number of times. Commit does not
// change it.
type Txn struct {
	c       *core.Client
	refusal Refusal
	err     error // the first error of building
	guards  []core.Guard
	conds   []Condition
	ops     []Op
}

// A Refusal makes the error of a transaction that the service refused because of one part. op is
// "guard", the word of a condition, or the name of an operation. index counts the parts of the
// same sort from 0. path is that of the node, and err the reason.
type Refusal func(op string, index int, path string, err error) error

// New returns an empty transaction of c.
func New(c *core.Client, refusal Refusal) Txn {
	c.Need()
	return Txn{c: c, refusal: refusal}
}

// Under adds the condition that the hold of g has not ended. The zero Guard is refused.
func (t *Txn) Under(g core.Guard) {
	if g.IsZero() {
		t.note(&backend.Error{Op: "under", Err: fmt.Errorf("%w: the Guard is the zero value", backend.ErrInvalid)})
	}
	t.guards = append(t.guards, g)
}

// A Condition is a condition on a node. The zero Condition is refused.
type Condition struct {
	op      string
	path    string
	version int32
}

// IfVersion is the condition that the node at path exists and that its data has this version.
func IfVersion(path string, version int32) Condition { return Condition{"version", path, version} }

// IfExists is the condition that a node exists at path.
func IfExists(path string) Condition { return Condition{"exists", path, backend.AnyVersion} }

// IfMissing is the condition that no node exists at path, while its parent exists.
func IfMissing(path string) Condition { return Condition{"missing", path, 0} }

// request returns the request that checks the condition.
func (cond Condition) request() backend.Op {
	if cond.op == "missing" {
		return backend.Absent(cond.path)
	}
	return backend.Check(cond.path, cond.version)
}

// If adds a condition. Its path is without the namespace.
func (t *Txn) If(cond Condition) {
	p := t.c.Path(cond.path)
	if cond.op == "" {
		t.note(&backend.Error{Op: "if", Err: fmt.Errorf("%w: the Condition is the zero value", backend.ErrInvalid)})
		return
	}
	t.note(p.Check(cond.op))
	if cond.op == "version" && cond.version < 0 {
		t.note(&backend.Error{Op: cond.op, Path: cond.path, Err: fmt.Errorf("%w: version %d is negative", backend.ErrInvalid, cond.version)})
	}
	cond.path = p.Full()
	t.conds = append(t.conds, cond)
}

// Add adds an operation. The zero Op is refused.
func (t *Txn) Add(op Op) {
	t.note(op.Err)
	if op.Expand == nil && op.Err == nil {
		t.note(&backend.Error{Op: "do", Err: fmt.Errorf("%w: the TxnOp is the zero value", backend.ErrInvalid)})
	}
	t.ops = append(t.ops, op)
}

func (t *Txn) note(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Create returns the operation that creates the node at path, which must not exist, while its
// parent must. It keeps data.
func Create(c *core.Client, path string, data []byte, mode backend.CreateMode) Op {
	p := c.Path(path)
	create := backend.Create(p.Full(), data, mode)
	var invalid error
	if mode != backend.Persistent && mode != backend.Ephemeral {
		invalid = &backend.Error{Op: "create", Path: path, Err: fmt.Errorf("%w: a transaction creates persistent and ephemeral nodes, not one of mode %d", backend.ErrInvalid, mode)}
	}
	return Op{Name: "create", Path: p.Full(), Err: cmp.Or(invalid, p.Check("create")), Least: []backend.Op{create},
		Expand: func(context.Context, *core.Session, []backend.Op) ([]backend.Op, error) {
			return []backend.Op{create}, nil
		}}
}

// CreateAll is Create, for a node whose parents can be missing. It creates them before the
// transaction, as empty containers.
func CreateAll(c *core.Client, path string, data []byte, mode backend.CreateMode) Op {
	op := Create(c, path, data, mode)
	create, dir := op.Expand, nodepath.Parent(op.Path)
	op.Expand = func(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error) {
		if dir != "" && !Creates(before, dir) {
			if _, err := s.Backend().Exists(ctx, dir, nil); errs.IsNotFound(err) {
				err = s.Ensure(ctx, dir)
				if err != nil {
					return nil, err
				}
			} else if err != nil && !errs.Answers(err, backend.ErrDenied) {
				return nil, err
			}
		}
		return create(ctx, s, before)
	}
	op.Again = errs.IsNotFound // the service has collected the empty parent, or another client deleted it
	return op
}
