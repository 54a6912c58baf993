package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// A Branch is a transaction as a site sees it: the site votes on it, and then carries
// it out or undoes it.
type Branch[T any] struct {
	ID string
	// Zxid is that of the commit that created the transaction. No other transaction
	// has it, not even a later one with the same ID: it is the key for what a site
	// stores about the transaction.
	Zxid     int64
	Site     string
	Deadline time.Time
	Payload  T
	// NoPayload reports that Payload is zero: the record is gone or unreadable, or the
	// codec cannot decode the payload. It is set for Abort and InDoubt only.
	NoPayload bool

	at *branchState // nil for a Branch that no Serve has made
}

// branchState is a branch at a call of a function of the handler.
type branchState struct {
	hold    *core.Hold // of the site's lock
	path    string
	version int32
	d       *dtx // of Prepare: the transaction; nil for the other functions
}

// Token returns the fencing token of the process that serves the site, which grows from one
// such process to the next. It protects a resource of the site from a paused process, which
// could write for a transaction that its successor has undone. The resource remembers the
// highest token that it has seen for the site, over all transactions, and refuses lower
// tokens. So Abort must pass the token to the resource even if there is nothing to undo.
// (Within one process, Abort is called after Prepare has returned.) Token is zero for a
// Branch that no Serve has made.
func (b Branch[T]) Token() int64 {
	if b.at == nil {
		return 0
	}
	return b.at.hold.Token()
}

// Guard returns the condition for a Txn that this process still serves the site, and that the
// transaction is in the same state as when the function was called. In Prepare, a write under
// it is refused when the site has voted, when another process serves the site, and at the
// latest when the proposer has learned that the transaction was aborted without this site.
// If a write succeeds and the transaction aborts, Abort is called later. In the other
// functions, a write is refused when the site has acknowledged the transaction. A refused
// write never succeeds later, since names of nodes are not used again. The Guard of a Branch
// that no Serve has made is zero.
func (b Branch[T]) Guard() Guard {
	if b.at == nil {
		return Guard{}
	}
	g := b.at.hold.Guard().And(backend.Check(b.at.path, b.at.version))
	if b.at.d != nil {
		g = g.And(backend.Check(b.at.d.open(), backend.AnyVersion))
	}
	return Guard{g}
}

// Verify asks the service whether the condition of the Guard is true, and in Prepare also
// whether the transaction is undecided. Nil means that both were true when the service was
// asked; use the Guard or the Token to write safely. If another process may serve the site,
// the error matches ErrLost; if the state of the transaction has changed, ErrConflict. It
// costs three requests, or five in Prepare.
func (b Branch[T]) Verify(ctx context.Context) error {
	const op = "verify"
	if b.at == nil {
		return core.OpError(op, "", fmt.Errorf("%w: the Branch is not from Serve", ErrInvalid))
	}
	if err := b.at.hold.Verify(ctx); err != nil { // the reads below are not older than its Sync
		return err
	}
	s := b.at.hold.On()
	stat, err := s.Backend().Exists(ctx, b.at.path, nil)
	further := core.IsNotFound(err) || err == nil && stat.Version != b.at.version
	if d := b.at.d; d != nil && err == nil && !further {
		if _, err = s.Backend().Exists(ctx, d.decision(), nil); core.IsNotFound(err) {
			_, err = s.Backend().Exists(ctx, d.open(), nil)
			further = core.IsNotFound(err)
		} else {
			further = err == nil
		}
	}
	if further {
		err = fmt.Errorf("%w: the transaction has advanced beyond this call", ErrConflict)
	}
	if err == nil {
		err = b.at.hold.Err()
	}
	return core.OpError(op, b.at.path, err)
}

// defaultConcurrent is the default of Handler.Concurrent.
const defaultConcurrent = 32

