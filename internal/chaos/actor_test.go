//go:build linux

package chaos

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zkproxy"
)

// The roles of the processes of a run.
const (
	clientRole   = "client"
	resourceRole = "resource"
	disksRole    = "disks"
)

// actor is a place for a client process; the processes in it run one after the other.
type actor struct {
	r        *run
	index    int
	proxies  []*zkproxy.Proxy // one in front of each server, only for this client
	launches int

	mu     sync.Mutex
	now    *proc.Worker[report] // the present process; nil before the first
	name   string               // of the present process
	before map[string]int64     // calls of those before it
}

func newActor(t *testing.T, r *run, index int) *actor {
	t.Helper()
	a := &actor{r: r, index: index}
	proxy := zkproxy.New
	if r.other != nil {
		proxy = zkproxy.NewRaw
	}
	for _, addr := range r.servers().Addrs() {
		p, err := proxy(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		a.proxies = append(a.proxies, p)
	}
	t.Cleanup(func() {
		if w := a.worker(); w != nil {
			w.Kill()
		}
	})
	return a
}

// launch starts the next process.
func (a *actor) launch() error {
	a.launches++
	spec := clientSpec{
		Name:     fmt.Sprintf("client%d.%d", a.index, a.launches),
		Number:   a.r.processes.Add(1),
		Index:    a.index,
		Site:     sites[a.index%len(sites)],
		Resource: a.r.socket,
		Seed:     a.r.seed ^ uint64(a.index)<<32 ^ uint64(a.launches)<<40,
		Slowness: slowness(),
	}
	spec.History = filepath.Join(a.r.dir, spec.Name+".jsonl")
	for _, p := range a.proxies {
		spec.Servers = append(spec.Servers, p.Addr())
	}
	next, err := proc.Start[report](clientRole, spec, nil)
	if err != nil {
		return err
	}
	before := a.progress()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now, a.name, a.before = next, spec.Name, before
	return nil
}

// worker returns the present process.
func (a *actor) worker() *proc.Worker[report] {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// await returns when the present process has sent a kind of report n times.
func (a *actor) await(kind string, n int, atMost time.Duration) error {
	w, failed := a.worker(), ""
	err := w.Await(atMost, func(all []report) bool {
		k := 0
		for _, r := range all {
			switch r.Kind {
			case kind:
				k++
			case "failed":
				failed = r.Text
			}
		}
		return k >= n || failed != ""
	})
	switch {
	case failed != "":
		return fmt.Errorf("%s: %s", a.name, failed)
	case err != nil:
		return fmt.Errorf("%s, %q: %w within %v %s", a.name, kind, err, atMost, w.Stderr())
	}
	return nil
}

// heard returns how often the present process has sent a kind of report.
func (a *actor) heard(kind string) (n int) {
	for _, r := range a.worker().Reports() {
		if r.Kind == kind {
			n++
		}
	}
	return n
}

// latest returns the latest report of a kind by the present process, or an empty one.
func (a *actor) latest(kind string) report { return last(a.worker().Reports(), kind) }

func last(all []report, kind string) report {
	for _, r := range slices.Backward(all) {
		if r.Kind == kind {
			return r
		}
	}
	return report{}
}

// session returns the session of the present process, or 0.
func (a *actor) session() int64 { return a.latest("progress").Session }

func (a *actor) tell(command string) { _ = a.worker().Tell(command) } // it fails if the process has ended

// look returns the content of the client's cache, and the group as the client sees it.
func (a *actor) look() (report, error) {
	n := a.heard("copy")
	a.tell("look")
	if err := a.await("copy", n+1, limit); err != nil {
		return report{}, err
	}
	return a.latest("copy"), nil
}

// progress returns the number of successful calls, by workload.
func (a *actor) progress() map[string]int64 {
	a.mu.Lock()
	sum, w := maps.Clone(a.before), a.now
	a.mu.Unlock()
	if w == nil {
		return make(map[string]int64)
	}
	for work, n := range last(w.Reports(), "progress").Counts {
		sum[work] += n
	}
	return sum
}

// quit makes the process end by itself.
func (a *actor) quit() error {
	err := a.worker().Quit(limit)
	if failed := a.latest("failed").Text; failed != "" || err != nil {
		return fmt.Errorf("%s: %v %s", a.name, err, failed)
	}
	return nil
}

// each applies do to all proxies of the client.
func (a *actor) each(do func(p *zkproxy.Proxy)) {
	for _, p := range a.proxies {
		do(p)
	}
}
