package twophase

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// proposing is one Propose under way. The rules that it cites are in transaction.go.
type proposing struct {
	*space
	id    string
	rec   layout.Record
	begun bool         // a write was sent that may have been applied
	found bool         // the transaction has been seen to exist
	made  bool         // ProposalMade was reported to Trace
	tx    *transaction // the transaction, once it was created or joined
	maybe bool         // an earlier session may have created it
	other bool         // the existing transaction is not the one proposed here
	lives []string     // the live nodes it may have, one for each session

	unserved Unserved
}

// lateVotes is the reason of an abort at the deadline.
const lateVotes = "votes were missing at the deadline"

// errMaybe reports that the session was lost while the record was being created.
var errMaybe = fmt.Errorf("it is unknown whether the transaction was created: %w", backend.ErrUncertain)

// errOther reports that another transaction has the id.
var errOther = fmt.Errorf("a transaction with this id has other sites or another payload: %w", errs.ErrDuplicate)

// enter creates the transaction, or joins it if it exists, so that it stays until
// this Propose is done with it.
func (q *proposing) enter(ctx context.Context, s *core.Session) (*transaction, error) {
	d := &transaction{id: q.id, path: q.record(q.id), rec: q.rec}
	live := d.path + "/" + layout.LiveName(s.Client().NewGUID(d.path))
	q.lives = append(q.lives, live)
	if q.maybe && !q.found {
		err := s.Backend().Sync(ctx, d.path)
		if err == nil {
			_, err = q.load(ctx, s, q.id, nil)
		}
		switch {
		case errs.IsNotFound(err):
			return d, errMaybe // it was created and removed, or may still be created, or neither
		case errs.IsOver(err):
			return d, err
		case err != nil:
			return d, maybe(err)
		}
		q.found = true
	}
	pause := core.NewPauses(s.Client())
	for {
		if !q.found {
			switch made, err := q.create(ctx, s, d, live); {
			case err != nil:
				return d, err
			case made:
				q.found, q.tx = true, d
				return d, nil
			}
		}
		// It exists. The live node comes first: a record that is read after it stays.
		q.begun = true
		_, err := s.Backend().Commit(ctx, backend.Create(live, nil, backend.Ephemeral))
		switch {
		case err == nil, errors.Is(err, backend.ErrExists): // the node of this call: the name is unique
		case errs.IsNotFound(err) && q.found:
			return d, errs.ErrInDoubt
		case errs.IsNotFound(err):
			continue // it was removed meanwhile
		case errs.MayRepeat(ctx, err):
			pause.Wait(ctx.Done(), s.Backend().Done())
			continue
		default:
			return d, err
		}
		there, err := q.load(ctx, s, q.id, nil)
		switch {
		case errs.IsNotFound(err):
			return d, errs.ErrInDoubt // in spite of the live node: an outsider deleted it
		case err != nil:
			return d, err
		case !slices.Equal(there.rec.Sites, q.rec.Sites) || !bytes.Equal(there.rec.Payload, q.rec.Payload):
			q.other = true
			return there, errOther
		case q.tx != nil && q.tx.rec.Mark != there.rec.Mark:
			q.other = true // the transaction of this Propose is finished, and a later one has its id
			return there, errs.ErrInDoubt
		}
		q.found, q.tx = true, there
		return there, nil
	}
}

// recordOps returns the operations that create the record. From the index branches on
// they create a branch for each site. From checks on they check that each site is served,
// with FailUnserved.
func (q *proposing) recordOps(d *transaction, live string) (ops []backend.Op, branches, checks int, err error) {
	data, err := json.Marshal(d.rec)
	if err != nil {
		return nil, 0, 0, err
	}
	ops = []backend.Op{
		backend.Create(d.path, data, backend.Persistent),
		backend.Create(d.open(), nil, backend.Persistent),
		backend.Create(live, nil, backend.Ephemeral),
	}
	branches = len(ops)
	for _, site := range d.rec.Sites {
		ops = append(ops, backend.Create(q.branch(d, site), nil, backend.Persistent))
	}
	checks = len(ops)
	if q.unserved == FailUnserved {
		for _, site := range d.rec.Sites {
			ops = append(ops, backend.Check(q.present(site), backend.AnyVersion))
		}
	}
	return ops, branches, checks, nil
}

