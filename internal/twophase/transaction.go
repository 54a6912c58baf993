package twophase

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// The two-phase commit of the ZooKeeper recipe guide, in a form that does not block
// and costs O(n) messages.
//
// Nodes, below the path of the recipe:
//
//	tx/<id>                       the record: sites, deadline, payload, a mark (a GUID)
//	tx/<id>/open-<mark>           the proposer has not received the decision yet
//	tx/<id>/live-<guid>           ephemeral: a Propose of the transaction is under way
//	tx/<id>/yes-<czxid>-<site>    a vote; czxid is that of the record, in hex
//	tx/<id>/decision-<czxid>      commit or abort, by which process and why
//	sites/<site>/<id>~<mark>      the branch of a site; the directory is its inbox
//	serving/<site>                the lock of the process that serves a site
//	present/<site>                ephemeral: a process serves the site
//
// The record, the open node, the live node of its proposer and all branches are
// created in one commit. So the czxid of a branch is that of its record. With
// FailUnserved that commit also checks that the sites are present. A Propose that
// waits for votes watches their presence, unless it has AwaitUnserved. Neither costs
// a round trip. A Propose that finds a site gone aborts by rule 3. The observation
// decides nothing by itself: a site that is gone may have voted before, and may come
// back.
//
// Rules:
//
//  1. The decision is one node, created once and never changed.
//  2. Commit is decided by {check the vote of every site, create the decision}, and
//     only by a Propose that waits for it. (The record of a dead proposer can be
//     created late, after a retry of it was committed and done with. If the sites
//     could decide to commit it among themselves, they would carry it out twice.)
//  3. Abort is decided by {check open, create the decision}. Any process may do so: a
//     site that votes no, a site or a proposer at the deadline, a proposer that gives
//     up, Recover when the proposer is gone. So no process waits for a dead
//     coordinator.
//  4. A site votes once in its branch: the version goes from 0 to 1. Yes is {check
//     open, set the branch at version 0, create the vote}. No is {check open, set the
//     branch at version 0, create the decision: abort}. A site that wants to abort
//     alone must vote so in its branch. That it sees no vote of its own proves
//     nothing: an old write of its own may still be applied.
//  5. A vote names its transaction: by the czxid in its name, and by the mark in the
//     names of the branch and of the open node that it checks. It creates no parents.
//     So a late vote is refused, and never counts in a later transaction with the
//     same id.
//  6. A site that has voted yes waits for the decision. It may decide, by rule 3, but
//     never acts without a decision.
//  7. A site acknowledges when its Commit or Abort has returned nil: {delete the
//     branch at the version it has seen, delete the vote}. Without its branch, its
//     functions are not called for the transaction any more.
//  8. The record is removed when only the decision is left in it: every vote was
//     acknowledged and the proposer has received the decision. A commit thus waits
//     for all sites, an abort for those that voted yes. A process that has deleted
//     its own part of the record looks whether it was the last. The last one removes
//     the record: {delete the decision, delete the record}, which the service refuses
//     while the record has other children. A live node goes with its session, and no
//     process looks then. So a process that sees only live nodes beside the decision
//     waits for them.
//  9. A branch without its record: if the branch does not hold a yes, the transaction
//     was aborted, since commit takes all votes. If it does, an outsider has
//     destroyed the record: the site is in doubt, and never guesses. The same holds
//     for a decision or a record that cannot be read, and for a record with neither a
//     decision nor its open node. Open is deleted only after the decision was created,
//     and the decision only together with the record; so an outsider has deleted the
//     decision. One listing of the record shows that, even a stale one.
//  10. One process serves a site at a time, under the lock. Its commits check the
//     lock's guard, so a process that was replaced writes nothing any more. The other
//     rules rely on the lock for one thing only: no callback runs after an
//     acknowledgement.
//  11. Each of these commits has names or versions of its own. So when the outcome of
//     a commit is unknown, a Sync and a read reveal it.

// A Decision is the outcome of a transaction, for callers.
type Decision struct {
	ID     string
	Zxid   int64 // of the transaction, zero with an error
	Commit bool
	By     string // the decider: "proposer", "recovery", or "site " and its name
	Reason string // of an abort
}

// space is the path below which the transactions of one two-phase commit are, with
// the names of their nodes.
type space struct {
	c    *core.Client
	path nodepath.Path
}

