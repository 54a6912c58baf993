package live

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/layout"
)

// A Snapshot is a view at one moment. Its JSON has stable names in lower case.
type Snapshot struct {
	Number    uint64    `json:"number"` // grows from snapshot to snapshot
	Path      string    `json:"path"`
	Namespace string    `json:"namespace,omitempty"`
	At        time.Time `json:"at"`
	Session   Session   `json:"session"` // of the client that reads

	Ready       bool          `json:"ready"`   // the tree was read
	Watched     bool          `json:"watched"` // changes are reported by the service, not looked for
	Read        time.Time     `json:"read"`    // when the latest reads had ended
	Took        time.Duration `json:"took_ns"` // how long they took
	Reads       int           `json:"reads"`   // how many they were
	Passes      int           `json:"passes"`  // how often something was read
	Truncated   bool          `json:"truncated,omitempty"`
	Notes       []string      `json:"notes,omitempty"`
	Err         string        `json:"error,omitempty"` // why the latest reads failed
	Cause       error         `json:"-"`               // the error of which Err is the text
	Directories int           `json:"directories"`

	// Cycles are clients of which each waits for the next one, and the last for the first: they
	// may be deadlocked.
	Cycles [][]Wait `json:"cycles,omitempty"`

	Rows []*Row `json:"rows"` // in the order of their paths
}

// Session is the state of the client's session.
type Session struct {
	Phase string    `json:"phase"` // as in coord.State
	ID    string    `json:"id,omitempty"`
	Since time.Time `json:"since"`
	Err   string    `json:"error,omitempty"`
}

// A Row is a recipe.
type Row struct {
	Path    string `json:"path"`
	Recipe  string `json:"recipe"`
	Summary string `json:"summary"`

	// State is a word: "held" or "free" of locks, "led" or "free" of elections, "busy",
	// "idle", "stuck" (items, but neither a claim nor a client that waits) or "empty" of queues,
	// "set" of barriers, and "" of others.
	State string `json:"state,omitempty"`

	Holders []Party `json:"holders,omitempty"` // of locks, semaphores, elections, and owners of shards; members of groups
	Waiters []Party `json:"waiters,omitempty"`
	Holding int     `json:"holding,omitempty"` // all holders, also those that were not read
	Waiting int     `json:"waiting,omitempty"`

	Turns   []Turn  `json:"turns,omitempty"` // of locks and elections, the latest last
	Queue   *Queue  `json:"queue,omitempty"`
	History []Point `json:"history,omitempty"`

	Report *inspect.Report `json:"-"`
}

// A Party is a client that takes part in a recipe.
type Party struct {
	Label    string    `json:"label"` // its ID, or its host, or its session
	ID       string    `json:"id,omitempty"`
	Host     string    `json:"host,omitempty"`
	Session  string    `json:"session,omitempty"`
	Node     string    `json:"node"`
	Role     string    `json:"role,omitempty"`
	Since    time.Time `json:"since,omitzero"` // when it came, by the service's clock
	Token    int64     `json:"token,omitempty"`
	WaitsFor []string  `json:"waits_for,omitempty"` // labels

	behind []string // the sessions of those
	Asked  string   `json:"asked,omitempty"` // the request to give the lock up
}

// A Turn is a time for which a client held a lock exclusively, or led, as far as it was seen.
type Turn struct {
	Token int64     `json:"token"`
	Label string    `json:"label"`
	From  time.Time `json:"from"`           // when it was first seen to hold; by this client's clock
	Until time.Time `json:"until,omitzero"` // when it was first seen not to hold any more
}

// Queue is the figures of a queue. The rates are of items a second, over the latest 30 seconds.
// They are nil if they are not known: without a watch, and at first.
type Queue struct {
	Items   int       `json:"items"`
	Ready   int       `json:"ready"`
	Claimed int       `json:"claimed"`
	Delayed int       `json:"delayed"`
	Dead    int       `json:"dead"`
	Takers  int       `json:"takers"`
	Oldest  time.Time `json:"oldest,omitzero"`
	In      *float64  `json:"in_rate,omitempty"`  // put
	Out     *float64  `json:"out_rate,omitempty"` // acknowledged, or moved to the dead letters
}

