package ui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/cmd/coordctl/internal/ui"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }

// site is a server of the page, and a browser without JavaScript.
type site struct {
	t       *testing.T
	address *url.URL
	client  *http.Client
}

// serve serves the page until the test ends.
func serve(t *testing.T, c *coord.Client, o ui.Options) *site {
	t.Helper()
	o.Live.Interval = 50 * time.Millisecond
	started := make(chan string, 1)
	o.Started = func(address string) { started <- address }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ui.Serve(ctx, c, "/", &o) }()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, client: &http.Client{Jar: jar, Transport: &http.Transport{}}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	select {
	case address := <-started:
		if s.address, err = url.Parse(address); err != nil {
			t.Fatal(err)
		}
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return s
}

// at returns the address of a page.
func (s *site) at(path string) string { return "http://" + s.address.Host + path }

// do makes a request and returns the status and the text.
func (s *site) do(r *http.Request) (int, string, http.Header) {
	s.t.Helper()
	resp, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
}

func (s *site) get(path string, headers ...string) (int, string) {
	s.t.Helper()
	r := s.request(http.MethodGet, path, nil, headers...)
	status, text, _ := s.do(r)
	return status, text
}

func (s *site) request(method, path string, body io.Reader, headers ...string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.at(path), body)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// until gets a page until it has a text, and returns the page.
func (s *site) until(path, text string) string {
	s.t.Helper()
	for began := time.Now(); ; coordtest.Pause(began) {
		_, page := s.get(path)
		if strings.Contains(page, text) {
			return page
		}
		if time.Since(began) > coordtest.Limit {
			s.t.Fatalf("%s never had %q:\n%s", path, text, page)
		}
	}
}

func (s *site) post(path string, form url.Values, headers ...string) (int, string) {
	s.t.Helper()
	r := s.request(http.MethodPost, path, strings.NewReader(form.Encode()), append(headers, "Content-Type", "application/x-www-form-urlencoded")...)
	status, text, _ := s.do(r)
	return status, text
}

func onMemory(t *testing.T) (open func() *coord.Client) {
	st := memory.New(nil)
	return func() *coord.Client { return coordtest.Open(t, st, nil) }
}

// hostile is what another client may call itself.
const hostile = `<script>alert(1)</script>"'&` + "\x1b[2J\u202e\x00<img src=x onerror=alert(2)>"

// scene makes locks, a leader, a queue and a group, whose data is secret.
func scene(t *testing.T, open func() *coord.Client) {
	t.Helper()
	ctx := t.Context()
	a := open()
	coordtest.MustLock(t, coord.NewMutex(a, "/app/locks/report", &coord.MutexOptions{ID: "web-1.example:4711", Data: []byte("secret-data")}))
	waiter := open()
	waiting, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = coord.NewMutex(waiter, "/app/locks/report", &coord.MutexOptions{ID: hostile}).Lock(waiting)
	}()
	t.Cleanup(func() { stop(); <-done })
	if _, err := coord.NewElection(a, "/app/leader", &coord.ElectionOptions{ID: "web-1.example:4711"}).Campaign(ctx); err != nil {
		t.Fatal(err)
	}
	q := coord.NewQueue(a, "/app/queues/mail", &coord.QueueOptions[string]{MaxAttempts: 1})
	for range 3 {
		if _, err := q.Put(ctx, "secret-data"); err != nil {
			t.Fatal(err)
		}
	}
	item, err := q.Take(ctx)
	if err == nil {
		err = item.Nack(0) // to the dead letters
	}
	if err != nil {
		t.Fatal(err)
	}
	g := coord.NewGroup(a, "/app/members", &coord.GroupOptions[string]{Codec: coord.Text()})
	if _, err := g.Join(ctx, "web-1", "secret-data"); err != nil {
		t.Fatal(err)
	}
}

