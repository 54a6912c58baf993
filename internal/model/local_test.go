//go:build !race

package model

import (
	"fmt"
	"testing"
)

// The exhaustive model of the local queue: localQueue of internal/line, with removeAndCall, handOver and
// enter. Up to three callers of one client want a lock, and only the one that has the turn has a node. A
// contender of another client waits for the same lock. A release deletes the node of the holder and creates
// that of the next caller in one commit. The connection can break during it: the commit is sent again,
// and the first one is applied before that, later, or not at all. Contexts end at any step, the session
// is lost, and the client closes. Other requests have their replies.
//
// The watches of a waiter are not the subject (see the model of the line): a waiter is granted as soon as
// its node is the first. Kept locks are not either (see the model of Keep), nor are calls that
// try once and outsiders that delete nodes. A caller whose waiter has gone locks again only when the
// holder has seen that.

// localRules are the rules that the variants break.
type localRules struct {
	joinsAtOnce     bool // a caller gets the turn although another one has it
	joinUnlocked    bool // the look at the queue and the entry into it are two steps
	leftListed      bool // a queued caller that gives up stays in the list
	calledListed    bool // a called waiter stays in the list
	calledStays     bool // a called waiter that gives up is not marked as gone
	servedDropped   bool // a caller that was served after its context ended leaves with the turn
	arrivalsUnseen  bool // a holder that has called nobody does not look at the queue after its deletion
	goneNotPassed   bool // a holder whose waiter has gone does not pass the turn on
	goneNodeStays   bool // nor does it remove the node that it has created for the waiter
	noteLate        bool // the removal of that node is noted after the turn is passed on
	lostNotPassed   bool // a lost hold does not pass the turn on
	failedNotPassed bool // a caller that fails does not pass the turn on
	bothEnd         bool // the session's loss ends a hold whose release is under way
	doubtDropped    bool // a node that may have been created is forgotten
	doubtUnlooked   bool // a caller does not look for the node that may have been created for it
	doubtAwaits     bool // a caller whose context has ended does not look for it
	oldAdopted      bool // a caller takes a node of a lost session for its own
	leaseUntested   bool // a grant does not test the session
	noRetry         bool // a hand-over whose reply is lost is not repeated
	refusedStays    bool // a hand-over that is refused does not delete the node alone
	twoCommits      bool // the creation does not depend on the deletion
	sameNode        bool // the next caller gets the holder's node instead of a new one
}

// localPC is the position of a caller.
type localPC int8

const (
	localAway   localPC = iota
	localJoins          // is about to enter the queue; only in a variant
	localQueued         // waiterQueued
	localCalled         // waiterCalled
	localGone           // waiterGone
	localServed         // waiterServed: has the turn, and may have a reserved node
	localEnters         // has the turn, and no node
	localWaits          // has a node
	localHolds
	localCalls   // releases: is about to call a waiter
	localHands   // is about to send the hand-over to the called waiter
	localRetries // the connection broke during the hand-over
	localPasses  // is about to pass the turn to the called waiter
	localDeletes // has called nobody, and is about to delete its node
)

func (p localPC) hasTurn() bool { return p >= localServed }

type localCaller struct {
	pc       localPC
	with     int8          // the called waiter
	reserved reservedState // of a served waiter, or of the one that is about to be passed the turn
	ended    bool          // the context
	adopted  bool          // the node is of a lost session; only in a variant
}

// reservedState is that of internal/line, without kept nodes.
type reservedState int8

const (
	reservedNone reservedState = iota
	reservedStands
	reservedMayStand
)

// localNode is a node on the service. They are in order.
type localNode struct {
	of    int8 // the caller, from 1; localOther: the other client's
	dead  bool // its session is lost, and the service has yet to notice
	left  bool // it is being removed
	noted bool // AwaitCleanUps waits for that
}

const (
	localCallers = 3
	localOther   = localCallers + 1
)

