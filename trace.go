package coord

import (
	"context"
	"time"
)

// An Event tells Options.Trace what happens inside the recipes. The set of
// events is closed; use a type switch.
type Event interface{ event() }

// WaitBegan: an acquisition found its turn not come and waits.
type WaitBegan struct {
	Path string // of the waiter's node, or of the recipe while it waits for another caller of the same client
}

// Granted: an acquisition succeeded.
type Granted struct {
	Path   string
	Token  int64
	Waited time.Duration // since the acquisition began
}

// Requeued: a waiter lost its place, and takes a new one at the tail.
type Requeued struct {
	Path string
	Err  error
}

// HoldLost: a hold ended early.
type HoldLost struct {
	Path  string
	Token int64
	Err   error
}

// HoldReleased: a hold was released.
type HoldReleased struct {
	Path  string
	Token int64
	Held  time.Duration
}

// Downgraded: a writer's hold became a reader's.
type Downgraded struct {
	Path  string // of the reader's node
	Token int64
}

// RevocationRead: a holder found that somebody asks for what it holds.
type RevocationRead struct {
	Path       string
	Revocation Revocation
}

// Resolved: a request with an unknown outcome was found out.
type Resolved struct {
	Path    string
	Applied bool
}

// TxDecided: a site that had voted yes has learned the decision.
type TxDecided struct {
	ID      string
	Site    string
	Commit  bool
	InDoubt time.Duration // from the vote, or from when the site was served again, to the decision
}

// StateChanged: the client's session changed.
type StateChanged struct{ State State }

func (WaitBegan) event()      {}
func (Granted) event()        {}
func (Requeued) event()       {}
func (HoldLost) event()       {}
func (HoldReleased) event()   {}
func (Downgraded) event()     {}
func (RevocationRead) event() {}
func (Resolved) event()       {}
func (TxDecided) event()      {}
func (StateChanged) event()   {}

// emit calls the client's Trace. It is called with no lock held. Callers build
// the event behind a check of c.trace where that costs anything.
func (c *Client) emit(ctx context.Context, e Event) {
	if c.trace != nil {
		c.trace(ctx, e)
	}
}

// now is the time if anybody wants to know it.
func (c *Client) now() time.Time {
	if c.trace == nil {
		return time.Time{}
	}
	return time.Now()
}
