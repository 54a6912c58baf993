package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// line is a directory of sequential ephemeral nodes whose order is the queue of
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
//     watch on the own node (session.grant). The backend marks watches as fired in the
//     order in which the events arrived.
//   - Only the deletion of the known head grants the lock (for a reader: the deletion
//     of the known first writer). The deletion counts if it arrives during the listing
//     that shows the node as the head, but not if it arrives earlier. After every other
//     wake-up the waiter lists the directory.
//   - When the node ahead was the known head and is deleted, its successor is the head.
//     When it was not, or in doubt, the waiter lists the directory.
//   - A reconnection fires all watches with LookAgain. Afterwards nothing is known
//     until the directory is listed again. The next server can be behind events that
//     were seen, though not behind replies.
//
// In a line of readers and writers, a reader waits for the nearest earlier writer only.
// A writer waits for its predecessor, and lists again at every wake-up: a holder that
// downgrades deletes its writer's node and continues on a reader's node with the same
// number, so for a writer the deletion of the known head is no grant.
type line struct {
	c     *Client
	dir   string
	kinds layout.LineKinds
	whole recipeDir // of the recipe that the line is a part of, if any
}

// subject returns the subject of the events of op that belong to no acquisition.
func (l *line) subject(op, node string) trace.Subject {
	return trace.Subject{Recipe: string(l.kinds.Recipe()), Path: l.dir, Op: op, Node: node}
}

func (l *line) recipeDir() recipeDir { return l.whole.part(l.dir, l.kinds.Recipe()) }

// intruder returns a KindError if a contender of another recipe joined the directory
// before the number seq.
func (l *line) intruder(names []string, seq int64) error {
	for _, name := range names {
		found, n := layout.KindOfName(name)
		if found != "" && n < seq && !l.kinds.Recipe().Admits(found) {
			return &KindError{Path: l.dir, Want: string(l.kinds.Recipe()), Found: string(found)}
		}
	}
	return nil
}

// request is one acquisition.
type request struct {
	op       string        // for errors
	kind     string        // of the node
	data     []byte        // of the node
	try      bool          // ErrLocked instead of waiting
	span     *span         // nil without Trace
	reserved reservedNode  // left by the previous holder, see localQueue; used once
	owner    recipe        // of the hold
	keep     time.Duration // MutexOptions.Keep; the owner is a localQueue then
	// beforeWait, if not nil, is called before the call waits for other contenders, see retreat.
	beforeWait func()
	// contact, if not nil, receives the status of the session just before the grant.
	status *sessionStatus
	*holderLookup
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
	state  reservedState
	place  *place    // of reservedStands
	prefix string    // of reservedMayStand
	kept   *keptLock // of reservedKept
}

// reservedState is the knowledge about the node of a reserved node.
type reservedState int8

const (
	noReserved       reservedState = iota // no reserved node
	reservedStands                        // the node was created
	reservedMayStand                      // it may have been created, under a name with the prefix
	reservedKept                          // it is the node of a kept lock
)

// sessionStatus is the phase of a session, and the channel that signals the next one.
type sessionStatus struct {
	phase   backend.Phase
	changed <-chan struct{}
}

// place is a node in the line, in the session that owns it.
type place struct {
	s *session
	node
	data []byte // as last read with the watch on the node
}

// heldUnder returns the error for a call that would wait for itself: its ctx derives
// from a hold that blocks the call. The ctx ends with that hold, so the wait could
// never succeed. The call checks this before it queues, because other callers that wait
// for the same hold can be ahead of it in the local queue too.
func (l *line) heldUnder(ctx context.Context, r *request) error {
	for name, h := range holdsUnder(ctx, l.dir) {
		q, ok := l.kinds.Parse(name)
		var refusal error
		switch {
		case ok && q.Shared && r.kind == layout.WriteInfix:
			refusal = ErrUpgrade
		case ok && !q.Shared && !r.try: // a try returns ErrLocked
			refusal = ErrHeld
		default:
			continue
		}
		if here, err := l.c.serves(ctx, h); here || err != nil {
			return cmp.Or(err, refusal)
		}
	}
	return nil
}

// behindOwn returns the error for a contender whose ctx derives from a hold that is in
// the queue ahead of it, so that it waits for that hold directly or behind others.
// heldUnder cannot detect this when the hold is a reader's and a writer waits between
// the two, or when the hold is about to move to another node.
func (l *line) behindOwn(ctx context.Context, r *request, ahead []layout.Position) error {
	for name := range holdsUnder(ctx, l.dir) {
		q, ok := l.kinds.Parse(name)
		if i := slices.IndexFunc(ahead, q.Is); ok && i >= 0 {
			if ahead[i].Shared && r.kind == layout.WriteInfix {
				return ErrUpgrade
			}
			return ErrHeld
		}
	}
	return nil
}