type localState struct {
	nodes   [6]localNode
	exists  bool               // the queue is in the map of the client
	line    [localCallers]int8 // the waiters in the queue, from 1
	c       [localCallers]localCaller
	late    int8 // the waiter, from 1, for which a commit is under way that the holder does not wait for
	lateOf  int8 // the holder
	other   int8 // 0: away, 1: waits, 2: holds
	closing bool
	closed  bool

	callers, locks, giveUps, breaks, losses, refusals, closes, others int8 // left
	bad                                                               localFault
}

type localFault string

func (f localFault) Error() string { return string(f) }

const (
	localTwo       = localFault("two believe that they hold")
	localNoNode    = localFault("a hold without a node")
	localLostTurn  = localFault("a local caller waits for a turn that nobody has")
	localTwoTurns  = localFault("two local callers have the turn")
	localForgotten = localFault("nobody holds, and a contender waits for ever")
	localLeft      = localFault("a node is left that nobody removes")
	localBehindOwn = localFault("a local caller waits behind a node that its own client has left")
	localOvertakes = localFault("a local caller overtakes a contender of another client")
)

type localModel struct {
	rules localRules
	scope localState // the budgets
}

type localDo func(free bool, o localState, what string, args ...any)

func (m *localModel) next(s localState, step func(keepAction, localState)) error {
	if s.bad != "" {
		return s.bad
	}
	rest := true
	do := func(free bool, o localState, what string, args ...any) {
		rest = rest && !free
		o.judge()
		step(keepAction{fmt.Sprintf(what, args...), free}, o)
	}
	for i := range s.callers {
		m.caller(s, i, do)
	}
	m.service(s, do)
	if rest {
		return s.atRest()
	}
	return nil
}

// at returns the index of the node of a caller that is not being removed, or -1. A node of the present
// session comes first.
func (s *localState) at(i int8) int {
	at := -1
	for j, n := range s.nodes {
		if n.of == i+1 && !n.left && (at < 0 || !n.dead) {
			at = j
		}
	}
	return at
}

// stands reports whether the caller has a node in the present session.
func (s *localState) stands(i int8) bool {
	j := s.at(i)
	return j >= 0 && !s.nodes[j].dead
}

func (s *localState) create(of int8) {
	for j := range s.nodes {
		if n := &s.nodes[j]; n.of == 0 {
			n.of = of
			return
		} else if of != localOther && n.left && !n.dead {
			s.bad = localBehindOwn
		}
	}
	panic("the directory is full")
}

func (s *localState) remove(j int) {
	copy(s.nodes[j:], s.nodes[j+1:])
	s.nodes[len(s.nodes)-1] = localNode{}
}

// removeLater begins to remove the node of a caller, if there is one. A node of a lost session goes with it.
func (s *localState) removeLater(i int8, noted bool) {
	if j := s.at(i); j >= 0 && !s.nodes[j].dead && !s.closing {
		s.nodes[j].left, s.nodes[j].noted = true, noted
	}
}

func (s *localState) enqueue(i int8) {
	s.c[i].pc = localQueued
	for j := range s.line {
		if s.line[j] == 0 {
			s.line[j] = i + 1
			return
		}
	}
	panic("the queue is full")
}

func (s *localState) dequeue(i int8) {
	for j := range s.line {
		if s.line[j] == i+1 {
			copy(s.line[j:], s.line[j+1:])
			s.line[len(s.line)-1] = 0
			return
		}
	}
}

// advance is localQueue.advance.
func (s *localState) advance() {
	if s.line[0] == 0 {
		s.exists = false
		return
	}
	i := s.line[0] - 1
	s.dequeue(i)
	if s.c[i].pc == localQueued {
		s.c[i].pc = localServed
	}
}

// fail ends the call of a caller that has the turn.
func (m *localModel) fail(s *localState, i int8) {
	s.c[i] = localCaller{}
	if !m.rules.failedNotPassed {
		s.advance()
	}
}

// handOver applies the commit of a hand-over from i to w.
func (s *localState) handOver(i, w int8) {
	s.remove(s.at(i))
	s.create(w + 1)
}

