package backendtest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// The tests in this file test the suite: each defect is put into the memory backend, and the
// leaf for that defect must detect it.

// A mutant is a memory session with a defect in it.
type mutant struct {
	backend.Session
	get      func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error)
	children func(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error)
	exists   func(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error)
	arm      func(ctx context.Context, since int64, targets []backend.Target) error
	sync     func(ctx context.Context, path string) error
	tree     func(ctx context.Context, path string, w *backend.TreeWatch) error
	many     func(ctx context.Context, reads []backend.Read) ([]backend.ReadResult, error)
	commit   func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error)
	close    func() error
	err      func() error
	done     func() <-chan struct{}
}

func (m *mutant) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	if m.get != nil {
		return m.get(ctx, path, w)
	}
	return m.Session.Get(ctx, path, w)
}

func (m *mutant) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	if m.children != nil {
		return m.children(ctx, path, w)
	}
	return m.Session.Children(ctx, path, w)
}

func (m *mutant) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	if m.exists != nil {
		return m.exists(ctx, path, w)
	}
	return m.Session.Exists(ctx, path, w)
}

func (m *mutant) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	if m.arm != nil {
		return m.arm(ctx, since, targets)
	}
	return m.Session.Arm(ctx, since, targets...)
}

func (m *mutant) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	if m.tree != nil {
		return m.tree(ctx, path, w)
	}
	return m.Session.WatchTree(ctx, path, w)
}

func (m *mutant) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	if m.many != nil {
		return m.many(ctx, reads)
	}
	return m.Session.ReadMany(ctx, reads...)
}

func (m *mutant) Sync(ctx context.Context, path string) error {
	if m.sync != nil {
		return m.sync(ctx, path)
	}
	return m.Session.Sync(ctx, path)
}

func (m *mutant) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if m.commit != nil {
		return m.commit(ctx, ops...)
	}
	return m.Session.Commit(ctx, ops...)
}

func (m *mutant) Close() error {
	if m.close != nil {
		return m.close()
	}
	return m.Session.Close()
}

func (m *mutant) Err() error {
	if m.err != nil {
		return m.err()
	}
	return m.Session.Err()
}

func (m *mutant) Done() <-chan struct{} {
	if m.done != nil {
		return m.done()
	}
	return m.Session.Done()
}

// watched passes the watch of every read of the mutant through change.
func (m *mutant) watched(change func(path string, children bool, w *backend.Watch) *backend.Watch) {
	pass := func(path string, children bool, w *backend.Watch) *backend.Watch {
		if w == nil {
			return nil
		}
		return change(path, children, w)
	}
	m.get = func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
		return m.Session.Get(ctx, path, pass(path, false, w))
	}
	m.exists = func(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
		return m.Session.Exists(ctx, path, pass(path, false, w))
	}
	m.children = func(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
		return m.Session.Children(ctx, path, pass(path, true, w))
	}
	m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
		targets = slices.Clone(targets)
		for i, t := range targets {
			targets[i].Watch = pass(t.Path, t.Children, t.Watch)
			if targets[i].Watch == nil && t.Watch != nil {
				targets[i].Watch = backend.NewWatch() // without a waiter
			}
		}
		return m.Session.Arm(ctx, since, targets...)
	}
}

// relay returns a watch to arm in place of w. When it has fired, fire returns the kind with
// which w fires; zero for none.
func relay(w *backend.Watch, fire func(backend.Kind) backend.Kind) *backend.Watch {
	below := backend.NewWatch()
	stop := make(chan struct{})
	w.Arm(func(*backend.Watch) { below.Stop(); close(stop) })
	go func() {
		select {
		case <-below.Fired():
			if kind := fire(below.Kind()); kind != 0 {
				w.Fire(kind)
			}
		case <-stop:
		case <-time.After(time.Hour): // an unarmed watch; waiting is free in a bubble
		}
	}()
	return below
}

// treed passes the changes of every tree watch through change. In a bubble they arrive
// before the next read that returns.
func (m *mutant) treed(change func(path string, all []backend.TreeChange, over bool) ([]backend.TreeChange, bool)) {
	m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
		below := backend.NewTreeWatch(0)
		if err := m.Session.WatchTree(ctx, path, below); err != nil {
			w.Stop()
			return err
		}
		relayTree(w, below, func(all []backend.TreeChange, over bool) ([]backend.TreeChange, bool) { return change(path, all, over) })
		return nil
	}
	pause := func() { time.Sleep(2 * time.Nanosecond) } // ends when everything else waits, and relayTree is done
	m.get = func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
		defer pause()
		return m.Session.Get(ctx, path, w)
	}
	m.exists = func(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
		defer pause()
		return m.Session.Exists(ctx, path, w)
	}
	m.children = func(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
		defer pause()
		return m.Session.Children(ctx, path, w)
	}
	m.sync = func(ctx context.Context, path string) error {
		defer pause()
		return m.Session.Sync(ctx, path)
	}
}

