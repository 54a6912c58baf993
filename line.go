package coord

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// line is a directory of sequential ephemeral nodes whose order says whose turn
// it is: the queueing discipline of the lock and election recipes of the
// ZooKeeper recipe guide.
//
// Each waiter watches only the node before its own, so one deletion wakes no
// herd. The watch is on the children of that node: an ephemeral has none, so
// nothing but its deletion fires it, and nobody is woken by a change of data.
//
// A waiter also watches the node before that one (look-ahead), and when it goes,
// finds out off the critical path who is the head now: its predecessor, if the node
// that went was the head, else it lists the directory again. So it knows when its
// predecessor is the head of the line, and then the event "predecessor deleted"
// is itself the grant: the hand-over costs one message instead of a message and
// a list. At most two waiters wake for one deletion, whatever the length of the
// line. To join it costs three requests: create, list, and one that arms all
// watches (backend.Session.Arm).
//
// What makes this safe; without each of these rules two holders, a holder
// without a node, or a waiter that nobody wakes were found by model checking
// (internal/model):
//   - the watch on the own node is armed, and the node found present, no later
//     than the one on the predecessor; who finds nobody in the way in a list that
//     shows its own node needs none yet;
//   - at the grant the session, its lease and that watch are tested under one
//     lock, and events are marked in the order in which they came;
//   - only Deleted of a node known as head grants, also when it came while the
//     list was under way that shows the node as head, but not earlier; every
//     other wake-up lists;
//   - when the node ahead was known as head and is Deleted, the node before is
//     the head; when it was not, or in doubt, the line is listed;
//   - reconnection fires all watches with LookAgain, so afterwards nothing is
//     known until the directory was listed again. The next server can be behind
//     events that were seen, though not behind replies.
//
// In a line of readers and writers, a reader waits for the nearest earlier writer
// only. A writer waits for the node before its own, and lists again whenever it
// is woken: a holder that downgrades deletes its writer's node and stands on a
// reader's node with the same number, so the deletion of a known head is no grant
// for a writer.
type line struct {
	c     *Client
	dir   string
	kinds lineKinds
	whole ground // of the recipe that the line is a part of, if it is
}

// where is what events of op are about that are no acquisition's.
func (l *line) subject(op, node string) trace.Subject {
	return trace.Subject{Recipe: string(l.kinds.recipe()), Path: l.dir, Op: op, Node: node}
}

func (l *line) ground() ground { return l.whole.within(l.dir, l.kinds.recipe()) }

func (k lineKinds) recipe() recipeKind {
	return [...]recipeKind{lockLine: kindMutex, sharedLine: kindRWMutex, latchLine: kindElection}[k]
}

// intruder returns a KindError if a contender of another recipe stands in the
// directory since before the number seq.
func (l *line) intruder(names []string, seq int32) error {
	for _, name := range names {
		found, n := kindOfName(name)
		if found != "" && before(n, seq) && !l.kinds.recipe().admits(found) {
			return &KindError{Path: l.dir, Want: string(l.kinds.recipe()), Found: string(found)}
		}
	}
	return nil
}

// order returns the contenders among the children, first come first. It sorts
// by the number alone, never by the whole name.
func (l *line) order(names []string) []position {
	var queue []position
	for _, name := range names {
		if q, ok := l.kinds.parse(name); ok {
			queue = append(queue, q)
		}
	}
	slices.SortFunc(queue, func(a, b position) int { return bySeq(a.seq, a.name, b.seq, b.name) })
	return queue
}

// blocker returns the index of the contender that the one at i waits for, or -1
// if it is its turn.
func blocker(queue []position, i int) int {
	if !queue[i].shared {
		return i - 1
	}
	for i--; i >= 0 && queue[i].shared; i-- {
	}
	return i
}

// request is one acquisition.
type request struct {
	op    string // for errors
	kind  string // of the node
	data  []byte // of the node
	try   bool   // ErrLocked instead of waiting
	trail *trail // nil without Trace
	berth berth  // that the holder before has left, see localQueue; used once
	owner recipe // of the hold
	// contact is filled, if it is not nil, with how the session stood just before
	// the grant.
	contact *contact
}

// berth is what the holder before has left for a caller in place of a node of its own.
type berth struct {
	state  berthState
	place  *place // of berthStands
	prefix string // of berthMayStand
}

// berthState is what is known of the node of a berth.
type berthState int8

const (
	noBerth       berthState = iota // there is none
	berthStands                     // it was made
	berthMayStand                   // it may have been made, with a name that has the prefix
)

// contact is the phase of a session, and the channel that tells of the next one.
type contact struct {
	phase   backend.Phase
	changed <-chan struct{}
}

// place is a node in the line, in the session that owns it.
type place struct {
	s *session
	node
	data []byte // as last read with the watch on the node
}

