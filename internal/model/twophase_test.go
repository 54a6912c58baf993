//go:build !race

package model

import (
	"fmt"
	"testing"
)

// The exhaustive model of the two-phase commit: a proposer, two sites, and two successive
// transactions with the same id, in every order of their steps. Each step is one read or one
// commit. Requests are lost. Processes crash and restart at any step, or lose their sessions,
// and their pending requests are applied at any later time, or never.

const pactSites = 2

// The content of a branch.
const (
	branchGone int8 = iota
	branchEmpty
	branchYes
	branchNo
)

// Decisions.
const (
	pactOpen int8 = iota // undecided
	pactCommit
	pactAbort
)

// The progress of a site with a transaction.
const (
	siteIdle   int8 = iota
	siteRecord      // has read the branch; reads the record
	siteVotes       // has read that there is no decision; has to vote
	siteSends       // has prepared; sends its vote
	siteAcks        // has read the decision and called its callback
)

type pactSite struct {
	pc       int8
	on       int8 // its current transaction, from 0
	branch   int8 // as read
	prepared [2]bool
	yes      [2]bool // a vote that was under way when it crashed
	ack      [2]int8 // an acknowledgement that was under way when it crashed, of a branch with this content
	away     bool    // it is permanently not served: its branches may be removed
}

// pactState is the state of the service and of all processes.
type pactState struct {
	record   int8 // the transaction whose record exists, from 1; 0 for none
	made     int8 // number of records made so far
	open     bool
	decision int8               // in the record
	vote     [pactSites]bool    // in the record
	branch   [2][pactSites]int8 // of both transactions
	acted    [2]int8            // callbacks called: bits 1<<pactCommit, 1<<pactAbort
	once     bool               // the first transaction was committed
	live     int8               // the transaction that a Propose waits for, from 1
	late     bool               // a dead proposer's record may be applied
	orphan   bool               // it was applied, as the second transaction
	stale    int8               // a process has read that this transaction is undecided
	site     [pactSites]pactSite
	crashes  int8 // crashes left
}

// pactRules are the rules that a mutant breaks.
type pactRules struct {
	abortsAlone   bool // a site without a vote aborts without a decision
	noIdentity    bool // a vote names no transaction: it is applied to the existing record
	overwritten   bool // the decision is set, not created
	anyoneCommits bool // any process that sees all votes decides commit
	collectEarly  bool // the record is deleted without the acknowledgements
	anyBranch     bool // an acknowledgement deletes the branch whatever its content
	uncheckedVote bool // commit is decided without another check of the votes
	deathDecides  bool // a proposer treats the end of a site's presence as the decision
	removesBranch bool // the removal of a site deletes its branch, and not its vote
}

type pactModel struct {
	rules pactRules
	most  int8 // records at most
	start pactState
	seen  map[pactState]struct{}
	todo  []pactState
	bad   string
	rest  int
	done  map[string]int // number of events by kind
}

func (m *pactModel) fail(s *pactState, what string) {
	if m.bad == "" {
		m.bad = fmt.Sprintf("%s: %+v", what, *s)
	}
}

func (m *pactModel) add(s pactState) {
	s.normal()
	if _, ok := m.seen[s]; !ok {
		m.seen[s] = struct{}{}
		m.todo = append(m.todo, s)
	}
}

// normal clears values that do not matter any more, and orders the sites, which are
// interchangeable.
func (s *pactState) normal() {
	for x := range int8(2) {
		over := s.record != x+1
		for i := range s.site {
			c := &s.site[i]
			over = over && s.branch[x][i] == branchGone && !c.yes[x] && c.ack[x] == branchGone && (c.pc == siteIdle || c.on != x)
		}
		for i := range s.site {
			if over || s.record == x+1 && s.decision != pactOpen {
				s.site[i].prepared[x] = false
			}
		}
		if over {
			s.acted[x] = 0
		}
	}
	if s.rank(0) > s.rank(1) {
		s.site[0], s.site[1] = s.site[1], s.site[0]
		s.vote[0], s.vote[1] = s.vote[1], s.vote[0]
		for x := range s.branch {
			s.branch[x][0], s.branch[x][1] = s.branch[x][1], s.branch[x][0]
		}
	}
}

