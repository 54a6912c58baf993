package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// proposing is one Propose under way.
type proposing struct {
	*txSpace
	id    string
	rec   txRecord
	begun bool     // something was sent
	found bool     // the transaction has been seen to stand
	told  bool     // and Trace was told of it
	tx    *dtx     // it, once it was made or joined
	maybe bool     // an earlier session may have made it
	other bool     // it is not what was proposed here
	lives []string // the live nodes it may have, one for each session

	unserved Unserved
}

// lateVotes is why the deadline aborts a transaction.
const lateVotes = "votes were missing at the deadline"

// errMaybe: the session was lost while the record was being made.
var errMaybe = fmt.Errorf("the transaction may stand or not: %w", backend.ErrUncertain)

// errOther: another transaction has the id.
var errOther = fmt.Errorf("other sites or another payload: %w", ErrDuplicate)

// enter makes the transaction, or joins it if it stands, so that it stays until
// this Propose is done with it.
func (q *proposing) enter(ctx context.Context, s *session) (*dtx, error) {
	d := &dtx{id: q.id, path: q.record(q.id), rec: q.rec}
	live := d.path + "/" + livePrefix + s.c.newGUID(d.path)
	q.lives = append(q.lives, live)
	if q.maybe && !q.found {
		err := s.b.Sync(ctx, d.path)
		if err == nil {
			_, err = q.load(ctx, s, q.id, nil)
		}
		switch {
		case isNotFound(err):
			return d, errMaybe // it has come and gone, or may still come, or neither
		case isOver(err):
			return d, err
		case err != nil:
			return d, maybe(err)
		}
		q.found = true
	}
	pause := pauses{c: s.c}
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
		// It stands. The live node first: what is read after it stays.
		q.begun = true
		_, err := s.b.Commit(ctx, backend.Create(live, nil, backend.Ephemeral))
		switch {
		case err == nil, errors.Is(err, backend.ErrExists): // our own: the name is
		case isNotFound(err) && q.found:
			return d, ErrInDoubt
		case isNotFound(err):
			continue // it has gone meanwhile
		case mayRepeat(ctx, err):
			pause.wait(ctx.Done(), s.b.Done())
			continue
		default:
			return d, err
		}
		there, err := q.load(ctx, s, q.id, nil)
		switch {
		case isNotFound(err):
			return d, ErrInDoubt // under our live node: an outsider's doing
		case err != nil:
			return d, err
		case !slices.Equal(there.rec.Sites, q.rec.Sites) || !bytes.Equal(there.rec.Payload, q.rec.Payload):
			q.other = true
			return there, errOther
		case q.tx != nil && q.tx.rec.Mark != there.rec.Mark:
			q.other = true // ours is done with, and this is the next one with its id
			return there, ErrInDoubt
		}
		q.found, q.tx = true, there
		return there, nil
	}
}

// recordOps are the operations that make the record. From the index branches on they make
// a branch for each site, and from checks on they check that each site is served, if that
// is asked for.
func (q *proposing) recordOps(d *dtx, live string) (ops []backend.Op, branches, checks int, err error) {
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

// create makes the record and all that belongs to it. It reports false if there
// is a record with this id.
func (q *proposing) create(ctx context.Context, s *session, d *dtx, live string) (bool, error) {
	ops, branches, checks, err := q.recordOps(d, live)
	if err != nil {
		return false, err
	}
	if err := s.occupy(ctx, q.ground()); err != nil {
		return false, err
	}
	pause := pauses{c: s.c}
	unsure := false // an earlier attempt may have been applied
	for {
		_, err := s.b.Commit(ctx, ops...)
		q.begun = q.begun || err == nil || isUncertain(err)
		if unsure && isOver(err) && !isUncertain(err) {
			return false, maybe(backend.Uncertain(err))
		}
		unsure = unsure || isUncertain(err)
		i := blamed(err)
		switch {
		case err == nil:
			return true, nil
		case mayRepeat(ctx, err):
			// If it was applied the next attempt finds the record: in this session
			// it cannot have come and gone, for the live node would have kept it.
			pause.wait(ctx.Done(), s.b.Done())
		case isUncertain(err):
			return false, maybe(err)
		case i == 0 && errors.Is(err, backend.ErrExists):
			return false, nil
		case i == 0 && isNotFound(err):
			if err := s.occupyAnew(ctx, q.ground()); err != nil {
				return false, err
			}
			if err := s.makePart(ctx, q.records(), q.ground()); err != nil {
				return false, err
			}
		case i >= checks && isNotFound(err):
			// Not if one takes over from another at this moment.
			if err := q.awaitSite(ctx, s, d, d.rec.Sites[i-checks]); err != nil {
				return false, err
			}
		case i >= branches && isNotFound(err):
			return false, fmt.Errorf("site %q was never served: %w", d.rec.Sites[i-branches], backend.ErrNotFound)
		default:
			return false, err
		}
	}
}

// awaitSite waits while a site is about to be served, at most until the deadline.
func (q *proposing) awaitSite(ctx context.Context, s *session, d *dtx, site string) error {
	v := newSiteWatch(q.txSpace, s)
	defer v.set.Stop()
	late := fmt.Errorf("%s: %w", notServed(site), backend.ErrNotFound)
	ctx, cancel := context.WithDeadlineCause(ctx, d.deadline(), late)
	defer cancel()
	return v.awaitSite(ctx, site)
}

// missing returns the sites whose votes are not among the children of the record.
func (d *dtx) missing(names []string) []string {
	return slices.DeleteFunc(slices.Clone(d.rec.Sites), func(site string) bool {
		return slices.Contains(names, base(d.vote(site)))
	})
}

// maybe says that it is unknown whether the record was made, and why.
func maybe(err error) error { return fmt.Errorf("%w (%w)", errMaybe, err) }

// await waits for the decision, and makes it when it can be made.
func (q *proposing) await(ctx context.Context, s *session, d *dtx) (*outcome, error) {
	deadline := time.NewTimer(time.Until(d.deadline()))
	defer deadline.Stop()
	late := false // also when the clock was set back since the timer was
	sites, watched := newSiteWatch(q.txSpace, s), q.unserved == AwaitUnserved
	defer sites.set.Stop()
	look := false // watches on sites have fired that were not looked at yet
	pause := pauses{c: s.c}
	for {
		w := backend.NewWatch()
		names, stat, err := s.b.Children(ctx, d.path, w)
		if err == nil && d.zxid == 0 {
			d.zxid = stat.Czxid // we have just made it
		}
		if isNotFound(err) || err == nil && stat.Czxid != d.zxid {
			err = ErrInDoubt
		}
		if err != nil {
			w.Stop()
			return nil, err
		}
		missing := d.missing(names)
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
				case <-s.b.Done():
					return nil, s.b.Err()
				case <-ctx.Done():
					w.Stop()
					return nil, backend.ContextError(ctx)
				}
			}
			// A change of the record comes first, also when both are there.
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
		pause.wait(ctx.Done(), s.b.Done())
		if err := backend.ContextError(ctx); err != nil {
			return nil, err
		}
	}
}

