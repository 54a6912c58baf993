package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
)

// Unserved says what Propose does about a site that no process serves: that was stopped,
// or whose session has ended. A site whose lock another process holds or waits for
// counts as served: that process will vote.
type Unserved int8

const (
	// FailUnserved has Propose return ErrNotFound, which names the site, before anything
	// is made. A transaction that stands aborts as with AbortUnserved.
	FailUnserved Unserved = iota
	// AbortUnserved has the transaction abort, as soon as a site that has not voted is not
	// served. The reason names the site.
	AbortUnserved
	// AwaitUnserved has the transaction wait for its sites until the deadline, also for
	// those that are started again meanwhile.
	AwaitUnserved
)

// String returns what the policy does, in lower case.
func (u Unserved) String() string {
	switch u {
	case FailUnserved:
		return "fail"
	case AbortUnserved:
		return "abort"
	case AwaitUnserved:
		return "await"
	}
	return "unknown"
}

// notServed is why a transaction is not made, or aborts.
func notServed(site string) string { return fmt.Sprintf("site %q is not served", site) }

// announce makes the node that says that the site is served, for as long as the session
// lasts, and watches it: an outsider can delete it.
func (v *serving[T]) announce(ctx context.Context) (*backend.Watch, error) {
	path := v.present(v.site)
	pause := pauses{c: v.s.c}
	for {
		w := backend.NewWatch()
		stat, err := v.s.b.Exists(ctx, path, w)
		if err == nil && stat.EphemeralOwner == v.s.b.ID() {
			return w, nil
		}
		w.Stop()
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		// Under the lock it can only be that of a process which does not know yet that it
		// has lost the lock.
		ops := v.hold.Guard().Ops()
		if err == nil {
			ops = append(ops, backend.Delete(path, backend.AnyVersion))
		}
		_, err = v.s.b.Commit(ctx, append(ops, backend.Create(path, nil, backend.Ephemeral))...)
		var e *backend.Error
		switch {
		case err == nil:
			continue // to watch it
		case isNotFound(err) && errors.As(err, &e) && e.Path == path:
			if err := v.s.makePart(ctx, v.path.full+"/present", v.ground()); err != nil {
				return nil, err
			}
		case isNotFound(err), errors.Is(err, backend.ErrExists), mayRepeat(ctx, err):
			// Of the lock: ctx ends soon.
		default:
			return nil, err
		}
		pause.wait(ctx.Done(), v.s.b.Done())
		if err := backend.ContextError(ctx); err != nil {
			return nil, err
		}
	}
}

// withdraw removes that node. Under the lock it cannot be that of a successor. If the
// service refuses that commit, or the lock is lost, the node is removed in the
// background while it is one of this session: it says that the site is served. A
// successor that takes the lock meanwhile watches its node, and makes it again.
func (v *serving[T]) withdraw() {
	s, path := v.s, v.present(v.site)
	ops := append(v.hold.Guard().Ops(), backend.Delete(path, backend.AnyVersion))
	pause := pauses{c: s.c}
	for v.hold.Err() == nil {
		_, err := s.b.Commit(context.Background(), ops...) // the session bounds it
		if err == nil || isOver(err) {
			return
		}
		if !isUncertain(err) {
			break
		}
		pause.wait(v.hold.Done(), s.b.Done())
	}
	s.cleanUp("remove", path, func(ctx context.Context) error {
		stat, err := s.b.Exists(ctx, path, nil)
		if isNotFound(err) || err == nil && stat.EphemeralOwner != s.b.ID() {
			return nil
		}
		if err != nil {
			return err
		}
		return s.remove(ctx, path)
	})
}

// siteState is how a site is served.
type siteState int8

const (
	siteServed siteState = iota
	siteComing           // a process stands in line for its lock
	siteGone
)

// siteWatch follows how the sites of one transaction are served, in one session.
type siteWatch struct {
	*txSpace
	s     *session
	set   *backend.WatchSet
	armed map[*backend.Watch]string // for which site
	gone  map[string]bool
}

func newSiteWatch(x *txSpace, s *session) *siteWatch {
	return &siteWatch{x, s, backend.NewWatchSet(), make(map[*backend.Watch]string), make(map[string]bool)}
}

func (v *siteWatch) watch(site string) *backend.Watch {
	w := v.set.New()
	v.armed[w] = site
	return w
}

// arm watches sites that were served in the commit since, in one request. The others
// are looked at then.
func (v *siteWatch) arm(ctx context.Context, since int64, sites []string) error {
	var targets []backend.Target
	for _, site := range sites {
		targets = append(targets, backend.Target{Path: v.present(site), Watch: v.watch(site)})
	}
	if len(targets) == 0 {
		return nil
	}
	return v.s.b.Arm(ctx, since, targets...)
}

// look looks at the sites whose watches have fired.
func (v *siteWatch) look(ctx context.Context) error {
	var sites []string
	for _, w := range v.set.Take() {
		if site, ok := v.armed[w]; ok && !slices.Contains(sites, site) {
			sites = append(sites, site)
		}
	}
	for _, site := range sites {
		state, err := v.state(ctx, site)
		if err != nil {
			return err
		}
		v.gone[site] = state == siteGone
	}
	return nil
}