// A Handler is the behaviour of a site. Its functions are called concurrently for
// different transactions, and one at a time for the same transaction. Each may be
// called again for the same transaction: after a crash, after a lost session, or
// after it has returned an error. So each must be idempotent. Their contexts end when
// that of Serve ends, and when the site's lock is lost. They must return then,
// because the next Serve waits for that. Prepare, Commit and Abort are required:
// without one of them Serve returns ErrInvalid.
//
// If a function panics or ends its goroutine, that counts as an error: Prepare has voted no,
// Commit and Abort are called again. The stack and the type of the panic's value are logged,
// but not the value. The panic does not end the program, since the program would get the same
// transaction again at each start.
type Handler[T any] struct {
	// Prepare is asked to vote. A nil error is a yes: the site has made sure,
	// durably, that it can still commit after a crash, and is bound to the decision
	// from then on. An error is a no, with its text as the reason; the transaction
	// aborts. An error after ctx has ended is no vote. ctx also ends when the
	// transaction is decided without this site, and at its deadline.
	Prepare func(ctx context.Context, tx Branch[T]) error
	// Commit makes the transaction final. It is called until it returns nil, and not
	// again after the site has acknowledged that to the service. The first repetition comes
	// at once, the second after 10 ms, and the pause then doubles up to a minute, less a
	// random part of at most half.
	Commit func(ctx context.Context, tx Branch[T]) error
	// Abort undoes the work of Prepare, which may have done nothing, or never have
	// begun. Like Commit it is called until it returns nil. Commit and Abort are
	// never both called for one transaction.
	Abort func(ctx context.Context, tx Branch[T]) error
	// InDoubt is called if the site has voted yes and an outsider has destroyed the
	// decision or the record, or if the transaction was committed without the vote of this
	// site. The error matches ErrInDoubt and names the damaged node. Only this transaction
	// waits, until an operator has repaired the node. If the node is the branch, the record
	// was deleted: find out the decision at the other sites, carry it out, and delete the
	// branch. If it is the decision, write {"commit":true} or {"commit":false} into it, and
	// create it if it is missing. If it is the record, write its data again. InDoubt is
	// called once for each transaction in each Serve. If it is nil, the site only logs a
	// line.
	InDoubt func(ctx context.Context, tx Branch[T], err error)
	// Concurrent is the most calls of Prepare that run at a time, and the most of Commit and
	// Abort together; zero means 32. Others wait, a Prepare at most until its deadline. A
	// Commit that waits before it is called again does not count.
	Concurrent int
	// Codec of the payload. The zero value is JSON. If it cannot decode the payload, or
	// panics, the site votes no without a call of Prepare. Commit is not called until the
	// codec can decode the payload.
	Codec Codec[T]
}

// A Participant serves one site of the transactions of a [Coordinator]. It votes by
// Prepare, and carries out the decision by Commit or Abort, at least once for each
// transaction, also after restarts. Its nodes are those of the Coordinator.
//
// A Participant is safe for concurrent use and holds no resources while Serve does
// not run. If several Serves of one site run, in any processes, one serves and the
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
	p := &Participant[T]{txSpace: txSpace{c.core(), c.core().Path(path)}, site: site, handler: h}
	p.handler.Codec = h.Codec.orJSON()
	p.bad = p.checkID("site", site)
	if p.bad == nil && (h.Prepare == nil || h.Commit == nil || h.Abort == nil) {
		p.bad = fmt.Errorf("%w: the Handler needs Prepare, Commit and Abort", ErrInvalid)
	}
	if h.Concurrent < 0 && p.bad == nil {
		p.bad = fmt.Errorf("%w: Concurrent %d is negative", ErrInvalid, h.Concurrent)
	}
	return p
}

// Serve serves the site until ctx ends, and returns the reason of its end. First it waits
// until no other process serves the site; if such a process died, that can take its
// session timeout. Then it finishes the transactions that were begun before, and serves
// new ones. A lost session does not end it.
//
// A failure of one transaction does not end it either, and is logged.
//
// If ctx ends during the acknowledgement of a transaction that all other sites have
// acknowledged, its record is removed in the background. Close waits for that.
//
// Errors: that of the context; ErrClosed; ErrDenied; ErrBadPath, ErrInvalid.
func (p *Participant[T]) Serve(ctx context.Context) error {
	if err := p.path.Check("serve"); err != nil {
		return err
	}
	path := p.path.Full()
	if p.bad != nil {
		return core.OpError("serve", path, p.bad)
	}
	_, err := core.OnSession(ctx, p.c, func(s *core.Session) (struct{}, error) { return struct{}{}, s.ClaimKind(ctx, p.recipeDir()) })
	if err != nil {
		return core.OpError("serve", path, err)
	}
	lock := p.siteLock(p.site)
	memory := newSiteMemory()
	defer p.clearLater(memory)
	for {
		h, err := lock.Lock(ctx)
		if err != nil {
			return core.OpError("serve", path, err)
		}
		held := h.Context(ctx)
		err = p.serve(held, h, memory)
		lost := held.Err() != nil
		h.Release()
		switch {
		case ctx.Err() != nil:
			return core.OpError("serve", path, backend.ContextError(ctx))
		case core.IsClosed(err), errors.Is(h.Err(), ErrClosed):
			return core.OpError("serve", path, ErrClosed)
		case !lost && !core.IsOver(err):
			return core.OpError("serve", path, err)
		}
	}
}

