// Package status shows what a process does with coord: an http.Handler with probes for an
// orchestrator or a load balancer, a page for people, and the same as JSON.
//
//	st := status.New(nil)
//	c, err := st.Open(ctx, b, nil) // in place of coord.Open
//	http.Handle("/coord/", st)
//
// Open passes events on to the Trace of its options, so oteltrace works beside it. One Handler can
// open several clients.
//
// # Paths
//
// The last element of the path selects what the Handler serves, so it can be mounted anywhere:
//
//	…/healthz  whether the process should continue to run: the liveness probe
//	…/readyz   whether it should be given work: the readiness probe
//	otherwise  the page
//
// Each of them answers with JSON if the request asks for it with "Accept: application/json" or
// "?format=json": the probes with their status, reason and the phases of the clients, the page
// with a Report.
//
// # What the probes say
//
// Both return 200 or 503, and the phase of each client: opening, connected, suspended (no contact
// at the moment, and nothing is lost yet), lost (the session is over, and the client is opening the
// next one), closed.
//
//	                              /healthz   /readyz
//	opening, before the first Open   200        503
//	connected                        200        200
//	suspended                        200        503
//	lost                             200        503
//	every client is closed           503        503
//
// A probe for liveness must not restart a process because the service is down: the restarted
// process could not connect either, and all processes would restart together. A client whose
// session is lost opens the next one by itself. Only a closed client never comes back. So connect
// a livenessProbe to /healthz, and alert on sessions with metrics instead.
//
// What counts as ready is Options.Ready. The default asks for contact. Think before you connect it
// to a readinessProbe of a Service of Kubernetes: when the service that coord uses is down, all
// processes become unready together, and a Service without endpoints answers no request. Programs that
// can work without contact return nil from Ready then. A program of which only the leader serves
// returns an error unless Report.Leads says so; its Service then leads to the leader.
//
// # What is true
//
// The phase of a session and the holds are read from the client when they are reported, and their
// leases are compared with the clock as Hold.Err compares them. So a process that was paused does
// not report a hold that it has lost meanwhile, not even in its first answer. A process that is cut
// off reports its holds until its lease has passed, which is before the service ends its session,
// as far as that can be promised: see "What is promised" in the manual of coord. It reports
// "connected" until the client notices the loss of contact, which takes a part of the session
// timeout.
//
// The example examples/status of the repository shows what the probes say of a process that is cut
// off, paused and killed.
//
// Everything else comes from the events of the client: calls that wait, members, shards, items
// that were settled, losses, and for each hold the recipe, the path and since when. Events come a
// moment later. If events were dropped, because Trace is too slow, the report says so: it leaves
// out what may be over. Its holds are complete, but those whose event is missing show their nodes
// only.
//
// The report has paths, names of nodes, ids of sessions, items, members, transactions and sites,
// tokens and error texts, and no data of nodes. Serve it where only operators can read it.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/layout"
)

// Options are the options of a Handler. Nil means the defaults.
type Options struct {
	// Ready returns nil if the process should be given work, or the reason why not, which
	// /readyz shows. Nil means that every client must be connected, and that there is one. It
	// runs for each request of /readyz and of the page, concurrently, and must be fast.
	Ready func(Report) error
}

// A Handler reports on the clients that it has opened. It is safe for concurrent use. It has no
// goroutines, and its memory is bounded: by the waits and holds of the clients, and a fixed number
// of everything else.
type Handler struct {
	ready func(Report) error

	mu      sync.Mutex
	clients []*client
}

// New returns a Handler without clients.
func New(o *Options) *Handler {
	h := &Handler{ready: connected}
	if o != nil && o.Ready != nil {
		h.ready = o.Ready
	}
	return h
}

// connected is the default of Options.Ready.
func connected(r Report) error {
	if len(r.Clients) == 0 {
		return errors.New("no client is open")
	}
	for _, c := range r.Clients {
		if c.Phase != coord.PhaseConnected.String() {
			return fmt.Errorf("a client is %s", c.Phase)
		}
	}
	return nil
}