// relayTree tells w what below has told, as change returns it.
func relayTree(w, below *backend.TreeWatch, change func(all []backend.TreeChange, over bool) ([]backend.TreeChange, bool)) {
	stop := make(chan struct{})
	w.Arm(func(*backend.TreeWatch) { below.Stop(); close(stop) })
	go func() {
		for {
			select {
			case <-below.Ready():
			case <-stop:
				return
			case <-time.After(time.Hour): // a watch that nothing stops
				return
			}
			time.Sleep(time.Nanosecond) // until the service has sent all events of a commit
			all, over := change(below.Take())
			for _, c := range all {
				if !w.Tell(c) {
					below.Stop()
					return
				}
			}
			if over {
				w.Over()
				return
			}
		}
	}()
}

// mutantLink opens mutants.
type mutantLink struct {
	Link
	spoil func(l Link, m *mutant)
}

func (l mutantLink) Open(ctx context.Context) (backend.Session, error) {
	s, err := l.Link.Open(ctx)
	if err != nil {
		return nil, err
	}
	m := &mutant{Session: s}
	l.spoil(l.Link, m)
	return m, nil
}

func (l mutantLink) SetLatency(d time.Duration) { l.Link.(slow).SetLatency(d) }

type mutantService struct {
	*memory.Store
	spoil func(l Link, m *mutant)
}

func (s mutantService) Root() string          { return "/" }
func (s mutantService) Link(name string) Link { return mutantLink{s.Store.Link(name), s.spoil} }

func mutantHarness(spoil func(l Link, m *mutant)) Harness {
	const timeout = time.Second
	return Harness{
		New: func(t *testing.T) Service {
			t.Cleanup(func() { time.Sleep(3 * time.Hour) }) // inside the bubble, so that relays end
			return mutantService{memory.New(&memory.Options{SessionTimeout: timeout}), spoil}
		},
		Leaf:           synctest.Test,
		SessionTimeout: timeout,
	}
}

// A recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
}

func (r *recorder) fail(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, s)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

func (r *recorder) Error(args ...any)            { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, args ...any) { r.fail(fmt.Sprintf(f, args...)) }
func (r *recorder) Fatal(args ...any)            { r.fail(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, args ...any) { r.fail(fmt.Sprintf(f, args...)); runtime.Goexit() }
func (r *recorder) FailNow()                     { r.fail("failed"); runtime.Goexit() }

// failures runs one leaf and returns its failures.
func failures(t *testing.T, h Harness, groupName, leafName string) []string {
	t.Helper()
	for _, g := range groups() {
		for _, l := range g.leaves {
			if g.name != groupName || l.name != leafName {
				continue
			}
			var r *recorder
			h.leaf(t, func(t *testing.T) {
				r = &recorder{TB: t}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					l.run(newScene(t, r, h))
				}()
				<-ended
			})
			return r.failures
		}
	}
	t.Fatalf("there is no leaf %s/%s", groupName, leafName)
	return nil
}

func TestTheSuiteFindsEachDefect(t *testing.T) {
	for _, m := range defects()[1:] {
		t.Run(m.name, func(t *testing.T) {
			got := failures(t, mutantHarness(m.make), m.group, m.leaf)
			if len(got) == 0 {
				t.Fatalf("%s/%s has not detected it", m.group, m.leaf)
			}
			t.Logf("%s/%s: %s", m.group, m.leaf, strings.Join(got, "; "))
			if sound := failures(t, mutantHarness(defects()[0].make), m.group, m.leaf); len(sound) > 0 {
				t.Errorf("%s/%s fails on a correct backend: %v", m.group, m.leaf, sound)
			}
		})
	}
}