// A Point is a figure at a moment: the items of a queue, the waiters of a lock, the members of a
// group.
type Point struct {
	At    time.Time `json:"at"`
	Value int       `json:"value"`
}

const (
	mostPoints  = 180
	pointGap    = 2 * time.Second // at least, between two points
	mostTurns   = 50
	rateWindow  = 30 * time.Second
	mostParties = 200 // of a Row
)

// An entry is what is known of one recipe.
type entry struct {
	report  *inspect.Report
	turns   []Turn
	history []Point
	gone    int // items that were deleted since the entry was made
	counts  []count
}

// A count is the items of a queue at a moment.
type count struct {
	at    time.Time
	items int
	gone  int
}

// update takes the newest report.
func (e *entry) update(in *inspect.Report) {
	e.report = in
	now := time.Now()
	if q := in.Queue; q != nil {
		e.counts = append(e.counts, count{now, q.Items, e.gone})
		for len(e.counts) > 2 && now.Sub(e.counts[1].at) >= rateWindow {
			e.counts = e.counts[1:]
		}
	}
	l := cmp.Or(in.Mutex, in.RWMutex, in.Election)
	if l == nil {
		return
	}
	var holder *inspect.Contender
	if len(l.Contenders) > 0 && l.Contenders[0].Holds && l.Contenders[0].Token != 0 {
		holder = &l.Contenders[0]
	}
	if n := len(e.turns); n > 0 && e.turns[n-1].Until.IsZero() && (holder == nil || e.turns[n-1].Token != holder.Token) {
		e.turns[n-1].Until = now.UTC()
	}
	if n := len(e.turns); holder != nil && (n == 0 || e.turns[n-1].Token != holder.Token) {
		e.turns = append(e.turns, Turn{Token: holder.Token, Label: label(holder.ID, holder.Host, holder.Session), From: now.UTC()})
		e.turns = e.turns[max(0, len(e.turns)-mostTurns):]
	}
}

// note counts the items of queues among the changes that were deleted. The watch reports each
// deletion, though not each creation: of an item that has come and gone since the last look only
// the deletion. With the number of items it shows how many were put.
func (m *Model) note(changes []backend.TreeChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		if c.Kind != backend.TreeDeleted {
			continue
		}
		bucket := parent(c.Path)
		items := parent(bucket)
		queue, ok := strings.CutSuffix(items, "/items")
		if !ok {
			continue
		}
		if e := m.entries[queue]; e != nil && len(layout.ParseBucket(bucket, []string{c.Path[len(bucket)+1:]}, 0).Items) == 1 {
			e.gone++
		}
	}
}

// rates returns how many items came and went in a second. ok is false if that is not known.
func (e *entry) rates(now time.Time) (in, out float64, ok bool) {
	if len(e.counts) == 0 {
		return 0, 0, false
	}
	first, last := e.counts[0], e.counts[len(e.counts)-1]
	for i := range e.counts { // the newest one that is outside of the window
		if now.Sub(e.counts[i].at) >= rateWindow {
			first = e.counts[i]
		}
	}
	seconds := min(now.Sub(first.at), rateWindow).Seconds()
	if seconds < 1 {
		return 0, 0, false // too early
	}
	gone := last.gone - first.gone
	came := max(0, last.items-first.items+gone)
	return float64(came) / seconds, float64(gone) / seconds, true
}