// rank is a number of the whole state of site i.
func (s *pactState) rank(i int) (n uint64) {
	c := &s.site[i]
	digit := func(d int8) { n = n*8 + uint64(d) }
	flag := func(b bool) {
		n *= 2
		if b {
			n++
		}
	}
	digit(c.pc)
	digit(c.on)
	digit(c.branch)
	flag(c.away)
	flag(s.vote[i])
	for x := range 2 {
		flag(c.prepared[x])
		flag(c.yes[x])
		digit(c.ack[x])
		digit(s.branch[x][i])
	}
	return n
}

func (m *pactModel) run() {
	m.seen, m.done = make(map[pactState]struct{}), make(map[string]int)
	m.add(m.start)
	for len(m.todo) > 0 && m.bad == "" {
		s := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		m.next(s)
	}
}

// make makes a record.
func (s *pactState) make() {
	s.made++
	s.record, s.open, s.decision = s.made, true, pactOpen
	s.vote = [pactSites]bool{}
	for i := range pactSites {
		s.branch[s.made-1][i] = branchEmpty
	}
}

func (m *pactModel) decide(s *pactState, d int8) {
	if s.decision != pactOpen && !m.rules.overwritten {
		return
	}
	s.decision = d
	if d != pactCommit {
		return
	}
	if s.orphan && s.once {
		m.fail(s, "a proposal was committed twice")
	}
	s.once = s.late
	for i := range s.site {
		if !s.site[i].prepared[s.record-1] {
			m.fail(s, fmt.Sprintf("commit although site %d has not prepared", i))
		}
	}
}

// act calls a callback for transaction x.
func (m *pactModel) act(s *pactState, x, what int8) {
	s.acted[x] |= 1 << what
	if s.acted[x] == 1<<pactCommit|1<<pactAbort {
		m.fail(s, "committed at one site and aborted at another")
	}
}

// next adds all states that can follow s.
func (m *pactModel) next(s pactState) {
	moves := false
	move := func(step func(o *pactState)) {
		o := s
		step(&o)
		m.add(o)
		moves = true
	}
	m.proposer(s, move)
	m.anybody(s, move)
	for i := range s.site {
		m.siteStep(s, i, move)
	}
	if !moves {
		m.rest++
		for x := range s.branch {
			for i := range pactSites {
				if s.branch[x][i] != branchGone {
					m.fail(&s, "at rest with a branch left")
				}
			}
		}
		if s.record != 0 {
			m.fail(&s, "at rest with a record left")
		}
	}
	m.faults(s)
}

func (m *pactModel) proposer(s pactState, move func(func(*pactState))) {
	votes := s.record != 0 && s.decision == pactOpen
	for i := range pactSites {
		votes = votes && s.vote[i]
	}
	switch {
	case s.live == 0 && s.record == 0 && s.made < m.most && !s.orphan:
		move(func(o *pactState) { o.make(); o.live = o.record })
	case s.live == 0 && s.record != 0 && s.open && !(s.orphan && s.record == 2):
		move(func(o *pactState) { o.live = o.record }) // a retry joins
	}
	if votes && (s.live == s.record || m.rules.anyoneCommits) {
		move(func(o *pactState) { m.done["commit"]++; m.decide(o, pactCommit) })
	}
	if m.rules.uncheckedVote && s.live == s.record && s.record != 0 && s.decision == pactOpen && s.site[0].yes[s.record-1] && s.vote[1] {
		move(func(o *pactState) { m.decide(o, pactCommit) }) // it was under way
	}
	for i := range s.site {
		// The site is not served, and has not voted. Here it can only abort, as any process
		// can.
		if s.site[i].away && s.live == s.record && s.record != 0 && s.decision == pactOpen && s.open && !s.vote[i] {
			move(func(o *pactState) {
				m.done["abort for a removed site"]++
				if m.rules.deathDecides {
					o.open, o.live = false, 0
				} else {
					m.decide(o, pactAbort)
				}
			})
		}
	}
	if s.record != 0 && s.decision != pactOpen && s.open {
		move(func(o *pactState) { o.open, o.live = false, 0 }) // the outcome is returned, by Propose or by Recover
	}
}

