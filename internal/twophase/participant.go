package twophase

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// A Participant serves one site.
type Participant struct {
	space
	site    string
	handler Handler
	bad     error // of an argument
}

// NewParticipant returns the participant that serves the site. Serve reports bad arguments.
func NewParticipant(c *core.Client, path, site string, h Handler) *Participant {
	p := &Participant{space: space{c, c.Path(path)}, site: site, handler: h}
	p.bad = p.checkID("site", site)
	if p.bad == nil && (h.Prepare == nil || h.Commit == nil || h.Abort == nil) {
		p.bad = fmt.Errorf("%w: the Handler needs Prepare, Commit and Abort", backend.ErrInvalid)
	}
	if h.Concurrent < 0 && p.bad == nil {
		p.bad = fmt.Errorf("%w: Concurrent %d is negative", backend.ErrInvalid, h.Concurrent)
	}
	return p
}

// Serve serves the site until ctx ends, over lost sessions, and returns the reason of its
// end. First it waits for the lock of the site.
func (p *Participant) Serve(ctx context.Context) error {
	if err := p.path.Check("serve"); err != nil {
		return err
	}
	path := p.path.Full()
	if p.bad != nil {
		return errs.Op("serve", path, p.bad)
	}
	lock := p.siteLock(p.site)
	memory := newSiteMemory()
	defer p.clearLater(memory)
	short := core.NewShortage(p.c, "serve", path)
	for claimed := false; ; {
		var err error
		if !claimed {
			_, err = core.OnSession(ctx, p.c, func(s *core.Session) (struct{}, error) { return struct{}{}, s.ClaimKind(ctx, p.recipeDir()) })
		}
		if err == nil {
			claimed = true
			err = p.serveOnce(ctx, lock, memory)
		}
		if !short.Waited(ctx, err) && err != nil {
			return errs.Op("serve", path, err)
		}
	}
}

// serveOnce serves the site under one hold of its lock. Nil means that the hold was lost.
func (p *Participant) serveOnce(ctx context.Context, lock *line.Lock, memory *siteMemory) error {
	h, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	held := h.Context(ctx)
	err = p.serve(held, h, memory)
	lost := held.Err() != nil
	h.Release()
	switch {
	case ctx.Err() != nil:
		return backend.ContextError(ctx)
	case errs.IsClosed(err), errors.Is(h.Err(), backend.ErrClosed):
		return backend.ErrClosed
	case !lost && !errs.IsOver(err):
		return err
	}
	return nil
}

// serving is one period of serving a site: under one hold, in one session.
type serving struct {
	*Participant
	s    *core.Session
	hold *core.Hold

	removes bool // the site is being removed, see RemoveSite

	prepares chan struct{} // an element for each call of Prepare
	carries  chan struct{} // an element for each call of Commit or Abort

	mu      sync.Mutex
	running map[string]bool // names of the branches that are worked on; true: to be looked at once more
	undone  int             // decided transactions that are not carried out
	failing int             // of these, the transactions whose latest call has failed
	*siteMemory
}

func newServing(p *Participant, h *core.Hold, memory *siteMemory) *serving {
	most := max(cmp.Or(p.handler.Concurrent, defaultConcurrent), 1)
	return &serving{
		Participant: p, s: h.On(), hold: h, running: make(map[string]bool), siteMemory: memory,
		prepares: make(chan struct{}, most), carries: make(chan struct{}, most),
	}
}

// work returns the work on one branch.
func (v *serving) work(name, id string) *branchWork {
	return &branchWork{serving: v, name: name, path: v.inbox(v.site) + "/" + name, id: id, pause: core.NewPauses(v.s.Client())}
}

// siteMemory is what one Serve remembers over lost sessions. The mu of the serving
// guards it.
type siteMemory struct {
	doubted map[string]bool         // names of branches whose doubt was reported
	acked   map[string]*transaction // transactions that may be acknowledged, and whose records are not collected yet
}

func newSiteMemory() *siteMemory {
	return &siteMemory{doubted: make(map[string]bool), acked: make(map[string]*transaction)}
}

// serve works off the inbox until ctx ends or an error is permanent.
func (p *Participant) serve(ctx context.Context, h *core.Hold, memory *siteMemory) (err error) {
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
				case c.Kind == backend.TreeCreated && nodepath.Parent(c.Path) == v.inbox(p.site):
					work(nodepath.Base(c.Path))
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
func (v *serving) list(ctx context.Context) (tree *backend.TreeWatch, w *backend.Watch, names []string, err error) {
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
		if !errs.IsNotFound(err) {
			return nil, nil, nil, err
		}
		if err := v.makeInbox(ctx); err != nil {
			return nil, nil, nil, err
		}
	}
}

// makeInbox creates the site's inbox, permanently: its existence tells a coordinator
// that the site exists.
func (v *serving) makeInbox(ctx context.Context) error {
	_, err := v.s.MakeNode(ctx, backend.Create(v.inbox(v.site), nil, backend.Persistent), func(dir string) error { return v.s.MakePart(ctx, dir, v.recipeDir()) })
	return err
}

// begin marks the branch as worked on. It reports false if it was marked already; then the branch is
// looked at once more at the end of that work. A late request of a dead proposer can create a
// branch again while the site acknowledges it, and no other change of the inbox would show that.
func (v *serving) begin(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, marked := v.running[name]
	v.running[name] = marked
	return !marked
}

// end removes the mark, unless the branch is to be looked at once more, which it reports.
func (v *serving) end(name string) (again bool) {
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
func (v *serving) owe(undone, failing int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.undone += undone
	v.failing += failing
	core.Emit(context.Background(), v.c, trace.DecisionsUndone{Subject: v.subject("serve", v.inbox(v.site)), Site: v.site, Undone: v.undone, Failing: v.failing})
}

// ack notes a transaction whose acknowledgement is under way, or with a nil d that
// its record needs no look any more.
func (v *serving) ack(name string, d *transaction) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d != nil {
		v.acked[name] = d
	} else {
		delete(v.acked, name)
	}
}

// doubtOnce reports whether the doubt about a branch has still to be reported.
func (v *serving) doubtOnce(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	reported := v.doubted[name]
	v.doubted[name] = true
	return !reported
}

// clear removes the record of an acknowledged transaction if no other process needs
// it. If the service refuses that, the record is left to Recover.
func (v *serving) clear(ctx context.Context, name string, d *transaction) error {
	err := d.collectLast(ctx, v.s)
	if errs.IsOver(err) || ctx.Err() != nil {
		return err
	}
	v.warnLeft(d, err)
	v.ack(name, nil)
	return nil
}

// clearLater is clear for the end of the call that the memory belongs to, in the
// background: the end of its ctx can have kept that call from learning that its
// acknowledgement was the last one.
func (p *Participant) clearLater(memory *siteMemory) {
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
func (p *Participant) warnLeft(d *transaction, err error) {
	if err != nil && !errs.IsOver(err) {
		p.c.Log().Warn("coord: cannot remove the record of a finished transaction, leaving it to Recover", "path", d.path, "error", err)
	}
}
