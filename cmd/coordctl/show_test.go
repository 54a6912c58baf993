//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
)

// inProcess runs coordctl in this process.
func inProcess(t *testing.T, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(args, strings.NewReader(stdin), &out, &errs, make(chan os.Signal))
	return status, out.String(), errs.String()
}

func TestTheCommandLine(t *testing.T) {
	t.Setenv("COORD_SERVERS", "")
	for _, tc := range []struct {
		args   string
		status int
		tells  string // on either output
	}{
		{"-h", 0, "Usage:\n  coordctl"},
		{"lock -h", 0, "Usage:\n  coordctl lock PATH -- COMMAND"},
		{"", exitUsage, "no verb given"},
		{"frobnicate /a", exitUsage, "unknown command"},
		{"-memory lock", exitUsage, "needs a PATH"},
		{"-memory lock /a", exitUsage, "needs a command"},
		{"-memory lock /a --", exitUsage, "needs a command"},
		{"-memory lock /a true", exitUsage, "unexpected argument"},
		{"-memory inspect /a -- true", exitUsage, "takes no command"},
		{"-memory inspect a", exitUsage, "bad path"},
		{"-memory queue", 0, "coordctl queue"},
		{"-memory queue a", exitUsage, "unknown command"},
		{"-memory queue /a b", exitUsage, "unexpected argument"},
		{"-memory queue put /a --priority 5 --delay 1h x", exitUsage, "none of the others can be"},
		{"-servers 127.0.0.1:1 -wait 100ms ui --listen 0.0.0.0:80", exitUsage, "other machines can reach this address"},
		{"-servers 127.0.0.1:1 -wait 100ms ui --listen nonsense", exitUsage, "the address to listen on"},
		{"-servers 127.0.0.1:1 -wait 100ms ui --listen 127.0.0.1:nonsense", exitUsage, "the address to listen on"},
		{"-servers 127.0.0.1:1 -wait 100ms queue redrive /a", exitUsage, "needs ids, or --all"},
		{"-servers 127.0.0.1:1 -wait 100ms queue redrive /a --all x", exitUsage, "needs ids, or --all"},
		{"-servers 127.0.0.1:1 -wait 100ms revoke /a --force --after -1s", exitUsage, "--after -1s: negative"},
		{"-servers 127.0.0.1:1 -wait 100ms tree --depth -1", exitUsage, "--depth -1: negative"},
		{"-servers 127.0.0.1:1 -wait 100ms queue retries /a --limit 0", exitUsage, "--limit 0: less than 1"},
		{"-memory queue retries /a", 0, "coordctl: no item of /a waits for another attempt\n"},
		{"-memory -json queue retries /a", 0, "[]\n"},
		{"-servers 127.0.0.1:1 -wait 100ms counter add /a x", exitUsage, "\"x\" is not a number"},
		{"-servers 127.0.0.1:1 -wait 100ms value set /a x --if-version y", exitUsage, "want a number or none"},
		{"-servers 127.0.0.1:1 -wait 100ms value delete /a --if-version y", exitUsage, "want a number or none"},
		{"-memory -json barrier set /a", 0, `{"path":"/a","set":true}` + "\n"},
		{"-memory -json -yes barrier remove /a", 0, `{"path":"/a","set":false}` + "\n"},
		{"-memory -json -wait 0 barrier wait /a", 0, `{"path":"/a","set":false}` + "\n"},
		{"-memory -json barrier wait /a", 0, `{"path":"/a","set":false}` + "\n"},
		{"-memory -wait 1s ui --listen 127.0.0.1:0", 0, "the page is at"},
		{"version x", exitUsage, "unexpected argument \"x\""},
		{"completion bash x", exitUsage, "unexpected argument \"x\""},
		{"-memory queue /a", 0, "nothing was ever put"},
		{"-memory queue /a", 0, "ready 0\nclaimed 0\ndelayed 0\ndead 0\noldest 0.000\nwaiting 0\nbuckets 0\nunread 0\n"},
		{"-memory -json queue /a", 0, `{"ready":0,"claimed":0,"delayed":0,"dead":0,"oldest_seconds":0,"waiting":0,"buckets":0,"unread":0}`},
		{"-memory queue put", exitUsage, "needs a PATH"},
		{"lock /a -- true", exitUsage, "no servers"},
		{"-backend consul -servers x inspect /a", exitUsage, "want zookeeper, etcd or postgres"},
		{"-prefix p -servers x inspect /a", exitUsage, "needs --backend etcd"},
		{"-backend etcd lock /a -- true", exitUsage, "no servers"},
		{"-servers x -memory lock /a -- true", exitUsage, "exclude each other"},
		{"-memory -grace 2s lock /a -- true", exitUsage, "within a second"},
		{"-memory -margin 10s lock /a -- true", exitUsage, "less than the timeout"},
		{"-memory -wait 0 elect /a -- true", exitUsage, "campaign"},
		{"-memory -wait 0 revoke /a", exitUsage, "revoke --wait 0: a holder takes a moment"},
		{"-memory -wait 0 tx recover /a", exitUsage, "tx recover --wait 0: recovery takes a moment"},
		{"-memory -wait 0 watch /a", exitUsage, "watch --wait 0: it would end"},
		{"-memory -wait 0 value watch /a", exitUsage, "watch --wait 0: it would end"},
		{"-memory -wait 0 group watch /a", exitUsage, "watch --wait 0: it would end"},
		{"-memory -wait 0 group join /a x", exitUsage, "join --wait 0: it would end"},
		{"-memory -wait 0 top --json", exitUsage, "top --wait 0: it would end"},
		{"-memory -wait 0 ui", exitUsage, "ui --wait 0: it would end"},
		{"-memory -wait 0 barrier wait /a", 0, ""},
		{"-memory -wait 0 queue len /a", 0, "0\n"},
		{"-memory -wait -3s lock /a -- true", exitUsage, "negative"},
		{"-memory -nonsense lock /a -- true", exitUsage, "nonsense"},
		{"-memory -namespace x inspect /a", exitUsage, "bad path"},
		{"-servers x -tls-cert /no inspect /a", exitUsage, "need each other"},
		{"-servers x -tls-ca /no/such/file inspect /a", exitUsage, "no such file"},
		{"-memory lock /a -- true", 0, ""},
		{"-memory lock /a -- false", 1, ""},
		{"-memory elect /a -- true", 0, ""},
		{"-memory lock -grace 0s /a -wait 1s -- sh -c exit\u00a09", 9, ""},
		{"-memory inspect /a", 0, "/a: missing"},
		{"-memory queue len /a", 0, "0\n"},
		{"-memory queue take -wait 1s /a", exitLate, "not obtained in time"},
		{"-memory queue take -wait 0 /a", exitLate, "not obtained in time"},
		{"-servers 127.0.0.1:1 -wait 100ms queue len /a", exitFailed, ""},
	} {
		var args []string
		for _, a := range strings.Fields(strings.ReplaceAll(tc.args, "\u00a0", "\x00")) {
			args = append(args, strings.ReplaceAll(a, "\x00", " "))
		}
		status, stdout, stderr := inProcess(t, "", args...)
		if status != tc.status || !strings.Contains(stdout+stderr, tc.tells) {
			t.Errorf("coordctl %s: status %d, want %d with %q\n%s%s", tc.args, status, tc.status, tc.tells, stdout, stderr)
		}
	}
}

