//go:build linux

package ui_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

// patience is the timeout for what a browser must show.
const patience = time.Minute

// chromium is a browser without a window. The test drives it through two pipes, with messages of
// the Chrome DevTools Protocol.
type chromium struct {
	t    *testing.T
	out  *os.File
	logs bytes.Buffer

	mu      sync.Mutex
	number  int
	replies map[int]chan message
	events  map[string]func(message) // by session
}

type message struct {
	ID      int             `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// startChromium starts a browser that ends with the test.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	program, err := "", error(nil)
	for _, name := range []string{"google-chrome", "chromium-browser", "chromium"} {
		if path, e := exec.LookPath(name); e == nil {
			program = path
		} else {
			err = e
		}
	}
	if program == "" {
		zktest.Missing(t, err)
	}
	fromUs, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, toUs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	b := &chromium{t: t, out: out, replies: make(map[int]chan message), events: make(map[string]func(message))}
	// It runs as root and in containers, where its sandbox does not work; it sees one page, ours.
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
		"--disable-background-networking", "--disable-component-update", "--no-proxy-server", "--hide-scrollbars",
		"--user-data-dir="+profile, "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{fromUs, toUs} // as 3 and 4
	cmd.Env = append(os.Environ(), "HOME="+profile)
	cmd.Stdout, cmd.Stderr = &b.logs, &b.logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fromUs.Close()
	toUs.Close()
	read := make(chan struct{})
	go func() { defer close(read); b.read(in) }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it has children
		_ = cmd.Wait()
		<-read
		out.Close()
		in.Close()
		if err := os.RemoveAll(filepath.Clean(profile)); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the browser says: %s", b.logs.Bytes()[:min(b.logs.Len(), 3000)])
		}
	})
	return b
}

// read takes messages until the browser ends.
func (b *chromium) read(in *os.File) {
	r := bufio.NewReader(in)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			for id, reply := range b.replies {
				close(reply)
				delete(b.replies, id)
			}
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		reply, event := b.replies[m.ID], b.events[m.Session]
		delete(b.replies, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && reply != nil:
			reply <- m
		case m.Method != "" && event != nil:
			event(m)
		}
	}
}

// call calls a method of the browser, or of the page with that session. The result goes into to,
// unless that is nil.
func (b *chromium) call(session, method string, params map[string]any, to any) {
	b.t.Helper()
	b.mu.Lock()
	b.number++
	id, reply := b.number, make(chan message, 1)
	b.replies[id] = reply
	b.mu.Unlock()
	text, err := json.Marshal(map[string]any{"id": id, "sessionId": session, "method": method, "params": params})
	if session == "" {
		text, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.out.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	select {
	case m, ok := <-reply:
		switch {
		case !ok:
			b.t.Fatalf("%s: the browser has ended", method)
		case m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		case to != nil:
			if err := json.Unmarshal(m.Result, to); err != nil {
				b.t.Fatalf("%s: %v: %s", method, err, m.Result)
			}
		}
	case <-time.After(patience):
		b.t.Fatalf("%s: no reply", method)
	}
}

// A tab shows a page. Each has cookies of its own.
type tab struct {
	*chromium
	session string

	mu       sync.Mutex
	loaded   int
	errors   []string // what the browser says in its console, exceptions, and what a policy has stopped
	requests []string // the addresses of all requests
}

// tab opens a page.
func (b *chromium) tab() *tab {
	b.t.Helper()
	var context struct{ BrowserContextID string }
	b.call("", "Target.createBrowserContext", nil, &context)
	var target struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": context.BrowserContextID}, &target)
	var attached struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p := &tab{chromium: b, session: attached.SessionID}
	b.mu.Lock()
	b.events[p.session] = p.event
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.do(domain+".enable", nil)
	}
	p.size(1280, 900)
	return p
}

func (p *tab) do(method string, params map[string]any) {
	p.t.Helper()
	p.call(p.session, method, params, nil)
}

func (p *tab) event(m message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m.Method {
	case "Page.loadEventFired":
		p.loaded++
	case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
		p.errors = append(p.errors, fmt.Sprintf("%s: %s", m.Method, m.Params))
	case "Network.requestWillBeSent":
		var sent struct{ Request struct{ URL string } }
		if json.Unmarshal(m.Params, &sent) == nil {
			p.requests = append(p.requests, sent.Request.URL)
		}
	}
}

// open shows an address, and returns when the page is loaded.
func (p *tab) open(address string) {
	p.t.Helper()
	p.loads(func() { p.do("Page.navigate", map[string]any{"url": address}) })
}

// loads does what makes a page load, and returns when it is loaded.
func (p *tab) loads(act func()) {
	p.t.Helper()
	count := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.loaded
	}
	before := count()
	act()
	for began := time.Now(); count() == before; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > patience {
			p.t.Fatal("no page was loaded")
		}
	}
}

// size sets the size of the window.
func (p *tab) size(width, height int) {
	p.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
}

// scheme selects "light" or "dark".
func (p *tab) scheme(name string) {
	p.t.Helper()
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}}})
}

// eval returns the value of an expression of JavaScript in the page.
func (p *tab) eval(expression string, to any) {
	p.t.Helper()
	var result struct {
		Result struct{ Value json.RawMessage }
		Thrown json.RawMessage `json:"exceptionDetails"`
	}
	p.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &result)
	if result.Thrown != nil {
		p.t.Fatalf("%s: %s", expression, result.Thrown)
	}
	if to != nil {
		if err := json.Unmarshal(result.Result.Value, to); err != nil {
			p.t.Fatalf("%s: %v: %s", expression, err, result.Result.Value)
		}
	}
}

func (p *tab) text(expression string) (text string) {
	p.t.Helper()
	p.eval(expression, &text)
	return text
}

func (p *tab) count(selector string) (n int) {
	p.t.Helper()
	p.eval(fmt.Sprintf("document.querySelectorAll(%q).length", selector), &n)
	return n
}

// until waits until an expression is true.
func (p *tab) until(what, expression string) {
	p.t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var ok bool
		p.eval("!!("+expression+")", &ok)
		if ok {
			return
		}
		if time.Since(began) > patience {
			p.t.Fatalf("the page never showed %s:\n%s", what, p.text("document.body.innerText"))
		}
	}
}

// shows waits until the text of the page has a text.
func (p *tab) shows(text string) {
	p.t.Helper()
	p.until(text, fmt.Sprintf("document.body.innerText.includes(%q)", text))
}

// shot stores a picture of the whole page in the folder that COORD_SCREENSHOTS names.
func (p *tab) shot(name string) {
	p.t.Helper()
	dir := os.Getenv("COORD_SCREENSHOTS")
	if dir == "" {
		return
	}
	var picture struct{ Data string }
	p.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &picture)
	data, err := base64.StdEncoding.DecodeString(picture.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), data, 0o600)
	}
	if err != nil {
		p.t.Error(err)
	}
}