// create creates the record and all nodes that belong to it. It reports false if a
// record with this id exists.
func (q *proposing) create(ctx context.Context, s *core.Session, d *transaction, live string) (bool, error) {
	ops, branches, checks, err := q.recordOps(d, live)
	if err != nil {
		return false, err
	}
	if err := s.ClaimKind(ctx, q.recipeDir()); err != nil {
		return false, err
	}
	pause := core.NewPauses(s.Client())
	unsure := false // an earlier attempt may have been applied
	for {
		_, err := s.Backend().Commit(ctx, ops...)
		q.begun = q.begun || err == nil || backend.IsUncertain(err)
		if unsure && errs.IsOver(err) && !backend.IsUncertain(err) {
			return false, maybe(backend.Uncertain(err))
		}
		unsure = unsure || backend.IsUncertain(err)
		i := errs.Blamed(err)
		switch {
		case err == nil:
			return true, nil
		case errs.MayRepeat(ctx, err):
			// If it was applied, the next attempt finds the record. The record cannot
			// have been removed during this session, since the live node would have
			// kept it.
			pause.Wait(ctx.Done(), s.Backend().Done())
		case backend.IsUncertain(err):
			return false, maybe(err)
		case i == 0 && errors.Is(err, backend.ErrExists):
			return false, nil
		case i == 0 && errs.IsNotFound(err):
			if err := s.MakePart(ctx, q.records(), q.recipeDir()); err != nil {
				return false, err
			}
		case i >= checks && errs.IsNotFound(err):
			// The site is not gone if another process takes it over at this moment.
			if err := q.awaitSite(ctx, s, d, d.rec.Sites[i-checks]); err != nil {
				return false, err
			}
		case i >= branches && errs.IsNotFound(err):
			return false, fmt.Errorf("site %q was never served: %w", d.rec.Sites[i-branches], backend.ErrNotFound)
		default:
			return false, err
		}
	}
}

// awaitSite waits while a site is about to be served, at most until the deadline.
func (q *proposing) awaitSite(ctx context.Context, s *core.Session, d *transaction, site string) error {
	v := newSiteWatch(q.space, s)
	defer v.set.Stop()
	late := fmt.Errorf("%s: %w", notServed(site), backend.ErrNotFound)
	ctx, cancel := context.WithDeadlineCause(ctx, d.rec.Due(), late)
	defer cancel()
	return v.awaitSite(ctx, site)
}

// maybe returns an errMaybe with its cause: it is unknown whether the record was
// created.
func maybe(err error) error { return fmt.Errorf("%w (%w)", errMaybe, err) }

// await waits for the decision, and makes it as soon as it can be made.
func (q *proposing) await(ctx context.Context, s *core.Session, d *transaction) (*layout.Outcome, error) {
	deadline := time.NewTimer(time.Until(d.rec.Due()))
	defer deadline.Stop()
	late := false // the deadline has passed, also if the clock was set back since the timer was set
	sites, watched := newSiteWatch(q.space, s), q.unserved == AwaitUnserved
	defer sites.set.Stop()
	look := false // watches on sites have fired, and look was not called yet
	pause := core.NewPauses(s.Client())
	for {
		w := backend.NewWatch()
		names, stat, err := s.Backend().Children(ctx, d.path, w)
		if err == nil && d.zxid == 0 {
			d.zxid = stat.Czxid // this Propose has just created it
		}
		if errs.IsNotFound(err) || err == nil && stat.Czxid != d.zxid {
			err = errs.ErrInDoubt
		}
		if err != nil {
			w.Stop()
			return nil, err
		}
		missing := d.rec.Missing(d.zxid, names)
		o, wait, err := q.decision(ctx, s, d, names, missing, sites, late)
		if wait {
			if !watched {
				if err := sites.arm(ctx, d.zxid, missing); err != nil {
					w.Stop()
					return nil, err
				}
				watched = true
			}
			if !look {
				select {
				case <-w.Fired():
				case <-sites.set.Ready():
					look = true
				case <-deadline.C:
					late = true
				case <-s.Backend().Done():
					return nil, s.Backend().Err()
				case <-ctx.Done():
					w.Stop()
					return nil, s.ContextError(ctx)
				}
			}
			// A change of the record comes first, also if both have fired.
			if w.Kind() != 0 {
				continue
			}
			w.Stop()
			if look {
				look = false
				if err := sites.look(ctx); err != nil {
					return nil, err
				}
			}
			continue
		}
		w.Stop()
		if o != nil || err != nil {
			return o, err
		}
		pause.Wait(ctx.Done(), s.Backend().Done())
		if err := backend.ContextError(ctx); err != nil {
			return nil, err
		}
	}
}

