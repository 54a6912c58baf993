package top

import (
	"slices"
	"unicode/utf8"

	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// A mode is what the screen shows, and what keys mean.
type mode int

const (
	inTable  mode = iota // moves the selection
	inFilter             // as inTable, and characters change the filter
	inDetail             // one recipe; moves the text
	inHelp
)

// screen is what the operator has chosen to see.
type screen struct {
	rel    func(path string) string // from the path of a row to that of the client
	colour bool

	mode     mode
	from     mode           // of which inHelp was opened
	frozen   *live.Snapshot // shown instead of the newest one
	words    string         // the filter
	before   string         // the filter when inFilter began
	class    string         // of the rows that are shown; "" is all
	order    int            // in live.Orders
	selected string         // the path of the row
	index    int            // where it was last, so that the next row is selected when it has gone
	first    int            // the first row on the screen
	opened   string         // the path that inDetail shows
	scroll   int            // the first line of inDetail and inHelp
	page     int            // how many rows or lines fit
	most     int            // the greatest scroll
}

func newScreen(rel func(string) string, colour bool) *screen {
	return &screen{rel: rel, colour: colour, page: 1}
}

// view returns the snapshot to show.
func (s *screen) view(newest *live.Snapshot) *live.Snapshot {
	if s.frozen != nil {
		return s.frozen
	}
	return newest
}

// rows returns the rows that the filter selects, in order.
func (s *screen) rows(v *live.Snapshot) []*live.Row {
	rows := v.Select(s.words, live.Orders[s.order])
	if s.class != "" {
		rows = slices.DeleteFunc(rows, func(r *live.Row) bool { return r.Class() != s.class })
	}
	return rows
}

// follow finds the selected row again, or the next one if it has gone.
func (s *screen) follow(rows []*live.Row) {
	if i := slices.IndexFunc(rows, func(r *live.Row) bool { return r.Path == s.selected }); i >= 0 {
		s.index = i
	}
	s.choose(rows, s.index)
}

func (s *screen) choose(rows []*live.Row, index int) {
	s.index = max(0, min(index, len(rows)-1))
	if len(rows) > 0 {
		s.selected = rows[s.index].Path
	}
}

// press does what a key means, and reports whether it ends top.
func (s *screen) press(key string, newest *live.Snapshot) (quit bool) {
	v := s.view(newest)
	switch s.mode {
	case inFilter:
		s.edit(key, v)
	case inTable:
		return s.browse(key, v, newest)
	case inDetail, inHelp:
		return s.read(key, newest)
	}
	return false
}

// edit changes the filter.
func (s *screen) edit(key string, v *live.Snapshot) {
	switch key {
	case "enter":
		s.mode = inTable
	case "escape":
		s.words, s.mode = s.before, inTable
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(s.words)
		s.words = s.words[:len(s.words)-n]
	case "ctrl-u":
		s.words = ""
	case "up", "down", "page-up", "page-down":
		s.move(key, v)
	default:
		if utf8.RuneCountInString(key) == 1 && len(s.words) < 200 {
			s.words += key
		}
	}
}

// browse does what keys mean in the table.
func (s *screen) browse(key string, v, newest *live.Snapshot) (quit bool) {
	switch key {
	case "q":
		return true
	case "enter", "right", "l":
		if rows := s.rows(v); len(rows) > 0 {
			s.follow(rows)
			s.opened, s.scroll, s.mode = s.selected, 0, inDetail
		}
	case "/":
		s.before, s.mode = s.words, inFilter
	case "escape":
		s.words, s.class = "", ""
	case "s":
		s.order = (s.order + 1) % len(live.Orders)
		s.choose(s.rows(v), 0)
	case "S":
		s.order = (s.order + len(live.Orders) - 1) % len(live.Orders)
		s.choose(s.rows(v), 0)
	case "tab":
		s.nextClass(v, 1)
	case "back-tab":
		s.nextClass(v, -1)
	case " ":
		s.freeze(newest)
	case "?", "h":
		s.from, s.scroll, s.mode = s.mode, 0, inHelp
	default:
		s.move(key, v)
	}
	return false
}

// nextClass shows the rows of the next class of which there are any, or after the last one all.
func (s *screen) nextClass(v *live.Snapshot, step int) {
	classes := []string{""}
	for _, class := range live.Classes {
		if slices.ContainsFunc(v.Rows, func(r *live.Row) bool { return r.Class() == class }) {
			classes = append(classes, class)
		}
	}
	i := slices.Index(classes, s.class) + step
	s.class = classes[(max(i, -1)+len(classes))%len(classes)]
	s.choose(s.rows(v), 0)
}

func (s *screen) freeze(newest *live.Snapshot) {
	if s.frozen != nil {
		newest = nil
	}
	s.frozen = newest
}

// move moves the selection.
func (s *screen) move(key string, v *live.Snapshot) {
	rows := s.rows(v)
	s.follow(rows)
	index := s.index
	switch key {
	case "up", "k":
		index--
	case "down", "j":
		index++
	case "page-up":
		index -= s.page
	case "page-down":
		index += s.page
	case "home", "g":
		index = 0
	case "end", "G":
		index = len(rows) - 1
	}
	s.choose(rows, index)
}

// read does what keys mean in a text.
func (s *screen) read(key string, newest *live.Snapshot) (quit bool) {
	switch key {
	case "q":
		return true
	case "escape", "backspace", "left", "b":
		if s.mode == inHelp {
			s.mode = s.from
		} else {
			s.mode = inTable
		}
		s.scroll = 0
	case " ":
		s.freeze(newest)
	case "?", "h":
		if s.mode == inDetail {
			s.from, s.scroll, s.mode = s.mode, 0, inHelp
		}
	case "up", "k":
		s.scroll--
	case "down", "j":
		s.scroll++
	case "page-up":
		s.scroll -= s.page
	case "page-down":
		s.scroll += s.page
	case "home", "g":
		s.scroll = 0
	case "end", "G":
		s.scroll = s.most
	}
	s.scroll = max(0, min(s.scroll, s.most))
	return false
}
