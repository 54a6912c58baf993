package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

const (
	wide       = 110 // columns, from which on the table has more of them
	narrow     = 80  // columns, below which the last line begins with the keys that help
	leastNames = 24  // columns of paths and holders, for which other columns are left out
	mostAlerts = 6
	mostTurns  = 10
	gap        = "  "
)

// draw returns the lines of a page of that size.
func (s *screen) draw(newest *live.Snapshot, now time.Time, width, height int) []string {
	v := s.view(newest)
	at := now
	if s.frozen != nil {
		at = v.At
	}
	most := max(2, min(mostAlerts, height/4)) // alerts, so that there is room for rows
	var lines []line
	body := func(top []line, foot line, rest []line) {
		s.page = max(1, height-len(top)-1)
		s.most = max(0, len(rest)-s.page)
		s.scroll = max(0, min(s.scroll, s.most))
		rest = rest[s.scroll:]
		rest = rest[:min(len(rest), s.page)]
		lines = slices.Concat(top, rest, make([]line, s.page-len(rest)), []line{foot})
	}
	switch s.mode {
	case inHelp:
		body([]line{{{"The keys of coordctl top", bold}}, nil}, s.foot(v, width), wrap(help, width))
	case inDetail:
		head := append(s.head(v, at, s.opened, width), s.alerts(v, at, width, most)...)
		body(append(head, nil), s.foot(v, width), wrap(s.detail(v, at), width))
	default:
		head := append(s.head(v, at, v.Path, width), s.alerts(v, at, width, most)...)
		rows := s.rows(v)
		s.follow(rows)
		s.page = max(1, height-len(head)-3)
		s.first = max(0, min(s.first, s.index, len(rows)-s.page))
		s.first = max(s.first, s.index-s.page+1)
		shown := rows[s.first:min(len(rows), s.first+s.page)]
		title, table := s.table(v, rows, shown, at, width)
		lines = append(append(head, title), table...)
		if len(rows) == 0 {
			lines = append(lines, s.nothing(v))
			shown = make([]*live.Row, 1)
		}
		lines = append(lines, make([]line, max(0, s.page-len(shown)))...)
		lines = append(lines, s.about(rows, at), s.foot(v, width))
	}
	if over := len(lines) - height; over > 0 && height > 0 {
		// The last line, which says how to continue, stays.
		lines = append(lines[:height-1:height-1], lines[len(lines)-1])
	}
	painted := make([]string, len(lines))
	for i, l := range lines {
		painted[i] = l.paint(width, s.colour)
	}
	return painted
}

// whole returns the whole table as text.
func (s *screen) whole(v *live.Snapshot) string {
	const any = 1 << 20
	rows := s.rows(v)
	s.selected = ""
	head := append(s.head(v, v.At, v.Path, any), s.alerts(v, v.At, any, mostAlerts)...)
	title, table := s.table(v, rows, rows, v.At, any)
	lines := append(append(head, title), table...)
	if len(rows) == 0 {
		lines = append(head, s.nothing(v))
	}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.text() + "\n")
	}
	return b.String()
}

