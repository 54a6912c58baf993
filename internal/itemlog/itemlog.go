package itemlog

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zklog"
)

// A Queue is one of the queues whose items are followed.
type Queue struct {
	Name string
	Most int // MaxAttempts, or 0
}

// Place is where an item is.
type Place string

const (
	Nowhere       Place = "not put"
	InQueue       Place = "in the queue"
	InDeadLetters Place = "in the dead letters"
	Gone          Place = "deleted"
)

// End is how a claim ended. The claim of an item that is there has none.
type End string

const (
	Acked     End = "acked"
	Buried    End = "buried"     // with the move of the item to the dead letters
	Failed    End = "failed"     // the attempt counts
	GivenBack End = "given back" // the attempt does not count
	Session   End = "session"    // the attempt counts, and no consumer ended it
)

// A Claim is one claim of an item.
type Claim struct {
	Zxid    int64
	Mark    string // path of its node
	Session int64
	Attempt int
	Early   time.Duration // before the item was due; 0 if it was
	End     End
	Ended   int64 // the transaction that ended it
}

// Window is a time in which an item could be taken.
type Window struct{ From, To time.Time }

// An Item is the life of one item, by the clock of the service.
type Item struct {
	ID, Value string
	Queue     Queue
	Place     Place
	Puts      int
	Acks      int     // how often it was deleted under its claim
	Moves     int     // to the dead letters
	Removed   int     // how often it was deleted in the queue without a claim
	Drained   int     // how often it was deleted in the dead letters, and not put back
	Back      []int64 // the transactions that put it back into the queue
	Claims    []*Claim
	Ready     []Window

	due, off int64     // milliseconds since 1970, or 0: from its name, and from its latest delay
	attempts int       // number of attempts that count; a redrive sets it to 0
	claim    *Claim    // the present claim, or nil
	since    time.Time // from when on it can be taken; zero while it is claimed or not in the queue
}

func (it *Item) String() string { return fmt.Sprintf("%s (%s)", it.Value, it.ID) }

// ClaimAt returns the claim that a transaction made, or nil.
func (it *Item) ClaimAt(zxid int64) *Claim {
	for _, c := range it.Claims {
		if c.Zxid == zxid {
			return c
		}
	}
	return nil
}

// A Log has the items of queues, as far as their transactions were applied. It ignores the nodes of
// consumers and producers that wait.
type Log struct {
	Items map[string]*Item       // by id
	Ended map[int64]time.Time    // by session
	Taken map[string][]time.Time // by queue: when an item that could be taken was claimed or moved away
	Wrong []string
	Due   int // items with a due time
	Off   int // delays of Nacks

	// ClockSet: the clock of the service was set, so claims can be early. Their consumers give the items back.
	ClockSet bool

	queues map[string]Queue // by path
}

// New returns the log of queues, by their paths.
func New(queues map[string]Queue) *Log {
	return &Log{queues: queues, Items: make(map[string]*Item), Ended: make(map[int64]time.Time), Taken: make(map[string][]time.Time)}
}

// AcksAndClaims reports whether a transaction acknowledges items of queues and claims others. No other one deletes an
// item and makes a mark.
func AcksAndClaims(x *zklog.Txn) bool {
	acks, claims := false, false
	for _, op := range x.Ops {
		name := op.Path[strings.LastIndexByte(op.Path, '/')+1:]
		acks = acks || op.IsDelete() && strings.HasPrefix(name, layout.ItemPrefix)
		claims = claims || op.IsCreate() && strings.HasPrefix(name, layout.MarkPrefix)
	}
	return acks && claims
}

// step is what one transaction does with one item.
type step struct {
	*zklog.Txn
	queue            Queue
	put, removed     bool // it creates or deletes the item in the queue
	buried, unburied bool // it creates or deletes the item in the dead letters
	data             string
	reason           bool // it creates the reason of the dead letter
	due, off         int64
	undelayed        bool
	mark             string   // path of the mark that it creates
	ended            []string // paths of the marks that it deletes
	attempts         int      // number that it writes into the state, or -1
	uncounted        bool     // it deletes the state
	unclaimed        bool     // it creates an empty state, which proves that the item has none
	sessionEnds      bool
}

