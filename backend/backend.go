// Package backend is the contract between the recipes of package coord and the coordination
// service: a tree of small nodes, as ZooKeeper defines it, with ephemeral and sequential
// nodes, one-shot watches and atomic commits. A backend implements nodes, sessions and
// watches. It contains no recipe.
//
// Two backends come with the module: backend/memory and backend/zookeeper. A third one,
// backend/etcd, is a module of its own. Package backendtest is this contract as a test suite; a
// new backend has to pass it. What happens while members of a cluster die is not in the suite: the
// backend of a cluster needs tests of its own for that.
//
// # Sessions
//
// A session is connected, suspended (no contact at the moment; contact may return) or lost
// (over for good). Once a session is lost, Done is closed, Err returns the reason, and every
// call fails with ErrSessionLost. No call of a lost session reaches the service any more. A
// session never turns into another one; the caller opens the next.
//
// The error of a lost session never matches context.Canceled or context.DeadlineExceeded,
// even if a dial or a write that timed out has broken the contact. An error that matches
// them means that the ctx of the call has ended: what else it matches can be the cause of
// that context.
//
// The loss is declared locally. The session's lease is the send time of the latest renewal
// that was answered, plus the negotiated timeout, less a margin. Which requests are renewals
// is the service's affair: all of them for ZooKeeper, its keep-alives for another. When the
// lease passes without another answer the session is lost, whatever the service thinks. Calls compare the
// lease with the clock too, so a process that was paused learns of its loss from its first
// call, not from a late timer. Suspension alone loses nothing.
//
// # Calls
//
// Every call takes a context and returns soon after it ends, even if the transport blocks. A
// call made while the session is suspended waits until it is connected again. A call under
// way at Close ends within a few seconds, as Close does.
//
// Reads (Get, Exists, Children, ReadMany, Arm, WatchTree, Sync) have no uncertain outcome: when contact breaks,
// the session repeats them until they are answered, ctx ends or the session is lost.
//
// The session sends a Commit again if the service reports that it was not run. It does not repeat
// a Commit that may have been applied. There is one exception: a session may repeat a Commit that
// only deletes one of its own nodes whose name is never used again. If the caller gives up such a
// deletion, the service may apply it at any time up to the session's next call. When contact
// breaks during a Commit that is not repeated, its error matches ErrUncertain: the Commit may
// have been applied or not, and the caller finds out by Sync and a read. A Commit whose ctx
// ended, or whose session was lost, while it was under way matches ErrUncertain as well as
// the context's cause or ErrSessionLost. An error that does not match ErrUncertain is
// definite: nothing was applied. A service that can tell may return the definite error even
// if the reply to a refused Commit was lost.
//
// The service handles two calls of one session in the order in which they were made if the
// first returned before the second began. Sync gives the one stronger order that recovery
// needs; see there.
//
// Reads are sequentially consistent, as ZooKeeper's: a session never sees the
// tree go back, it sees its own writes, and it may be behind other sessions
// until it calls Sync.
//
// # Watches
//
// A read may arm a Watch. Arming is atomic with the read: every change after
// the state that the read returned fires it, and the read and its watch cost
// one round trip. Arm arms several watches, of nodes that were read before. See
// Watch. WatchTree follows a node and everything below it with one watch, if the
// service can; see TreeWatch.
//
// Watches fire for what a Commit as a whole has changed. They may also fire for a state
// between two operations of one Commit, which no reader sees: for a node that it creates and
// deletes, or as a change before a deletion.
//
// # Positions
//
// A zxid is the position of a Commit in the history of the service. The word, and the names
// of the fields that hold positions, are ZooKeeper's, as are the names of its tools, and the
// recipes' manual explains them. For other services it is what numbers the commits, such as
// a revision. Zxids are positive and grow with each Commit, not necessarily by one.
//
// # Data
//
// Absent data and empty data are the same; reads return nil for both. A
// backend copies its arguments' data before the call returns, and the caller owns the
// data that it returns.
package backend

import (
	"context"
	"time"
)

// A Backend opens sessions. It is safe for concurrent use. The sessions it
// opens are independent of each other.
type Backend interface {
	// Open starts a session. It waits for a server until ctx ends; the error
	// then names what was tried and matches the context's cause. It returns
	// earlier when waiting is useless: bad options (ErrInvalid), credentials or
	// certificates that are refused (ErrDenied). ctx bounds the opening only.
	Open(ctx context.Context) (Session, error)
}

