package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zkprobe"
)

// checkCommand returns the verb check.
func (t *tool) checkCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "check", words: "[PATH]", root: true, short: "check the service: servers, session, clock, round trips, permissions",
		long: `
It asks each server for its version, and prints at once, on standard error, why one fails (within ` + serverTimeout.String() + ` of silence), opens a session, measures round trips and the difference of
the clocks, and tries what it may do under PATH (/ by default): read, and create, write and delete
a temporary node, which is removed. Below a missing path, a value, a counter or a barrier nothing is
created; the nearest directory above is tried instead. With --read-only nothing is created at all.
A server fails if it does not answer, or answers that it does not serve; of etcd, if its /health is
not healthy. Of PostgreSQL it looks at the schema and the rights of the role first, at notifications,
durability, standbys and free connections, and opens no session if something of it fails. If something fails, the exit status is 1. A clock that is more than a second off is
marked WARN, and fails nothing. So is a ZooKeeper server that reads only shorter requests than by
default; each is asked with requests for a session that is not there, which change nothing.`,
		example: `
coordctl check
coordctl check /locks --json`,
		exits: []int{exitNo},
		check: func() error { t.before = t.askFirst; return nil },
		do:    t.check,
	})
	cmd.Flags().BoolVar(&t.readOnly, "read-only", false, "create nothing")
	return cmd
}

// serverState is what a server says of itself.
type serverState struct {
	Addr    string `json:"addr"`
	Version string `json:"version,omitempty"`
	Mode    string `json:"mode,omitempty"`          // of ZooKeeper: "leader", "follower", "standalone" or "observer"; of PostgreSQL: "primary" or "standby"
	Error   string `json:"error,omitempty"`         // why it is not known, or the server is not reached
	Reached bool   `json:"reached"`                 // it answers, and serves
	Request int    `json:"request_bytes,omitempty"` // of ZooKeeper: the longest request that it reads, up to fullRequest
}

