// Package trace defines the events with which coord.Options.Trace is called.
package trace

import "time"

// An Event reports to Options.Trace a step inside the recipes. The set of events is
// closed; use a type switch, and expect more events in later versions.
//
// There are events for what an operator needs to know: a call waits, is granted, loses
// or releases a hold, hands it to another client, or ends other than requested. A call
// that returns at once, with a result or an error, has no event: Values and Counters, a
// Txn, reads, a TryLock that finds the lock taken.
//
// Events come in the order in which they happened, as far as they depend on each other.
// The events of one acquisition have the same ID, and come in this order: WaitBegan,
// PositionChanged and WaiterRequeued, any number of times; then HoldGranted, or else
// WaitEnded if the call had to wait; while the hold stands, LeaderAnnounced,
// HoldDowngraded and RevocationRead; at the end HoldReleased or HoldLost. A Leave that
// waits for others continues under the ID of its Entry. In a queue, the wait for items
// ends with WaitEnded, and each claimed item then has an ID of its own, for ItemClaimed
// and ItemSettled. A hold that ends with its client is reported too.
type Event interface {
	// About returns the subject of the event. For StateChanged, ProcessPaused and EventsDropped it is
	// zero.
	About() Subject
	event()
}

// Subject is the subject of an event.
type Subject struct {
	// Recipe is "mutex", "rwmutex", "semaphore", "election", "barrier",
	// "doublebarrier", "queue", "priorityqueue", "delayqueue", "group", "cache",
	// "twophase", "shards" or "schedule", as in inspect.Report. The locks of LockAll, and the lock under which
	// a Participant serves its site, are reported under their own recipes. Each shard of a Shards
	// is reported under the path of all of them.
	Recipe string

	// Path is the path of the recipe: absolute, the namespace included. There are as
	// many paths as a program has recipes, so it can be a label of a metric.
	Path string

	// Op is the call, as in errors: "lock", "rlock", "acquire", "enter" and so on. All
	// later events of the acquisition have the same Op, which for items is "take",
	// whatever call took them. It is empty if the event belongs to no single call.
	Op string

	// Node is the absolute path of the node concerned; empty if there is none yet. Each
	// acquisition has a new node, so it cannot be a label.
	Node string

	// ID identifies one acquisition among those of all clients, as far as random
	// numbers can. It is zero for events that belong to no acquisition.
	ID uint64
}

// About returns w. All events have this method by embedding.
func (w Subject) About() Subject { return w }

// Reason is the reason for the loss of a hold or a place, or for a dead letter, as a word that can be a label
// of a metric.
type Reason string

// The reasons. ReasonDeleted: another client deleted the node. ReasonRevoked: a Revoke
// deleted it. ReasonSuspended: contact was lost, and the recipe was configured to end
// then. ReasonTimeout: the ClaimTimeout of a queue has passed.
const (
	ReasonSessionLost Reason = "session_lost"
	ReasonDeleted     Reason = "deleted"
	ReasonRevoked     Reason = "revoked"
	ReasonSuspended   Reason = "suspended"
	ReasonTimeout     Reason = "timeout"
	ReasonClosed      Reason = "closed" // the client
	ReasonOther       Reason = "other"
)

// The reasons for which an item is moved to the dead letters, beside ReasonTimeout.
// ReasonFailed: its handler returned an error, or its consumer gave it back with Nack.
// ReasonUndecodable: the codec could not decode it. ReasonAbandoned: it was taken as often
// as MaxAttempts allows, and its last consumer died or lost its session.
const (
	ReasonFailed      Reason = "failed"
	ReasonUndecodable Reason = "undecodable"
	ReasonAbandoned   Reason = "abandoned"
)

// WaitBegan: a call waits: for its turn, for the members of a round, for an item, for
// room in a queue. It is repeated for each place that one acquisition takes: behind
// another caller of the same client, where there is no node yet; in the queue; and in
// the queue again after WaiterRequeued.
type WaitBegan struct {
	Subject
	Ahead int // contenders before it in the queue, holders included; -1: there is no queue, or it is not known
}

