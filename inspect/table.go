package inspect

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// page is the text of a Report while it is written.
type page struct{ text bytes.Buffer }

func (p *page) line(format string, args ...any) {
	fmt.Fprintf(&p.text, format+"\n", args...)
}

// table writes rows of cells in columns. The first row is the head. Columns that are
// empty below the head are left out.
func (p *page) table(rows ...[]string) {
	if len(rows) < 2 {
		return
	}
	p.line("")
	widths := make([]int, len(rows[0]))
	for _, row := range rows[1:] {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			width := max(widths[i], utf8.RuneCountInString(rows[0][i]))
			b.WriteString("  " + cell + strings.Repeat(" ", width-utf8.RuneCountInString(cell)))
		}
		p.line("%s", strings.TrimRight(b.String(), " "))
	}
}

// who and what return the cells of a node.
func (n *Node) who() []string { return []string{n.Session, stamp(n.Since)} }

func (n *Node) what() []string {
	return []string{size(n.Size, n.Unread), quoteData(n.Data)}
}

func size(n int, unread string) string {
	if unread != "" {
		return unread
	}
	return strconv.Itoa(n)
}

func token(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// numbers returns the numbers of the rows with these names; ranges are written as
// such.
func numbers(number map[string]int, names []string) string {
	var list []string
	for i := 0; i < len(names); {
		first := number[names[i]]
		last := first
		for i++; i < len(names) && first > 0 && number[names[i]] == last+1; i++ {
			last++
		}
		switch {
		case first == 0:
			list = append(list, "?")
		case last > first:
			list = append(list, fmt.Sprintf("%d-%d", first, last))
		default:
			list = append(list, strconv.Itoa(first))
		}
	}
	return strings.Join(list, ",")
}

// mostShown bounds the bytes that a line shows of a text that other clients wrote.
const mostShown = 60

func quoteData(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return strconv.Quote(shorten(string(data)))
}

func shorten(s string) string {
	if len(s) <= mostShown {
		return s
	}
	cut := mostShown
	for cut > mostShown-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// printable returns a name as it is, or quoted if it could confuse a terminal.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) || !utf8.ValidString(name) || strings.Contains(name, `"`) {
		return strconv.Quote(name)
	}
	return name
}