// anybody adds the steps that any process may take.
func (m *pactModel) anybody(s pactState, move func(func(*pactState))) {
	if s.record == 0 {
		return
	}
	if s.decision == pactOpen && s.open {
		move(func(o *pactState) { m.done["abort"]++; m.decide(o, pactAbort) })
		if m.rules.overwritten && s.stale != s.record {
			move(func(o *pactState) { o.stale = o.record })
		}
	}
	if s.stale == s.record && s.decision != pactOpen {
		move(func(o *pactState) { m.decide(o, pactAbort); o.stale = 0 })
	}
	free := s.decision != pactOpen && !s.open
	for i := range pactSites {
		free = free && (!s.vote[i] || m.rules.collectEarly)
	}
	if free {
		move(func(o *pactState) {
			m.done["collected"]++
			o.record, o.decision, o.stale = 0, pactOpen, 0
			o.vote = [pactSites]bool{}
		})
	}
}

func (m *pactModel) siteStep(s pactState, i int, move func(func(*pactState))) {
	c := s.site[i]
	x := c.on
	switch c.pc {
	case siteIdle:
		if c.away {
			m.remove(&s, i, move)
			break
		}
		for x := range int8(2) {
			if b := s.branch[x][i]; b != branchGone && !m.waits(&s, i, x) {
				move(func(o *pactState) { o.site[i].pc, o.site[i].on, o.site[i].branch = siteRecord, x, b })
			}
		}
	case siteRecord:
		move(func(o *pactState) { m.look(o, i) })
	case siteVotes:
		move(func(o *pactState) { // yes
			o.site[i].prepared[x], o.site[i].pc = true, siteSends
		})
		move(func(o *pactState) { // no
			if o.record == x+1 && o.open && o.branch[x][i] == branchEmpty && o.decision == pactOpen {
				o.branch[x][i] = branchNo
				m.decide(o, pactAbort)
				m.done["no"]++
			}
			o.site[i].idle()
		})
	case siteSends:
		move(func(o *pactState) { m.land(o, i, x); o.site[i].idle() })
	case siteAcks:
		move(func(o *pactState) { m.acknowledge(o, i, x, c.branch); o.site[i].idle() })
	}
	for x := range int8(2) {
		if c.yes[x] {
			move(func(o *pactState) { m.land(o, i, x); o.site[i].yes[x] = false })
		}
		if c.ack[x] != branchGone {
			move(func(o *pactState) { m.acknowledge(o, i, x, c.ack[x]); o.site[i].ack[x] = branchGone })
		}
	}
}

// remove acknowledges for a site that is permanently gone, one branch in each step.
func (m *pactModel) remove(s *pactState, i int, move func(func(*pactState))) {
	for x := range int8(2) {
		b := s.branch[x][i]
		stands := s.record == x+1
		switch {
		case b == branchGone:
		case stands && s.decision == pactOpen:
			if b == branchEmpty && s.open { // votes no in its place
				move(func(o *pactState) {
					o.branch[x][i] = branchNo
					m.decide(o, pactAbort)
				})
			}
		default:
			move(func(o *pactState) {
				m.done["removed"]++
				if o.branch[x][i] = branchGone; b == branchYes && stands && !m.rules.removesBranch {
					o.vote[i] = false
				}
			})
		}
	}
}

// waits reports whether an idle site has nothing to do about a transaction until a change.
func (m *pactModel) waits(s *pactState, i int, x int8) bool {
	return s.branch[x][i] == branchYes && s.record == x+1 && s.decision == pactOpen
}

func (c *pactSite) idle() { c.pc, c.on, c.branch = siteIdle, 0, 0 }

// look reads record and decision, after the branch, and acts on them.
func (m *pactModel) look(s *pactState, i int) {
	c := &s.site[i]
	x := c.on
	if s.record != x+1 {
		if c.branch != branchYes {
			m.act(s, x, pactAbort) // without this site's vote there is no commit
			c.pc = siteAcks
			return
		}
		if s.branch[x][i] == branchYes { // the branch is read again before it counts
			m.fail(s, fmt.Sprintf("site %d is in doubt", i))
		}
		c.idle()
		return
	}
	switch {
	case s.decision == pactCommit && c.branch != branchYes:
		c.idle() // the branch was read too early
	case s.decision != pactOpen:
		m.act(s, x, s.decision)
		c.pc = siteAcks
	case c.branch == branchEmpty && c.prepared[x] && m.rules.abortsAlone:
		m.act(s, x, pactAbort)
		c.pc = siteAcks
	case c.branch == branchEmpty:
		c.pc = siteVotes
	default:
		c.idle()
	}
}

