//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

var update = flag.Bool("update", false, "rewrite the stored output of coordctl, and what docs/coordctl.md shows of it")

// scene is a namespace with every recipe in use.
type scene struct {
	*servers
	t         *testing.T
	name      string
	namespace string // name, or another one if an earlier run of the test has used it
	dir       string // where coordctl is
	clients   map[string]*coord.Client
}

// newScene puts a scene on the servers.
func newScene(t *testing.T, v *servers, name string) *scene {
	t.Helper()
	s := &scene{servers: v, t: t, name: name, namespace: fresh(name), dir: t.TempDir(), clients: make(map[string]*coord.Client)}
	s.script("coordctl", `exec "`+os.Args[0]+`" -as-coordctl "$@"`)
	s.script("backup.sh", "echo backup with token $COORD_TOKEN of $COORD_PATH")
	ctx := t.Context()
	// lines N COMMAND… prints N lines of the output of a command that does not end.
	s.script("lines", `n=$1; shift; mkfifo out.$$; "$@" >out.$$ 2>&1 & pid=$!
exec 3<out.$$; rm out.$$
while [ $n -gt 0 ] && read -r line <&3; do echo "$line"; n=$((n-1)); done
kill -TERM $pid; wait $pid`)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Numbers of nodes and transactions have at least two digits, see normal.
	for range 30 {
		_, err := coord.NewCounter(s.client("setup"), "/counters/orders").Add(ctx, 0)
		must(err)
	}
	background := func(f func(ctx context.Context)) {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { f(ctx) })
		t.Cleanup(func() { cancel(); wg.Wait() })
	}
	lock := func(id string) *coord.Mutex {
		return coord.NewMutex(s.client(id), "/locks/report", &coord.MutexOptions{ID: id})
	}
	first, second := lock("web-1"), lock("web-2")
	granted := make(chan struct{}, 1)
	background(func(ctx context.Context) { // holds the lock until it is asked to release it
		for ctx.Err() == nil {
			h, err := first.Lock(ctx)
			if err != nil {
				return
			}
			select {
			case granted <- struct{}{}:
			default:
			}
			select {
			case <-h.Revoked():
			case <-h.Done():
			case <-ctx.Done():
			}
			h.Release()
		}
	})
	<-granted
	background(func(ctx context.Context) {
		if h, err := second.Lock(ctx); err == nil {
			<-ctx.Done()
			h.Release()
		}
	})
	eventually(t, "the second is queued", func() bool {
		list, err := first.Contenders(ctx)
		return err == nil && len(list) == 2
	})
	r, err := coord.NewRWMutex(s.client("web-1"), "/locks/index", &coord.RWMutexOptions{ID: "reader"}).RLock(ctx)
	must(err)
	t.Cleanup(func() { r.Release() })
	term, err := coord.NewElection(s.client("node-a"), "/leaders/scheduler", &coord.ElectionOptions{ID: "node-a"}).Campaign(ctx)
	must(err)
	must(term.Announce(ctx, []byte("10.0.0.1:80")))
	m, err := coord.NewGroup(s.client("node-a"), "/services/mail", &coord.GroupOptions[string]{Codec: coord.Text()}).Join(ctx, "node-a", "10.0.0.1:25")
	must(err)
	t.Cleanup(func() { m.Leave() })
	s.letters()
	_, err = coord.NewValue[int](s.client("setup"), "/config/old", nil).Set(ctx, 1)
	must(err)
	s.orphan("/tx/orders", "order-4711", "db")
	owner := make(chan struct{}, 10)
	shards := coord.NewShards(s.client("node-a"), "/shards/timers", 2, &coord.ShardsOptions{ID: "node-a"})
	background(func(ctx context.Context) {
		_ = shards.Run(ctx, func(ctx context.Context, _ *coord.Shard) error { owner <- struct{}{}; <-ctx.Done(); return nil })
	})
	<-owner
	<-owner
	return s
}

// schedule begins a schedule: one run has failed, and another lasts as long as the test.
func (s *scene) schedule() {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	s.t.Cleanup(func() { stop(); wg.Wait() })
	jobs := coord.NewSchedule(s.client("node-a"), "/jobs/report", coord.Every(1_000_000*time.Hour), &coord.ScheduleOptions{ID: "node-a"})
	lasts := make(chan struct{})
	wg.Go(func() {
		n := 0
		_ = jobs.Run(ctx, func(ctx context.Context, _ *coord.Run) error {
			if n++; n == 1 {
				return errors.New("no room\n")
			}
			close(lasts)
			<-ctx.Done()
			return ctx.Err()
		})
	})
	for range 2 {
		if _, err := jobs.RunNow(ctx); err != nil {
			s.t.Fatal(err)
		}
	}
	<-lasts
}

