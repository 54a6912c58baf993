package twophase

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// Unserved says what Propose does about a site that no process serves. If a process holds
// the lock of the site or waits for it, the site counts as served.
type Unserved int8

const (
	FailUnserved  Unserved = iota // Propose creates nothing; a transaction that exists aborts
	AbortUnserved                 // the transaction aborts if the site has not voted
	AwaitUnserved                 // the transaction waits for its sites until the deadline
)

// notServed is the reason why a transaction is not created, or aborts.
func notServed(site string) string { return fmt.Sprintf("site %q is not served", site) }

// announce creates the node that marks the site as served, for as long as the session
// lasts, and watches it: an outsider can delete it.
func (v *serving) announce(ctx context.Context) (*backend.Watch, error) {
	path := v.present(v.site)
	pause := core.NewPauses(v.s.Client())
	for {
		w := backend.NewWatch()
		stat, err := v.s.Backend().Exists(ctx, path, w)
		if err == nil && stat.EphemeralOwner == v.s.Backend().ID() {
			return w, nil
		}
		w.Stop()
		if err != nil && !errs.IsNotFound(err) {
			return nil, err
		}
		// Under the lock, another session's node can only be that of a process which
		// does not know yet that it has lost the lock.
		ops := v.hold.Guard().Ops()
		if err == nil {
			ops = append(ops, backend.Delete(path, backend.AnyVersion))
		}
		_, err = v.s.Backend().Commit(ctx, append(ops, backend.Create(path, nil, backend.Ephemeral))...)
		var e *backend.Error
		switch {
		case err == nil:
			continue // to watch it
		case errs.IsNotFound(err) && errors.As(err, &e) && e.Path == path:
			if err := v.s.MakePart(ctx, v.path.Full()+"/present", v.recipeDir()); err != nil {
				return nil, err
			}
		case errs.IsNotFound(err), errors.Is(err, backend.ErrExists), errs.MayRepeat(ctx, err):
			// The lock's node is gone: ctx ends soon. Or the outcome is unknown: look
			// again.
		default:
			return nil, err
		}
		pause.Wait(ctx.Done(), v.s.Backend().Done())
		if err := backend.ContextError(ctx); err != nil {
			return nil, err
		}
	}
}

// withdraw removes the node that announce created. Under the lock it cannot be a
// successor's node. If the service refuses that commit, or the lock is lost, the node
// is removed in the background while it is one of this session: as long as it exists,
// the site counts as served. A successor that takes the lock meanwhile watches its
// node, and creates it again.
func (v *serving) withdraw() {
	s, path := v.s, v.present(v.site)
	ops := append(v.hold.Guard().Ops(), backend.Delete(path, backend.AnyVersion))
	pause := core.NewPauses(s.Client())
	for v.hold.Err() == nil {
		_, err := s.Backend().Commit(context.Background(), ops...) // the session bounds it
		if err == nil || errs.IsOver(err) {
			return
		}
		if !backend.IsUncertain(err) {
			break
		}
		pause.Wait(v.hold.Done(), s.Backend().Done())
	}
	s.CleanUp("remove", path, func(ctx context.Context) error {
		stat, err := s.Backend().Exists(ctx, path, nil)
		if errs.IsNotFound(err) || err == nil && stat.EphemeralOwner != s.Backend().ID() {
			return nil
		}
		if err != nil {
			return err
		}
		return s.Remove(ctx, path)
	})
}

// siteState is whether a site is served.
type siteState int8

const (
	siteServed siteState = iota
	siteComing           // a process waits for the site's lock
	siteGone
)

// siteWatch follows the states of the sites of one transaction, in one session.
type siteWatch struct {
	*space
	s     *core.Session
	set   *backend.WatchSet
	armed map[*backend.Watch]string // the site of each watch
	gone  map[string]bool
}

func newSiteWatch(x *space, s *core.Session) *siteWatch {
	return &siteWatch{x, s, backend.NewWatchSet(), make(map[*backend.Watch]string), make(map[string]bool)}
}

func (v *siteWatch) watch(site string) *backend.Watch {
	w := v.set.New()
	v.armed[w] = site
	return w
}

// arm watches the presence of sites, in one request. The watch of a site that is not
// present, or whose presence node has changed after the commit since, fires at once,
// and look examines that site. A foreign node that is older passes for the presence of its site
// until it is deleted or changed.
func (v *siteWatch) arm(ctx context.Context, since int64, sites []string) error {
	var targets []backend.Target
	for _, site := range sites {
		targets = append(targets, backend.Target{Path: v.present(site), Watch: v.watch(site)})
	}
	if len(targets) == 0 {
		return nil
	}
	return v.s.Backend().Arm(ctx, since, targets...)
}

// look reads the states of the sites whose watches have fired.
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

// state reads the state of a site, and watches it.
func (v *siteWatch) state(ctx context.Context, site string) (siteState, error) {
	for w, of := range v.armed {
		if of == site {
			w.Stop()
			delete(v.armed, w)
		}
	}
	// The server of this session may not know yet of a presence node that was just
	// created.
	if err := v.s.Backend().Sync(ctx, v.present(site)); err != nil {
		return 0, err
	}
	stat, err := v.s.Backend().Exists(ctx, v.present(site), v.watch(site))
	if err == nil && stat.EphemeralOwner != 0 || err != nil && !errs.IsNotFound(err) {
		return siteServed, err
	}
	// There is no node, or a foreign one. When a process has lost its session, its next
	// session waits for the lock behind the node of the old session.
	w := v.watch(site)
	names, _, err := v.s.Backend().Children(ctx, v.c.Root()+v.serving(site), w)
	if err != nil {
		w.Stop()
		delete(v.armed, w)
		if errs.IsNotFound(err) {
			return siteGone, nil
		}
		return 0, err
	}
	if len(layout.LockLine.Order(names)) > 0 {
		return siteComing, nil
	}
	return siteGone, nil
}

// awaitSite waits while a process waits for the site's lock, and returns nil when the
// site is served. If no process waits, it returns the error that the site is not
// served.
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