// serving is one period of serving a site: under one hold, in one session.
type serving[T any] struct {
	*Participant[T]
	s    *core.Session
	hold *core.Hold

	removes bool // the site is being removed, see RemoveSite

	prepares chan struct{} // an element for each call of Prepare
	carries  chan struct{} // an element for each call of Commit or Abort

	mu      sync.Mutex
	running map[string]bool // names of the branches that are worked on; true: to be looked at once more
	undone  int             // decided transactions that are not carried out
	failing int             // of these, those of which the latest call has failed
	*siteMemory
}

func newServing[T any](p *Participant[T], h *core.Hold, memory *siteMemory) *serving[T] {
	most := max(cmp.Or(p.handler.Concurrent, defaultConcurrent), 1)
	return &serving[T]{
		Participant: p, s: h.On(), hold: h, running: make(map[string]bool), siteMemory: memory,
		prepares: make(chan struct{}, most), carries: make(chan struct{}, most),
	}
}

// work returns the work on one branch.
func (v *serving[T]) work(name, id string) *branchWork[T] {
	return &branchWork[T]{serving: v, name: name, path: v.inbox(v.site) + "/" + name, id: id, pause: core.NewPauses(v.s.Client())}
}

// siteMemory is what one Serve remembers over lost sessions. The mu of the serving
// guards it.
type siteMemory struct {
	doubted map[string]bool // names of branches whose doubt was reported
	acked   map[string]*dtx // transactions that may be acknowledged, and whose records are not collected yet
}

func newSiteMemory() *siteMemory {
	return &siteMemory{doubted: make(map[string]bool), acked: make(map[string]*dtx)}
}