// PositionChanged: a waiter found that it has advanced in the queue. It is reported
// when the queue is read for other reasons, so most steps forward are not reported.
type PositionChanged struct {
	Subject
	Ahead int // as in WaitBegan
}

// WaiterRequeued: a waiter lost its place, and takes a new one at the tail.
type WaiterRequeued struct {
	Subject
	Reason Reason
	Err    error // the cause: its session was lost, its node was deleted, the directory replaced
}

// WaitEnded: a wait that WaitBegan reported ended without HoldGranted: successfully,
// where success yields no hold (a barrier that is removed, room in a queue, items, a
// double barrier that all have left), or unsuccessfully.
type WaitEnded struct {
	Subject
	Waited time.Duration // since the call began
	Err    error         // nil, or why the wait was given up: what the call returns
}

// HoldGranted: an acquisition succeeded. The items of queues have events of their own.
type HoldGranted struct {
	Subject
	Token  int64         // as Hold.Token
	Weight int           // permits of a Semaphore; 1 otherwise
	Waited time.Duration // since the call began, also if the call did not wait
}

// HoldLost: a hold ended early.
type HoldLost struct {
	Subject
	Token  int64
	Held   time.Duration // since the grant
	Reason Reason
	Err    error // what Hold.Err returns
}

// HoldReleased: a hold was released, and its Release is done.
type HoldReleased struct {
	Subject
	Token int64
	Held  time.Duration // from the grant to the start of Release
	Err   error         // what Release returns: a loss that only the removal detected, or why the node is not removed yet
}

// KeepEnded: this client has kept the node of a lock since the release of its latest hold
// (MutexOptions.Keep), and deletes it.
type KeepEnded struct {
	Subject
	Token int64 // of the holds on the node
	Asked bool  // another client came, the node has changed, or contact was made again; false: the time has passed, or the session is over
}

// HoldDowngraded: a writer's hold became a reader's.
type HoldDowngraded struct {
	Subject // the node is the reader's
	Token   int64
}

// RevocationRead: a holder read a request to give its hold up.
type RevocationRead struct {
	Subject
	By     string // the requester, as in coord.Revocation
	Reason string
	Force  bool // the node will be deleted if the holder does not release
}

// RevocationSent: a Revoke of this client has requested a holder to give a lock up, or
// has deleted its node.
type RevocationSent struct {
	Subject // the node is the holder's
	By      string
	Reason  string
	Forced  bool // the holder's node was deleted
}

// LeaderAnnounced: a leader has announced that it has taken over.
type LeaderAnnounced struct {
	Subject
	Token int64
	After time.Duration // since the grant
}

// BarrierSet: a Barrier was set by this client, or found set by its Set.
type BarrierSet struct{ Subject }

// BarrierRemoved: a Barrier was removed by this client, or found removed.
type BarrierRemoved struct{ Subject }

// RoundOpened: this client made the commit that opened a round of a DoubleBarrier. (If
// the reply to that commit was lost, no client reports it.) The members, whether this
// client is one of them or not, then have HoldGranted.
type RoundOpened struct {
	Subject
	Members int
}

// ItemsPut: items were certainly put into a queue. Items put by a Txn are not reported.
type ItemsPut struct {
	Subject
	Items []string // their ids, in order; do not change it
}

// ItemClaimed: an item was taken out of a queue.
type ItemClaimed struct {
	Subject        // the node is the item's
	Item    string // its id
	Attempt int    // more than 1: it was delivered before

	// AfterLoss: the item's previous claim was lost, as when its consumer died. It is also
	// true after the Nack, without a delay, of a client of an earlier version.
	AfterLoss bool

	Token  int64         // of the Item as a Hold
	Waited time.Duration // since the call began
}

// ItemSettled: the claim of an item has ended, except for work that may continue in the
// background.
type ItemSettled struct {
	Subject
	Item    string
	Attempt int
	Outcome ItemOutcome
	Delay   time.Duration // of a Nack
	Held    time.Duration // from the claim to its end; zero if the item was not claimed
	Reason  Reason        // of ItemLost and ItemDead
	Err     error         // of ItemLost: what Hold.Err returns; otherwise why the settlement is not complete yet, or cannot be
}

// ItemOutcome is how the claim of an item ended.
type ItemOutcome int8

