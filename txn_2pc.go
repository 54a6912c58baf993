package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// The two-phase commit of the ZooKeeper recipe guide, in a form that does not
// block and costs O(n) messages.
//
// Nodes, below the path of the recipe:
//
//	tx/<id>                       the record: sites, deadline, payload, a mark (a GUID)
//	tx/<id>/open-<mark>           the proposer has not been told the decision yet
//	tx/<id>/live-<guid>           ephemeral: a Propose of it is under way
//	tx/<id>/yes-<czxid>-<site>    a vote; czxid is that of the record, in hex
//	tx/<id>/decision-<czxid>      commit or abort, by whom and why
//	sites/<site>/<id>~<mark>      the branch of a site; the directory is its inbox
//	serving/<site>                the lock of the process that serves a site
//	present/<site>                ephemeral: it does so
//
// The record, the open node, the live node of its proposer and all branches are
// made in one commit. So the czxid of a branch is that of its record. By FailUnserved
// the commit also checks that the sites are present, and a Propose that waits for votes
// watches that: neither costs a round trip. What it learns makes it abort by rule 3, and
// decides nothing by itself: a site that is gone may have voted before, and may come
// back.
//
// Rules:
//
//  1. The decision is one node, created once. Nobody changes it.
//  2. Commit is decided by {check the vote of every site, create the decision},
//     and only by a Propose that waits for it. (The record of a proposer that is
//     dead can land late, after a retry of it was committed and done with. Sites
//     that commit it among themselves would do the same thing twice.)
//  3. Abort is decided by {check open, create the decision}. Anybody may do so:
//     a site that votes no, whoever meets the deadline, a proposer that gives up,
//     Recover when the proposer is gone. So nobody waits for a dead coordinator.
//  4. A site votes once in its branch: the version goes from 0 to 1. Yes is
//     {check open, set the branch at version 0, create the vote}. No is {check open,
//     set the branch at version 0, create the decision: abort}. A site that wants
//     to abort alone must vote so in its branch. That it sees no vote of its own
//     proves nothing: an old write of its own may still land.
//  5. A vote names the transaction: by the czxid in its name, by the mark in the
//     names of the branch and of the open node that it checks. It makes no
//     parents. So what lands late lands nowhere, and never in a later transaction
//     with the same id.
//  6. A site that has voted yes waits for the decision. It may make it, by rule 3,
//     but never acts without it.
//  7. A site acknowledges when its Commit or Abort has returned nil:
//     {delete the branch at the version it has seen, delete the vote}. No branch,
//     no more calls.
//  8. The record goes when nothing but the decision is left in it: every vote was
//     acknowledged and the proposer was told. A commit thus waits for all sites,
//     an abort for those that voted yes. Whoever deletes his own part last looks,
//     and removes it: {delete the decision, delete the record}, which the service
//     refuses while there are children. A live node goes with its session, and then
//     nobody looks: whoever sees that only such nodes are left beside the decision
//     waits for them.
//  9. A branch without its record: if it does not hold a yes, the
//     transaction was aborted, since commit takes all votes. If it does, an outsider
//     has destroyed the record: in doubt, and never a guess. Likewise with a decision
//     or a record that cannot be read.
//  10. One process serves a site at a time, by the lock. Its commits check the
//     lock's guard, so a process that was replaced writes nothing any more. The
//     other rules do not rely on it but for this: no callback runs after an
//     acknowledgement.
//  11. Each commit of these has names or versions of its own, so that when its
//     outcome is unknown, Sync and a look tell it.

// MaxSites is how many sites a transaction can have.
const MaxSites = 100

// maxDeadline is the end of the year 9999, in milliseconds since 1970: the last time
// that JSON can tell.
const maxDeadline = 253402300799999

// maxID is the length that an id or a site's name may have, in bytes.
const maxID = 200

// A Decision is how a transaction ended.
type Decision struct {
	ID     string
	Zxid   int64 // of the transaction, as in Branch; zero with an error
	Commit bool
	By     string // who decided: "proposer", "recovery", or "site " and its name
	Reason string // of an abort
}

// txSpace is where the transactions of one recipe stand.
type txSpace struct {
	c    *Client
	path recipePath
}

func (x *txSpace) ground() ground { return ground{dir: x.path.full, recipe: kindTwoPhase} }

