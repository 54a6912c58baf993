//go:build linux

package main

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// A command under a lock ends when another client asks for the lock, and before the next grant.
func TestCoordctl_ARequestForTheLockEndsTheCommand(t *testing.T) { onEach(t, requestEndsTheCommand) }

func requestEndsTheCommand(t *testing.T, v *servers) {
	for _, sc := range []struct {
		name   string
		flags  []string
		how    string
		status int
	}{
		{"by SIGTERM", nil, "beat", 128 + 15},
		{"the status is that of the command", []string{"-revoke-signal", "INT"}, "slow", 7},
		{"by SIGKILL after the grace", []string{"-revoke-grace", "200ms"}, "ignore", 128 + 9},
	} {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, v)
			x := s.command(append([]string{"lock"}, sc.flags...), sc.how)
			granted := s.await()
			before := readBeats(t, s.file)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := s.mutex().Revoke(ctx, &coord.RevokeOptions{By: "operator", Reason: "upgrade"}); err != nil {
				t.Fatal(err)
			}
			if got := x.status(); got != sc.status {
				t.Errorf("coordctl ended with status %d, want %d\n%s", got, sc.status, x.stderr.String())
			}
			g := <-granted
			if g.err != nil {
				t.Fatal(g.err)
			}
			defer g.hold.Release()
			if text := x.stderr.String(); !strings.Contains(text, "operator requests its release (upgrade)") {
				t.Errorf("printed %q", text)
			}
			if alive(before.pid) || readBeats(t, s.file).last > g.at {
				t.Error("the command outlives the lock")
			}
		})
	}
}

// With --revoke-signal none the request is ignored, and a forced one takes the lock.
func TestCoordctl_ARequestCanBeIgnored(t *testing.T) {
	t.Parallel()
	s := newStage(t, onZooKeeper(t))
	x := s.command([]string{"lock", "-revoke-signal", "none"}, "slow")
	asked := readBeats(t, s.file)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // the request is written at once
	defer cancel()
	if err := s.mutex().Revoke(ctx, nil); ctx.Err() == nil {
		t.Fatalf("the holder has released: %v", err)
	}
	eventually(t, "the command goes on", func() bool { return readBeats(t, s.file).n > asked.n })
	if !alive(asked.pid) {
		t.Error("the command has ended")
	}
	if err := s.mutex().Revoke(t.Context(), &coord.RevokeOptions{ForceAfter: 1}); err != nil {
		t.Fatal(err)
	}
	if got := x.status(); got != exitLost {
		t.Errorf("status %d: %s", got, x.stderr.String())
	}
}

// A planned hand-over: the next candidate leads when the command has ended, and the former leader is a candidate again. A signal
// ends a leader that was asked to resign.
func TestCoordctl_ElectResign(t *testing.T) { onEach(t, electResign) }

func electResign(t *testing.T, v *servers) {
	s := newStage(t, v)
	if x := s.start("elect", "-resign", s.path); x.status() != exitNo || !strings.Contains(x.stderr.String(), "no client holds it") {
		t.Errorf("without a leader: status %d: %s", x.status(), x.stderr.String())
	}
	x := s.command([]string{"elect", "-id", "old"}, "slow")
	e := coord.NewElection(s.next, s.path, &coord.ElectionOptions{ID: "new"})
	led := make(chan *coord.Term, 1)
	go func() {
		term, err := e.Campaign(t.Context())
		if err != nil {
			t.Error(err)
		}
		led <- term
	}()
	eventually(t, "there are two candidates", func() bool {
		list, err := e.Contenders(t.Context())
		return err == nil && len(list) == 2
	})
	first := readBeats(t, s.file)
	y := s.start("elect", "-resign", s.path, "-reason", "upgrade", "-wait", "2m")
	term := <-led
	if term == nil {
		t.FailNow()
	}
	if now := readBeats(t, s.file); alive(first.pid) || now.runs != 1 {
		t.Errorf("the new leader leads while the command runs: %+v", now)
	}
	if got := y.status(); got != 0 || !strings.Contains(y.stdout.String(), "old released it") {
		t.Errorf("status %d: %s%s", got, y.stdout.String(), y.stderr.String())
	}
	term.Release()
	eventually(t, "the former leader leads again", func() bool { b := readBeats(t, s.file); return b.runs == 2 && b.n > 2 })
	signalling(syscall.SIGTERM)(s, x)
	if got := x.status(); got != 7 || !strings.Contains(x.stderr.String(), "resigned; campaigning again") {
		t.Errorf("status %d: %s", got, x.stderr.String())
	}
}

// A path of another recipe is refused, and so is a command.
func TestCoordctl_ElectResignRefuses(t *testing.T) {
	t.Parallel()
	s := newStage(t, onZooKeeper(t))
	h, err := s.mutex().Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	if x := s.start("elect", "-resign", s.path); x.status() != exitNo || !strings.Contains(x.stderr.String(), "is not an election") {
		t.Errorf("status %d: %s", x.status(), x.stderr.String())
	}
	if h.Err() != nil {
		t.Errorf("the lock: %v", h.Err())
	}
	if x := s.start("elect", "-resign", s.path, "--", "true"); x.status() != exitUsage {
		t.Errorf("status %d: %s", x.status(), x.stderr.String())
	}
}
