package line

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/tracing"
	"github.com/go-coord/coord/trace"
)

// Line is a directory of sequential ephemeral nodes whose order is the queue of
// contenders: the queueing discipline of the lock and election recipes of the ZooKeeper
// recipe guide.
//
// Each waiter watches only its predecessor, so one deletion causes no herd effect. The
// watch is on the children of that node. An ephemeral node has none, so only the
// deletion of the node fires the watch; a change of its data wakes no waiter.
//
// A waiter also watches the predecessor of its predecessor (look-ahead). When that node
// is deleted, the waiter determines the new head off the critical path. If the deleted
// node was the head, the head is the waiter's predecessor; if not, the waiter lists the
// directory again. So the waiter knows when its predecessor is the head of the queue,
// and then the event "predecessor deleted" is itself the grant: the hand-off costs one
// message instead of a message and a listing. One deletion wakes at most two waiters
// (and readers that become granted together), whatever the length of the queue. A
// contender joins with three requests: create, list, and one that arms all watches
// (backend.Session.Arm).
//
// The following rules make this safe. Model checking (internal/model) found, for each
// rule left out, two holders, a holder without a node, or a waiter that is never woken.
//   - A waiter arms the watch on its own node, and finds that node present, no later
//     than it arms the watch on its predecessor. A contender that finds no other
//     contender in its way, in a listing that shows its own node, needs no watch yet.
//   - At the grant the lease is tested, and then, under one lock, the session and the
//     watch on the own node (core.Hold.Grant). The backend marks watches as fired in the
//     order in which the events arrived.
//   - Only the deletion of the known head grants the lock (for a reader: the deletion
//     of the known first writer). The deletion counts if it arrives during the listing
//     that shows the node as the head, but not if it arrives earlier. After every other
//     wake-up the waiter lists the directory.
//   - When the predecessor's predecessor was the known head and is deleted, the predecessor is
//     the head. If it was not the known head, the waiter lists the directory.
//   - A reconnection fires all watches with LookAgain. Afterwards the waiter knows nothing
//     until it lists the directory again. The next server can be behind the events that the
//     client has seen, though not behind the replies.
//
// In a line of readers and writers, a reader waits for the nearest earlier writer only.
// A writer waits for its predecessor, and lists again at every wake-up: a holder that
// downgrades deletes its writer's node and continues on a reader's node with the same
// number, so for a writer the deletion of the known head is no grant.
type Line struct {
	c     *core.Client
	dir   string
	kinds layout.LineKinds
	whole kinds.RecipeDir // of the recipe that the line is a part of, if any
}

// New returns the line in a directory, which belongs to the recipe whole, if that is not zero.
func New(c *core.Client, dir string, k layout.LineKinds, whole kinds.RecipeDir) *Line {
	return &Line{c: c, dir: dir, kinds: k, whole: whole}
}

// subject returns the subject of the events of op that belong to no acquisition.
func (l *Line) subject(op, node string) trace.Subject {
	return trace.Subject{Recipe: string(l.kinds.Recipe()), Path: l.dir, Op: op, Node: node}
}

func (l *Line) recipeDir() kinds.RecipeDir { return l.whole.Part(l.dir, l.kinds.Recipe()) }

// intruder returns a KindError if a contender of another recipe joined the directory
// before the number seq.
func (l *Line) intruder(names []string, seq int64) error {
	for _, name := range names {
		found, n := layout.KindOfName(name)
		if found != "" && n < seq && !l.kinds.Recipe().Admits(found) {
			return l.c.KindError(l.dir, l.kinds.Recipe(), string(found))
		}
	}
	return nil
}

