// Package ensemble lets the tests with several servers run on another service than ZooKeeper. A
// module with such a service compiles them with its own Elsewhere.
package ensemble

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zkproxy"
)

// Elsewhere is the service that stands for ZooKeeper. It is nil if the tests run on ZooKeeper.
var Elsewhere *Service

// Service starts servers, and makes backends for them.
type Service struct {
	Start func(t *testing.T) Ensemble // ended by the test
	// StartFragile is Start for servers with more faults.
	StartFragile func(t *testing.T) FragileEnsemble
	// Troubles are what a nemesis does to the servers of StartFragile, if these have other troubles than
	// those of FragileEnsemble.
	Troubles []Trouble
	Backend  func(servers []string, timeout, margin time.Duration, without backend.Features) backend.Backend

	// One returns the address of a server that all tests share.
	One func(t *testing.T) string
	// Line returns a line to a server.
	Line func(server string) (Line, error)
	// Expire ends a session on such a server.
	Expire func(ctx context.Context, server string, session int64) error
}

// Line is a proxy that parses requests. It reports them as frames of ZooKeeper: OpConnect for the
// first request on a connection and for the reply with a new session, OpPing for a renewal,
// OpClose for the end of a session, OpAuth for a request that no test counts.
type Line interface {
	Addr() string
	Close() error
	Cut() int
	Refuse(on bool)
	Blackhole(on bool)
	SetDelay(up, down time.Duration)
	OnFrame(f func(zkproxy.Frame))
	Drop(match func(zkproxy.Frame) bool, what zkproxy.DropWhat) Fault
}

// Fault is a fault of a Line, see zkproxy.Fault.
type Fault interface {
	Hit() <-chan struct{}
	Cancel()
}

// Ensemble is three servers with one tree.
type Ensemble interface {
	Addrs() []string
	Servers() []Server
	// Leader returns a server that leads and answers.
	Leader(ctx context.Context) (Server, error)
	// Expire ends a session.
	Expire(ctx context.Context, session int64) error
	// Compact makes the servers forget all earlier states of the tree.
	Compact(ctx context.Context) error
	// Write writes a key that no library knows. Of the key it returns how often it was written.
	// The servers never take an acknowledged write back, so this number grows.
	Write(ctx context.Context) (version int32, zxid int64, err error)
	// Log returns all changes of the tree that were made before the call. The client of a
	// transaction that creates no ephemeral node is unknown.
	Log(ctx context.Context) ([]zklog.Txn, error)
}

// FragileEnsemble has faults of disks, and of the network between the servers.
type FragileEnsemble interface {
	Ensemble
	// CutOff cuts a server off from the others, or connects it again. While it is cut off no bytes
	// pass between them, and no connection is reset.
	CutOff(s Server, on bool)
	// Disk returns the server whose disk FillDisk fills. The error says why there is none.
	Disk() (Server, error)
	// FillDisk fills that disk, and returns when the server has ended because of it. EmptyDisk makes room.
	FillDisk(ctx context.Context) error
	EmptyDisk() error
}

// Trouble is a fault of servers, which Do also undoes.
type Trouble struct {
	Kind  string
	Alone bool // no other trouble happens meanwhile, and until the clients have made progress
	Brief bool // the short form has it too
	// Missing says why this machine cannot make it. Nil: every machine can.
	Missing func(e FragileEnsemble) error
	// Do fails also if the service shows no sign of the fault.
	Do func(ctx context.Context, e FragileEnsemble, r *rand.Rand) error
}

// Server is a process.
type Server interface {
	Launch() error // does nothing if it runs
	Kill()
	Pause() error
	Resume() error
	// Await returns when the server serves clients.
	Await(ctx context.Context) error
}
