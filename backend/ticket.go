package backend

import (
	"fmt"
	"io"
	"time"
)

// A Ticket is what another process needs to end a session: see Reporter, and the function End of each backend.
// Each program with the ticket can end the session. A Ticket formats without the password.
type Ticket struct {
	Service  string        // "zookeeper", "etcd" or "postgres"
	ID       int64         // Session.ID
	Password []byte        `json:"-"` // nil if the service has none
	Timeout  time.Duration // Session.Timeout
	Server   string        // the address where the session began: the first one to try
}

// String formats the ticket without the password.
func (t Ticket) String() string {
	return fmt.Sprintf("%s session 0x%x of %s", t.Service, uint64(t.ID), t.Server)
}

// Format makes all verbs print String.
func (t Ticket) Format(f fmt.State, _ rune) { io.WriteString(f, t.String()) }

// A Reporter learns of the sessions of a backend, so that a supervisor can end them when the process has died. The
// service would keep them, and what they hold, for the session timeout.
//
// Its methods are called on goroutines of the session. They must not block.
type Reporter interface {
	// Opened is called for a new session before the session can hold anything. The callee may keep t, and must
	// not change its Password. There may be no session with this ticket, if opening it fails afterwards.
	Opened(t Ticket)

	// Ended is called when the service has answered that a session is over: after Close, and when it has expired. It is also
	// called when opening the session has failed: the service may have it, but it holds nothing. It is
	// not called for a session that is lost by its own clock, which the service may still have. It can be called twice.
	Ended(service string, id int64)
}