// client returns the client of a process. Only the goroutine of the test calls it.
func (s *scene) client(name string) *coord.Client {
	s.t.Helper()
	if c := s.clients[name]; c != nil {
		return c
	}
	c, err := coord.Open(context.Background(), s.service, &coord.Options{Namespace: s.namespace})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	s.clients[name] = c
	return c
}

// letters makes two dead letters in a queue, and one in a priority queue.
func (s *scene) letters() {
	s.t.Helper()
	ctx, c := s.t.Context(), s.client("setup")
	o := &coord.QueueOptions[string]{Codec: coord.Text(), MaxAttempts: 1}
	mail := coord.NewQueue(c, "/queues/mail", o)
	jobs := coord.NewPriorityQueue(c, "/queues/jobs", o)
	_, err := mail.PutAll(ctx, "bad mail", "worse mail")
	if err == nil {
		_, err = jobs.Put(ctx, 7, "bad job")
	}
	for _, q := range []*coord.Consumer[string]{&mail.Consumer, &mail.Consumer, &jobs.Consumer} {
		var item *coord.Item[string]
		if err == nil {
			item, err = q.Take(ctx)
		}
		if err == nil {
			err = item.NackCause(0, errors.New("no such host"))
		}
	}
	if err == nil {
		_, err = mail.Put(ctx, "good mail")
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// orphan creates a transaction of one site, which has voted yes, whose proposer is dead.
func (s *scene) orphan(path, id, site string) {
	s.t.Helper()
	ctx := s.t.Context()
	b, err := s.client("setup").Session(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	const mark = "00000000-0000-8000-8000-000000000001"
	full := s.namespace + path
	node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }
	_, err = b.Commit(ctx, node(s.namespace+"/tx", ""), node(full, ""), node(full+"/sites", ""), node(full+"/sites/"+site, ""),
		node(full+"/tx", ""), node(full+"/tx/"+id, `{"mark":"`+mark+`","sites":["`+site+`"],"deadline":4102444800000,"payload":"InAi"}`),
		node(full+"/tx/"+id+"/open-"+mark, ""), node(full+"/sites/"+site+"/"+layout.BranchName(id, mark), ""))
	var record backend.Stat
	if err == nil {
		record, err = b.Exists(ctx, full+"/tx/"+id, nil)
	}
	if err == nil {
		_, err = b.Commit(ctx, node(full+"/tx/"+id+"/"+layout.VoteName(record.Czxid, site), ""))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// script creates a command that the shell of the scene finds.
func (s *scene) script(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		s.t.Fatal(err)
	}
}

// shell returns the command that runs a line of a shell in the scene.
func (s *scene) shell(line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", line)
	cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "COORD_SERVERS="+strings.Join(s.addrs, ","),
		"COORD_BACKEND="+s.backend, "COORD_NAMESPACE="+s.namespace, "TERM=xterm")
	cmd.Dir = s.dir
	return cmd
}

// run runs a line, and returns its output, with name for the namespace, and its exit status.
func (s *scene) run(line string) (string, int) {
	s.t.Helper()
	cmd := s.shell(line)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := cmd.Start()
	if err == nil {
		late := time.AfterFunc(limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		err = cmd.Wait()
		late.Stop()
	}
	if e := (*exec.ExitError)(nil); err != nil && !errors.As(err, &e) {
		s.t.Fatal(err)
	}
	return strings.ReplaceAll(out.String(), s.namespace, s.name), cmd.ProcessState.ExitCode()
}

// normal replaces what differs from run to run.
func normal(text string) string {
	for _, r := range []struct{ pattern, by string }{
		{`\d{4}-\d\d-\d\dT[\d:.]+Z`, "TIME"},
		{`0x[0-9a-f]+`, "SESSION"},
		{`run-\d+-\d+-[0-9a-f-]{36}`, "RUN"},
		{`[0-9a-f]{8}-[0-9a-f-]{27}`, "ID"},
		{`127\.0\.0\.1:\d+`, "ADDR"},
		{`(zookeeper|etcd|postgres) \d+(\.\d+)+`, "$1 VERSION"},
		{`(server +ADDR, \w+ VERSION), \w+`, "$1, MODE"},
		{`(ok +server .*\n)(ok +server .*\n)+`, "$1"}, // of an ensemble
		{`in use: \d+ of \d+`, "in use: N of N"},
		{`for (\d+m)?\d+s`, "for AGE"},
		{`(\d+m)?\d+s ago`, "AGE ago"},
		{`(released it, or lost it, after) .*`, "$1 DURATION"},
		{`[+-]?\d+\.\d+ ms`, "F ms"},
		{`(least|most|oldest) \d+\.\d+`, "$1 F"},
		{`\b([2-9]\d|\d{3,})\b`, "N"}, // tokens
		{`([^ \n]) {2,}`, "$1  "},
		{`(TIME  |"took": ")[\d.]+m?s`, "${1}TOOK"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.by)
	}
	return text
}
