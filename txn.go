package coord

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/cell"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/txn"
)

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
	c *core.Client
	t txn.Txn
}

// NewTxn returns an empty transaction of c.
func NewTxn(c *Client) *Txn {
	return &Txn{c.core(), txn.New(c.core(), newConflictError)}
}

// A Condition of a Txn is made by IfVersion, IfExists or IfMissing.
type Condition struct{ c txn.Condition }

// IfVersion is the condition that the node at path exists and that its data has this
// version (backend.Stat's Version). The version counts the changes of the data. A node that
// was deleted and created again begins at 0.
func IfVersion(path string, version int32) Condition {
	return Condition{txn.IfVersion(path, version)}
}

// IfExists is the condition that a node exists at path.
func IfExists(path string) Condition { return Condition{txn.IfExists(path)} }

// IfMissing is the condition that no node exists at path, while its parent exists.
// ZooKeeper has no such check; backend.Absent describes what the condition does there.
//
// IfMissing is not needed before Create, which refuses an existing node.
func IfMissing(path string) Condition { return Condition{txn.IfMissing(path)} }

// A TxnOp is a recipe's part in a Txn, made by a method of the recipe. The requests
// that it takes are determined when the transaction is committed.
type TxnOp struct{ op txn.Op }

// A TxnResult is the result of one operation of a Txn.
type TxnResult struct {
	// Path is the absolute path of the node. For a recipe's TxnOp it is that of the
	// node that the operation created last, or of the item for AckOp. It is empty if the
	// service chose the name and the reply was lost.
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
	// ErrNoChildren; for an AckOp also ErrLost or ErrReleased.
	Err error
}

func newConflictError(op string, index int, path string, err error) error {
	return &ConflictError{op, index, path, err}
}

// Error names the part and the reason.
func (e *ConflictError) Error() string {
	what, sort := &backend.Error{Op: e.Op, Path: e.Path}, "operation"
	reason := e.Err
	switch e.Op {
	case "guard":
		what.Op, sort, reason = "node", "guard", ErrFenced
	case "version", "exists", "missing":
		sort = "condition"
	}
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
	t.t.Under(g.g)
	return t
}

// If adds conditions.
func (t *Txn) If(conds ...Condition) *Txn {
	for _, cond := range conds {
		t.t.If(cond.c)
	}
	return t
}

// Create creates a node. The node must not exist, and its parent must. The mode is
// backend.Persistent or backend.Ephemeral; the end of the session on which the client
// commits deletes an ephemeral node.
func (t *Txn) Create(path string, data []byte, mode backend.CreateMode) *Txn {
	return t.add(txn.Create(t.c, path, slices.Clone(data), mode))
}

// CreateAll is Create, for a node whose parents can be missing. The missing parents are no
// part of the transaction: they are created before it as empty containers, as those of
// recipes are, and stay for a while if the transaction is refused. CreateAll costs one
// request more than Create, unless the transaction creates the parent itself.
func (t *Txn) CreateAll(path string, data []byte, mode backend.CreateMode) *Txn {
	return t.add(txn.CreateAll(t.c, path, slices.Clone(data), mode))
}

// Set replaces the data of a node at any version; see IfVersion. The path is that of a node which a
// Txn or another program has created, or of a Value or Counter. If it belongs to a recipe of another
// kind, such as a lock, Commit returns an error that matches ErrKind, and applies nothing. A
// directory that the library has made above other nodes becomes a Value, as by SetOp.
//
// The first use of a path by a client costs one read before the transaction is sent, or two if the
// node has children.
func (t *Txn) Set(path string, data []byte) *Txn {
	return t.add(cell.New(t.c, path, layout.KindValue).PlainSetOp(slices.Clone(data)))
}

// Delete removes a node without children at any version. A Value that was set in a directory has
// a child, its pin (layout.md); Delete removes it too, if the same client, or the same transaction, has set
// the value.
func (t *Txn) Delete(path string) *Txn {
	return t.add(cell.New(t.c, path, layout.KindValue).DeleteOp())
}

// Add adds operations of recipes: each TxnOp comes from a method of a recipe.
func (t *Txn) Add(ops ...TxnOp) *Txn {
	for _, op := range ops {
		t.add(op.op)
	}
	return t
}

func (t *Txn) add(op txn.Op) *Txn {
	t.t.Add(op)
	return t
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
	results, err := t.t.Commit(ctx)
	return faces(results, func(r txn.Result) TxnResult { return TxnResult(r) }), err
}
