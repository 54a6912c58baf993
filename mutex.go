package coord

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/layout"
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
	// The client keeps a lock only if no other contender was in the queue at its grant. A Revoke, a
	// commit under the hold's Guard without an answer, and Guard.Ops end the time; Close does
	// not wait for it. ErrInvalid: a negative time.
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
// path are one lock. The protocol is described at line.
type Mutex struct {
	c     *Client
	path  recipePath
	data  []byte // of the node
	hasID bool
	keep  time.Duration
	bad   error // of the options

	whole recipeDir // of the recipe that the lock is a part of, if any
}

// NewMutex returns the lock at path. It does no I/O; a bad path is reported by
// the first call.
func NewMutex(c *Client, path string, o *MutexOptions) *Mutex {
	m := &Mutex{c: c, path: c.recipePath(path)}
	if o != nil {
		m.keep = o.Keep
		m.data, m.bad = encodeContender(o.ID, o.Keep, slices.Clone(o.Data))
		m.hasID = o.ID != ""
		if o.Keep < 0 {
			m.bad = fmt.Errorf("%w: negative Keep", ErrInvalid)
		}
	}
	return m
}

// Lock acquires the lock, waiting until ctx ends. ctx bounds the wait only, not the
// hold. A session lost while waiting does not end the wait: the caller goes to the tail
// of the queue with the next session. If the wait ends without the lock, the caller's
// node is deleted when Lock returns, or as soon as there is contact. A node that a
// Release of the same client is creating for the caller is deleted when that Release
// returns. See "What is promised" in the package comment.
//
// Errors: the context's; ErrHeld; ErrClosed; ErrDenied; ErrBadPath; ErrTooLarge for the
// data; ErrLimit when the directory's sequence numbers, some two billion, are used up,
// until the service has removed the directory, some time after its last node is gone;
// ErrNoChildren when an ephemeral node is at the path or above it.
func (m *Mutex) Lock(ctx context.Context) (*Hold, error) {
	return m.lock(ctx, &request{op: "lock", kind: layout.LockInfix, data: m.data})
}

// TryLock acquires the lock if it is free, and returns ErrLocked if not. It waits for
// the service only, not for other contenders. Of any number of callers that only try,
// one gets a lock that is free.
//
// It costs one request if this client's latest try at the path succeeded. Otherwise it
// reads the queue first, which costs two more requests.
func (m *Mutex) TryLock(ctx context.Context) (*Hold, error) {
	return m.lock(ctx, &request{op: "trylock", kind: layout.LockInfix, data: m.data, try: true})
}

// Do runs f under the lock, with a context that ends with the hold. It returns the
// errors of Lock, f and Release, joined: if the hold was lost before f returned, the
// result matches ErrLost. Nil means that the hold did not end while f ran; Hold.Release
// describes the case in which that is unknown. Do releases the lock also if f panics,
// and the panic continues in the caller. ErrInvalid: f is nil; then nothing is acquired.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return do(ctx, m.path.full, m.Lock, f)
}

// line returns the engine of the lock. Its rules are in line.go; it waits in line_wait.go.
func (m *Mutex) line() *line {
	return &line{c: m.c, dir: m.path.full, kinds: layout.LockLine, whole: m.whole}
}

func (m *Mutex) lock(ctx context.Context, r *request) (*Hold, error) {
	if err := m.begin(ctx, r); err != nil {
		return nil, err
	}
	if r.try && m.c.hasLeftovers(m.path.full) { // a release in the background has the local turn
		if err := m.c.awaitCleanUps(ctx, m.path.full, ""); err != nil {
			return nil, opError(r.op, m.path.full, err)
		}
	}
	if err := m.takeTurn(ctx, r); err != nil {
		return nil, err
	}
	return m.acquire(ctx, r)
}

func (m *Mutex) newRequest() *request {
	return &request{op: "lock", kind: layout.LockInfix, data: m.data}
}

func (m *Mutex) begin(ctx context.Context, r *request) error {
	if err := m.path.check(r.op); err != nil {
		return err
	}
	path := m.path.full
	if m.bad != nil {
		return opError(r.op, path, m.bad)
	}
	if err := m.c.contextError(ctx); err != nil {
		return opError(r.op, path, err)
	}
	if err := m.line().heldUnder(ctx, r); err != nil {
		return opError(r.op, path, err)
	}
	r.span = m.c.newSpan("mutex", path, r.op)
	r.holderLookup = newHolderLookup(m.hasID)
	r.keep = m.keep
	return nil
}

// takeTurn waits for the caller's turn among the callers of the client. With the turn, the
// request may get a reserved node.
func (m *Mutex) takeTurn(ctx context.Context, r *request) error {
	path := m.path.full
	q, w, err := m.c.join(*m.line(), r)
	if err != nil {
		return opError(r.op, path, err)
	}
	if w != nil {
		r.span.waiting(ctx, "", -1)
		if err := q.wait(ctx, w); err != nil {
			q.l.beginLookup(ctx, r, m.c.current.Load(), "", err)()
			err = opError(r.op, path, r.explain(err))
			r.span.over(ctx, err)
			return err
		}
		r.reserved = w.reserved
	}
	r.owner = q
	return nil
}

// acquire acquires the lock for a caller that has the turn. If it fails, it passes the turn
// on.
func (m *Mutex) acquire(ctx context.Context, r *request) (*Hold, error) {
	q := r.owner.(*localQueue)
	if r.reserved.state == reservedKept {
		k := r.reserved.kept
		r.reserved = reservedNode{}
		if h := q.resume(ctx, r, k); h != nil {
			return h, nil
		}
	}
	h, err := q.l.acquire(ctx, r)
	if err != nil {
		q.advance()
		return nil, err
	}
	return h, nil
}

// Contenders lists the holder and the waiters, in the order of the queue. The result is
// a snapshot: it may be out of date when it is returned, but it is not older than the
// call, on an ensemble too. Callers that queue inside a process behind another caller
// do not appear. It costs two requests and one more for each contender.
func (m *Mutex) Contenders(ctx context.Context) ([]Contender, error) {
	if err := m.path.check("contenders"); err != nil {
		return nil, err
	}
	path := m.path.full
	list, err := m.line().contenders(ctx)
	return list, opError("contenders", path, err)
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
	return m.line().revoke(ctx, &m.path, o)
}

func (m *Mutex) orderKey() (k orderKey) {
	if m != nil {
		k = orderKey{m.c, m.path, m}
	}
	return k
}
