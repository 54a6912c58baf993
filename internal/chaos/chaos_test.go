//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

func TestMain(m *testing.M) {
	if role, arg, ok := strings.Cut(os.Getenv(roleEnv), ":"); ok {
		switch role {
		case "client":
			os.Exit(clientMain(arg))
		case "resource":
			os.Exit(resourceMain(arg))
		case "disks":
			os.Exit(disksMain(arg))
		}
		os.Exit(2)
	}
	goleak.VerifyTestMain(m)
}

// The ensemble and its clients. A margin of (syncLimit + 2) ticks is what the
// package promises its order for: Done of a lost hold before the next grant.
const (
	tick            = 500 * time.Millisecond
	syncLimit       = 2
	initLimit       = 20
	sessionTimeout  = 4 * time.Second
	lossMargin      = (syncLimit + 2) * tick
	lease           = sessionTimeout - lossMargin
	mostConnections = 40
	slowFlush       = 300 * time.Millisecond
	clients         = 4
)

// limit is how long the test waits for something that must happen. It is generous:
// machines that run tests are busy.
const limit = 60 * time.Second

// run is one run of the whole.
type run struct {
	t         *testing.T
	e         *zktest.Ensemble
	dir       string // of the histories
	socket    string // of the resource
	seed      uint64
	disks     *disks
	brake     *brake
	actors    []*actor
	processes atomic.Int64
	emptied   int // servers, by the nemesis
}