func TestThePageIsATableWithoutJavaScript(t *testing.T) {
	open := onMemory(t)
	scene(t, open)
	s := serve(t, open(), ui.Options{})
	s.until("/", "2 ready")
	page := s.until("/", "waits for")
	for _, want := range []string{
		"/app/locks/report", "web-1.example:4711", "/app/leader", ">led<", "/app/queues/mail", "1 dead", "/app/members", `<th role="rowheader" scope="row">`, "<svg", "<noscript>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if _, page := s.get("/?q=leaders"); strings.Contains(page, "/app/queues") || !strings.Contains(page, "/app/leader") {
		t.Error("the filter does not select the rows")
	}
	if _, page := s.get("/?sort=depth"); strings.Index(page, "r/app/queues/mail") > strings.Index(page, "r/app/leader") {
		t.Error("the rows are not in the order of their items")
	}
	status, recipe := s.get("/recipe?path=/app/locks/report")
	if status != http.StatusOK || !strings.Contains(recipe, "mutex: held, 1 waits") || !strings.Contains(recipe, "web-1.example:4711") {
		t.Errorf("the page of the lock, status %d:\n%s", status, recipe)
	}
	if status, _ := s.get("/recipe?path=/nothing"); status != http.StatusNotFound {
		t.Errorf("a path without a recipe: status %d", status)
	}
	for _, page := range []string{"/", "/recipe?path=/app/locks/report", "/recipe?path=/app/queues/mail", "/api/view", "/api/report?path=/app/queues/mail"} {
		if _, text := s.get(page); strings.Contains(text, "secret-data") || strings.Contains(text, "c2VjcmV0LWRhdGE") {
			t.Errorf("%s shows data of users", page)
		}
	}
	withData := serve(t, open(), ui.Options{Live: live.Options{Data: true}})
	withData.until("/recipe?path=/app/locks/report", "secret-data")
}

// TestHostileNamesAreHarmless: neither HTML nor what does not print reaches a page.
func TestHostileNamesAreHarmless(t *testing.T) {
	open := onMemory(t)
	scene(t, open)
	if _, err := coord.NewValue[int](open(), "/app/<b>bold&\"'", nil).Set(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	s := serve(t, open(), ui.Options{})
	s.until("/", "&lt;script&gt;")
	for _, path := range []string{"/", "/?q=" + url.QueryEscape(hostile), "/recipe?path=/app/locks/report", "/recipe?path=" + url.QueryEscape(hostile), "/recipe?path=" + url.QueryEscape("/app/<b>bold&\"'")} {
		_, page := s.get(path)
		for _, bad := range []string{"<script>", "<img", "<b>", "\x1b", "\u202e", "\x00"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		if !strings.Contains(page, "<main") || !strings.Contains(page, "</html>") {
			t.Errorf("%s is no whole page", path)
		}
	}
}

func TestEachReplyHasAStrictPolicy(t *testing.T) {
	s := serve(t, onMemory(t)(), ui.Options{})
	for _, path := range []string{"/", "/recipe?path=/x", "/api/view", "/assets/style.css", "/assets/live.js", "/nothing"} {
		_, text, h := s.do(s.request(http.MethodGet, path, nil))
		policy := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %v", path, h)
		}
		if !strings.HasSuffix(path, "svg") && regexp.MustCompile(`(src|href|url)\s*[=(]\s*["']?(https?:)?//`).MatchString(text) {
			t.Errorf("%s asks another server", path)
		}
	}
}

func TestTheEventsBringEachChange(t *testing.T) {
	open := onMemory(t)
	scene(t, open)
	s := serve(t, open(), ui.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := s.request(http.MethodGet, "/events?q=locks", nil).WithContext(ctx)
	resp, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if typ := resp.Header.Get("Content-Type"); typ != "text/event-stream" {
		t.Errorf("Content-Type %s", typ)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	next := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "data: ") && strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the stream ended without %q: %v", text, lines.Err())
	}
	next("/app/locks/report")
	coordtest.MustLock(t, coord.NewMutex(open(), "/app/locks/one-more", nil))
	next("/app/locks/one-more")
}

func TestTheViewAsJSON(t *testing.T) {
	open := onMemory(t)
	scene(t, open)
	s := serve(t, open(), ui.Options{})
	s.until("/", "2 ready")
	_, text := s.get("/api/view")
	var v live.Snapshot
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	r := v.Find("/app/queues/mail")
	if v.Session.Phase != "connected" || !v.Ready || r == nil || r.Queue.Ready != 2 || r.Queue.Dead != 1 {
		t.Errorf("the view is %s", text)
	}
	_, text = s.get("/api/report?path=/app/queues/mail")
	var in inspect.Report
	if err := json.Unmarshal([]byte(text), &in); err != nil || in.Queue == nil || in.Queue.Dead != 1 {
		t.Errorf("the report is %s: %v", text, err)
	}
	if status, _ := s.get("/api/report?path=/nothing"); status != http.StatusNotFound {
		t.Errorf("no recipe: status %d", status)
	}
}

// TestRequestsOfOtherSitesAreRefused: of a name that points to this machine, and of a page of
// another site.
func TestRequestsOfOtherSitesAreRefused(t *testing.T) {
	s := serve(t, onMemory(t)(), ui.Options{Hosts: []string{"ops.example"}})
	port := s.address.Port()
	for host, want := range map[string]int{
		"127.0.0.1:" + port: 200, "localhost:" + port: 200, "[::1]:" + port: 200, "ops.example": 200,
		"evil.example:" + port: 421, "127.0.0.1.evil.example": 421, "10.0.0.1:" + port: 421, "": 200,
	} {
		if status, _ := s.get("/api/view", "Host", host); status != want {
			t.Errorf("host %q: status %d, want %d", host, status, want)
		}
	}
	if status, _ := s.get("/api/view", "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Errorf("a request of another site: status %d", status)
	}
	if status, _ := s.get("/", "Sec-Fetch-Site", "cross-site"); status != http.StatusOK {
		t.Errorf("a link of another site: status %d", status)
	}
}

func TestOtherMachinesAreNotServedByDefault(t *testing.T) {
	c := onMemory(t)()
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "ops.example:0"} {
		if err := ui.Serve(t.Context(), c, "/", &ui.Options{Listen: listen}); !errors.Is(err, ui.ErrRemote) {
			t.Errorf("%s: %v", listen, err)
		}
	}
	if err := ui.Serve(t.Context(), c, "/", &ui.Options{Listen: "nonsense"}); err == nil {
		t.Error("a bad address is taken")
	}
	if err := ui.Serve(t.Context(), c, "x", nil); !errors.Is(err, coord.ErrBadPath) {
		t.Errorf("a bad path: %v", err)
	}
	s := serve(t, c, ui.Options{Listen: "0.0.0.0:0", AllowRemote: true})
	if status, _ := s.get("/", "Host", "10.1.2.3:"+s.address.Port()); status != http.StatusOK {
		t.Errorf("by its address: status %d", status)
	}
	if status, _ := s.get("/", "Host", "evil.example:"+s.address.Port()); status != http.StatusMisdirectedRequest {
		t.Errorf("by another name: status %d", status)
	}
}