// row returns the Row of the entry.
func (e *entry) row(now time.Time, watched bool) *Row {
	in := e.report
	r := &Row{Path: in.Path, Recipe: in.Recipe, Summary: in.Summary, Report: in, Turns: slices.Clone(e.turns)}
	value := 0
	switch {
	case in.Election != nil:
		r.line(in.Election, "led")
		value = r.Waiting
	case in.Mutex != nil:
		r.line(in.Mutex, "held")
		value = r.Waiting
	case in.RWMutex != nil:
		r.line(in.RWMutex, "held")
		value = r.Waiting
	case in.Semaphore != nil:
		r.semaphore(in.Semaphore)
		value = r.Waiting
	case in.Queue != nil:
		r.queue(in.Queue)
		if came, went, ok := e.rates(now); ok && watched {
			r.Queue.In, r.Queue.Out = &came, &went
		}
		value = in.Queue.Items
	case in.Group != nil:
		r.Holding = in.Group.Count
		for _, x := range in.Group.Members {
			r.add(&r.Holders, Party{ID: x.ID, Session: x.Session, Node: x.Name, Since: x.Since, Token: x.Token, Role: "member"})
		}
		value = r.Holding
	case in.Shards != nil:
		r.Holding, r.Waiting = in.Shards.Owned, in.Shards.Waiting
		for _, x := range in.Shards.Members {
			r.add(&r.Holders, Party{
				ID: x.ID, Session: x.Session, Node: x.Name, Since: x.Since, Token: x.Token,
				Role: fmt.Sprintf("%d of %d shards", len(x.Shards), in.Shards.N),
			})
		}
		value = r.Holding
	case in.Schedule != nil:
		s := in.Schedule
		r.Waiting = s.Waiting
		if s.Session != "" {
			r.State = "led"
			r.Holding = 1
			r.add(&r.Holders, Party{ID: s.Leader, Session: s.Session, Role: "leads"})
		}
		if s.Paused {
			r.State = "paused"
		}
		value = r.Waiting
	case in.DoubleBarrier != nil:
		d := in.DoubleBarrier
		r.State = "closed"
		if d.Open {
			r.State = "open"
		}
		r.Holding, r.Waiting = d.InsideCount, d.WaitingCount
		for _, x := range d.Inside {
			r.add(&r.Holders, Party{Session: x.Session, Node: x.Name, Since: x.Since, Role: "inside"})
		}
		for _, x := range d.Waiting {
			r.add(&r.Waiters, Party{Session: x.Session, Node: x.Name, Since: x.Since, Role: "waits"})
		}
		value = r.Waiting
	case in.Barrier != nil:
		r.State = "set"
		if b := in.Barrier; b.Session != "" {
			r.Holding = 1
			r.add(&r.Holders, Party{Session: b.Session, Since: b.Since, Role: "set"})
		}
	case in.TwoPhase != nil:
		value = len(in.TwoPhase.Transactions)
		for _, t := range in.TwoPhase.Transactions {
			switch {
			case t.State == "in doubt" || !t.InDoubt.IsZero():
				r.State = "in doubt"
			case r.State == "" && (t.State == "open" || t.State == "prepared"):
				r.State = "open"
			}
		}
		for _, site := range in.TwoPhase.Sites {
			if inDoubt(site.Branches) {
				r.State = "in doubt"
			}
		}
	case in.Inbox != nil:
		if inDoubt(in.Inbox.Branches) {
			r.State = "in doubt"
		}
	}
	if n := len(e.history); n == 0 || now.Sub(e.history[n-1].At) >= pointGap || e.history[n-1].Value != value && now.Sub(e.history[n-1].At) >= pointGap/4 {
		e.history = append(e.history, Point{now.UTC(), value})
		e.history = e.history[max(0, len(e.history)-mostPoints):]
	}
	r.History = slices.Clone(e.history)
	return r
}

// inDoubt reports whether one of the branches is bound by a yes whose decision is destroyed.
func inDoubt(branches []inspect.Branch) bool {
	return slices.ContainsFunc(branches, func(b inspect.Branch) bool { return b.State == "in doubt" })
}

// add appends a party, up to a limit.
func (r *Row) add(list *[]Party, p Party) {
	if len(*list) < mostParties {
		p.Label = label(p.ID, p.Host, p.Session)
		*list = append(*list, p)
	}
}

// label returns the best name of a client.
func label(id, host, session string) string { return cmp.Or(id, host, session, "?") }