// decision reads the decision, or makes it if names, the children of the record, allow
// that (rules 2 and 3). It reports wait if they do not. An outcome of nil without an error means that
// another process may have decided first.
func (q *proposing) decision(ctx context.Context, s *core.Session, d *transaction, names, missing []string, sites *siteWatch, late bool) (o *layout.Outcome, wait bool, err error) {
	// The states of the sites were read before these names: a vote that a gone site has
	// cast is among the names.
	gone := slices.IndexFunc(missing, func(site string) bool { return sites.gone[site] })
	switch {
	case slices.Contains(names, nodepath.Base(d.decision())):
		o, err = d.outcome(ctx, s, nil)
	case d.lost(names) != nil:
		err = d.lost(names)
	case len(missing) == 0:
		o, err = d.decide(ctx, s, &layout.Outcome{Commit: true, By: "proposer"}, d.commitOps()...)
	case late || !time.Now().Before(d.rec.Due()):
		o, err = d.abort(ctx, s, "proposer", lateVotes)
	case gone >= 0:
		o, err = d.abort(ctx, s, "proposer", notServed(missing[gone]))
	default:
		wait = true
	}
	return o, wait, err
}

// finish removes the nodes that keep the record: the live nodes, and the open node if
// the proposer has received the decision (told). If it has not, it gave up: then the
// transaction is aborted if it is undecided, so that the sites need not wait for the
// deadline. finish continues for as long as the client lives, and is a clean-up that
// Close waits for.
func (q *proposing) finish(ctx context.Context, u *core.CleanUp, d *transaction, told bool) {
	q.c.OverSessions(ctx, func(s *core.Session) {
		s.Retry(ctx, u, "finish a transaction", d.path, func(ctx context.Context) error {
			if err := q.leave(ctx, s, d, told); err != nil || told || q.other {
				return err
			}
			// The Propose that leaves last sees no other live node.
			there, err := q.giveUp(ctx, s, d)
			if err != nil || there.zxid == 0 {
				return err
			}
			return there.collectSoon(ctx, s)
		})
	})
}

// leave removes this Propose's nodes that keep the record, and the record if no other
// node keeps it (rule 8).
func (q *proposing) leave(ctx context.Context, s *core.Session, d *transaction, told bool) error {
	gone := slices.Clone(q.lives)
	if told && !d.rec.Keep {
		gone = append(gone, d.open())
	}
	ops := make([]backend.Op, len(gone))
	for i, path := range gone {
		ops[i] = backend.Delete(path, backend.AnyVersion)
	}
	if _, err := s.Backend().Commit(ctx, ops...); err != nil {
		for _, path := range gone { // some were gone, or the outcome is unknown
			if err := s.Remove(ctx, path); err != nil {
				return err
			}
		}
	}
	if err := s.Backend().Err(); err != nil || d.zxid == 0 {
		return err
	}
	return d.collectSoon(ctx, s)
}

// giveUp aborts the transaction if it exists, is undecided, and no other Propose of
// it is under way (rule 3). It returns the transaction that exists.
func (q *proposing) giveUp(ctx context.Context, s *core.Session, d *transaction) (*transaction, error) {
	for {
		if err := s.Backend().Sync(ctx, d.path); err != nil {
			return nil, err
		}
		there, err := q.load(ctx, s, q.id, nil)
		if errs.IsNotFound(err) || errs.IsDecode(err) {
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		names, _, err := s.Backend().Children(ctx, d.path, nil)
		if errs.IsNotFound(err) {
			return there, nil
		}
		if err != nil {
			return nil, err
		}
		another := slices.ContainsFunc(names, func(name string) bool {
			return layout.IsLive(name) && !slices.Contains(q.lives, d.path+"/"+name)
		})
		// Another transaction with the same id is not aborted by this call.
		if there.rec.Mark != d.rec.Mark || another || !slices.Contains(names, nodepath.Base(there.open())) ||
			slices.Contains(names, nodepath.Base(there.decision())) {
			return there, nil
		}
		o, err := there.abort(ctx, s, "proposer", "given up by its proposer")
		if o != nil || err != nil {
			return there, err
		}
	}
}
