package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
)

// valueCommand returns the verb value and those below it.
func (t *tool) valueCommand() *cobra.Command {
	get := t.command(verb{
		name: "get", words: "PATH", short: "write a value to standard output, unchanged",
		long:    `With --json its versions are written too. On a terminal a line break is added.`,
		example: `coordctl value get /config/limits`,
		exits:   []int{exitNo},
		do:      t.getValue,
	})
	set := t.command(verb{
		name: "set", words: "PATH [VALUE]", short: "set a value, and print its version",
		long: `
Without VALUE it is read from standard input. With --if-version it is set only if the present value
has this version; "none" means that there is no value.`,
		example: `
coordctl value set /config/limits '{"rps":100}'
coordctl value set /config/limits --if-version 2 '{"rps":200}'`,
		exits: []int{exitNo},
		check: t.checkVersion,
		do:    t.setValue,
	})
	edit := t.command(verb{
		name: "edit", words: "PATH", short: "edit a value with $VISUAL or $EDITOR",
		long: `
The value is written only if the editor succeeds, and no other client has changed the value
meanwhile. Otherwise the edited text stays in a file, whose name is printed; after a signal also if
it seems to be as before, since the editor may have saved it beside that file. While the editor
runs, Ctrl-C is for the editor alone, and --wait does not count.`,
		example: `EDITOR='sed -i s/100/150/' coordctl value edit /config/limits`,
		exits:   []int{exitNo},
		signals: true,
		check: func() error {
			if t.verbose && onTerminal(t.stderr) {
				return errors.New("--verbose would write over the editor; send standard error to a file")
			}
			return nil
		},
		do: t.editValue,
	})
	watch := t.command(verb{
		name: "watch", words: "PATH", short: "print a value, and each change of it",
		long:    `A line for each change, until it is interrupted or --wait has passed. Intermediate values can be missed.`,
		example: `coordctl value watch /config/limits`,
		no0:     endless,
		do:      t.watchValue,
	})
	del := t.command(verb{
		name: "delete", words: "PATH", short: "delete a value, after a question",
		example: `coordctl value delete /config/old --yes`,
		exits:   []int{exitNo},
		check:   t.checkVersion,
		do:      t.deleteValue,
	})
	for _, c := range []*cobra.Command{set, del} {
		c.Flags().StringVar(&t.ifVersion, "if-version", "", "the `version` that the value must have, or none")
	}
	return t.command(verb{
		name: "value", short: "read and write a configuration value",
		below: []*cobra.Command{get, set, edit, watch, del},
	})
}

func (t *tool) value(c *coord.Client) *coord.Value[[]byte] {
	return coord.NewValue(c, t.path, &coord.ValueOptions[[]byte]{Codec: coord.Bytes()})
}

// versioned is a value as JSON.
type versioned struct {
	At      time.Time `json:"at,omitzero"` // of watch
	Path    string    `json:"path"`
	Exists  bool      `json:"exists"`
	Version int32     `json:"version"`
	Czxid   int64     `json:"czxid"`
	Mzxid   int64     `json:"mzxid"`
	*content
}

func (t *tool) versioned(v coord.Versioned[[]byte], value []byte) versioned {
	data := contentOf(value)
	return versioned{Path: t.path, Exists: true, Version: v.Version, Czxid: v.Czxid, Mzxid: v.Mzxid, content: &data}
}

func (t *tool) getValue(ctx context.Context, c *coord.Client) error {
	v, err := t.value(c).Get(ctx)
	if err != nil {
		return answered(err)
	}
	text := string(v.Value)
	if onTerminal(t.stdout) && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return t.print(ctx, t.versioned(v, v.Value), text)
}

func parseVersion(text string) (int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("--if-version %q: want a number or none", text)
	}
	return int32(n), nil
}

// checkVersion checks --if-version.
func (t *tool) checkVersion() error {
	if t.ifVersion == "" || t.ifVersion == "none" {
		return nil
	}
	_, err := parseVersion(t.ifVersion)
	return err
}

// expected returns the present value, if --if-version allows its version.
func (t *tool) expected(ctx context.Context, v *coord.Value[[]byte]) (coord.Versioned[[]byte], error) {
	old, err := v.Get(ctx)
	none := errors.Is(err, coord.ErrNotFound)
	if err != nil && !none {
		return old, err
	}
	switch t.ifVersion {
	case "":
	case "none":
		if !none {
			return old, &exit{exitNo, fmt.Errorf("%s: the value already exists, version %d", t.path, old.Version)}
		}
	default:
		want, err := parseVersion(t.ifVersion)
		if err != nil {
			return old, usage("%w", err)
		}
		if none {
			return old, &exit{exitNo, fmt.Errorf("%s: there is no value", t.path)}
		}
		if old.Version != want {
			return old, &exit{exitNo, fmt.Errorf("%s: the value has version %d, want %d", t.path, old.Version, want)}
		}
	}
	if none {
		old = coord.Versioned[[]byte]{}
	}
	return old, nil
}

func (t *tool) setValue(ctx context.Context, c *coord.Client) error {
	var value []byte
	if len(t.values) > 0 {
		value = []byte(t.values[0])
	} else {
		var err error
		if value, err = t.input(ctx, c); err != nil {
			return err
		}
	}
	v := t.value(c)
	if t.ifVersion == "" {
		now, err := v.Set(ctx, value)
		return t.wrote(ctx, now, value, err)
	}
	old, err := t.expected(ctx, v)
	if err != nil {
		return err
	}
	now, err := v.CompareAndSet(ctx, old, value)
	return t.wrote(ctx, now, value, err)
}

