//go:build linux

package chaos

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/fence"
)

// A checker that has never found a violation is untested. Each checker gets a valid history,
// and invalid ones.

// verdict checks the result of a checker: it must contain want, or be empty if want is "".
func verdict(t *testing.T, got []string, want string) {
	t.Helper()
	text := strings.Join(got, "\n")
	if want == "" && text != "" || want != "" && !strings.Contains(text, want) {
		t.Errorf("found %q, want %q", text, want)
	}
}

// history makes a process from events. An event without a time gets its index as its time.
func history(t *testing.T, name string, events ...event) *process {
	t.Helper()
	p := &process{name: name, events: events}
	for i := range p.events {
		if p.events[i].At == 0 {
			p.events[i].At = int64(i + 1)
		}
	}
	if err := p.digest(); err != nil {
		t.Fatal(err)
	}
	return p
}

// held returns the events of one hold of a mutex, from the begin of its acquisition to the
// end of its release.
func held(n int64, id string, token int64, at ...int64) (list []event) {
	e := event{Work: "mutex", Op: "acquire", N: n}
	got := event{Work: "mutex", Op: "acquire", ID: id, Token: token, Session: 7, N: n}
	rel := event{Work: "mutex", Op: "release", ID: id, Value: id, Token: token, Session: 7, N: n + 1}
	for i, a := range at {
		x := []event{e, got, rel, rel}[i]
		x.At, x.Kind = a, []string{"begin", "ok", "begin", "ok"}[i]
		list = append(list, x)
	}
	return list
}

const second = int64(1e9)

// beats returns the beats of a process that ran from a time to another.
func beats(from, to int64) (list []event) {
	for at := from; at <= to; at += second / 10 {
		list = append(list, event{Kind: "beat", At: at})
	}
	return list
}

func inTime(lists ...[]event) []event {
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, func(a, b event) int { return int(min(1, max(-1, a.At-b.At))) })
	return all
}