// The outcomes. ItemAcked: the item is deleted, by Ack or Pop. ItemNacked: it goes to
// another consumer, perhaps later. ItemReturned: it was released; it goes to another
// consumer, and the claim does not count as an attempt. ItemLost: the claim was lost,
// and the item goes to another consumer. ItemDead: it was moved to the dead letters,
// because it was taken too often, its handler buried it, or it cannot be decoded.
const (
	ItemAcked ItemOutcome = iota + 1
	ItemNacked
	ItemReturned
	ItemLost
	ItemDead
)

// String returns the outcome as a word.
func (o ItemOutcome) String() string {
	switch o {
	case ItemAcked:
		return "acked"
	case ItemNacked:
		return "nacked"
	case ItemReturned:
		return "returned"
	case ItemLost:
		return "lost"
	case ItemDead:
		return "dead"
	}
	return "unknown"
}

// MemberJoined: a member of this client is in its group.
type MemberJoined struct {
	Subject
	Member string // its id
	Token  int64  // of the incarnation
	Again  bool   // after MemberLeft with Rejoins
}

// MemberLeft: a member of this client is no longer in its group. It is repeated, with
// Rejoins false, if a member that tried to join again gives up.
type MemberLeft struct {
	Subject
	Member  string
	Err     error // the reason; nil after Leave
	Rejoins bool  // it tries to join again
}

// ShardsAssigned: a member of this client has computed which shards it ought to own, because the
// members have changed. The shards move afterwards: each acquisition is a HoldGranted, and each
// that it gives up a HoldReleased or HoldLost, under the same recipe and path.
type ShardsAssigned struct {
	Subject
	Member  string // its id
	Members int    // of which it is one
	Shards  int    // that it ought to own
	Gained  int    // of those, which it did not have to own before
	Lost    int    // shards that it need not own any more
}

// ShardsOwned: the number of shards that a member of this client owns has changed, or one of the
// numbers beside it. Shards that come or go together are one event. The numbers are totals, so the
// latest event of a member is right even if earlier ones were dropped. A member whose loop is over
// owns none.
type ShardsOwned struct {
	Subject
	Member string // its id
	Owned  int    // shards whose lock it has
	Moving int    // of those, which it was asked to give up
	Ought  int    // shards that it ought to own
}

// RunBegan: the function of a Schedule is called.
type RunBegan struct {
	Subject // the node is the claim's
	Planned time.Time
	Attempt int           // more than 1: an earlier claim was abandoned
	Asked   bool          // by RunNow
	Late    time.Duration // since the planned time, by the service's clock
	Missed  int           // planned times before it that were left out, at most 1000; 0 for a further attempt
	Token   int64         // of the Run as a Hold
}

// RunEnded: a run of a Schedule has ended. A run with the outcome RunLost is reported by the process that has lost
// it. The leader, in this process or in another one, then reports it with RunAbandoned.
type RunEnded struct {
	Subject
	Planned time.Time
	Attempt int
	Outcome RunOutcome
	Took    time.Duration // of the function
	Reason  Reason        // of RunLost
	Err     error         // of RunLost: what Hold.Err returns; otherwise why the outcome is not recorded
}

// RunOutcome is how a run of a Schedule has ended, as a word that can be a label of a metric.
type RunOutcome string

// The outcomes. RunDone: the function has returned nil. RunFailed: it has returned an error, panicked or ended its
// goroutine. RunReturned: Schedule.Run ended before the function was called. RunAbandoned: the claim
// has ended before the function returned, or Schedule.Run had to end. RunReturned is only an
// outcome of records, RunLost only of events.
const (
	RunDone      RunOutcome = "done"
	RunFailed    RunOutcome = "failed"
	RunReturned  RunOutcome = "returned"
	RunAbandoned RunOutcome = "abandoned"
	RunLost      RunOutcome = "lost"
)

// CacheSynced: a Cache has read its tree: when it began, and after each
// reconnection.
type CacheSynced struct {
	Subject
	Nodes int           // in the copy
	Took  time.Duration // since it began to read
	Again bool          // not the first time
}

// CacheStopped: the Run of a Cache has ended for another reason than the end of its
// context.
type CacheStopped struct {
	Subject
	Err error // what Run returns: the limit is reached, for example
}