// length is how long the nemesis rages, at least.
func length(t *testing.T) time.Duration {
	t.Helper()
	if text := os.Getenv("COORD_CHAOS"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if os.Getenv("COORD_LONG") == "1" {
		return 10 * time.Minute
	}
	return 45 * time.Second
}

func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("COORD_SEED")
	if text == "" {
		return rand.Uint64()
	}
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEveryRecipeStandsAllFaults is the run. Whatever it finds is in the summary.
func TestEveryRecipeStandsAllFaults(t *testing.T) {
	zktest.Require(t)
	r := &run{t: t, dir: historyDir(t), seed: seed(t)}
	t.Logf("COORD_SEED=%d", r.seed)
	rec, err := newRecorder(filepath.Join(r.dir, "nemesis.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := newNemesis(r, rec)
	r.start(n)
	began := time.Now()
	if err := n.rage(t.Context(), r.seed, length(t)); err != nil {
		t.Errorf("the nemesis: %v", err)
	}
	raged := time.Since(began)
	if err := n.heal(); err != nil {
		t.Fatal(err)
	}
	final := r.conclude()
	if err := keepLogs(r.e, r.dir); err != nil {
		t.Fatal(err)
	}
	f := judgeAll(t, r.dir)
	f.wrong = append(f.wrong, final...)
	r.summarize(f, n, raged)
}

func judgeAll(t *testing.T, dir string) *findings {
	t.Helper()
	processes, err := readHistories(dir)
	if err != nil {
		t.Fatal(err)
	}
	log, err := readLogs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return judge(processes, log)
}

// TestAKeptRun judges a run again whose histories were kept.
func TestAKeptRun(t *testing.T) {
	dir := os.Getenv("COORD_CHAOS_JUDGE")
	if dir == "" {
		t.Skip("COORD_CHAOS_JUDGE names no directory of histories")
	}
	f := judgeAll(t, dir)
	t.Logf("%+v", *f)
	if len(f.wrong) > 0 {
		t.Errorf("%d violations:\n%s", len(f.wrong), shorten(f.wrong, 100))
	}
}

// historyDir is where the histories go. They stay when the run fails.
func historyDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv("COORD_CHAOS_KEEP"), "coord-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() || os.Getenv("COORD_CHAOS_KEEP") != "" {
			t.Logf("the histories are in %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return dir
}

// start starts everything.
func (r *run) start(n *nemesis) {
	t := r.t
	t.Helper()
	o := &zktest.Options{
		Servers: 3, TickTime: tick, SyncLimit: syncLimit, InitLimit: initLimit,
		MaxClientCnxns: mostConnections, ForceSync: true,
		Config: map[string]string{
			"fsync.warningthresholdms": strconv.FormatInt(int64(slowFlush/time.Millisecond/2), 10),
			"snapCount":                "600", // a snapshot every second or two, see rested
		},
		// So that a server that was away is told what it has missed change by change,
		// and its log has all of it.
		JavaArgs: []string{"-Dzookeeper.commitLogCount=50000"},
	}
	var err error
	if r.disks, err = newDisks(t); err != nil {
		n.skipped["full disk"] = err
	} else {
		o.DataDir = r.disks.dataDir
	}
	if r.brake, err = newBrake(t); err != nil {
		n.skipped["slow disk"] = err
	} else {
		o.Env = r.brake.env
	}
	r.e = zktest.Run(t, o)
	r.socket = newResource(t, r.dir)
	s := r.session()
	for _, p := range []string{treePath, "/values"} {
		if _, err := s.Commit(t.Context(), backend.Create(p, nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	for i := range clients {
		a := newActor(t, r, i)
		if err := a.launch(); err != nil {
			t.Fatal(err)
		}
		r.actors = append(r.actors, a)
	}
	for _, a := range r.actors {
		if err := a.await("opened", 1, limit); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.goesOn(t.Context(), "at the start"); err != nil {
		t.Fatal(err)
	}
}

// session opens a session of the test's own.
func (r *run) session() backend.Session {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	s, err := openAt(ctx, r.e.Addrs()...)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func openAt(ctx context.Context, addrs ...string) (backend.Session, error) {
	return zookeeper.New(addrs, &zookeeper.Options{SessionTimeout: 20 * tick}).Open(ctx)
}

// progress is how many calls of each workload were ok, of all clients but one.
func (r *run) progress(but *actor) map[string]int64 {
	sum := make(map[string]int64)
	for _, a := range r.actors {
		if a != but {
			for w, n := range a.progress() {
				sum[w] += n
			}
		}
	}
	return sum
}

// goesOn returns when every workload has gone on.
func (r *run) goesOn(ctx context.Context, when string) error {
	was := r.progress(nil)
	var stuck []string
	err := until("every workload goes on "+when, limit, func() bool {
		is := r.progress(nil)
		stuck = nil
		for _, w := range works {
			// One that was begun since, in each client.
			if is[w] < was[w]+clients+1 {
				stuck = append(stuck, w)
			}
		}
		return len(stuck) == 0 || ctx.Err() != nil
	})
	if err != nil {
		return fmt.Errorf("%w: not %v%s", err, stuck, r.ghosts())
	}
	return nil
}

// ghosts says which nodes one server has, for good, and the others do not have. Who
// waits for them waits in vain, and it is not the library's doing.
func (r *run) ghosts() string {
	list := func() (all []map[string]bool) {
		for _, s := range r.e.Servers() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			names := make(map[string]bool)
			if session, err := openAt(ctx, s.Addr()); err == nil {
				for _, dir := range []string{mutexPath, rwPath, semaphorePath + "/requests", electionPath} {
					_ = session.Sync(ctx, dir)
					children, _, _ := session.Children(ctx, dir, nil)
					for _, name := range children {
						names[dir+"/"+name] = true
					}
				}
				session.Close()
			}
			cancel()
			all = append(all, names)
		}
		return all
	}
	first := list()
	time.Sleep(2 * time.Second) // what comes and goes is no ghost
	second := list()
	text := ""
	for i, names := range second {
		for name := range names {
			alone := first[i][name]
			for j := range second {
				alone = alone && (i == j || !first[j][name] && !second[j][name])
			}
			if alone {
				text += fmt.Sprintf("; ONLY SERVER %d HAS %s", i+1, name)
			}
		}
	}
	return text
}

// conclude ends all work, and returns what is wrong then.
func (r *run) conclude() (wrong []string) {
	t := r.t
	t.Helper()
	for _, step := range []struct{ command, answer string }{{"finish", "finished"}, {"drain", "drained"}} {
		for _, a := range r.actors {
			a.tell(step.command)
		}
		for _, a := range r.actors {
			if err := a.await(step.answer, 1, 2*limit); err != nil {
				wrong = append(wrong, "after everything was healed: "+err.Error()+r.ghosts())
			}
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	s := r.session()
	defer s.Close()
	wrong = append(wrong, r.copies(s)...)
	for _, a := range r.actors {
		if err := a.quit(); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	wrong = append(wrong, r.leftovers(s)...)
	r.compareServers()
	return wrong
}

// compareServers tells when the servers have different trees, which is not for this
// library to prevent: a server that was restarted can have applied proposals that
// were never committed, see merge. It helps to understand what else is found.
func (r *run) compareServers() {
	var trees []map[string]nodeIs
	for _, s := range r.e.Servers() {
		ctx, cancel := context.WithTimeout(r.t.Context(), limit)
		session, err := openAt(ctx, s.Addr())
		if err != nil {
			cancel()
			r.t.Errorf("server %d: %v", s.ID(), err)
			return
		}
		all := make(map[string]nodeIs)
		for _, root := range []string{treePath, queuePath, txnPath, "/values", "/locks", electionPath} {
			tree, err := realTree(ctx, session, root)
			if err != nil {
				r.t.Errorf("server %d: %v", s.ID(), err)
			}
			maps.Copy(all, tree)
		}
		session.Close()
		cancel()
		trees = append(trees, all)
	}
	for i, tree := range trees[1:] {
		if d := differs(fmt.Sprintf("server %d", i+2), tree, trees[0]); d != "" {
			r.t.Logf("the servers disagree: %s, by server 1", d)
		}
	}
}

// copies compares the caches with the tree.
func (r *run) copies(s backend.Session) (wrong []string) {
	_ = until("the copies equal the tree", limit, func() bool {
		wrong = nil
		tree, err := realTree(r.t.Context(), s, treePath)
		if err != nil {
			wrong = []string{err.Error()}
			return false
		}
		for _, a := range r.actors {
			got, err := a.look()
			if err != nil {
				wrong = []string{err.Error()}
				return true
			}
			wrong = append(wrong, checkCopy(a.name, got, tree)...)
		}
		return len(wrong) == 0
	})
	return wrong
}

// leftovers returns what is left behind when everybody has gone.
func (r *run) leftovers(s backend.Session) []string {
	ctx := r.t.Context()
	var left []string
	walk := func() error {
		left = nil
		if err := s.Sync(ctx, "/"); err != nil {
			return err
		}
		var visit func(path string) error
		visit = func(path string) error {
			names, stat, err := s.Children(ctx, path, nil)
			if errors.Is(err, backend.ErrNotFound) {
				return nil
			} else if err != nil {
				return err
			}
			if stat.EphemeralOwner != 0 || isLeft(path) {
				left = append(left, path)
			}
			for _, name := range names {
				if path == "/" {
					name = "/" + name
				} else {
					name = path + "/" + name
				}
				if name == "/zookeeper" {
					continue
				}
				if err := visit(name); err != nil {
					return err
				}
			}
			return nil
		}
		return visit("/")
	}
	err := until("nothing is left behind", limit, func() bool { return walk() == nil && len(left) == 0 })
	if err == nil {
		return nil
	}
	slices.Sort(left)
	return []string{fmt.Sprintf("left behind: %q", left)}
}

// isLeft reports whether a node should be gone when nobody uses anything, beside
// those that are ephemeral.
func isLeft(path string) bool {
	parent := path[:strings.LastIndexByte(path, '/')]
	switch parent {
	case mutexPath, rwPath, electionPath, semaphorePath + "/requests", queuePath + "/waiters", queuePath + "/dead/items", txnPath + "/tx":
		return true
	}
	// Items are below their buckets, ballots below their sites.
	above := parent[:max(0, strings.LastIndexByte(parent, '/'))]
	return above == queuePath+"/items" || above == txnPath+"/sites"
}
