package recipetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// traceLockTests are tests of Trace on each service.
type traceLockTests struct{ Services }

func (on traceLockTests) TheEventsOfAMutex(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		a := coord.NewMutex(w.Open("a", nil), "/l", nil)
		x, c := w.taped("b", nil)
		b := coord.NewMutex(c, "/l", nil)

		h, err := b.Lock(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
		x.want("#1 called HoldGranted mutex /l lock node=/*lock-* token=true weight=1",
			"#1 HoldReleased mutex /l lock node=/*lock-* token=true err=nil")

		taken := coordtest.MustLock(w.T, a)
		if _, err := b.TryLock(ctx); err == nil {
			w.T.Fatal("TryLock of a lock that is taken")
		}
		l := w.Lock(ctx, b)
		x.want("#2 called WaitBegan mutex /l lock node=/*lock-* ahead=1")
		coordtest.MustRelease(w.T, taken)
		h = l.Hold()
		x.want("#2 called HoldGranted mutex /l lock node=/*lock-* token=true weight=1")
		w.Link("b").Expire(h.Session())
		x.want("#2 HoldLost mutex /l lock node=/*lock-* token=true err=lost")
		// The client may take its next session later than it reports the loss. A Lock that
		// begins in between reports that it begins again.
		if _, err := b.Contenders(ctx); err != nil {
			w.T.Fatal(err)
		}

		taken = coordtest.MustLock(w.T, a)
		giveUp, cancel := context.WithCancel(ctx)
		l = w.Lock(giveUp, b)
		x.want("#3 called WaitBegan mutex /l lock node=/*lock-* ahead=1")
		cancel()
		<-l.Done
		x.want("#3 called WaitEnded mutex /l lock node=/*lock-* err=canceled")
		w.Eventually("its node is gone", func() bool { return len(w.Children("/l")) == 1 })

		l = w.Lock(ctx, b)
		x.want("#4 called WaitBegan mutex /l lock node=/*lock-* ahead=1")
		list, err := a.Contenders(context.Background())
		if err != nil || len(list) != 2 {
			w.T.Fatal(list, err)
		}
		w.Link("b").Expire(list[1].Session)
		w.Eventually("it waits again", func() bool {
			l.Pending()
			return x.len() >= 2
		})
		x.want("#4 called WaiterRequeued mutex /l lock node=/*lock-* again=true",
			"#4 called WaitBegan mutex /l lock node=/*lock-* ahead=1")
		coordtest.MustRelease(w.T, taken)
		l.Hold()
		c.Close()
		x.want("#4 called HoldGranted mutex /l lock node=/*lock-* token=true weight=1",
			"#4 HoldLost mutex /l lock node=/*lock-* token=true err=closed")
	})
}

func (on traceLockTests) TheEventsOfCallersOfOneClient(t *testing.T) {
	on.each(t, func(w *world) {
		x, c := w.taped("a", nil)
		m := coord.NewMutex(c, "/l", nil)
		h := coordtest.MustLock(w.T, m)
		x.want("#1 HoldGranted mutex /l lock node=/*lock-* token=true weight=1")
		l := w.Lock(context.Background(), m)
		x.want("#2 WaitBegan mutex /l lock ahead=-1")
		giveUp, cancel := context.WithCancel(context.Background())
		gone := w.Lock(giveUp, m)
		x.want("#3 WaitBegan mutex /l lock ahead=-1")
		cancel()
		<-gone.Done
		x.want("#3 WaitEnded mutex /l lock err=canceled")
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, l.Hold())
		x.want("#1 HoldReleased mutex /l lock node=/*lock-* token=true err=nil",
			"#2 HoldGranted mutex /l lock node=/*lock-* token=true weight=1",
			"#2 HoldReleased mutex /l lock node=/*lock-* token=true err=nil")
	})
}

func (on traceLockTests) AWaiterReportsThatItMovesUp(t *testing.T) {
	on.each(t, func(w *world) {
		line := func(name string) *coord.Mutex { return coord.NewMutex(w.Open(name, nil), "/l", nil) }
		h := coordtest.MustLock(w.T, line("holder"))
		giveUp, cancel := context.WithCancel(context.Background())
		defer cancel()
		second := w.Waiting(giveUp, line("second"))
		third := w.Waiting(context.Background(), line("third"))
		x, c := w.taped("last", nil)
		l := w.Lock(context.Background(), coord.NewMutex(c, "/l", nil))
		x.want("#1 WaitBegan mutex /l lock node=/*lock-* ahead=3")
		cancel()
		<-second.Done
		x.want("#1 PositionChanged mutex /l lock node=/*lock-* ahead=2")
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, third.Hold())
		coordtest.MustRelease(w.T, l.Hold())
	})
}