// head returns what the view is of, its state, and sums.
func (s *screen) head(v *live.Snapshot, at time.Time, path string, width int) []line {
	look := good
	if v.Session.Phase != "connected" {
		look = bad
	}
	first := line{{"coord ", quiet}, {live.Clean(s.rel(path)), bold}}
	if s.mode != inDetail && (s.words != "" || s.class != "") {
		only := s.class
		if s.words != "" {
			only = strings.TrimSpace(only + " /" + live.Clean(s.words))
		}
		first = append(first, span{gap + "only " + only, warn})
	}
	first = append(first, span{gap, plain}, span{v.Session.Phase, look})
	switch {
	case !v.Ready:
		first = append(first, span{gap + "reading …", quiet})
	case v.Watched:
		first = append(first, span{gap + plural(len(v.Rows), "recipe") + ", watched, read " + live.Age(at, v.Read) + " ago", quiet})
	default:
		first = append(first, span{gap + plural(len(v.Rows), "recipe") + ", read again and again, " + live.Age(at, v.Read) + " ago", quiet})
	}
	if s.frozen != nil {
		first = append(first, span{gap + "frozen", warn})
	}
	clock := at.UTC().Format("15:04:05 UTC")
	if pad := width - length(first.text()) - length(clock); pad > 1 && pad < 1000 {
		first = append(first, span{strings.Repeat(" ", pad) + clock, quiet})
	}
	t := v.Totals()
	var sums line
	add := func(n int, look style, format string, args ...any) {
		if n == 0 {
			return
		}
		if len(sums) > 0 {
			sums = append(sums, span{" · ", quiet})
		}
		sums = append(sums, span{fmt.Sprintf(format, args...), look})
	}
	// What is wrong comes first, since the end of the line may be cut.
	add(t.Stuck, bad, "%s", plural(t.Stuck, "stuck queue"))
	add(t.InDoubt, bad, "transactions in doubt")
	add(t.Elections-t.Led, bad, "%s without a leader", plural(t.Elections-t.Led, "election"))
	add(t.Dead, warn, "%s", plural(t.Dead, "dead letter"))
	add(t.Waiting, warn, "%s for locks", plural(t.Waiting, "waiter"))
	add(t.Locks, plain, "%d of %s held", t.Held, plural(t.Locks, "lock"))
	add(t.Led, plain, "%s", plural(t.Led, "leader"))
	add(t.Queues, plain, "%s in %s", plural(t.Items, "item"), plural(t.Queues, "queue"))
	if t.In != nil {
		add(t.Queues, plain, "%s/s in, %s/s out", live.Rate(t.In), live.Rate(t.Out))
	}
	add(t.Members, plain, "%s", plural(t.Members, "member"))
	return []line{first, sums}
}

// alerts returns what is wrong with the view, and cycles of waiters, in at most so many lines.
func (s *screen) alerts(v *live.Snapshot, at time.Time, width, most int) []line {
	var list []line
	if v.Session.Phase != "connected" {
		text := fmt.Sprintf("%s for %s: no contact with the service; this was read %s ago", v.Session.Phase, live.Age(at, v.Session.Since), live.Age(at, v.Read))
		list = append(list, line{{text, bad}})
		if v.Session.Err != "" {
			list = append(list, line{{live.Clean(v.Session.Err), bad}})
		}
	}
	if v.Err != "" {
		list = append(list, line{{"cannot read the tree: " + live.Clean(v.Err), bad}})
	}
	for _, c := range v.Cycles {
		text := "possible deadlock: "
		for i, w := range c {
			if i > 0 {
				text += "; "
			}
			text += live.Clean(w.Label) + " waits for " + live.Clean(w.For) + " at " + live.Clean(s.rel(w.Path))
		}
		list = append(list, line{{text, bad}})
	}
	if v.Truncated {
		list = append(list, line{{"there is more than the limit of reads shows", warn}})
	}
	for _, note := range v.Notes {
		list = append(list, line{{live.Clean(note), warn}})
	}
	list = wrap(list, width)
	if more := len(list) - most; more > 0 {
		list = append(list[:most-1], line{{fmt.Sprintf("… and %d more such lines", more+1), warn}})
	}
	return list
}

// nothing says why there is no row.
func (s *screen) nothing(v *live.Snapshot) line {
	switch {
	case !v.Ready:
		return nil
	case s.words != "" || s.class != "":
		return line{{"  no recipe matches; Esc shows all", quiet}}
	}
	if len(v.Notes) > 0 {
		return line{{"  there is no recipe that can be read at or below " + live.Clean(s.rel(v.Path)), quiet}}
	}
	return line{{"  there is no recipe at or below " + live.Clean(s.rel(v.Path)) + " yet", quiet}}
}

// A cell is a text in the table, or the head of a column.
type cell struct {
	text string
	look style
	cut  end
}