func (x *txSpace) records() string                { return x.path.full + "/tx" }
func (x *txSpace) inbox(site string) string       { return x.path.full + "/sites/" + site }
func (x *txSpace) serving(site string) string     { return x.path.given + "/serving/" + site }
func (x *txSpace) present(site string) string     { return x.path.full + "/present/" + site }
func (x *txSpace) record(id string) string        { return x.records() + "/" + id }
func (x *txSpace) branch(d *dtx, s string) string { return x.inbox(s) + "/" + d.id + "~" + d.rec.Mark }

// siteLock is the lock of the process that serves the site.
func (x *txSpace) siteLock(site string) *Mutex {
	m := NewMutex(x.c, x.serving(site), nil)
	m.whole = x.ground()
	return m
}

// where is what events of op are about.
func (x *txSpace) subject(op, node string) trace.Subject {
	return trace.Subject{Recipe: "twophase", Path: x.path.full, Op: op, Node: node}
}

// checkID returns ErrInvalid for what cannot be an id or the name of a site.
func checkID(what, id string) error {
	if len(id) > maxID {
		return fmt.Errorf("%w: %s of more than %d bytes", ErrInvalid, what, maxID)
	}
	if id == "" || strings.Contains(id, "/") || backend.CheckPath("/"+id) != nil {
		return fmt.Errorf("%w: %s %.40q, want the name of a node", ErrInvalid, what, id)
	}
	return nil
}

// parseBranch reads the name of a branch. Everything else in an inbox is foreign.
func parseBranch(name string) (id, mark string, ok bool) {
	i := len(name) - guidLen - 1
	if i < 1 || name[i] != '~' || !isGUID(name[i+1:]) || !speakable(name) {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// txRecord is what the record holds.
type txRecord struct {
	Mark     string   `json:"mark"`
	Sites    []string `json:"sites"`
	Deadline int64    `json:"deadline"` // milliseconds since 1970, by the proposer's clock
	Keep     bool     `json:"keep,omitempty"`
	Payload  []byte   `json:"payload,omitempty"`
}

// sane reports whether it can be a record: what it names must be names of nodes.
func (r *txRecord) sane() bool {
	return len(r.Mark) == guidLen && isGUID(r.Mark) && len(r.Sites) <= MaxSites &&
		!slices.ContainsFunc(r.Sites, func(site string) bool { return checkID("site", site) != nil })
}

// dtx is one transaction.
type dtx struct {
	id   string
	path string // of the record
	zxid int64  // its czxid: what the transaction is told from others by
	rec  txRecord
}

func (d *dtx) open() string            { return d.path + "/open-" + d.rec.Mark }
func (d *dtx) decision() string        { return fmt.Sprintf("%s/decision-%x", d.path, d.zxid) }
func (d *dtx) vote(site string) string { return fmt.Sprintf("%s/yes-%x-%s", d.path, d.zxid, site) }
func (d *dtx) deadline() time.Time     { return time.UnixMilli(min(d.rec.Deadline, maxDeadline)) }

// livePrefix begins the names of the live nodes of a record.
const livePrefix = "live-"

// outcome is what the decision holds.
type outcome struct {
	Commit bool   `json:"commit"`
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
}

func (o *outcome) decision(d *dtx) Decision {
	return Decision{ID: d.id, Zxid: d.zxid, Commit: o.Commit, By: o.By, Reason: o.Reason}
}

// load reads the transaction called id. A watch that is not nil is armed for changes
// and for the end of its record. With ErrDecode the transaction has no more than its
// path and zxid.
func (x *txSpace) load(ctx context.Context, s *session, id string, w *backend.Watch) (*dtx, error) {
	d := &dtx{id: id, path: x.record(id)}
	data, stat, err := s.b.Get(ctx, d.path, w)
	if err != nil {
		return nil, err
	}
	d.zxid = stat.Czxid
	if err := json.Unmarshal(data, &d.rec); err != nil || !d.rec.sane() {
		d.rec = txRecord{}
		return d, &backend.Error{Op: "get", Path: d.path, Err: fmt.Errorf("%w: not the record of a transaction", ErrDecode)}
	}
	return d, nil
}

// errBadDecision: a decision was made, and an outsider has overwritten it.
var errBadDecision = fmt.Errorf("%w: not a decision: %w", ErrInDoubt, ErrDecode)

// outcome reads the decision, nil if there is none yet. A watch that is not nil is
// armed then, and only then. A decision that cannot be read is errBadDecision.
func (d *dtx) outcome(ctx context.Context, s *session, w *backend.Watch) (*outcome, error) {
	path := d.decision()
	if w != nil {
		_, err := s.b.Exists(ctx, path, w)
		if isNotFound(err) {
			return nil, nil
		}
		w.Stop()
		if err != nil {
			return nil, err
		}
	}
	data, _, err := s.b.Get(ctx, path, nil)
	if err != nil {
		if isNotFound(err) {
			err = nil
		}
		return nil, err
	}
	o, err := decodeOutcome(data)
	if err != nil {
		return nil, &backend.Error{Op: "get", Path: path, Err: err}
	}
	return o, nil
}

// decodeOutcome reads what a decision holds. What does not say whether it is a commit is
// no abort.
func decodeOutcome(data []byte) (*outcome, error) {
	var o struct {
		outcome
		Commit *bool `json:"commit"`
	}
	if err := json.Unmarshal(data, &o); err != nil || o.Commit == nil {
		return nil, errBadDecision
	}
	o.outcome.Commit = *o.Commit
	return &o.outcome, nil
}

// commitOps decides commit, if all votes are there.
func (d *dtx) commitOps() []backend.Op {
	var ops []backend.Op
	for _, site := range d.rec.Sites {
		ops = append(ops, backend.Check(d.vote(site), backend.AnyVersion))
	}
	return ops
}

// abort decides abort; see decide.
func (d *dtx) abort(ctx context.Context, s *session, by, reason string) (*outcome, error) {
	return d.decide(ctx, s, &outcome{By: by, Reason: reason}, backend.Check(d.open(), backend.AnyVersion))
}

// decide makes the decision o under conditions, and returns it if it was this call
// that made it. If it returns nothing, there is something to be read: somebody else
// has decided, or the record is gone, or the outcome of the commit is not known.
func (d *dtx) decide(ctx context.Context, s *session, o *outcome, conds ...backend.Op) (*outcome, error) {
	_, err := s.b.Commit(ctx, append(conds, backend.Create(d.decision(), o.encode(), backend.Persistent))...)
	switch {
	case err == nil:
		return o, nil
	case mayRepeat(ctx, err):
		return nil, s.b.Sync(ctx, d.path)
	case errors.Is(err, backend.ErrExists), isNotFound(err):
		return nil, nil
	}
	return nil, err
}

func (o *outcome) encode() []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err) // three plain fields
	}
	return data
}