// wrote prints the version of a value that was written.
func (t *tool) wrote(ctx context.Context, now coord.Versioned[[]byte], value []byte, err error) error {
	if err != nil {
		return answered(err)
	}
	return t.print(ctx, t.versioned(now, value), fmt.Sprintf("version %d\n", now.Version))
}

func (t *tool) deleteValue(ctx context.Context, c *coord.Client) error {
	v := t.value(c)
	old, err := t.expected(ctx, v)
	if err != nil {
		return err
	}
	if old.Czxid == 0 {
		return &exit{exitNo, fmt.Errorf("%s: there is no value", t.path)}
	}
	if err := t.confirm(ctx, "delete the value %s of %s, version %d", t.path, plural(len(old.Value), "byte"), old.Version); err != nil {
		return err
	}
	if err := v.Delete(ctx, old); err != nil {
		return answered(err)
	}
	return t.print(ctx, versioned{Path: t.path}, "")
}

// editValue opens an editor. The text is kept in its file unless it is written, or is known to be as before.
func (t *tool) editValue(waiting context.Context, c *coord.Client) error {
	v := t.value(c)
	var old coord.Versioned[[]byte]
	err := t.await(waiting, func(ctx context.Context) (err error) {
		old, err = t.expected(ctx, v)
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "coordctl-*.txt") // readable by its owner only
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(old.Value)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	signalled, failed := t.runEditor(f.Name())
	value, err := os.ReadFile(f.Name())
	if err == nil && !signalled && bytes.Equal(value, old.Value) {
		if failed != nil {
			return failed
		}
		t.say("the value was not changed")
		state := versioned{Path: t.path}
		if old.Czxid != 0 {
			state = t.versioned(old, old.Value)
		}
		return t.print(context.WithoutCancel(waiting), state, "")
	}
	keep = true
	if err != nil || failed != nil {
		t.say("nothing was written; your text is kept in %s", f.Name())
		return errors.Join(failed, err)
	}
	writing, cancel := t.waitAnew(waiting, 0) // --wait does not bound the editor
	defer cancel()
	return t.await(writing, func(ctx context.Context) error {
		now, err := v.CompareAndSet(ctx, old, value)
		if keep = err != nil; keep {
			t.say("nothing was written; your text is kept in %s", f.Name())
		}
		return t.wrote(ctx, now, value, err)
	})
}

// runEditor returns when the editor has ended. The editor has the terminal, so an interrupt from
// the keyboard reaches it too, and only the editor acts on it: many editors use Ctrl-C as a key. Another
// signal is passed on to the editor, and reported.
func (t *tool) runEditor(file string) (signalled bool, err error) {
	editor := os.Getenv("VISUAL")
	for _, next := range []string{os.Getenv("EDITOR"), "vi"} {
		if editor == "" {
			editor = next
		}
	}
	command := editor + ` "$1"` // the variable can have arguments
	if !strings.ContainsAny(editor, ";&|<>(){}\n") {
		command = "exec env " + command // the editor gets the signals, not a shell
	}
	cmd := exec.Command("sh", "-c", command, "sh", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.stdin, t.stdout, t.stderr
	if !onTerminal(t.stdout) && onTerminal(t.stderr) {
		cmd.Stdout = t.stderr // standard output is for the result
	}
	ended := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return false, err
	}
	go func() { ended <- cmd.Wait() }()
	var end os.Signal // coordctl was asked to end
	for {
		select {
		case err := <-ended:
			switch {
			case end != nil:
				return true, interrupted(end)
			case err != nil:
				return false, &exit{exitNo, fmt.Errorf("%s: %w; nothing was written", editor, err)}
			}
			return false, nil
		case s := <-t.signals:
			if s != os.Interrupt {
				end = s
				_ = cmd.Process.Signal(s)
			}
		}
	}
}

func (t *tool) watchValue(ctx context.Context, c *coord.Client) error {
	for v := range t.value(c).Watch(ctx) {
		at := time.Now().UTC()
		j := versioned{At: at, Path: t.path}
		text := stamp(at) + "  none\n"
		switch {
		case v.Err == nil:
			j = t.versioned(v, v.Value)
			j.At = at
			text = fmt.Sprintf("%s  version %d  %s\n", stamp(at), v.Version, strconv.Quote(string(v.Value)))
		case !errors.Is(v.Err, coord.ErrNotFound):
			return v.Err
		}
		if err := t.print(ctx, j, text); err != nil {
			return err
		}
	}
	return watched(ctx)
}

// counterCommand returns the verb counter and those below it.
func (t *tool) counterCommand() *cobra.Command {
	var delta int64
	number := func(ctx context.Context, n int64, err error) error {
		if err != nil {
			return err
		}
		return t.print(ctx, map[string]any{"path": t.path, "value": n}, strconv.FormatInt(n, 10)+"\n")
	}
	return t.command(verb{
		name: "counter", short: "read and change a counter",
		below: []*cobra.Command{
			t.command(verb{
				name: "get", words: "PATH", short: "print the number; a missing counter is 0",
				example: `coordctl counter get /counters/orders`,
				do: func(ctx context.Context, c *coord.Client) error {
					n, err := coord.NewCounter(c, t.path).Get(ctx)
					return number(ctx, n, err)
				},
			}),
			t.command(verb{
				name: "add", words: "PATH N", short: "add a number, which may be negative, and print the sum",
				example: `coordctl counter add /counters/orders 10`,
				check: func() (err error) {
					if delta, err = strconv.ParseInt(t.values[0], 10, 64); err != nil {
						err = fmt.Errorf("%q is not a number", t.values[0])
					}
					return err
				},
				do: func(ctx context.Context, c *coord.Client) error {
					n, err := coord.NewCounter(c, t.path).Add(ctx, delta)
					return number(ctx, n, err)
				},
			}),
		},
	})
}