func (on traceLockTests) TheEventsOfReadersAndWriters(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		rw := coord.NewRWMutex(c, "/rw", nil)
		r, err := rw.RLock(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		x.want("#1 called HoldGranted rwmutex /rw rlock node=/*__READ__* token=false weight=1")
		var h *coord.Hold
		done := make(chan error)
		go func() {
			var err error
			h, err = rw.Lock(ctx)
			done <- err
		}()
		x.want("#2 called WaitBegan rwmutex /rw lock node=/*__WRIT__* ahead=1")
		coordtest.MustRelease(w.T, r)
		if err := <-done; err != nil {
			w.T.Fatal(err)
		}
		if err := rw.Downgrade(ctx, h); err != nil {
			w.T.Fatal(err)
		}
		x.want("#1 HoldReleased rwmutex /rw rlock node=/*__READ__* token=false err=nil",
			"#2 called HoldGranted rwmutex /rw lock node=/*__WRIT__* token=true weight=1",
			"#2 called HoldDowngraded rwmutex /rw lock node=/*__READ__* token=true")
		y, d := w.taped("b", nil)
		if err := coord.NewRWMutex(d, "/rw", nil).Revoke(ctx, &coord.RevokeOptions{By: "b", ForceAfter: w.Timeout / 3}); err != nil {
			w.T.Fatal(err)
		}
		y.want("called RevocationSent rwmutex /rw revoke node=/*__READ__* by=b forced=false",
			"called RevocationSent rwmutex /rw revoke node=/*__READ__* by=b forced=true")
		x.want("#2 RevocationRead rwmutex /rw lock node=/*__READ__* by=b force=true",
			"#2 HoldLost rwmutex /rw lock node=/*__READ__* token=true err=revoked")
	})
}

func (on traceLockTests) TheEventsOfASemaphore(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		s := coord.NewSemaphore(c, "/s", 3, nil)
		h := acquire(w.T, s, 2)
		x.want("#1 HoldGranted semaphore /s acquire node=/requests/*permit-2-* token=false weight=2")
		done := make(chan *coord.Hold)
		go func() {
			h, err := s.Acquire(ctx, 3)
			if err != nil {
				w.T.Error(err)
			}
			done <- h
		}()
		x.want("#2 called WaitBegan semaphore /s acquire node=/requests/*permit-3-* ahead=1")
		coordtest.MustRelease(w.T, h)
		h = <-done
		x.want("#1 HoldReleased semaphore /s acquire node=/requests/*permit-2-* token=false err=nil",
			"#2 called HoldGranted semaphore /s acquire node=/requests/*permit-3-* token=false weight=3")
		short, cancel := context.WithTimeout(ctx, w.Timeout/3)
		defer cancel()
		if _, err := s.Acquire(short, 1); err == nil {
			w.T.Fatal("more permits than there are")
		}
		x.want("#3 called WaitBegan semaphore /s acquire node=/requests/*permit-1-* ahead=1",
			"#3 called WaitEnded semaphore /s acquire node=/requests/*permit-1-* err=deadline")
		w.Link("a").Expire(h.Session())
		x.want("#2 HoldLost semaphore /s acquire node=/requests/*permit-3-* token=false err=lost")
	})
}

func (on traceLockTests) TheEventsOfAnElection(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		e := coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "a"})
		term, err := e.Campaign(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		if err := term.Announce(ctx, []byte("here")); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, term.Hold)
		x.want("#1 called HoldGranted election /e campaign node=/*latch-* token=true weight=1",
			"#1 called LeaderAnnounced election /e campaign node=/*latch-* token=true",
			"#1 HoldReleased election /e campaign node=/*latch-* token=true err=nil")
	})
}

