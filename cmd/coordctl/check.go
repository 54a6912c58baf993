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
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/layout"
)

// checkCommand returns the verb check.
func (t *tool) checkCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "check", words: "[PATH]", root: true, short: "check the service: servers, session, clock, round trips, permissions",
		long: `
It asks each server for its version, opens a session, measures round trips and the difference of
the clocks, and tries what it may do under PATH (/ by default): read, and create, write and delete
a temporary node, which is removed. Below a missing path, a value, a counter or a barrier nothing is
created; the nearest directory above is tried instead. With --read-only nothing is created at all.
If something fails, the exit status is 1.`,
		example: `
coordctl check
coordctl check /locks --json`,
		exits: []int{exitNo},
		do:    t.check,
	})
	cmd.Flags().BoolVar(&t.readOnly, "read-only", false, "create nothing")
	return cmd
}

// serverState is what a server says of itself.
type serverState struct {
	Addr    string `json:"addr"`
	Version string `json:"version,omitempty"`
	Mode    string `json:"mode,omitempty"`  // of ZooKeeper: "leader", "follower", "standalone" or "observer"
	Error   string `json:"error,omitempty"` // why it is not known, or the server is not reached
	Reached bool   `json:"reached"`         // it answers, and does not refuse to serve
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
	Session     string        `json:"session"`
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
}

const (
	checkedTrips   = 7
	serverTimeout  = 2 * time.Second
	clockTolerance = 1000 // milliseconds, beyond which a difference is marked
)

func (t *tool) check(ctx context.Context, c *coord.Client) error {
	stop := t.progress("asking the servers")
	r := &checked{OK: true, Backend: t.backend, Path: t.path, Servers: t.askServers(ctx)}
	stop()
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
	if try("read", err) && s.Features().Has(backend.Clock) {
		at := time.UnixMilli(stat.Ctime)
		r.Clock = &clock{Low: milliseconds(at.Sub(answer)), High: milliseconds(at.Add(time.Millisecond).Sub(sent))}
	}
	_, err = s.Commit(ctx, backend.SetData(node, []byte("coordctl check"), backend.AnyVersion))
	try("write", err)
	_, err = s.Commit(ctx, backend.Delete(node, backend.AnyVersion))
	try("delete", err)
	return ctx.Err()
}

// askServers asks each server for its version.
func (t *tool) askServers(ctx context.Context) []serverState {
	states := []serverState{}
	if t.memory {
		return states
	}
	cfg, err := t.tlsConfig()
	for _, addr := range t.hosts() {
		v := serverState{Addr: addr}
		if err == nil && t.backend == "etcd" {
			askEtcd(ctx, cfg, &v)
		} else if err == nil {
			askZooKeeper(ctx, cfg, &v)
		}
		states = append(states, v)
	}
	return states
}

// askZooKeeper sends the command srvr, which servers answer unless they are configured not to.
func askZooKeeper(ctx context.Context, cfg *tls.Config, v *serverState) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	if _, _, err := net.SplitHostPort(v.Addr); err != nil {
		v.Addr = net.JoinHostPort(v.Addr, "2181")
	}
	var conn net.Conn
	var err error
	if cfg != nil {
		conn, err = (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", v.Addr)
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", v.Addr)
	}
	if err != nil {
		v.Error = err.Error()
		return
	}
	defer conn.Close()
	v.Reached = true
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err = io.WriteString(conn, "srvr"); err != nil {
		v.Error = err.Error()
		return
	}
	lines := bufio.NewScanner(io.LimitReader(conn, 1<<16))
	answered := false
	for lines.Scan() {
		answered = true
		if strings.HasPrefix(lines.Text(), "This ZooKeeper instance is not currently serving requests") {
			v.Reached, v.Error = false, "it is not serving requests: it is starting, or has no majority"
			return
		}
		if version, ok := strings.CutPrefix(lines.Text(), "Zookeeper version: "); ok {
			v.Version, _, _ = strings.Cut(version, "-")
		}
		if mode, ok := strings.CutPrefix(lines.Text(), "Mode: "); ok {
			v.Mode = mode
		}
	}
	if err := net.Error(nil); !answered && errors.As(lines.Err(), &err) && err.Timeout() {
		v.Reached, v.Error = false, fmt.Sprintf("it accepts the connection, and does not answer within %v", serverTimeout)
		return
	}
	if v.Version == "" { // a server can be configured not to answer
		v.Error = "it does not answer srvr, so its version is not known"
	}
}

// askEtcd reads /version.
func askEtcd(ctx context.Context, cfg *tls.Config, v *serverState) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	scheme, addr := "http", v.Addr
	if cfg != nil {
		scheme = "https"
	}
	if before, after, ok := strings.Cut(addr, "://"); ok {
		scheme, addr = before, after
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+"/version", nil)
	if err != nil {
		v.Error = err.Error()
		return
	}
	transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		v.Error = err.Error()
		return
	}
	defer resp.Body.Close()
	v.Reached = true
	var got struct {
		Server string `json:"etcdserver"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&got); err != nil || got.Server == "" {
		v.Error = "it does not answer /version, so its version is not known"
		return
	}
	v.Version = got.Server
}

// checkText returns the result as text.
func (t *tool) checkText(r *checked) string {
	var b strings.Builder
	line := func(ok bool, what, format string, args ...any) {
		mark := t.paint(green, "ok    ")
		if !ok {
			mark = t.paint(red, "FAILED")
		}
		fmt.Fprintf(&b, "%s  %-12s %s\n", mark, what, fmt.Sprintf(format, args...))
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
		if max(off, -off)-width > clockTolerance {
			text = t.paint(yellow, text)
		}
		line(true, "clock", "%s", text)
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