// request is one acquisition.
type request struct {
	op       string        // for errors
	kind     string        // of the node
	data     []byte        // of the node
	try      bool          // errs.ErrLocked instead of waiting
	span     *tracing.Span // nil without Trace
	reserved reservedNode  // from the previous holder, see localQueue; used once
	owner    core.Owner    // of the hold
	keep     time.Duration // MutexOptions.Keep; the owner is a localQueue then
	// beforeWait, if not nil, is called before the call waits for other contenders, see leavePlaces.
	beforeWait func()
	// stepDown ends the hold with ErrSuspended as soon as its session is suspended.
	stepDown bool
	*contender.Lookup
}

// Acquire takes a place in a line of exclusive contenders for the call op, and waits for the grant. The node
// has data, and the hold has owner.
func (l *Line) Acquire(ctx context.Context, op string, data []byte, owner core.Owner, span *tracing.Span) (*core.Hold, error) {
	return l.acquire(ctx, &request{op: op, kind: layout.LockInfix, data: data, owner: owner, span: span})
}

// Campaign is Acquire in the line of an election. With stepDown the hold ends with ErrSuspended as soon as
// its session is suspended.
func (l *Line) Campaign(ctx context.Context, op string, data []byte, owner core.Owner, stepDown bool) (*core.Hold, error) {
	r := &request{op: op, kind: layout.LatchInfix, data: data, owner: owner, stepDown: stepDown}
	if err := l.heldUnder(ctx, r); err != nil {
		return nil, errs.Op(op, l.dir, err)
	}
	r.span = l.c.NewSpan(string(l.kinds.Recipe()), l.dir, op)
	return l.acquire(ctx, r)
}

// willWait is called before the call waits for other contenders.
func (r *request) willWait() {
	if r.beforeWait != nil {
		r.beforeWait()
		r.beforeWait = nil
	}
}

// reservedNode is a node, or a possible node, that the previous holder created for a local
// waiter, or kept, so that the waiter creates none itself.
type reservedNode struct {
	state reservedState
	place *place     // of reservedStands
	spec  *core.Spec // of reservedMayStand
	kept  *keptLock  // of reservedKept
}

// reservedState says whether the previous holder has created a reserved node.
type reservedState int8

const (
	noReserved       reservedState = iota // no reserved node
	reservedStands                        // the node was created
	reservedMayStand                      // it may have been created, for the spec
	reservedKept                          // it is the node of a kept lock
)

// place is a node in the line, in the session that owns it.
type place struct {
	s *core.Session
	core.Node
	data []byte // as last read with the watch on the node
}

// heldUnder returns the error for a call that would wait for itself: its ctx derives
// from a hold that blocks the call. The ctx ends with that hold, so the wait could
// never succeed. The call checks this before it queues, because other callers that wait
// for the same hold can be ahead of it in the local queue too.
func (l *Line) heldUnder(ctx context.Context, r *request) error {
	for name, h := range core.HoldsUnder(ctx, l.dir) {
		q, ok := l.kinds.Parse(name)
		var refusal error
		switch {
		case ok && q.Shared && r.kind == layout.WriteInfix:
			refusal = errs.ErrUpgrade
		case ok && !q.Shared && !r.try: // a try returns errs.ErrLocked
			refusal = errs.ErrHeld
		default:
			continue
		}
		if here, err := contender.Serves(ctx, l.c, h); here || err != nil {
			return cmp.Or(err, refusal)
		}
	}
	return nil
}

// behindOwn returns the error for a contender whose ctx derives from a hold that is in
// the queue ahead of it, so that it waits for that hold directly or behind others.
// heldUnder cannot detect this when the hold is a reader's and a writer waits between
// the two, or when the hold is about to move to another node.
func (l *Line) behindOwn(ctx context.Context, r *request, ahead []layout.Position) error {
	for name := range core.HoldsUnder(ctx, l.dir) {
		q, ok := l.kinds.Parse(name)
		if i := slices.IndexFunc(ahead, q.Is); ok && i >= 0 {
			if ahead[i].Shared && r.kind == layout.WriteInfix {
				return errs.ErrUpgrade
			}
			return errs.ErrHeld
		}
	}
	return nil
}