// Trace may call, at each event, the methods that only read memory.
func (on traceLockTests) MayLook(t *testing.T) {
	on.each(t, func(w *world) {
		var held atomic.Pointer[coord.Hold]
		looked := make(chan trace.Event, 100)
		var c *coord.Client
		c = coordtest.Open(w.T, w.Link("a"), &coord.Options{Namespace: w.Path(""), Trace: func(_ context.Context, e trace.Event) {
			h := held.Load()
			if h == nil {
				return // an event of its own Open, or of the lock
			}
			ctx, cancel := context.WithCancel(context.Background())
			<-c.WatchState(ctx)
			cancel()
			h.Err()
			h.Path()
			h.Token()
			h.Session()
			h.Revocation()
			select {
			case <-h.Done():
			default:
			}
			h.Context(ctx)
			h.Guard()
			looked <- e
		}})
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
		held.Store(h)
		w.Link("a").Expire(h.Session())
		for {
			select {
			case e := <-looked:
				if _, ok := e.(trace.HoldLost); ok {
					return
				}
			case <-time.After(coordtest.Limit):
				w.T.Fatal("the loss was never reported")
			}
		}
	})
}

func (on traceLockTests) AnUnknownOutcomeThatIsResolvedIsReported(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		x, c := w.taped("a", &backendtest.Hooks{After: after.After})
		m := coord.NewMutex(c, "/l", nil)
		coordtest.Prime(w.T, m)
		x.want("#1 HoldGranted mutex /l lock node=/*lock-* token=true weight=1",
			"#1 HoldReleased mutex /l lock node=/*lock-* token=true err=nil")
		after.Arm(1, coordtest.Creates, coordtest.Lose)
		coordtest.MustLock(w.T, m)
		x.want("OutcomeResolved node=/l/*lock- applied=true",
			"#2 HoldGranted mutex /l lock node=/*lock-* token=true weight=1")
	})
}

// tape records the events that the Trace of one client receives, a line for each, except the
// states of the session. Names of nodes are without the parts that are new each time.
type tape struct {
	w *world

	mu    sync.Mutex
	ids   map[uint64]int // by first sight
	items map[string]int // likewise
	lines []tapeLine
	all   []trace.Event
}

type tapeLine struct {
	id   int // 0 for none
	text string
}

type tapeKey struct{}

// called marks a context as that of a caller, which the tape shows.
func called(ctx context.Context) context.Context { return context.WithValue(ctx, tapeKey{}, true) }

// taped opens a client whose events are recorded.
func (w *world) taped(name string, hooks *backendtest.Hooks) (*tape, *coord.Client) {
	w.T.Helper()
	x := &tape{w: w, ids: make(map[uint64]int), items: make(map[string]int)}
	b := w.Link(name)
	o := &coord.Options{Namespace: w.Path(""), Trace: x.trace}
	if hooks != nil {
		return x, coordtest.Open(w.T, backendtest.Intercept(b, *hooks), o)
	}
	return x, coordtest.Open(w.T, b, o)
}

func (x *tape) trace(ctx context.Context, e trace.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, e)
	if _, ok := e.(trace.StateChanged); ok {
		return
	}
	at := e.About()
	id := 0
	if at.ID != 0 {
		if id = x.ids[at.ID]; id == 0 {
			id = len(x.ids) + 1
			x.ids[at.ID] = id
		}
	}
	by := ""
	if ctx.Value(tapeKey{}) != nil {
		by = "called "
	}
	x.lines = append(x.lines, tapeLine{id, by + x.describe(e)})
}

var newNames = regexp.MustCompile(`_c_[0-9a-f-]{36}-|[0-9a-f]{8}-[0-9a-f-]{27}|\d{10}`)

