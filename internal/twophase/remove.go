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

// RemoveSite removes a site that will never be served again: it serves the site until its
// inbox is empty, with functions that vote no and carry out nothing, and then removes the
// inbox. It returns the commits that the site has not carried out.
func (co *Coordinator) RemoveSite(ctx context.Context, site string) ([]Decision, error) {
	if err := co.path.Check("removesite"); err != nil {
		return nil, err
	}
	if err := co.checkID("site", site); err != nil {
		return nil, errs.Op("removesite", co.path.Full(), err)
	}
	var open []Decision
	p := &Participant{space: co.space, site: site, handler: Handler{
		Decode:  func(string, []byte) (any, error) { return nil, nil }, // any payload
		Prepare: func(context.Context, *Branch) error { return errors.New("the site was removed") },
		Abort:   func(context.Context, *Branch) error { return nil },
		Commit: func(_ context.Context, tx *Branch) error {
			d := Decision{ID: tx.ID, Zxid: tx.Zxid, Commit: true}
			if !slices.Contains(open, d) {
				open = append(open, d)
			}
			return nil
		},
	}}
	err := core.Do(ctx, co.inbox(site), func(ctx context.Context) (*core.Hold, error) {
		h, err := p.siteLock(site).TryLock(ctx)
		if errors.Is(err, errs.ErrLocked) {
			err = fmt.Errorf("site %q is served: %w", site, errs.ErrLocked)
		}
		return h, err
	}, p.remove)
	return open, errs.Op("removesite", co.inbox(site), err)
}

// remove works off the inbox until it is empty, and removes it.
func (p *Participant) remove(ctx context.Context, h *core.Hold) error {
	v := newServing(p, h, newSiteMemory())
	v.removes = true
	defer p.clearLater(v.siteMemory)
	inbox := v.inbox(p.site)
	pause := core.NewPauses(v.s.Client())
	for unsure := false; ; {
		if err := v.s.Backend().Sync(ctx, inbox); err != nil {
			return err
		}
		names, _, err := v.s.Backend().Children(ctx, inbox, nil)
		if unsure && errs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		branches := 0
		for _, name := range names {
			if id, _, ok := layout.ParseBranch(name); ok {
				branches++
				if err := v.work(name, id).run(ctx); err != nil {
					return err
				}
			}
		}
		_, err = v.s.Backend().Commit(ctx, append(h.Guard().Ops(), backend.Delete(inbox, backend.AnyVersion))...)
		if err == nil {
			return nil
		}
		unsure = errs.MayRepeat(ctx, err)
		// Branches that have come since the list are worked off too. Other nodes are
		// foreign.
		more := errors.Is(err, backend.ErrNotEmpty) && (branches > 0 || len(names) == 0)
		if !unsure && !more {
			return err
		}
		pause.Wait(ctx.Done(), v.s.Backend().Done())
	}
}