// land applies a yes of site i for transaction x, if that is possible.
func (m *pactModel) land(s *pactState, i int, x int8) {
	if m.rules.noIdentity && s.record != 0 {
		x = s.record - 1
	}
	if s.record == x+1 && s.open && s.branch[x][i] == branchEmpty {
		s.branch[x][i], s.vote[i] = branchYes, true
		m.done["yes"]++
	}
}

// acknowledge applies an acknowledgement if the branch still has the content that was read.
func (m *pactModel) acknowledge(s *pactState, i int, x, b int8) {
	if s.branch[x][i] == branchGone || s.branch[x][i] != b && !m.rules.anyBranch {
		return
	}
	s.branch[x][i] = branchGone
	if b == branchYes && s.record == x+1 {
		s.vote[i] = false
	}
	m.done["acknowledged"]++
}

// faults adds the faults.
func (m *pactModel) faults(s pactState) {
	if s.late && s.record == 0 && s.made == 1 {
		o := s
		o.make()
		o.late, o.orphan = false, true
		m.done["late record"]++
		m.add(o)
	}
	for i := range s.site {
		c := s.site[i]
		o := s
		for x := range 2 { // requests under way never arrive
			o.site[i].yes[x], o.site[i].ack[x] = false, branchGone
		}
		m.add(o)
		if c.pc == siteSends || c.pc == siteAcks { // the request is lost
			o = s
			o.site[i].idle()
			m.add(o)
		}
	}
	if s.crashes == 0 {
		return
	}
	s.crashes--
	if s.live != 0 {
		o := s
		o.live = 0
		m.add(o)
	}
	for i := range s.site {
		c, o := s.site[i], s
		switch c.pc {
		case siteIdle:
			if !c.away {
				o.site[i].away = true
				m.add(o)
			}
			continue
		case siteSends:
			o.site[i].yes[c.on] = true
		case siteAcks:
			o.site[i].ack[c.on] = c.branch
		}
		o.site[i].idle()
		m.done["crash"]++
		m.add(o)
	}
}

// pactScenes: one transaction and many crashes; one in which a dead proposer's record is
// applied after a retry has ended; and two successive transactions with the same id.
func pactScenes(rules pactRules) []pactModel {
	scenes := []pactModel{
		{most: 1, start: pactState{crashes: 4}},
		{most: 1, start: pactState{crashes: 1, late: true}},
		{most: 2, start: pactState{crashes: 1}},
	}
	if long() {
		scenes[0].start.crashes = 8
		scenes[1].start.crashes, scenes[2].start.crashes = 2, 2
	}
	for i := range scenes {
		scenes[i].rules = rules
	}
	return scenes
}

func TestTheTwoPhaseCommitInEveryOrderOfSteps(t *testing.T) {
	t.Parallel()
	states, rest, done := 0, 0, make(map[string]int)
	for _, m := range pactScenes(pactRules{}) {
		m.run()
		if m.bad != "" {
			t.Fatal(m.bad)
		}
		t.Logf("%d states, %d at rest, %v", len(m.seen), m.rest, m.done)
		states += len(m.seen)
		rest += m.rest
		for what, n := range m.done {
			done[what] += n
		}
	}
	t.Logf("figure: model of the two-phase commit: %d states, %d at rest, %v", states, rest, done)
	for _, what := range []string{"yes", "no", "commit", "abort", "acknowledged", "collected", "late record", "crash", "abort for a removed site", "removed"} {
		if done[what] == 0 {
			t.Errorf("%q never happened", what)
		}
	}
	if rest == 0 {
		t.Error("nothing ever ends")
	}
}

// Each rule of the protocol is needed, and the model detects its absence.
func TestTheModelOfTheTwoPhaseCommitCatchesEachMutant(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]pactRules{
		"a site that sees no vote of its own aborts alone": {abortsAlone: true},
		"a vote names no transaction":                      {noIdentity: true},
		"the decision is overwritten":                      {overwritten: true},
		"any process that sees all votes commits":          {anyoneCommits: true},
		"the record is deleted before it is acknowledged":  {collectEarly: true},
		"an acknowledgement ignores the version":           {anyBranch: true},
		"a vote that is under way counts":                  {uncheckedVote: true},
		"the end of a site's presence is the decision":     {deathDecides: true},
		"a removed site leaves its vote":                   {removesBranch: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range pactScenes(rules) {
				m.run()
				if m.bad != "" {
					t.Logf("after %d states: %.70s", len(m.seen), m.bad)
					return
				}
			}
			t.Error("the model found nothing wrong")
		})
	}
}
