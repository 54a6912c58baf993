//go:build linux

package faulttest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/ensemble"
)

// works is a queue and the processes that use it.
type works struct {
	*stage
	path      string
	c         *coord.Client // not affected by faults
	producers []*actor
	consumers []*actor
	all       []*actor // including the killed ones

	read     map[*actor]int    // number of lines already counted
	said     map[string]int    // number of reports by kind
	latest   map[*actor]line   // latest report of each, except phases
	session  map[*actor]int64  // present session of each, or zero
	expired  int               // lost sessions of consumers
	restarts []time.Duration   // restarts of servers
	kills    int               // killed consumers
	cuts     int               // cut connections
	puts     map[*actor]int    // number of values that each producer was told to put
	asked    int               // number of produce commands
	prefetch map[*actor]string // prefetch of each consumer
}

func newWorks(t *testing.T, e servers) *works {
	t.Helper()
	w := &works{
		stage: newStage(t, e),
		read:  make(map[*actor]int), said: make(map[string]int),
		latest: make(map[*actor]line), session: make(map[*actor]int64),
		puts: make(map[*actor]int), prefetch: make(map[*actor]string),
	}
	w.path = fmt.Sprintf("/queues/%d", stages.Add(1))
	c, err := coord.Open(t.Context(), backendAt(e.Addrs(), mostTimeout, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	w.c = c
	return w
}

func (w *works) add(name string, timeout time.Duration) *actor {
	w.t.Helper()
	a := w.start(name, timeout, 0)
	w.all = append(w.all, a)
	return a
}

func (w *works) producer() {
	w.t.Helper()
	w.producers = append(w.producers, w.add(fmt.Sprint("producer ", len(w.producers)), mostTimeout))
}

// consumer starts a consumer. A consumer that will be killed verifies each item, so that it has
// work during which it can be killed.
func (w *works) consumer(timeout time.Duration, prefetch string) *actor {
	w.t.Helper()
	a := w.add(fmt.Sprint("consumer ", len(w.all)), timeout)
	w.prefetch[a] = prefetch
	if timeout == queueTimeout {
		a.tell("check-holds")
	}
	w.consume(a)
	return a
}

func (w *works) consume(a *actor) { a.tell("consume " + w.path + " " + w.prefetch[a]) }

// produce makes the producers put n values, and does not wait for them.
func (w *works) produce(n int) {
	for i, a := range w.producers {
		k := n / len(w.producers)
		if i < n%len(w.producers) {
			k++
		}
		a.tell(fmt.Sprintf("produce %s %d %d %d", w.path, i, w.puts[a], k))
		w.puts[a] += k
		w.asked++
	}
}

// look counts the reports since the last call.
func (w *works) look() {
	w.t.Helper()
	for _, a := range w.all {
		news := a.Reports()[w.read[a]:]
		w.read[a] += len(news)
		for _, l := range news {
			w.said[l.Kind]++
			switch {
			case l.Kind == "failed":
				w.t.Fatalf("%s failed: %s", a.name, l.Text)
			case l.Kind != "phase":
				w.latest[a] = l
			case l.Text == coord.PhaseConnected.String():
				w.session[a] = l.Session
			case l.Text == coord.PhaseLost.String():
				w.session[a] = 0
				if !slices.Contains(w.producers, a) {
					w.expired++
				}
			}
		}
	}
}

// until waits until all processes together have reported a kind so often.
func (w *works) until(kind string, n int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d times %q", n, kind), func() bool {
		w.look()
		return w.said[kind] >= n
	})
}

// holds waits until n items are left, those that are claimed included.
func (w *works) holds(n int) {
	w.t.Helper()
	q := coord.NewQueue(w.c, w.path, &coord.QueueOptions[string]{Codec: coord.Text()})
	eventually(w.t, fmt.Sprintf("%d items are left", n), func() bool {
		w.look()
		got, err := q.Len(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		return got == n
	})
}

// conclude ends the work on a queue that is or will be empty, and returns the reports about
// it.
func (w *works) conclude() *passage {
	w.t.Helper()
	w.until("produced", w.asked)
	w.holds(0)
	for _, a := range w.consumers {
		a.tell("finish")
		a.await("finished")
	}
	w.look()
	w.clean()
	p := newPassage()
	for _, a := range w.all {
		p.add(a.name, a.Reports())
	}
	if got := len(p.puts); got != w.total() {
		w.t.Errorf("%d values put, want %d", got, w.total())
	}
	p.check()
	return p
}

func (w *works) total() (n int) {
	for _, k := range w.puts {
		n += k
	}
	return n
}

// clean fails the test if more than empty buckets are left of the queue. The claims of dead
// consumers are deleted with their sessions.
func (w *works) clean() {
	w.t.Helper()
	s, err := w.c.Session(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var left []string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("left behind: %q", left)
		}
	}()
	eventually(w.t, "no node is left behind", func() bool {
		tree, err := coordtest.ReadTree(w.t.Context(), s, "", w.path, readsAtOnce)
		if err != nil {
			w.t.Fatal(err)
		}
		left = nil
		for path := range tree {
			if name := strings.Split(strings.TrimPrefix(path, w.path+"/"), "/"); name[0] == "waiters" && len(name) > 1 || name[0] == "items" && len(name) > 2 {
				left = append(left, path)
			}
		}
		return len(left) == 0
	})
}

// expire ends the session of a consumer, and waits until the consumer has noticed.
func (w *works) expire(a *actor) {
	w.t.Helper()
	var session int64
	eventually(w.t, a.name+" has a session", func() bool {
		w.look()
		session = w.session[a]
		return session != 0
	})
	w.e.expire(w.t, session)
	eventually(w.t, a.name+" loses its session", func() bool {
		w.look()
		return w.session[a] != session
	})
}

func (w *works) restart(s ensemble.Server) {
	w.t.Helper()
	began := time.Now()
	restart(w.t, s)
	w.restarts = append(w.restarts, time.Since(began))
}

// kill kills the consumer at i, and starts another one in its place.
func (w *works) kill(i int) {
	w.t.Helper()
	a := w.consumers[i]
	a.Kill()
	w.kills++
	w.consumers[i] = w.consumer(queueTimeout, w.prefetch[a])
}

// cut breaks the connections of a process.
func (w *works) cut(a *actor) {
	for _, p := range a.proxies {
		w.cuts += p.Cut()
	}
}

// victim returns the index of a consumer, often of one that has an item.
func (w *works) victim() int {
	w.look()
	from := rand.N(len(w.consumers))
	for i := range w.consumers {
		at := (from + i) % len(w.consumers)
		if kind := w.latest[w.consumers[at]].Kind; kind == "took" || kind == "acking" {
			return at
		}
	}
	return from
}
