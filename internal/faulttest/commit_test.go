//go:build linux

package faulttest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zklog"
)

const (
	commitTimeout  = 3 * time.Second // of the sessions
	commitDeadline = 4 * time.Second // of the transactions
	// commitSlack is for new processes, and for servers that notice the end of a session one
	// tick later.
	commitSlack = 5 * time.Second
	// longestBlock is the longest time that any process may have to wait, whichever process
	// fails.
	longestBlock = commitTimeout + commitDeadline + commitSlack

	commitRoot = "/commits"
)

// commitRoles are the processes of a transaction.
var commitRoles = []string{"coordinator", "a", "b"}

// commitCell is one cell of the matrix: the process that fails, the request at which it
// fails, and the way.
type commitCell struct {
	role string
	n    int64
	how  string
	// Further variants.
	no      bool // site b votes no
	recover bool // a dead proposer is followed by a Recover, not by the same Propose
}

func (c commitCell) String() string {
	vote, after := "yes", "propose again"
	if c.no {
		vote = "no"
	}
	if c.recover {
		after = "recover"
	}
	if c.how == noBlow {
		return fmt.Sprintf("%s; b votes %s", c.how, vote)
	}
	return fmt.Sprintf("%s, request %d: %s; b votes %s; %s", c.role, c.n, c.how, vote, after)
}

// TestATransactionOfProcessesSurvivesAFaultAtEveryRequest runs transactions whose coordinator
// and sites are separate processes, on three servers. One of the processes fails at one of
// its requests. In the end the log of the servers and the reports of all processes must agree
// with each other and with the protocol.
func TestATransactionOfProcessesSurvivesAFaultAtEveryRequest(t *testing.T) {
	ensemble.Require(t)
	m := newMatrix(t, startServers(t, shortSync))
	// Without a fault, to count the requests.
	m.run(2, []commitCell{{how: noBlow}, {how: noBlow, no: true}})
	var cells []commitCell
	for _, role := range commitRoles {
		for _, how := range []string{killBefore, killAfter, killLate, expiryBefore, expiryAfter, lostRequest, lostReply} {
			for _, no := range []bool{false, true} {
				for n := range m.requests[part{role, no}] {
					cells = append(cells, commitCell{role, n + 1, how, no, rand.N(2) == 0})
				}
			}
		}
	}
	if !long() {
		cells = sample(cells, 2*len(blows))
	}
	m.run(8, cells)
	m.conclude()
}

// sample picks cells with an equal share of each kind of failure and each role.
func sample(cells []commitCell, n int) []commitCell {
	rand.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
	var picked []commitCell
	hows, roles := make(map[string]int), make(map[string]int)
	for range n {
		best := 0
		for i, c := range cells {
			if hows[c.how]+roles[c.role] < hows[cells[best].how]+roles[cells[best].role] {
				best = i
			}
		}
		c := cells[best]
		picked, cells = append(picked, c), slices.Delete(cells, best, best+1)
		hows[c.how]++
		roles[c.role]++
	}
	return picked
}

// matrix holds the ensemble and the reports of all processes.
type matrix struct {
	t     *testing.T
	e     servers
	c     *coord.Client // not affected by faults
	pace  *pace.Meter   // of the machine and of that client's session
	clock time.Duration // offset of the wall clock from the monotonic clock

	mu       sync.Mutex
	requests map[part]int64
	cells    int
	struck   map[string]int // cells by the way in which a process failed
	left     int            // records that only a Recover removed
	missed   int            // cells with fewer requests than the fault needs
	lines    []line         // reports of all processes
	waits    figures[time.Duration]
	late     []sender
	lost     time.Duration // the most that the machine lost during a cell
}

// part is the role of a process in a transaction.
type part struct {
	role string
	no   bool // site b votes no
}

func (p part) String() string {
	if p.no {
		return p.role + " if b votes no"
	}
	return p.role
}

// sender is the session of a killed process, and the time when it was killed.
type sender struct {
	session int64
	killed  time.Time
}

