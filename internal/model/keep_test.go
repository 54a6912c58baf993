//go:build !race

package model

import (
	"fmt"
	"testing"
)

// The exhaustive model of a kept lock: MutexOptions.Keep of package coord, internal/line/keep.go. One
// client has two callers, and keeps its node between their holds: the kept lock. A newcomer of
// another client locks or tries once. The service is one server; what it sends to the client
// can be late, and is lost when the connection breaks. Keep itself is endless here, so a
// newcomer whom no event wakes waits for ever.
//
// The queue of the newcomer and the client's later nodes is not the subject (see the model of
// the line): a waiter is granted as soon as the node ahead of it is gone.

// keepRules are the rules that the variants break.
type keepRules struct {
	sinceArmed    bool // only a change after the arming of the directory's watch counts as contention
	unarmed       bool // a kept lock whose arming failed continues
	lookAgain     bool // LookAgain of the directory's watch does not count as contention
	onlyStanding  bool // an event counts as contention only if there is another node
	idleKept      bool // contention does not end an idle kept lock
	overPasses    bool // a release after contention passes the turn in memory
	idleUnlocked  bool // the test for contention and the marking as idle are two steps
	notFinal      bool // a Lock takes a node that is being given up
	watchOfHold   bool // the watch on the own node ends with the hold
	leaseUntested bool // a grant in memory does not test the session
	turnDropped   bool // a waiter that was passed the turn after its context ended leaves
	guardUntested bool // a release does not test for guarded commits under way
	guardAbandon  bool // a guarded commit that was abandoned counts as answered
	guardOps      bool // a release does not test whether the operations of the guard were handed out
	guardEnded    bool // the client sends a guarded commit of an ended hold
	revokeHeld    bool // a revocation does not end the kept lock
	anyData       bool // the turn is passed in memory whatever the waiter's data
	closeWaits    bool // the end of the session does not end an idle kept lock
	keptAgain     bool // a kept lock begins a short time after contention
	notAlone      bool // a kept lock begins with a grant that had to wait
}

// keepPC is the position of a local caller.
type keepPC int8

const (
	keepAway   keepPC = iota
	keepQueued        // waits for the turn
	keepServed        // has the turn, with the node of the kept lock
	keepEnters        // has the turn, without a node
	keepWaits         // has a node behind the newcomer's
	keepHolds
	keepMarks   // is about to mark the kept lock as idle; only in a variant
	keepRemoves // releases as without Keep: the deletion is under way
)

func (p keepPC) hasTurn() bool { return p >= keepServed }

// keepNode is the node of the client.
type keepNode int8

const (
	keepNone   keepNode = iota
	keepFirst           // ahead of the newcomer's
	keepSecond          // behind the newcomer's
)

// keptState is the state of the kept lock. It divides keptOver of internal/line.
type keptState int8

const (
	keptNone keptState = iota
	keptHeld
	keptIdle
	keptEnding // over; it was idle, and the deletion of its node is under way
	keptOver   // over; a caller holds, and releases as without Keep
)

type keepArming int8

const (
	armNot keepArming = iota
	armBegun
	armDone
	armFailed
)

type keepEvent int8

const (
	keepNothing keepEvent = iota
	keepDirEvent
	keepOwnEvent
)

// keepCommit is the state of the one guarded commit.
type keepCommit int8

const (
	commitNone keepCommit = iota
	commitSent
	commitAbandoned // its caller does not wait for it
	commitOver
)

type keepNewcomer int8

const (
	newAway keepNewcomer = iota
	newWaits
	newHolds
	newTries // its node exists, and it is about to withdraw
	newOver
)

