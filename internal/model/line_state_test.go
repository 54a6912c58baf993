//go:build !race

package model

import "fmt"

// The model of the queueing discipline in package internal/line.
//
// The service is a leader with the log of its changes. Each client reads from a server of its
// own, which has applied the log up to some point: the part that the client has been shown.
// That point never moves back, and otherwise lags by any amount. So a message that is slow on
// the wire is the same as a server that lags. Watches fire, and reads are answered, at that
// point: an event comes before each reply that shows its state. After a reconnect all watches
// fire with LookAgain, and the server is another one, which is not behind that point either.
//
// A client takes one place in the queue, with one node. Numbers grow, so the node of client k
// has the number k. A client that comes after another one has ended may be the same process
// with its next session; a scope limits the number of clients that are alive at a time.
//
// A session is lost before the service removes its node, by the lease of package backend.
// From there on, a client that lost its session acts like one that gave up or released: it
// does nothing, and its node is deleted some time later.
//
// Not in the model: the hand-off of a place between callers in one process, the end of the
// sequence numbers, and a directory that is deleted.

const most = 4 // clients

// node is the state of a node.
type node int8

const (
	absent  node = iota
	present      // as it was created
	reader       // a writer's, replaced by a reader's with the same number
	gone
)

// change is an entry of the log: the kind of change and the node.
type change int8

const (
	deleted       change = most * (1 + iota)
	deletedReader        // after the downgrade
	downgraded
	written // the data
)

func (e change) of() int      { return int(e) % most }
func (e change) what() change { return e - e%most }

func (e change) String() string {
	what := map[change]string{deleted: "deletion", deletedReader: "deletion", downgraded: "downgrade", written: "change"}
	return fmt.Sprintf("%s of node %d", what[e.what()], e.of())
}

// watch is the state of a watch as its client sees it.
type watch int8

const (
	off watch = iota
	armed
	lookAgain
	deletion
	// The connection on which it was armed is closed. It will be marked with LookAgain before
	// any request or event on the next connection; but the watches are marked one by one, in
	// any order.
	broken
	// The event has come and is not marked yet; only where a variant breaks the order of
	// events.
	lateLookAgain
	lateDeletion
)

func (w watch) fired() bool { return w == lookAgain || w == deletion }

// neighbour is a watched node of the line.
type neighbour struct {
	node int8 // from 1, 0 for none
	as   node // present or reader: they have different names
	w    watch
	bare bool // the own node was already deleted when the watch fired
}

// pc is the position of a client in the code.
type pc int8

const (
	away    pc = iota
	looksUp    // the reply of the creation was lost
	alone      // about to be granted by the latest reply, without an own watch
	watches    // watchOwn, then the list
	lists      // Children of the directory
	syncs
	listed       // the reply has come and is not evaluated yet
	watchesFirst // watchOwn, then Arm
	arms         // Arm
	armsOwn      // only where a variant arms the own watch by itself
	waits        // the select
	atGrant      // about to be granted, under the lock of the session
	holds
	downgrade // holds; the commit is applied, and its reply has not arrived
	leaves    // does not hold or wait; its node is deleted later
	ended     // its node is deleted
)

type client struct {
	pc     pc
	shown  int8 // the part of the log shown to it
	seen   int8 // that part when the latest reply arrived
	own    watch
	before neighbour
	ahead  neighbour
	// The result of the list that is being evaluated: the conflicting node, and the one that
	// conflicts with that one. Not watches.
	near, far   neighbour
	grants      bool // turnNext: the predecessor is known to be the last conflicting node
	aheadIsHead bool // turnSecond: the node ahead is known to be the head
	known       bool // the token, the zxid of the own node's creation, is known
	first       bool // the own watch is among those being armed
	// The own node's data has changed since it was last known, and there is no own watch yet.
	changed bool
	readers int8 // a bit for each reader's node that a downgrade made before the own node was created
	try     bool
	victim  bool // an outsider deleted its node
	over    bool // its session is lost, and it has not seen that
	old     bool // it is in its next session, and its node is of the previous one
	bare    bool // the own node was deleted in the state that gives the grant
}

// believes reports whether the client thinks that it holds.
func (c *client) believes() bool { return c.pc == holds || c.pc == downgrade }

// alive reports whether the client counts as alive for the scope.
func (c *client) alive() bool { return c.pc != away && c.pc < leaves }

type state struct {
	c          [most]client
	node       [most]node // at the leader
	log        [10]change // the part that some client has not been shown
	n          int8
	came       int8 // clients
	reconnects int8 // left
	deletes    int8 // left, by outsiders
	writes     int8 // left, by outsiders
	odd        int8 // creations left
	bad        fault
}

// commit appends to the log at the leader.
func (s *state) commit(what change, k int) {
	switch {
	case what == downgraded:
		s.node[k] = reader
	case what == deleted && s.node[k] == reader:
		what = deletedReader
		s.node[k] = gone
	case what == deleted:
		s.node[k] = gone
	}
	s.log[s.n] = what + change(k)
	s.n++
}

// view returns the tree as far as client k has been shown it.
func (s *state) view(k int) [most]node {
	v := s.node
	for i := s.n - 1; i >= s.c[k].shown; i-- {
		e := s.log[i]
		switch e.what() {
		case deleted, downgraded:
			v[e.of()] = present
		case deletedReader:
			v[e.of()] = reader
		}
	}
	return v
}

func (n node) stands() bool { return n == present || n == reader }

// isMarked reports whether all watches that were armed on an earlier connection are marked.
func (c *client) isMarked() bool {
	return c.own != broken && c.before.w != broken && c.ahead.w != broken
}

// leave makes client k stop waiting or holding.
func (s *state) leave(k int) { s.c[k] = client{pc: leaves} }

// tidy makes states equal that no step can distinguish: it drops log entries that all clients
// have been shown, shows those that change nothing for a client, and clears values that are
// not read again.
func (m *lineModel) tidy(s *state) {
	low := s.n
	for k := range m.places {
		c := &s.c[k]
		if c.pc == leaves && !s.node[k].stands() {
			c.pc = ended
		}
		if !c.alive() {
			continue
		}
		for c.shown < s.n && !m.concerns(s, k, s.log[c.shown]) {
			if s.log[c.shown] == written+change(k) {
				c.changed = true // before it is found
			}
			if c.seen == c.shown {
				c.seen++
			}
			c.shown++
		}
		if s.reconnects == 0 {
			c.seen = c.shown
		}
		for c.seen < c.shown && !m.concerns(s, k, s.log[c.seen]) {
			c.seen++
		}
		low = min(low, c.seen)
	}
	if low == 0 {
		return
	}
	copy(s.log[:], s.log[low:s.n])
	clear(s.log[s.n-low : s.n])
	s.n -= low
	for k := range m.places {
		if s.c[k].alive() {
			s.c[k].shown -= low
			s.c[k].seen -= low
		}
	}
}

// concerns reports whether client k can notice e.
func (m *lineModel) concerns(s *state, k int, e change) bool {
	switch j := e.of(); {
	case s.c[k].pc == looksUp:
		return false // it will Sync
	case j == k:
		return true
	case s.c[k].believes():
		return false
	case e.what() == written:
		return j < k && m.rules.dataWatch
	default:
		return j < k
	}
}