func (m *localModel) caller(s localState, i int8, do localDo) {
	c, o := s.c[i], s
	oc := &o.c[i]
	endContext := func(what string) {
		if s.giveUps > 0 && !c.ended {
			e := s
			e.giveUps--
			e.c[i].ended = true
			do(false, e, "the context of caller %d ends, "+what, i)
		}
	}
	switch c.pc {
	case localAway:
		if s.locks == 0 || s.closing {
			return
		}
		o.locks--
		switch {
		case !s.exists:
			o.exists = true
			oc.pc = localEnters
		case m.rules.joinsAtOnce:
			oc.pc = localEnters
		case m.rules.joinUnlocked:
			oc.pc = localJoins
		default:
			o.enqueue(i)
		}
		do(false, o, "caller %d locks", i)
	case localJoins:
		o.enqueue(i)
		do(true, o, "caller %d enters the queue", i)
	case localQueued, localCalled:
		if s.giveUps == 0 && !s.closing {
			return
		}
		if !s.closing {
			o.giveUps--
		}
		switch {
		case c.pc == localCalled && !m.rules.calledStays:
			oc.pc = localGone
		default:
			*oc = localCaller{}
		}
		if !m.rules.leftListed {
			o.dequeue(i)
		}
		do(s.closing, o, "caller %d, which waits for its turn, gives up", i)
	case localServed:
		endContext("which has been served")
		m.served(s, i, do)
	case localEnters:
		endContext("which enters")
		m.enters(s, i, do)
	case localWaits:
		m.waits(s, i, do)
	case localHolds:
		oc.pc = localCalls
		do(false, o, "caller %d begins to release", i)
	case localCalls:
		w := s.line[0] - 1
		switch {
		case w < 0:
			oc.pc = localDeletes
			do(true, o, "caller %d has nobody to call", i)
			return
		case m.rules.sameNode && s.stands(i):
			o.dequeue(w)
			o.nodes[s.at(i)].of = w + 1
			*oc, o.c[w].pc, o.c[w].reserved = localCaller{}, localServed, reservedStands
			if s.other == 1 {
				o.bad = localOvertakes
			}
			do(true, o, "caller %d gives its node to caller %d", i, w)
			return
		case !m.rules.calledListed:
			o.dequeue(w)
		}
		if o.c[w].pc == localQueued {
			o.c[w].pc = localCalled
		}
		oc.pc, oc.with = localHands, w
		do(true, o, "caller %d calls caller %d", i, w)
	case localHands, localRetries:
		m.hands(s, i, do)
	case localPasses:
		w := c.with
		ow := &o.c[w]
		*oc = localCaller{}
		switch s.c[w].pc {
		case localCalled:
			ow.pc, ow.reserved = localServed, c.reserved
		case localGone:
			*ow = localCaller{}
			if !m.rules.goneNodeStays && c.reserved != reservedNone {
				o.removeLater(w, !m.rules.noteLate)
			}
			if !m.rules.goneNotPassed {
				o.advance()
			}
		}
		do(true, o, "caller %d passes the turn to caller %d", i, w)
	case localDeletes:
		if s.stands(i) {
			o.remove(s.at(i))
		}
		*oc = localCaller{}
		if m.rules.arrivalsUnseen {
			o.exists = false
		} else {
			o.advance()
		}
		do(true, o, "caller %d deletes its node", i)
	}
}

// served adds the steps of a caller that has the turn, and may have a reserved node.
func (m *localModel) served(s localState, i int8, do localDo) {
	c, o := s.c[i], s
	oc := &o.c[i]
	oc.reserved = reservedNone
	switch {
	case c.ended && m.rules.servedDropped:
		*oc = localCaller{}
	case c.reserved == reservedStands && s.stands(i):
		oc.pc = localWaits
	case c.reserved != reservedMayStand || m.rules.doubtUnlooked, m.rules.doubtAwaits && c.ended:
		oc.pc = localEnters
	case s.closing:
		m.fail(&o, i)
	case c.ended:
		o.removeLater(i, true)
		m.fail(&o, i)
	case s.stands(i):
		oc.pc = localWaits
	case s.at(i) >= 0 && m.rules.oldAdopted:
		oc.pc, oc.adopted = localWaits, true
	default:
		oc.pc = localWaits
		o.create(i + 1)
	}
	do(true, o, "caller %d, which has been served, looks at its reserved node", i)
}

