package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/coordtest"
)

const (
	every    = 20 * time.Millisecond // between two requests of a prober
	patience = time.Second           // after which a prober notes that there is no answer
	limit    = time.Minute           // for each step of a scene
)

// An answer is that of a probe.
type answer struct {
	replica, probe string
	at             time.Time // when the process made it, by its own report; else when it was missed
	code           int       // 0: the process did not answer
	phase          string
}

func (a answer) String() string {
	switch {
	case a.code == 0:
		return "no answer"
	case a.probe == "healthz":
		return fmt.Sprintf("%d, %s", a.code, a.phase)
	}
	return fmt.Sprint(a.code)
}

// A scene is one thing that happens to a replica.
type scene struct {
	name, replica string
	start, end    time.Time
}

// A note is what the driver did, or what the servers say.
type note struct {
	at     time.Time
	did    string
	leader string // the replica whose node is that of the leader, or one of these
}

const (
	nobody   = "none"
	noServer = "no server"
)

// A record has everything that was said and done in a run.
type record struct {
	t *testing.T

	mu      sync.Mutex
	answers []answer
	notes   []note
	more    chan struct{} // closed at the next entry
}

func (r *record) add(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.more)
	r.more = make(chan struct{})
}

func (r *record) did(what string) time.Time {
	now := time.Now()
	r.add(func() { r.notes = append(r.notes, note{at: now, did: what}) })
	return now
}

func (r *record) leader(id string) {
	now := time.Now()
	r.add(func() { r.notes = append(r.notes, note{at: now, leader: id}) })
}

// latest is the latest answer of a probe of a replica. The caller holds mu.
func (r *record) latest(replica, probe string) answer {
	for _, a := range slices.Backward(r.answers) {
		if a.replica == replica && a.probe == probe {
			return a
		}
	}
	return answer{}
}

// until waits until cond, which it calls with mu held at each entry, returns true.
func (r *record) until(what string, cond func() bool) {
	r.t.Helper()
	timeout := time.After(limit)
	for {
		r.mu.Lock()
		ok, more := cond(), r.more
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-more:
		case <-timeout:
			r.t.Fatalf("not so after %v: %s", limit, what)
		}
	}
}

// says waits until a probe of a replica says something, in an answer from now on.
func (r *record) says(replica, probe, want string) {
	r.t.Helper()
	now := time.Now()
	r.until(fmt.Sprintf("/%s of %s says %q", probe, replica, want), func() bool {
		a := r.latest(replica, probe)
		return a.String() == want && a.at.After(now)
	})
}

// leads waits until the servers say that a replica leads.
func (r *record) leads(replica string) {
	r.t.Helper()
	r.until("the servers say that "+replica+" leads", func() bool {
		for _, n := range slices.Backward(r.notes) {
			if n.leader != "" {
				return n.leader == replica
			}
		}
		return false
	})
}

// succeeded is when the servers said that another replica leads than that of the scene, or zero.
func (r *record) succeeded(sc scene) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.notes {
		if n.leader != "" && n.leader != nobody && n.leader != noServer && n.leader != sc.replica && n.at.After(sc.start) && n.at.Before(sc.end) {
			return n.at
		}
	}
	return time.Time{}
}

// of returns the answers of a probe within a scene, in the order in which they were made.
func (r *record) of(sc scene, probe string) []answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []answer
	for _, a := range r.answers {
		if a.probe == probe && !a.at.Before(sc.start) && !a.at.After(sc.end) {
			all = append(all, a)
		}
	}
	slices.SortStableFunc(all, func(a, b answer) int { return a.at.Compare(b.at) })
	return all
}