// acquire takes a place and waits for the grant. If the session is lost, or an outsider
// deletes the node, it takes a new place at the tail, until ctx ends. If acquire returns an error,
// it has removed its nodes, or they are removed in the background.
func (l *Line) acquire(ctx context.Context, r *request) (*core.Hold, error) {
	for {
		p, err := l.enter(ctx, r)
		entered := err == nil
		if entered {
			var h *core.Hold
			h, err = l.await(ctx, r, p)
			if err == nil {
				if r.try {
					contender.SetCalm(l.c, l.dir, true)
				}
				return h, nil
			}
		}
		endLookup := l.beginLookup(ctx, r, p.s, p.Path, err)
		if entered && !errors.Is(err, errs.ErrGone) {
			p.s.RemoveAndWait(p.Path)
		}
		endLookup()
		if r.try {
			contender.SetCalm(l.c, l.dir, false)
		}
		err, again := l.c.AfterAttempt(ctx, err)
		if !again {
			err = errs.Op(r.op, l.dir, r.Explain(err))
			r.span.Over(ctx, err)
			return nil, err
		}
		r.willWait()
		l.c.Log().Debug("coord: lost the place in the queue of waiters, joining it again at the end", "path", l.dir, "error", err)
		r.span.Requeued(ctx, err)
	}
}

// enter takes a place at the tail of the queue. If it returns an error, it has removed the node, if there was
// one, or the node is removed in the background. The session of the place can be nil then.
func (l *Line) enter(ctx context.Context, r *request) (place, error) {
	b := r.reserved
	r.reserved = reservedNode{}
	if b.state == reservedStands && b.place.s.Backend().Err() == nil {
		return *b.place, l.checkNumber(ctx, *b.place, r)
	}
	if b.state != reservedMayStand { // a node that may exist must be looked for, whatever ends the call
		if err := l.c.AwaitCleanUps(ctx, l.dir, ""); err != nil {
			return place{}, err
		}
	}
	s, err := l.c.Live(ctx) // without a session, a node that may exist goes with the lost one
	if err != nil {
		return place{}, err
	}
	asks := "" // the node of the keeper that the new node asks, see asksKeeper
	if r.try && !contender.IsCalm(l.c, l.dir) {
		if asks, err = l.look(ctx, s, r); err != nil {
			return place{s: s}, err
		}
	}
	sp := b.spec
	if b.state != reservedMayStand {
		fresh := core.NewSpec(l.c, l.recipeDir(), r.kind, r.data)
		sp = &fresh
	}
	n, err := s.Create(ctx, sp)
	if err != nil {
		return place{}, err
	}
	if asks != "" {
		linesOf(l.c).setSeen(l.dir, asks)
	}
	p := place{s: s, Node: n}
	return p, l.checkNumber(ctx, p, r)
}

// look returns ErrLocked if another contender blocks a try, before the try creates a
// node.
//
// A try that creates its node first blocks others until it has removed the node. With
// enough such tries each finds another try that fails, and no caller gets a lock that
// is free. A try that looks first creates a node only if no contender blocked it one
// round trip ago. If it fails all the same, its node is behind a node that was created after
// the look, and the first node that was created after the look had no contender in its way.
// (The same holds for readers and writers: only a writer's node blocks a reader, and that
// node was created when the queue had been empty.) So a failure means that another caller
// was granted, and not only that another try failed.
//
// A client creates its node at once only if its latest try in the directory succeeded,
// so there is at most one such failure for each grant.
//
// If the client of the only contender may keep the lock, the try must create its node all the same:
// see asksKeeper. Then look returns the path of that contender's node.
func (l *Line) look(ctx context.Context, s *core.Session, r *request) (asks string, err error) {
	names, err := contender.LookAt(ctx, s, l.dir)
	if err != nil {
		return "", err
	}
	queue := append(l.kinds.Order(names), layout.Position{Shared: r.kind == layout.ReadInfix})
	if layout.Blocker(queue, len(queue)-1) < 0 {
		return "", nil
	}
	if l.asksKeeper(ctx, s, r, queue) {
		return l.dir + "/" + queue[0].Name, nil
	}
	return "", r.Locked(func() []string { return holders(queue, "") })
}