// enters adds the steps of a caller that has the turn and creates a node.
func (m *localModel) enters(s localState, i int8, do localDo) {
	o := s
	if s.closing || s.c[i].ended {
		m.fail(&o, i)
		do(true, o, "caller %d fails", i)
	}
	if s.closing {
		return
	}
	for _, n := range s.nodes {
		if n.noted && !n.dead {
			return // it waits for what its client has left
		}
	}
	o = s
	o.create(i + 1)
	if s.c[i].ended {
		o.removeLater(i, true)
		m.fail(&o, i)
		do(true, o, "caller %d fails, and may have created a node", i)
		return
	}
	o.c[i].pc = localWaits
	do(true, o, "caller %d creates a node", i)
}

// waits adds the steps of a caller that has a node.
func (m *localModel) waits(s localState, i int8, do localDo) {
	c, o := s.c[i], s
	j := s.at(i)
	alive := j >= 0 && (!s.nodes[j].dead || c.adopted)
	if alive && (s.giveUps > 0 || c.ended) {
		e := s
		if !c.ended {
			e.giveUps--
		}
		e.removeLater(i, true)
		m.fail(&e, i)
		do(c.ended, e, "caller %d, which has a node, gives up", i)
	}
	switch {
	case j == 0 && (alive || m.rules.leaseUntested):
		o.c[i] = localCaller{pc: localHolds}
		do(true, o, "caller %d is granted", i)
	case alive:
	case s.closing:
		m.fail(&o, i)
		do(true, o, "caller %d fails, since its session is over", i)
	default:
		o.c[i].pc = localEnters
		do(true, o, "caller %d sees that its session is lost", i)
	}
}

// hands adds the steps of a holder that hands over to the waiter that it has called.
func (m *localModel) hands(s localState, i int8, do localDo) {
	c := s.c[i]
	w := c.with
	pass := func(free bool, b reservedState, what string, change func(o *localState)) {
		o := s
		change(&o)
		o.c[i].pc, o.c[i].reserved = localPasses, b
		do(free, o, "caller %d %s", i, what)
	}
	switch {
	case !s.stands(i) && c.pc == localRetries:
		pass(true, c.reserved, "finds that its node is gone", func(*localState) {})
		return
	case !s.stands(i):
		pass(true, reservedNone, "has lost its session", func(*localState) {})
		return
	}
	if c.pc == localRetries && m.rules.noRetry {
		pass(true, c.reserved, "does not repeat its hand-over", func(*localState) {})
		return
	}
	pass(true, reservedStands, "hands over", func(o *localState) { o.handOver(i, w) })
	if s.refusals > 0 {
		pass(false, c.reserved, "deletes its node alone, since the hand-over is refused", func(o *localState) {
			o.refusals--
			if !m.rules.refusedStays {
				o.remove(o.at(i))
			}
		})
	}
	if s.breaks > 0 {
		o := s
		o.breaks--
		o.late, o.lateOf = w+1, i+1
		o.c[i].pc, o.c[i].reserved = localRetries, reservedMayStand
		if m.rules.doubtDropped {
			o.c[i].reserved = reservedNone
		}
		do(false, o, "the connection breaks during the hand-over of caller %d", i)
	}
}