// serve works off the inbox until ctx ends or an error is permanent.
func (p *Participant[T]) serve(ctx context.Context, h *core.Hold, memory *siteMemory) (err error) {
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
	// A branch that an earlier process has acknowledged must not be listed any more.
	if err := v.s.Backend().Sync(ctx, v.inbox(p.site)); err != nil {
		return err
	}
	// If the session was lost right after an acknowledgement, perhaps no other
	// process looks again whether the record can be removed.
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
	work := func(name string) {
		id, _, ok := layout.ParseBranch(name)
		if !ok || !v.begin(name) {
			return
		}
		wg.Go(func() {
			for {
				if err := v.work(name, id).run(ctx); err != nil {
					cancel(err)
				}
				if !v.end(name) || ctx.Err() != nil {
					return
				}
			}
		})
	}
	var tree *backend.TreeWatch // of the inbox, nil if the service has none
	var w *backend.Watch        // instead
	defer func() { tree.Stop(); w.Stop() }()
	// If the service has trees, the inbox is listed once: the changes have the names. Else it is listed
	// after a change, but not while branches that were listed wait for their Prepare: each of
	// them changes the inbox again.
	listed, changed := false, false
	for {
		if !listed {
			var names []string
			if tree, w, names, err = v.list(ctx); err != nil {
				return err
			}
			slices.Sort(names)
			for _, name := range names {
				work(name)
			}
			listed, changed = true, false
		}
		var free chan struct{}
		fired := w.Fired()
		if changed {
			free, fired = v.prepares, nil
		}
		select {
		case <-tree.Ready():
			changes, over := tree.Take()
			for _, c := range changes {
				switch {
				case c.Path == v.inbox(p.site):
					over = over || c.Kind == backend.TreeDeleted
				case c.Kind == backend.TreeCreated && core.Parent(c.Path) == v.inbox(p.site):
					work(core.Base(c.Path))
				}
			}
			if over {
				tree.Stop()
				listed = false
			}
		case <-fired:
			changed = true
		case free <- struct{}{}:
			<-free
			listed = false
		case <-here.Fired():
			if here, err = v.announce(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return v.s.ContextError(ctx)
		}
	}
}

// list lists the inbox, and makes it if it is missing. It arms a watch of the inbox's tree, or a
// watch of its children if the service has no trees.
func (v *serving[T]) list(ctx context.Context) (tree *backend.TreeWatch, w *backend.Watch, names []string, err error) {
	inbox := v.inbox(v.site)
	for {
		tree, w = backend.NewTreeWatch(0), nil
		err = v.s.Backend().WatchTree(ctx, inbox, tree)
		if errors.Is(err, backend.ErrUnsupported) {
			tree, w, err = nil, backend.NewWatch(), nil
		}
		if err == nil {
			names, _, err = v.s.Backend().Children(ctx, inbox, w)
		}
		if err == nil {
			return tree, w, names, nil
		}
		tree.Stop()
		w.Stop()
		if !core.IsNotFound(err) {
			return nil, nil, nil, err
		}
		if err := v.makeInbox(ctx); err != nil {
			return nil, nil, nil, err
		}
	}
}

// makeInbox creates the site's inbox, permanently: its existence tells a coordinator
// that the site exists.
func (v *serving[T]) makeInbox(ctx context.Context) error {
	_, err := v.s.MakeNode(ctx, backend.Create(v.inbox(v.site), nil, backend.Persistent), func(dir string) error { return v.s.MakePart(ctx, dir, v.recipeDir()) })
	return err
}

// begin marks the branch as worked on. It reports false if it was marked already; then the branch is
// looked at once more at the end of that work. A late request of a dead proposer can create a
// branch again that is just being acknowledged, and no other change would tell of it.
func (v *serving[T]) begin(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, marked := v.running[name]
	v.running[name] = marked
	return !marked
}

// end removes the mark, unless the branch is to be looked at once more, which it reports.
func (v *serving[T]) end(name string) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if again = v.running[name]; again {
		v.running[name] = false
	} else {
		delete(v.running, name)
	}
	return again
}

// owe changes the numbers of decided transactions that are not carried out, and reports them.
func (v *serving[T]) owe(undone, failing int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.undone += undone
	v.failing += failing
	core.Emit(context.Background(), v.c, trace.DecisionsUndone{Subject: v.subject("serve", v.inbox(v.site)), Site: v.site, Undone: v.undone, Failing: v.failing})
}

// ack notes a transaction whose acknowledgement is under way, or with a nil d that
// its record needs no look any more.
func (v *serving[T]) ack(name string, d *dtx) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d != nil {
		v.acked[name] = d
	} else {
		delete(v.acked, name)
	}
}

// doubtOnce reports whether the doubt about a branch has still to be reported.
func (v *serving[T]) doubtOnce(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	told := v.doubted[name]
	v.doubted[name] = true
	return !told
}

// clear removes the record of an acknowledged transaction if no other process needs
// it. If the service refuses that, the record is left to Recover.
func (v *serving[T]) clear(ctx context.Context, name string, d *dtx) error {
	err := d.collectLast(ctx, v.s)
	if core.IsOver(err) || ctx.Err() != nil {
		return err
	}
	v.warnLeft(d, err)
	v.ack(name, nil)
	return nil
}

// clearLater is clear for the end of the call that the memory belongs to, in the
// background: the end of its ctx can have kept that call from learning that its
// acknowledgement was the last one.
func (p *Participant[T]) clearLater(memory *siteMemory) {
	for _, d := range memory.acked {
		p.c.GoCleanUp(func(ctx context.Context, _ *core.CleanUp) {
			p.c.OverSessions(ctx, func(s *core.Session) {
				err := s.Backend().Sync(ctx, d.path) // the acknowledgement may be in flight
				if err == nil {
					err = d.collectSoon(ctx, s)
				}
				p.warnLeft(d, err)
			})
		})
	}
}

// warnLeft logs the error of a service that has refused to remove a record.
func (p *Participant[T]) warnLeft(d *dtx, err error) {
	if err != nil && !core.IsOver(err) {
		p.c.Log().Warn("coord: cannot remove the record of a finished transaction, leaving it to Recover", "path", d.path, "error", err)
	}
}