func (r *Row) line(l *inspect.Line, held string) {
	r.State = "free"
	if l.Holders > 0 {
		r.State = held
	}
	r.Holding, r.Waiting = l.Holders, l.Waiting
	labels, sessions := make(map[string]string), make(map[string]string)
	for _, x := range l.Contenders {
		labels[x.Name], sessions[x.Name] = label(x.ID, x.Host, x.Session), x.Session
	}
	for _, x := range l.Contenders {
		p := Party{ID: x.ID, Host: x.Host, Session: x.Session, Node: x.Name, Role: x.Role, Since: x.Since, Token: x.Token}
		for _, name := range x.WaitsFor {
			p.WaitsFor = append(p.WaitsFor, cmp.Or(labels[name], name))
			p.behind = append(p.behind, sessions[name])
		}
		if a := x.Revocation; a != nil {
			p.Asked = "asked to give it up"
			if a.By != "" {
				p.Asked += " by " + strconv.Quote(a.By)
			}
			if a.Reason != "" {
				p.Asked += ": " + strconv.Quote(a.Reason)
			}
		}
		if x.Holds {
			r.add(&r.Holders, p)
		} else {
			r.add(&r.Waiters, p)
		}
	}
}

func (r *Row) semaphore(s *inspect.Semaphore) {
	r.State = "free"
	if s.Holders > 0 {
		r.State = fmt.Sprintf("%d of %d", s.Held, s.Limit)
	}
	r.Holding, r.Waiting = s.Holders, s.Waiting
	labels, sessions := make(map[string]string), make(map[string]string)
	for _, x := range s.Requests {
		labels[x.Name], sessions[x.Name] = label(x.ID, "", x.Session), x.Session
	}
	for _, x := range s.Requests {
		p := Party{ID: x.ID, Session: x.Session, Node: x.Name, Since: x.Since, Role: fmt.Sprintf("%d permits", x.Weight)}
		if x.Weight == 1 {
			p.Role = "1 permit"
		}
		for _, name := range x.WaitsFor {
			p.WaitsFor = append(p.WaitsFor, cmp.Or(labels[name], name))
			p.behind = append(p.behind, sessions[name])
		}
		if x.Granted {
			r.add(&r.Holders, p)
		} else {
			r.add(&r.Waiters, p)
		}
	}
}

func (r *Row) queue(q *inspect.Queue) {
	r.Queue = &Queue{Items: q.Items, Ready: q.Ready, Claimed: q.Claimed, Delayed: q.Delayed, Dead: q.Dead, Takers: q.Takers, Oldest: q.Oldest}
	switch {
	case q.Claimed > 0:
		r.State = "busy"
	case q.Ready > 0 && q.Takers == 0:
		r.State = "stuck"
	case q.Items == 0:
		r.State = "empty"
	default:
		r.State = "idle"
	}
	r.Holding, r.Waiting = q.Claimed, q.Takers
	for _, x := range q.Claims {
		r.add(&r.Holders, Party{Session: x.Session, Node: x.Name, Since: x.Since, Role: "item " + x.Item.ID})
	}
}

// Classes are the classes of recipes, in the words of an operator.
var Classes = []string{"locks", "leaders", "queues", "groups", "shards", "transactions", "barriers", "values", "others"}

// Class returns the class of recipes to which a row belongs.
func (r *Row) Class() string {
	switch r.Recipe {
	case "mutex", "rwmutex", "semaphore":
		return "locks"
	case "election", "schedule":
		return "leaders"
	case "queue", "priorityqueue", "delayqueue":
		return "queues"
	case "group":
		return "groups"
	case "shards":
		return "shards"
	case "twophase", "inbox":
		return "transactions"
	case "barrier", "doublebarrier":
		return "barriers"
	case "value", "counter":
		return "values"
	}
	return "others"
}

// Since returns when the first holder came.
func (r *Row) Since() time.Time {
	if len(r.Holders) == 0 {
		return time.Time{}
	}
	return r.Holders[0].Since
}

// Oldest returns since when the oldest ready item, or else the first waiter, waits.
func (r *Row) Oldest() time.Time {
	switch {
	case r.Queue != nil:
		return r.Queue.Oldest
	case len(r.Waiters) > 0:
		return r.Waiters[0].Since
	}
	return time.Time{}
}