// service adds the steps of the service, of the session, and of the other client.
func (m *localModel) service(s localState, do localDo) {
	o := s
	if s.late > 0 {
		i, w := s.lateOf-1, s.late-1
		o.late, o.lateOf = 0, 0
		switch {
		case s.c[i].pc == localRetries && s.stands(i):
			o.handOver(i, w)
			do(false, o, "the hand-over of caller %d that had no reply is applied", i)
		case m.rules.twoCommits && !s.closed:
			o.create(w + 1)
			do(false, o, "the creation for caller %d that had no reply is applied", w)
		default:
			do(false, o, "the hand-over of caller %d that had no reply is refused", i)
		}
		o = s
	}
	for j, n := range s.nodes {
		if n.dead || n.left {
			o := s
			o.remove(j)
			do(true, o, "the node at %d, of a lost session or a call that is over, is removed", j)
		}
	}
	// end is the end of the session: its holds are lost.
	end := func(o *localState) {
		for i := range o.c {
			p := o.c[i].pc
			if p == localHolds {
				o.c[i] = localCaller{}
			}
			if p == localHolds && !m.rules.lostNotPassed || p > localHolds && m.rules.bothEnd {
				o.advance()
			}
		}
	}
	if s.losses > 0 && !s.closed {
		o := s
		o.losses--
		for j := range o.nodes {
			if n := &o.nodes[j]; n.of != 0 && n.of != localOther {
				n.dead = true
			}
		}
		end(&o)
		do(false, o, "the session is lost")
	}
	if s.closes > 0 {
		o := s
		o.closes--
		o.closing = true
		do(false, o, "the client begins to close")
	}
	if s.closing && !s.closed {
		o := s
		o.closed = true
		for j := len(o.nodes) - 1; j >= 0; j-- {
			if n := o.nodes[j]; n.of != 0 && n.of != localOther {
				o.remove(j)
			}
		}
		end(&o)
		do(true, o, "the client has closed its session")
	}
	switch {
	case s.other == 0 && s.others > 0:
		o.others--
		o.other = 1
		o.create(localOther)
		do(false, o, "the other client queues")
	case s.other == 1 && s.nodes[0].of == localOther:
		o.other = 2
		do(true, o, "the other client is granted")
	case s.other == 2:
		o.other = 0
		o.remove(0)
		do(false, o, "the other client releases")
	}
}

// judge checks the state after a step.
func (s *localState) judge() {
	if s.bad != "" {
		return
	}
	turns, holders := 0, 0
	if s.other == 2 {
		holders++
	}
	for i, c := range s.c {
		if c.pc.hasTurn() {
			turns++
		}
		if c.pc == localHolds {
			holders++
			if s.at(int8(i)) < 0 {
				s.bad = localNoNode
			}
		}
	}
	switch {
	case holders > 1:
		s.bad = localTwo
	case turns > 1:
		s.bad = localTwoTurns
	case turns == 0 && (s.exists || s.line[0] > 0):
		s.bad = localLostTurn
	}
}

// atRest returns the error of a state in which nobody does anything without a decision.
func (s *localState) atRest() error {
	held := s.other == 2
	for _, c := range s.c {
		held = held || c.pc == localHolds
	}
	waits := s.other == 1
	nodes := [localOther + 1]int{}
	for _, n := range s.nodes {
		nodes[n.of]++
	}
	for i, c := range s.c {
		waits = waits || c.pc != localAway && c.pc != localHolds
		if owns := c.pc == localWaits || c.pc == localHolds; nodes[i+1] > 1 || nodes[i+1] == 1 && !owns {
			return localLeft
		}
	}
	if waits && !held {
		return localForgotten
	}
	return nil
}

func (m *localModel) explore(t *testing.T) Result[keepAction] {
	t.Helper()
	return exploreAll(t, "of the local queue", Model[localState, keepAction]{Start: m.scope, Next: m.next, Free: func(a keepAction) bool { return a.free }})
}

