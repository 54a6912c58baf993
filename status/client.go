package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

const (
	mostShown  = 100 // elements of a list of a Report
	mostKept   = 200 // queues, members, shards and branches of a client
	mostLosses = 32

	opening  = "opening"
	behindBy = time.Second // a call of Trace that takes longer is reported
)

// client is what is known of one client: from its events, and from itself when it is asked.
type client struct {
	next func(context.Context, trace.Event) // the program's Trace, or nil

	mu       sync.Mutex
	c        *coord.Client      // nil until Open has returned
	standing func() []hook.Hold // nil until it has a session

	phase   phase // from events
	noticed phase // by a report, before the event came
	lost    int   // sessions
	suspend int   // suspensions

	acqs    map[uint64]*acquisition
	queues  table[subject, Queue]
	members table[memberKey, member]
	shards  table[memberKey, Shards]
	jobs    table[string, job]
	undone  table[siteKey, Undone]
	doubts  table[branchKey, Branch]
	losses  []Loss

	dropped   int
	droppedAt time.Time
	inTrace   time.Time // when the present call of next began
}

// phase is the phase of a session.
type phase struct {
	word    string
	session int64
	since   time.Time
	err     error
}

// acquisition is a call that waits, or the hold that it got.
type acquisition struct {
	waits bool
	wait  Wait
	holds bool
	hold  Hold
}

// subject is a recipe at a path.
type subject struct{ recipe, path string }

type memberKey struct{ path, member string }

type siteKey struct{ path, site string }

type branchKey struct{ path, proposal, site string }

// member is a member of a group, with the session of its node.
type member struct {
	Member
	session int64 // zero: that of the next event about the session
}

func newClient(next func(context.Context, trace.Event)) *client {
	return &client{
		next:  next,
		phase: phase{word: opening, since: time.Now()},
		acqs:  make(map[uint64]*acquisition),
	}
}

// trace is the Trace of the client.
func (x *client) trace(ctx context.Context, e trace.Event) {
	x.mu.Lock()
	standing := x.standing
	x.mu.Unlock()
	var holds []hook.Hold
	if _, ok := e.(trace.EventsDropped); ok && standing != nil {
		holds = standing() // without mu: the end of a hold can call functions of the program
	}
	x.mu.Lock()
	x.event(e, holds)
	if x.next == nil {
		x.mu.Unlock()
		return
	}
	x.inTrace = time.Now()
	x.mu.Unlock()
	x.next(ctx, e)
	x.mu.Lock()
	x.inTrace = time.Time{}
	x.mu.Unlock()
}

// event records an event. holds are those that stand, for EventsDropped. The caller holds mu.
func (x *client) event(e trace.Event, holds []hook.Hold) {
	now := time.Now()
	at := e.About()
	switch e := e.(type) {
	case trace.StateChanged:
		x.changed(e, now)
	case trace.EventsDropped:
		x.resume(e.Events, holds, now)

	case trace.WaitBegan:
		x.waits(at, e.Ahead, now)
	case trace.PositionChanged:
		if a := x.acqs[e.ID]; a != nil {
			a.wait.Ahead = e.Ahead
		}
	case trace.WaiterRequeued:
		if a := x.acqs[e.ID]; a != nil {
			a.wait.Node, a.wait.Ahead = "", -1
			a.wait.Requeued++
		}
	case trace.WaitEnded:
		if a := x.acqs[e.ID]; a != nil && a.holds { // a Leave that waited
			a.waits = false
		} else {
			delete(x.acqs, e.ID)
		}

	case trace.HoldGranted:
		weight := e.Weight
		if weight == 1 {
			weight = 0
		}
		x.holds(at, Hold{Token: e.Token, Weight: weight}, now)
	case trace.HoldDowngraded:
		x.change(e.ID, func(h *Hold) { h.Node, h.Token = at.Node, e.Token })
	case trace.RevocationRead:
		x.change(e.ID, func(h *Hold) { h.Revoked = true })
	case trace.LeaderAnnounced:
		x.change(e.ID, func(h *Hold) { h.Announced = true })
	case trace.HoldReleased:
		delete(x.acqs, e.ID)
	case trace.HoldLost:
		delete(x.acqs, e.ID)
		x.lose(Loss{At: now, Recipe: at.Recipe, Path: at.Path, Node: at.Node, Token: e.Token, Reason: string(e.Reason), Held: e.Held})

	case trace.ItemClaimed:
		q := x.queue(at)
		q.Taken++
		q.Latest = now
		x.holds(at, Hold{Token: e.Token, Item: e.Item, Attempt: e.Attempt}, now)
	case trace.ItemSettled:
		x.settled(e, now)

	case trace.RunBegan:
		s := x.job(at.Path, now)
		s.Planned, s.Late = e.Planned, e.Late
		s.Missed += e.Missed
		x.holds(at, Hold{Token: e.Token, Attempt: e.Attempt}, now)
	case trace.RunEnded:
		x.ran(e, now)

	case trace.MemberJoined:
		m := x.members.get(memberKey{at.Path, e.Member}, now)
		m.Member = Member{Path: at.Path, Member: e.Member, Node: at.Node, Token: e.Token, In: true, Since: now}
		m.session = 0
		if x.phase.isLive() {
			m.session = x.phase.session
		}
	case trace.MemberLeft:
		key := memberKey{at.Path, e.Member}
		if e.Err != nil {
			x.lose(Loss{At: now, Recipe: at.Recipe, Path: at.Path, Node: at.Node, Reason: reasonOf(e.Err)})
		}
		if m := x.members.find(key); m != nil && e.Rejoins {
			m.In, m.Since = false, now
		} else {
			x.members.remove(key)
		}
	case trace.ShardsAssigned:
		*x.shards.get(memberKey{at.Path, e.Member}, now) =
			Shards{Path: at.Path, Member: e.Member, Ought: e.Shards, Members: e.Members, Since: now}

	case trace.ProposalVoted:
		if e.Yes {
			*x.doubts.get(branchKey{at.Path, e.Proposal, e.Site}, now) =
				Branch{Path: at.Path, Proposal: e.Proposal, Site: e.Site, Since: now}
		}
	case trace.ProposalDecided:
		x.doubts.remove(branchKey{at.Path, e.Proposal, e.Site})
	case trace.DecisionsUndone:
		key := siteKey{at.Path, e.Site}
		if e.Undone == 0 {
			x.undone.remove(key)
			break
		}
		u := x.undone.get(key, now)
		if u.Since.IsZero() {
			u.Since = now
		}
		u.Path, u.Site, u.Undone, u.Failing = at.Path, e.Site, e.Undone, e.Failing
	case trace.ProposalInDoubt:
		b := x.doubts.get(branchKey{at.Path, e.Proposal, e.Site}, now)
		if b.Since.IsZero() {
			b.Since = now
		}
		b.Path, b.Proposal, b.Site, b.Destroyed = at.Path, e.Proposal, e.Site, true
	}
}

