//go:build !race

package model

import "fmt"

// The model of the queueing discipline in line.go of package coord.
//
// The service is a leader, with the log of its changes. Each client reads from a
// server of its own, which has applied the log up to some point: what the client
// has been shown. That point never goes back, and otherwise lags as long as it
// likes. So a message that is slow on the wire is nothing else than a server that
// lags. Watches fire, and reads are answered, at that point: an event comes before
// each reply that shows its state. After a reconnect all watches fire with
// LookAgain, and the server is another one, which is not behind that point either.
//
// A client takes one place in the line, with one node. Numbers go up, so the
// node of client k is the one with number k. Who comes after another one has
// ended may be the same process in its next life, with the next session: in a
// scope, at most so many are alive at a time.
//
// Losing the session comes before the service removes the node, as the lease of
// package backend has it. From there on, who lost its session does what one that
// gave up or released does: nothing, and its node goes some time later.
//
// Not in the model: the way of a place from one caller to the next in one process,
// the end of the numbers, and a directory that is deleted.

const most = 4 // clients

// node is what has become of a node.
type node int8

const (
	absent  node = iota
	present      // as it was created
	reader       // a writer's, replaced by a reader's with the same number
	gone
)

// change is an entry of the log: what happened, and to which node.
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
	// The connection it was armed on is gone. It will be marked with LookAgain
	// before anything is asked or shown on the next one; but one watch is
	// marked after the other, in any order.
	broken
	// The event has come and is not marked yet; only where a variant breaks
	// the order of the wire.
	lateLookAgain
	lateDeletion
)

func (w watch) fired() bool { return w == lookAgain || w == deletion }

// neighbour is a watched node of the line.
type neighbour struct {
	node int8 // from 1, 0 for none
	as   node // present or reader: they have different names
	w    watch
	bare bool // the own node was gone already when the watch fired
}

// pc is where a client stands in the code.
type pc int8

const (
	away    pc = iota
	looksUp    // the reply of the creation was lost
	alone      // about to be granted what the latest reply said, with no own watch
	watches    // watchOwn, then the list
	lists      // Children of the directory
	syncs
	listed       // the reply has come, and is not looked at yet
	watchesFirst // watchOwn, then Arm
	arms         // Arm
	armsOwn      // where a variant arms the own watch by itself
	waits        // the select
	atGrant      // about to be granted, under the lock of the session
	holds
	downgrade // holds; the commit is made, and its reply is not there yet
	leaves    // believes nothing; its node goes later
	ended     // and its node is gone
)

type client struct {
	pc     pc
	shown  int8 // how much of the log
	seen   int8 // how much of it when the latest reply came
	own    watch
	before neighbour
	ahead  neighbour
	// What the list said that is being looked at: who is in the way, and of that
	// one. No watches.
	near, far   neighbour
	grants      bool // the node before is known to be the last in the way
	aheadIsHead bool // the node ahead is
	known       bool // the token, which is when the own node was created
	first       bool // the own node is among what is being armed
	// The own node's data has changed since it was last known, and there is no own
	// watch yet.
	changed bool
	readers int8 // a bit for each reader's node that came of a downgrade before the own was created
	try     bool
	victim  bool // an outsider deleted its node
	over    bool // its session is lost, and it has not seen that
	old     bool // it is in its next session, and its node of the one before
	bare    bool // the own node was gone in the state that gives the grant
}

// believes reports whether the client thinks that it holds.
func (c *client) believes() bool { return c.pc == holds || c.pc == downgrade }

// alive reports whether there is a client in the scope's sense.
func (c *client) alive() bool { return c.pc != away && c.pc < leaves }

type state struct {
	c          [most]client
	node       [most]node // at the leader
	log        [10]change // that somebody has not been shown
	n          int8
	came       int8 // clients
	reconnects int8 // left
	deletes    int8 // left, by outsiders
	writes     int8 // likewise
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

// view is the tree as far as client k has been shown it.
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

// told reports whether all watches that were armed on an earlier connection have
// been marked.
func (c *client) told() bool {
	return c.own != broken && c.before.w != broken && c.ahead.w != broken
}

// leave has client k believe nothing any more.
func (s *state) leave(k int) { s.c[k] = client{pc: leaves} }

// tidy makes equal what no step can tell apart: it forgets entries of the log
// that all have been shown, shows those that change nothing for a client, and
// clears what will not be read again.
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