// ProposalMade: a transaction exists, created by this Propose or found. The node is its
// record.
type ProposalMade struct {
	Subject
	Proposal string // its ID
	Sites    int
}

// ProposalVoted: a site of this client has voted.
type ProposalVoted struct {
	Subject
	Proposal string
	Site     string
	Yes      bool
}

// ProposalDecided: a decision was learned: by Propose or Recover, where Site is empty
// and the node is the transaction's record; or by a site that had voted yes, where the
// node is the branch.
type ProposalDecided struct {
	Subject
	Proposal string
	Site     string
	Commit   bool
	By       string        // the decider, as in Decision
	InDoubt  time.Duration // of a site: from the vote, or from the time when the site was served again, to the decision
	Took     time.Duration // of Propose: since it began
}

// ProposalAcked: a site of this client has carried out a decision, and is done.
type ProposalAcked struct {
	Subject
	Proposal string
	Site     string
	Commit   bool
}

// DecisionsUndone: how many decided transactions a site of this client has to carry out has changed,
// or how many of these fail. The node is the inbox of the site.
type DecisionsUndone struct {
	Subject
	Site    string
	Undone  int // decisions for which Commit or Abort still has to return nil, or whose acknowledgment is missing
	Failing int // of these, transactions whose Commit or Abort has failed
}

// ProposalInDoubt: a site that has voted yes can no longer learn the decision: see
// ErrInDoubt.
type ProposalInDoubt struct {
	Subject  // the node is the branch
	Proposal string
	Site     string
}

// OutcomeResolved: the unknown outcome of a request was determined. The event refers to
// one request of any recipe: Recipe and Path are empty, and Node is the first node that
// the request was to write.
type OutcomeResolved struct {
	Subject
	Applied bool // if not, the request is sent again
}

// StateChanged: the client's session changed. After a change to PhaseConnected, holds
// and waits continue, or begin on the next session.
type StateChanged struct {
	Subject
	Phase   string // coord.Phase as a word: "connected", "suspended", "lost", "closed"
	Session int64  // the id of the present or latest session
	Err     error  // why there is no session: set with "lost" and "closed"
	Again   bool   // connected, and not for the first time: after "suspended" or "lost"
}

// ProcessPaused: the process, or the machine, did not run for more than a third of the session timeout.
// Holds can have been lost meanwhile, and calls have taken longer, without a fault of the service.
type ProcessPaused struct {
	Subject
	For time.Duration // at least; the pause was longer by an eighth of the session timeout at most
}

// EventsDropped: events of any kind are missing here, because too many were pending for
// a Trace that was slow or blocked. Counts of events are wrong from here on.
type EventsDropped struct {
	Subject
	Events int // how many
}

func (WaitBegan) event()       {}
func (PositionChanged) event() {}
func (WaiterRequeued) event()  {}
func (WaitEnded) event()       {}
func (HoldGranted) event()     {}
func (HoldLost) event()        {}
func (HoldReleased) event()    {}
func (HoldDowngraded) event()  {}
func (KeepEnded) event()       {}
func (RevocationRead) event()  {}
func (RevocationSent) event()  {}
func (LeaderAnnounced) event() {}
func (BarrierSet) event()      {}
func (BarrierRemoved) event()  {}
func (RoundOpened) event()     {}
func (ItemsPut) event()        {}
func (ItemClaimed) event()     {}
func (ItemSettled) event()     {}
func (MemberJoined) event()    {}
func (MemberLeft) event()      {}
func (ShardsAssigned) event()  {}
func (ShardsOwned) event()     {}
func (RunBegan) event()        {}
func (RunEnded) event()        {}
func (CacheSynced) event()     {}
func (CacheStopped) event()    {}
func (ProposalMade) event()    {}
func (ProposalVoted) event()   {}
func (ProposalDecided) event() {}
func (ProposalAcked) event()   {}
func (DecisionsUndone) event() {}
func (ProposalInDoubt) event() {}
func (OutcomeResolved) event() {}
func (StateChanged) event()    {}
func (ProcessPaused) event()   {}
func (EventsDropped) event()   {}