// Open is coord.Open, and adds the client to the report, from the call of Open on. The report
// drops a client that is closed when another is open. The Trace of the options is called as
// coord.Options.Trace promises, after the Handler has seen the event.
func (h *Handler) Open(ctx context.Context, b backend.Backend, o *coord.Options) (*coord.Client, error) {
	var opts coord.Options
	if o != nil {
		opts = *o
	}
	x := newClient(opts.Trace)
	opts.Trace = x.trace
	hooks := hook.Of(ctx)
	opened := hooks.Opened
	hooks.Opened = func(standing func() []hook.Hold) {
		x.mu.Lock()
		x.standing = standing
		x.mu.Unlock()
		if opened != nil {
			opened(standing)
		}
	}
	h.mu.Lock()
	h.clients = append(h.clients, x)
	h.mu.Unlock()
	c, err := coord.Open(hook.With(ctx, hooks), b, &opts)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.clients = slices.DeleteFunc(h.clients, func(y *client) bool { return y == x })
		return nil, err
	}
	h.clients = slices.DeleteFunc(h.clients, (*client).isClosed) // not before: until then every client is closed
	x.mu.Lock()
	defer x.mu.Unlock()
	x.c = c
	return c, nil
}

// Report returns what the clients of h do now.
func (h *Handler) Report() Report {
	h.mu.Lock()
	clients := slices.Clone(h.clients)
	h.mu.Unlock()
	r := Report{Clients: make([]Client, 0, len(clients))}
	var closed []Client
	for _, x := range clients {
		if c := x.report(); c.Phase == coord.PhaseClosed.String() {
			closed = append(closed, c)
		} else {
			r.Clients = append(r.Clients, c)
		}
	}
	if len(r.Clients) == 0 && len(closed) > 0 {
		r.Clients = closed[len(closed)-1:]
	}
	r.At = time.Now()
	return r
}

// String returns the Report as JSON, so that a Handler is an expvar.Var:
//
//	expvar.Publish("coord", st)
func (h *Handler) String() string {
	text, err := json.Marshal(h.Report())
	if err != nil {
		return "null" // a Report can be encoded
	}
	return string(text)
}

// alive returns nil unless only a new process can use the service again.
func (r *Report) alive() error {
	for _, c := range r.Clients {
		if c.Phase == coord.PhaseClosed.String() {
			return errors.New("every client is closed")
		}
	}
	return nil
}

// A Report is what a process does with coord. Lists have at most 100 elements, the oldest first by Since.
// Queues, Shards and Schedules are sorted by their paths, and Losses has the latest first.
type Report struct {
	At      time.Time `json:"at"`
	Clients []Client  `json:"clients"` // those that are open or being opened, else the latest that was closed
}

// Leads reports whether a client of the process leads the election at path, which is the path that NewElection
// got: without the namespace of the client. If clients of several namespaces have an election at this path, each
// of them counts. It is true only while the term stands, by the clock of the report. Terms beyond those that fit
// into a list count too, unless the Report was decoded from JSON.
func (r *Report) Leads(path string) bool {
	return slices.ContainsFunc(r.Clients, func(c Client) bool {
		full := layout.Namespace(c.Namespace).Full(path)
		at := func(l Hold) bool { return l.Path == full }
		return slices.ContainsFunc(c.Leads, at) || slices.ContainsFunc(c.moreLeads, at)
	})
}

// A Client is a client of the process.
type Client struct {
	Namespace string `json:"namespace,omitempty"` // the paths below begin with it

	Phase   string    `json:"phase"`             // coord.Phase as a word, or "opening"
	Since   time.Time `json:"since"`             // of the phase, as far as it was noticed
	Session string    `json:"session,omitempty"` // the present or latest session, in hexadecimal
	Error   string    `json:"error,omitempty"`   // why there is no session

	SessionsLost int `json:"sessions_lost"`
	Suspensions  int `json:"suspensions"`

	Leads   []Hold   `json:"leads"`   // terms of elections
	Holds   []Hold   `json:"holds"`   // locks, permits, places in a round, runs of schedules
	Waits   []Wait   `json:"waits"`   // calls that wait, those for items included
	Queues  []Queue  `json:"queues"`  // from which items were taken
	Items   []Hold   `json:"items"`   // claimed at present
	Members []Member `json:"members"` // of groups
	Shards  []Shards `json:"shards"`

	Schedules []Schedule `json:"schedules"` // of which the client has run planned times

	Undone  []Undone `json:"undone"`   // decided transactions that sites of the client have not carried out
	InDoubt []Branch `json:"in_doubt"` // transactions whose decision a site of the client waits for
	Losses  []Loss   `json:"losses"`   // the latest, at most 32

	// More has for each list, by its name in JSON, how many elements it lacks.
	More map[string]int `json:"more,omitempty"`

	// Dropped counts events that were dropped, the latest at DroppedAt. What waited, was a member or
	// in doubt before that is left out, and numbers lack them.
	Dropped   int       `json:"dropped,omitempty"`
	DroppedAt time.Time `json:"dropped_at,omitzero"`

	// Behind is since when one call of the program's Trace has not returned, if that is longer than
	// a second. Everything that comes from events is as it was then.
	Behind time.Time `json:"behind_since,omitzero"`

	moreLeads []Hold // those that Leads lacks
}