func newMatrix(t *testing.T, e servers) *matrix {
	t.Helper()
	m := &matrix{t: t, e: e, clock: wallOffset(), struck: make(map[string]int), requests: make(map[part]int64)}
	var err error
	m.c, err = coord.Open(t.Context(), backendAt(e.Addrs(), mostTimeout, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.c.Close() })
	m.pace = pace.Start(t, func() {
		if s, err := m.c.Session(t.Context()); err == nil {
			_ = s.Sync(t.Context(), "/")
		}
	})
	return m
}

// run runs cells, as many at once as there are lanes.
func (m *matrix) run(lanes int, cells []commitCell) {
	m.t.Helper()
	free := make(chan struct{}, lanes)
	var wg sync.WaitGroup
	for _, c := range cells {
		free <- struct{}{}
		if m.t.Failed() {
			break
		}
		wg.Go(func() {
			defer func() { <-free }()
			m.t.Run(c.String(), func(t *testing.T) { m.play(t, c) })
		})
	}
	wg.Wait()
}

// waited adds the time from the first Propose of a cell until a coordinator process learned
// the outcome. m.mu is held.
func (m *matrix) waited(t *testing.T, lines []line) {
	t.Helper()
	slices.SortFunc(lines, func(a, b line) int { return cmp.Compare(a.At, b.At) })
	began := time.Duration(0)
	for _, l := range lines {
		switch l.Kind {
		case "proposing":
			if began == 0 {
				began = l.At
			}
		case "told", "recovered": // a Recover without an outcome found no transaction
			wait := l.At - began
			m.waits.add(wait)
			if bound := longestBlock + m.lost; wait > bound {
				t.Errorf("the coordinator learned the outcome after %v, bound %v", wait, bound)
			}
			return
		}
	}
	t.Error("no coordinator learned the outcome")
}

// conclude reads the log and compares it with the reports of the processes.
func (m *matrix) conclude() {
	t := m.t
	t.Helper()
	h := newCommitHistory(commitRoot)
	h.partial = elsewhere()
	late := 0
	for _, x := range wholeLog(t, m.e) {
		h.apply(x)
		if x.Type != zklog.CloseSession && x.Err == 0 && slices.ContainsFunc(m.late, func(s sender) bool {
			return s.session == x.Session && x.Time.After(s.killed.Add(lateBy/2))
		}) {
			late++
		}
	}
	drift := wallOffset() - m.clock
	for _, l := range m.lines {
		h.said(l, m.clock, drift.Abs()+2*time.Millisecond)
	}
	h.end()
	for _, fault := range h.faults {
		t.Error(fault)
	}
	if bound := longestBlock + m.lost; len(h.waits) > 0 && h.waits.max() > bound {
		t.Errorf("a site was done after %v, bound %v", h.waits.max(), bound)
	}
	if len(h.waits) > 0 && max(h.waits.max(), m.waits.max()) > longestBlock {
		t.Logf("waits are judged without the time in which the machine did other work, up to %v during a transaction", m.lost)
	}
	if len(h.roots) != m.cells {
		t.Errorf("the log has %d recipes, want %d", len(h.roots), m.cells)
	}
	t.Logf("figure: requests of a coordinator and of the sites a and b: %v; %d cells, failed by %v, %d with no such request; %d writes of dead processes arrived late and were applied; %d records were left to Recover",
		m.requests, m.cells, m.struck, m.missed, late, m.left)
	t.Logf("figure: %d transactions in the log of the servers: %v; %d votes yes, %d no, %d acknowledgements; %d callbacks, %d told, faults found: %d",
		len(h.all), h.outcomes, h.count["yes"], h.count["no"], h.count["ack"], h.count["callback"], h.count["told"], len(h.faults))
	t.Logf("figure: session timeout %v, deadline %v: Propose to the news of its end, with Propose or Recover again after a kill, %v; the record to the acknowledgement of a site %v",
		commitTimeout, commitDeadline, m.waits, h.waits)
	if long() {
		for how := range blows {
			if m.struck[how] == 0 && how != noBlow {
				t.Errorf("%q never happened", how)
			}
		}
		if late == 0 && !elsewhere() { // whose line ends a request of a dead process
			t.Error("no write of a dead process arrived late")
		}
	}
}
