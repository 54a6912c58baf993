package top

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/inspect"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// hostile is a name that another client may have chosen.
const hostile = "\x1b[2J\x1b]0;title\x07名\u202e\x00\xff\r\n"

// example returns a view with rows of each class.
func example() *live.Snapshot {
	rate := 1.25
	report := func(recipe string) *inspect.Report {
		return &inspect.Report{Path: "/" + hostile, Recipe: recipe, Summary: hostile}
	}
	party := func(id string) live.Party {
		return live.Party{Label: id, ID: id, Host: "10.0.0.1", Session: "0x1", Node: id, Since: start, Token: 7}
	}
	waiter := party("waiter-" + hostile)
	waiter.WaitsFor = []string{hostile}
	asked := party("holder-" + hostile)
	asked.Asked = "asked to give it up by " + hostile
	v := &live.Snapshot{
		Path: "/", At: start, Ready: true, Read: start, Session: live.Session{Phase: "connected", Since: start},
		Rows: []*live.Row{
			{Path: "/a/" + hostile, Recipe: "mutex", State: "held", Summary: hostile, Holders: []live.Party{asked}, Waiters: []live.Party{waiter}, Holding: 1, Waiting: 1,
				Turns: []live.Turn{{Token: 7, Label: hostile, From: start}}},
			{Path: "/b/" + strings.Repeat("long/", 60) + "name", Recipe: "election", State: "led", Holders: []live.Party{party("leader")}, Holding: 1},
			{Path: "/c", Recipe: "queue", State: "stuck", Queue: &live.Queue{Items: 5, Ready: 4, Claimed: 1, Dead: 2, Delayed: 1, Takers: 3, Oldest: start, In: &rate, Out: &rate},
				History: []live.Point{{At: start, Value: 0}, {At: start.Add(time.Minute), Value: 9}, {At: start.Add(2 * time.Minute), Value: 5}}},
			{Path: "/d", Recipe: "group", Holding: 300, Holders: slices.Repeat([]live.Party{party("名名名名")}, 200)},
			{Path: "/e", Recipe: "shards", Summary: "1 member owns 2 of 2 shards", Holders: []live.Party{party("x")}},
			{Path: "/f", Recipe: "twophase", State: "in doubt", Summary: "1 transaction"},
			{Path: "/g", Recipe: "barrier", State: "set"},
			{Path: "/h", Recipe: "counter", Summary: "a number"},
			{Path: "/i", Recipe: "empty", Summary: "empty"},
		},
	}
	for _, r := range v.Rows {
		r.Report = report(r.Recipe)
	}
	return v
}

var codes = regexp.MustCompile(`\x1b\[\d*m`)

func (s *screen) drawn(v *live.Snapshot, width, height int) string {
	return codes.ReplaceAllString(strings.Join(s.draw(v, start.Add(time.Minute), width, height), "\n"), "")
}

// states returns screens in each mode.
func states(v *live.Snapshot) map[string]*screen {
	all := make(map[string]*screen)
	for _, keys := range []string{"", "/ a", "end", "? down", "enter", "tab", "s s enter end"} {
		s := newScreen(func(path string) string { return path }, true)
		s.draw(v, start, 80, 24)
		for _, k := range strings.Fields(keys) {
			s.press(k, v)
			s.draw(v, start, 80, 24)
		}
		all[keys] = s
	}
	for i := range v.Rows {
		s := newScreen(func(path string) string { return path }, true)
		s.opened, s.mode = v.Rows[i].Path, inDetail
		all["row "+v.Rows[i].Recipe] = s
	}
	return all
}

func TestADeadlockIsReadOn80Columns(t *testing.T) {
	const one, other = "billing-7d9f8b6c5d-abcde:4711", "billing-7d9f8b6c5d-fghij:4712"
	v := example()
	v.Cycles = [][]live.Wait{{{Label: one, Path: "/app/accounts/0001", For: other}, {Label: other, Path: "/app/accounts/0002", For: one}}}
	text := newScreen(func(path string) string { return path }, false).drawn(v, 80, 24)
	var whole strings.Builder // without the breaks of lines
	for line := range strings.Lines(text) {
		whole.WriteString(strings.TrimSpace(line))
	}
	for _, want := range []string{"/app/accounts/0001", "/app/accounts/0002"} {
		if !strings.Contains(whole.String(), want) {
			t.Errorf("%s is not shown:\n%s", want, text)
		}
	}
}

