//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// whole reports an error if a screen is not a whole page of that size.
func whole(t *testing.T, screen string, width, height int) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
	if len(lines) != height || !strings.HasPrefix(lines[0], "coord ") || !strings.Contains(lines[height-1], "quit") {
		t.Errorf("a page of %d lines, want %d:\n%s", len(lines), height, screen)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > width {
			t.Errorf("a line of %d columns, want %d: %s", n, width, line)
		}
	}
}

// TestTopInATerminal drives top with keys and reads the screen, on each service.
func TestTopInATerminal(t *testing.T) { onEach(t, topInATerminal) }

func topInATerminal(t *testing.T, v *servers) {
	s := newScene(t, v, "/top")
	ctx := t.Context()
	x := s.terminal(80, 24, "echo before; coordctl top; echo status $?; stty -a; read _")
	screen := x.shows("/locks/report", "/tx/orders", "watched")
	whole(t, screen, 80, 24)
	for _, want := range []string{
		"1 stuck queue", "transactions in doubt", "3 dead letters", "1 waiter for locks",
		"AGE  WAITING\n", "/locks/report       held      web-1", "/leaders/scheduler  led       node-a", "1 ready, 0 claimed, 2 dead", "1 member: node-a", "1 member owns 2 of 2 shards",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("the screen has no %q:\n%s", want, screen)
		}
	}

	// What happens is shown.
	h, err := coord.NewMutex(s.client("web-3"), "/locks/a-new-lock", &coord.MutexOptions{ID: "web-3"}).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	x.shows("/locks/a-new-lock   held      web-3")
	h.Release()
	x.until("a lock that is free", func(screen string) bool { return !strings.Contains(screen, "web-3") })

	// The filter, while it is typed and afterwards.
	x.types("/locks")
	x.until("the locks", func(screen string) bool {
		return strings.Contains(screen, "/locks/report") && !strings.Contains(screen, "/queues/mail") && strings.Contains(screen, "/locks   words that")
	})
	x.keys("Enter")
	x.shows("only /locks")
	x.types(" report") // the space freezes
	x.shows("frozen")
	x.types(" ")
	x.until("the newest view", func(screen string) bool { return !strings.Contains(screen, "frozen") })

	// One of them, opened.
	x.keys("Escape")
	x.types("/report")
	x.keys("Enter", "Enter")
	screen = x.shows("coord /locks/report", "mutex: held, 1 waits", "Turns", "Report")
	whole(t, screen, 80, 24)
	for _, want := range []string{"web-1   holds, exclusive", "web-2   waits, exclusive", "web-1\n", "0x"} {
		if !strings.Contains(screen, want) {
			t.Errorf("the screen has no %q:\n%s", want, screen)
		}
	}
	if out, status := s.run("coordctl revoke /locks/report --reason test"); status != 0 {
		t.Fatalf("revoke: %s", out)
	}
	x.shows("web-2   holds, exclusive", "web-2, token")
	x.keys("Escape", "Escape")
	x.shows("/queues/mail")

	// The order.
	x.types("s")
	x.until("the lock with waiters first", func(screen string) bool {
		return strings.Contains(screen, "sort: waiting") && strings.Contains(strings.Split(screen, "\n")[3], "/locks/report")
	})
	x.types("sss")
	x.shows("sort: path")

	// The window.
	for _, size := range [][2]int{{140, 40}, {40, 10}, {80, 24}} {
		x.resize(size[0], size[1])
		screen := x.until(fmt.Sprint("a page of ", size), func(screen string) bool {
			lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
			return len(lines) == size[1] && strings.Contains(lines[size[1]-1], "Enter open") && (size[0] < 110 || strings.Contains(screen, "RECIPE"))
		})
		if size[0] >= 80 {
			whole(t, screen, size[0], size[1])
		}
	}

	// The rates of a queue.
	for n := range 30 {
		if _, err := coord.NewQueue[int](s.client("setup"), "/queues/rates", nil).Put(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	x.resize(140, 40)
	x.until("a rate", func(screen string) bool {
		for line := range strings.Lines(screen) {
			if strings.Contains(line, "/queues/rates") && strings.Contains(line, "30 ready") && strings.Contains(line, "/s in, 0/s out") {
				return true
			}
		}
		return false
	})

	// The end: the terminal is as before.
	x.resize(80, 24)
	x.types("q")
	screen = x.shows("before", "status 0", "icanon")
	x.asBefore(screen)
}

// asBefore reports an error if the terminal is not as a shell leaves it, by the output of stty.
func (x *terminal) asBefore(screen string) {
	x.t.Helper()
	for _, setting := range []string{"icanon", "isig", "echo", "opost"} {
		if !slices.Contains(strings.Fields(screen), setting) {
			x.t.Errorf("the terminal has not the setting %s:\n%s", setting, screen)
		}
	}
	if x.is("alternate_on") != "0" || x.is("cursor_flag") != "1" {
		x.t.Errorf("alternate screen %s, cursor %s", x.is("alternate_on"), x.is("cursor_flag"))
	}
}

// TestTopSaysThatTheServiceIsAway: the connection is lost, then the session, and then the service is
// back.
func TestTopSaysThatTheServiceIsAway(t *testing.T) { onEach(t, topSaysThatTheServiceIsAway) }

func topSaysThatTheServiceIsAway(t *testing.T, v *servers) {
	s := newScene(t, v, "/away")
	stage := newStage(t, v)
	var addrs []string
	for _, p := range stage.links {
		addrs = append(addrs, p.Addr())
	}
	x := s.terminal(80, 24, "coordctl --servers "+strings.Join(addrs, ",")+" --timeout 10s top /locks; echo status $?; read _")
	x.shows("/locks/report", "connected")
	for _, p := range stage.links {
		p.Blackhole(true)
	}
	whole(t, x.shows("suspended for", "no contact with the service", "/locks/report"), 80, 24)
	x.shows("lost for", "/locks/report")
	h, err := coord.NewMutex(s.client("web-3"), "/locks/made-meanwhile", &coord.MutexOptions{ID: "web-3"}).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	for _, p := range stage.links {
		p.Blackhole(false)
		p.Cut()
	}
	screen := x.until("the service again", func(screen string) bool {
		return strings.Contains(screen, "connected") && strings.Contains(screen, "/locks/made-meanwhile") && !strings.Contains(screen, "no contact")
	})
	whole(t, screen, 80, 24)
	x.types("q")
	x.shows("status 0")
}

// TestASignalEndsTop: the terminal is as before, and the status names the signal.
func TestASignalEndsTop(t *testing.T) {
	t.Parallel()
	s := newScene(t, onZooKeeper(t), "/signals")
	for _, tc := range []struct {
		name string
		act  func(x *terminal, pid int)
		want int
	}{
		{"Ctrl-C", func(x *terminal, _ int) { x.keys("C-c") }, 130},
		{"SIGTERM", func(x *terminal, pid int) { _ = syscall.Kill(pid, syscall.SIGTERM) }, 143},
		{"SIGHUP", func(x *terminal, pid int) { _ = syscall.Kill(pid, syscall.SIGHUP) }, 129},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			x := s.terminal(80, 24, "echo before; sh -c \"echo \\$\\$ >pid; exec coordctl top\"; echo status $?; stty -a; read _")
			x.shows("/locks/report")
			data, err := os.ReadFile(s.dir + "/pid")
			var pid int
			if err == nil {
				_, err = fmt.Sscan(string(data), &pid)
			}
			if err != nil {
				t.Fatal(err)
			}
			tc.act(x, pid)
			x.asBefore(x.shows("before", fmt.Sprint("status ", tc.want), "icanon"))
		})
	}
}