// cells returns what the table says of a row.
func (s *screen) cells(r *live.Row, at time.Time, isWide bool) []cell {
	list := []cell{{live.Clean(s.rel(r.Path)), plain, cutLeft}}
	state := cell{live.Clean(r.State), quiet, cutRight}
	switch r.State {
	case "held", "led", "busy", "open", "set":
		state.look = good
	case "stuck", "in doubt":
		state.look = bad
	}
	if isWide {
		list = append(list, cell{r.Recipe, kind, cutRight})
	} else if r.State == "" {
		state = cell{r.Recipe, kind, cutRight}
	}
	list = append(list, state, s.holder(r))
	age := live.Age(at, r.Since())
	waiting := cell{look: warn}
	switch {
	case r.Queue != nil:
		age = live.Age(at, r.Queue.Oldest)
		waiting.look = plain
		if r.Queue.Takers > 0 {
			waiting.text = fmt.Sprintf("%d to take", r.Queue.Takers)
		}
	case r.Class() == "groups" || r.Class() == "shards":
		age = ""
	}
	if r.Queue == nil && r.Waiting > 0 {
		waiting.text = fmt.Sprint(r.Waiting)
		if len(r.Waiters) > 0 && isWide {
			waiting.text += ": " + live.Clean(r.Waiters[0].Label) + " for " + live.Age(at, r.Waiters[0].Since)
		}
	}
	return append(list, cell{text: age}, waiting)
}

// holder returns the clients of a row, or its figures.
func (s *screen) holder(r *live.Row) cell {
	if q := r.Queue; q != nil {
		parts := []string{fmt.Sprintf("%d ready", q.Ready), fmt.Sprintf("%d claimed", q.Claimed)}
		if q.Delayed > 0 {
			parts = append(parts, fmt.Sprintf("%d delayed", q.Delayed))
		}
		c := cell{}
		if q.Dead > 0 {
			parts, c.look = append(parts, fmt.Sprintf("%d dead", q.Dead)), warn
		}
		if q.In != nil {
			parts = append(parts, live.Rate(q.In)+"/s in", live.Rate(q.Out)+"/s out")
		}
		c.text = strings.Join(parts, ", ")
		return c
	}
	switch r.Class() {
	case "groups":
		text := plural(r.Holding, "member")
		for i, p := range r.Holders {
			if i >= 20 {
				break
			}
			text += map[bool]string{true: ": ", false: ", "}[i == 0] + live.Clean(p.Label)
		}
		return cell{text: text}
	case "locks", "leaders", "barriers":
		if len(r.Holders) == 0 {
			return cell{}
		}
		p := r.Holders[0]
		c := cell{text: party(p)}
		if r.Holding > 1 {
			c.text += fmt.Sprintf(" +%d", r.Holding-1)
		}
		if p.Asked != "" {
			c.text, c.look = c.text+", "+live.Clean(p.Asked), warn
		}
		return c
	}
	return cell{text: live.Clean(r.Summary), look: quiet}
}

// party names a client, with its host if the data of the node say so.
func party(p live.Party) string {
	if p.Host != "" && !strings.Contains(p.Label, p.Host) {
		return live.Clean(p.Label) + " on " + live.Clean(p.Host)
	}
	return live.Clean(p.Label)
}

// table returns the head of the table and the rows that are shown. The widths follow from all rows,
// so that columns stay in place when the rows move.
func (s *screen) table(v *live.Snapshot, rows, shown []*live.Row, at time.Time, width int) (title line, lines []line) {
	isWide := width >= wide
	heads := []string{"PATH", "RECIPE", "STATE", "HOLDER OR FIGURES", "AGE", "WAITING"}
	path, holder := 0, 3
	if !isWide {
		heads, holder = slices.Delete(heads, 1, 2), 2
	}
	widths := make([]int, len(heads))
	for i, h := range heads {
		widths[i] = length(h)
	}
	for _, r := range rows {
		for i, c := range s.cells(r, at, isWide) {
			widths[i] = max(widths[i], length(c.text))
		}
	}
	last := len(widths) - 1
	widths[last] = min(widths[last], 40)
	columns := make([]int, len(widths)) // that are shown
	room := width - len("> ") - last*len(gap)
	for i, n := range widths {
		columns[i] = i
		if i != path && i != holder {
			room -= n
		}
	}
	for _, i := range []int{last - 1, last, holder - 1} { // the columns of the age, of the waiters and of the state
		if room >= min(leastNames, widths[path]+widths[holder]) {
			break
		}
		columns = slices.DeleteFunc(columns, func(c int) bool { return c == i })
		room += widths[i] + len(gap)
	}
	last = columns[len(columns)-1]
	// What does not fit is cut from the path and the holder, each of which keeps what it needs up
	// to the half.
	if want := widths[path] + widths[holder]; want > room {
		half := max(room/2, 4)
		switch {
		case widths[path] <= half:
			widths[holder] = max(room-widths[path], 0)
		case widths[holder] <= half:
			widths[path] = max(room-widths[holder], 0)
		default:
			widths[path], widths[holder] = half, max(room-half, 0)
		}
	}
	title = line{{"  ", quiet}}
	for _, i := range columns {
		h := fit(heads[i], widths[i], cutRight)
		if i != last {
			h += gap
		}
		title = append(title, span{h, quiet})
	}
	for _, r := range shown {
		l := line{{"  ", plain}}
		chosen := r.Path == s.selected && s.selected != ""
		if chosen {
			l[0] = span{"> ", reversed}
		}
		cells := s.cells(r, at, isWide)
		for _, i := range columns {
			c := cells[i]
			text := fit(c.text, widths[i], c.cut)
			if i != last {
				text += gap
			}
			if chosen {
				c.look = reversed
			}
			l = append(l, span{text, c.look})
		}
		lines = append(lines, l)
	}
	return title, lines
}