// A Session is one session on the service. All methods are safe for concurrent use. The
// package comment describes what holds for every call.
//
// A session can also have a method NoContact(err error) error, which a wrapper should pass on.
// While there is no contact, it returns the error of an ended context as a NoContactError with
// the reason. Without the method, clients report for how long contact has been missing, and no
// reason.
type Session interface {
	// ID names the session; it is the EphemeralOwner of its ephemeral nodes.
	// It is never zero and does not change.
	ID() int64

	// Timeout is the negotiated session timeout: the time without contact after which the
	// service ends the session and removes its ephemerals. It does not do so earlier, and may
	// do so later, for example after an election among its servers.
	Timeout() time.Duration

	// Features returns the optional parts of the contract that this service has.
	Features() Features

	// Limits returns what one Commit can hold at most. It does not change while the session
	// lives. A caller that has more to write splits it, or its Commit fails with ErrTooLarge
	// before anything is sent.
	Limits() Limits

	// CheckPath reports whether the service takes the path: it is the CheckPath of the package,
	// with the rules that only this service has. Every call refuses a path that CheckPath
	// refuses, with ErrBadPath and before anything is sent. CheckPath sends no request. Its
	// answer is the same for all sessions of a Backend, also for those that are over.
	CheckPath(path string) error

	// Status returns the phase of the session and a channel that is closed
	// when the phase has changed, or may have. Fetch a new channel after
	// each change. A short suspension can be missed between two calls of
	// Status, but then the channel was closed.
	Status() (Phase, <-chan struct{})

	// Done is closed when the session is lost or closed.
	Done() <-chan struct{}

	// Err is nil while the session lives. Afterwards it matches ErrSessionLost
	// or, after Close, ErrClosed. It compares the lease with the clock: a
	// session whose lease has passed is lost when Err returns.
	Err() error

	// Get returns the data and the Stat of the node at path, or ErrNotFound.
	// With a watch that is not nil, and if the node exists, it arms the watch
	// for changes of the data and for the deletion of the node. It arms
	// nothing when the node is missing, so it leaves no watch behind.
	Get(ctx context.Context, path string, w *Watch) ([]byte, Stat, error)

	// Exists returns the Stat of the node at path, or ErrNotFound. A watch
	// that is not nil is armed either way: for changes of data and deletion
	// when the node exists, for its creation when it does not (the error is
	// ErrNotFound then, and the watch is armed all the same). It need not fire for
	// a sequential node that gets the name.
	Exists(ctx context.Context, path string, w *Watch) (Stat, error)

	// Children returns the names (not paths) of the children of the node at
	// path in no particular order, and the node's Stat, or ErrNotFound. With
	// a watch that is not nil, and if the node exists, it arms the watch for
	// the creation and deletion of children and the deletion of the node
	// itself. Changes of the node's data do not fire it.
	Children(ctx context.Context, path string, w *Watch) ([]string, Stat, error)

	// Arm arms the watches of targets in one round trip, and reads nothing. A watch fires
	// LookAgain before Arm returns if its node is missing, or if what it watches has changed in
	// a commit after the zxid since. A caller that passes the AsOf of its read, the earliest of
	// several, or the commit in which it created the nodes, therefore misses nothing between
	// that and Arm. Arm never reports Deleted for a deletion that preceded it. Other watches of
	// the session on such a node may fire LookAgain too, and if the session watches a tree,
	// those for the children of the node's parent. An error means that no watch is armed. At
	// least one target is needed, each with a watch of its own. The sum of the paths is
	// limited, see CheckTargets.
	Arm(ctx context.Context, since int64, targets ...Target) error

	// WatchTree arms w for the node at path, which may be missing, and everything below it: w
	// reports every change there of the commits after some moment of the call. It reads
	// nothing; the caller reads what it needs when WatchTree has returned, and then misses no
	// change after that. Several watches may be armed for one node. They change nothing for
	// the watches of reads and of Arm. w can be over already when WatchTree returns. See
	// TreeWatch. An error means that w is not armed. Without the feature Trees the error is
	// ErrUnsupported, at once.
	WatchTree(ctx context.Context, path string, w *TreeWatch) error

	// ReadMany reads the data or the children of many nodes in few round trips, and returns
	// one result for each read. A node that is missing, or that the session may not read, has
	// its error in its result. An error of the call means that there are no results. At least
	// one read is needed; their number is not limited.
	//
	// The reads need not be of one moment, since the backend splits a call whose request or
	// reply would be too large. Each is at least as new as the reads before it, and as every
	// read of the session that was answered before the call. Without the feature Batches the
	// error is ErrUnsupported, at once.
	ReadMany(ctx context.Context, reads ...Read) ([]ReadResult, error)

	// Sync returns when the server that this session reads from has caught up with everything
	// committed on the service before Sync began. Sync is also ordered after every Commit
	// that this session began before it, including those whose ctx ended and those whose
	// outcome is uncertain: after Sync has returned nil, each of them either shows in a
	// following read or will never be applied. path is a hint for services with partitions;
	// ZooKeeper checks only its form.
	Sync(ctx context.Context, path string) error

	// Commit applies the operations in order, all or none, and is the only way to write. It
	// costs one round trip, except where a service must try again because of the commits of
	// others. On success Commit returns one Result
	// for each operation. All operations of one Commit have the same zxid. When the service
	// refused the Commit, the *Error holds the index and the path of the operation that
	// failed.
	//
	// At least one operation is needed. Creating a Container is possible only
	// as the single operation of its Commit. The number of operations and the sum
	// of all paths and data are limited, see Limits. Several operations may be for one node.
	Commit(ctx context.Context, ops ...Op) ([]Result, error)

	// Close ends the session. New calls fail with ErrClosed; calls under way are given a
	// short time to finish and then fail. The service removes the session's ephemerals at
	// once if it can be reached, else after the timeout. Close returns within a few seconds
	// in any case, when every goroutine of the session has ended. A second Close does
	// nothing.
	Close() error
}

