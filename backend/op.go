package backend

// CreateMode says what kind of node to create.
type CreateMode int8

// The modes. A sequential node gets a number behind its name, ten digits with
// leading zeros, that grows with each child created under the same parent. The
// numbers do not survive the parent's deletion, and wrap after 2^31-1, where
// ZooKeeper begins to repeat them. An ephemeral node goes with its session and
// has no children. A container is removed by the service some time after its
// last child is gone.
const (
	Persistent CreateMode = iota
	Ephemeral
	PersistentSequential
	EphemeralSequential
	Container
)

// Ephemeral reports whether nodes of this mode go with their session.
func (m CreateMode) Ephemeral() bool { return m == Ephemeral || m == EphemeralSequential }

// Sequential reports whether nodes of this mode get a number behind their name.
func (m CreateMode) Sequential() bool { return m == PersistentSequential || m == EphemeralSequential }

// OpKind says what an Op does.
type OpKind int8

// The kinds of operations.
const (
	OpCreate OpKind = iota + 1
	OpSetData
	OpDelete
	OpCheck
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
	}
	return "unknown"
}

// AnyVersion as the version of an operation matches every version.
const AnyVersion int32 = -1

// An Op is one operation of a Commit. Make it with Create, SetData, Delete or
// Check.
type Op struct {
	Kind    OpKind
	Path    string
	Data    []byte     // Create and SetData
	Mode    CreateMode // Create
	Version int32      // SetData, Delete and Check

	// Shared is set by Create's caller for a directory that clients with other
	// credentials are to create nodes in too. A service that has permissions then gives
	// the node those that let them; others ignore it.
	Shared bool
}

// Create makes a node at path, which must not exist (ErrExists) while its
// parent must (ErrNotFound) and must not be ephemeral (ErrNoChildren). For a
// sequential mode the path is the prefix that the number is put behind.
func Create(path string, data []byte, mode CreateMode) Op {
	return Op{Kind: OpCreate, Path: path, Data: data, Mode: mode}
}

// SetData replaces the data of the node at path if it has that version, or any
// with AnyVersion.
func SetData(path string, data []byte, version int32) Op {
	return Op{Kind: OpSetData, Path: path, Data: data, Version: version}
}

// Delete removes the node at path if it has that version, or any with
// AnyVersion. A node with children is not deleted (ErrNotEmpty).
func Delete(path string, version int32) Op {
	return Op{Kind: OpDelete, Path: path, Version: version}
}

// Check fails the Commit unless the node at path exists and has that version,
// or any with AnyVersion.
func Check(path string, version int32) Op {
	return Op{Kind: OpCheck, Path: path, Version: version}
}

// Result is what an operation of a successful Commit reports.
type Result struct {
	Path string // Create: the path of the new node, with its number if sequential
	Stat Stat   // SetData: the Stat after the operation; its Mzxid is the zxid of the Commit
}