// asksKeeper reports whether a try has to create its node though a contender blocks it: that
// contender is alone, and its client may keep the lock while no caller has it (keptLock). That
// client gives the lock up when it sees another node, and not for a try that only looks. One try of
// a client is enough for a kept node, since its keeper then deletes it at the next Release at the
// latest. The try notes the kept node (setSeen) when it has created its own node, and not before: without
// that node the keeper does not learn of the try. If the node is not kept, its data is read once.
func (l *Line) asksKeeper(ctx context.Context, s *core.Session, r *request, queue []layout.Position) bool {
	if _, ok := r.owner.(*localQueue); !ok || len(queue) != 2 {
		return false
	}
	path := l.dir + "/" + queue[0].Name
	if linesOf(l.c).hasSeen(l.dir, path) {
		return false
	}
	data, _, err := s.Backend().Get(ctx, path, nil)
	if err != nil {
		return false
	}
	if layout.KeepOf(data) > 0 {
		return true
	}
	linesOf(l.c).setSeen(l.dir, path)
	return false
}

// clientLines is the state that the lines of one client share.
type clientLines struct {
	mu        sync.Mutex
	queues    map[string]*localQueue // the callers of the client on one path, by directory
	contended map[string]time.Time   // until when no lock is kept, by directory, see keptLock
	seen      map[string]string      // paths of nodes, by directory, see asksKeeper

	idleMu sync.Mutex // locked after the mutex of a localQueue
	idle   list.List  // the idle kept locks (*keptLock); the first is idle longest
}

func linesOf(c *core.Client) *clientLines { return core.Kept[clientLines](c) }

// hasSeen reports whether the node at path is the latest one in dir that tries of this client
// need not ask: see asksKeeper.
func (x *clientLines) hasSeen(dir, path string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen[dir] == path
}

func (x *clientLines) setSeen(dir, path string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	kinds.Remember(&x.seen, dir, path)
}

// hold turns the place into a hold. own is the armed watch on its node; if own is nil,
// a watch is armed later. It returns errs.ErrAgain if own has fired.
func (l *Line) hold(ctx context.Context, r *request, p place, own *backend.Watch) (*core.Hold, error) {
	token := p.Czxid
	if r.kind == layout.ReadInfix {
		token = 0 // several readers hold it at a time
	}
	h := core.NewHold(p.s, p.Path, token, r.span, r.owner)
	if q, ok := r.owner.(*localQueue); ok {
		h.SetKeeper(q.newKept(r, p, h))
	}
	if r.stepDown {
		return l.holdConnected(ctx, h, p, own)
	}
	if err := h.Grant(ctx, 1, own, p.data); err != nil {
		return nil, err
	}
	return h, nil
}

// holdConnected grants a hold that ends as soon as its session is suspended. It is a function of its own so
// that the closure costs other holds no allocation.
func (l *Line) holdConnected(ctx context.Context, h *core.Hold, p place, own *backend.Watch) (*core.Hold, error) {
	phase, changed := p.s.Backend().Status()
	if err := h.Grant(ctx, 1, own, p.data); err != nil {
		return nil, err
	}
	l.c.GoWork(func() { endSuspended(h, phase, changed) }) // if the client is closed by now, the hold has ended with it
	return h, nil
}

// endSuspended ends the hold as soon as its session is suspended. phase and changed are the session's Status
// from before the grant.
func endSuspended(h *core.Hold, phase backend.Phase, changed <-chan struct{}) {
	if phase == backend.PhaseConnected {
		select {
		case <-changed: // also if contact has returned already
		case <-h.Done():
			return
		}
	}
	if h.Err() == nil { // Err checks for a lost session first
		h.Lose(errs.ErrSuspended)
	}
}
