package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord"
)

// print prints v as JSON in one line, or the text.
func (t *tool) print(ctx context.Context, v any, text string) error {
	return t.write(ctx, v, text, "")
}

// report prints v as JSON over several lines, or the text.
func (t *tool) report(ctx context.Context, v any, text string) error {
	return t.write(ctx, v, text, "  ")
}

// done prints v, what a verb has done until it returns err, also if ctx has ended. An error of the
// output is returned only if there is no other.
func (t *tool) done(ctx context.Context, v any, text, indent string, err error) error {
	ctx, cancel := outlasting(ctx)
	defer cancel()
	if werr := t.write(ctx, v, text, indent); err == nil {
		err = werr
	}
	return err
}

func (t *tool) write(ctx context.Context, v any, text, indent string) error {
	out := output{ctx, t.stdout}
	if t.json {
		e := json.NewEncoder(out)
		e.SetIndent("", indent)
		return e.Encode(v)
	}
	_, err := io.WriteString(out, text)
	return err
}

// table returns rows of cells in columns. The first row is the head. Other clients can have written the
// text of a cell: it neither ends a row nor reaches the terminal as a command.
func table(rows [][]string) string {
	if len(rows) < 2 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = visible(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

// printable returns a text that other clients wrote as it is, or quoted if it could confuse a
// terminal or a table.
func printable(s string) string {
	if s == "" || !prints(s) || strings.ContainsAny(s, `" `) {
		return strconv.Quote(s)
	}
	return s
}

// visible returns a text that other clients wrote, with escapes in place of what does not print.
func visible(s string) string {
	if prints(s) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

// prints reports whether a terminal shows a text as it is, in one line.
func prints(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
}

func stamp(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

func hexSession(id int64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("0x%x", uint64(id))
}

// content is stored data as JSON: a text, or if it is not UTF-8, bytes in base64.
type content struct {
	Text *string `json:"text,omitempty"`
	Data []byte  `json:"data,omitempty"`
}

func contentOf(data []byte) content {
	if text := string(data); utf8.ValidString(text) {
		return content{Text: &text}
	}
	return content{Data: data}
}

// String returns the content, quoted and shortened.
func (c content) String() string {
	const most = 60
	data := c.Data
	if c.Text != nil {
		data = []byte(*c.Text)
	}
	if len(data) > most {
		return strconv.Quote(string(data[:most])) + "…"
	}
	return strconv.Quote(string(data))
}

// plural returns n with the noun, which gets a plural s unless n is 1.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// onTerminal reports whether f is a terminal.
func onTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && isTerminal(file)
}

// A colour is the code of a colour of a terminal.
type colour string

const (
	bold   colour = "1"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	blue   colour = "36"
)

// paint colours a text, if standard output is a terminal and NO_COLOR is not set.
func (t *tool) paint(c colour, text string) string {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || t.json || !onTerminal(t.stdout) {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// confirm asks a question before something is taken by force or deleted.
func (t *tool) confirm(ctx context.Context, format string, args ...any) error {
	question := fmt.Sprintf(format, args...)
	if t.yes {
		return nil
	}
	if !onTerminal(t.stdin) || !onTerminal(t.stderr) {
		return usage("%s? No terminal for the answer; give --yes", question)
	}
	fmt.Fprintf(t.stderr, "%s? [y/N] ", question)
	var answer string
	err := blocking(ctx, func() (err error) {
		answer, err = bufio.NewReader(t.stdin).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return &exit{exitNo, errors.New("nothing was done")}
}

// progress shows on a terminal what coordctl waits for, when that takes more than a second.
// The result ends that.
func (t *tool) progress(format string, args ...any) (stop func()) {
	if !onTerminal(t.stderr) {
		return func() {}
	}
	text := fmt.Sprintf(format, args...)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-quit:
				if n > 1 {
					fmt.Fprint(t.stderr, "\r\x1b[K")
				}
				return
			case <-tick.C:
				// A line that the terminal wraps could not be overwritten.
				fmt.Fprintf(t.stderr, "\r\x1b[K\x1b[?7l%d s: %s …\x1b[?7h", n, text)
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// answered gives errors that answer the question of a verb in the negative their exit status.
func answered(err error) error {
	for _, no := range []error{coord.ErrNotFound, coord.ErrConflict, coord.ErrLocked, coord.ErrExists, coord.ErrDuplicate, coord.ErrFull} {
		if errors.Is(err, no) {
			return &exit{exitNo, err}
		}
	}
	return err
}