type keepState struct {
	// The service.
	node     keepNode
	data     int8 // of the node: the caller whose data it is
	changed  bool // the directory changed since the node was created
	written  bool // a request to release stands in the node
	ownMoved bool // the node was written or deleted since it was created
	dirArmed bool
	ownArmed bool
	wire     [3]keepEvent

	// The client.
	kept     keptState
	arming   keepArming
	dirFired bool
	ownFired bool
	again    bool // the watches have fired with LookAgain
	over     bool // the session is lost
	pc       [2]keepPC
	ended    [2]bool // the context of the caller
	mustEnd  bool    // an outsider has deleted the node of a hold
	read     bool    // the holder has read the request
	watched  bool    // the watch on the own node serves the current hold

	gen    int8 // of the node
	guard  keepCommit
	of     int8 // the caller that has taken the guard of its hold, from 1
	under  int8 // the node of that hold
	stands bool // the hold stands
	after  bool // another local hold began since that one
	ops    bool // the operations of the guard were handed out

	recent bool // contention has ended a kept lock a short time ago
	met    int8 // the kept locks, one after the other, that tries of the newcomer have found idle in this time
	metGen int8 // the node of the latest of them
	behind bool // the node was not created alone

	newcomer keepNewcomer
	inVain   bool // the try has failed because of this kept lock, and nobody held

	locks, reconnects, losses, deletes, writes, fails, giveUps, guards, tries int8 // left
	bad                                                                       keepFault
}

type keepFault string

func (f keepFault) Error() string { return string(f) }

const (
	keepStarves   = keepFault("a newcomer waits for ever behind an idle client")
	keepInVain    = keepFault("a try has failed, and the idle client keeps the lock")
	keepOvertakes = keepFault("a local caller is granted after contention")
	keepTwo       = keepFault("two clients believe that they hold")
	keepNoNode    = keepFault("a hold without a node")
	keepLostTurn  = keepFault("a local caller waits for a turn that nobody has")
	keepNotTold   = keepFault("a holder is never notified that its node is deleted")
	keepNotRead   = keepFault("a request to release is never read")
	keepLate      = keepFault("a guarded commit of an ended hold is applied under a later one")
	keepMetAgain  = keepFault("each of several tries meets a new idle client")
	keepExtra     = keepFault("clients in turns send more than without Keep")
	keepWrongData = keepFault("a hold on a node with the data of another caller")
)

type keepModel struct {
	rules keepRules
	scope keepState // the budgets
	data  bool      // the callers have different data
}

type keepAction struct {
	what string
	free bool
}

func (a keepAction) String() string { return a.what }

func (m *keepModel) next(s keepState, step func(keepAction, keepState)) error {
	if s.bad != "" {
		return s.bad
	}
	rest := true
	do := func(free bool, o keepState, what string, args ...any) {
		if free {
			rest = false
		}
		m.judge(&o)
		step(keepAction{fmt.Sprintf(what, args...), free}, o)
	}
	m.service(s, do)
	m.client(s, do)
	for i := range s.pc {
		m.caller(s, int8(i), do)
	}
	m.other(s, do)
	m.faults(s, do)
	if rest {
		return m.atRest(&s)
	}
	return nil
}

type keepDo func(free bool, o keepState, what string, args ...any)

// holder returns the caller that believes that it holds, or -1.
func (s *keepState) holder() int {
	for i, p := range s.pc {
		if p == keepHolds {
			return i
		}
	}
	return -1
}

// turn reports whether a caller or the kept lock has the turn.
func (s *keepState) turn() bool {
	return s.kept == keptIdle || s.kept == keptEnding || s.pc[0].hasTurn() || s.pc[1].hasTurn()
}

func (s *keepState) send(e keepEvent) {
	for i := range s.wire {
		if s.wire[i] == keepNothing {
			s.wire[i] = e
			return
		}
	}
	panic("the wire is full")
}

// dirChange is a change of the children of the directory.
func (s *keepState) dirChange() {
	s.changed = true
	if s.dirArmed {
		s.dirArmed = false
		s.send(keepDirEvent)
	}
}

func (s *keepState) ownChange() {
	s.ownMoved = true
	if s.ownArmed {
		s.ownArmed = false
		s.send(keepOwnEvent)
	}
}

