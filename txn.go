package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/internal/cell"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// maxTxnOps bounds the requests of one transaction: while the service applies a
// transaction, it handles no other client's write.
const maxTxnOps = 1000

// mostOvertaken bounds the attempts of a transaction whose recipe operations are
// refused each time. Then the cause is not another client but the transaction itself,
// such as one that deletes a node on which an operation relies.
const mostOvertaken = 30

// A Txn is a transaction on plain nodes: conditions and operations that the service
// applies all at once, or not at all. Build it by chained calls, and apply it with
// Commit:
//
//	_, err := coord.NewTxn(c).
//		Under(h.Guard()).
//		If(coord.IfVersion("/balance", version)).
//		Set("/balance", data).
//		Commit(ctx)
//
// Under the Guard of a hold, the service refuses the write once the hold has ended, even
// if its holder does not know that yet. The Txn and the hold can belong to different
// clients.
//
// Paths are below the client's namespace. The service checks the guards first, then
// the conditions. Then it applies the operations in the order in which they were
// added, each to the state that the earlier ones have left.
//
// A Txn keeps copies of the data, and Commit does not change it: it can be committed
// again, which applies it again. It is not safe for concurrent use while it is built.
type Txn struct {
	c      *core.Client
	err    error // the first error of building
	guards []core.Guard
	conds  []Condition
	ops    []TxnOp
}

// NewTxn returns an empty transaction of c.
func NewTxn(c *Client) *Txn {
	if c == nil {
		panic("coord: nil Client")
	}
	return &Txn{c: c.core()}
}

// A Condition of a Txn is made by IfVersion, IfExists or IfMissing.
type Condition struct {
	op      string
	path    string
	version int32
}

// IfVersion is the condition that the node at path exists and that its data has this
// version (backend.Stat's Version). The version counts the changes of the data. A node that
// was deleted and created again begins at 0.
func IfVersion(path string, version int32) Condition {
	return Condition{"version", path, version}
}

// IfExists is the condition that a node exists at path.
func IfExists(path string) Condition { return Condition{"exists", path, backend.AnyVersion} }

// IfMissing is the condition that no node exists at path, while its parent exists.
// ZooKeeper has no such check; backend.Absent describes what the condition does there.
//
// IfMissing is not needed before Create, which refuses an existing node.
func IfMissing(path string) Condition { return Condition{"missing", path, 0} }

// A TxnOp is a recipe's part in a Txn, made by a method of the recipe. The requests
// that it takes are determined when the transaction is committed.
type TxnOp struct {
	op   string // for ConflictError and other errors
	path string // absolute, for the same errors
	err  error  // why the operation is not valid

	// expand returns the requests to apply, on s, after the operations that precede
	// this one in the transaction. It may read, and create directories. It is called
	// again for each attempt.
	expand func(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error)
	// least has requests of the same size as some that expand returns: a transaction that is
	// too large is refused before expand reads.
	least []backend.Op
	// again reports whether the service refused the transaction only because the
	// state that expand had read was outdated. Then the operation is expanded and the
	// transaction tried again. Nil means never.
	again func(err error) bool
	// applied is called when the transaction is applied, or may be. Nil means that
	// the recipe need not know.
	applied func()
	// examine is called with the Stat of a node that the operation has set, or a later one, after
	// the transaction of all is applied. Nil means that no such node is examined.
	examine func(ctx context.Context, s *core.Session, all []backend.Op, stat backend.Stat, zxid int64) error
}

// A TxnResult is the result of one operation of a Txn.
type TxnResult struct {
	// Path is the absolute path of the node. For a recipe's TxnOp it is that of the
	// node that the operation created last. It is empty if the service chose the name
	// and the reply was lost.
	Path string
	// Zxid is the zxid of the commit: the Czxid of each node that it created, and the Mzxid
	// of each node that it set. It is the same for all results.
	Zxid int64
	// Version is the version of the node's data after the operation. It is -1 for Delete,
	// and if the reply was lost and the node has changed since.
	Version int32
}