// Apply takes the next transaction.
func (l *Log) Apply(x zklog.Txn) {
	if x.Type == zklog.CloseSession {
		l.Ended[x.Session] = x.Time
	}
	steps := make(map[string]*step)
	var order []string
	for _, op := range x.Ops {
		queue, dead, name := l.locate(op.Path)
		if queue.Name == "" || op.Type == zklog.Check {
			continue
		}
		l.note(op, dead, name, func(id string) *step {
			if steps[id] == nil {
				steps[id] = &step{Txn: &x, queue: queue, attempts: -1, sessionEnds: x.Type == zklog.CloseSession}
				order = append(order, id)
			}
			return steps[id]
		})
	}
	for _, id := range order {
		it := l.Items[id]
		if it == nil {
			it = &Item{ID: id, Queue: steps[id].queue, Place: Nowhere}
			l.Items[id] = it
		}
		l.apply(it, steps[id])
	}
}

// locate returns the queue of a node in a bucket, whether the bucket is one of its dead letters, and
// the name of the node.
func (l *Log) locate(path string) (queue Queue, dead bool, name string) {
	at, rest, ok := strings.Cut(path, "/items/")
	_, name, below := strings.Cut(rest, "/")
	if !ok || !below || strings.Contains(name, "/") {
		return Queue{}, false, ""
	}
	at, dead = strings.CutSuffix(at, "/dead")
	return l.queues[at], dead, name
}

// note adds an operation on the node called name to the step of its item, which of returns.
func (l *Log) note(op zklog.Op, dead bool, name string, of func(id string) *step) {
	if id, rest, ok := layout.CutID(name, layout.ItemPrefix); ok {
		switch s := of(id); {
		case op.IsCreate() && dead:
			s.buried, s.data = true, string(op.Data)
		case op.IsCreate():
			s.put, s.data = true, string(op.Data)
			due, _, _ := strings.Cut(rest, "-")
			s.due, _ = strconv.ParseInt(due, 10, 64)
		case op.IsDelete() && dead:
			s.unburied = true
		case op.IsDelete():
			s.removed = true
		}
		return
	}
	if dead { // no consumer of the queue takes dead letters
		if id, ok := strings.CutPrefix(name, layout.ReasonPrefix); ok && op.IsCreate() {
			of(id).reason = true
		}
		return
	}
	if id, _, ok := layout.CutID(name, layout.MarkPrefix); ok {
		if op.IsCreate() {
			of(id).mark = op.Path
		} else if op.IsDelete() {
			of(id).ended = append(of(id).ended, op.Path)
		}
	} else if id, until, ok := layout.CutID(name, layout.PutOffPrefix); ok {
		if op.IsCreate() {
			of(id).off, _ = strconv.ParseInt(until, 10, 64)
		} else if op.IsDelete() {
			of(id).undelayed = true
		}
	} else if id, ok := strings.CutPrefix(name, layout.StatePrefix); ok && layout.IsState(name) {
		switch n, err := strconv.Atoi(string(op.Data)); {
		case op.IsDelete():
			of(id).uncounted = true
		case op.IsCreate() && len(op.Data) == 0:
			of(id).unclaimed = true
		case err != nil:
			l.errorf("%s counts %q attempts", op.Path, op.Data)
		default:
			of(id).attempts = n
		}
	}
}

func (l *Log) errorf(format string, args ...any) {
	l.Wrong = append(l.Wrong, fmt.Sprintf(format, args...))
}

// apply applies a step to its item: the end of the claim, the move of the item, and the next claim.
func (l *Log) apply(it *Item, s *step) {
	if s.put {
		it.due = s.due
	}
	if s.put && !s.unburied {
		it.Value = s.data
	}
	errorf := func(format string, args ...any) {
		l.errorf("%v, in %#x: "+format, append([]any{it, s.Zxid}, args...)...)
	}
	if s.undelayed && s.mark == "" {
		it.off = 0
	}
	if s.off > 0 {
		it.off = s.off
		l.Off++
	}
	if s.unclaimed && !s.uncounted {
		errorf("the state without a count stays")
	}
	acked := l.unmark(it, s, errorf)
	l.move(it, s, acked, errorf)
	if s.mark != "" {
		l.mark(it, s, errorf)
	}
}