func (p phase) isLive() bool {
	return p.word == coord.PhaseConnected.String() || p.word == coord.PhaseSuspended.String()
}

func (x *client) changed(e trace.StateChanged, now time.Time) {
	switch e.Phase {
	case coord.PhaseSuspended.String():
		x.suspend++
	case coord.PhaseLost.String():
		if x.phase.word != e.Phase { // otherwise an attempt to open the next one has failed
			x.lost++
			x.lose(Loss{At: now, Recipe: "session", Node: sessionID(e.Session), Reason: string(trace.ReasonSessionLost)})
		}
	case coord.PhaseConnected.String():
		for _, m := range x.members.all() {
			if m.session == 0 {
				m.session = e.Session
			}
		}
	}
	next := phase{word: e.Phase, session: e.Session, since: now, err: e.Err}
	if x.phase.word == next.word && x.phase.session == next.session {
		next.since = x.phase.since
	} else if x.isNoticed(next.word, next.session) {
		next.since = x.noticed.since
	}
	x.phase = next
}

// isNoticed reports whether a report has noticed this phase already. A session can be in one phase
// several times: a phase that was noticed before the present phase began is an earlier one.
func (x *client) isNoticed(word string, session int64) bool {
	n := x.noticed
	return n.word == word && n.session == session && !n.since.Before(x.phase.since)
}

// resume keeps what is certain although events are missing: the holds that stand, and numbers.
func (x *client) resume(events int, holds []hook.Hold, now time.Time) {
	x.dropped += events
	x.droppedAt = now
	known := make(map[uint64]*acquisition)
	for _, h := range holds {
		if a := x.acqs[h.ID]; a != nil && a.holds {
			a.waits = false
			known[h.ID] = a
		}
	}
	x.acqs = known
	x.members = table[memberKey, member]{}
	x.shards = table[memberKey, Shards]{}
	x.undone = table[siteKey, Undone]{}
	x.doubts = table[branchKey, Branch]{}
}

func (x *client) waits(at trace.Subject, ahead int, now time.Time) {
	if at.ID == 0 {
		return
	}
	a := x.acqs[at.ID]
	if a == nil {
		a = &acquisition{}
		x.acqs[at.ID] = a
	}
	if !a.waits {
		a.waits = true
		a.wait = Wait{Recipe: at.Recipe, Path: at.Path, Op: at.Op, Since: now}
	}
	a.wait.Node, a.wait.Ahead = at.Node, ahead
	if takes(at.Recipe, at.Op) {
		x.queue(at)
	}
}