// remove deletes the node of the client.
func (s *keepState) remove() {
	if s.node == keepNone {
		return
	}
	s.node = keepNone
	s.dirChange()
	s.ownChange()
	s.written = false
}

// create creates a node for caller i. It stands behind the newcomer's, if there is one.
func (m *keepModel) create(s *keepState, i int8) {
	s.node, s.data = keepFirst, i
	s.gen++
	s.changed, s.ownMoved, s.written, s.read, s.inVain = false, false, false, false, false
	s.arming, s.dirArmed, s.ownArmed, s.dirFired, s.ownFired, s.again = armNot, false, false, false, false, false
	s.wire = [3]keepEvent{}
	s.kept, s.mustEnd, s.watched, s.behind = keptOver, false, false, false
	if s.newcomer == newWaits || s.newcomer == newHolds || s.newcomer == newTries {
		s.node, s.pc[i], s.behind = keepSecond, keepWaits, true
		return
	}
	if !s.recent || m.rules.keptAgain {
		s.kept = keptHeld // it began alone
	}
	s.grant(i)
}

// leave removes the newcomer's node.
func (s *keepState) leave() {
	s.newcomer = newOver
	if s.node == keepSecond {
		s.node = keepFirst
	}
}

// arm begins to arm the watches of the kept lock.
func (s *keepState) arm() {
	s.arming = armBegun
	if s.behind {
		s.bad = keepExtra
	}
}

// grant makes caller i hold.
func (s *keepState) grant(i int8) {
	s.pc[i] = keepHolds
	s.watched = s.kept == keptHeld
	s.after = s.of > 0 && !s.stands
}

// finish ends the hold of caller i.
func (s *keepState) finish(i int8, to keepPC) {
	s.pc[i] = to
	if s.of == i+1 {
		s.stands = false
	}
}

// advance passes a turn without a node.
func (s *keepState) advance() {
	for i := range s.pc {
		if s.pc[i] == keepQueued {
			s.pc[i] = keepEnters
			return
		}
	}
}

// service adds the deliveries and the guarded commit.
func (m *keepModel) service(s keepState, do keepDo) {
	if s.wire[0] != keepNothing {
		o := s
		copy(o.wire[:], o.wire[1:])
		o.wire[2] = keepNothing
		if s.wire[0] == keepDirEvent {
			o.dirFired = true
		} else {
			o.ownFired = true
		}
		do(true, o, "an event arrives")
	}
	if s.arming == armBegun && !s.over {
		o := s
		o.arming, o.dirArmed, o.ownArmed = armDone, true, true
		if s.changed && !m.rules.sinceArmed {
			o.dirArmed, o.dirFired = false, true
		}
		if s.ownMoved {
			o.ownArmed, o.ownFired = false, true
		}
		do(true, o, "the watches are armed")
	}
	if s.guard == commitSent || s.guard == commitAbandoned {
		o := s
		o.guard = commitOver
		if s.node != keepNone && s.gen == s.under && s.after && s.holder() >= 0 {
			o.bad = keepLate
		}
		do(true, o, "the guarded commit arrives")
	}
	if s.over && s.node != keepNone {
		o := s
		o.remove()
		do(true, o, "the service ends the session")
	}
}