// table writes a scene as a table, with a row for each change. A change within two requests of the
// one before joins its row.
func (r *record) table(w io.Writer, sc scene, other string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	type entry struct {
		at     time.Time
		column int
		text   string
	}
	var all []entry
	for _, n := range r.notes {
		if n.did != "" {
			all = append(all, entry{n.at, 0, n.did})
		} else {
			all = append(all, entry{n.at, 4, n.leader})
		}
	}
	for _, a := range r.answers {
		switch {
		case a.replica == sc.replica && a.probe == "healthz":
			all = append(all, entry{a.at, 1, a.String()})
		case a.replica == sc.replica:
			all = append(all, entry{a.at, 2, a.String()})
		case a.replica == other && a.probe == "readyz":
			all = append(all, entry{a.at, 3, a.String()})
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	fmt.Fprintf(w, "\n| %s | what happens | `/healthz` of %s | `/readyz` of %s | `/readyz` of %s | leader's node |\n|---|---|---|---|---|---|\n", sc.name, sc.replica, sc.replica, other)
	var row [5]string
	var changed [5]bool
	var open time.Time // when the open row began
	flush := func() {
		if !open.IsZero() {
			fmt.Fprintf(w, "| %.2f s | %s |\n", open.Sub(sc.start).Seconds(), strings.Join(row[:], " | "))
		}
		row[0], changed, open = "", [5]bool{}, time.Time{}
	}
	for _, e := range all {
		if e.at.After(sc.end) || row[e.column] == e.text {
			continue
		}
		if e.column == 0 || changed[e.column] || e.at.Sub(open) > 2*every {
			flush()
		}
		row[e.column] = e.text
		if e.at.Before(sc.start) {
			row[0] = ""
			continue
		}
		changed[e.column] = true
		if open.IsZero() {
			open = e.at
		}
	}
	flush()
}

// A replica is a process of the example, behind a proxy of its own.
type replica struct {
	name  string
	proxy *coordtest.Proxy
	cmd   *exec.Cmd
	url   string
	done  chan struct{} // closed when the process has ended, with err
	err   error

	// A prober has gate while it waits for an answer. The process is only paused in between: an
	// answer that was made before the pause and is sent after it is true for its time only.
	gate sync.RWMutex
}

// replicaMark is set in the environment of a replica, which is this test binary.
const replicaMark = "STATUS_EXAMPLE_REPLICA"

// replicaMain is the main function of a replica. It also ends with the test.
func replicaMain() int {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	main()
	return 0
}

// start starts a replica and its probers.
func start(t *testing.T, r *record, name, kind string, proxy *coordtest.Proxy) *replica {
	t.Helper()
	p := &replica{name: name, proxy: proxy, done: make(chan struct{})}
	servers := proxy.Addr()
	if kind == "postgres" {
		servers = pgtest.URL(servers, "")
	}
	p.cmd = exec.Command(os.Args[0], "-name", name, "-listen", "127.0.0.1:0", "-backend", kind, "-servers", servers, "-session", timeout.String())
	p.cmd.Env = append(os.Environ(), replicaMark+"=1")
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	go func() {
		defer close(p.done)
		io.Copy(io.Discard, out)
		p.err = p.cmd.Wait()
	}()
	ctx, cancel := context.WithCancel(t.Context())
	var probers sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		p.cmd.Process.Kill()
		stdin.Close()
		<-p.done
		probers.Wait()
	})
	_, url, ok := strings.Cut(strings.TrimSpace(line), " serves ")
	if !ok {
		t.Fatalf("%s says %q, error %v", name, line, err)
	}
	p.url = url
	for _, probe := range []string{"healthz", "readyz"} {
		probers.Go(func() { p.probe(ctx, r, probe) })
	}
	return p
}

// probe asks one probe again and again.
func (p *replica) probe(ctx context.Context, r *record, probe string) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		p.gate.RLock()
		missed := time.AfterFunc(patience, func() {
			r.add(func() { r.answers = append(r.answers, answer{replica: p.name, probe: probe, at: time.Now()}) })
		})
		a := p.ask(ctx, client, probe)
		missed.Stop()
		p.gate.RUnlock()
		if ctx.Err() != nil {
			return
		}
		r.add(func() { r.answers = append(r.answers, a) })
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *replica) ask(ctx context.Context, client *http.Client, probe string) answer {
	a := answer{replica: p.name, probe: probe}
	var said struct {
		At      time.Time
		Clients []struct{ Phase string }
	}
	code, err := get(ctx, client, p.url+probe+"?format=json", &said)
	if err != nil || len(said.Clients) != 1 {
		a.at = time.Now()
		return a
	}
	a.at, a.code, a.phase = said.At, code, said.Clients[0].Phase
	return a
}

func get(ctx context.Context, client *http.Client, url string, into any) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, json.NewDecoder(resp.Body).Decode(into)
}

// pause stops the process between two answers.
func (p *replica) pause(t *testing.T) {
	t.Helper()
	p.gate.Lock()
	defer p.gate.Unlock()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(limit); !p.stopped(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s runs after SIGSTOP", p.name)
		}
	}
}

// stopped reports whether each thread of the process is stopped.
func (p *replica) stopped() bool {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, file := range files {
		stat, e := os.ReadFile(file)
		if e == nil && !strings.Contains(string(stat), ") T ") {
			return false
		}
	}
	return err == nil && len(files) > 0
}

func (p *replica) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// watch notes whose node is that of the leader, over a connection that nothing disturbs.
func watch(t *testing.T, r *record, b backend.Backend) *coord.Election {
	t.Helper()
	c, err := coord.Open(t.Context(), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	e := coord.NewElection(c, leaderPath, nil)
	leaders := e.WatchLeader(t.Context())
	go func() {
		for l := range leaders {
			r.leader(nameOf(l))
		}
	}()
	return e
}

func nameOf(l coord.Leader) string {
	if l.Vacant() {
		return nobody
	}
	return l.ID
}