func (x *client) holds(at trace.Subject, h Hold, now time.Time) {
	h.Recipe, h.Path, h.Op, h.Node, h.Since = at.Recipe, at.Path, at.Op, at.Node, now
	x.acqs[at.ID] = &acquisition{holds: true, hold: h}
}

func (x *client) change(id uint64, f func(*Hold)) {
	if a := x.acqs[id]; a != nil && a.holds {
		f(&a.hold)
	}
}

func (x *client) settled(e trace.ItemSettled, now time.Time) {
	delete(x.acqs, e.ID)
	q := x.queue(e.Subject)
	switch e.Outcome {
	case trace.ItemAcked:
		q.Acked++
	case trace.ItemNacked:
		q.Nacked++
	case trace.ItemReturned:
		q.Returned++
	case trace.ItemLost:
		q.Lost++
		x.lose(Loss{At: now, Recipe: e.Recipe, Path: e.Path, Node: e.Node, Reason: string(e.Reason), Held: e.Held})
	case trace.ItemDead:
		q.Dead++
	}
}

// job is what is known of a schedule. Runs are reported in any order: a run is reported when the service has
// confirmed its end, and the next one can have begun and ended since.
type job struct {
	Schedule
	planned time.Time // of the run with the outcome
	attempt int
}

// job returns what is known of the schedule at path.
func (x *client) job(path string, now time.Time) *job {
	s := x.jobs.get(path, now)
	s.Path = path
	return s
}

func (x *client) ran(e trace.RunEnded, now time.Time) {
	delete(x.acqs, e.ID)
	s := x.job(e.Path, now)
	switch e.Outcome {
	case trace.RunDone:
		s.Done++
		s.Success, s.Took = now, e.Took
	case trace.RunFailed:
		s.Failed++
	case trace.RunAbandoned:
		s.Abandoned++
	case trace.RunLost:
		s.Lost++
		x.lose(Loss{At: now, Recipe: e.Recipe, Path: e.Path, Node: e.Node, Reason: string(e.Reason), Held: e.Took})
	}
	if e.Outcome != trace.RunAbandoned && cmp.Or(e.Planned.Compare(s.planned), cmp.Compare(e.Attempt, s.attempt)) >= 0 {
		s.Outcome, s.planned, s.attempt = string(e.Outcome), e.Planned, e.Attempt
	}
}

func (x *client) queue(at trace.Subject) *Queue {
	q := x.queues.get(subject{at.Recipe, at.Path}, time.Now())
	q.Recipe, q.Path = at.Recipe, at.Path
	return q
}

// takes reports whether a call takes items from a queue.
func takes(recipe, op string) bool {
	return strings.HasSuffix(recipe, "queue") && !strings.HasPrefix(op, "put") && op != "redrive"
}

func (x *client) lose(l Loss) {
	if len(x.losses) == mostLosses {
		x.losses = slices.Delete(x.losses, 0, 1)
	}
	x.losses = append(x.losses, l)
}

// reasonOf returns the reason of the loss of a membership.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, coord.ErrDeleted):
		return string(trace.ReasonDeleted)
	case errors.Is(err, coord.ErrSessionLost):
		return string(trace.ReasonSessionLost)
	case errors.Is(err, coord.ErrClosed):
		return string(trace.ReasonClosed)
	}
	return string(trace.ReasonOther)
}

func sessionID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

// isClosed reports whether Close of the client was called.
func (x *client) isClosed() bool { return x.now().word == coord.PhaseClosed.String() }