// permission is whether something may be done under the path.
type permission struct {
	What  string `json:"what"` // "list", "create", "read", "write" or "delete"
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// checked is the result of check.
type checked struct {
	OK          bool          `json:"ok"`
	Backend     string        `json:"backend"`
	Servers     []serverState `json:"servers"`
	Postgres    []finding     `json:"postgres,omitempty"` // about a PostgreSQL database
	Session     string        `json:"session,omitempty"`  // without it no session was opened, and the rest is missing
	Timeout     float64       `json:"timeout_seconds"`
	Features    []string      `json:"features"`
	Limits      checkedLimits `json:"limits"`
	RoundTrips  []float64     `json:"round_trips_ms"`
	Clock       *clock        `json:"clock,omitempty"` // without it the difference is not known
	Path        string        `json:"path"`
	Tried       string        `json:"tried"` // where the permissions were tried
	Permissions []permission  `json:"permissions"`
}

type checkedLimits struct {
	Ops    int `json:"operations,omitempty"`
	Checks int `json:"conditions,omitempty"`
	Bytes  int `json:"bytes"`
}

// clock is the difference between the clock of the service and the local one, as an interval.
type clock struct {
	Low  float64 `json:"low_ms"`
	High float64 `json:"high_ms"`
	OK   bool    `json:"ok"` // it can be less than clockTolerance
}

// compareClocks returns the difference if a node that was created between sent and answer has this time.
func compareClocks(at, sent, answer time.Time) *clock {
	k := &clock{Low: milliseconds(at.Sub(answer)), High: milliseconds(at.Add(time.Millisecond).Sub(sent))}
	k.OK = k.Low <= clockTolerance && k.High >= -clockTolerance
	return k
}

const (
	checkedTrips   = 7
	fullRequest    = 1<<20 - 1 // bytes, the default of jute.maxbuffer
	serverTimeout  = 2 * time.Second
	clockTolerance = 1000.0 // milliseconds, beyond which a difference is marked
)

func (t *tool) check(ctx context.Context, c *coord.Client) error {
	r := &checked{OK: true, Backend: t.backend, Path: t.path, Servers: t.asked, Postgres: t.found, Clock: t.foundClock}
	if t.memory {
		r.Backend = "memory"
	}
	s, err := c.Session(ctx)
	if err != nil {
		return err
	}
	r.Session, r.Timeout = hexSession(s.ID()), s.Timeout().Seconds()
	r.Limits = checkedLimits{s.Limits().Ops, s.Limits().Checks, s.Limits().Bytes}
	r.Features = []string{}
	for _, f := range []struct {
		is   backend.Features
		name string
	}{{backend.Containers, "containers"}, {backend.Trees, "trees"}, {backend.Batches, "batches"}, {backend.Clock, "clock"}} {
		if s.Features().Has(f.is) {
			r.Features = append(r.Features, f.name)
		}
	}
	for range checkedTrips {
		begun := time.Now()
		if err := s.Sync(ctx, "/"); err != nil {
			return err
		}
		r.RoundTrips = append(r.RoundTrips, milliseconds(time.Since(begun)))
	}
	slices.Sort(r.RoundTrips)
	if err := t.permissions(ctx, c, s, r); err != nil {
		return err
	}
	for _, p := range r.Permissions {
		r.OK = r.OK && p.OK
	}
	for _, v := range r.Servers {
		r.OK = r.OK && v.Reached
	}
	for _, f := range r.Postgres {
		r.OK = r.OK && f.OK
	}
	if err := t.report(ctx, r, t.checkText(r)); err != nil {
		return err
	}
	if !r.OK {
		return &exit{exitNo, nil}
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// permissions tries what may be done under the path.
func (t *tool) permissions(ctx context.Context, c *coord.Client, s backend.Session, r *checked) error {
	in, err := inspect.Path(ctx, c, t.path, nil)
	if err != nil && !errors.Is(err, coord.ErrDenied) {
		return err
	}
	full := layout.Namespace(t.namespace).Full(t.path)
	leaf := in != nil && slices.Contains([]string{"missing", "value", "counter", "barrier"}, in.Recipe)
	for leaf && full != "/" {
		full = cmp.Or(full[:strings.LastIndexByte(full, '/')], "/")
		_, err := s.Exists(ctx, full, nil)
		leaf = errors.Is(err, backend.ErrNotFound)
	}
	r.Tried = full
	try := func(what string, err error) bool {
		p := permission{What: what, OK: err == nil}
		if err != nil {
			p.Error = err.Error()
		}
		r.Permissions = append(r.Permissions, p)
		return p.OK
	}
	_, _, err = s.Children(ctx, full, nil)
	try("list", err)
	if t.readOnly || ctx.Err() != nil {
		return ctx.Err()
	}
	node := strings.TrimSuffix(full, "/") + "/coordctl-check-" + rand.Text()
	sent := time.Now()
	_, err = s.Commit(ctx, backend.Create(node, nil, backend.Ephemeral)) // so that it goes with the session
	answer := time.Now()
	if !try("create", err) {
		return ctx.Err()
	}
	_, stat, err := s.Get(ctx, node, nil)
	if try("read", err) && r.Clock == nil && s.Features().Has(backend.Clock) {
		r.Clock = compareClocks(time.UnixMilli(stat.Ctime), sent, answer)
	}
	_, err = s.Commit(ctx, backend.SetData(node, []byte("coordctl check"), backend.AnyVersion))
	try("write", err)
	_, err = s.Commit(ctx, backend.Delete(node, backend.AnyVersion))
	try("delete", err)
	return ctx.Err()
}

// askFirst asks the servers before a client is opened, and prints why a server fails as soon as it does: if none of them
// can be reached, the client tries for as long as --wait.
func (t *tool) askFirst(ctx context.Context) error {
	stop := t.progress("asking the servers")
	var print sync.Mutex
	t.asked = t.askServers(ctx, func(v *serverState) {
		if ctx.Err() == nil {
			print.Lock()
			defer print.Unlock()
			if onTerminal(t.stderr) {
				fmt.Fprint(t.stderr, "\r\x1b[K") // the line of progress
			}
			t.say("%s: %s", v.Addr, v.Error)
		}
	})
	if t.pg != nil {
		t.examinePostgres(ctx)
	}
	stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !slices.ContainsFunc(t.found, func(f finding) bool { return !f.OK }) {
		return nil
	}
	// No session can be opened, or it would not work.
	r := &checked{Backend: t.backend, Path: t.path, Servers: t.asked, Postgres: t.found, Clock: t.foundClock, Features: []string{}, RoundTrips: []float64{}, Permissions: []permission{}}
	if err := t.report(ctx, r, t.checkText(r)); err != nil {
		return err
	}
	return &exit{exitNo, nil}
}

// askServers asks each server for its version, all at once, and calls failed for each that is not reached, as soon as that is
// known.
func (t *tool) askServers(ctx context.Context, failed func(*serverState)) []serverState {
	states := []serverState{}
	if t.memory {
		return states
	}
	for _, addr := range t.hosts() {
		states = append(states, serverState{Addr: addr})
	}
	cfg, err := t.tlsConfig()
	if err != nil {
		return states
	}
	var all sync.WaitGroup
	for i := range states {
		all.Go(func() {
			v := &states[i]
			switch t.backend {
			case "postgres":
				t.askPostgres(ctx, v)
			case "etcd":
				askEtcd(ctx, cfg, v)
			default:
				askZooKeeper(ctx, cfg, v)
			}
			switch {
			case !v.Reached:
				failed(v)
			case t.backend == "zookeeper":
				v.Request = longestRequest(ctx, cfg, v.Addr)
			}
		})
	}
	all.Wait()
	return states
}

func dialServer(ctx context.Context, cfg *tls.Config, addr string) (net.Conn, error) {
	if cfg != nil {
		return (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// longestRequest returns the length of the longest request that a ZooKeeper server reads, up to
// fullRequest, or 0 if that cannot be found out. It creates no session.
func longestRequest(ctx context.Context, cfg *tls.Config, addr string) int {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	limit, err := zkprobe.Limit(ctx, func(ctx context.Context) (net.Conn, error) { return dialServer(ctx, cfg, addr) }, fullRequest)
	if err != nil {
		return 0
	}
	return limit
}

// askZooKeeper sends the command srvr, which servers answer unless they are configured not to.
func askZooKeeper(ctx context.Context, cfg *tls.Config, v *serverState) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	if _, _, err := net.SplitHostPort(v.Addr); err != nil {
		v.Addr = net.JoinHostPort(v.Addr, "2181")
	}
	conn, err := dialServer(ctx, cfg, v.Addr)
	if err != nil {
		v.Error = err.Error()
		return
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err = io.WriteString(conn, "srvr"); err != nil {
		v.Error = err.Error()
		return
	}
	lines := bufio.NewScanner(io.LimitReader(conn, 1<<16))
	for lines.Scan() {
		v.Reached = true
		if strings.HasPrefix(lines.Text(), "This ZooKeeper instance is not currently serving requests") {
			v.Reached, v.Error = false, "the server is not serving requests: it is starting, or has no majority"
			return
		}
		if version, ok := strings.CutPrefix(lines.Text(), "Zookeeper version: "); ok {
			v.Version, _, _ = strings.Cut(version, "-")
		}
		if mode, ok := strings.CutPrefix(lines.Text(), "Mode: "); ok {
			v.Mode = mode
		}
	}
	// A server that may not answer srvr says so. Silence is that of a server without free
	// connections, a port of another protocol, or a balancer without servers.
	if err := net.Error(nil); !v.Reached {
		v.Error = "the server closes the connection without an answer"
		if errors.As(lines.Err(), &err) && err.Timeout() {
			v.Error = fmt.Sprintf("the server accepts the connection but does not answer within %v", serverTimeout)
		}
		return
	}
	if v.Version == "" { // a server can be configured not to answer
		v.Error = "the server does not answer the command srvr, so its version is unknown"
	}
}

// askEtcd reads /version, which a member answers in any case, and /health, which says whether it serves.
func askEtcd(ctx context.Context, cfg *tls.Config, v *serverState) {
	var version struct {
		Server string `json:"etcdserver"`
	}
	status, err := readEtcd(ctx, cfg, v.Addr, "/version", &version)
	if status == 0 {
		v.Error = err.Error()
		return
	}
	v.Version = version.Server
	var health struct {
		Health string `json:"health"`
		Reason string `json:"reason"`
	}
	status, err = readEtcd(ctx, cfg, v.Addr, "/health", &health)
	switch {
	case status == 0:
		v.Error = "the health check failed: " + err.Error()
	case status == http.StatusNotFound:
		v.Reached, v.Error = true, "the server does not answer /health, so its health is unknown"
	case status != http.StatusOK || err != nil || health.Health != "true":
		v.Error = "the server is not healthy: " + cmp.Or(visible(health.Reason), fmt.Sprintf("it answers /health with status %d", status))
	case v.Version == "":
		v.Reached, v.Error = true, "the server does not answer /version, so its version is unknown"
	default:
		v.Reached = true
	}
}

// readEtcd reads the JSON at a path of a member into got. The status of the answer is 0 if there is none.
func readEtcd(ctx context.Context, cfg *tls.Config, addr, path string, got any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	scheme := "http"
	if cfg != nil {
		scheme = "https"
	}
	if before, after, ok := strings.Cut(addr, "://"); ok {
		scheme, addr = before, after
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+path, nil)
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(got)
}

// checkText returns the result as text.
func (t *tool) checkText(r *checked) string {
	var b strings.Builder
	row := func(mark, what, text string) { fmt.Fprintf(&b, "%s  %-12s %s\n", mark, what, text) }
	line := func(ok bool, what, format string, args ...any) {
		mark := t.paint(green, "ok    ")
		if !ok {
			mark = t.paint(red, "FAILED")
		}
		row(mark, what, fmt.Sprintf(format, args...))
	}
	for _, v := range r.Servers {
		what := v.Addr
		if v.Version != "" {
			what += ", " + r.Backend + " " + printable(v.Version)
		}
		if v.Mode != "" {
			what += ", " + printable(v.Mode)
		}
		if v.Error != "" {
			what += ": " + v.Error
		}
		line(v.Reached, "server", "%s", what)
		if v.Request > 0 && v.Request < fullRequest {
			row(t.paint(yellow, "WARN  "), "requests", fmt.Sprintf("%s reads at most %d bytes (its jute.maxbuffer; the default is %d): longer writes fail", v.Addr, v.Request, fullRequest))
		}
	}
	for _, f := range r.Postgres {
		if f.Warn {
			row(t.paint(yellow, "WARN  "), f.What, visible(f.Text))
		} else {
			line(f.OK, f.What, "%s", visible(f.Text))
		}
	}
	if r.Session == "" && len(r.Postgres) > 0 {
		return b.String()
	}
	line(true, "session", "%s, timeout %v", r.Session, time.Duration(r.Timeout*float64(time.Second)))
	line(true, "features", "%s", dash(strings.Join(r.Features, ", ")))
	limit := func(n int, what string) string {
		if n == 0 {
			return "any number of " + what
		}
		return fmt.Sprintf("%d %s", n, what)
	}
	line(true, "limits", "of one commit: %d bytes, %s, %s", r.Limits.Bytes, limit(r.Limits.Ops, "operations"), limit(r.Limits.Checks, "conditions"))
	n := len(r.RoundTrips)
	line(true, "round trip", "%.2f ms (median of %d; least %.2f, most %.2f)", r.RoundTrips[n/2], n, r.RoundTrips[0], r.RoundTrips[n-1])
	switch {
	case r.Clock != nil:
		off := (r.Clock.Low + r.Clock.High) / 2
		width := (r.Clock.High - r.Clock.Low) / 2
		text := fmt.Sprintf("the service is %+.1f ms from this machine (± %.1f ms)", off, width)
		if r.Clock.OK {
			line(true, "clock", "%s", text)
		} else {
			row(t.paint(yellow, "WARN  "), "clock", text)
		}
	case !slices.Contains(r.Features, "clock"):
		line(true, "clock", "the service has none: times are those of its clients")
	default:
		line(true, "clock", "not measured, since no node was created")
	}
	for _, p := range r.Permissions {
		text := "below " + r.Tried
		if p.What == "list" {
			text = r.Tried
		}
		if p.Error != "" {
			text += ": " + p.Error
		}
		line(p.OK, p.What, "%s", text)
	}
	return b.String()
}