// collect removes the record if nothing but the decision is left in it. Who
// deletes his own part of a record calls it afterwards, so the last one finds
// nothing else. If all that is left beside it are the live nodes of other Proposes, which
// can go with their sessions and then nobody looks, it returns one of them.
func (d *dtx) collect(ctx context.Context, s *session) (live string, err error) {
	pause := pauses{c: s.c}
	for {
		names, stat, err := s.b.Children(ctx, d.path, nil)
		if isNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		live := ""
		if i := slices.IndexFunc(names, isLive); i >= 0 {
			live = d.path + "/" + names[i]
			names = slices.DeleteFunc(names, isLive)
		}
		if stat.Czxid != d.zxid || len(names) != 1 || names[0] != base(d.decision()) {
			return "", nil
		}
		if live != "" {
			return live, nil
		}
		_, err = s.b.Commit(ctx, backend.Delete(d.decision(), backend.AnyVersion), backend.Delete(d.path, backend.AnyVersion))
		switch {
		case isNotFound(err), errors.Is(err, backend.ErrNotEmpty):
			return "", nil
		case err == nil, !mayRepeat(ctx, err):
			return "", err
		}
		pause.wait(ctx.Done(), s.b.Done())
	}
}

// collectLast is collect, and waits for the live nodes of others.
func (d *dtx) collectLast(ctx context.Context, s *session) error {
	for {
		live, err := d.collect(ctx, s)
		if err == nil && live != "" {
			_, err = s.awaitDeletion(ctx, live, nil)
		}
		if err != nil || live == "" {
			return err
		}
	}
}

// collectSoon is collect, and waits for the live nodes of others in the background.
func (d *dtx) collectSoon(ctx context.Context, s *session) error {
	live, err := d.collect(ctx, s)
	if err == nil && live != "" {
		s.c.goWork(func() {
			s.retry(context.Background(), nil, "remove", d.path, func(ctx context.Context) error { return d.collectLast(ctx, s) })
		})
	}
	return err
}

// clip shortens a reason to what a node should hold.
func clip(reason string) string {
	const most = 1000
	if len(reason) > most {
		reason = reason[:most]
	}
	return strings.ToValidUTF8(reason, "?")
}
