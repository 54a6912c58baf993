package top

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// A style is the code of how a text looks on a terminal.
type style string

const (
	plain    style = ""
	bold     style = "1"
	quiet    style = "2"
	reversed style = "7"
	bad      style = "31"
	good     style = "32"
	warn     style = "33"
	kind     style = "36"
)

// A span is a text of one style, and a line is a list of spans.
type (
	span struct {
		text string
		look style
	}
	line []span
)

func words(text string) line { return line{{text, plain}} }

// columns returns how many columns of a terminal a character takes.
func columns(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

func length(text string) (n int) {
	for _, r := range text {
		n += columns(r)
	}
	return n
}

// An end is that of a text which is cut if there is no room.
type end int

const (
	cutRight end = iota
	cutLeft      // of paths, whose ends tell more
)

// fit returns the text in exactly so many columns.
func fit(text string, room int, cut end) string {
	room = max(room, 0)
	n := length(text)
	if n > room && room > 0 {
		for n > room-1 {
			var r rune
			var size int
			if cut == cutLeft {
				r, size = utf8.DecodeRuneInString(text)
				text = text[size:]
			} else {
				r, size = utf8.DecodeLastRuneInString(text)
				text = text[:len(text)-size]
			}
			n -= columns(r)
		}
		if cut == cutLeft {
			text = "…" + text
		} else {
			text += "…"
		}
		n++
	}
	if room == 0 {
		return ""
	}
	return text + strings.Repeat(" ", room-n)
}

// text returns the line without styles, and without spaces at its end.
func (l line) text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// paint returns the line in at most so many columns, with the codes of its styles.
func (l line) paint(room int, colour bool) string {
	var b strings.Builder
	for i, s := range l {
		n := length(s.text)
		if n > room {
			s.text = fit(s.text, room, cutRight)
			n = room
		}
		room -= n
		if i == len(l)-1 && s.look != reversed {
			s.text = strings.TrimRight(s.text, " ")
		}
		switch {
		case s.text == "":
		case s.look == plain, !colour && s.look != bold && s.look != reversed:
			b.WriteString(s.text)
		default:
			b.WriteString("\x1b[" + string(s.look) + "m" + s.text + "\x1b[0m")
		}
		if room <= 0 {
			break
		}
	}
	return b.String()
}

// wrap returns the lines with those that are too long continued below, indented, in the style of
// their part.
func wrap(lines []line, room int) []line {
	const indent = "      "
	var all []line
	for _, l := range lines {
		for l.length() > room && room > 2*len(indent) {
			head, rest := l.split(room)
			all = append(all, head)
			l = append(line{{indent, plain}}, rest...)
		}
		all = append(all, l)
	}
	return all
}

func (l line) length() (n int) {
	for _, s := range l {
		n += length(s.text)
	}
	return n
}

// split returns the beginning of the line, which fills at most so many columns, and the rest. It
// splits at a space if there is one in the last half.
func (l line) split(room int) (head, rest line) {
	var text strings.Builder
	for _, s := range l {
		text.WriteString(s.text)
	}
	at, used := -1, 0
	for i, r := range text.String() {
		if used+columns(r) > room {
			if at < 0 {
				at = i
			}
			break
		}
		if used += columns(r); r == ' ' && used > room/2 {
			at = i + 1
		}
	}
	n := 0
	for _, s := range l {
		cut := max(0, min(at-n, len(s.text)))
		n += len(s.text)
		if cut > 0 {
			head = append(head, span{s.text[:cut], s.look})
		}
		if cut < len(s.text) {
			rest = append(rest, span{s.text[cut:], s.look})
		}
	}
	return head, rest
}