// client adds the steps of the goroutine of the kept lock, and of the watch of a hold after it.
func (m *keepModel) client(s keepState, do keepDo) {
	contended := s.dirFired && !(m.rules.lookAgain && s.again) || s.ownFired && !m.rules.revokeHeld || s.arming == armFailed && !m.rules.unarmed
	if m.rules.onlyStanding && s.dirFired && s.newcomer != newWaits && s.newcomer != newTries && !s.ownFired {
		contended = false
	}
	switch {
	case s.kept == keptIdle && contended && !s.over:
		o := s
		o.kept, o.recent = keptEnding, true
		if m.rules.idleKept {
			o.kept = keptIdle
			o.dirFired, o.ownFired = false, false
		}
		do(true, o, "the idle client gives way")
	case s.kept == keptHeld && contended:
		o := s
		o.kept, o.recent = keptOver, true
		do(true, o, "the kept lock ends by contention")
	case s.kept == keptIdle && s.over && !m.rules.closeWaits:
		o := s
		o.kept = keptNone
		o.advance()
		do(true, o, "the idle kept lock ends with its session")
	case s.kept == keptEnding:
		o := s
		o.kept = keptNone
		m.release(&o)
		do(true, o, "the node is deleted")
	}
	// WatchNode of a hold after the kept lock.
	if i := s.holder(); i >= 0 && (s.kept == keptOver || m.rules.revokeHeld) && !s.over {
		o := s
		switch {
		case s.ownFired && s.node == keepNone:
			o.finish(int8(i), keepAway)
			o.kept = keptNone
			o.advance()
			do(true, o, "the holder learns that its node is deleted")
		case s.ownFired:
			o.ownFired, o.ownArmed, o.read = false, true, s.written
			do(true, o, "the holder reads its node")
		case !s.ownArmed && s.wire == [3]keepEvent{} && s.arming != armBegun && !m.rules.watchOfHold:
			o.ownArmed, o.read = true, s.written
			if s.node == keepNone {
				o.finish(int8(i), keepAway)
				o.kept = keptNone
				o.advance()
			}
			do(true, o, "the holder watches its node")
		}
	}
}

// release is the commit of a release as without Keep: it deletes the node, and creates one for
// the first local waiter.
func (m *keepModel) release(s *keepState) {
	if !s.over {
		s.remove()
		for i := range s.pc {
			if s.pc[i] == keepQueued {
				m.create(s, int8(i))
				return
			}
		}
		return
	}
	s.advance()
}

// mayKeep is the test of a release.
func (m *keepModel) mayKeep(s *keepState, i int8) bool {
	live := s.kept == keptHeld || m.rules.overPasses && s.kept == keptOver && s.node == keepFirst && !s.behind
	fired := (s.dirFired && !m.rules.lookAgain && !m.rules.onlyStanding && !m.rules.overPasses) || s.ownFired && !m.rules.revokeHeld
	guard := s.of == i+1 && s.stands &&
		(s.guard == commitSent && !m.rules.guardUntested || s.guard == commitAbandoned && !m.rules.guardAbandon || s.ops && !m.rules.guardOps)
	return live && !fired && !guard && !s.over
}

