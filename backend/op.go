package backend

import (
	"slices"
	"strings"
)

// CreateMode is the kind of a node to create.
type CreateMode int8

// The modes. A sequential node's name gets a number as its suffix: an int64 with leading
// zeros up to ten digits. It is higher than those of all sequential nodes that were created
// under the same parent before. Numbers can be left out, and they need not begin at zero, nor
// begin again when the parent is deleted and created again. Services whose numbers end tell
// so in Limits.Sequence. After the end the numbers repeat. Within one commit they can continue
// below zero instead, where ZooKeeper's 32 bits overflow: -2^31 follows 2^31-1. An ephemeral
// node is deleted with its session and has no children. A container is removed by
// the service some time after its last child is deleted.
const (
	Persistent CreateMode = iota
	Ephemeral
	PersistentSequential
	EphemeralSequential
	Container
)

// Ephemeral reports whether nodes of this mode are deleted with their session.
func (m CreateMode) Ephemeral() bool { return m == Ephemeral || m == EphemeralSequential }

// Sequential reports whether names of nodes of this mode get a number as suffix.
func (m CreateMode) Sequential() bool { return m == PersistentSequential || m == EphemeralSequential }

// OpKind is the kind of an Op.
type OpKind int8

// The kinds of operations.
const (
	OpCreate OpKind = iota + 1
	OpSetData
	OpDelete
	OpCheck
	OpAbsent
	OpCarry
)

// String returns the name that errors use.
func (k OpKind) String() string {
	switch k {
	case OpCreate:
		return "create"
	case OpSetData:
		return "set"
	case OpDelete:
		return "delete"
	case OpCheck:
		return "check"
	case OpAbsent:
		return "absent"
	case OpCarry:
		return "carry"
	}
	return "unknown"
}

// AnyVersion as the version of an operation matches every version.
const AnyVersion int32 = -1

// An Op is one operation of a Commit. Make it with Create, SetData, Delete, Check, Absent
// or Carry.
type Op struct {
	Kind    OpKind
	Path    string
	Data    []byte     // Create, SetData and Carry
	Mode    CreateMode // Create
	Version int32      // SetData, Delete and Check

	// Shared is set for a directory in which clients with other credentials must be able to
	// create nodes too. A service with permissions then gives the node the permissions for
	// that; other services ignore it.
	Shared bool
}

// Create creates a node at path, which must not exist (ErrExists). Its parent must exist
// (ErrNotFound) and must not be ephemeral (ErrNoChildren). For a sequential mode the path is
// the prefix to which the number is appended.
func Create(path string, data []byte, mode CreateMode) Op {
	return Op{Kind: OpCreate, Path: path, Data: data, Mode: mode}
}

// SetData replaces the data of the node at path if the node has that version. AnyVersion
// matches every version.
func SetData(path string, data []byte, version int32) Op {
	return Op{Kind: OpSetData, Path: path, Data: data, Version: version}
}

// Delete removes the node at path if the node has that version. AnyVersion matches every
// version. A node with children is not deleted (ErrNotEmpty).
func Delete(path string, version int32) Op {
	return Op{Kind: OpDelete, Path: path, Version: version}
}

// Check fails the Commit unless the node at path exists and has that version. AnyVersion
// matches every version.
func Check(path string, version int32) Op {
	return Op{Kind: OpCheck, Path: path, Version: version}
}

// Absent fails the Commit if there is a node at path (ErrExists), or if one could not be
// created there: the parent must exist (ErrNotFound), and must not be ephemeral
// (ErrNoChildren).
//
// ZooKeeper has no such check, so its backend creates the node and deletes it again in the
// same Commit. No reader ever sees that node. But the parent counts two changes of its
// children (Cversion), the next sequential child of the parent skips a number, and watches for
// that node and for the parent's children fire. The client needs the permission to create and
// to delete children of the parent.
func Absent(path string) Op { return Op{Kind: OpAbsent, Path: path} }

// Carry fails the Commit unless the node at path exists. After the Commit the node has the
// data. A caller uses it beside a Create, for a node that is known to have the data: with it
// every service tells the number of siblings of the new node, see Result.
//
// ZooKeeper shows that number in the answer to a write only, so its backend writes the data
// once more, whatever the node had: its Version grows by one, and the client needs the
// permission to write it. A service that tells the number anyway writes nothing, and refuses
// the Commit if the node has other data (ErrBadVersion).
func Carry(path string, data []byte) Op {
	return Op{Kind: OpCarry, Path: path, Data: data, Version: AnyVersion}
}

// OnlyDeletes reports whether operations leave nothing new: each node that they create they also delete, and
// they set no data. A service without space applies such a commit.
func OnlyDeletes(ops []Op) bool {
	return !slices.ContainsFunc(ops, func(op Op) bool {
		switch op.Kind {
		case OpSetData:
			return true
		case OpCreate:
			return op.Mode.Sequential() || !slices.ContainsFunc(ops, func(o Op) bool { return o.Kind == OpDelete && o.Path == op.Path })
		}
		return false
	})
}

// Result is the result of one operation of a successful Commit.
type Result struct {
	Path string // Create: the path of the new node, with its number if sequential
	Stat Stat   // SetData and Carry: the Stat after the operation; after SetData its Mzxid is the zxid of the Commit

	// Czxid of a Create is the zxid of the Commit, and Siblings the number of children of the
	// parent right after the Commit, the new node included. Zero means that the service did not
	// tell. Every service tells both if a SetData or a Carry of the parent follows in the same Commit. A
	// service tells both for each sequential Create if its sequence numbers are not what ZooKeeper's are:
	// the number of children that the parent was given before. So a recipe learns from each
	// sequential Create, by one or the other, how full the parent can be.
	Czxid    int64
	Siblings int32
}

// Tell is for backends whose service answers a Create with a path only, and that write where
// a Commit has a Carry: it sets Czxid and Siblings of the results where the Stat of a write
// shows them.
func Tell(ops []Op, results []Result) {
	set := slices.IndexFunc(ops, func(op Op) bool { return op.Kind == OpSetData || op.Kind == OpCarry })
	if set < 0 {
		return
	}
	// The children of each parent after the Commit, zero if no Stat shows them: that of an earlier operation does not
	// count what follows.
	children := make(map[string]int32)
	for i := len(ops) - 1; i >= 0; i-- {
		path, n := ops[i].Path, int32(0)
		switch ops[i].Kind {
		case OpSetData, OpCarry:
			n = results[i].Stat.NumChildren
		case OpCreate, OpDelete:
			path = above(path)
		default:
			continue
		}
		if _, known := children[path]; !known {
			children[path] = n
		}
	}
	for i := range ops {
		if ops[i].Kind == OpCreate {
			results[i].Czxid = results[set].Stat.Mzxid
			results[i].Siblings = children[above(ops[i].Path)]
		}
	}
}

// above returns the path of the parent.
func above(path string) string { return path[:max(1, strings.LastIndexByte(path, '/'))] }