// TestAPageFitsEachSize: it has as many lines as the terminal, none of which is too long, and it
// ends with the keys.
func TestAPageFitsEachSize(t *testing.T) {
	v := example()
	lost := example()
	lost.Session = live.Session{Phase: "lost", Since: start, Err: hostile}
	lost.Err, lost.Truncated, lost.Notes, lost.Cycles = hostile, true, []string{hostile, "x", "y"}, [][]live.Wait{{{Label: hostile, Path: hostile, For: "b"}, {Label: "b", Path: "/y", For: hostile}}}
	empty := &live.Snapshot{Path: "/x", Ready: true}
	if text := newScreen(func(path string) string { return path }, false).drawn(lost, 120, 24); !strings.Contains(text, "lost for 1m00s: no contact with the service") || !strings.Contains(text, "possible deadlock: ") {
		t.Errorf("what is wrong is not said:\n%s", text)
	}
	pages := 0
	for _, v := range []*live.Snapshot{v, lost, empty, {}} {
		for name, s := range states(v) {
			for _, width := range []int{1, 2, 10, 20, 40, 79, 80, 81, 109, 110, 130, 300} {
				for _, height := range []int{1, 2, 3, 5, 8, 24, 50} {
					pages++
					lines := s.draw(v, start.Add(time.Minute), width, height)
					if len(lines) != height {
						t.Fatalf("%q at %dx%d: %d lines:\n%s", name, width, height, len(lines), strings.Join(lines, "\n"))
					}
					for _, l := range lines {
						if n := length(codes.ReplaceAllString(l, "")); n > width {
							t.Fatalf("%q at %dx%d: a line of %d columns: %q", name, width, height, n, l)
						}
					}
					if foot := codes.ReplaceAllString(lines[height-1], ""); width >= 80 && !strings.Contains(foot, "quit") && !strings.Contains(foot, "Enter keeps") {
						t.Fatalf("%q at %dx%d: the last line is %q", name, width, height, foot)
					}
				}
			}
		}
	}
	t.Logf("figure: %d pages", pages)
}

// TestHostileNamesDoNotReachTheTerminal: nothing but text and the codes of styles does.
func TestHostileNamesDoNotReachTheTerminal(t *testing.T) {
	v := example()
	v.Session.Err, v.Err, v.Notes, v.Cycles, v.Session.Phase = hostile, hostile, []string{hostile}, [][]live.Wait{{{Label: hostile, Path: hostile, For: hostile}}}, "lost"
	for name, s := range states(v) {
		s.words = hostile
		text := codes.ReplaceAllString(strings.Join(s.draw(v, start, 300, 60), ""), "")
		if bad := strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u202e' || r == utf8.RuneError }); bad >= 0 {
			t.Errorf("%q: %q", name, text[bad:min(len(text), bad+60)])
		}
		if strings.Contains(strings.Join(s.draw(v, start, 300, 60), ""), "\x1b[2J") {
			t.Errorf("%q clears the screen", name)
		}
	}
	s := newScreen(func(path string) string { return path }, false)
	if text := s.whole(v); strings.ContainsAny(text, "\x1b\x07\x00\r") {
		t.Errorf("%q", text)
	}
}

// TestANarrowTerminalShowsWhoHolds: columns are left out, the path and the holder are not, and the
// last line says how to quit.
func TestANarrowTerminalShowsWhoHolds(t *testing.T) {
	v := example()
	v.Rows = []*live.Row{{Path: "/locks/report", Recipe: "mutex", State: "held", Holding: 1, Waiting: 2, Holders: []live.Party{{Label: "web-1", Since: start}}}}
	v.Notes = slices.Repeat([]string{"no permission to read /x"}, 9)
	for _, size := range [][2]int{{20, 8}, {30, 8}, {40, 10}} {
		text := newScreen(func(path string) string { return path }, false).drawn(v, size[0], size[1])
		for _, want := range []string{"web-1", "report", "q quit", "more"} {
			if !strings.Contains(text, want) && (want != "q quit" || size[0] < narrow) {
				t.Errorf("%v: no %q in\n%s", size, want, text)
			}
		}
	}
}

