// Package ui serves the view of package live as a web page. The pages are made by the server and
// work without JavaScript; a small script replaces their contents when something has changed.
package ui

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// Options may be nil.
type Options struct {
	// Listen is the address to listen on. The default is a free port of 127.0.0.1. AllowRemote is
	// needed for an address that is not of this machine alone.
	Listen      string
	AllowRemote bool

	// Hosts are further names by which browsers may reach the server, such as that of a proxy.
	Hosts []string

	// AllowActions offers to revoke locks, and to redrive and remove dead letters. Only a
	// browser that has opened the address with its key can act.
	AllowActions bool

	// By is what the holder of a lock reads of who revokes it.
	By string

	Live live.Options

	// Started, unless nil, is called with the address to open.
	Started func(address string)
}

const (
	defaultListen = "127.0.0.1:0"
	mostStreams   = 64               // event streams at the same time
	streamPause   = time.Second / 2  // between two events of a stream
	heartbeat     = 15 * time.Second // of a stream in which nothing happens
	actionLimit   = 30 * time.Second
	forceAfter    = 10 * time.Second
)

// ErrRemote is the error for an address that other machines can reach.
var ErrRemote = errors.New("other machines can reach this address")

//go:embed assets
var assets embed.FS

// server is one call of Serve.
type server struct {
	c     *coord.Client
	m     *live.Model
	o     Options
	path  string
	hosts []string // that a request may name
	key   string   // of browsers that may act
	token string   // in the forms of pages
	local string   // port

	streams chan struct{}
	acting  sync.WaitGroup
	mu      sync.Mutex
	acts    []act
}

// Serve serves the view of what is at and below the path until ctx ends.
func Serve(ctx context.Context, c *coord.Client, path string, o *Options) error {
	s := &server{c: c, path: path, key: rand.Text(), token: rand.Text(), streams: make(chan struct{}, mostStreams)}
	if o != nil {
		s.o = *o
	}
	m, err := live.New(c, path, &s.o.Live)
	if err != nil {
		return err
	}
	s.m = m
	if s.o.Listen == "" {
		s.o.Listen = defaultListen
	}
	ln, err := s.listen(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	srv := &http.Server{
		Handler: s.handler(ctx), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 1 << 16,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	var work sync.WaitGroup
	work.Go(func() { cancel(m.Run(ctx)) })
	work.Go(func() {
		<-ctx.Done()
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer stop()
		if srv.Shutdown(late) != nil {
			srv.Close()
		}
	})
	if s.o.Started != nil {
		s.o.Started(s.address(ln.Addr()))
	}
	err = srv.Serve(ln)
	cancel(err)
	work.Wait()
	s.acting.Wait()
	return context.Cause(ctx)
}

// Check returns an error if Listen is no address, or one that needs AllowRemote.
func (o *Options) Check() error {
	listen := cmp.Or(o.Listen, defaultListen)
	host, port, err := net.SplitHostPort(listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("the address to listen on: %w", err)
	}
	if ip, err := netip.ParseAddr(host); !o.AllowRemote && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("%w: %s; the page has no passwords", ErrRemote, listen)
	}
	return nil
}

// listen opens the listener, and sets the names by which it may be reached.
func (s *server) listen(ctx context.Context) (net.Listener, error) {
	if err := s.o.Check(); err != nil {
		return nil, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.o.Listen)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(s.o.Listen)
	_, s.local, _ = net.SplitHostPort(ln.Addr().String())
	s.hosts = append([]string{"localhost", host}, s.o.Hosts...)
	return ln, nil
}

// address returns the address for a browser.
func (s *server) address(at net.Addr) string {
	u := url.URL{Scheme: "http", Host: at.String(), Path: "/"}
	if ip := at.(*net.TCPAddr).AddrPort().Addr().Unmap(); ip.IsUnspecified() {
		u.Host = net.JoinHostPort("localhost", s.local)
	}
	if s.o.AllowActions {
		u.RawQuery = url.Values{"key": {s.key}}.Encode()
	}
	return u.String()
}

func (s *server) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page("overview"))
	mux.HandleFunc("GET /recipe", s.page("recipe"))
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /api/view", s.apiView)
	mux.HandleFunc("GET /api/report", s.apiReport)
	mux.Handle("GET /assets/", http.FileServerFS(assets))
	mux.HandleFunc("POST /act", func(w http.ResponseWriter, r *http.Request) { s.act(ctx, w, r) })
	return s.guard(mux)
}

