package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestAnswersOfPeers(t *testing.T) {
	for line, want := range map[string]string{"ok": "", "ok 1 2.5": "", "failed no luck": "x: failed no luck", "": "x: ", "ok one": `"ok one"`} {
		figures, err := parseAnswer("x", line)
		switch {
		case want == "" && (err != nil || len(figures) != len(strings.Fields(line))-1):
			t.Errorf("%q: %v, %v", line, figures, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: error %v, want %q in it", line, err, want)
		}
	}
}

func startTestForeign(t *testing.T) *foreign {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), foreignEnv+"=1")
	f, err := startForeign(t.Context(), "x", cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestAPeerObeys(t *testing.T) {
	f := startTestForeign(t)
	s, err := f.cycles(t.Context(), &place{addrs: []string{"a:1"}}, "/p", 1, time.Second)
	if err != nil || s[mRate] != 50 || s[mP50] != 1 || s[mMax] != 4 {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := f.ask(t.Context(), "nonsense"); err == nil || !strings.Contains(err.Error(), "no such command") {
		t.Errorf("error %v", err)
	}
	if _, err := f.ask(t.Context(), "die"); err == nil || !strings.Contains(err.Error(), "out of breath") {
		t.Errorf("error %v, want its standard error", err)
	}
}

func TestAPeerThatHangsIsKilled(t *testing.T) {
	f := startTestForeign(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.ask(ctx, "hang"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	select {
	case <-f.exited:
	case <-time.After(time.Minute):
		t.Error("the peer still runs")
	}
}