// decision reads the decision, or makes it if the children of the record, which names has,
// let it be made. It reports wait if they do not. An outcome of nil without an error is
// that somebody else may have been faster.
func (q *proposing) decision(ctx context.Context, s *session, d *dtx, names, missing []string, sites *siteWatch, late bool) (o *outcome, wait bool, err error) {
	// As it was before these names were read: a vote that it has cast is among them.
	gone := slices.IndexFunc(missing, func(site string) bool { return sites.gone[site] })
	switch {
	case slices.Contains(names, base(d.decision())):
		o, err = d.outcome(ctx, s, nil)
	case len(missing) == 0:
		o, err = d.decide(ctx, s, &outcome{Commit: true, By: "proposer"}, d.commitOps()...)
	case late || !time.Now().Before(d.deadline()):
		o, err = d.abort(ctx, s, "proposer", lateVotes)
	case gone >= 0:
		o, err = d.abort(ctx, s, "proposer", notServed(missing[gone]))
	default:
		wait = true
	}
	return o, wait, err
}

// finish takes back what holds the record: the live nodes, and if its proposer was
// told the decision, the open node. If he was not told, he gave up; then the
// transaction is aborted if it is undecided, so that the sites need not wait for
// the deadline. It goes on for as long as the client lives, and is a clean-up that Close
// waits for.
func (q *proposing) finish(ctx context.Context, u *cleanUp, d *dtx, told bool) {
	q.c.overSessions(ctx, func(s *session) {
		s.retry(ctx, u, "finish a transaction", d.path, func(ctx context.Context) error {
			if err := q.leave(ctx, s, d, told); err != nil || told || q.other {
				return err
			}
			// Whoever leaves last sees nobody else.
			there, err := q.giveUp(ctx, s, d)
			if err != nil || there.zxid == 0 {
				return err
			}
			return there.collectSoon(ctx, s)
		})
	})
}

// leave removes what holds the record, and the record if nobody else holds it.
func (q *proposing) leave(ctx context.Context, s *session, d *dtx, told bool) error {
	gone := slices.Clone(q.lives)
	if told && !d.rec.Keep {
		gone = append(gone, d.open())
	}
	ops := make([]backend.Op, len(gone))
	for i, path := range gone {
		ops[i] = backend.Delete(path, backend.AnyVersion)
	}
	if _, err := s.b.Commit(ctx, ops...); err != nil {
		for _, path := range gone { // some were gone, or who knows
			if err := s.remove(ctx, path); err != nil {
				return err
			}
		}
	}
	if err := s.b.Err(); err != nil || d.zxid == 0 {
		return err
	}
	return d.collectSoon(ctx, s)
}

// giveUp decides the transaction, if it is there and undecided and nobody else
// proposes it. It returns the transaction that is there.
func (q *proposing) giveUp(ctx context.Context, s *session, d *dtx) (*dtx, error) {
	for {
		if err := s.b.Sync(ctx, d.path); err != nil {
			return nil, err
		}
		there, err := q.load(ctx, s, q.id, nil)
		if isNotFound(err) || isDecode(err) {
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		names, _, err := s.b.Children(ctx, d.path, nil)
		if isNotFound(err) {
			return there, nil
		}
		if err != nil {
			return nil, err
		}
		another := slices.ContainsFunc(names, func(name string) bool {
			return isLive(name) && !slices.Contains(q.lives, d.path+"/"+name)
		})
		// Another one with the same id is not ours to end.
		if there.rec.Mark != d.rec.Mark || another || slices.Contains(names, base(there.decision())) {
			return there, nil
		}
		o, err := there.abort(ctx, s, "proposer", "given up by its proposer")
		if o != nil || err != nil {
			return there, err
		}
	}
}