func TestALocalQueueKeepsItsGuarantees(t *testing.T) {
	t.Parallel()
	scopes := map[string]localState{
		"replies":  {callers: 3, locks: 5, breaks: 2, giveUps: 1, refusals: 1, others: 1},
		"sessions": {callers: 3, locks: 4, breaks: 1, giveUps: 1, losses: 2, others: 1},
		"a close":  {callers: 3, locks: 4, breaks: 1, giveUps: 1, losses: 1, closes: 1, others: 1},
		"contexts": {callers: 3, locks: 5, breaks: 1, giveUps: 3, others: 2},
	}
	if long() {
		scopes["all of it"] = localState{callers: 3, locks: 5, breaks: 2, giveUps: 2, losses: 1, refusals: 1, closes: 1, others: 1}
	}
	for name, s := range scopes {
		t.Run(name, func(t *testing.T) {
			mustHold(t, (&localModel{scope: s}).explore(t))
		})
	}
}

// Each rule is needed: without it a guarantee is violated in the way that the trace shows.
func TestALocalQueueWithoutOneOfItsRules(t *testing.T) {
	t.Parallel()
	two := func(s localState) localState { s.callers, s.locks = 2, 2; return s }
	for _, v := range []struct {
		name  string
		rules localRules
		scope localState
		fault error
	}{
		{"a second caller gets the turn at once", localRules{joinsAtOnce: true}, two(localState{}), localTwoTurns},
		{"a caller joins in two steps", localRules{joinUnlocked: true}, two(localState{}), localLostTurn},
		{"a caller that has left is called", localRules{leftListed: true}, two(localState{giveUps: 1}), localLostTurn},
		{"a called waiter stays in the list", localRules{calledListed: true}, two(localState{}), localLostTurn},
		{"a called waiter that gives up is served", localRules{calledStays: true}, two(localState{giveUps: 1}), localLostTurn},
		{"a caller that is served in vain drops the turn", localRules{servedDropped: true}, two(localState{giveUps: 1}), localLostTurn},
		{"a release overlooks those that come meanwhile", localRules{arrivalsUnseen: true}, two(localState{}), localLostTurn},
		{"the turn of a waiter that has gone ends", localRules{goneNotPassed: true}, two(localState{giveUps: 1}), localLostTurn},
		{"the node of a waiter that has gone stays", localRules{goneNodeStays: true}, two(localState{giveUps: 1}), localLeft},
		{"the removal of that node is noted late", localRules{noteLate: true}, localState{callers: 3, locks: 3, giveUps: 1}, localBehindOwn},
		{"the turn of a lost hold ends", localRules{lostNotPassed: true}, two(localState{losses: 1}), localLostTurn},
		{"the turn of a caller that fails ends", localRules{failedNotPassed: true}, two(localState{giveUps: 1}), localLostTurn},
		{"a hold that is being released is lost as well", localRules{bothEnd: true}, two(localState{losses: 1}), localTwoTurns},
		{"a node in doubt is forgotten", localRules{doubtDropped: true}, two(localState{breaks: 1}), localLeft},
		{"a node in doubt is not looked for", localRules{doubtUnlooked: true}, two(localState{breaks: 1}), localLeft},
		{"a call that is over does not look for its node in doubt", localRules{doubtAwaits: true}, two(localState{breaks: 1, giveUps: 1}), localLeft},
		{"a node of a lost session is adopted", localRules{oldAdopted: true}, two(localState{breaks: 1, losses: 1}), localNoNode},
		{"a grant does not test the session", localRules{leaseUntested: true}, two(localState{losses: 1}), localNoNode},
		{"a hand-over without a reply is not repeated", localRules{noRetry: true}, two(localState{breaks: 1}), localLeft},
		{"a hand-over that is refused leaves the node", localRules{refusedStays: true}, two(localState{refusals: 1}), localLeft},
		{"a hand-over in two commits", localRules{twoCommits: true}, two(localState{breaks: 1}), localLeft},
		{"a hand-over without a new node", localRules{sameNode: true}, two(localState{others: 1}), localOvertakes},
	} {
		t.Run(v.name, func(t *testing.T) {
			mustViolate(t, (&localModel{rules: v.rules, scope: v.scope}).explore(t), v.fault, 0)
		})
	}
}