func TestTheCheckOfHoldsFindsTwoHolders(t *testing.T) {
	one := func(*call) int { return 1 }
	for _, tc := range []struct {
		name       string
		a, b       []event
		nemesis    []event
		two, order string
	}{
		{
			name: "one after the other",
			a:    held(1, "a", 10, 1*second, 2*second, 3*second, 4*second),
			b:    held(1, "b", 20, 2*second, 4*second, 5*second, 6*second),
		},
		{
			name: "two holders",
			a:    held(1, "a", 10, 1*second, 2*second, 5*second, 6*second),
			b:    held(1, "b", 20, 2*second, 3*second, 4*second, 5*second),
			two:  "2 held at once", order: "not linearizable",
		},
		{
			name:  "an old token",
			a:     held(1, "a", 30, 1*second, 2*second, 3*second, 4*second),
			b:     held(1, "b", 20, 5*second, 6*second, 7*second, 8*second),
			order: "not linearizable",
		},
		{
			name: "a token again, of a process that keeps the lock",
			a: slices.Concat(held(1, "a#1", 30, 1*second, 2*second, 3*second, 4*second),
				held(3, "a#2", 30, 5*second, 6*second, 7*second, 8*second)),
		},
		{
			name: "a token again, of a process that had the lock before another",
			a: slices.Concat(held(1, "a#1", 30, 1*second, 2*second, 3*second, 4*second),
				held(3, "a#2", 30, 9*second, 10*second, 11*second, 12*second)),
			b:     held(1, "b#1", 40, 5*second, 6*second, 7*second, 8*second),
			order: "not linearizable",
		},
		{
			name: "a token again, of a process whose session was ended by force before another had the lock",
			a: slices.Concat(held(1, "a#1", 30, 1*second, 2*second, 3*second, 4*second),
				held(3, "a#2", 30, 9*second, 10*second, 11*second, 12*second)),
			b:       held(1, "b#1", 40, 5*second, 6*second, 7*second, 8*second),
			nemesis: []event{{Kind: "expire", Session: 7, At: 4*second + 1}},
		},
		{
			name:  "one token twice",
			a:     held(1, "a", 30, 1*second, 2*second, 3*second, 4*second),
			b:     held(1, "b", 30, 5*second, 6*second, 7*second, 8*second),
			order: "not linearizable",
		},
		{
			name: "a holder that was stopped",
			a: inTime(beats(1*second, 2*second), held(1, "a", 10, 1*second, 1500*second/1000, 9*second, 10*second),
				beats(9*second, 10*second)),
			b: held(1, "b", 20, 2*second, 6*second, 7*second, 8*second),
		},
		{
			name: "a holder that ran all the time",
			a: inTime(beats(1*second, 10*second), held(1, "a", 10, 1*second, 1500*second/1000, 9*second, 10*second),
				beats(9*second, 10*second)),
			b:   held(1, "b", 20, 2*second, 6*second, 7*second, 8*second),
			two: "2 held at once", order: "not linearizable",
		},
		{
			name:    "a holder whose session was ended by force",
			a:       held(1, "a", 10, 1*second, 2*second, 5*second, 6*second),
			b:       held(1, "b", 20, 2*second, 4*second, 5*second, 6*second),
			nemesis: []event{{Kind: "expire", Session: 7, At: 3 * second}},
		},
		{
			name:    "a session that was ended by force after the second grant",
			a:       held(1, "a", 10, 1*second, 2*second, 5*second, 6*second),
			b:       held(1, "b", 20, 2*second, 3*second, 4*second, 5*second),
			nemesis: []event{{Kind: "expire", Session: 7, At: 3*second + 1}},
			two:     "2 held at once", order: "not linearizable",
		},
		{
			name:    "a session that was ended by force after the release",
			a:       held(1, "a", 10, 1*second, 2*second, 3*second, 4*second),
			b:       held(1, "b", 20, 2*second, 5*second, 6*second, 7*second),
			nemesis: []event{{Kind: "expire", Session: 7, At: 9 * second}},
		},
		{
			name: "a holder that was notified in time",
			a:    inTime(held(1, "a", 10, 1*second, 2*second), []event{{Kind: "lost", Work: "mutex", ID: "a", At: 3 * second}}, []event{{Kind: "beat", At: 9 * second}}),
			b:    held(1, "b", 20, 2*second, 4*second, 5*second, 6*second),
		},
		{
			name: "a holder that was notified too late",
			a:    inTime(held(1, "a", 10, 1*second, 2*second), []event{{Kind: "lost", Work: "mutex", ID: "a", At: 5 * second}}),
			b:    held(1, "b", 20, 2*second, 4*second, 6*second, 7*second),
			two:  "2 held at once", order: "not linearizable",
		},
		{
			name: "a holder that was killed",
			a:    held(1, "a", 10, 1*second, 2*second),
			b:    held(1, "b", 20, 2*second, 6*second, 7*second, 8*second),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i := range tc.b {
				tc.b[i].Session = 8
			}
			all := []*process{history(t, "a", tc.a...), history(t, "b", tc.b...), history(t, "nemesis", tc.nemesis...)}
			list := tenures(all, "mutex", one)
			if len(list) < 2 {
				t.Fatalf("%d tenures", len(list))
			}
			verdict(t, checkOverlap(list, 1), tc.two)
			verdict(t, checkLock("mutex", list), tc.order)
		})
	}
}

func TestTheCheckOfPermitsAddsThemUp(t *testing.T) {
	permits := func(from, until int64, weight int) *tenure {
		return &tenure{id: "x", weight: weight, from: from, until: until}
	}
	verdict(t, checkOverlap([]*tenure{permits(1, 4, 3), permits(2, 5, 2), permits(4, 6, 3)}, 5), "")
	verdict(t, checkOverlap([]*tenure{permits(1, 4, 3), permits(2, 5, 2), permits(3, 6, 1)}, 5), "6 held at once")
}

