//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/proc"
)

// second is the time by which the command may outlive the lock. To end a session the test
// takes it over. A client whose connection breaks several times in a row pauses for up to 2 s
// before it dials again, and learns of its loss then.
const (
	second   = time.Second
	redialed = second + 2*time.Second
)

// TestTheCommandNeverOutlivesTheLock: however coordctl, the command or the lock ends, the
// last beat of the command comes before the next grant; or, if the lock is taken away without
// warning, shortly after it.
func TestTheCommandNeverOutlivesTheLock(t *testing.T) { onEach(t, neverOutlives) }

func neverOutlives(t *testing.T, v *servers) {
	for _, sc := range []struct {
		name   string
		how    []string // the command
		act    func(s *stage, x *ctl)
		status int           // of coordctl
		late   time.Duration // the command may outlive the lock
	}{
		{"normal end", []string{"end", "3"}, endCommand, 3, 0},
		{"kill -9 of coordctl", []string{"ignore"}, signalling(syscall.SIGKILL), -9, 0},
		{"Ctrl-C and a slow command", []string{"slow"}, signalling(syscall.SIGINT), 7, 0},
		{"SIGQUIT and a slow command", []string{"slow"}, signalling(syscall.SIGQUIT), 7, 0},
		{"SIGTERM", []string{"beat"}, signalling(syscall.SIGTERM), 128 + 15, 0},
		{"SIGHUP", []string{"beat"}, signalling(syscall.SIGHUP), 128 + 1, 0},
		{"lost network and a command that ignores SIGTERM", []string{"ignore"}, blackHole, exitLost, 0},
		{"lost network and a slow command", []string{"slow"}, blackHole, exitLost, 0},
		{"expired session and a command that ignores SIGTERM", []string{"ignore"}, expire, exitLost, redialed},
		{"expired session", []string{"beat"}, expire, exitLost, redialed},
		{"deleted node and a command that ignores SIGTERM", []string{"ignore"}, deleteNode, exitLost, second},
	} {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			rounds := 1
			if long() {
				rounds = 10
			}
			for range rounds {
				s := newStage(t, v)
				x := s.command([]string{"lock"}, sc.how...)
				granted := s.await()
				m := pace.Start(t, nil)
				before := readBeats(t, s.file)
				if before.path != s.path || before.token <= 0 {
					t.Errorf("the command got token %d of %q", before.token, before.path)
				}
				sc.act(s, x)
				g := <-granted
				if g.err != nil {
					t.Fatal(g.err)
				}
				if got := x.status(); got != sc.status {
					t.Errorf("coordctl ended with status %d, want %d\n%s", got, sc.status, x.stderr.String())
				}
				eventually(t, "the command has ended", func() bool { return !alive(before.pid) })
				after := readBeats(t, s.file)
				gap := g.at - after.last
				m.Judge(-gap, sc.late, "the last beat after the next grant")
				m.Stop()
				if g.hold.Token() <= after.token {
					t.Errorf("the token %d follows %d", g.hold.Token(), after.token)
				}
				t.Logf("figure: %s: last beat of the command to the next grant: %v", sc.name, gap.Round(time.Millisecond))
				g.hold.Release()
			}
		})
	}
}

func signalling(n syscall.Signal) func(*stage, *ctl) {
	return func(s *stage, x *ctl) {
		if err := x.cmd.Process.Signal(n); err != nil {
			s.t.Fatal(err)
		}
	}
}

// endCommand makes the command end by itself.
func endCommand(s *stage, _ *ctl) {
	if err := syscall.Kill(readBeats(s.t, s.file).pid, syscall.SIGUSR1); err != nil {
		s.t.Fatal(err)
	}
}

// blackHole drops all traffic without notifying either side.
func blackHole(s *stage, _ *ctl) {
	for _, p := range s.links {
		p.Blackhole(true)
	}
}

// expire ends the session of coordctl on the server.
func expire(s *stage, _ *ctl) {
	list, err := s.mutex().Contenders(context.Background())
	if err != nil || len(list) == 0 {
		s.t.Fatal(list, err)
	}
	if err := s.expire(s.t.Context(), list[0].Session); err != nil {
		s.t.Fatal(err)
	}
}

