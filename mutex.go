package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/line"
)

// MutexOptions may be nil.
type MutexOptions struct {
	// ID names the caller in Contenders, package inspect and coordctl. It is text, need
	// not be unique, and decides nothing. Others can read it, so it must not be a secret.
	//
	// With an ID, the caller's own errors name the holder: see [ErrLocked].
	ID string

	// Data is stored in the node of each acquisition, for Contenders. Keep it small: it
	// is stored in every waiter's node. It must be within the request limit. Without an
	// ID, Data that reads as a request to give the lock up is refused with ErrInvalid:
	// "unlock", "__REVOKE__", and the JSON that Revoke writes, which begins with
	// {"coord-revoke":.
	Data []byte

	// Keep is the time for which the client keeps the lock after the last Release of its callers,
	// unless another client requests the lock. Zero means not to keep it. During this time a Lock of
	// the same client with the same options costs no request, and neither does a Release that hands
	// the lock to such a caller. Keep is for locks that one client takes again and again. With Keep:
	//
	//   - Token: successive holds of one client have the same Token, so it fences
	//     processes, and not goroutines of one process. A Txn under the Guard of a hold is
	//     refused after the end of that hold, by the service or by the client.
	//   - Order: callers of the client that has the lock may pass another client until that
	//     client's request arrives.
	//   - Other clients: the client gives an idle lock up within one round trip after the request
	//     of another client. A TryLock of the other client gets ErrLocked, and finds the lock free
	//     one round trip later. After that, or after a break of contact, the client does not keep
	//     the lock for the time Keep, at least for one second.
	//   - Failures: a client that is paused, cut off or killed while the lock is idle blocks
	//     other clients until it resumes, or for up to the session timeout.
	//   - Release returns nil when the client knows of no loss. It does not ask the service.
	//   - A client keeps at most 4,096 idle locks, and gives up the lock that was idle longest.
	//
	// The client keeps a lock only if no other contender was in the queue at its grant. It gives an
	// idle lock up early after a Revoke, after Guard.Ops, after a commit under the hold's Guard
	// whose reply was lost, and in Close. ErrInvalid: a negative time.
	Keep time.Duration
}

// A Mutex is an exclusive lock among all clients that use the same path (the lock of the
// ZooKeeper recipe guide). Waiters are granted in the order in which their nodes were
// created. No client polls, and a release wakes at most two clients however many wait.
//
// At most one client has a node at the head of the queue of contenders. Tokens grow from
// one holder to the next (with MutexOptions.Keep, from one client to the next). When a
// session is lost, its holds end before another client is granted, with the limits under
// "What is promised" in the package comment. A paused process does not notice the loss:
// see Hold for how to fence. A waiting caller continues with the next session, at the
// tail of the queue.
//
// A Mutex is not reentrant: pass the Hold instead. A Lock whose ctx derives from a hold on
// the same lock (of Do, or Hold.Context) fails with ErrHeld, since it would wait for
// itself; TryLock returns ErrLocked. With another ctx a second Lock in the same process
// waits like any other. Callers of one Client on one path queue inside the process, behind
// one node.
//
// Curator's InterProcessMutex and a Mutex exclude each other on one path, and so does
// kazoo's Lock with an option: see layout.md, which also describes the nodes.
//
// A Mutex is safe for concurrent use and needs no closing. Two of them with one client and
// path are one lock. internal/line/line.go describes the protocol.
type Mutex struct{ m *line.Lock }

// NewMutex returns the lock at path. It does no I/O; a bad path is reported by
// the first call.
func NewMutex(c *Client, path string, o *MutexOptions) *Mutex {
	var opts MutexOptions
	if o != nil {
		opts = *o
	}
	return &Mutex{line.NewLock(c.core(), path, opts.ID, opts.Data, opts.Keep)}
}

// Lock acquires the lock, waiting until ctx ends. ctx bounds the wait only, not the
// hold. A session lost while waiting does not end the wait: the caller goes to the tail
// of the queue with the next session. If the wait ends without the lock, the caller's
// node is deleted when Lock returns, or as soon as there is contact. A node that a
// Release of the same client is creating for the caller is deleted when that Release
// returns. See "What is promised" in the package comment.
//
// Errors: the context's; ErrHeld; ErrClosed; ErrDenied; ErrBadPath; ErrTooLarge for the
// data; ErrNoSpace; ErrKind when another recipe has the path; ErrLimit when the directory's
// sequence numbers, some two billion, are used up, until the service has removed the
// directory, some time after its last node is gone; ErrNoChildren when an ephemeral node is
// at the path or above it.
func (m *Mutex) Lock(ctx context.Context) (*Hold, error) {
	return asHold(m.m.Lock(ctx))
}

// TryLock acquires the lock if it is free, and returns ErrLocked if not. It waits for
// the service only, not for other contenders. Of any number of callers that only try,
// one gets a lock that is free.
//
// It costs one request if this client's latest try at the path succeeded. Otherwise it
// reads the queue first, which costs two more requests.
func (m *Mutex) TryLock(ctx context.Context) (*Hold, error) {
	return asHold(m.m.TryLock(ctx))
}

// Do runs f under the lock, with a context that ends with the hold. It returns the
// errors of Lock, f and Release, joined: if the hold was lost before f returned, the
// result matches ErrLost. Nil means that the hold did not end while f ran; Hold.Release
// describes the case in which that is unknown. Do releases the lock also if f panics,
// and the panic continues in the caller. ErrInvalid: f is nil; then nothing is acquired.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return doUnder(ctx, m.m, m.m.Lock, f)
}

// Contenders lists the holder and the waiters, in the order of the queue. The result is
// a snapshot: it may be out of date when it is returned, but it is not older than the
// call, on an ensemble too. Callers that queue inside a process behind another caller
// do not appear. It costs two requests and one more for each contender.
func (m *Mutex) Contenders(ctx context.Context) ([]Contender, error) {
	return contendersOf(m.m.Contenders(ctx))
}

// Revoke asks the current holder to give the lock up, and returns when that hold has
// ended, by consent, by force or otherwise. Without a holder it returns nil, or ErrKind if
// another kind of recipe has the path. Revoke does not acquire the lock. If
// ctx ends first, the request stays in the holder's node.
//
// If the holder uses another library, the request has the format of Curator's Revoker,
// without By and Reason. Such a holder never consents if it is not revocable, and may not
// notice that its node was deleted by force.
func (m *Mutex) Revoke(ctx context.Context, o *RevokeOptions) error {
	return m.m.Revoke(ctx, o.config())
}

func (m *Mutex) orderKey() (k lockKey) {
	if m != nil && m.m != nil {
		k = lockKey{m.m, m.m, m}
	}
	return k
}