func (m *keepModel) caller(s keepState, i int8, do keepDo) {
	j := 1 - i
	o := s
	switch s.pc[i] {
	case keepAway:
		if s.locks == 0 || s.over {
			return
		}
		o.locks--
		o.ended[i] = false
		switch {
		case s.kept == keptIdle && (!s.dirFired && !s.ownFired || m.rules.lookAgain || m.rules.onlyStanding), m.rules.notFinal && s.kept == keptEnding:
			o.pc[i] = keepServed
			if s.kept == keptIdle {
				o.kept = keptHeld
			}
		case s.turn():
			o.pc[i] = keepQueued
		default:
			o.pc[i] = keepEnters
		}
		do(false, o, "caller %d locks", i)
	case keepQueued:
		if s.giveUps > 0 {
			o.giveUps--
			o.pc[i] = keepAway
			do(false, o, "queued caller %d gives up", i)
		}
	case keepEnters:
		if s.over {
			o.pc[i] = keepAway // it continues with the next session, which is another client here
			o.advance()
		} else {
			m.create(&o, i)
		}
		do(true, o, "caller %d enters", i)
	case keepServed:
		if s.giveUps > 0 && !s.ended[i] {
			e := s
			e.giveUps--
			e.ended[i] = true
			do(false, e, "the context of caller %d, which was passed the turn, ends", i)
		}
		switch {
		case s.ended[i] && m.rules.turnDropped:
			o.pc[i] = keepAway
		case s.over && !m.rules.leaseUntested:
			o.kept = keptNone
			o.pc[i] = keepEnters
		case s.ownFired && !m.rules.revokeHeld || s.data != i && m.data && !m.rules.anyData:
			// The node is removed, and the caller takes a new one.
			o.remove()
			o.kept, o.pc[i] = keptNone, keepEnters
			o.recent = o.recent || s.ownFired
		default:
			if s.data != i && m.data {
				o.bad = keepWrongData
			}
			if m.rules.overPasses && s.kept == keptOver && s.newcomer == newWaits {
				o.bad = keepOvertakes
			}
			o.grant(i)
		}
		do(true, o, "caller %d is granted in memory, or not", i)
	case keepWaits:
		switch {
		case s.over:
			o.pc[i] = keepAway
			o.kept = keptNone
			o.advance()
			do(true, o, "caller %d loses its session", i)
		case s.node == keepNone:
			o.pc[i], o.kept = keepEnters, keptNone
			do(true, o, "caller %d finds its node deleted", i)
		case s.node == keepFirst:
			if m.rules.notAlone {
				o.kept = keptHeld
			}
			o.grant(i)
			do(true, o, "caller %d is granted", i)
		}
	case keepHolds:
		switch {
		case s.over:
			o.finish(i, keepAway)
			o.kept = keptNone
			o.advance()
			do(true, o, "caller %d loses its hold", i)
			return
		case s.kept == keptHeld && s.arming == armNot:
			b := s
			b.arm()
			do(false, b, "the hold grows old, and its watches are armed")
		}
		if s.guards > 0 {
			g := s
			g.guards--
			g.of, g.under, g.stands, g.after = i+1, s.gen, true, false
			do(false, g, "caller %d takes its guard", i)
		}
		if s.guard == commitSent && s.of == i+1 && s.stands {
			g := s
			g.guard = commitAbandoned
			do(false, g, "caller %d abandons its commit", i)
		}
		keep := m.mayKeep(&s, i)
		if keep && s.arming == armNot {
			o.arm()
		}
		if s.kept == keptHeld && (s.dirFired || s.ownFired) {
			o.recent = true
		}
		if m.rules.watchOfHold {
			o.ownArmed, o.ownFired = false, false
		}
		switch {
		case keep && s.pc[j] == keepQueued && (!m.data || m.rules.anyData):
			o.finish(i, keepAway)
			o.pc[j] = keepServed
		case keep && s.pc[j] == keepQueued:
			o.finish(i, keepRemoves)
			o.kept = keptOver
		case keep && m.rules.idleUnlocked:
			o.finish(i, keepMarks)
		case keep:
			o.finish(i, keepAway)
			o.kept = keptIdle
		default:
			o.finish(i, keepRemoves)
			o.kept = keptOver
		}
		do(false, o, "caller %d releases", i)
	case keepMarks:
		o.pc[i] = keepAway
		o.kept = keptIdle
		if s.kept == keptOver {
			o.dirFired, o.ownFired = false, false // the goroutine has handled them
		}
		do(true, o, "caller %d marks the kept lock as idle", i)
	case keepRemoves:
		o.pc[i], o.kept = keepAway, keptNone
		m.release(&o)
		do(true, o, "the node of caller %d is deleted", i)
	}
	if s.of != i+1 || s.guard != commitNone {
		return
	}
	// The operations of the guard can be committed at any time, a Txn under it while the hold
	// stands.
	g := s
	if s.stands && !s.ops {
		g.ops = true
		do(false, g, "caller %d takes the operations of its guard", i)
		g.ops = false
	}
	if s.stands || s.ops || m.rules.guardEnded {
		g.guard = commitSent
		do(false, g, "caller %d commits under its guard", i)
	}
}

