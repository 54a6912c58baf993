package coord_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
)

// tape writes down what the Trace of one client is told, a line for each event, but
// for the states of the session. Names of nodes are without what is new each time.
type tape struct {
	w *world

	mu    sync.Mutex
	ids   map[uint64]int // by first sight
	items map[string]int // likewise
	lines []tapeLine
	all   []coord.Event
}

type tapeLine struct {
	id   int // 0 for none
	text string
}

type tapeKey struct{}

// called is a context of a caller's.
func called(ctx context.Context) context.Context { return context.WithValue(ctx, tapeKey{}, true) }

// taped opens a client whose events are written down.
func (w *world) taped(name string, hooks *backendtest.Hooks) (*tape, *coord.Client) {
	w.t.Helper()
	x := &tape{w: w, ids: make(map[uint64]int), items: make(map[string]int)}
	b := w.Link(name)
	o := &coord.Options{Namespace: w.path(""), Trace: x.trace}
	if hooks != nil {
		return x, open(w.t, backendtest.Intercept(b, *hooks), o)
	}
	return x, open(w.t, b, o)
}

func (x *tape) trace(ctx context.Context, e coord.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, e)
	if _, ok := e.(coord.StateChanged); ok {
		return
	}
	at := e.At()
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

// describe is the event in words, without times, and what numbers are new.
func (x *tape) describe(e coord.Event) string {
	at := e.At()
	name := strings.TrimPrefix(fmt.Sprintf("%T", e), "coord.")
	root := x.w.path("")
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
	case coord.WaitBegan:
		add("ahead=%d", e.Ahead)
	case coord.PositionChanged:
		add("ahead=%d", e.Ahead)
	case coord.Requeued:
		add("again=%v", e.Err != nil)
	case coord.WaitEnded:
		err(e.Err)
	case coord.Granted:
		token(e.Token)
		add("weight=%d", e.Weight)
	case coord.HoldLost:
		token(e.Token)
		err(e.Err)
	case coord.HoldReleased:
		token(e.Token)
		err(e.Err)
	case coord.Downgraded:
		token(e.Token)
	case coord.RevocationRead:
		add("by=%s force=%v", e.Revocation.By, e.Revocation.Force)
	case coord.RevocationSent:
		add("by=%s forced=%v", e.Revocation.By, e.Forced)
	case coord.Announced:
		token(e.Token)
	case coord.BarrierSet, coord.BarrierRemoved:
	case coord.RoundOpened:
		add("members=%d", e.Members)
	case coord.ItemsPut:
		add("items=%d", len(e.Items))
	case coord.ItemClaimed:
		item(e.Item, e.Attempt)
		token(e.Token)
	case coord.ItemSettled:
		item(e.Item, e.Attempt)
		add("%v delay=%v", e.Outcome, e.Delay)
		err(e.Err)
	case coord.MemberJoined:
		token(e.Token)
		add("member=%s again=%v", e.Member, e.Again)
	case coord.MemberLeft:
		add("member=%s rejoins=%v left=%v", e.Member, e.Rejoins, e.Err == nil)
	case coord.CacheSynced:
		add("nodes=%d again=%v", e.Nodes, e.Again)
	case coord.CacheStopped:
		err(e.Err)
	case coord.ProposalMade:
		add("tx=%s sites=%d", e.Proposal, e.Sites)
	case coord.ProposalVoted:
		add("tx=%s site=%s yes=%v", e.Proposal, e.Site, e.Yes)
	case coord.ProposalDecided:
		add("tx=%s site=%s commit=%v by=%s", e.Proposal, e.Site, e.Commit, e.By)
	case coord.ProposalAcked:
		add("tx=%s site=%s commit=%v", e.Proposal, e.Site, e.Commit)
	case coord.ProposalInDoubt:
		add("tx=%s site=%s", e.Proposal, e.Site)
	case coord.Resolved:
		add("applied=%v", e.Applied)
	default:
		x.w.t.Errorf("an unknown event: %T", e)
	}
	return name + " " + strings.Join(s, " ")
}

// short says which error it is.
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

// want waits until as much was told, and compares it. What belongs to one
// acquisition must be in order, and comes before that of a later one; "#n" before an
// event is which acquisition it is. Then the tape is empty again.
func (x *tape) want(lines ...string) {
	x.w.t.Helper()
	x.w.eventually("so many events", func() bool { return x.len() >= len(lines) })
	x.w.settle()
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
		x.w.t.Errorf("told:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(lines, "\n\t"))
	}
	x.lines = nil
}

func (x *tape) len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.lines)
}

// toldOf returns the events of one type, the times with them. Under fake time it
// waits for those that are on their way.
func toldOf[E coord.Event](x *tape) (list []E) {
	x.w.settle()
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
func lastOf[E coord.Event](t *testing.T, x *tape) E {
	t.Helper()
	list := toldOf[E](x)
	if len(list) == 0 {
		var e E
		t.Fatalf("no %T", e)
	}
	return list[len(list)-1]
}