var tokenField = regexp.MustCompile(`name="token" value="([^"]+)"`)

// TestActionsNeedTheirFlagTheKeyAndTheToken: each of these alone suffices for nothing.
func TestActionsNeedTheirFlagTheKeyAndTheToken(t *testing.T) {
	open := onMemory(t)
	scene(t, open)
	const queue = "/recipe?path=/app/queues/mail"
	form := url.Values{"path": {"/app/queues/mail"}, "do": {"redrive"}}
	refused := func(what string, s *site, form url.Values, headers ...string) {
		t.Helper()
		if status, _ := s.post("/act", form, headers...); status != http.StatusForbidden {
			t.Errorf("%s: status %d", what, status)
		}
	}
	plain := serve(t, open(), ui.Options{})
	if page := plain.until(queue, "dead letters"); strings.Contains(page, "<form method=\"post\"") {
		t.Error("the page offers actions without the flag")
	}
	if status, text := plain.post("/act", form); status != http.StatusForbidden || !strings.Contains(text, "--allow-actions") {
		t.Errorf("without the flag: status %d: %s", status, text)
	}

	s := serve(t, open(), ui.Options{AllowActions: true})
	if page := s.until(queue, "dead letters"); strings.Contains(page, "<form method=\"post\"") {
		t.Error("the page offers actions without the key")
	}
	refused("without the key", s, form)
	if status, page := s.get("/?key=" + s.address.Query().Get("key") + "x"); status != http.StatusOK || strings.Contains(page, "key=") {
		t.Errorf("a wrong key: status %d", status)
	}
	refused("with a wrong key", s, form)
	s.get(s.address.RequestURI())
	token := tokenField.FindStringSubmatch(s.until(queue, "<form method=\"post\""))
	refused("without the token", s, form)
	form.Set("token", token[1]+"x")
	refused("with a wrong token", s, form)
	form.Set("token", token[1])
	other := &site{t: t, address: s.address, client: &http.Client{Transport: s.client.Transport}}
	refused("with the token, without the key", other, form)
	refused("from another site", s, form, "Origin", "http://evil.example")
	refused("from another site of this machine", s, form, "Origin", "http://"+s.address.Hostname()+":1")
	refused("from another site, by what the browser says", s, form, "Sec-Fetch-Site", "cross-site")
	if status, _ := s.get("/act"); status != http.StatusMethodNotAllowed {
		t.Errorf("a GET: status %d", status)
	}
	if _, text := s.get("/api/report?path=/app/queues/mail"); !strings.Contains(text, `"dead": 1`) {
		t.Errorf("a refused request has acted: %s", text)
	}
	if status, page := s.post("/act", form, "Origin", "http://"+s.address.Host); status != http.StatusOK || !strings.Contains(page, "Done from here") {
		t.Errorf("a good request: status %d\n%s", status, page)
	}
	s.until(queue, "1 dead letters were put back")
	s.until(queue, "<dt>dead letters</dt><dd>0</dd>")
}