func TestDifferFindsEachDefectAndShortensTheScript(t *testing.T) {
	sound := mutantHarness(defects()[0].make)
	for _, name := range []string{
		"every event is a deletion", "results are in the wrong order", "the first operation is always to blame",
		"a commit is not atomic", "empty data is not nil", "an uncertain commit is repeated", "get on a missing node is armed",
		"Arm ignores since", "Arm compares the zxid of the data for the children", "Arm reports Deleted for a node that was missing",
		"Arm arms only the first of its watches", "Arm stops at a missing node",
		"a tree reports its siblings", "a tree reports changes of children's lists", "a tree of a missing node is not armed",
		"a tree ends with its node", "a deletion and a creation are one change",
		"one change of a tree in three is lost",
		"a missing node fails the whole of ReadMany", "ReadMany returns its results in the wrong order", "ReadMany returns empty data that is not nil",
	} {
		t.Run(name, func(t *testing.T) {
			i := slices.IndexFunc(defects(), func(d defect) bool { return d.name == name })
			spoilt := mutantHarness(defects()[i].make)
			synctest.Test(t, func(t *testing.T) {
				script := newScript(7, 1500, flavour{})
				found, _ := compare(t, sound, spoilt, script)
				if found == nil {
					t.Fatal("not found")
				}
				short, runs := shrink(t, sound, spoilt, script[:found.step+1], found)
				t.Logf("step %d, shortened in %d runs to:\n%v", found.step, runs, short)
				if len(short.script) > 12 {
					t.Errorf("the script still has %d steps", len(short.script))
				}
				if again, _ := compare(t, sound, spoilt, short.script); again == nil {
					t.Error("the short script shows no difference")
				}
			})
		})
	}
}

func TestOnlyOpenClausesCanBeKeptOtherwise(t *testing.T) {
	for _, x := range []struct {
		unlike   []string
		misnamed string
	}{
		{nil, ""},
		{[]string{"watch after a break/(may) all fire LookAgain, though nothing happened"}, ""},
		{[]string{"lost packets/(may) leave a commit uncertain that the service refused", "loss/stays the reason after Close"}, "loss/stays the reason after Close"},
		{[]string{"(may) nothing"}, "(may) nothing"},
	} {
		if got := (Harness{Unlike: x.unlike}).misnamed(); got != x.misnamed {
			t.Errorf("%q: misnamed %q, want %q", x.unlike, got, x.misnamed)
		}
	}
}

func TestAClauseIsExcusedByNameAndReason(t *testing.T) {
	const clause = "loss/stays the reason after Close"
	for _, x := range []struct {
		excused    map[string]string
		misexcused string
	}{
		{nil, ""},
		{map[string]string{clause: "a defect"}, ""},
		{map[string]string{clause: ""}, clause},
		{map[string]string{clause + "?": "a defect"}, clause + "?"},
	} {
		if got := (Harness{Excused: x.excused}).misexcused(); got != x.misexcused {
			t.Errorf("%q: misexcused %q, want %q", x.excused, got, x.misexcused)
		}
	}
}

// lean makes a session show nothing that is advisory.
func lean(_ Link, m *mutant) {
	without := func(stat backend.Stat) backend.Stat {
		stat.Pzxid, stat.Cversion, stat.Container = 0, 0, false
		return stat
	}
	m.get = func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
		data, stat, err := m.Session.Get(ctx, path, w)
		return data, without(stat), err
	}
	m.exists = func(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
		stat, err := m.Session.Exists(ctx, path, w)
		return without(stat), err
	}
	m.children = func(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
		names, stat, err := m.Session.Children(ctx, path, w)
		return names, without(stat), err
	}
	m.many = func(ctx context.Context, reads []backend.Read) ([]backend.ReadResult, error) {
		results, err := m.Session.ReadMany(ctx, reads...)
		for i := range results {
			results[i].Stat = without(results[i].Stat)
		}
		return results, err
	}
	m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
		results, err := m.Session.Commit(ctx, ops...)
		for i := range results {
			results[i].Stat = without(results[i].Stat)
		}
		return results, err
	}
}

// A service with revisions that counts no changes of children keeps every clause but those that
// it may keep otherwise.
func TestAServiceWithRevisionsKeepsTheContract(t *testing.T) {
	h := mutantHarness(lean)
	h.New = func(t *testing.T) Service {
		return mutantService{memory.New(&memory.Options{SessionTimeout: h.SessionTimeout, Revisions: true, Without: backend.Containers}), lean}
	}
	h.Unlike = []string{
		"sequence/(may) is the parent's own and starts again with a new parent",
		"sequence/(may) goes on within one commit",
		"stat/(may) shows a change of the children in Pzxid, Cversion and NumChildren only",
		"stat/(may) shows the end of an ephemeral child",
	}
	Run(t, h)
}
