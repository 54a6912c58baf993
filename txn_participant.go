package coord

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// A Branch is a transaction as a site sees it: what it votes on, and then carries
// out or undoes.
type Branch[T any] struct {
	ID string
	// Zxid is the commit that made the transaction. No other transaction has it,
	// not even a later one with the same ID: it is the key for what a site writes
	// down about the transaction.
	Zxid     int64
	Site     string
	Deadline time.Time
	Payload  T
	// NoPayload: Payload is zero. It is set only for Abort, when the record was
	// gone before this site had voted, or when the codec refuses it.
	NoPayload bool
}

// A Handler is what a site does. Its functions are called concurrently for
// different transactions, and one at a time for one. Each may be called again for
// the same transaction, after a crash or a lost session or when it has returned an
// error, so each must be idempotent. Their contexts end when Serve's does, and when
// the site's lock is lost; they must return then, for the next Serve waits for
// that. Prepare, Commit and Abort are needed: without one of them Serve returns
// ErrInvalid.
type Handler[T any] struct {
	// Prepare is asked to vote. A nil error is yes: the site has made sure, durably, that
	// it can still commit after a crash, and is bound to the decision from then on.
	// An error is no, with its text as the reason; the transaction aborts. An
	// error after ctx has ended is no vote. ctx also ends when the transaction is
	// decided without this site, and at its deadline.
	Prepare func(ctx context.Context, tx Branch[T]) error
	// Commit makes the transaction final. It is called until it returns nil, and
	// not after that has been acknowledged to the service.
	Commit func(ctx context.Context, tx Branch[T]) error
	// Abort undoes what Prepare has done, which can be nothing, or never have
	// begun. Like Commit it is called until it returns nil. Never are both called
	// for one transaction.
	Abort func(ctx context.Context, tx Branch[T]) error
	// InDoubt is told of a transaction that the site has voted yes for and whose
	// decision or record was destroyed by an outsider: the error matches ErrInDoubt and
	// names the node. The transaction costs nothing but itself: the site serves the
	// others, and goes on with this one when an operator has seen to the node. If it is
	// the branch, the record is gone: find the decision out at the other sites, carry it
	// out, and delete the branch. If it is the decision, write {"commit":true} or
	// {"commit":false} into it. If it is the record, write its data again. InDoubt is
	// called once for each Serve. Nil means that a line is logged, and no more.
	InDoubt func(ctx context.Context, tx Branch[T], err error)
	// Codec of the payload. The zero value is JSON.
	Codec Codec[T]
}

// A Participant serves one site of the transactions of a [Coordinator]. It votes
// by Prepare, and does by Commit or Abort what was decided, at least once for each
// transaction, also after restarts. Its nodes are those of the Coordinator.
//
// A Participant is safe for concurrent use and holds nothing while Serve does not
// run. Of several Serves of one site, in whatever process, one serves and the
// others wait for it to end.
type Participant[T any] struct {
	txSpace
	site    string
	handler Handler[T]
	bad     error
}

// NewParticipant returns the participant that serves the site. It does no I/O; bad
// arguments are reported by Serve.
func NewParticipant[T any](c *Client, path, site string, h Handler[T]) *Participant[T] {
	p := &Participant[T]{txSpace: txSpace{c, c.recipePath(path)}, site: site, handler: h}
	p.handler.Codec = h.Codec.orJSON()
	p.bad = checkID("site", site)
	if p.bad == nil && (h.Prepare == nil || h.Commit == nil || h.Abort == nil) {
		p.bad = fmt.Errorf("%w: a Handler without Prepare, Commit or Abort", ErrInvalid)
	}
	return p
}

// Serve serves the site until ctx ends, and returns why it ended. First it waits
// until no other process serves the site, which can take the session timeout of one
// that died. Then it finishes what was begun before, and goes on with what comes. A
// lost session does not end it.
//
// What goes wrong with one transaction does not end it, and is logged.
//
// Errors: the context's; ErrClosed; ErrDenied; ErrBadPath, ErrInvalid.
func (p *Participant[T]) Serve(ctx context.Context) error {
	if err := p.path.check("serve"); err != nil {
		return err
	}
	path := p.path.full
	if p.bad != nil {
		return opError("serve", path, p.bad)
	}
	_, err := onSession(ctx, p.c, func(s *session) (struct{}, error) { return struct{}{}, s.occupy(ctx, p.ground()) })
	if err != nil {
		return opError("serve", path, err)
	}
	lock := p.siteLock(p.site)
	memory := newSiteMemory()
	for {
		h, err := lock.Lock(ctx)
		if err != nil {
			return opError("serve", path, err)
		}
		held := h.Context(ctx)
		err = p.serve(held, h, memory)
		lost := held.Err() != nil
		h.Release()
		switch {
		case ctx.Err() != nil:
			return opError("serve", path, backend.ContextError(ctx))
		case isClosed(err), errors.Is(h.Err(), ErrClosed):
			return opError("serve", path, ErrClosed)
		case !lost && !isOver(err):
			return opError("serve", path, err)
		}
	}
}

