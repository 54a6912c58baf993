package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/twophase"
)

// MaxSites is the most sites that a transaction can have: 100.
const MaxSites = layout.MaxSites

// CoordinatorOptions may be nil.
type CoordinatorOptions[T any] struct {
	// Codec of the payload. The zero value is JSON. Participants need the same.
	Codec Codec[T]

	// Timeout bounds the wait for the votes of a Proposal without a Deadline. The
	// default is 30 s.
	Timeout time.Duration

	// KeepRecords keeps every record until Forget is called for it. Then a retry of
	// Propose is safe even if the process died after Propose had returned and before
	// it took note of the decision, and if another process has recovered the
	// transaction.
	KeepRecords bool

	// Unserved says what Propose does about a site that no process serves. The default is
	// FailUnserved.
	Unserved Unserved
}

// Unserved says what Propose does about a site that no process serves, because the
// process was stopped or its session has ended. If another process holds the lock of
// the site or waits for it, the site counts as served: that process will vote.
type Unserved int8

const (
	// FailUnserved makes Propose return ErrNotFound, which names the site, before
	// anything is created. A transaction that exists aborts as with AbortUnserved.
	FailUnserved Unserved = iota
	// AbortUnserved makes the transaction abort as soon as a site that has not voted
	// is not served. The reason names the site.
	AbortUnserved
	// AwaitUnserved makes the transaction wait for its sites until the deadline, also
	// for sites that a process serves again before the deadline.
	AwaitUnserved
)

// String returns the name of the policy, in lower case.
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

// A Coordinator proposes transactions to sites and decides them: the two-phase commit of
// the ZooKeeper recipe guide. Sites vote on such a transaction; writes that the service
// applies at once are a [Txn]. A [Participant] serves each site, in any process. A
// transaction commits if every site votes yes, and aborts otherwise. All sites learn the
// same decision, also after crashes.
//
// The protocol does not block. A site that has voted yes waits for the decision, but at
// most until the deadline of the transaction: after that any site decides. A dead site
// does not delay the decision: if it has not voted, the transaction aborts when its session
// has ended; see Unserved. If a site is dead when the decision is commit, it commits when a
// process serves it again.
//
// The sites are not isolated: a reader can see some sites committed before others. If an
// operator deletes the nodes of a transaction, it can be in doubt: see ErrInDoubt.
//
// A transaction can have MaxSites sites, or fewer if the service takes less in one commit
// (backend.Limits), and a payload of at most some 700 kB. Its requests grow linearly with
// the number of sites.
//
// A Coordinator is safe for concurrent use and needs no closing. layout.md describes its
// nodes.
type Coordinator[T any] struct {
	co    *twophase.Coordinator
	codec Codec[T]
}

// A Proposal is a transaction to be proposed.
type Proposal[T any] struct {
	// ID names the transaction: the name of a node, of at most 200 bytes. By the ID a
	// retry finds the first attempt.
	ID string
	// Sites are the names of the sites that vote. Each must be served, see Unserved;
	// in any case it must have been served once.
	Sites []string
	// Payload is what the sites vote on.
	Payload T
	// Deadline is the time at which the transaction is aborted if votes are missing,
	// by the clocks of the coordinator and of the sites. A process whose clock is
	// ahead may abort earlier; no clock can make sites disagree. The zero Time means
	// Timeout of the options from now; a time after the year 9999 means its end.
	Deadline time.Time
}

// A Decision is the outcome of a transaction.
type Decision struct {
	ID     string
	Zxid   int64 // of the transaction, as in Branch; zero with an error
	Commit bool
	By     string // the decider: "proposer", "recovery", or "site " and its name
	Reason string // of an abort
}

// NewCoordinator returns a coordinator of the transactions at path. It does no
// I/O; a bad path or option is reported by the first call.
func NewCoordinator[T any](c *Client, path string, o *CoordinatorOptions[T]) *Coordinator[T] {
	if o == nil {
		o = &CoordinatorOptions[T]{}
	}
	return &Coordinator[T]{
		twophase.NewCoordinator(c.core(), path, twophase.Options{Timeout: o.Timeout, KeepRecords: o.KeepRecords, Unserved: twophase.Unserved(o.Unserved)}),
		o.Codec.orJSON(),
	}
}