// guard refuses requests that another site makes a browser send, and sets the headers of all
// replies.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.knows(r.Host) {
			// A name that an attacker has pointed to this machine (DNS rebinding).
			http.Error(w, "The Host header of the request does not name this server.", http.StatusMisdirectedRequest)
			return
		}
		if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" && !(r.Method == http.MethodGet && r.URL.Path == "/") {
			http.Error(w, "Requests of other sites are refused.", http.StatusForbidden)
			return
		}
		if key := r.URL.Query().Get("key"); key != "" && s.o.AllowActions && r.Method == http.MethodGet && r.URL.Path == "/" {
			if same(key, s.key) {
				http.SetCookie(w, &http.Cookie{Name: s.cookie(), Value: s.key, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			}
			// The key does not stay in the address, in the history or in what is copied from it.
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// knows reports whether a request may name that host. An address is fine: only a name can be
// pointed elsewhere.
func (s *server) knows(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	ip, err := netip.ParseAddr(name)
	switch {
	case slices.Contains(s.hosts, name) && name != "":
		return true
	case err != nil:
		return false
	}
	return ip.IsLoopback() || s.o.AllowRemote
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// cookie returns the name of the cookie with the key. A browser keeps the cookies of a host for all of
// its ports, so the name has the port: the key of one coordctl ui does not replace that of another.
// This does not hide the key from other servers of the host: the browser sends the cookie to each port.
// A server of another user can act with the key once the browser has opened its page by the same host.
func (s *server) cookie() string { return "coordctl-key-" + s.local }

// mayAct reports whether the browser of a request has opened the address with its key.
func (s *server) mayAct(r *http.Request) bool {
	if !s.o.AllowActions {
		return false
	}
	cookie, err := r.Cookie(s.cookie())
	return err == nil && same(cookie.Value, s.key)
}

// page serves a page.
func (s *server) page(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, _ := s.m.Snapshot()
		text, status, err := s.render(name, s.newPage(name, v, r))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write(text)
	}
}

// events streams the contents of a page each time it has changed.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		http.Error(w, "Too many pages are open.", http.StatusServiceUnavailable)
		return
	}
	name := "overview"
	if r.URL.Query().Has("path") {
		name = "recipe"
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	var last []byte
	pause := time.NewTimer(0)
	defer pause.Stop()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		v, changed := s.m.Snapshot()
		var text bytes.Buffer
		if err := templates.ExecuteTemplate(&text, name+"-live", s.newPage(name, v, r)); err != nil {
			return
		}
		var event bytes.Buffer
		if !bytes.Equal(text.Bytes(), last) {
			last = bytes.Clone(text.Bytes())
			fmt.Fprintf(&event, "id: %d\n", v.Number)
			for line := range bytes.Lines(last) {
				fmt.Fprintf(&event, "data: %s\n", bytes.TrimRight(line, "\r\n"))
			}
			event.WriteString("\n")
		}
		if event.Len() > 0 && !send(w, out, event.Bytes()) {
			return
		}
		pause.Reset(streamPause)
		select {
		case <-pause.C:
		case <-r.Context().Done():
			return
		}
	wait:
		select {
		case <-changed:
		case <-beat.C:
			if !send(w, out, []byte(": here\n\n")) {
				return
			}
			goto wait
		case <-r.Context().Done():
			return
		}
	}
}

// send writes to a stream, and reports whether the reader still takes it.
func send(w io.Writer, out *http.ResponseController, text []byte) bool {
	_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, err := w.Write(text); err != nil {
		return false
	}
	return out.Flush() == nil
}

func (s *server) apiView(w http.ResponseWriter, r *http.Request) {
	v, _ := s.m.Snapshot()
	writeJSON(w, v)
}

// apiReport serves the newest report of the recipe at a path.
func (s *server) apiReport(w http.ResponseWriter, r *http.Request) {
	v, _ := s.m.Snapshot()
	row := v.Find(r.URL.Query().Get("path"))
	if row == nil {
		http.Error(w, "There is no recipe at the path.", http.StatusNotFound)
		return
	}
	writeJSON(w, row.Report)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}
