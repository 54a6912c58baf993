// Package trace has the events that coord.Options.Trace is called with.
package trace

import "time"

// An Event tells Options.Trace what happens inside the recipes. The set of
// events is closed; use a type switch, and expect more of them in later versions.
//
// There is an event where an operator gains by it: where something waits, is
// granted, lost or given back, changes hands, or turns out other than was asked
// for. What returns to its caller at once, with a result or an error, has none:
// Values and Counters, a Txn, reads, a TryLock that finds the lock taken.
//
// Events come in the order in which they happened, as far as they depend on each
// other. The events of one acquisition have the same ID, and come in this order: WaitBegan, PositionChanged and WaiterRequeued, as often as that
// happens; then HoldGranted, or else WaitEnded if it had to wait; while it is held,
// LeaderAnnounced, HoldDowngraded and RevocationRead; at the end HoldReleased or HoldLost. A
// Leave that waits for others goes on under the ID of its Entry. Of a queue, the
// wait for items ends with WaitEnded, and each item that is claimed then has an ID
// of its own, for ItemClaimed and ItemSettled. A hold that ends with its client is
// told of too.
type Event interface {
	// About says what the event is about. For StateChanged and EventsDropped it is zero.
	About() Subject
	event()
}

// Subject says what an event is about.
type Subject struct {
	// Recipe is "mutex", "rwmutex", "semaphore", "election", "barrier",
	// "doublebarrier", "queue", "priorityqueue", "delayqueue", "group", "cache" or
	// "twophase", as in Inspection. The locks of LockAll, and the one under which a
	// Participant serves its site, are told of as what they are.
	Recipe string

	// Path is that of the recipe: absolute, the namespace included. There are as
	// many of them as a program has recipes, so it can be a label of a metric.
	Path string

	// Op is the call, as in errors: "lock", "rlock", "acquire", "enter" and so on.
	// It stays that of the acquisition for all that comes of it, which for items is
	// "take", however they were taken. Empty where it is no single call's doing.
	Op string

	// Node is the node that the event is about, absolute; empty if there is none
	// yet. It is new with each acquisition, so it is no label.
	Node string

	// ID tells one acquisition from the others: of all clients, as far as random
	// numbers can. Zero for events of none.
	ID uint64
}

// About returns w. All events have it by embedding.
func (w Subject) About() Subject { return w }

// Reason is why a hold or a place was lost, as a word that can be a label of a metric.
type Reason string

// The reasons. ReasonDeleted: the node was deleted from outside. ReasonRevoked: the same,
// by a Revoke. ReasonSuspended: contact was lost, and the recipe was told to end then.
const (
	ReasonSessionLost Reason = "session_lost"
	ReasonDeleted     Reason = "deleted"
	ReasonRevoked     Reason = "revoked"
	ReasonSuspended   Reason = "suspended"
	ReasonClosed      Reason = "closed" // the client
	ReasonOther       Reason = "other"
)

// WaitBegan: a call waits: for its turn, for the members of a round, for an item,
// for room in a queue. It comes anew with each place that one acquisition takes:
// behind another caller of the same client, where there is no node yet; in line;
// and in line again after WaiterRequeued.
type WaitBegan struct {
	Subject
	Ahead int // how many are before it in line, holders included; -1: there is no line, or it is not known
}

// PositionChanged: a waiter found that it has moved up in line. It is told when
// the line is read for other reasons, so most steps forward do not show.
type PositionChanged struct {
	Subject
	Ahead int // as in WaitBegan
}

// WaiterRequeued: a waiter lost its place, and takes a new one at the tail.
type WaiterRequeued struct {
	Subject
	Reason Reason
	Err    error // why: its session was lost, its node was deleted, the directory replaced
}

// WaitEnded: a wait that WaitBegan told of ended without HoldGranted: with what was
// waited for where that is nothing to be held (a barrier that is removed, room in a
// queue, items, a double barrier that all have left), or without it.
type WaitEnded struct {
	Subject
	Waited time.Duration // since the call began
	Err    error         // nil, or why it was given up: what the call returns
}

// HoldGranted: an acquisition succeeded. The items of queues have events of their own.
type HoldGranted struct {
	Subject
	Token  int64         // as Hold.Token
	Weight int           // permits of a Semaphore; 1 otherwise
	Waited time.Duration // since the call began: what it took, also if nobody was in the way
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
	Held  time.Duration // from the grant to the beginning of Release
	Err   error         // what Release returns: a loss that only the removal found, or why the node is not removed yet
}

// HoldDowngraded: a writer's hold became a reader's.
type HoldDowngraded struct {
	Subject // the node is the reader's
	Token   int64
}

// RevocationRead: a holder found a request to give up what it holds.
type RevocationRead struct {
	Subject
	By     string // who asks, as in coord.Revocation
	Reason string
	Force  bool // the node will be deleted if the holder does not release
}

// RevocationSent: a Revoke of ours has asked a holder to give a lock up, or has
// taken it away.
type RevocationSent struct {
	Subject // the node is the holder's
	By      string
	Reason  string
	Forced  bool // the holder's node was deleted
}