// state reads how a site is served, and watches it.
func (v *siteWatch) state(ctx context.Context, site string) (siteState, error) {
	for w, of := range v.armed {
		if of == site {
			w.Stop()
			delete(v.armed, w)
		}
	}
	// The server that we read from may not know yet of one that has just come.
	if err := v.s.b.Sync(ctx, v.present(site)); err != nil {
		return 0, err
	}
	_, err := v.s.b.Exists(ctx, v.present(site), v.watch(site))
	if err == nil || !isNotFound(err) {
		return siteServed, err
	}
	// When a session was replaced, the next one waits behind the node of the old one.
	w := v.watch(site)
	names, _, err := v.s.b.Children(ctx, v.c.root+v.serving(site), w)
	if err != nil {
		w.Stop()
		delete(v.armed, w)
		if isNotFound(err) {
			return siteGone, nil
		}
		return 0, err
	}
	if len((&line{kinds: lockLine}).order(names)) > 0 {
		return siteComing, nil
	}
	return siteGone, nil
}

// awaitSite waits while a process stands in line for the site's lock. It returns the
// error that says that the site is not served if there is none.
func (v *siteWatch) awaitSite(ctx context.Context, site string) error {
	for {
		state, err := v.state(ctx, site)
		switch {
		case err != nil:
			return err
		case state == siteServed:
			return nil
		case state == siteGone:
			return fmt.Errorf("%s: %w", notServed(site), backend.ErrNotFound)
		}
		select {
		case <-v.set.Ready():
			v.set.Take()
		case <-ctx.Done():
			return backend.ContextError(ctx)
		}
	}
}

// RemoveSite takes a site out that will never be served again. In its place it votes no
// where the site has not voted, waits for the decision where it has (at most until the
// deadline), and acknowledges; then it removes the site's inbox, so that a Propose with
// the site is ErrNotFound, until a Participant serves it again. It returns the commits
// that the site had not carried out, which somebody may have to make good, and logs the
// branches whose decision nobody can tell any more (ErrInDoubt). If it fails it can be
// called again; what was removed until then is returned with the error.
//
// ErrLocked: the site is served. ErrNotFound: it was never served. ErrKind: the path is
// another recipe's. backend.ErrNotEmpty: foreign nodes stand in its inbox.
func (co *Coordinator[T]) RemoveSite(ctx context.Context, site string) ([]Decision, error) {
	if err := co.path.check("removesite"); err != nil {
		return nil, err
	}
	if err := checkID("site", site); err != nil {
		return nil, opError("removesite", co.path.full, err)
	}
	var open []Decision
	h := Handler[struct{}]{
		Codec: Codec[struct{}]{ // whatever the payload is
			Encode: func(struct{}) ([]byte, error) { return nil, nil },
			Decode: func([]byte) (none struct{}, err error) { return none, nil },
		},
		Prepare: func(context.Context, Branch[struct{}]) error { return errors.New("the site was removed") },
		Abort:   func(context.Context, Branch[struct{}]) error { return nil },
		Commit: func(_ context.Context, tx Branch[struct{}]) error {
			d := Decision{ID: tx.ID, Zxid: tx.Zxid, Commit: true}
			if !slices.Contains(open, d) {
				open = append(open, d)
			}
			return nil
		},
	}
	p := NewParticipant(co.c, co.path.given, site, h)
	err := do(ctx, func(ctx context.Context) (*Hold, error) {
		// The lock makes what is missing above it, and the path can be another recipe's.
		if _, err := onSession(ctx, co.c, func(s *session) (struct{}, error) { return struct{}{}, s.meet(ctx, co.ground()) }); err != nil {
			return nil, err
		}
		h, err := p.siteLock(site).TryLock(ctx)
		if errors.Is(err, ErrLocked) {
			err = fmt.Errorf("site %q is served: %w", site, ErrLocked)
		}
		return h, err
	}, p.remove)
	return open, opError("removesite", co.inbox(site), err)
}

// remove works off the inbox until nothing is in it, and removes it.
func (p *Participant[T]) remove(ctx context.Context, h *Hold) error {
	v := newServing(p, h, newSiteMemory())
	v.removes = true
	inbox := v.inbox(p.site)
	pause := pauses{c: v.s.c}
	for unsure := false; ; {
		if err := v.s.b.Sync(ctx, inbox); err != nil {
			return err
		}
		names, _, err := v.s.b.Children(ctx, inbox, nil)
		if unsure && isNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		branches := 0
		for _, name := range names {
			if id, _, ok := parseBranch(name); ok {
				branches++
				if err := v.work(name, id).run(ctx); err != nil {
					return err
				}
			}
		}
		_, err = v.s.b.Commit(ctx, append(h.Guard().Ops(), backend.Delete(inbox, backend.AnyVersion))...)
		if err == nil {
			return nil
		}
		unsure = mayRepeat(ctx, err)
		// What came since the list is worked off too. What else stands there is foreign.
		more := errors.Is(err, backend.ErrNotEmpty) && (branches > 0 || len(names) == 0)
		if !unsure && !more {
			return err
		}
		pause.wait(ctx.Done(), v.s.b.Done())
	}
}