// deleteNode deletes the lock's node by hand.
func deleteNode(s *stage, _ *ctl) {
	list, err := s.mutex().Contenders(context.Background())
	if err != nil || len(list) == 0 {
		s.t.Fatal(list, err)
	}
	b, err := s.next.Session(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := b.Commit(context.Background(), backend.Delete(list[0].Path, backend.AnyVersion)); err != nil {
		s.t.Fatal(err)
	}
}

// TestAChildOfTheCommandIsKilledBeforeTheRelease: a child of the command, in its group, that
// ignores signals.
func TestAChildOfTheCommandIsKilledBeforeTheRelease(t *testing.T) {
	t.Parallel()
	s := newStage(t, onZooKeeper(t))
	left := s.file + "-left"
	x := s.start("lock", s.path, "--", os.Args[0], "-as-command", s.file, "leave", left)
	if got := x.status(); got != 0 {
		t.Fatalf("status %d: %s", got, x.stderr.String())
	}
	h, err := s.mutex().Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := proc.Now()
	defer h.Release()
	b := readBeats(t, left)
	if b.n == 0 {
		t.Fatal("no child was left")
	}
	eventually(t, "it has ended", func() bool { return !alive(b.pid) })
	if b = readBeats(t, left); b.last > at {
		t.Errorf("it beats %v after the next grant", b.last-at)
	}
}

// TestTheWaitEndsAfterItsTimeOrByASignal: -wait, and a signal that ends the wait.
func TestTheWaitEndsAfterItsTimeOrByASignal(t *testing.T) { onEach(t, theWaitEnds) }

func theWaitEnds(t *testing.T, v *servers) {
	s := newStage(t, v)
	h, err := s.mutex().Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	never := []string{s.path, "--", os.Args[0], "-as-command", s.file, "end", "0"}
	for _, wait := range []string{"0", "10s"} {
		if x := s.start(append([]string{"lock", "-wait", wait}, never...)...); x.status() != exitLate {
			t.Errorf("-wait %s: status %d: %s", wait, x.status(), x.stderr.String())
		} else if text := x.stderr.String(); !strings.Contains(text, "not obtained in time") || strings.Count(text, "\n") > 2 {
			t.Errorf("-wait %s: %q", wait, text)
		}
	}
	for sig, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		x := s.start(append([]string{"lock"}, never...)...)
		eventually(t, "it is queued", func() bool {
			list, err := s.mutex().Contenders(t.Context())
			return err == nil && len(list) == 2
		})
		signalling(sig)(s, x)
		if got := x.status(); got != status {
			t.Errorf("%v while waiting: status %d: %s", sig, got, x.stderr.String())
		}
		if list, err := s.mutex().Contenders(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("%v while waiting: the contenders are %v, %v", sig, list, err)
		}
	}
	h.Release()
	if _, err := os.Stat(s.file); err == nil {
		t.Error("the command has run")
	}
}

// TestCommandsThatCannotRun leave no node, and no client waits for them.
func TestCommandsThatCannotRun(t *testing.T) {
	t.Parallel()
	s := newStage(t, onZooKeeper(t))
	plain := t.TempDir() + "/plain"
	if err := os.WriteFile(plain, []byte("#!/no/such/interpreter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := t.TempDir() + "/script"
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]int{"no-such-command-at-all": exitNotFound, "/no/such/file": exitNotFound, plain: exitCannotRun, script: exitCannotRun} {
		if x := s.start("lock", s.path, "--", command); x.status() != want {
			t.Errorf("%s: status %d, want %d: %s", command, x.status(), want, x.stderr.String())
		}
	}
	if list, err := s.mutex().Contenders(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("the contenders are %v, %v", list, err)
	}
}

// TestCoordctlCampaignsAgainAfterALoss: the command is ended, and started again with a
// greater token; with -once coordctl ends.
func TestCoordctlCampaignsAgainAfterALoss(t *testing.T) { onEach(t, campaignsAgain) }

func campaignsAgain(t *testing.T, v *servers) {
	s := newStage(t, v)
	e := coord.NewElection(s.next, s.path, nil)
	lose := func() {
		l, err := e.Leader(t.Context())
		if err != nil || l.ID != "me" {
			t.Fatal(l, err)
		}
		if err := s.expire(t.Context(), l.Session); err != nil {
			t.Fatal(err)
		}
	}
	x := s.command([]string{"elect", "-id", "me"}, "ignore")
	first := readBeats(t, s.file)
	lose()
	eventually(t, "the command runs again", func() bool { b := readBeats(t, s.file); return b.runs == 2 && b.n > 2 })
	again := readBeats(t, s.file)
	if again.token <= first.token || alive(first.pid) {
		t.Errorf("token %d after %d, the first command is alive: %v", again.token, first.token, alive(first.pid))
	}
	signalling(syscall.SIGKILL)(s, x)
	x.status()
	eventually(t, "the command has ended", func() bool { return !alive(again.pid) })
	x = s.command([]string{"elect", "-once", "-id", "me"}, "ignore")
	eventually(t, "the command runs for the third time", func() bool { b := readBeats(t, s.file); return b.runs == 3 && b.n > 2 })
	lose()
	if got := x.status(); got != exitLost {
		t.Errorf("status %d: %s", got, x.stderr.String())
	}
}

// TestTheCommandLivesThoughThreadsOfCoordctlEnd: the parent-death signal comes at the end of
// the thread that started the command, not of the process. If a goroutine that is locked to
// its thread ends, the thread ends too.
func TestTheCommandLivesThoughThreadsOfCoordctlEnd(t *testing.T) {
	file := t.TempDir() + "/beats"
	started := make(chan *process, 1)
	thread := make(chan int, 1)
	onOneThatEnds := func() {
		p, err := startProcess([]string{os.Args[0], "-as-command", file, "beat"}, nil, nil, nil, os.Stderr)
		if err != nil {
			t.Error(err)
		}
		thread <- syscall.Gettid()
		started <- p
	}
	go func() {
		runtime.LockOSThread()
		if syscall.Gettid() != os.Getpid() {
			onOneThatEnds() // not unlocked, so the thread ends with the goroutine
			return
		}
		// The first thread of a process never ends. While this goroutine is locked to it,
		// another goroutine runs on another thread.
		defer runtime.UnlockOSThread()
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			onOneThatEnds()
		}()
		<-done
	}()
	p, tid := <-started, <-thread
	if p == nil {
		return
	}
	eventually(t, "the thread has ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return err != nil
	})
	n := readBeats(t, file).n
	eventually(t, "the command goes on", func() bool {
		select {
		case <-p.ended:
			t.Fatal("the command died with the thread that started it")
		default:
		}
		return readBeats(t, file).n > n+20
	})
	p.kill()
	<-p.ended
	if got := p.status(); got != 128+9 {
		t.Errorf("status %d", got)
	}
}