// other adds the steps of the newcomer.
func (m *keepModel) other(s keepState, do keepDo) {
	o := s
	switch s.newcomer {
	case newAway:
		o.dirChange()
		o.newcomer = newWaits
		if s.node == keepNone {
			o.newcomer = newHolds
		}
		do(false, o, "the newcomer locks")
		if s.node != keepNone {
			o.newcomer = newTries
			if s.kept == keptIdle && s.metGen != s.gen {
				o.metGen = s.gen
				if o.met++; o.met > 1 {
					o.bad = keepMetAgain
				}
			}
			do(false, o, "the newcomer tries")
		}
	case newTries:
		o.leave()
		if s.tries > 0 {
			o.tries--
			o.newcomer = newAway
		}
		o.inVain = s.node == keepFirst
		o.dirChange()
		do(true, o, "the newcomer withdraws")
	case newWaits:
		if s.node != keepFirst {
			o.newcomer = newHolds
			do(true, o, "the newcomer is granted")
		}
	case newHolds:
		o.leave()
		o.dirChange()
		do(false, o, "the newcomer releases")
	}
}

func (m *keepModel) faults(s keepState, do keepDo) {
	if s.recent {
		o := s
		o.recent, o.met = false, 0
		do(false, o, "the time after the contention is over")
	}
	if s.reconnects > 0 && s.arming == armDone && !s.over {
		o := s
		o.reconnects--
		o.wire = [3]keepEvent{}
		o.dirArmed, o.ownArmed = false, false
		o.dirFired, o.ownFired, o.again = true, true, true
		if m.rules.lookAgain {
			// Only the watch on the own node is armed again.
			o.ownFired, o.ownArmed = s.ownMoved, !s.ownMoved
		}
		do(false, o, "the client reconnects")
	}
	if s.losses > 0 && !s.over {
		o := s
		o.losses--
		o.over = true
		if i := s.holder(); i >= 0 {
			o.finish(int8(i), keepAway)
			o.kept = keptNone
			o.advance()
		}
		do(false, o, "the session is lost")
	}
	if s.deletes > 0 && s.node != keepNone {
		o := s
		o.deletes--
		o.remove()
		o.mustEnd = true
		do(false, o, "an outsider deletes the node")
	}
	if s.writes > 0 && s.node != keepNone {
		o := s
		o.writes--
		o.written = true
		o.ownChange()
		do(false, o, "a request to release is written")
	}
	if s.fails > 0 && s.arming == armBegun {
		o := s
		o.fails--
		o.arming = armFailed
		do(false, o, "the arming fails")
	}
}

// judge checks the state after a step.
func (m *keepModel) judge(s *keepState) {
	i := s.holder()
	switch {
	case s.bad != "" || i < 0 || s.mustEnd:
	case s.newcomer == newHolds:
		s.bad = keepTwo
	case s.node == keepNone && !s.over:
		s.bad = keepNoNode
	}
}

// atRest returns the error of a state in which nobody does anything without a decision.
func (m *keepModel) atRest(s *keepState) error {
	h := s.holder()
	switch {
	case s.newcomer == newWaits && h < 0:
		return keepStarves
	case s.written && s.node == keepFirst && h < 0:
		return keepNotRead
	case s.inVain && s.kept == keptIdle && s.node == keepFirst:
		return keepInVain
	case (s.pc[0] == keepQueued || s.pc[1] == keepQueued) && !s.pc[0].hasTurn() && !s.pc[1].hasTurn():
		return keepLostTurn
	case h >= 0 && s.node == keepNone && s.arming != armNot:
		return keepNotTold
	case h >= 0 && s.written && !s.read && s.arming != armNot:
		return keepNotRead
	}
	return nil
}

func (m *keepModel) explore(t *testing.T) Result[keepAction] {
	t.Helper()
	return exploreAll(t, "of Keep", Model[keepState, keepAction]{Start: m.scope, Next: m.next, Free: func(a keepAction) bool { return a.free }})
}