func TestInspectQueueAndWatch(t *testing.T) { onEach(t, inspectQueueAndWatch) }

func inspectQueueAndWatch(t *testing.T, v *servers) {
	s := newStage(t, v)
	t.Run("values go through a queue as they are", func(t *testing.T) {
		s.t = t
		ids := s.output("queue", "put", s.path+"/q", "first", "second")
		if n := strings.Count(ids, "\n"); n != 2 {
			t.Errorf("ids %q", ids)
		}
		if got := s.output("queue", "len", s.path+"/q"); got != "2\n" {
			t.Errorf("len %q", got)
		}
		if got := s.output("queue", "take", s.path+"/q"); got != "first" {
			t.Errorf("took %q", got)
		}
		if got := s.output("inspect", "-data", s.path+"/q"); !strings.Contains(got, "queue: 1 item: 1 ready") || !strings.Contains(got, `"second"`) {
			t.Errorf("inspect:\n%s", got)
		}
		if got := s.output("inspect", s.path+"/q"); strings.Contains(got, "second") {
			t.Errorf("inspect shows data without -data:\n%s", got)
		}
	})
	t.Run("the figures of a queue of any kind", func(t *testing.T) {
		s.t = t
		type order struct{ Number int }
		q := coord.NewPriorityQueue(s.next, s.path+"/orders", &coord.QueueOptions[order]{MaxAttempts: 1})
		for n := range 5 {
			if _, err := q.Put(t.Context(), int64(n), order{n}); err != nil {
				t.Fatal(err)
			}
		}
		first, err := q.Take(t.Context())
		if err == nil {
			err = first.Nack(0) // leaves its priority without items
		}
		if err != nil {
			t.Fatal(err)
		}
		second, err := q.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text := s.output("queue", s.path+"/orders")
		if want := "ready 3\nclaimed 1\ndelayed 0\ndead 1\noldest "; !strings.HasPrefix(text, want) || !strings.HasSuffix(text, "\nwaiting 0\nbuckets 4\nunread 0\n") {
			t.Errorf("%q, want %q…", text, want)
		}
		if err := second.Release(); err != nil {
			t.Fatal(err)
		}
		var f figures
		if err := json.Unmarshal([]byte(s.output("queue", "-json", s.path+"/orders")), &f); err != nil {
			t.Fatal(err)
		}
		if f.Oldest <= 0 || f.Oldest > 3600 {
			t.Errorf("the oldest item is %v s old", f.Oldest)
		}
		if f.Oldest = 0; f != (figures{Ready: 4, Dead: 1, Buckets: 4}) {
			t.Errorf("%+v", f)
		}
	})
	t.Run("the items of a queue that wait for another attempt", func(t *testing.T) {
		s.t = t
		q := coord.NewPriorityQueue[string](s.next, s.path+"/slow", nil)
		var ids []string
		for n, cause := range []error{errors.New("no such host"), nil, errors.New("over\tquota")} {
			_, err := q.Put(t.Context(), int64(n), "secret")
			if err != nil {
				t.Fatal(err)
			}
			item, err := q.Take(t.Context())
			if err == nil {
				err = item.NackCause(time.Duration(3-n)*time.Hour, cause)
			}
			if err != nil {
				t.Fatal(err)
			}
			ids = append([]string{item.ID}, ids...)
		}
		lines := strings.Split(s.output("queue", "retries", s.path+"/slow"), "\n")
		if len(lines) != 5 || strings.Join(strings.Fields(lines[0]), " ") != "id attempts next error" {
			t.Fatalf("%q", lines)
		}
		for i, text := range []string{`"over\tquota"`, "-", `"no such host"`} {
			if !strings.HasPrefix(lines[i+1], ids[i]+"  1  ") || !strings.HasSuffix(lines[i+1], "Z  "+text) {
				t.Errorf("%q, want %s with %s", lines[i+1], ids[i], text)
			}
		}
		var list []retry
		if err := json.Unmarshal([]byte(s.output("queue", "retries", "--limit", "2", "-json", s.path+"/slow")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != 2 || list[0].ID != ids[0] || list[0].Attempts != 1 || list[0].Error != "over\tquota" || list[1].Error != "" ||
			list[1].Next.Sub(list[0].Next).Round(time.Hour) != time.Hour || time.Until(list[0].Next).Round(time.Hour) != time.Hour {
			t.Errorf("%+v", list)
		}
	})
	t.Run("inspect prints JSON", func(t *testing.T) {
		s.t = t
		h, err := coord.NewMutex(s.next, s.path+"/m", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer h.Release()
		var in inspect.Report
		if err := json.Unmarshal([]byte(s.output("inspect", "-json", s.path+"/m")), &in); err != nil {
			t.Fatal(err)
		}
		if in.Recipe != "mutex" || len(in.Mutex.Contenders) != 1 || in.Mutex.Contenders[0].Token != h.Token() {
			t.Errorf("%+v", in)
		}
	})
	t.Run("watch prints the changes", func(t *testing.T) {
		s.t = t
		v := coord.NewValue[int](s.next, s.path+"/w/v", nil)
		if _, err := v.Set(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		x, lines := s.watching("watch", "-json", "-data", s.path+"/w")
		next := func(event, path, data string) {
			t.Helper()
			select {
			case line := <-lines:
				var c change
				if err := json.Unmarshal([]byte(line), &c); err != nil {
					t.Fatal(err)
				}
				if c.Event != event || c.Path != s.path+path || string(c.Data) != data || time.Since(c.At).Abs() > time.Hour {
					t.Errorf("%s, want %s of %s with %q", line, event, path, data)
				}
			case <-time.After(limit):
				t.Fatalf("%s of %s was never printed: %s", event, path, x.stderr.String())
			}
		}
		next("there", "/w", "coord recipe: directory")
		next("there", "/w/v", "1")
		if _, err := v.Set(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		next("changed", "/w/v", "2")
		now, err := v.Get(t.Context())
		if err == nil {
			err = v.Delete(t.Context(), now)
		}
		if err != nil {
			t.Fatal(err)
		}
		next("deleted", "/w/v", "")
		if err := x.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if got := x.status(); got != 130 {
			t.Errorf("status %d: %s", got, x.stderr.String())
		}
	})
}

// output runs coordctl to its end, which must be a success, and returns its output.
func (s *stage) output(args ...string) string {
	s.t.Helper()
	x := s.start(args...)
	if got := x.status(); got != 0 {
		s.t.Fatalf("coordctl %v: status %d: %s", args, got, x.stderr.String())
	}
	return x.stdout.String()
}

// watching starts coordctl, and returns its lines as they come.
func (s *stage) watching(args ...string) (*ctl, <-chan string) {
	s.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	lines := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for in := bufio.NewScanner(r); in.Scan(); {
			lines <- in.Text()
		}
	}()
	s.t.Cleanup(func() { <-done; r.Close() })
	x := s.startTo(w, args...)
	w.Close()
	return x, lines
}