// heldUnder returns the error for a call that would wait for itself: its ctx is that
// of a hold which stands in its way. The ctx ends with that hold, so the wait could
// never succeed. The call asks before it queues: in its process too, others that wait
// for the same hold can be before it.
func (l *line) heldUnder(ctx context.Context, r *request) error {
	for name, h := range holdsUnder(ctx, l.dir) {
		q, ok := l.kinds.parse(name)
		var refusal error
		switch {
		case ok && q.shared && r.kind == writeKind:
			refusal = ErrUpgrade
		case ok && !q.shared && !r.try: // a try finds it locked
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

// behindOwn returns the error for a contender that finds a hold which its ctx comes from
// among those that it waits for, directly or behind others. heldUnder cannot tell when
// the hold is a reader's and a writer waits between the two, or when the hold is about to
// stand on another node.
func (l *line) behindOwn(ctx context.Context, r *request, ahead []position) error {
	for name := range holdsUnder(ctx, l.dir) {
		q, ok := l.kinds.parse(name)
		if i := slices.IndexFunc(ahead, q.is); ok && i >= 0 {
			if ahead[i].shared && r.kind == writeKind {
				return ErrUpgrade
			}
			return ErrHeld
		}
	}
	return nil
}

// serves reports whether a hold stands on the service of the client. Of a hold of
// another client the node is looked for: its name is unique.
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

// acquire takes a place and waits for its turn. A lost session or a place that
// an outsider deleted sends it to the tail again, until ctx ends. However it
// returns, a node that does not become a hold is removed.
func (l *line) acquire(ctx context.Context, r *request) (*Hold, error) {
	for {
		p, err := l.enter(ctx, r)
		if err == nil {
			var h *Hold
			h, err = l.await(ctx, r, p)
			if err == nil {
				if r.try {
					l.c.setCalm(l.dir, true)
				}
				return h, nil
			}
			if !errors.Is(err, errGone) {
				p.s.giveUp(p.path)
			}
		}
		if r.try {
			l.c.setCalm(l.dir, false)
		}
		err, again := afterAttempt(ctx, err)
		if !again {
			err = opError(r.op, l.dir, err)
			r.trail.over(ctx, err)
			return nil, err
		}
		l.c.log.Debug("coord: back to the tail of the line", "path", l.dir, "error", err)
		r.trail.requeued(ctx, err)
	}
}

// enter takes a place at the tail of the line.
func (l *line) enter(ctx context.Context, r *request) (place, error) {
	b := r.berth
	r.berth = berth{}
	if b.state == berthStands && b.place.s.b.Err() == nil {
		return *b.place, l.checkNumber(ctx, *b.place, r.try)
	}
	if b.state != berthMayStand { // else whatever ends the call, the node is looked for
		if err := l.c.awaitCleanUps(ctx, l.dir, ""); err != nil {
			return place{}, err
		}
	}
	s, err := l.c.session(ctx) // if there is none, what may have been made goes with the lost one
	if err != nil {
		return place{}, err
	}
	if r.try && !l.c.isCalm(l.dir) {
		if err := l.look(ctx, s, r); err != nil {
			return place{}, err
		}
	}
	var sp spec
	if b.state == berthMayStand {
		sp = spec{ground: l.ground(), kind: r.kind, prefix: b.prefix, data: r.data, made: true}
	} else {
		sp = newSpec(l.c, l.ground(), r.kind, r.data)
	}
	n, err := s.create(ctx, &sp)
	if err != nil {
		return place{}, err
	}
	p := place{s: s, node: n}
	return p, l.checkNumber(ctx, p, r.try)
}

// look returns ErrLocked if somebody is in the way of a try, before that makes a node.
//
// A try that makes its node first, and finds another in the way, is itself in the way
// until it has gone: of enough tries each finds one that fails, and nobody gets a lock
// that is free. One that looks first makes a node only if nothing was in its way a
// round trip ago. So a node that fails stands behind one that was made after that
// moment, and of those made after it the first had nobody in its way. (Among readers
// and writers likewise: what is in the way of a reader is a writer's node, and that was
// made when the line had been empty.) A failure thus means that another one has been
// granted, and not just that another one fails.
//
// Only a client whose latest try in the directory won makes its node at once, so there
// is at most one such failure for each grant.
func (l *line) look(ctx context.Context, s *session, r *request) error {
	names, err := s.lookAt(ctx, l.dir)
	if err != nil {
		return err
	}
	queue := append(l.order(names), position{shared: r.kind == readKind})
	if blocker(queue, len(queue)-1) >= 0 {
		return ErrLocked
	}
	return nil
}

// lookAt is list for a try, which learns from its node what a list may not show.
func (s *session) lookAt(ctx context.Context, dir string) ([]string, error) {
	names, err := s.list(ctx, dir)
	if errors.Is(err, backend.ErrDenied) {
		err = nil
	}
	return names, err
}

// isCalm reports whether the latest try of this client in dir found nobody in its way.
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

// hold makes the place a hold. own is the armed watch on its node; nil has one
// armed later. It returns errAgain if that watch has fired.
func (l *line) hold(ctx context.Context, r *request, p place, own *backend.Watch) (*Hold, error) {
	h := &Hold{s: p.s, path: p.path, token: p.czxid, trail: r.trail, recipe: r.owner}
	if r.kind == readKind {
		h.token = 0 // several have it at a time
	}
	if r.contact != nil {
		r.contact.phase, r.contact.changed = p.s.b.Status()
	}
	if err := p.s.grant(h, own); err != nil {
		return nil, err
	}
	r.trail.grant(ctx, h, 1)
	if own != nil {
		h.look(p.data)
	}
	if own != nil && !l.c.goWork(func() { h.watchNode(p.path, own) }) {
		own.Stop()
	}
	return h, nil
}