// serving is one time of serving a site: under one hold, in one session.
type serving[T any] struct {
	*Participant[T]
	s    *session
	hold *Hold

	removes bool // the site is being removed, see RemoveSite

	mu      sync.Mutex
	running map[string]bool // names of branches
	*siteMemory
}

func newServing[T any](p *Participant[T], h *Hold, memory *siteMemory) *serving[T] {
	return &serving[T]{Participant: p, s: h.s, hold: h, running: make(map[string]bool), siteMemory: memory}
}

// work is the work on one branch.
func (v *serving[T]) work(name, id string) *branchWork[T] {
	return &branchWork[T]{serving: v, name: name, path: v.inbox(v.site) + "/" + name, id: id, pause: pauses{c: v.s.c}}
}

// siteMemory is what one Serve knows over lost sessions. Guarded by the mu of
// the serving.
type siteMemory struct {
	doubted map[string]bool // names of branches whose doubt was told
	acked   map[string]*dtx // transactions that may be acknowledged, and not collected yet
}

func newSiteMemory() *siteMemory {
	return &siteMemory{doubted: make(map[string]bool), acked: make(map[string]*dtx)}
}

// serve works off the inbox until ctx ends or something fails for good.
func (p *Participant[T]) serve(ctx context.Context, h *Hold, memory *siteMemory) (err error) {
	v := newServing(p, h, memory)
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel(nil)
		wg.Wait()
		v.withdraw()
		if cause := context.Cause(ctx); err == nil || errors.Is(err, ctx.Err()) {
			err = cause
		}
	}()
	if err := v.makeInbox(ctx); err != nil {
		return err
	}
	// What a process before us has acknowledged must not show any more.
	if err := v.s.b.Sync(ctx, v.inbox(p.site)); err != nil {
		return err
	}
	// If the session was lost right behind an acknowledgement, nobody else may look
	// again whether the record can go.
	for name, d := range maps.Clone(v.acked) {
		wg.Go(func() {
			if err := v.clear(ctx, name, d); err != nil {
				cancel(err)
			}
		})
	}
	here, err := v.announce(ctx)
	if err != nil {
		return err
	}
	defer func() { here.Stop() }()
	for {
		w := backend.NewWatch()
		names, _, err := v.s.b.Children(ctx, v.inbox(p.site), w)
		if isNotFound(err) {
			w.Stop()
			if err := v.makeInbox(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			w.Stop()
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			id, _, ok := parseBranch(name)
			if !ok || !v.begin(name) {
				continue
			}
			wg.Go(func() {
				defer v.end(name)
				if err := v.work(name, id).run(ctx); err != nil {
					cancel(err)
				}
			})
		}
		select {
		case <-w.Fired():
		case <-here.Fired():
			w.Stop()
			if here, err = v.announce(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			w.Stop()
			return backend.ContextError(ctx)
		}
	}
}

// makeInbox makes the site's inbox, for good: that it is there tells a coordinator
// that the site exists.
func (v *serving[T]) makeInbox(ctx context.Context) error {
	_, err := v.s.makeNode(ctx, backend.Create(v.inbox(v.site), nil, backend.Persistent), func(dir string) error { return v.s.makePart(ctx, dir, v.ground()) })
	return err
}

// begin reports whether nobody works on the branch yet.
func (v *serving[T]) begin(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running[name] {
		return false
	}
	v.running[name] = true
	return true
}

func (v *serving[T]) end(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.running, name)
}

// ack notes a transaction whose acknowledgement is under way, or with nil that all
// is done.
func (v *serving[T]) ack(name string, d *dtx) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d != nil {
		v.acked[name] = d
	} else {
		delete(v.acked, name)
	}
}

// doubtOnce reports whether the doubt about a branch has still to be told.
func (v *serving[T]) doubtOnce(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	told := v.doubted[name]
	v.doubted[name] = true
	return !told
}

// clear removes the record of an acknowledged transaction if nothing else needs it. If
// the service refuses that, it is left to Recover.
func (v *serving[T]) clear(ctx context.Context, name string, d *dtx) error {
	err := d.collectLast(ctx, v.s)
	if isOver(err) || ctx.Err() != nil {
		return err
	}
	if err != nil {
		v.c.log.Warn("coord: cannot remove the record of a transaction that is over, left to Recover", "path", d.path, "error", err)
	}
	v.ack(name, nil)
	return nil
}