// A Hold is a hold that stands.
type Hold struct {
	Recipe    string    `json:"recipe,omitempty"` // as in trace.Subject; empty if its event has not come, or was dropped
	Path      string    `json:"path,omitempty"`   // of the recipe
	Op        string    `json:"op,omitempty"`     // the call
	Node      string    `json:"node"`
	Token     int64     `json:"token,omitempty"`
	Weight    int       `json:"weight,omitempty"`  // permits, if more than 1
	Item      string    `json:"item,omitempty"`    // the id of an item
	Attempt   int       `json:"attempt,omitempty"` // of an item or a run
	Since     time.Time `json:"since,omitzero"`
	Revoked   bool      `json:"revoked,omitempty"`   // another client has asked for it
	Announced bool      `json:"announced,omitempty"` // the leader has announced that it has taken over
}

// A Wait is a call that waits.
type Wait struct {
	Recipe   string    `json:"recipe"`
	Path     string    `json:"path"`
	Op       string    `json:"op"`
	Node     string    `json:"node,omitempty"`     // its place in the queue
	Ahead    int       `json:"ahead"`              // contenders before it when it looked last; -1: not known
	Requeued int       `json:"requeued,omitempty"` // places that it has lost
	Since    time.Time `json:"since"`
}

// A Queue has what a client has taken from a queue.
type Queue struct {
	Recipe   string    `json:"recipe"`
	Path     string    `json:"path"`
	Waiting  int       `json:"waiting"` // calls that wait for an item
	Claimed  int       `json:"claimed"` // items at present
	Taken    int       `json:"taken"`
	Acked    int       `json:"acked"`
	Nacked   int       `json:"nacked"`
	Returned int       `json:"returned"`
	Lost     int       `json:"lost"`
	Dead     int       `json:"dead"`
	Latest   time.Time `json:"latest,omitzero"` // when an item was taken
}

// A Member is a member of a group.
type Member struct {
	Path   string    `json:"path"`
	Member string    `json:"member"`
	Node   string    `json:"node"`
	Token  int64     `json:"token"`
	In     bool      `json:"in"` // if not, it has lost its node and joins again
	Since  time.Time `json:"since"`
}

// Shards are the shards of a member.
type Shards struct {
	Path    string    `json:"path"`
	Member  string    `json:"member"`
	Owned   int       `json:"owned"`   // by the client, which stand now
	Ought   int       `json:"ought"`   // that the member ought to own
	Members int       `json:"members"` // of which it is one
	Since   time.Time `json:"since"`   // of the latest assignment
}

// A Schedule has what a client has run of a schedule.
type Schedule struct {
	Path      string        `json:"path"`
	Running   int           `json:"running"`           // runs that last
	Planned   time.Time     `json:"planned,omitzero"`  // of the run that began last
	Late      time.Duration `json:"late_ns,omitempty"` // how long after that time it began
	Outcome   string        `json:"outcome,omitempty"` // of the ended run of this client with the latest planned time
	Success   time.Time     `json:"success,omitzero"`  // when a run was done last
	Took      time.Duration `json:"took_ns,omitempty"` // that run
	Done      int           `json:"done"`
	Failed    int           `json:"failed"`
	Lost      int           `json:"lost"`      // claims of this client
	Abandoned int           `json:"abandoned"` // runs of this client that had to stop, and runs of others whose claims this client, as the leader, has found ended
	Missed    int           `json:"missed"`    // planned times that were left out
}

// Undone are the decided transactions that a site has not carried out. A site that has none is left
// out.
type Undone struct {
	Path    string    `json:"path"`
	Site    string    `json:"site"`
	Undone  int       `json:"undone"`
	Failing int       `json:"failing"` // of these, those whose Commit or Abort has failed
	Since   time.Time `json:"since"`   // since when the site has had at least one
}

// A Branch is a transaction on a site that has voted yes and does not know the decision.
type Branch struct {
	Path      string    `json:"path"`
	Proposal  string    `json:"proposal"`
	Site      string    `json:"site"`
	Destroyed bool      `json:"destroyed,omitempty"` // the decision can never be learned
	Since     time.Time `json:"since"`
}

// A Loss is a hold, an item, a membership or a session that was lost.
type Loss struct {
	At     time.Time     `json:"at"`
	Recipe string        `json:"recipe"` // "session" for a session
	Path   string        `json:"path,omitempty"`
	Node   string        `json:"node,omitempty"` // the id of a session
	Token  int64         `json:"token,omitempty"`
	Reason string        `json:"reason"`
	Held   time.Duration `json:"held_ns,omitempty"`
}