// Propose proposes a transaction and returns its decision. An abort is not an error; Reason
// says why. Decision.ID is set in any case.
//
// While the record of a transaction exists, a proposal with its ID waits for the same
// decision. So after a crash or an error, propose it again. The record is removed in the
// background after a Propose or Recover has returned the decision and the sites have
// acknowledged; with KeepRecords, by Forget. Without KeepRecords the next proposal is a new
// transaction in two cases: a process crashes before it has stored the decision, or a Propose
// loses its session, and the Recover of another process, which takes the proposer for dead,
// finishes the transaction before the Propose continues. Do not reuse an ID.
//
// If ctx ends first, an undecided transaction is aborted unless another Propose of it runs.
// If the session is lost while the transaction is created, the error matches ErrUncertain;
// later losses do not end the call. Propose again in both cases.
//
// Errors: ErrDuplicate if another proposal has the ID; ErrNotFound if a site is not served,
// see Unserved; ErrInvalid; ErrTooLarge; ErrInDoubt if the decision is gone.
func (co *Coordinator[T]) Propose(ctx context.Context, p Proposal[T]) (Decision, error) {
	d, err := co.co.Propose(ctx, twophase.Proposal{
		ID: p.ID, Sites: p.Sites, Deadline: p.Deadline,
		Payload: func() ([]byte, error) { return co.codec.encode(p.Payload) },
	})
	return Decision(d), err
}

// ProposalStatus is the state of a transaction when it was read.
type ProposalStatus struct {
	ID       string
	Zxid     int64     // of the commit that created it; distinguishes it from others with its ID
	Since    time.Time // when it was created, by the service's clock
	Deadline time.Time
	Sites    []SiteStatus // in order of their names
	Decided  bool
	Decision Decision // if Decided
	Proposed bool     // a Propose of it is under way, or has just returned
	Told     bool     // its decision is not owed to a Propose or Recover any more
	InDoubt  bool     // an outsider has overwritten or deleted the decision: see ErrInDoubt
}

// SiteStatus is one site's part in a transaction.
type SiteStatus struct {
	Site         string
	Voted        bool // yes or no
	Yes          bool
	Acknowledged bool // the site is done with the transaction
	Served       bool // a Serve of the site is under way
}

// Status returns the state of the transaction. ErrNotFound: it was never proposed, or
// it is finished and its record was removed.
func (co *Coordinator[T]) Status(ctx context.Context, id string) (ProposalStatus, error) {
	st, err := co.co.Status(ctx, id)
	return proposalStatus(st), err
}

// List returns the state of every transaction that has a record, in order of their
// IDs. It costs some requests for each transaction, and some for each of their sites.
func (co *Coordinator[T]) List(ctx context.Context) ([]ProposalStatus, error) {
	list, err := co.co.List(ctx)
	return faces(list, proposalStatus), err
}

// proposalStatus returns the face of the state of a transaction.
func proposalStatus(st twophase.Status) ProposalStatus {
	return ProposalStatus{
		ID: st.ID, Zxid: st.Zxid, Since: st.Since, Deadline: st.Deadline,
		Sites:   faces(st.Sites, func(s twophase.SiteStatus) SiteStatus { return SiteStatus(s) }),
		Decided: st.Decided, Decision: Decision(st.Decision), Proposed: st.Proposed, Told: st.Told, InDoubt: st.InDoubt,
	}
}

// Recover finishes the transactions of dead proposers: it aborts undecided transactions,
// and returns the decisions that no proposer has received. It does not wait for sites.
// It waits for transactions of live proposers until their deadlines, and for those of dead
// proposers until the service has ended their sessions.
//
// Call Recover when a coordinator starts, and from time to time, since only Recover
// collects the records that dead processes have left. A transaction that Recover has
// returned is finished and its ID is free: a new proposal with that ID makes a new
// transaction. So a program that retries Propose does that before Recover, or uses
// KeepRecords, with which Recover returns every transaction until Forget is called for it.
//
// A transaction in doubt (see ErrInDoubt) is logged and left as it is; List shows it. Nodes
// that are not records are skipped. ErrKind: the path belongs to another recipe.
func (co *Coordinator[T]) Recover(ctx context.Context) ([]Decision, error) {
	list, err := co.co.Recover(ctx)
	return faces(list, decision), err
}

// Forget marks the decision of a transaction as noted by the caller: the record is
// removed as soon as every site has acknowledged. It is needed with KeepRecords only.
// A transaction without a record is forgotten already. Errors: ErrInvalid if the
// transaction is undecided; ErrInDoubt if its decision was overwritten or deleted.
func (co *Coordinator[T]) Forget(ctx context.Context, id string) error { return co.co.Forget(ctx, id) }