// now returns the phase of the session by the clock: the lease of a session can have passed
// without an event.
func (x *client) now() phase {
	x.mu.Lock()
	c := x.c
	now := x.phase
	x.mu.Unlock()
	if c == nil {
		return now // Open has not returned, so the program does nothing with the client yet
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	word, session := coord.PhaseLost.String(), now.session
	s, err := c.Session(ended) // does not wait, and compares the lease with the clock
	switch {
	case errors.Is(err, coord.ErrClosed):
		word = coord.PhaseClosed.String()
	case err == nil:
		session = s.ID()
		switch p, _ := s.Status(); p {
		case backend.PhaseConnected:
			word = coord.PhaseConnected.String()
		case backend.PhaseSuspended:
			word = coord.PhaseSuspended.String()
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.phase.word == word && x.phase.session == session {
		return x.phase
	}
	if !x.isNoticed(word, session) {
		x.noticed = phase{word: word, session: session, since: time.Now()}
	}
	return x.noticed
}

// report returns what the client does now.
func (x *client) report() Client {
	now := x.now()
	var holds []hook.Hold
	x.mu.Lock()
	standing := x.standing
	x.mu.Unlock()
	if standing != nil && now.isLive() {
		holds = standing()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	c := Client{
		Phase: now.word, Since: now.since, SessionsLost: x.lost, Suspensions: x.suspend,
		Dropped: x.dropped, DroppedAt: x.droppedAt,
		Leads: []Hold{}, Holds: []Hold{}, Waits: []Wait{}, Queues: []Queue{}, Items: []Hold{},
		Members: []Member{}, Shards: []Shards{}, Schedules: []Schedule{}, Undone: []Undone{}, InDoubt: []Branch{}, Losses: []Loss{},
	}
	if x.c != nil {
		if _, ns, err := layout.Place(x.c.FullPath, "/"); err == nil {
			c.Namespace = string(ns)
		}
	}
	if now.session != 0 {
		c.Session = sessionID(now.session)
	}
	if now.err != nil {
		c.Error = now.err.Error()
	}
	if !x.inTrace.IsZero() && time.Since(x.inTrace) > behindBy {
		c.Behind = x.inTrace
	}

	owned := make(map[string]int) // shards, by the path
	claimed := make(map[subject]int)
	running := make(map[string]int) // runs of schedules, by the path
	for _, s := range holds {
		h := Hold{Node: s.Node, Token: s.Token}
		if a := x.acqs[s.ID]; a != nil && a.holds {
			h = a.hold
		}
		switch {
		case h.Item != "":
			claimed[subject{h.Recipe, h.Path}]++
			c.Items = append(c.Items, h)
		case h.Recipe == "election":
			c.Leads = append(c.Leads, h)
		case h.Recipe == "shards":
			owned[h.Path]++
		case h.Recipe == string(layout.KindSchedule):
			running[h.Path]++
			c.Holds = append(c.Holds, h)
		default:
			c.Holds = append(c.Holds, h)
		}
	}
	waiting := make(map[subject]int)
	for _, a := range x.acqs {
		if !a.waits {
			continue
		}
		c.Waits = append(c.Waits, a.wait)
		if takes(a.wait.Recipe, a.wait.Op) {
			waiting[subject{a.wait.Recipe, a.wait.Path}]++
		}
	}
	for key, q := range x.queues.all() {
		q := *q
		q.Waiting, q.Claimed = waiting[key], claimed[key]
		c.Queues = append(c.Queues, q)
	}
	for _, m := range x.members.all() {
		out := m.Member
		if out.In && (!now.isLive() || m.session != now.session) {
			out.In = false
		}
		c.Members = append(c.Members, out)
	}
	for _, s := range x.shards.all() {
		out := *s
		out.Owned = owned[s.Path]
		c.Shards = append(c.Shards, out)
	}
	for _, s := range x.jobs.all() {
		out := s.Schedule
		out.Running = running[s.Path]
		c.Schedules = append(c.Schedules, out)
	}
	for _, u := range x.undone.all() {
		c.Undone = append(c.Undone, *u)
	}
	for _, b := range x.doubts.all() {
		c.InDoubt = append(c.InDoubt, *b)
	}
	for _, l := range slices.Backward(x.losses) {
		c.Losses = append(c.Losses, l)
	}

	holdKey := func(h Hold) (time.Time, string) { return h.Since, h.Node }
	c.moreLeads = cut(&c, "leads", &c.Leads, holdKey)
	cut(&c, "holds", &c.Holds, holdKey)
	cut(&c, "items", &c.Items, holdKey)
	cut(&c, "waits", &c.Waits, func(w Wait) (time.Time, string) { return w.Since, w.Path + w.Node })
	cut(&c, "queues", &c.Queues, func(q Queue) (time.Time, string) { return time.Time{}, q.Path })
	cut(&c, "members", &c.Members, func(m Member) (time.Time, string) { return m.Since, m.Path + m.Member })
	cut(&c, "shards", &c.Shards, func(s Shards) (time.Time, string) { return time.Time{}, s.Path + s.Member })
	cut(&c, "schedules", &c.Schedules, func(s Schedule) (time.Time, string) { return time.Time{}, s.Path })
	cut(&c, "undone", &c.Undone, func(u Undone) (time.Time, string) { return u.Since, u.Path + u.Site })
	cut(&c, "in_doubt", &c.InDoubt, func(b Branch) (time.Time, string) { return b.Since, b.Path + b.Proposal + b.Site })
	return c
}

// cut sorts a list, the oldest first, and limits it. It returns the elements beyond the limit.
func cut[T any](c *Client, name string, list *[]T, key func(T) (time.Time, string)) (rest []T) {
	slices.SortFunc(*list, func(a, b T) int {
		at, an := key(a)
		bt, bn := key(b)
		return cmp.Or(at.Compare(bt), cmp.Compare(an, bn))
	})
	if len(*list) > mostShown {
		*list, rest = slices.Clip((*list)[:mostShown]), (*list)[mostShown:]
		if c.More == nil {
			c.More = make(map[string]int)
		}
		c.More[name] = len(rest)
	}
	return rest
}
