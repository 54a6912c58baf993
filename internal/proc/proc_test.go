//go:build linux

package proc

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

type said struct {
	Kind string
	At   time.Duration
	Task []string
}

func TestMain(m *testing.M) {
	if role, task := Role(); role == "echo" {
		os.Exit(echo(string(task)))
	}
	os.Exit(m.Run())
}

// echo reports each command that it reads.
func echo(task string) int {
	var out Output
	out.Report(said{Kind: "began " + task, At: Now()})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "nonsense":
			fmt.Println("nonsense")
		case "half":
			fmt.Print(`{"Kind":`)
			fmt.Fprint(os.Stderr, "half")
		default:
			out.Report(said{Kind: in.Text(), At: Now()})
		}
	}
	return 0
}

func start(t *testing.T) *Worker[said] {
	t.Helper()
	w, err := Start[said]("echo", []string{"a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Kill)
	return w
}

func until(t *testing.T, w *Worker[said], kind string) error {
	t.Helper()
	return w.Await(time.Minute, func(all []said) bool {
		return slices.ContainsFunc(all, func(s said) bool { return s.Kind == kind })
	})
}

func TestWorker_ObeysReportsAndQuits(t *testing.T) {
	before := Now()
	w := start(t)
	if err := until(t, w, `began ["a"]`); err != nil {
		t.Fatal(err)
	}
	if err := w.Tell("one", "two"); err != nil {
		t.Fatal(err)
	}
	if err := until(t, w, "two"); err != nil {
		t.Fatal(err)
	}
	all := w.Reports()
	if len(all) != 3 || all[1].Kind != "one" || all[0].At < before || all[2].At < all[1].At || all[2].At > Now() {
		t.Errorf("reports %+v after %v", all, before)
	}
	if err := w.Await(time.Millisecond, func([]said) bool { return false }); !errors.Is(err, ErrSilent) {
		t.Errorf("error %v, want that the worker is silent", err)
	}
	if err := w.Quit(time.Minute); err != nil {
		t.Error(err)
	}
	if err := until(t, w, "three"); !errors.Is(err, ErrEnded) {
		t.Errorf("error %v, want that the worker has ended", err)
	}
}

func TestWorker_KeepsTheReportsOfAKilledProcess(t *testing.T) {
	w := start(t)
	if err := w.Tell("one", "half"); err != nil {
		t.Fatal(err)
	}
	for w.Stderr() == "" {
		time.Sleep(time.Millisecond) // nothing signals it
	}
	w.Kill()
	if all := w.Reports(); len(all) != 2 || all[1].Kind != "one" || w.Stderr() != "half" {
		t.Errorf("reports %+v, standard error %q", all, w.Stderr())
	}
	if err := w.Quit(time.Minute); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("error %v, want that it was killed", err)
	}
}

func TestWorker_ReportsOutputThatIsNoReport(t *testing.T) {
	w := start(t)
	if err := w.Tell("nonsense"); err != nil {
		t.Fatal(err)
	}
	if err := until(t, w, "more"); !errors.Is(err, ErrEnded) {
		t.Errorf("error %v, want the end of the reports", err)
	}
	if err := w.Quit(time.Minute); err == nil || !strings.Contains(err.Error(), "not a report") {
		t.Errorf("error %v, want that it is not a report", err)
	}
}

// The child asks for the signal before it runs, so its attributes show it.
func TestLaunch_BindsTheChildToItsParent(t *testing.T) {
	cmd := exec.Command("/none")
	if exited, err := Launch(cmd, nil); err == nil {
		t.Error("a missing program was started")
	} else {
		<-exited
	}
	if cmd.SysProcAttr.Pdeathsig != syscall.SIGKILL {
		t.Error("a child outlives its parent")
	}
}