func (x *space) recipeDir() kinds.RecipeDir {
	return kinds.NewRecipeDir(x.path.Full(), layout.KindTwoPhase)
}

func (x *space) records() string            { return x.path.Full() + "/tx" }
func (x *space) inbox(site string) string   { return x.path.Full() + "/sites/" + site }
func (x *space) serving(site string) string { return x.path.Given() + "/serving/" + site }
func (x *space) present(site string) string { return x.path.Full() + "/present/" + site }
func (x *space) record(id string) string    { return x.records() + "/" + id }
func (x *space) branch(d *transaction, s string) string {
	return x.inbox(s) + "/" + layout.BranchName(d.id, d.rec.Mark)
}

// siteLock is the lock of the process that serves the site.
func (x *space) siteLock(site string) *line.Lock {
	return line.NewPart(x.c, x.serving(site), x.recipeDir())
}

// subject is the subject of trace events of op about node.
func (x *space) subject(op, node string) trace.Subject {
	return trace.Subject{Recipe: "twophase", Path: x.path.Full(), Op: op, Node: node}
}

// checkID returns ErrInvalid if id cannot be an id or the name of a site on the service.
func (x *space) checkID(what, id string) error { return checkID(x.c.Rules().CheckPath, what, id) }

func checkID(checkPath func(string) error, what, id string) error {
	if len(id) > layout.MaxID {
		return fmt.Errorf("%w: the %s has more than %d bytes", backend.ErrInvalid, what, layout.MaxID)
	}
	if !layout.IsID(id) || checkPath("/a/"+id) != nil {
		return fmt.Errorf("%w: the %s %.40q cannot be the name of a node", backend.ErrInvalid, what, id)
	}
	return nil
}

// transaction is one transaction.
type transaction struct {
	id   string
	path string // of the record
	zxid int64  // the czxid of the record, which identifies the transaction
	rec  layout.Record
}

func (d *transaction) open() string            { return d.path + "/" + layout.OpenName(d.rec.Mark) }
func (d *transaction) decision() string        { return d.path + "/" + layout.DecisionName(d.zxid) }
func (d *transaction) vote(site string) string { return d.path + "/" + layout.VoteName(d.zxid, site) }

// result returns the decision o in the form for callers.
func (d *transaction) result(o *layout.Outcome) Decision {
	return Decision{ID: d.id, Zxid: d.zxid, Commit: o.Commit, By: o.By, Reason: o.Reason}
}

// load reads the transaction called id. A watch that is not nil is armed for changes
// and for the deletion of its record. With ErrDecode the transaction has only its id,
// path and zxid.
func (x *space) load(ctx context.Context, s *core.Session, id string, w *backend.Watch) (*transaction, error) {
	d := &transaction{id: id, path: x.record(id)}
	data, stat, err := s.Backend().Get(ctx, d.path, w)
	if err != nil {
		return nil, err
	}
	d.zxid = stat.Czxid
	if d.rec, err = layout.ParseRecord(data); err != nil {
		return d, &backend.Error{Op: "get", Path: d.path, Err: err}
	}
	return d, nil
}

// errBadDecision reports that a decision was made, and an outsider has overwritten
// it.
var errBadDecision = fmt.Errorf("%w: the decision node holds no decision: %w", errs.ErrInDoubt, errs.ErrDecode)

// outcome reads the decision. It returns nil if there is none yet. A watch that is
// not nil is armed in that case, and only then. If the decision cannot be read, the
// error is errBadDecision.
func (d *transaction) outcome(ctx context.Context, s *core.Session, w *backend.Watch) (*layout.Outcome, error) {
	path := d.decision()
	if w != nil {
		_, err := s.Backend().Exists(ctx, path, w)
		if errs.IsNotFound(err) {
			return nil, nil
		}
		w.Stop()
		if err != nil {
			return nil, err
		}
	}
	data, _, err := s.Backend().Get(ctx, path, nil)
	if err != nil {
		if errs.IsNotFound(err) {
			err = nil
		}
		return nil, err
	}
	o, ok := layout.ParseOutcome(data)
	if !ok {
		return nil, &backend.Error{Op: "get", Path: path, Err: errBadDecision}
	}
	return o, nil
}