// TestTwoPagesOfOneHostKeepTheirKeys: a browser has one set of cookies for all ports of a host.
func TestTwoPagesOfOneHostKeepTheirKeys(t *testing.T) {
	open := onMemory(t)
	scene(t, open)
	one, two := serve(t, open(), ui.Options{AllowActions: true}), serve(t, open(), ui.Options{AllowActions: true})
	two.client.Jar = one.client.Jar
	for _, s := range []*site{one, two} {
		s.get(s.address.RequestURI())
	}
	for i, s := range []*site{one, two} {
		if page := s.until("/recipe?path=/app/queues/mail", "dead letters"); !strings.Contains(page, "<form method=\"post\"") {
			t.Errorf("page %d of 2 does not offer actions to a browser that has opened both", i+1)
		}
	}
}

// TestAnOperatorRevokesALock: the holder is asked, and when it does not answer its node is deleted.
func TestAnOperatorRevokesALock(t *testing.T) {
	open := onMemory(t)
	h := coordtest.MustLock(t, coord.NewMutex(open(), "/locks/x", &coord.MutexOptions{ID: "holder"}))
	s := serve(t, open(), ui.Options{AllowActions: true, By: "the operator"})
	s.get(s.address.RequestURI())
	const page = "/recipe?path=/locks/x"
	token := tokenField.FindStringSubmatch(s.until(page, "Ask the holder"))
	form := url.Values{"path": {"/locks/x"}, "do": {"revoke"}, "reason": {"the disk is full"}, "token": {token[1]}}
	if status, text := s.post("/act", form); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	select {
	case <-h.Revoked():
	case <-time.After(coordtest.Limit):
		t.Fatal("the holder was not asked")
	}
	if r, ok := h.Revocation(); !ok || r.By != "the operator" || r.Reason != "the disk is full" || r.Force {
		t.Errorf("the holder reads %+v", r)
	}
	coordtest.MustRelease(t, h)
	s.until(page, "the holder has released it")
	for _, bad := range []url.Values{
		{"path": {"/locks/x"}, "do": {"redrive"}}, {"path": {"/locks/x"}, "do": {"nonsense"}}, {"path": {"/nothing"}, "do": {"revoke"}},
	} {
		bad.Set("token", token[1])
		if status, _ := s.post("/act", bad); status != http.StatusBadRequest && status != http.StatusNotFound {
			t.Errorf("%v: status %d", bad, status)
		}
	}
}

// TestTheServerOfTheTestsIsShownToo: on a real ZooKeeper.
func TestAZooKeeperIsShown(t *testing.T) {
	w := coordtest.OnServer(t, zookeeper.Options{})
	scene(t, func() *coord.Client { return w.Open("a", nil) })
	s := serve(t, w.Open("viewer", nil), ui.Options{})
	s.until("/", "2 ready")
	s.until("/", "web-1.example:4711")
}