// describe returns the event in words, without times and without numbers that are new each
// time.
func (x *tape) describe(e trace.Event) string {
	at := e.About()
	name := strings.TrimPrefix(fmt.Sprintf("%T", e), "trace.")
	root := x.w.Path("")
	var s []string
	for _, word := range []string{at.Recipe, strings.TrimPrefix(at.Path, root), at.Op} {
		if word != "" {
			s = append(s, word)
		}
	}
	if at.Node != "" {
		node := strings.TrimPrefix(strings.TrimPrefix(at.Node, at.Path), root)
		s = append(s, "node="+newNames.ReplaceAllString(node, "*"))
	}
	add := func(format string, v ...any) { s = append(s, fmt.Sprintf(format, v...)) }
	err := func(err error) { add("err=%s", short(err)) }
	item := func(id string, attempt int) {
		if x.items[id] == 0 {
			x.items[id] = len(x.items) + 1
		}
		add("item=%d attempt=%d", x.items[id], attempt)
	}
	token := func(n int64) { add("token=%v", n != 0) }
	switch e := e.(type) {
	case trace.WaitBegan:
		add("ahead=%d", e.Ahead)
	case trace.PositionChanged:
		add("ahead=%d", e.Ahead)
	case trace.WaiterRequeued:
		add("again=%v", e.Err != nil)
	case trace.WaitEnded:
		err(e.Err)
	case trace.HoldGranted:
		token(e.Token)
		add("weight=%d", e.Weight)
	case trace.HoldLost:
		token(e.Token)
		err(e.Err)
	case trace.HoldReleased:
		token(e.Token)
		err(e.Err)
	case trace.HoldDowngraded:
		token(e.Token)
	case trace.RevocationRead:
		add("by=%s force=%v", e.By, e.Force)
	case trace.RevocationSent:
		add("by=%s forced=%v", e.By, e.Forced)
	case trace.LeaderAnnounced:
		token(e.Token)
	case trace.KeepEnded:
		token(e.Token)
		add("asked=%v", e.Asked)
	case trace.BarrierSet, trace.BarrierRemoved:
	case trace.RoundOpened:
		add("members=%d", e.Members)
	case trace.ItemsPut:
		add("items=%d", len(e.Items))
	case trace.ItemClaimed:
		item(e.Item, e.Attempt)
		token(e.Token)
	case trace.ItemSettled:
		item(e.Item, e.Attempt)
		add("%v delay=%v", e.Outcome, e.Delay)
		err(e.Err)
	case trace.MemberJoined:
		token(e.Token)
		add("member=%s again=%v", e.Member, e.Again)
	case trace.MemberLeft:
		add("member=%s rejoins=%v left=%v", e.Member, e.Rejoins, e.Err == nil)
	case trace.CacheSynced:
		add("nodes=%d again=%v", e.Nodes, e.Again)
	case trace.CacheStopped:
		err(e.Err)
	case trace.ProposalMade:
		add("tx=%s sites=%d", e.Proposal, e.Sites)
	case trace.ProposalVoted:
		add("tx=%s site=%s yes=%v", e.Proposal, e.Site, e.Yes)
	case trace.ProposalDecided:
		add("tx=%s site=%s commit=%v by=%s", e.Proposal, e.Site, e.Commit, e.By)
	case trace.ProposalAcked:
		add("tx=%s site=%s commit=%v", e.Proposal, e.Site, e.Commit)
	case trace.DecisionsUndone:
		add("site=%s undone=%d failing=%d", e.Site, e.Undone, e.Failing)
	case trace.ProposalInDoubt:
		add("tx=%s site=%s", e.Proposal, e.Site)
	case trace.OutcomeResolved:
		add("applied=%v", e.Applied)
	default:
		x.w.T.Errorf("an unknown event: %T", e)
	}
	return name + " " + strings.Join(s, " ")
}

// short returns a word for an error.
func short(err error) string {
	for _, k := range []struct {
		err  error
		name string
	}{
		{coord.ErrRevoked, "revoked"}, {coord.ErrClosed, "closed"}, {coord.ErrLost, "lost"},
		{coord.ErrLimit, "limit"}, {context.Canceled, "canceled"}, {context.DeadlineExceeded, "deadline"},
		{coord.ErrDenied, "denied"}, {nil, "nil"},
	} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return err.Error()
}

// want waits for as many events as there are lines, and compares them. The events of one
// acquisition must be in order, and come before those of a later one; "#n" before an event is
// the number of its acquisition. Then want empties the tape.
func (x *tape) want(lines ...string) {
	x.w.T.Helper()
	x.w.Eventually("so many events", func() bool { return x.len() >= len(lines) })
	x.w.Settle()
	x.mu.Lock()
	defer x.mu.Unlock()
	slices.SortStableFunc(x.lines, func(a, b tapeLine) int { return cmp.Compare(a.id, b.id) })
	var got []string
	for _, l := range x.lines {
		if l.id > 0 {
			l.text = fmt.Sprintf("#%d %s", l.id, l.text)
		}
		got = append(got, l.text)
	}
	if !slices.Equal(got, lines) {
		x.w.T.Errorf("reported:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(lines, "\n\t"))
	}
	x.lines = nil
}

func (x *tape) len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.lines)
}

// eventsOf returns the recorded events of one type, with their times. Under fake time it waits
// for events that are under way.
func eventsOf[E trace.Event](x *tape) (list []E) {
	x.w.Settle()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.all {
		if e, ok := e.(E); ok {
			list = append(list, e)
		}
	}
	return list
}

// lastOf returns the latest event of one type.
func lastOf[E trace.Event](t *testing.T, x *tape) E {
	t.Helper()
	list := eventsOf[E](x)
	if len(list) == 0 {
		var e E
		t.Fatalf("no %T", e)
	}
	return list[len(list)-1]
}