// LeaderAnnounced: a leader has told that it has taken over.
type LeaderAnnounced struct {
	Subject
	Token int64
	After time.Duration // since the grant
}

// BarrierSet: a Barrier was set by this client, or found set by its Set.
type BarrierSet struct{ Subject }

// BarrierRemoved: a Barrier was removed by this client, or found removed.
type BarrierRemoved struct{ Subject }

// RoundOpened: this client's was the commit that opened a round of a
// DoubleBarrier. (If the reply to that commit was lost, nobody tells of it.) The
// members, this one among them or not, then have HoldGranted.
type RoundOpened struct {
	Subject
	Members int
}

// ItemsPut: items were put into a queue, for certain. Those of a Txn are not told.
type ItemsPut struct {
	Subject
	Items []string // their ids, in order; not to be changed
}

// ItemClaimed: an item was taken out of a queue.
type ItemClaimed struct {
	Subject               // the node is the item's
	Item    string        // its id
	Attempt int           // more than 1: it was delivered before
	Token   int64         // of the Item as a Hold
	Waited  time.Duration // since the call began
}

// ItemSettled: the claim of an item has ended, but for what may go on in the
// background.
type ItemSettled struct {
	Subject
	Item    string
	Attempt int
	Outcome ItemOutcome
	Delay   time.Duration // of a Nack
	Held    time.Duration // from the claim to its end; zero if the item was not claimed
	Reason  Reason        // of ItemLost
	Err     error         // of ItemLost: what Hold.Err returns; else why it is not done yet, or cannot be
}

// ItemOutcome is how the claim of an item ended.
type ItemOutcome int8

// The outcomes. ItemAcked: the item is gone, by Ack or Pop. ItemNacked: it goes to
// another consumer, perhaps later. ItemReturned: likewise, and it does not count as
// an attempt: it was released. ItemLost: the claim was lost, and the item goes to
// another consumer. ItemDead: it was moved to the dead letters, since it was taken
// too often or cannot be decoded.
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

// MemberJoined: a member of this client's is in its group.
type MemberJoined struct {
	Subject
	Member string // its id
	Token  int64  // of the incarnation
	Again  bool   // after MemberLeft with Rejoins
}

// MemberLeft: a member of this client's is in its group no more. It comes again,
// with Rejoins false, if a member that tried to join again gives that up.
type MemberLeft struct {
	Subject
	Member  string
	Err     error // why; nil after Leave
	Rejoins bool  // it tries to join again
}

// CacheSynced: a Cache has read its tree: when it began, and after each
// reconnection.
type CacheSynced struct {
	Subject
	Nodes int           // in the copy
	Took  time.Duration // since it began to read
	Again bool          // not the first time
}

// CacheStopped: a Cache's Run has ended for another reason than the end of its
// context.
type CacheStopped struct {
	Subject
	Err error // what Run returns: the limit is reached, for example
}

// ProposalMade: a transaction stands, made by this Propose or found. The node is its
// record.
type ProposalMade struct {
	Subject
	Proposal string // its ID
	Sites    int
}

// ProposalVoted: a site of this client's has voted.
type ProposalVoted struct {
	Subject
	Proposal string
	Site     string
	Yes      bool
}

// ProposalDecided: a decision was learned: by Propose or Recover, where Site is empty, and
// the node is the transaction's record; or by a site that had voted yes, where it is
// the branch.
type ProposalDecided struct {
	Subject
	Proposal string
	Site     string
	Commit   bool
	By       string        // who decided, as in Decision
	InDoubt  time.Duration // of a site: from the vote, or from when the site was served again, to the decision
	Took     time.Duration // of Propose: since it began
}

// ProposalAcked: a site of this client's has carried a decision out, and is done.
type ProposalAcked struct {
	Subject
	Proposal string
	Site     string
	Commit   bool
}

// ProposalInDoubt: a site that has voted yes cannot learn the decision any more: see
// ErrInDoubt.
type ProposalInDoubt struct {
	Subject  // the node is the branch
	Proposal string
	Site     string
}

// OutcomeResolved: a request with an unknown outcome was found out. It is about that one
// request of whatever recipe: Recipe and Path are empty, and Node says what it was
// to write first.
type OutcomeResolved struct {
	Subject
	Applied bool // if not, it is sent again
}

// StateChanged: the client's session changed. After a change to PhaseConnected, holds
// and waits go on, or begin on the next session.
type StateChanged struct {
	Subject
	Phase   string // coord.Phase as a word: "connected", "suspended", "lost", "closed"
	Session int64  // the id of the present or latest session
	Err     error  // why there is no session: set with "lost" and "closed"
}

// EventsDropped: events are missing here, of whatever kind, since too many waited for a
// Trace that was slow or blocked. What is counted by events is wrong from here on.
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
func (CacheSynced) event()     {}
func (CacheStopped) event()    {}
func (ProposalMade) event()    {}
func (ProposalVoted) event()   {}
func (ProposalDecided) event() {}
func (ProposalAcked) event()   {}
func (ProposalInDoubt) event() {}
func (OutcomeResolved) event() {}
func (StateChanged) event()    {}
func (EventsDropped) event()   {}
