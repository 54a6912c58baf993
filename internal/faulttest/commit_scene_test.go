//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// scene is one running cell.
type scene struct {
	*stage
	m    *matrix
	root string
	cell commitCell
	all  []*actor
	at   map[string]*actor // the process in each role
	// The coordinator's last command, and the length of its output before that.
	doing string
	since int
	ended time.Time // when all processes had finished; zero before
	left  time.Time // since when only the record is left
	again time.Time // when Recover is due again, because of requests that may have arrived late
}

const commitID = "t"

func (m *matrix) play(t *testing.T, c commitCell) {
	m.mu.Lock()
	m.cells++
	s := &scene{stage: newStage(t, m.e), m: m, root: fmt.Sprintf("%s/%d", commitRoot, m.cells), cell: c, at: make(map[string]*actor)}
	m.mu.Unlock()
	lost := m.pace.Lost()
	s.inboxes()
	armed := make(map[string]*blow)
	for _, role := range commitRoles {
		a := s.process(role, role)
		if c.how == noBlow || c.role == role {
			armed[role] = strike(a, c.n, c.how)
		}
	}
	for _, site := range commitRoles[1:] {
		if site != c.role {
			s.serve(site)
			eventually(t, site+" is served", func() bool { return len(s.children("/serving/"+site)) > 0 })
		}
	}
	if c.role == "a" || c.role == "b" {
		s.serve(c.role)
	}
	s.coordinate("propose")
	b := armed[c.role]
	eventually(t, "the transaction ends: "+c.String(), func() bool {
		if b != nil && b.look() {
			s.replace(c.role)
		}
		if !s.over(b) {
			s.ended = time.Time{}
			return false
		}
		if s.ended.IsZero() {
			s.ended = time.Now()
		}
		// The last requests of a process find that no node is left.
		return b != nil && b.struck && !b.pending() || time.Since(s.ended) > 200*time.Millisecond
	})
	for _, a := range s.all {
		a.sound()
		a.Kill()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case b == nil:
	case b.struck:
		m.struck[c.how]++
		if c.how == killLate {
			m.late = append(m.late, sender{b.session(), b.killed})
		}
	default:
		m.missed++
	}
	var lines []line
	for _, a := range s.all {
		lines = append(lines, a.Reports()...)
	}
	m.lost = max(m.lost, m.pace.Lost()-lost)
	m.waited(t, lines)
	m.lines = append(m.lines, lines...)
	if c.how == noBlow {
		for role, b := range armed {
			m.requests[part{role, c.no}] = b.seen.Load()
		}
	}
}

// inboxes creates the inboxes by serving the sites for a moment: a proposal to a site that
// was never served is refused.
func (s *scene) inboxes() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	nothing := func(context.Context, coord.Branch[string]) error { return nil }
	for _, site := range commitRoles[1:] {
		p := coord.NewParticipant(s.m.c, s.root, site, coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing})
		wg.Go(func() {
			if err := p.Serve(ctx); !errors.Is(err, context.Canceled) {
				s.t.Errorf("%v", err)
			}
		})
	}
	eventually(s.t, "both sites have an inbox", func() bool { return len(s.children("/sites")) == 2 })
	cancel()
	wg.Wait()
}

// process starts a process in a role.
func (s *scene) process(role, name string) *actor {
	s.t.Helper()
	a := s.start(name, commitTimeout, 0)
	s.all = append(s.all, a)
	s.at[role] = a
	return a
}

func (s *scene) serve(site string) {
	s.t.Helper()
	vote := "yes"
	if site == "b" && s.cell.no {
		vote = "no"
	}
	s.at[site].tell(strings.Join([]string{"serve", s.root, site, vote}, " "))
}

// coordinate makes the coordinator propose or recover.
func (s *scene) coordinate(what string) {
	s.t.Helper()
	a := s.at["coordinator"]
	s.doing, s.since = what, a.mark()
	command := "recover " + s.root
	if what == "propose" {
		command = fmt.Sprintf("propose %s %s %s %d", s.root, commitID, strings.Join(commitRoles[1:], ","), commitDeadline.Milliseconds())
	}
	a.tell(command)
}

// replace starts another process in the role of a killed one.
func (s *scene) replace(role string) {
	s.t.Helper()
	told := role == "coordinator" && s.told()
	s.process(role, role+" again")
	switch {
	case role != "coordinator":
		s.serve(role)
	case told || s.cell.recover:
		s.coordinate("recover")
	default:
		s.coordinate("propose")
	}
}

// told reports whether the Propose of a dead coordinator has returned: by its report, or if
// it was killed before the report, by the node that it has removed. The same Propose again
// would be another transaction.
func (s *scene) told() bool {
	s.t.Helper()
	if _, ok := s.at["coordinator"].said("told", func(line) bool { return true }); ok {
		return true
	}
	names := strings.Join(s.children("/tx/"+commitID), " ")
	ended := strings.Contains(names, "decision-")
	for _, site := range commitRoles[1:] {
		_, committed := s.at[site].said("commit", func(line) bool { return true })
		_, aborted := s.at[site].said("abort", func(line) bool { return true })
		ended = ended || committed || aborted
	}
	return ended && !strings.Contains(names, "open-")
}

// over reports whether all processes have finished, and starts the coordinator's next step. A
// successor of a dead coordinator has to recover the transaction first.
func (s *scene) over(b *blow) bool {
	s.t.Helper()
	for _, a := range s.all {
		a.sound()
	}
	co := s.at["coordinator"]
	ended := map[string]string{"propose": "told", "recover": "recovered"}[s.doing]
	if _, ok := co.after(s.since, ended); !ok {
		return false
	}
	if co.name != "coordinator" && !b.pending() {
		late := b.how == killLate && s.doing == "recover"
		if late && s.again.IsZero() {
			s.again = time.Now().Add(commitTimeout / 4)
		}
		if s.doing == "propose" || late && time.Now().After(s.again) {
			s.again = time.Time{}
			s.coordinate("recover")
			return false
		}
	}
	if len(s.children("/sites/a"))+len(s.children("/sites/b")) > 0 {
		return false
	}
	if len(s.children("/tx")) == 0 {
		return true
	}
	// A site that fails between its acknowledgement and its check whether it was the last one
	// leaves the record, with only the decision in it, to a Recover.
	switch {
	case s.cell.how == noBlow, s.cell.how == lostReply, s.cell.how == lostRequest:
	case s.cell.role == "coordinator", s.doing == "recover", !b.struck:
	case s.left.IsZero():
		s.left = time.Now()
	case time.Since(s.left) > time.Second:
		s.m.mu.Lock()
		s.m.left++
		s.m.mu.Unlock()
		s.coordinate("recover")
	}
	return false
}

// after returns the first line of a kind since a mark.
func (a *actor) after(mark int, kind string) (line, bool) {
	for _, l := range a.Reports()[mark:] {
		if l.Kind == kind {
			return l, true
		}
	}
	return line{}, false
}

// children lists a directory below the root of the scene; a missing directory is empty.
func (s *scene) children(dir string) []string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	bs, err := s.m.c.Session(ctx)
	if err == nil {
		err = bs.Sync(ctx, s.root+dir)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	names, _, err := bs.Children(ctx, s.root+dir, nil)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		s.t.Fatal(err)
	}
	return names
}