// TestALongLineIsContinued: an operator can read all of an open recipe at each width.
func TestALongLineIsContinued(t *testing.T) {
	plain := func(lines []line) string {
		var b strings.Builder
		for _, l := range lines {
			b.WriteString(strings.ReplaceAll(l.text(), " ", ""))
		}
		return b.String()
	}
	v := example()
	s := newScreen(func(path string) string { return path }, false)
	for _, r := range v.Rows {
		s.opened = r.Path
		lines := append(s.detail(v, start), line{{"a\xffb", bold}, {strings.Repeat("\xff名", 100), good}})
		for width := 13; width < 200; width++ {
			wrapped := wrap(lines, width)
			if got, want := plain(wrapped), plain(lines); got != want {
				t.Fatalf("%s in %d columns: got\n%s\nwant\n%s", r.Recipe, width, got, want)
			}
			for _, l := range wrapped {
				if l.length() > width {
					t.Fatalf("%s in %d columns: %q", r.Recipe, width, l.text())
				}
			}
		}
	}
}

func TestTheTableShowsEachClass(t *testing.T) {
	s := newScreen(func(path string) string { return strings.TrimPrefix(path, "/b") }, false)
	text := s.drawn(example(), 300, 24)
	for _, want := range []string{
		"coord /  connected", "1 stuck queue · transactions in doubt · 2 dead letters · 1 waiter for locks · 1 of 1 lock held",
		"leader on 10.0.0.1", "4 ready, 1 claimed, 1 delayed, 2 dead, 1.2/s in, 1.2/s out", "3 to take", "1m00s", "300 members: 名名名名", "1 member owns 2 of 2 shards", "in doubt",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestARecipeShowsItsClientsAndFigures(t *testing.T) {
	v := example()
	s := newScreen(func(path string) string { return path }, false)
	open := func(i int) string {
		s.opened, s.mode = v.Rows[i].Path, inDetail
		return s.drawn(v, 160, 230)
	}
	for i, wants := range map[int][]string{
		0: {"CLIENT", "holds", "asked to give it up by", "waits", "0x1", "token 7, for 1m00s, until now", "Report"},
		1: {"leader on 10.0.0.1", "leads"},
		2: {"ready 4, claimed 1, delayed 1, dead 2; in 1.2/s, out 1.2/s; oldest 1m00s; 3 wait to take", "███", "5 now, at most 9 in 2m00s"},
		3: {"… and 100 more"},
	} {
		text := open(i)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("row %d: no %q in\n%s", i, want, text)
			}
		}
	}
	s.opened = "/gone"
	if text := s.drawn(v, 80, 24); !strings.Contains(text, "There is no recipe at /gone now") {
		t.Errorf("a recipe that has gone:\n%s", text)
	}
}

// TestKeysMoveFilterAndOpen follows the selection through keys.
func TestKeysMoveFilterAndOpen(t *testing.T) {
	v := &live.Snapshot{Path: "/", Ready: true, At: start, Session: live.Session{Phase: "connected"}}
	for i := range 50 {
		recipe := []string{"mutex", "queue"}[i%2]
		r := &live.Row{Path: fmt.Sprintf("/r%02d", i), Recipe: recipe, Waiting: i, Report: &inspect.Report{}}
		if recipe == "queue" {
			r.Queue = &live.Queue{Items: 100 - i}
		}
		v.Rows = append(v.Rows, r)
	}
	s := newScreen(func(path string) string { return path }, false)
	s.drawn(v, 80, 24)
	for _, step := range []struct {
		keys     string
		selected string
		rows     int
	}{
		{"down down up", "/r01", 50},
		{"end", "/r49", 50},
		{"down", "/r49", 50},
		{"page-up", "/r30", 50}, // 19 rows of 24 lines
		{"home up", "/r00", 50},
		{"tab", "/r00", 25},
		{"tab", "/r01", 25},
		{"tab", "/r00", 50},
		{"back-tab", "/r01", 25},
		{"escape / 4", "/r14", 14},
		{"4", "/r44", 1},
		{"backspace", "/r44", 14},
		{"enter down", "/r45", 14},
		{"/ x", "/r45", 0},
		{"escape", "/r45", 14},
		{"/ ctrl-u enter", "/r45", 50},
		{"s", "/r49", 50}, // by waiting clients
		{"s", "/r01", 50}, // by items
		{"S S", "/r00", 50},
		{"enter", "/r00", 50},
		{"down escape down", "/r01", 50},
	} {
		for _, k := range strings.Fields(step.keys) {
			if s.press(k, v) {
				t.Fatalf("%q quits", k)
			}
			s.drawn(v, 80, 24)
		}
		if n := len(s.rows(v)); s.selected != step.selected || n != step.rows {
			t.Fatalf("after %q %s of %d rows is selected, want %s of %d", step.keys, s.selected, n, step.selected, step.rows)
		}
		if text := s.drawn(v, 80, 24); step.rows > 0 && s.mode == inTable && !strings.Contains(text, "> "+step.selected) {
			t.Fatalf("after %q the selected row is not on the screen:\n%s", step.keys, text)
		}
	}
	v.Rows = slices.Delete(v.Rows, 1, 2)
	if s.drawn(v, 80, 24); s.selected != "/r02" {
		t.Errorf("the selected row has gone, and %s is selected", s.selected)
	}
	s.press(" ", v)
	later := &live.Snapshot{Path: "/", Ready: true, At: start}
	if text := s.drawn(later, 80, 24); !strings.Contains(text, "frozen") || !strings.Contains(text, "/r02") {
		t.Errorf("frozen:\n%s", text)
	}
	s.press(" ", later)
	if text := s.drawn(later, 80, 24); strings.Contains(text, "/r02") {
		t.Errorf("not frozen any more:\n%s", text)
	}
	for _, keys := range []string{"q", "? q", "enter q"} {
		s := newScreen(func(path string) string { return path }, false)
		quit := false
		for _, k := range strings.Fields(keys) {
			quit = s.press(k, v)
		}
		if !quit {
			t.Errorf("%q does not quit", keys)
		}
	}
}

