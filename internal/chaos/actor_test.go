//go:build linux

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zkproxy"
)

// roleEnv makes the test binary one of the processes of the run: the word before the colon is
// its role.
const roleEnv = "COORD_CHAOS_ROLE"

// spawn starts this binary in a role. The child ends however this process ends: the kernel
// kills it when the thread that started it ends, so that thread stays locked. done is closed
// when the child has ended. out is called with its lines, in order.
func spawn(role, arg string, attr *syscall.SysProcAttr, stderr io.Writer, out func(line []byte)) (cmd *exec.Cmd, stdin io.WriteCloser, done chan struct{}, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role+":"+arg)
	cmd.Stderr = stderr
	cmd.SysProcAttr = attr
	attr.Pdeathsig = syscall.SIGKILL
	if stdin, err = cmd.StdinPipe(); err != nil {
		return nil, nil, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	started := make(chan error, 1)
	done = make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for d := json.NewDecoder(stdout); ; {
			var line json.RawMessage
			if d.Decode(&line) != nil {
				break
			}
			out(line)
		}
		_, _ = io.Copy(io.Discard, stdout) // a line cut short by a kill
		_ = cmd.Wait()                     // the exit status does not matter
	}()
	return cmd, stdin, done, <-started
}

// actor is a place for a client process; the processes in it run one after the other.
type actor struct {
	t        *testing.T
	r        *run
	index    int
	proxies  []*zkproxy.Proxy // one in front of each server, only for this client
	launches int

	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}

	mu      sync.Mutex
	name    string
	said    map[string]int   // reports by kind, of the present process
	last    report           // of the kind copy
	session int64            // of the present process
	counts  map[string]int64 // of the present process
	before  map[string]int64 // of those before it
	failed  string
	errs    strings.Builder
	news    chan struct{} // closed and replaced with every report, and at the end
}

func newActor(t *testing.T, r *run, index int) *actor {
	t.Helper()
	a := &actor{t: t, r: r, index: index, before: make(map[string]int64), news: make(chan struct{})}
	proxy := zkproxy.New
	if r.other != nil {
		proxy = zkproxy.NewRaw
	}
	for _, addr := range r.addrs() {
		p, err := proxy(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		a.proxies = append(a.proxies, p)
	}
	t.Cleanup(a.kill)
	return a
}

// launch starts the next process.
func (a *actor) launch() error {
	a.launches++
	spec := clientSpec{
		Name:     fmt.Sprintf("client%d.%d", a.index, a.launches),
		Number:   a.r.processes.Add(1),
		Index:    a.index,
		Site:     sites[a.index%len(sites)],
		Resource: a.r.socket,
		Seed:     a.r.seed ^ uint64(a.index)<<32 ^ uint64(a.launches)<<40,
		Slowness: slowness(),
	}
	spec.History = filepath.Join(a.r.dir, spec.Name+".jsonl")
	for _, p := range a.proxies {
		spec.Servers = append(spec.Servers, p.Addr())
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	a.mu.Lock()
	for w, n := range a.counts {
		a.before[w] += n
	}
	a.name, a.said, a.counts, a.failed, a.session = spec.Name, make(map[string]int), nil, "", 0
	a.mu.Unlock()
	a.cmd, a.stdin, a.done, err = spawn("client", string(text), new(syscall.SysProcAttr), (*errorsOf)(a), a.hear)
	return err
}

func (a *actor) hear(line []byte) {
	var r report
	err := json.Unmarshal(line, &r)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil:
		a.failed = err.Error()
	case r.Kind == "failed":
		a.failed = r.Text
	case r.Kind == "progress":
		a.counts, a.session = r.Counts, r.Session
	case r.Kind == "copy":
		a.last = r
	}
	key := r.Kind
	if key == "lingering" {
		key += " " + r.Text
	}
	a.said[key]++
	close(a.news)
	a.news = make(chan struct{})
}

// errorsOf collects the standard error of a client.
type errorsOf actor

func (a *errorsOf) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.errs.Write(p)
}

// errNoReport is the error of an await whose time has passed.
var errNoReport = errors.New("no report")

// await returns when the present process has sent a kind of report n times.
func (a *actor) await(kind string, n int, atMost time.Duration) error {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	for {
		a.mu.Lock()
		said, failed, news, name, errs := a.said[kind], a.failed, a.news, a.name, a.errs.String()
		a.mu.Unlock()
		switch {
		case failed != "":
			return fmt.Errorf("%s: %s", name, failed)
		case said >= n:
			return nil
		}
		select {
		case <-news:
		case <-a.done:
			return fmt.Errorf("%s ended before it reported %q %s", name, kind, errs)
		case <-deadline.C:
			return fmt.Errorf("%w: %s, %q, within %v", errNoReport, name, kind, atMost)
		}
	}
}

func (a *actor) heard(kind string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said[kind]
}

func (a *actor) tell(command string) {
	_, _ = io.WriteString(a.stdin, command+"\n") // fails if the process has ended
}

// look returns the content of the client's cache, and the group as the client sees it.
func (a *actor) look() (report, error) {
	n := a.heard("copy")
	a.tell("look")
	if err := a.await("copy", n+1, limit); err != nil {
		return report{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last, nil
}

// progress returns the number of successful calls, by workload.
func (a *actor) progress() map[string]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := maps.Clone(a.before)
	for w, n := range a.counts {
		sum[w] += n
	}
	return sum
}

func (a *actor) kill() {
	if a.cmd != nil && a.cmd.Process != nil {
		_ = a.cmd.Process.Kill() // it may have ended by itself
		<-a.done
	}
}

// quit makes the process end by itself.
func (a *actor) quit() error {
	a.stdin.Close()
	select {
	case <-a.done:
	case <-time.After(limit):
		return fmt.Errorf("%s does not end", a.name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.errs.Len() > 0 || a.failed != "" || !a.cmd.ProcessState.Success() {
		return fmt.Errorf("%s ended with %v: %s %s", a.name, a.cmd.ProcessState, a.failed, a.errs.String())
	}
	return nil
}

// each applies do to all proxies of the client.
func (a *actor) each(do func(p *zkproxy.Proxy)) {
	for _, p := range a.proxies {
		do(p)
	}
}
