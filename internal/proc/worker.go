package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// roleEnv is the role of a worker, a colon, and its task in JSON.
const roleEnv = "COORD_WORKER"

// Role returns the role and the task of this process. The role is empty if it is not a worker.
func Role() (role string, task []byte) {
	role, text, _ := strings.Cut(os.Getenv(roleEnv), ":")
	return role, []byte(text)
}

// Output is where a worker reports. The zero value is ready.
type Output struct{ mu sync.Mutex }

// Report writes one report.
func (o *Output) Report(r any) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	os.Stdout.Write(append(line, '\n')) // it fails when the parent has ended, and then so does this process
}

// A Worker is a worker process and its reports.
type Worker[R any] struct {
	Exited <-chan struct{} // closed when it has ended

	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	reports []R
	over    bool          // no more reports come
	news    chan struct{} // closed and replaced with every report, and closed at the end
	errs    strings.Builder
}

// Start starts this binary as a worker. attr may be nil.
func Start[R any](role string, task any, attr *syscall.SysProcAttr) (*Worker[R], error) {
	text, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &Worker[R]{cmd: exec.Command(exe), news: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), roleEnv+"="+role+":"+string(text))
	w.cmd.Stderr = (*errorsOf[R])(w)
	w.cmd.SysProcAttr = attr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.Exited, err = Launch(w.cmd, func() { w.hear(out) })
	return w, err
}

// Reported returns a worker that has ended after these reports, for tests of what judges reports.
func Reported[R any](reports ...R) *Worker[R] { return &Worker[R]{reports: reports, over: true} }

// hear collects the reports. A kill can cut the last one short.
func (w *Worker[R]) hear(out io.Reader) {
	for d := json.NewDecoder(out); ; {
		var r R
		err := d.Decode(&r)
		w.mu.Lock()
		if err == nil {
			w.reports = append(w.reports, r)
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			fmt.Fprintln(&w.errs, "not a report:", err)
		}
		w.over = err != nil
		close(w.news)
		w.news = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			break
		}
	}
	_, _ = io.Copy(io.Discard, out)
}

// errorsOf collects the standard error of a worker.
type errorsOf[R any] Worker[R]

func (w *errorsOf[R]) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.errs.Write(p)
}

// Stderr returns what the worker has written to its standard error.
func (w *Worker[R]) Stderr() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.errs.String()
}

// Reports returns the reports of the worker so far.
func (w *Worker[R]) Reports() []R {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clip(w.reports) // which only grow
}

// The errors of Await.
var (
	ErrEnded  = errors.New("the process has ended")
	ErrSilent = errors.New("no such report in time")
)

// Await returns nil when enough reports true of the reports, which is called again after each one.
func (w *Worker[R]) Await(atMost time.Duration, enough func(reports []R) bool) error {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	for {
		w.mu.Lock()
		reports, over, news := slices.Clip(w.reports), w.over, w.news
		w.mu.Unlock()
		if enough(reports) {
			return nil
		}
		if over {
			return ErrEnded
		}
		select {
		case <-news:
		case <-deadline.C:
			return ErrSilent
		}
	}
}

// Tell sends commands, one on each line. It fails if the worker has ended.
func (w *Worker[R]) Tell(commands ...string) error {
	_, err := io.WriteString(w.in, strings.Join(commands, "\n")+"\n")
	return err
}

// Pid returns the number of the process.
func (w *Worker[R]) Pid() int { return w.cmd.Process.Pid }

// Signal sends a signal.
func (w *Worker[R]) Signal(s os.Signal) error { return w.cmd.Process.Signal(s) }

// Kill sends SIGKILL, and returns when the worker has ended.
func (w *Worker[R]) Kill() {
	_ = w.cmd.Process.Kill() // it may have ended by itself
	<-w.Exited
}

// Quit ends the standard input of the worker, and returns when it has ended. The error is how it
// ended, if it has failed.
func (w *Worker[R]) Quit(atMost time.Duration) error {
	w.in.Close()
	select {
	case <-w.Exited:
	case <-time.After(atMost):
		return fmt.Errorf("it does not end within %v", atMost)
	}
	if text := w.Stderr(); text != "" || !w.cmd.ProcessState.Success() {
		return fmt.Errorf("it ended with %v: %s", w.cmd.ProcessState, text)
	}
	return nil
}
