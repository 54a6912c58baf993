//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAnEditedTextIsWrittenOrKept: a Ctrl-C is for the editor alone. If the editor fails, or
// coordctl is asked to end, the text stays in a file, whose name is printed.
func TestAnEditedTextIsWrittenOrKept(t *testing.T) {
	for _, tc := range []struct {
		name   string
		edits  string // a command of the editor
		signal os.Signal
		ends   string // as above, after the signal
		status int
		kept   bool
	}{
		{"nothing", `echo edited >"$1"`, nil, "true", 0, false},
		{"Ctrl-C", `echo edited >"$1"`, syscall.SIGINT, "true", 0, false},
		{"the editor fails", `echo edited >"$1"`, nil, "return 3", exitNo, true},
		{"the editor fails without a change", "true", nil, "return 3", exitNo, false},
		{"SIGTERM", `echo edited >"$1"`, syscall.SIGTERM, "true", exitSignal + 15, true},
		{"SIGTERM before a change", `true`, syscall.SIGTERM, "true", exitSignal + 15, true},
		{"the file cannot be read", `rm "$1"; mkdir "$1"`, nil, "true", exitFailed, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, pipes := t.TempDir(), t.TempDir()
			begun, proceed := filepath.Join(pipes, "begun"), filepath.Join(pipes, "go")
			for _, pipe := range []string{begun, proceed} {
				if err := syscall.Mkfifo(pipe, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("TMPDIR", dir)
			t.Setenv("VISUAL", "")
			t.Setenv("EDITOR", "edit() { "+tc.edits+"; : >"+begun+"; read line <"+proceed+"; "+tc.ends+"; }; edit")
			signals := make(chan os.Signal)
			var out, errs bytes.Buffer
			ended := make(chan int, 1)
			go func() {
				ended <- run([]string{"-memory", "value", "edit", "/v"}, strings.NewReader(""), &out, &errs, signals)
			}()
			if _, err := os.ReadFile(begun); err != nil {
				t.Fatal(err)
			}
			if tc.signal != nil {
				signals <- tc.signal
			}
			if tc.signal != syscall.SIGTERM {
				pipe, err := os.OpenFile(proceed, os.O_RDWR, 0) // does not wait for the editor
				if err != nil {
					t.Fatal(err)
				}
				defer pipe.Close()
				if _, err := pipe.WriteString("\n"); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case got := <-ended:
				if got != tc.status {
					t.Errorf("status %d, want %d: %s", got, tc.status, errs.String())
				}
			case <-time.After(short):
				t.Fatal("coordctl does not end")
			}
			if wrote := out.String() == "version 0\n"; wrote != (tc.status == 0) {
				t.Errorf("it printed %q", out.String())
			}
			files, err := filepath.Glob(filepath.Join(dir, "coordctl-*"))
			if err != nil {
				t.Fatal(err)
			}
			if (len(files) == 1) != tc.kept {
				t.Fatalf("files %q, kept must be %v: %s", files, tc.kept, errs.String())
			}
			if !tc.kept {
				return
			}
			if !strings.Contains(errs.String(), "your text is kept in "+files[0]) {
				t.Errorf("it does not name the file: %s", errs.String())
			}
			if text, err := os.ReadFile(files[0]); err == nil && string(text) != "edited\n" && tc.edits != "true" {
				t.Errorf("the text is %q", text)
			}
		})
	}
}

// TestTheEditorWritesToTheTerminal: standard output is for the result, also if nothing is changed.
func TestTheEditorWritesToTheTerminal(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("VISUAL", "")
	t.Setenv("EDITOR", "echo the screen of")
	var out bytes.Buffer
	x, c := within(t, &out)
	operator, own := openTerminal(t)
	x.stdin, x.stderr, x.json = own, own, true
	if _, err := x.value(c).Set(t.Context(), []byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := x.editValue(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	screen := make([]byte, 100)
	n, err := operator.Read(screen)
	if err != nil || !strings.HasPrefix(string(screen[:n]), "the screen of /") {
		t.Errorf("the terminal has %q, %v", screen[:n], err)
	}
	if got := out.String(); !strings.HasPrefix(got, `{"path":"/q","exists":true,"version":0,`) || !strings.HasSuffix(got, `"text":"text"}`+"\n") {
		t.Errorf("standard output has %q", got)
	}
}