func TestAKeptLockKeepsItsGuarantees(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*keepModel{
		"an outsider":    {scope: keepState{locks: 3, reconnects: 1, deletes: 1, writes: 1}},
		"guards":         {scope: keepState{locks: 3, reconnects: 1, guards: 1}},
		"lost sessions":  {scope: keepState{locks: 3, losses: 1, fails: 1, deletes: 1, giveUps: 1}},
		"tries":          {scope: keepState{locks: 4, tries: 2, reconnects: 1}},
		"different data": {scope: keepState{locks: 3, reconnects: 1, losses: 1, giveUps: 1}, data: true},
	} {
		t.Run(name, func(t *testing.T) {
			mustHold(t, m.explore(t))
		})
	}
}

// Each rule is needed: without it a guarantee is violated in the way that the trace shows.
func TestAKeptLockWithoutOneOfItsRules(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name  string
		rules keepRules
		scope keepState
		data  bool
		fault error
	}{
		{"only changes after the arming are contention", keepRules{sinceArmed: true}, keepState{locks: 2}, false, keepStarves},
		{"a kept lock without a watch", keepRules{unarmed: true}, keepState{locks: 2, fails: 1}, false, keepStarves},
		{"LookAgain is no contention", keepRules{lookAgain: true}, keepState{locks: 2, reconnects: 1}, false, keepStarves},
		{"contention only by a node that stands", keepRules{onlyStanding: true}, keepState{locks: 2}, false, keepInVain},
		{"contention does not end an idle kept lock", keepRules{idleKept: true}, keepState{locks: 2}, false, keepStarves},
		{"a turn in memory after contention", keepRules{overPasses: true}, keepState{locks: 3}, false, keepOvertakes},
		{"contention is tested before the mutex is locked", keepRules{idleUnlocked: true}, keepState{locks: 1}, false, keepStarves},
		{"a Lock takes a node that is being given up", keepRules{notFinal: true}, keepState{locks: 2}, false, keepNoNode},
		{"the watch on the own node ends with the hold", keepRules{watchOfHold: true}, keepState{locks: 2, writes: 1}, false, keepNotRead},
		{"the session is not tested at a grant in memory", keepRules{leaseUntested: true}, keepState{locks: 2, losses: 1}, false, keepTwo},
		{"a waiter whose context has ended drops the turn", keepRules{turnDropped: true}, keepState{locks: 2, giveUps: 1}, false, keepStarves},
		{"a guarded commit under way", keepRules{guardUntested: true}, keepState{locks: 2, guards: 1}, false, keepLate},
		{"a guarded commit that was abandoned", keepRules{guardAbandon: true}, keepState{locks: 2, guards: 1}, false, keepLate},
		{"the operations of a guard", keepRules{guardOps: true}, keepState{locks: 2, guards: 1}, false, keepLate},
		{"a guard of an ended hold", keepRules{guardEnded: true}, keepState{locks: 2, guards: 1}, false, keepLate},
		{"a revocation does not end the kept lock", keepRules{revokeHeld: true}, keepState{locks: 2, writes: 1}, false, keepNotRead},
		{"a turn in memory with other data", keepRules{anyData: true}, keepState{locks: 2}, true, keepWrongData},
		{"a kept lock begins soon after contention", keepRules{keptAgain: true}, keepState{locks: 3, tries: 1}, false, keepMetAgain},
		{"a kept lock begins with a grant that had to wait", keepRules{notAlone: true}, keepState{locks: 2}, false, keepExtra},
		{"a lost session leaves the kept lock idle", keepRules{closeWaits: true}, keepState{locks: 2, losses: 1}, false, keepLostTurn},
	} {
		t.Run(v.name, func(t *testing.T) {
			mustViolate(t, (&keepModel{rules: v.rules, scope: v.scope, data: v.data}).explore(t), v.fault, 0)
		})
	}
}