// A ConflictError reports which part of a Txn does not fit the state of the service,
// so that nothing of the Txn was applied. It matches ErrConflict and Err; that of a guard
// matches ErrFenced too.
type ConflictError struct {
	// Op is "guard"; "version", "exists" or "missing" for a condition; "create",
	// "set", "delete" or a recipe's own word for an operation.
	Op string
	// Index counts from 0 among the guards, the conditions or the operations.
	Index int
	// Path is the absolute path of the node.
	Path string
	// Err matches ErrNotFound, ErrExists, ErrBadVersion, ErrNotEmpty or
	// ErrNoChildren.
	Err error
}

// Error names the part and the reason.
func (e *ConflictError) Error() string {
	what, sort := &backend.Error{Op: e.Op, Path: e.Path}, "operation"
	switch e.Op {
	case "guard":
		what.Op, sort = "node", "guard"
	case "version", "exists", "missing":
		sort = "condition"
	}
	reason := e.Err
	if inner, ok := reason.(*backend.Error); ok && inner.Path == e.Path {
		reason = inner.Err // the request adds nothing to it
	}
	whole := &backend.Error{Op: "transaction refused", Err: fmt.Errorf("%s %d (%s): %w", sort, e.Index, strings.TrimPrefix(what.Error(), "coord: "), reason)}
	return whole.Error()
}

// Unwrap returns Err.
func (e *ConflictError) Unwrap() error { return e.Err }

// Is reports whether target is ErrConflict, or ErrFenced for a guard.
func (e *ConflictError) Is(target error) bool {
	return target == ErrConflict || target == ErrFenced && e.Op == "guard"
}

// Under adds the condition that the hold of g has not ended. The zero Guard is refused, so
// that no write is made without its intended guard.
func (t *Txn) Under(g Guard) *Txn {
	if g.g.IsZero() {
		t.note(&backend.Error{Op: "under", Err: fmt.Errorf("%w: the Guard is the zero value", ErrInvalid)})
	}
	t.guards = append(t.guards, g.g)
	return t
}

// If adds conditions.
func (t *Txn) If(conds ...Condition) *Txn {
	for _, cond := range conds {
		p := t.c.Path(cond.path)
		if cond.op == "" {
			t.note(&backend.Error{Op: "if", Err: fmt.Errorf("%w: the Condition is the zero value", ErrInvalid)})
			continue
		}
		t.note(p.Check(cond.op))
		if cond.op == "version" && cond.version < 0 {
			t.note(&backend.Error{Op: cond.op, Path: cond.path, Err: fmt.Errorf("%w: version %d is negative", ErrInvalid, cond.version)})
		}
		cond.path = p.Full()
		t.conds = append(t.conds, cond)
	}
	return t
}

// Create creates a node. The node must not exist, and its parent must. The mode is
// backend.Persistent or backend.Ephemeral; the end of the session on which the client
// commits deletes an ephemeral node.
func (t *Txn) Create(path string, data []byte, mode backend.CreateMode) *Txn {
	if mode != backend.Persistent && mode != backend.Ephemeral {
		t.note(&backend.Error{Op: "create", Path: path, Err: fmt.Errorf("%w: a transaction cannot create a node of mode %d", ErrInvalid, mode)})
	}
	return t.plain(path, backend.Create("", slices.Clone(data), mode))
}