// Match reports whether a row has the words, without regard of case, in its path, recipe, state or
// parties.
func (r *Row) Match(words string) bool {
	text := strings.ToLower(strings.Join([]string{r.Path, r.Recipe, r.Class(), r.State}, "\n"))
	for _, p := range slices.Concat(r.Holders, r.Waiters) {
		text += "\n" + strings.ToLower(p.Label+"\n"+p.Session)
	}
	for _, word := range strings.Fields(strings.ToLower(words)) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// The orders of rows.
const (
	ByPath    = "path"
	ByWaiting = "waiting"
	ByDepth   = "depth"
	ByAge     = "age"
)

// Orders are the orders of rows, the default first.
var Orders = []string{ByPath, ByWaiting, ByDepth, ByAge}

// Select returns the rows that match words, in an order.
func (v *Snapshot) Select(words, order string) []*Row {
	rows := slices.DeleteFunc(slices.Clone(v.Rows), func(r *Row) bool { return !r.Match(words) })
	depth := func(r *Row) int {
		if r.Queue == nil {
			return -1
		}
		return r.Queue.Items
	}
	oldest := func(r *Row) time.Time {
		if t := r.Oldest(); !t.IsZero() {
			return t
		}
		return v.At
	}
	slices.SortStableFunc(rows, func(a, b *Row) int {
		switch order {
		case ByWaiting:
			return cmp.Compare(b.Waiting, a.Waiting)
		case ByDepth:
			return cmp.Compare(depth(b), depth(a))
		case ByAge:
			return oldest(a).Compare(oldest(b))
		}
		return 0
	})
	return rows
}

// Totals are sums over the rows of a Snapshot.
type Totals struct {
	Locks, Held, Waiting       int
	Elections, Led             int
	Queues, Items, Stuck, Dead int
	In, Out                    *float64 // items a second, of the queues whose rates are known
	Groups, Members            int      // and those of shards
	InDoubt                    int      // paths with a transaction in doubt
}

// Totals sums the rows up.
func (v *Snapshot) Totals() (t Totals) {
	for _, r := range v.Rows {
		switch r.Class() {
		case "locks":
			t.Locks++
			t.Waiting += r.Waiting
			if r.Holding > 0 {
				t.Held++
			}
		case "leaders":
			t.Elections++
			if r.Holding > 0 {
				t.Led++
			}
		case "queues":
			if r.Queue == nil {
				continue
			}
			t.Queues++
			t.Items += r.Queue.Items
			t.Dead += r.Queue.Dead
			if r.State == "stuck" {
				t.Stuck++
			}
			if r.Queue.In != nil {
				if t.In == nil {
					t.In, t.Out = new(float64), new(float64)
				}
				*t.In += *r.Queue.In
				*t.Out += *r.Queue.Out
			}
		case "groups":
			t.Groups++
			t.Members += r.Holding
		case "shards":
			t.Groups++
			t.Members += len(r.Holders)
		case "transactions":
			if r.State == "in doubt" {
				t.InDoubt++
			}
		}
	}
	return t
}

// Find returns the row of a path, or nil.
func (v *Snapshot) Find(path string) *Row {
	i, ok := slices.BinarySearchFunc(v.Rows, path, func(r *Row, path string) int { return ComparePaths(r.Path, path) })
	if !ok {
		return nil
	}
	return v.Rows[i]
}

func sessionText(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

// Age returns the time since then in a short form, or "" for no time.
func Age(now, then time.Time) string {
	if then.IsZero() {
		return ""
	}
	d := max(0, now.Sub(then))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// Rate returns a rate in a short form.
func Rate(r *float64) string {
	switch {
	case r == nil:
		return "–"
	case *r == 0:
		return "0"
	case *r < 10:
		return fmt.Sprintf("%.1f", *r)
	}
	return fmt.Sprintf("%.0f", *r)
}

// Clean returns a text that another client has written, with escapes for what does not print: it
// cannot confuse a terminal, and a name looks like what it is.
func Clean(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}
