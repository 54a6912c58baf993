package coord

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/go-coord/coord/internal/election"
)

// ElectionOptions may be nil.
type ElectionOptions struct {
	// ID identifies the candidate to callers of Leader, WatchLeader and Contenders.
	// It is text, and need not be unique.
	ID string

	// Data is published with the ID: an address, for example.
	Data []byte

	// StepDownOnSuspend ends a term with ErrSuspended as soon as the client loses
	// contact with the service, even if contact returns a moment later. Without it a
	// leader stays leader until its session is lost. The client declares that loss
	// before the service lets another candidate lead, with the limits that the package
	// comment lists.
	StepDownOnSuspend bool
}

// An Election chooses one leader among the candidates on one path (the leader election of
// the ZooKeeper recipe guide, without the herd effect). Candidates lead in the order of
// their arrival. No candidate polls, and a change of leader wakes at most two candidates,
// however many there are.
//
// A leader has a Term, which is a Hold: it can be lost, it reports the loss, and it carries
// a guard for transactions and a token that grows from one leader to the next. The
// guarantees are those of a Mutex.
//
// Run is the safest way to lead: it calls a function while the candidate leads, with a
// context that ends with the term. Leadership is for programs that select on a channel.
// Both are built on Campaign. Each campaign is a separate candidate, also within one
// client.
//
// Curator's LeaderLatch and an Election elect one leader on one path, and so does kazoo's
// Election with an option, without which two lead at the same time: see layout.md, which
// also describes the nodes.
//
// An Election is safe for concurrent use and needs no closing.
type Election struct{ e election.Election }

// NewElection returns the election at path. It does no I/O; a bad path is
// reported by the first call.
func NewElection(c *Client, path string, o *ElectionOptions) *Election {
	var opts ElectionOptions
	if o != nil {
		opts = *o
	}
	return &Election{election.New(c.core(), path, election.Config(opts))}
}

// Campaign waits until the candidate leads, or ctx ends. ctx bounds the campaign
// only, not the term. A session that is lost during the wait does not end the
// campaign: it continues at the tail of the queue with the next session. If Campaign
// returns an error, the candidate's node is deleted, as with Mutex.Lock.
//
// The errors are those of Mutex.Lock. If the service has no space, Run, Leadership and Terms wait
// instead.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	t, err := e.e.Campaign(ctx)
	return termOf(t), err
}

// Run campaigns, and when the candidate leads it calls f, with a context that ends
// with the term. Then it resigns. If the term was lost before f returned, Run
// campaigns again and calls f again with the next term. By then the earlier call of f
// has returned, so f never runs twice at a time. f should return when its context
// ends. An error that f returns after a loss is only logged.
//
// Run returns when f returns while the term stands, or after f has released the term.
// The result is the error of f joined with the error of resigning. (This includes the
// end of ctx during a term: the context of f ends, and the error of f counts.) Run
// also returns when ctx ends while the candidate does not lead, with the error of
// ctx; and when it cannot campaign, see Campaign. ErrInvalid: f is nil.
func (e *Election) Run(ctx context.Context, f func(ctx context.Context, t *Term) error) error {
	if f == nil {
		return e.e.Run(ctx, nil)
	}
	return e.e.Run(ctx, func(ctx context.Context, t *election.Term) error { return f(ctx, termOf(t)) })
}

// Leadership campaigns, and sends each term that it gains on the channel. It campaigns
// again after every loss and every Release of a term, until ctx ends; then the channel is
// closed. A program that leaves a loop over the channel must end ctx, since otherwise the
// candidate continues; a loop over Terms does not need that.
//
// A received term belongs to its receiver until the receiver releases it, also after ctx
// has ended: a receiver that stops working without Release leads until its session ends. A
// term that nobody receives is resigned after one session timeout, or when ctx ends. A late
// receiver may get a term that is Done already, but never an ended term that is not Done.
//
// If campaigning fails (see Campaign), the last element of the channel is not
// a term that the candidate led: its Token is zero, its Path is empty, it is Done, and its
// Guard is refused. Err is the error of Campaign, which matches neither ErrLost nor
// ErrReleased.
func (e *Election) Leadership(ctx context.Context) <-chan *Term {
	return election.Leadership(ctx, &e.e, termOf)
}

// Terms returns an iterator that campaigns and yields each term that it gains. The
// candidate leads while the body runs, unless the term is lost: the body should end when the
// term is Done, or work under its Context. When the body returns, the loop releases the term,
// and campaigns again. If the body breaks off or panics, the loop releases the term, ends, and
// does not campaign again.
//
// If ctx ends, the loop ends after the running body, without another pair. If campaigning
// fails, the last pair is nil and the error of Campaign. A Release that fails ends
// the loop in the same way, unless the body breaks off or the term was lost: see Hold.Release.
func (e *Election) Terms(ctx context.Context) iter.Seq2[*Term, error] {
	terms := e.e.Terms(ctx)
	return func(yield func(*Term, error) bool) {
		terms(func(t *election.Term, err error) bool { return yield(termOf(t), err) })
	}
}