func TestKeysAreDecoded(t *testing.T) {
	for typed, want := range map[string]string{
		"a": "a", "é": "é", "\r": "enter", "\x7f": "backspace", "\t": "tab", "\x03": "ctrl-c", "\x1a": "ctrl-z", "\x15": "ctrl-u",
		"\x1b": "escape", "\x1b[A": "up", "\x1bOB": "down", "\x1b[5~": "page-up", "\x1b[Z": "back-tab", "\x1b[1;5C": "", "\x1b[<0;1;1M": "", "\x1bx": "escape x",
		"\x1b\x1b[A": "escape up", "j\x1b[Bq": "j down q", "\xff": "", "\xc3": "", "\x1b[": "escape [", " ": " ", "\u200b": "",
	} {
		// However the bytes are split, the keys are the same if they come soon enough.
		for cut := range len(typed) + 1 {
			var keys []string
			var pending []byte
			take := func(chunk string, last bool) {
				pending = append(pending, chunk...)
				for len(pending) > 0 {
					k, n := decode(pending, last)
					if n == 0 {
						if last {
							t.Fatalf("%q: nothing of %q is taken", typed, pending)
						}
						return
					}
					if pending = pending[n:]; k != "" {
						keys = append(keys, k)
					}
				}
			}
			take(typed[:cut], false)
			take(typed[cut:], false)
			take("", true)
			if got := strings.Join(keys, " "); got != want {
				t.Errorf("%q, cut at %d: %q, want %q", typed, cut, got, want)
			}
		}
	}
	if k, n := decode([]byte("\x1b["+strings.Repeat("1;", 100)), false); k != "" || n != 202 {
		t.Errorf("a sequence without an end: %q, %d", k, n)
	}
}

func TestATextIsCutToItsColumns(t *testing.T) {
	for _, tc := range []struct {
		text string
		room int
		cut  end
		want string
	}{
		{"abc", 5, cutRight, "abc  "}, {"abcdef", 4, cutRight, "abc…"}, {"abcdef", 4, cutLeft, "…def"}, {"名名名", 5, cutRight, "名名…"}, {"名名名", 4, cutRight, "名… "},
		{"名名名", 4, cutLeft, "…名 "}, {"e\u0301e\u0301", 2, cutRight, "e\u0301e\u0301"}, {"ab", 1, cutRight, "…"}, {"ab", 0, cutRight, ""}, {"", 2, cutLeft, "  "},
	} {
		if got := fit(tc.text, tc.room, tc.cut); got != tc.want || tc.room > 0 && length(got) != tc.room {
			t.Errorf("%q in %d columns: %q, want %q", tc.text, tc.room, got, tc.want)
		}
	}
}