// unmark ends the claim, if the step does, and reports whether by an Ack.
func (l *Log) unmark(it *Item, s *step, errorf func(string, ...any)) (acked bool) {
	for _, mark := range s.ended {
		c := it.claim
		if c == nil || c.Mark != mark {
			errorf("lost the claim %s, and has %+v", mark, c)
			continue
		}
		switch {
		case s.sessionEnds:
			c.End = Session
		case s.removed && s.buried:
			c.End = Buried
		case s.removed:
			c.End, acked = Acked, true
		case s.attempts == c.Attempt-1 || s.uncounted && c.Attempt == 1:
			c.End = GivenBack
		default:
			c.End = Failed
		}
		if c.End != Acked && c.End != GivenBack {
			it.attempts = c.Attempt
		}
		if most := it.Queue.Most; c.End == Failed && most > 0 && it.attempts >= most {
			errorf("attempt %d has failed, and the item is not moved to the dead letters", it.attempts)
		}
		it.claim, c.Ended = nil, s.Zxid
		if !s.removed {
			it.free(s.Time)
		}
	}
	return acked
}

// move moves the item between the queue and its dead letters.
func (l *Log) move(it *Item, s *step, acked bool, errorf func(string, ...any)) {
	to := func(doing string, from, to Place) {
		if it.Place != from {
			errorf("%s, and it is %s", doing, it.Place)
		}
		it.Place = to
	}
	switch {
	case s.buried:
		to("moved to the dead letters", InQueue, InDeadLetters)
		it.Moves++
		switch {
		case !s.removed:
			errorf("in the dead letters, and not deleted in the queue")
		case it.claim != nil:
			errorf("moved to the dead letters from under a claim")
		case it.Queue.Most == 0 || it.attempts != it.Queue.Most:
			errorf("moved to the dead letters after %d attempts of %d", it.attempts, it.Queue.Most)
		case !s.reason:
			errorf("moved to the dead letters without its reason")
		}
		if s.data != it.Value {
			errorf("moved to the dead letters as %q", s.data)
		}
		l.take(it, s.Time)
	case s.put && s.unburied:
		to("put back from the dead letters", InDeadLetters, InQueue)
		it.attempts, it.Back = 0, append(it.Back, s.Zxid)
		if s.data != it.Value {
			errorf("put back as %q", s.data)
		}
		it.free(s.Time)
	case s.put:
		it.Puts++
		if it.due > 0 {
			l.Due++
		}
		to("put", Nowhere, InQueue)
		it.free(s.Time)
	case s.removed:
		to("deleted", InQueue, Gone)
		switch {
		case acked:
			it.Acks++
		case it.claim != nil:
			errorf("deleted from under a claim")
		default:
			it.Removed++
		}
		l.take(it, s.Time)
	case s.unburied:
		to("deleted in the dead letters", InDeadLetters, Gone)
		it.Drained++
	}
}

// mark begins a claim.
func (l *Log) mark(it *Item, s *step, errorf func(string, ...any)) {
	early := time.Duration(0)
	if at := max(it.due, it.off); at > 0 && !s.Time.IsZero() {
		early = time.UnixMilli(at).Sub(s.Time)
	}
	most := it.Queue.Most
	switch {
	case it.Place != InQueue:
		errorf("claimed, and it is %s", it.Place)
	case it.claim != nil:
		errorf("claimed twice at a time")
	case most > 0 && it.attempts >= most:
		errorf("claimed again after %d attempts of %d", it.attempts, most)
	case s.attempts != it.attempts+1:
		errorf("claimed as attempt %d after %d attempts", s.attempts, it.attempts)
	}
	if early > 0 && !l.ClockSet {
		errorf("claimed %v early", early)
	}
	if it.off > 0 && !s.undelayed {
		errorf("claimed, and its delay stays")
	}
	it.off = 0
	it.claim = &Claim{Zxid: s.Zxid, Mark: s.mark, Session: s.Session, Attempt: it.attempts + 1, Early: max(early, 0)}
	it.Claims = append(it.Claims, it.claim)
	l.take(it, s.Time)
}

// free records that the item can be taken from now on, or when it is due.
func (it *Item) free(now time.Time) {
	it.since = now
	if at := time.UnixMilli(max(it.due, it.off)); at.After(now) {
		it.since = at
	}
}

// take ends the time in which the item can be taken.
func (l *Log) take(it *Item, now time.Time) {
	if it.since.IsZero() {
		return
	}
	l.Taken[it.Queue.Name] = append(l.Taken[it.Queue.Name], now)
	if it.since.Before(now) {
		it.Ready = append(it.Ready, Window{it.since, now})
	}
	it.since = time.Time{}
}
