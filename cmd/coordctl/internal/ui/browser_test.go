//go:build linux

package ui_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/cmd/coordctl/internal/ui"
	"github.com/go-coord/coord/internal/coordtest"
)

// deadlock makes two clients wait for each other.
func deadlock(t *testing.T, open func() *coord.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	lock := func(c *coord.Client, id, name string) *coord.Mutex {
		return coord.NewMutex(c, "/app/locks/"+name, &coord.MutexOptions{ID: id})
	}
	const one, other = "billing.example:1", "orders.example:2"
	a, b := open(), open()
	coordtest.MustLock(t, lock(a, one, "a"))
	coordtest.MustLock(t, lock(b, other, "b"))
	for _, m := range []*coord.Mutex{lock(a, one, "b"), lock(b, other, "a")} {
		go func() {
			_, _ = m.Lock(ctx)
			ended <- struct{}{}
		}()
	}
	t.Cleanup(func() { cancel(); <-ended; <-ended })
}

// TestThePageInABrowser shows the view of a real server in Chromium.
func TestThePageInABrowser(t *testing.T) {
	b := startChromium(t)
	w := coordtest.OnServer(t, zookeeper.Options{})
	number := 0
	open := func() *coord.Client { number++; return w.Open(fmt.Sprint("client-", number), nil) }
	scene(t, open)
	deadlock(t, open)
	viewer := w.Open("viewer", nil)
	const name = "/app/locks/report"
	lock := w.Path(name) // in addresses; pages show the path in the client's namespace
	s := serve(t, viewer, ui.Options{})
	on := func(t *testing.T) *tab { b.t = t; return b.tab() }

	t.Run("a table, a graph, and updates", func(t *testing.T) {
		p := on(t)
		p.open(s.at("/"))
		p.shows(name)
		p.until("that it is live", "document.getElementById('link').textContent === 'live'")
		p.shows("2 ready, 0 claimed")
		p.shows("Possible deadlock")
		p.until("the waiters in the graph", "document.querySelectorAll('svg.graph .edge.wait').length === 3")
		if n := p.count("svg.graph .edge.hold"); n < 4 {
			t.Errorf("%d lines of holders in the graph", n)
		}
		if n := p.count("table.rows tbody tr"); n < 6 {
			t.Errorf("%d rows", n)
		}
		p.eval("window.same = 'page'", nil)
		h := coordtest.MustLock(t, coord.NewMutex(open(), "/app/locks/new", &coord.MutexOptions{ID: "new-holder"}))
		p.shows("new-holder")
		coordtest.MustRelease(t, h)
		p.until("a lock that is free", "!document.body.innerText.includes('new-holder')")
		if p.text("String(window.same)") != "page" {
			t.Error("an update has loaded the page again")
		}
		p.clean(s)
		p.shot("overview")
	})

	t.Run("a selection stays until it is given up", func(t *testing.T) {
		p := on(t)
		p.open(s.at("/"))
		p.until("that it is live", "document.getElementById('link').textContent === 'live'")
		p.shows(name)
		p.eval(fmt.Sprintf("getSelection().selectAllChildren(document.getElementById(%q))", "r"+lock), nil)
		h := coordtest.MustLock(t, coord.NewMutex(open(), "/app/locks/while-selected", nil))
		defer h.Release()
		s.until("/", "while-selected") // another page has it
		p.eval("new Promise(next => setTimeout(next, 1500))", nil)
		if got := p.text("getSelection().toString()"); got != name {
			t.Errorf("the selection is %q, want %q", got, name)
		}
		p.eval("getSelection().removeAllRanges()", nil)
		p.shows("while-selected")
		p.clean(s)
	})

	t.Run("the page of a recipe, and the filter", func(t *testing.T) {
		p := on(t)
		p.open(s.at("/"))
		p.shows(name)
		p.loads(func() { p.eval(fmt.Sprintf("document.getElementById(%q).click()", "r"+lock), nil) })
		p.shows("web-1.example:4711")
		p.shows("Turns")
		if n := p.count("svg.terms rect"); n != 1 {
			t.Errorf("%d turns", n)
		}
		p.shot("recipe")
		p.clean(s)
		p.loads(func() { p.eval("document.querySelector('h1 a').click()", nil) })
		p.loads(func() {
			p.eval("document.getElementById('q').value = 'leaders'; document.querySelector('form.filter button').click()", nil)
		})
		p.shows("/app/leader")
		if text := p.text("document.body.innerText"); strings.Contains(text, name) {
			t.Errorf("the filter has no effect:\n%s", text)
		}
		p.clean(s)
	})

	t.Run("without JavaScript it is a table", func(t *testing.T) {
		p := on(t)
		p.do("Emulation.setScriptExecutionDisabled", map[string]any{"value": true})
		s.until("/", "waits for")
		p.open(s.at("/"))
		text := p.text("document.body.innerText")
		for _, want := range []string{name, "web-1.example:4711", "2 ready", "This page is as of when it was loaded."} {
			if !strings.Contains(text, want) {
				t.Errorf("the page has no %q:\n%s", want, text)
			}
		}
		if p.text("document.getElementById('link').textContent") != "" || p.count("svg.graph .edge") < 4 {
			t.Error("a script runs, or there is no graph")
		}
		p.shot("without-javascript")
	})

	t.Run("each width in light and dark", func(t *testing.T) {
		p := on(t)
		grounds := make(map[string]bool)
		for title, path := range map[string]string{"overview": "/", "lock": "/recipe?path=" + lock, "queue": "/recipe?path=" + w.Path("/app/queues/mail")} {
			p.open(s.at(path))
			p.shows("changes are watched")
			for _, scheme := range []string{"light", "dark"} {
				p.scheme(scheme)
				for _, width := range []int{340, 860, 1280} {
					p.size(width, 900)
					var wide int
					p.eval("document.documentElement.scrollWidth", &wide)
					if wide > width {
						t.Errorf("%s is %d wide in a window of %d", title, wide, width)
					}
					var faint []string
					p.eval(faintTexts, &faint)
					if len(faint) > 0 {
						t.Errorf("%s, %s, %d: hard to read: %s", title, scheme, width, strings.Join(faint[:min(len(faint), 5)], "; "))
					}
					grounds[p.text("getComputedStyle(document.body).backgroundColor")] = true
					p.shot(fmt.Sprintf("%s-%s-%d", title, scheme, width))
				}
			}
		}
		if len(grounds) != 2 {
			t.Errorf("the grounds are %v", grounds)
		}
		p.clean(s)
	})

	t.Run("no action without its flag, and no data", func(t *testing.T) {
		p := on(t)
		for _, path := range []string{"/", "/recipe?path=" + lock, "/recipe?path=" + w.Path("/app/queues/mail"), "/recipe?path=" + w.Path("/app/members")} {
			p.open(s.at(path))
			p.shows("changes are watched")
			if n := p.count("form[method=post], main button, main input"); n > 0 {
				t.Errorf("%s has %d controls", path, n)
			}
			if strings.Contains(p.text("document.documentElement.outerHTML"), "secret-data") {
				t.Errorf("%s shows data", path)
			}
		}
		withData := serve(t, viewer, ui.Options{Live: live.Options{Data: true}})
		withData.until("/", name)
		p.open(withData.at("/recipe?path=" + lock))
		p.shows("secret-data")
		p.clean(s, withData)
	})

	t.Run("an operator acts", func(t *testing.T) {
		h := coordtest.MustLock(t, coord.NewMutex(open(), "/app/locks/revoked", nil))
		acting := serve(t, viewer, ui.Options{AllowActions: true, By: "operator"})
		page := "/recipe?path=" + w.Path("/app/locks/revoked")
		acting.until("/", "/app/locks/revoked")
		stranger := on(t)
		stranger.open(acting.at(page))
		stranger.shows("Open the address that coordctl has printed")
		if n := stranger.count("form[method=post]"); n > 0 {
			t.Errorf("%d forms without the key", n)
		}
		p := on(t)
		p.open(acting.address.String())
		if text := p.text("location.href"); strings.Contains(text, "key") {
			t.Errorf("the key stays in the address %s", text)
		}
		p.open(acting.at(page))
		p.until("the action", "document.querySelector('form[method=post] button')")
		p.shot("act")
		p.loads(func() {
			p.eval("document.getElementById('reason').value = 'maintenance'; document.querySelector('form[method=post] button').click()", nil)
		})
		select {
		case <-h.Revoked():
		case <-time.After(patience):
			t.Fatal("the holder was not asked")
		}
		if r, _ := h.Revocation(); r.Reason != "maintenance" || r.By != "operator" {
			t.Errorf("the holder reads %+v", r)
		}
		p.shows("under way")
		coordtest.MustRelease(t, h)
		p.shows("the holder has released it")
		p.clean(acting)
	})

	t.Run("the service is away, and then coordctl", func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		started, done := make(chan string, 1), make(chan error, 1)
		c := w.Open("cut off", nil)
		go func() {
			done <- ui.Serve(ctx, c, "/", &ui.Options{Started: func(address string) { started <- address }})
		}()
		end := func() {
			stop()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Serve: %v", err)
			}
			done <- context.Canceled
		}
		defer end()
		p := on(t)
		p.open(<-started)
		p.shows(name)
		w.Link("cut off").Partition()
		p.shows("There is no contact with the service")
		p.shows(name)
		p.shot("away")
		w.Link("cut off").Heal()
		p.until("the contact", "document.querySelector('.status').innerText.startsWith('connected')")
		end()
		p.until("that coordctl is away", "document.body.classList.contains('stale') && document.getElementById('link').textContent.includes('does not answer')")
		p.shot("stale")
	})
}

// clean reports what the browser complains of, and requests of other servers than these.
func (p *tab) clean(sites ...*site) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.errors {
		p.t.Errorf("the browser says: %s", text)
	}
	for _, address := range p.requests {
		if !slices.ContainsFunc(sites, func(s *site) bool { return strings.HasPrefix(address, s.at("/")) }) {
			p.t.Errorf("a request of %s", address)
		}
	}
}

// faintTexts lists texts whose contrast with their ground is below 4.5, which WCAG 2 asks for.
const faintTexts = `(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const over = (colors) => { // the colors lie on each other, the lowest first
    pen.clearRect(0, 0, 1, 1);
    for (const c of colors) { pen.fillStyle = c; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((x) => { x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    const box = e.getBoundingClientRect();
    if (!text || e.closest("svg, noscript") || box.width < 3 || box.height < 3) continue;
    const grounds = [];
    for (let up = e; up; up = up.parentElement) grounds.unshift(getComputedStyle(up).backgroundColor);
    const a = light(over(["white", ...grounds, getComputedStyle(e).color])), b = light(over(["white", ...grounds]));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(ratio.toFixed(2) + " of " + e.tagName + "." + e.className + " " + text.slice(0, 30));
  }
  return faint;
})()`
