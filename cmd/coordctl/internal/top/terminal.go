package top

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	// The alternate screen leaves what was on the terminal as it was.
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[2J\x1b[?25h\x1b[?1049l"

	// The bytes of a key may come one by one. A byte ESC alone is the key only if nothing follows
	// within this time.
	escapePause = 50 * time.Millisecond
	longestKey  = 32 // bytes

	leaveLimit = time.Second // for a terminal that does not take what is written
)

// terminal is a terminal in raw mode with the alternate screen.
type terminal struct {
	in, out *os.File
	before  *term.State
	shown   []string // the lines that are on it
	resized <-chan os.Signal
	unwatch func()
}

func openTerminal(ctx context.Context, in, out *os.File) (*terminal, error) {
	t := &terminal{in: in, out: out}
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	t.resized, t.unwatch = watchSize()
	return t, nil
}

func (t *terminal) enter(ctx context.Context) (err error) {
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return err // the terminal may have gone; close still restores the state before
	}
	t.before = before
	t.forget()
	if err = t.write(ctx, enterScreen); err != nil {
		t.leave()
	}
	return err
}

func (t *terminal) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	_ = t.write(ctx, leaveScreen)
	_ = term.Restore(int(t.in.Fd()), t.before)
}

// write writes to the terminal until ctx ends. A write that blocks is abandoned then.
func (t *terminal) write(ctx context.Context, text string) error {
	done := make(chan error, 1)
	go func() {
		_, err := t.out.WriteString(text)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *terminal) close() {
	t.unwatch()
	t.leave()
}

// size returns the size of the terminal, or the usual one if it has none.
func (t *terminal) size() (width, height int) {
	width, height, err := term.GetSize(int(t.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// forget makes the next show write all lines.
func (t *terminal) forget() { t.shown = nil }

// show puts lines on the terminal. It writes those that have changed.
func (t *terminal) show(ctx context.Context, lines []string) error {
	var b strings.Builder
	if t.shown == nil {
		b.WriteString("\x1b[H\x1b[2J")
	}
	for i := range max(len(lines), len(t.shown)) {
		text, was := "", ""
		if i < len(lines) {
			text = lines[i]
		}
		if i < len(t.shown) {
			was = t.shown[i]
		}
		if text == was {
			continue
		}
		b.WriteString("\x1b[" + strconv.Itoa(i+1) + ";1H" + text + "\x1b[K")
	}
	t.shown = append([]string{}, lines...)
	if b.Len() == 0 {
		return nil
	}
	return t.write(ctx, b.String())
}

// keys returns the keys that are typed, by name, until ctx ends. It is closed when the terminal
// has gone. A read that blocks is abandoned, since the process ends.
func (t *terminal) keys(ctx context.Context) <-chan string {
	chunks, keys := make(chan []byte), make(chan string)
	go func() {
		defer close(chunks)
		for {
			chunk := make([]byte, 256)
			n, err := t.in.Read(chunk)
			if n > 0 {
				select {
				case chunks <- chunk[:n]:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(keys)
		var typed []byte
		for {
			var whole <-chan time.Time
			if len(typed) > 0 {
				whole = time.After(escapePause)
			}
			var last bool
			select {
			case chunk, ok := <-chunks:
				if !ok {
					return
				}
				typed = append(typed, chunk...)
			case <-whole:
				last = true
			case <-ctx.Done():
				return
			}
			for len(typed) > 0 {
				k, n := decode(typed, last)
				if n == 0 {
					break
				}
				typed = typed[n:]
				if k == "" {
					continue
				}
				select {
				case keys <- k:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return keys
}

// sequences are what terminals send for keys, after ESC.
var sequences = map[string]string{
	"[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
	"[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
	"[5~": "page-up", "[6~": "page-down", "[Z": "back-tab", "[3~": "delete",
}

// decode returns the first key of what was typed and the number of its bytes. The name of a key
// that types a character is the character; it is "" for what is no key. The number is 0 if the
// bytes can be the beginning of a key, and more can come because last is not set.
func decode(typed []byte, last bool) (key string, n int) {
	switch c := typed[0]; {
	case c == 0x1b:
		return decodeEscape(typed, last)
	case c == '\r' || c == '\n':
		return "enter", 1
	case c == '\t':
		return "tab", 1
	case c == 0x7f || c == 0x08:
		return "backspace", 1
	case c == 0x15:
		return "ctrl-u", 1
	case c < 0x20:
		return "ctrl-" + string(rune(c|0x60)), 1
	}
	if !utf8.FullRune(typed) && !last {
		return "", 0
	}
	r, n := utf8.DecodeRune(typed)
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return "", n
	}
	return string(r), n
}

func decodeEscape(typed []byte, last bool) (key string, n int) {
	if len(typed) == 1 {
		if last {
			return "escape", 1
		}
		return "", 0
	}
	switch typed[1] {
	case 'O': // ESC O, one byte
		if len(typed) > 2 {
			return sequences[string(typed[1:3])], 3
		}
	case '[': // ESC [, parameters, a final byte
		for i := 2; i < len(typed); i++ {
			if c := typed[i]; c >= 0x40 && c <= 0x7e {
				return sequences[string(typed[1:i+1])], i + 1
			}
		}
	default: // ESC, and then another key
		return "escape", 1
	}
	switch {
	case last:
		return "escape", 1
	case len(typed) > longestKey:
		return "", len(typed)
	}
	return "", 0
}