// about returns the lines below the table, which describe the selected row.
func (s *screen) about(rows []*live.Row, at time.Time) line {
	if len(rows) == 0 {
		return nil
	}
	r := rows[s.index]
	l := line{{fmt.Sprintf("%d/%d ", s.index+1, len(rows)), quiet}, {r.Recipe + " ", kind}, {live.Clean(r.Summary), plain}}
	if len(r.Holders) > 0 && r.Queue == nil && r.Class() != "groups" && r.Class() != "shards" {
		l = append(l, span{fmt.Sprintf("; since %s, session %s", stamp(r.Holders[0].Since), r.Holders[0].Session), quiet})
	}
	if q := r.Queue; q != nil && q.In != nil {
		l = append(l, span{fmt.Sprintf("; %s/s in, %s/s out", live.Rate(q.In), live.Rate(q.Out)), quiet})
	}
	return l
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// foot returns the last line: the filter, or the keys.
func (s *screen) foot(v *live.Snapshot, width int) line {
	if s.mode == inFilter {
		return line{{"/", bold}, {live.Clean(s.words), plain}, {" ", reversed}, {gap + "words that path, recipe, state or client have; Enter keeps, Esc drops", quiet}}
	}
	var l line
	key := func(name, text string) { l = append(l, span{name, bold}, span{" " + text + gap, quiet}) }
	general := func() {
		if s.mode != inHelp {
			key("?", "help")
		}
		key("q", "quit")
	}
	if width < narrow {
		general()
	}
	switch s.mode {
	case inHelp:
		key("Esc", "back")
	case inDetail:
		key("Esc", "back")
		key("↑↓", "scroll")
		if s.most > 0 {
			l = append(l, span{fmt.Sprintf("%d%%"+gap, 100*s.scroll/s.most), quiet})
		}
		key("space", map[bool]string{true: "go on", false: "freeze"}[s.frozen != nil])
	default:
		key("Enter", "open")
		key("/", "filter")
		key("Tab", "class")
		key("s", "sort: "+live.Orders[s.order])
		key("space", map[bool]string{true: "go on", false: "freeze"}[s.frozen != nil])
	}
	if width >= narrow {
		general()
	}
	return l
}

// help is the page of keys.
var help = []line{
	{{"In the table", kind}},
	words("  ↑ ↓  k j          the row above or below; PgUp PgDn Home End too"),
	words("  Enter  →          open the recipe: its holders, waiters, turns and figures"),
	words("  /                 filter by words: of the path, the recipe, the state or a client"),
	words("  Tab  Shift-Tab    the next class: locks, leaders, queues, groups, shards, …"),
	words("  Esc               show all rows again"),
	words("  s  S              sort by path, waiting clients, items, or age"),
	nil,
	{{"In a recipe", kind}},
	words("  ↑ ↓  PgUp PgDn    scroll"),
	words("  Esc  ←            back to the table"),
	nil,
	{{"Everywhere", kind}},
	words("  space             freeze what is shown, and go on"),
	words("  Ctrl-L            draw the screen again"),
	words("  Ctrl-Z            suspend"),
	words("  q                 quit"),
	nil,
	words("AGE is how long the holder has held or led, or how long the oldest ready item"),
	words("of a queue has waited. A queue is stuck if it has ready items, no claim, and no"),
	words("client that waits for an item. Rates are over the latest 30 seconds."),
}