// RemoveSite removes a site that will never be served again. For each transaction it
// votes no if the site has not voted, or else waits for the decision, at most until the
// deadline. Then it acknowledges, and removes the site's inbox. After that a Propose with
// the site returns ErrNotFound, until a Participant serves it again. RemoveSite returns
// the commits that the site has not carried out: carry them out elsewhere if necessary.
// It logs the branches whose decision it cannot determine (ErrInDoubt). If it fails, call
// it again; the error comes with the commits that it has handled until then.
//
// ErrLocked: the site is served. ErrNotFound: it was never served. ErrKind: the path
// is another recipe's. backend.ErrNotEmpty: there are foreign nodes in its inbox.
func (co *Coordinator[T]) RemoveSite(ctx context.Context, site string) ([]Decision, error) {
	list, err := co.co.RemoveSite(ctx, site)
	return faces(list, decision), err
}

// decision returns the face of a decision.
func decision(d twophase.Decision) Decision { return Decision(d) }

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

	b *twophase.Branch // nil for a Branch that no Serve has made
}

// Token returns the fencing token of the process that serves the site, which grows from one
// such process to the next. It protects a resource of the site from a paused process, which
// could write for a transaction that its successor has undone. The resource remembers the
// highest token that it has seen for the site, over all transactions, and refuses lower
// tokens. So Abort must pass the token to the resource even if there is nothing to undo.
// (Within one process, Abort is called after Prepare has returned.) Token is zero for a
// Branch that no Serve has made.
func (b Branch[T]) Token() int64 { return b.b.Token() }

// Guard returns the condition for a Txn that this process still serves the site, and that the
// transaction is in the same state as when the function was called. In Prepare, a write under
// it is refused when the site has voted, when another process serves the site, and at the
// latest when the proposer has learned that the transaction was aborted without this site.
// If a write succeeds and the transaction aborts, Abort is called later. In the other
// functions, a write is refused when the site has acknowledged the transaction. A refused
// write never succeeds later, since names of nodes are not used again. The Guard of a Branch
// that no Serve has made is zero.
func (b Branch[T]) Guard() Guard { return Guard{b.b.Guard()} }

// Verify asks the service whether the condition of the Guard is true, and in Prepare also
// whether the transaction is undecided. Nil means that both were true when the service was
// asked; use the Guard or the Token to write safely. If another process may serve the site,
// the error matches ErrLost; if the state of the transaction has changed, ErrConflict. It
// costs three requests, or five in Prepare.
func (b Branch[T]) Verify(ctx context.Context) error { return b.b.Verify(ctx) }

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
type Participant[T any] struct{ p *twophase.Participant }

// NewParticipant returns the participant that serves the site. It does no I/O; bad
// arguments are reported by Serve.
func NewParticipant[T any](c *Client, path, site string, h Handler[T]) *Participant[T] {
	codec := h.Codec.orJSON()
	x := twophase.Handler{
		Decode:     func(path string, payload []byte) (any, error) { return codec.decodeApart(c.core(), path, payload) },
		Prepare:    onBranch(h.Prepare),
		Commit:     onBranch(h.Commit),
		Abort:      onBranch(h.Abort),
		Concurrent: h.Concurrent,
	}
	if h.InDoubt != nil {
		x.InDoubt = func(ctx context.Context, b *twophase.Branch, err error) { h.InDoubt(ctx, branch[T](b), err) }
	}
	return &Participant[T]{twophase.NewParticipant(c.core(), path, site, x)}
}

// onBranch returns f as a function that the engine calls, nil for nil.
func onBranch[T any](f func(context.Context, Branch[T]) error) func(context.Context, *twophase.Branch) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, b *twophase.Branch) error { return f(ctx, branch[T](b)) }
}

// branch returns the face of a branch.
func branch[T any](b *twophase.Branch) Branch[T] {
	payload, _ := b.Payload.(T) // the zero T if there is none
	return Branch[T]{ID: b.ID, Zxid: b.Zxid, Site: b.Site, Deadline: b.Deadline, Payload: payload, NoPayload: b.NoPayload, b: b}
}

// Serve serves the site until ctx ends, and returns the reason of its end. First it waits
// until no other process serves the site; if such a process died, that can take its
// session timeout. Then it finishes the transactions that were begun before, and serves
// new ones. A lost session does not end it.
//
// A failure of one transaction does not end it either, and is logged. While the service has no
// space (ErrNoSpace), Serve waits.
//
// If ctx ends during the acknowledgement of a transaction that all other sites have
// acknowledged, its record is removed in the background. Close waits for that.
//
// Errors: that of the context; ErrClosed; ErrDenied; ErrBadPath, ErrInvalid.
func (p *Participant[T]) Serve(ctx context.Context) error { return p.p.Serve(ctx) }