// lost returns the ErrInDoubt for a decision that an outsider has deleted, or nil if it
// was not deleted (rule 9). names are the children of the record, from one listing.
func (d *transaction) lost(names []string) error {
	if slices.Contains(names, nodepath.Base(d.open())) || slices.Contains(names, nodepath.Base(d.decision())) {
		return nil
	}
	return &backend.Error{Op: "get", Path: d.decision(), Err: errs.ErrInDoubt}
}

// checkLost lists the record and returns lost's error. It returns errs.ErrAgain if the record
// is gone.
func (d *transaction) checkLost(ctx context.Context, s *core.Session) error {
	names, stat, err := s.Backend().Children(ctx, d.path, nil)
	switch {
	case errs.IsNotFound(err), err == nil && stat.Czxid != d.zxid:
		return errs.ErrAgain
	case err != nil:
		return err
	}
	return d.lost(names)
}

// commitOps returns the conditions under which commit is decided: all votes exist
// (rule 2).
func (d *transaction) commitOps() []backend.Op {
	var ops []backend.Op
	for _, site := range d.rec.Sites {
		ops = append(ops, backend.Check(d.vote(site), backend.AnyVersion))
	}
	return ops
}

// abort decides abort (rule 3); see decide.
func (d *transaction) abort(ctx context.Context, s *core.Session, by, reason string) (*layout.Outcome, error) {
	return d.decide(ctx, s, &layout.Outcome{By: by, Reason: reason}, backend.Check(d.open(), backend.AnyVersion))
}

// decide creates the decision o under conditions (rule 1), and returns it if this call created
// it. If it returns neither a decision nor an error, the caller must read: another
// process has decided, or the record is gone, or the outcome of the commit is
// unknown.
func (d *transaction) decide(ctx context.Context, s *core.Session, o *layout.Outcome, conds ...backend.Op) (*layout.Outcome, error) {
	_, err := s.Backend().Commit(ctx, append(conds, backend.Create(d.decision(), o.Encode(), backend.Persistent))...)
	switch {
	case err == nil:
		return o, nil
	case errs.MayRepeat(ctx, err):
		return nil, s.Backend().Sync(ctx, d.path)
	case errors.Is(err, backend.ErrExists), errs.IsNotFound(err):
		return nil, nil
	}
	return nil, err
}

// collect removes the record if only the decision is left in it (rule 8). A process that has
// deleted its own part of a record calls it afterwards, so the last one finds nothing
// else. If only live nodes of other Proposes are left beside the decision, collect
// returns one of them: they can go with their sessions, and no process would look
// then.
func (d *transaction) collect(ctx context.Context, s *core.Session) (live string, err error) {
	pause := core.NewPauses(s.Client())
	for {
		names, stat, err := s.Backend().Children(ctx, d.path, nil)
		if errs.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		live := ""
		if i := slices.IndexFunc(names, layout.IsLive); i >= 0 {
			live = d.path + "/" + names[i]
			names = slices.DeleteFunc(names, layout.IsLive)
		}
		if stat.Czxid != d.zxid || len(names) != 1 || names[0] != nodepath.Base(d.decision()) {
			return "", nil
		}
		if live != "" {
			return live, nil
		}
		_, err = s.Backend().Commit(ctx, backend.Delete(d.decision(), backend.AnyVersion), backend.Delete(d.path, backend.AnyVersion))
		switch {
		case errs.IsNotFound(err), errors.Is(err, backend.ErrNotEmpty):
			return "", nil
		case err == nil, !errs.MayRepeat(ctx, err):
			return "", err
		}
		pause.Wait(ctx.Done(), s.Backend().Done())
	}
}

// collectLast is collect, and waits for the live nodes of other Proposes.
func (d *transaction) collectLast(ctx context.Context, s *core.Session) error {
	for {
		live, err := d.collect(ctx, s)
		if err == nil && live != "" {
			_, err = s.AwaitDeletion(ctx, live, nil)
		}
		if err != nil || live == "" {
			return err
		}
	}
}

// collectSoon is collect, and waits for the live nodes of other Proposes in the
// background.
func (d *transaction) collectSoon(ctx context.Context, s *core.Session) error {
	live, err := d.collect(ctx, s)
	if err == nil && live != "" {
		s.Client().GoWork(func() {
			s.Retry(context.Background(), nil, "remove", d.path, func(ctx context.Context) error { return d.collectLast(ctx, s) })
		})
	}
	return err
}