// Revoke asks the leader to resign, for a planned hand-over. It returns when the term has ended,
// by consent, by force or otherwise. The leader learns of the request by Term.Revoked. Without
// a leader, Revoke returns nil. In all else it is as Mutex.Revoke. The candidate that arrived
// first leads next; a former leader that campaigns again is behind all waiting candidates.
func (e *Election) Revoke(ctx context.Context, o *RevokeOptions) error {
	return e.e.Revoke(ctx, o.config())
}

// A Term is the time for which a candidate leads. Release resigns. A Term is safe for
// concurrent use.
type Term struct {
	*Hold
	t *election.Term
}

// termOf returns the face of a term.
func termOf(t *election.Term) *Term {
	if t == nil {
		return nil
	}
	return &Term{&Hold{t.Hold()}, t}
}

// engine returns the engine of the term. A Term that no campaign has returned has only its Hold.
func (t *Term) engine() *election.Term {
	if t.t == nil {
		return election.TermOf(t.core())
	}
	return t.t
}

// Announce publishes, with data, that the leader has taken over and is ready: the
// acknowledgement of the recipe guide. Callers of Leader and WatchLeader see it. A
// candidate leads as soon as it is the head of the queue, and may have much to do
// before it can serve. A later call replaces the data. The announcement ends at the same
// moment as the term. Announce costs two requests. If the term has ended, the
// error is that of Err. If ctx ends while the outcome is unknown, the error matches
// ErrUncertain: the announcement may be visible.
func (t *Term) Announce(ctx context.Context, data []byte) error {
	return t.engine().Announce(ctx, data)
}

// A Candidate is a contender for leadership.
type Candidate struct {
	ID      string
	Data    []byte
	Path    string    // of its node, absolute
	Token   int64     // the Token of its term, present or future
	Session int64     // the session that owns the node
	Since   time.Time // when it arrived, by the service's clock

	// Ready reports that the candidate leads and has called Announce, with
	// Announcement.
	Ready        bool
	Announcement []byte
}

// A Leader is the candidate that leads, or reports that no candidate leads; see Vacant.
type Leader struct {
	Candidate

	// Err is set only in the last element that WatchLeader sends, if WatchLeader
	// cannot continue.
	Err error
}

// Vacant reports that no candidate leads.
func (l Leader) Vacant() bool { return l.Token == 0 && l.Err == nil }

// String returns a text for logs.
func (l Leader) String() string {
	switch {
	case l.Err != nil:
		return l.Err.Error()
	case l.Vacant():
		return "nobody"
	}
	return fmt.Sprintf("%q (token %d, ready %t)", l.ID, l.Token, l.Ready)
}

func leaderOf(x election.Candidate, err error) Leader { return Leader{Candidate(x), err} }

// Leader returns the candidate that leads, which is the head of the queue. That
// candidate may not know yet that it leads, or may be about to leave. The zero
// Leader, which is Vacant, means that no candidate leads. The result is a snapshot of
// a past moment, but not older than the call, also on an ensemble. Leader costs three
// requests, four with an announcement.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	x, err := e.e.Leader(ctx)
	return leaderOf(x, nil), err
}

// WatchLeader returns a channel that delivers the current leader, and then every
// change: another leader, no leader, an announcement. The channel keeps the latest
// element only: a slow reader misses intermediate elements, never the newest.
// A lost session does not end it. The channel is closed when ctx ends. If
// WatchLeader fails permanently, the last element has Err set. It costs nothing while
// nothing changes; candidates that come and go behind the leader do not wake it.
//
// While the client has no contact, the latest element remains; WatchState reports the
// loss of contact.
func (e *Election) WatchLeader(ctx context.Context) <-chan Leader {
	return election.Watch(ctx, &e.e, leaderOf)
}

// Leaders is WatchLeader as a loop: it yields the elements of WatchLeader until ctx ends, the
// watch fails for good, or the body breaks off. The end of the loop ends the watch, and waits
// for that.
func (e *Election) Leaders(ctx context.Context) iter.Seq[Leader] {
	return each(ctx, e.WatchLeader)
}

// Contenders lists the leader and the candidates that wait, in order. The result is a
// snapshot of a past moment, as for Leader. Contenders costs two requests, and one read
// for each candidate and for an announcement. If the service has batches, one request
// carries 128 of these reads.
func (e *Election) Contenders(ctx context.Context) ([]Candidate, error) {
	list, err := e.e.Contenders(ctx)
	return faces(list, func(x election.Candidate) Candidate { return Candidate(x) }), err
}