// serves reports whether a hold is on the service of the client. For a hold of another
// client it looks for the node, whose name is unique.
func (c *Client) serves(ctx context.Context, h *Hold) (bool, error) {
	if h.s.c == c {
		return true, nil
	}
	return onSession(ctx, c, func(s *session) (bool, error) {
		path := h.Path()
		if err := s.b.Sync(ctx, path); err != nil {
			return false, err
		}
		_, err := s.b.Exists(ctx, path, nil)
		if isNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// acquire takes a place and waits for the grant. If the session is lost, or an outsider
// deletes the node, it takes a new place at the tail, until ctx ends. However it
// returns, a node that does not become a hold is removed.
func (l *line) acquire(ctx context.Context, r *request) (*Hold, error) {
	for {
		p, err := l.enter(ctx, r)
		entered := err == nil
		if entered {
			var h *Hold
			h, err = l.await(ctx, r, p)
			if err == nil {
				if r.try {
					l.c.setCalm(l.dir, true)
				}
				return h, nil
			}
		}
		endInquiry := l.beginLookup(ctx, r, p.s, p.path, err)
		if entered && !errors.Is(err, errGone) {
			p.s.removeAndWait(p.path)
		}
		endInquiry()
		if r.try {
			l.c.setCalm(l.dir, false)
		}
		err, again := l.c.afterAttempt(ctx, err)
		if !again {
			err = opError(r.op, l.dir, r.explain(err))
			r.span.over(ctx, err)
			return nil, err
		}
		r.willWait()
		l.c.log.Debug("coord: lost the place in the queue of waiters, joining it again at the end", "path", l.dir, "error", err)
		r.span.requeued(ctx, err)
	}
}

// enter takes a place at the tail of the queue. With an error, the place has no node any
// more, and may have a session.
func (l *line) enter(ctx context.Context, r *request) (place, error) {
	b := r.reserved
	r.reserved = reservedNode{}
	if b.state == reservedStands && b.place.s.b.Err() == nil {
		return *b.place, l.checkNumber(ctx, *b.place, r)
	}
	if b.state != reservedMayStand { // a node that may exist must be looked for, whatever ends the call
		if err := l.c.awaitCleanUps(ctx, l.dir, ""); err != nil {
			return place{}, err
		}
	}
	s, err := l.c.session(ctx) // without a session, a node that may exist goes with the lost one
	if err != nil {
		return place{}, err
	}
	asks := "" // the node of the keeper that the new node asks, see asksKeeper
	if r.try && !l.c.isCalm(l.dir) {
		if asks, err = l.look(ctx, s, r); err != nil {
			return place{s: s}, err
		}
	}
	var sp spec
	if b.state == reservedMayStand {
		sp = spec{recipeDir: l.recipeDir(), kind: r.kind, prefix: b.prefix, data: r.data, made: true}
	} else {
		sp = newSpec(l.c, l.recipeDir(), r.kind, r.data)
	}
	n, err := s.create(ctx, &sp)
	if err != nil {
		return place{}, err
	}
	if asks != "" {
		l.c.setSeen(l.dir, asks)
	}
	p := place{s: s, node: n}
	return p, l.checkNumber(ctx, p, r)
}

// look returns ErrLocked if another contender blocks a try, before the try creates a
// node.
//
// A try that creates its node first blocks others until it has removed the node. With
// enough such tries each finds another try that fails, and no caller gets a lock that
// is free. A try that looks first creates a node only if no contender blocked it one
// round trip ago. So a node that fails is behind a node that was created after that
// moment, and of the nodes created after it the first had no contender in its way. (The
// same holds for readers and writers: only a writer's node blocks a reader, and that
// node was created when the queue had been empty.) A failure thus means that another
// caller was granted, and not just that another try failed.
//
// A client creates its node at once only if its latest try in the directory succeeded,
// so there is at most one such failure for each grant.
//
// The try must create its node all the same if the client of the only contender may keep the
// lock: see asksKeeper. look returns the path of that contender's node then.
func (l *line) look(ctx context.Context, s *session, r *request) (asks string, err error) {
	names, err := s.lookAt(ctx, l.dir)
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
	return "", r.locked(func() []string { return holders(queue, "") })
}

// asksKeeper reports whether a try has to create its node though a contender blocks it: that
// contender is alone, and its client may keep the lock while no caller has it (keptLock). It gives
// the lock up when it sees another node, and not for a try that only looks. One try of a client
// is enough for a node, since the client then deletes that node with the Release at the latest.
// So the try that has created its node notes that of the keeper (setSeen), and no earlier: a
// try that was cut short before has asked nobody. The data of a node that is not kept is read
// once.
func (l *line) asksKeeper(ctx context.Context, s *session, r *request, queue []layout.Position) bool {
	if _, ok := r.owner.(*localQueue); !ok || len(queue) != 2 {
		return false
	}
	path := l.dir + "/" + queue[0].Name
	if l.c.hasSeen(l.dir, path) {
		return false
	}
	data, _, err := s.b.Get(ctx, path, nil)
	if err != nil {
		return false
	}
	if layout.KeepOf(data) > 0 {
		return true
	}
	l.c.setSeen(l.dir, path)
	return false
}

// hasSeen reports whether the node at path is the latest one in dir that tries of this client
// need not ask: see asksKeeper.
func (c *Client) hasSeen(dir, path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[dir] == path
}

func (c *Client) setSeen(dir, path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = make(map[string]string)
	}
	makeRoom(c.seen)
	c.seen[dir] = path
}

// lookAt is list for a try. If listing is denied, it returns no names and no error: the
// try then learns the answer from its own node.
func (s *session) lookAt(ctx context.Context, dir string) ([]string, error) {
	names, err := s.list(ctx, dir)
	if errors.Is(err, backend.ErrDenied) {
		err = nil
	}
	return names, err
}

// isCalm reports whether the latest try of this client in dir found no contender in its
// way.
func (c *Client) isCalm(dir string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.calm[dir]
	return ok
}

func (c *Client) setCalm(dir string, calm bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !calm {
		delete(c.calm, dir)
		return
	}
	makeRoom(c.calm)
	c.calm[dir] = struct{}{}
}

// hold turns the place into a hold. own is the armed watch on its node; if own is nil,
// a watch is armed later. It returns errAgain if own has fired.
func (l *line) hold(ctx context.Context, r *request, p place, own *backend.Watch) (*Hold, error) {
	h := &Hold{s: p.s, path: p.path, token: p.czxid, span: r.span, recipe: r.owner, own: own}
	if r.kind == layout.ReadInfix {
		h.token = 0 // several readers hold it at a time
	}
	if q, ok := r.owner.(*localQueue); ok {
		h.keeper = q.newKept(r, p, h)
	}
	if r.status != nil {
		r.status.phase, r.status.changed = p.s.b.Status()
	}
	if err := p.s.grant(h, own); err != nil {
		return nil, err
	}
	r.span.grant(ctx, h, 1)
	if own != nil {
		h.readRequest(p.data)
	}
	if own != nil && !l.c.goWork(func() { h.watchNode(p.path, own) }) {
		own.Stop()
	}
	return h, nil
}

// A Contender is a client's request in the queue for a lock. The first one holds the
// lock.
type Contender struct {
	Path    string    // of its node, absolute
	Token   int64     // Hold.Token, now or after the grant; zero for a reader, also after a downgrade
	Session int64     // the owner of the node
	Since   time.Time // the creation of the node, by the service's clock
	ID      string
	Data    []byte
}

// encodeContender returns the data of a contender's node, see layout.EncodeContender. It
// refuses an ID and Data that cannot be stored.
func encodeContender(id string, keep time.Duration, data []byte) ([]byte, error) {
	if !utf8.ValidString(id) {
		return nil, fmt.Errorf("%w: the ID is not valid UTF-8", ErrInvalid)
	}
	text, err := layout.EncodeContender(id, keep, data)
	if err != nil {
		return nil, err
	}
	return text, checkData(text)
}

func (l *line) contenders(ctx context.Context) ([]Contender, error) {
	return onSession(ctx, l.c, func(s *session) ([]Contender, error) { return s.contenders(ctx, l) })
}

func (s *session) contenders(ctx context.Context, l *line) ([]Contender, error) {
	names, err := s.list(ctx, l.dir)
	if err != nil {
		return nil, err
	}
	var list []Contender
	for _, q := range l.kinds.Order(names) {
		x, err := s.contender(ctx, l, q)
		if isNotFound(err) {
			continue // deleted since the listing
		}
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// contender reads the node of a contender.
func (s *session) contender(ctx context.Context, l *line, q layout.Position) (Contender, error) {
	p := l.dir + "/" + q.Name
	data, stat, err := s.b.Get(ctx, p, nil)
	if err != nil {
		return Contender{}, err
	}
	return newContender(p, data, stat, q.Shared), nil
}

// newContender returns the contender whose node at path was read.
func newContender(path string, data []byte, stat backend.Stat, shared bool) Contender {
	_, own := layout.OpenEnvelope(data)
	x := Contender{
		Path: path, Token: stat.Czxid, Session: stat.EphemeralOwner,
		Since: time.UnixMilli(stat.Ctime),
	}
	x.ID, x.Data = layout.OpenContender(own)
	if shared {
		x.Token = 0
	}
	return x
}

// orderKey is the sort key of LockAll. A nil lock has none.
type orderKey struct {
	client *Client
	path   recipePath
	joiner joiner // the lock, without its wrappers; nil if no joint commit can have it
}