// CreateAll is Create, for a node whose parents can be missing. The missing parents are no
// part of the transaction: they are created before it as empty containers, as those of
// recipes are, and stay for a while if the transaction is refused. CreateAll costs one
// request more than Create, unless the transaction creates the parent itself.
func (t *Txn) CreateAll(path string, data []byte, mode backend.CreateMode) *Txn {
	before := len(t.ops)
	t.Create(path, data, mode)
	op := &t.ops[before]
	create, dir := op.expand, nodepath.Parent(op.path)
	op.expand = func(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error) {
		if dir != "" && !cell.Creates(before, dir) {
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
	op.again = errs.IsNotFound // the service has collected the empty parent, or another client deleted it
	return t
}

// Set replaces the data of a node at any version; see IfVersion. The path is that of a node which a
// Txn or another program has created, or of a Value or Counter. If it belongs to a recipe of another
// kind, such as a lock, Commit returns an error that matches ErrKind, and applies nothing. A
// directory that the library has made above other nodes becomes a Value, as by SetOp.
//
// The first use of a path by a client costs one read before the transaction is sent, or two if the
// node has children.
func (t *Txn) Set(path string, data []byte) *Txn {
	return t.Add(setOp(cell.New(t.c, path, layout.KindValue), slices.Clone(data), false, nil))
}

// setOp writes the node of n. invalid is the reason why data cannot be written. If the node is
// missing, the operation creates it, or with create false is refused by the service.
func setOp(n *cell.Node, data []byte, create bool, invalid error) TxnOp {
	return TxnOp{op: "set", path: n.FullPath(), err: cmp.Or(n.Check("set"), invalid),
		expand: func(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error) {
			return n.SetOps(ctx, s, before, data, create)
		},
		least:   []backend.Op{backend.SetData(n.FullPath(), data, backend.AnyVersion)},
		again:   func(err error) bool { return n.SetAgain(err, create) },
		examine: n.AfterSet,
	}
}

// Delete removes a node without children at any version. A Value that was set in a directory has
// a child, its pin (layout.md); Delete removes it too, if the same client, or the same transaction, has set
// the value.
func (t *Txn) Delete(path string) *Txn {
	n := cell.New(t.c, path, layout.KindValue)
	return t.Add(TxnOp{op: "delete", path: n.FullPath(), err: n.Check("delete"),
		expand: func(_ context.Context, _ *core.Session, before []backend.Op) ([]backend.Op, error) {
			return n.DeleteOps(before), nil
		},
		again: n.DeleteAgain,
	})
}

func (t *Txn) plain(path string, op backend.Op) *Txn {
	p := t.c.Path(path)
	op.Path = p.Full()
	return t.Add(TxnOp{op: op.Kind.String(), path: p.Full(), err: p.Check(op.Kind.String()), least: []backend.Op{op},
		expand: func(context.Context, *core.Session, []backend.Op) ([]backend.Op, error) { return []backend.Op{op}, nil }})
}

// Add adds operations of recipes: each TxnOp comes from a method of a recipe.
func (t *Txn) Add(ops ...TxnOp) *Txn {
	for _, op := range ops {
		t.note(op.err)
		if op.expand == nil && op.err == nil {
			t.note(&backend.Error{Op: "do", Err: fmt.Errorf("%w: the TxnOp is the zero value", ErrInvalid)})
		}
		t.ops = append(t.ops, op)
	}
	return t
}

func (t *Txn) note(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Commit applies the transaction, exactly once or not at all, and returns a result
// for each operation.
//
// A *ConflictError reports that the service refused the transaction, and which part
// of it is the cause. If a reply is lost, Commit finds out the outcome. The error
// matches ErrUncertain only if the session was lost, or ctx ended, while the outcome
// was unknown. Every other error is definite too: nothing was applied. Commit reports
// an error of building before it sends the transaction: ErrBadPath, ErrInvalid. It
// reports ErrTooLarge likewise, for a transaction that is larger than one request can
// be (backend.Limits), or that has more than 1,000 steps.
func (t *Txn) Commit(ctx context.Context) ([]TxnResult, error) {
	if t.err != nil {
		return nil, t.err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, errs.Op("commit", "", err)
	}
	for i, g := range t.guards {
		if err := g.Enter(); err != nil {
			for _, g := range t.guards[:i] {
				g.Leave(nil)
			}
			return nil, (&txnPart{op: "guard", index: i}).conflict(err)
		}
	}
	results, err := t.commit(ctx)
	for _, g := range t.guards {
		g.Leave(err)
	}
	return results, err
}

// commit is Commit between the checks of the caller's part.
func (t *Txn) commit(ctx context.Context) ([]TxnResult, error) {
	pause := core.NewPauses(t.c)
	for {
		s, err := t.c.Live(ctx)
		if err != nil {
			return nil, errs.Op("commit", "", err)
		}
		var p *txnPlan
		results, zxid := []backend.Result(nil), int64(0)
		if p, err = t.plan(ctx, s); err == nil {
			results, zxid, err = s.CommitOnce(ctx, p.ops...)
			if err == nil || backend.IsUncertain(err) {
				t.applied()
			}
		} else if backend.IsUncertain(err) {
			// Only a directory, or a bucket, is uncertain: the transaction itself was
			// not sent.
			if err = cmp.Or(backend.ContextError(ctx), s.Backend().Err()); err == nil {
				pause.Wait(ctx.Done(), s.Backend().Done())
				continue
			}
		}
		if err == nil {
			return p.results(ctx, s, results, zxid), t.examine(ctx, s, p, results, zxid)
		}
		part := p.blame(err)
		switch {
		case backend.IsUncertain(err):
			return nil, err
		case errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil:
			continue // the transaction was not sent, or was refused: the next session can commit it
		case part == nil:
			if errs.Named(err) != nil {
				return nil, err // err names the operation and the path
			}
			return nil, errs.Op("commit", "", err)
		case part.again != nil && part.again(err) && ctx.Err() == nil && pause.Count() < mostOvertaken:
			// The next read must not be behind the state for which the service
			// refused.
			if err := s.Backend().Sync(ctx, part.path); err != nil && !errs.IsOver(err) {
				return nil, errs.Op("commit", part.path, err)
			}
			pause.Wait(ctx.Done(), s.Backend().Done())
			continue
		}
		return nil, part.conflict(err)
	}
}

// examine examines the nodes that the transaction has set. got is nil if the reply was lost.
func (t *Txn) examine(ctx context.Context, s *core.Session, p *txnPlan, got []backend.Result, zxid int64) error {
	var failed []error
	for _, part := range p.parts {
		if part.yield < 0 || t.ops[part.index].examine == nil || p.ops[part.yield].Kind != backend.OpSetData {
			continue
		}
		op := t.ops[part.index]
		var stat backend.Stat
		if got != nil {
			stat = got[part.yield].Stat
		} else {
			var err error
			if stat, err = s.Backend().Exists(ctx, op.path, nil); err != nil {
				stat = backend.Stat{}
			}
		}
		failed = append(failed, errs.Op(op.op, op.path, op.examine(ctx, s, p.ops, stat, zxid)))
	}
	return errors.Join(failed...)
}

// applied tells the recipes that the transaction is applied, or may be.
func (t *Txn) applied() {
	for _, op := range t.ops {
		if op.applied != nil {
			op.applied()
		}
	}
}

// txnPlan is a transaction as it is sent to the service.
type txnPlan struct {
	ops   []backend.Op
	parts []txnPart
}

// txnPart is the guard, condition or operation to which some requests of a plan
// belong.
type txnPart struct {
	op    string
	index int
	path  string
	first int // the index of its first request
	n     int
	again func(error) bool
	yield int // the request whose result is the part's, or -1 for guards and conditions
}

func (p *txnPlan) add(part txnPart, ops ...backend.Op) error {
	part.first, part.n = len(p.ops), len(ops)
	p.parts = append(p.parts, part)
	p.ops = append(p.ops, ops...)
	if len(p.ops) > maxTxnOps {
		return errTooManySteps
	}
	return nil
}

// fits returns an error if the transaction is too large whatever its operations find.
func (t *Txn) fits(s *core.Session) error {
	var least []backend.Op
	for _, g := range t.guards {
		least = append(least, g.Checks...)
	}
	for _, op := range t.ops {
		least = append(least, op.least...)
	}
	switch {
	case len(least)+len(t.conds) > maxTxnOps:
		return errTooManySteps
	case len(least) == 0:
		return nil
	}
	return s.Backend().Limits().Refuse(least)
}

var errTooManySteps = fmt.Errorf("%w: the transaction has more than %d steps", ErrTooLarge, maxTxnOps)

func (t *Txn) plan(ctx context.Context, s *core.Session) (*txnPlan, error) {
	if err := t.fits(s); err != nil {
		return nil, err
	}
	p := new(txnPlan)
	var failed error
	note := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	for i, g := range t.guards {
		note(p.add(txnPart{op: "guard", index: i, yield: -1}, g.Checks...))
	}
	for i, cond := range t.conds {
		part := txnPart{op: cond.op, index: i, path: cond.path, yield: -1}
		if cond.op == "missing" {
			note(p.add(part, backend.Absent(cond.path)))
		} else {
			note(p.add(part, backend.Check(cond.path, cond.version)))
		}
	}
	for i, op := range t.ops {
		ops, err := op.expand(ctx, s, p.ops)
		if err != nil {
			return nil, errs.Op(op.op, op.path, err)
		}
		note(p.add(txnPart{op: op.op, index: i, path: op.path, again: op.again, yield: len(p.ops) + product(ops)}, ops...))
	}
	if failed == nil && len(p.ops) == 0 {
		failed = fmt.Errorf("%w: the transaction is empty", ErrInvalid)
	}
	if failed == nil {
		failed = s.Backend().Limits().Refuse(p.ops)
	}
	return p, failed
}

// product returns the index of the request that makes a recipe's operation: the last
// creation, or a later change of the created node, or else the last change of data. Pins do not
// count.
func product(ops []backend.Op) int {
	set := 0
	if len(ops) > 1 && layout.HasPin(ops[0].Path) {
		set = 1 // of a deletion
	}
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
func (p *txnPlan) blame(err error) *txnPart {
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
		if part := &p.parts[i]; e.Index < part.first+part.n {
			return part
		}
	}
	return nil
}

func (part *txnPart) conflict(err error) error {
	path := part.path
	if path == "" { // of a guard
		var e *backend.Error
		errors.As(err, &e)
		path = e.Path
	}
	return &ConflictError{Op: part.op, Index: part.index, Path: path, Err: err}
}

// results returns the results of the operations. got is nil if the reply was lost.
func (p *txnPlan) results(ctx context.Context, s *core.Session, got []backend.Result, zxid int64) []TxnResult {
	var list []TxnResult
	for _, part := range p.parts {
		if part.yield < 0 {
			continue
		}
		r := TxnResult{Path: part.path, Zxid: zxid, Version: -1}
		if part.n > 0 {
			op := p.ops[part.yield]
			r.Path = op.Path
			switch {
			case op.Kind == backend.OpCreate:
				r.Version = 0
				if got != nil {
					r.Path = got[part.yield].Path
				} else if op.Mode.Sequential() {
					r.Path = ""
				}
			case op.Kind == backend.OpSetData && got != nil:
				r.Version = got[part.yield].Stat.Version
			case op.Kind == backend.OpSetData:
				r.Version = p.version(ctx, s, part.yield, zxid)
			}
		}
		list = append(list, r)
	}
	return list
}

// version finds out which version request i made. It returns -1 if that cannot be
// seen any more.
func (p *txnPlan) version(ctx context.Context, s *core.Session, i int, zxid int64) int32 {
	stat, err := s.Backend().Exists(ctx, p.ops[i].Path, nil)
	if err != nil || stat.Mzxid != zxid {
		return -1
	}
	later := int32(0)
	for _, op := range p.ops[i+1:] {
		if op.Path == p.ops[i].Path && op.Kind == backend.OpSetData {
			later++
		}
	}
	return stat.Version - later
}