func TestTheCheckOfReadersAndWritersAcceptsADowngrade(t *testing.T) {
	rw := func(kind, op, id, value string, n, at, token int64) event {
		return event{Kind: kind, Work: "rwmutex", Op: op, ID: id, Value: value, N: n, At: at, Token: token}
	}
	writer := []event{
		rw("begin", "acquire", "", "write", 1, 1, 0), rw("ok", "acquire", "w", "write", 1, 2, 10),
		rw("begin", "downgrade", "w", "", 2, 4, 10), rw("ok", "downgrade", "w", "r", 2, 5, 10),
		rw("begin", "release", "w", "r", 3, 8, 10), rw("ok", "release", "w", "r", 3, 9, 10),
	}
	weigh := func(c *call) int {
		if c.Value == "write" {
			return allReaders
		}
		return 1
	}
	other := func(kind string, from, until int64) []event {
		return []event{
			rw("begin", "acquire", "", kind, 1, 1, 0), rw("ok", "acquire", "o", kind, 1, from, 20),
			rw("begin", "release", "o", "o", 2, until, 20), rw("ok", "release", "o", "o", 2, until+1, 20),
		}
	}
	for _, tc := range []struct {
		name  string
		other []event
		want  string
	}{
		{"a reader beside the downgraded writer", other("read", 6, 20), ""},
		{"a reader beside the writer", other("read", 3, 20), "held at once"},
		{"a writer beside the downgraded writer", other("write", 6, 7), "held at once"},
		{"a writer behind both", other("write", 10, 12), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list := tenures([]*process{history(t, "a", writer...), history(t, "b", tc.other...)}, "rwmutex", weigh)
			verdict(t, checkOverlap(list, allReaders), tc.want)
		})
	}
}

func TestTheHistoryOfTheResourceKeepsItsWrites(t *testing.T) {
	for _, w := range []fence.Write{
		{Register: "mutex", Token: 5, Hold: "a", Accepted: true},
		{Register: "mutex", Token: 4, Hold: "b", Overlap: true},
	} {
		if got := written(w).write(); got != w {
			t.Errorf("%+v, want %+v", got, w)
		}
	}
}

func TestTheCheckOfACopyFindsADifference(t *testing.T) {
	type state = coordtest.NodeState
	root := state{Czxid: 1, Mzxid: 1}
	tree := map[string]state{"/t": root, "/t/a": {Czxid: 2, Mzxid: 5, Data: "x"}}
	for _, tc := range []struct {
		name string
		copy map[string]state
		want string
	}{
		{"equal", tree, ""},
		{"lacks a node", map[string]state{"/t": root}, "lacks /t/a"},
		{"has one too many", map[string]state{"/t": root, "/t/a": tree["/t/a"], "/t/b": root}, "which the tree does not have"},
		{"old data", map[string]state{"/t": root, "/t/a": {Czxid: 2, Mzxid: 2, Data: "w"}}, "at /t/a"},
		{"another creation", map[string]state{"/t": root, "/t/a": {Czxid: 3, Mzxid: 5, Data: "x"}}, "at /t/a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			verdict(t, checkCopy("p", report{Tree: tc.copy, Folded: tree}, tree), tc.want)
			verdict(t, checkCopy("p", report{Tree: tree, Folded: tc.copy}, tree), tc.want)
		})
	}
	verdict(t, checkCopy("p", report{Tree: tree, Folded: tree, Wrong: []string{"twice"}}, tree), "do not follow")
	verdict(t, checkCopy("p", report{Tree: tree, Folded: tree, Text: "the cache has ended"}, tree), "has ended")
}

func TestWhatIsLeftBehindIsFound(t *testing.T) {
	tree := map[string]coordtest.NodeState{"/tree/1/2": {Owner: 7}}
	for _, path := range []string{
		"/", mutexPath, mutexPath + "/x", semaphorePath + "/requests", semaphorePath + "/requests/x", "/tree/1", valuePath,
		queuePath + "/items/b-0-0", queuePath + "/items/b-0-0/x", queuePath + "/waiters/x", txnPath + "/tx/t", txnPath + "/sites/north", txnPath + "/sites/north/t",
	} {
		tree[path] = coordtest.NodeState{}
	}
	want := []string{
		mutexPath + "/x", semaphorePath + "/requests/x", queuePath + "/items/b-0-0/x", queuePath + "/waiters/x",
		"/tree/1/2", txnPath + "/sites/north/t", txnPath + "/tx/t",
	}
	if got := leftIn(tree); !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}