// Phase is the state of a session.
type Phase int8

// The phases of a session. PhaseLost is final. A closed session is reported as PhaseLost.
const (
	PhaseConnected Phase = iota + 1
	PhaseSuspended
	PhaseLost
)

// String returns the phase in lower case.
func (p Phase) String() string {
	switch p {
	case PhaseConnected:
		return "connected"
	case PhaseSuspended:
		return "suspended"
	case PhaseLost:
		return "lost"
	}
	return "unknown"
}

// Features is a set of optional abilities of a service. It is a bit set and
// not a set of interfaces, so that a wrapper around a session stays transparent.
type Features uint32

const (
	// Containers: the service supports nodes that it removes by itself some time after their
	// last child is deleted, with their data and as a Commit of its own: the watches of the node
	// fire Deleted. It does not remove a container that has a child. Whether it removes one that
	// never had a child is its own affair. Without it, CreateMode Container is ErrUnsupported.
	Containers Features = 1 << iota
	// Trees: the service has Session.WatchTree.
	Trees
	// Batches: the service has Session.ReadMany.
	Batches
	// Clock: the times in a Stat are those of the service's own clock, not of the writer's. The
	// service reads it once for each Commit, after the Commit was sent and before it is answered.
	// As long as the Status of a session is unchanged, its Commits have the times of one clock,
	// which may be set in between. After a change of the Status it can be another clock, which
	// shows another time.
	Clock
)

// Has reports whether f contains all features of want.
func (f Features) Has(want Features) bool { return f&want == want }

// Stat is the service's metadata of a node. The field names are ZooKeeper's. Pzxid and
// Cversion are advisory: a service may leave them zero, always or for some nodes, and recipes
// then do without them. What a recipe must know of the order of reads and commits, it learns from AsOf.
type Stat struct {
	Czxid          int64 // the commit that created the node: unique and growing for one history of the service
	Mzxid          int64 // the commit that last changed the data
	Pzxid          int64 // the commit that last changed the children; advisory
	Ctime          int64 // when the node was created, in milliseconds since 1970, by the clock of the service, or of the writer if the service has none
	Mtime          int64 // when the data last changed, in the same form
	Version        int32 // number of changes of the data
	Cversion       int32 // number of changes of the children; advisory; wraps
	EphemeralOwner int64 // the session that owns the node, zero for a node that is not ephemeral
	DataLength     int32 // in bytes
	NumChildren    int32

	// Container: the service removes the node some time after its last child is deleted. Advisory:
	// a service may leave it false for its containers, as ZooKeeper does, whose Stats do not show it.
	Container bool

	// AsOf is the position of the read: a commit after which the node, its data and its
	// children were as the read shows them. Later reads of the session show at least that
	// commit. So a change after AsOf is not in the read, and a change up to AsOf is. Two reads
	// of an unchanged node can have different positions. In a Result it is the Commit itself.
	AsOf int64
}
