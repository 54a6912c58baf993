//go:build linux

package interop

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/proc"
)

// A peer is a worker process in some language, with one session on the server. It reads
// commands from its standard input, one on each line, and reports events on its standard
// output:
//
//	                         opened                    it has a session
//	lock ID KIND PATH        want ID                   it begins to acquire a lock
//	                         granted ID NODE CZXID     it holds the lock
//	try ID KIND PATH         granted … or busy ID      the same without waiting
//	release ID               released ID
//	list KIND PATH           listed DATA…              the contenders' data in the order that it sees
//	revoke NODE              asked                     it asks the holder to release, as its language does
//	                         revoked ID                it was asked to release
//	loop KIND PATH ADDR      looped N                  it takes turns in the room at ADDR, see room
//	stop                                               it ends the loop
//	                         waiting NODE              it waits for another contender (coord only)
//	                         state …                   of the connection
//	                         failed …                  an error
//
// NODE is the path of the contender's node and CZXID the commit that created it, which is the
// token of coord's holds. The workers define the kinds. A worker ends when its standard input
// ends, and when this process ends.
type peer struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited <-chan struct{}

	mu    sync.Mutex
	lines []said        // not awaited yet
	all   []string      // for the log of a failed test
	news  chan struct{} // closed and replaced with every line
	over  bool
	errs  strings.Builder // standard error
}

type said struct {
	at    time.Time
	words []string
}

// troupe starts peers for one test.
type troupe struct {
	inst    *installation
	classes string
	addr    string
	timeout time.Duration
}

func newTroupe(t *testing.T, timeout time.Duration) *troupe {
	t.Helper()
	inst := require(t)
	return &troupe{inst, inst.compileJava(t), server.Get(t).Addrs()[0], timeout}
}

func (tr *troupe) golang(t *testing.T, name string) *peer {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", workerEnv, name, tr.addr, tr.timeout))
	return startPeer(t, name, cmd)
}

func (tr *troupe) java(t *testing.T, name string) *peer {
	t.Helper()
	return startPeer(t, name, exec.Command(tr.inst.java,
		"-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto",
		"-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", tr.classes+string(os.PathListSeparator)+tr.inst.classpath,
		"Worker", name, tr.addr, fmt.Sprint(tr.timeout.Milliseconds())))
}

func (tr *troupe) python(t *testing.T, name string) *peer {
	t.Helper()
	return startPeer(t, name, exec.Command(tr.inst.python, "-c", string(pythonWorker),
		name, tr.addr, fmt.Sprint(tr.timeout.Seconds())))
}

// startPeer starts a worker, which ends with the test. It does not wait for its session, so
// that several can start concurrently.
func startPeer(t *testing.T, name string, cmd *exec.Cmd) *peer {
	t.Helper()
	p := &peer{name: name, cmd: cmd, news: make(chan struct{})}
	cmd.Stderr = (*errorsOf)(p)
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.exited, err = proc.Launch(cmd, func() { p.hear(out) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("the last lines of %s:\n%s\nand on standard error:\n%s", name,
				strings.Join(p.all[max(0, len(p.all)-40):], "\n"), p.errs.String())
		}
	})
	return p
}

// hear collects the reports.
func (p *peer) hear(out io.Reader) {
	for in := bufio.NewScanner(out); in.Scan(); {
		now, words := time.Now(), strings.Fields(in.Text())
		p.mu.Lock()
		p.all = append(p.all, now.Format("15:04:05.000 ")+in.Text())
		switch {
		case len(words) == 2 && words[0] == "waiting":
			waiting.Store(words[1], true)
		case len(words) > 0:
			p.lines = append(p.lines, said{now, words})
		}
		p.tellNews()
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.tellNews()
}

func (p *peer) tellNews() {
	close(p.news)
	p.news = make(chan struct{})
}

// errorsOf collects the standard error of a worker.
type errorsOf peer

func (e *errorsOf) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.errs.Write(b)
}

// kill sends SIGKILL. It returns when the process has ended.
func (p *peer) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.exited
}

func (p *peer) tell(t *testing.T, words ...string) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, strings.Join(words, " ")+"\n"); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
}

// await returns the next line that begins with these words, and removes it.
func (p *peer) await(t *testing.T, words ...string) said {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		l, ok, news, over := p.take(t, words)
		switch {
		case ok:
			return l
		case over:
			t.Fatalf("%s ended before it reported %q", p.name, words)
		}
		select {
		case <-news:
		case <-deadline.C:
			t.Fatalf("%s never reported %q", p.name, words)
		}
	}
}

// take is await without waiting.
func (p *peer) take(t *testing.T, words []string) (l said, ok bool, news <-chan struct{}, over bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.lines {
		if l.begins("failed") {
			t.Fatalf("%s: %v", p.name, l.words)
		}
		if l.begins(words...) {
			p.lines = append(p.lines[:i:i], p.lines[i+1:]...)
			return l, true, nil, false
		}
	}
	return said{}, false, p.news, p.over
}

func (l said) begins(words ...string) bool {
	if len(l.words) < len(words) {
		return false
	}
	for i, w := range words {
		if l.words[i] != w {
			return false
		}
	}
	return true
}

// silent fails the test if the peer has reported such a line.
func (p *peer) silent(t *testing.T, words ...string) {
	t.Helper()
	if l, ok, _, _ := p.take(t, words); ok {
		t.Errorf("%s reported %v", p.name, l.words)
	}
}

// A claim is an acquisition of a peer.
type claim struct {
	t    *testing.T
	p    *peer
	id   string
	node string
	czid int64
	at   time.Time
}

// lock makes the peer acquire a lock. It does not wait for it.
func (p *peer) lock(t *testing.T, kind, path string) *claim {
	t.Helper()
	c := &claim{t: t, p: p, id: fmt.Sprint(ids.Add(1))}
	p.tell(t, "lock", c.id, kind, path)
	p.await(t, "want", c.id)
	return c
}

// granted waits until the peer has the lock.
func (c *claim) granted() *claim {
	c.t.Helper()
	c.parse(c.p.await(c.t, "granted", c.id))
	return c
}

func (c *claim) parse(l said) {
	c.t.Helper()
	if _, err := fmt.Sscan(strings.Join(l.words[2:], " "), &c.node, &c.czid); err != nil {
		c.t.Fatalf("%s: %v: %v", c.p.name, l.words, err)
	}
	c.at = l.at
}

// pending fails the test if the peer has the lock.
func (c *claim) pending() {
	c.t.Helper()
	c.p.silent(c.t, "granted", c.id)
}

func (c *claim) release() {
	c.t.Helper()
	c.p.tell(c.t, "release", c.id)
	c.p.await(c.t, "released", c.id)
}

// try reports whether the peer got the lock without waiting. It releases the lock again.
func (p *peer) try(t *testing.T, kind, path string) bool {
	t.Helper()
	c := &claim{t: t, p: p, id: fmt.Sprint(ids.Add(1))}
	p.tell(t, "try", c.id, kind, path)
	deadline := time.Now().Add(limit)
	for {
		if l, ok, _, _ := p.take(t, []string{"granted", c.id}); ok {
			c.parse(l)
			c.release()
			return true
		}
		_, ok, news, over := p.take(t, []string{"busy", c.id})
		if ok {
			return false
		}
		if over {
			t.Fatalf("%s ended", p.name)
		}
		select {
		case <-news:
		case <-time.After(time.Until(deadline)):
			t.Fatalf("%s did not answer", p.name)
		}
	}
}