// TestTopIsSuspended: Ctrl-Z gives the terminal back to the shell, and fg shows the page again.
func TestTopIsSuspended(t *testing.T) {
	t.Parallel()
	s := newScene(t, onZooKeeper(t), "/suspended")
	x := s.terminal(80, 24, "PS1=ready: exec bash --norc --noprofile -i")
	x.shows("ready:")
	x.types("coordctl top\n")
	x.shows("/locks/report")
	x.keys("C-z")
	x.shows("ready:coordctl top", "Stopped")
	x.types("stty -a; fg\n")
	x.shows("/locks/report", "Enter open")
	x.types("q")
	// What is typed before the shell's next prompt can be lost.
	x.asBefore(x.until("the next prompt", func(screen string) bool {
		return strings.Contains(screen, "isig") && strings.HasSuffix(strings.TrimRight(screen, " \n"), "\nready:")
	}))
	x.types("echo the status is $?\n")
	x.shows("the status is 0")
}

// TestTopWithoutATerminal refuses, or prints the table or views as JSON.
func TestTopWithoutATerminal(t *testing.T) { onEach(t, topWithoutATerminal) }

func topWithoutATerminal(t *testing.T, v *servers) {
	s := newScene(t, v, "/plain")
	out, status := s.run("coordctl top </dev/null")
	if status != exitUsage || !strings.Contains(out, "top needs a terminal") || !strings.Contains(out, "--once") {
		t.Errorf("status %d: %s", status, out)
	}
	out, status = s.run("coordctl top --once /locks")
	if status != 0 || !strings.Contains(out, "/locks/report  mutex    held   web-1") || !strings.Contains(out, "1: web-2 for ") || strings.Contains(out, "\x1b") || strings.Contains(out, "quit") {
		t.Errorf("status %d:\n%s", status, out)
	}
	views := func(text string) (list []live.Snapshot) {
		t.Helper()
		for line := range strings.Lines(text) {
			var v live.Snapshot
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			list = append(list, v)
		}
		return list
	}
	out, status = s.run("coordctl top --once --json")
	list := views(out)
	if status != 0 || len(list) != 1 {
		t.Fatalf("status %d, %d lines: %s", status, len(list), out)
	}
	r := list[0].Find("/plain/locks/report")
	if r == nil || len(r.Holders) != 1 || r.Holders[0].Label != "web-1" || len(r.Waiters) != 1 || r.Waiters[0].Label != "web-2" || r.Waiters[0].Since.IsZero() {
		t.Errorf("the lock is %+v", r)
	}
	out, status = s.run("coordctl top --json --wait 10s")
	if list = views(out); status != 0 || len(list) < 2 {
		t.Errorf("status %d, %d lines: %s", status, len(list), out)
	}
	for i := range list {
		if i > 0 && list[i].Number <= list[i-1].Number {
			t.Errorf("view %d follows %d", list[i].Number, list[i-1].Number)
		}
	}
	if strings.Contains(out, "10.0.0.1:25") {
		t.Error("data is shown without --data")
	}
	if out, status := s.run("coordctl top --once /nothing"); status != 0 || !strings.Contains(out, "there is no recipe at or below /nothing") {
		t.Errorf("status %d: %s", status, out)
	}
}

// TestTopRefusesATerminalThatCannotMoveItsCursor, and messages on the screen.
func TestTopRefusesATerminalThatCannotMoveItsCursor(t *testing.T) {
	t.Parallel()
	s := newScene(t, onZooKeeper(t), "/dumb")
	x := s.terminal(100, 30, "TERM=dumb coordctl top; echo status $?; coordctl top -v; echo status $?; NO_COLOR=1 coordctl top --once /locks; echo status $?; read _")
	screen := x.shows("can move its cursor", "write over the screen", "status 2", "status 0", "web-1")
	if strings.Count(screen, "status 2") != 2 {
		t.Errorf("the screen is\n%s", screen)
	}
}

// TestCtrlZWithoutAShell: where no shell could let top continue, the kernel does not stop it, and
// top continues.
func TestCtrlZWithoutAShell(t *testing.T) {
	t.Parallel()
	s := newScene(t, onZooKeeper(t), "/alone")
	x := s.terminal(80, 24, "coordctl top; echo status $?; read _")
	x.shows("/locks/report")
	x.keys("C-z")
	x.types("q")
	x.shows("status 0")
}
