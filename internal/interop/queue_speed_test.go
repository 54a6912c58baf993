//go:build linux

package interop

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

// The ways to move items. Unless stated otherwise, one client with one session and one caller
// moves them one by one.
const (
	rawPairs     = "create and delete with the raw client"
	putOne       = "Put"
	cycle        = "Put, Take and Ack"
	putMany      = "PutAll"
	takeMany     = "Take and Ack with a prefetch of 64"
	takeBeside   = "Take and Ack with a prefetch of 64, 8 Acks at a time"
	takeWide     = "Take and Ack with a prefetch of 64, 64 Acks at a time"
	takeAll      = "Take and AckAll with a prefetch of 128, in 2 loops"
	cycleWide    = "PutAll, then Take and Ack with a prefetch of 64, 64 Acks at a time"
	cycleAll     = "PutAll, then Take and AckAll with a prefetch of 128, in 2 loops"
	curator      = "offer and take of Curator's SimpleDistributedQueue"
	curatorEight = "offer and take of Curator's SimpleDistributedQueue in 8 threads"
)

// pace is the speed of one way, by round.
type pace struct {
	way      string
	rates    []float64 // items per second
	requests []float64 // requests from clients to servers, per item
}

func (p *pace) rate() float64 { return median(p.rates) }

func median(all []float64) float64 {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// queueRace is an ensemble of three and the clients that move items on it, in turns.
type queueRace struct {
	t     *testing.T
	e     *zktest.Ensemble
	raw   *zk.Conn
	c     *coord.Client
	java  *peer
	paces []*pace
}

// Items go through queues of coord and of Curator, on an ensemble of three servers, in turns.
// Curator's moves one item at a time, so it lists one name and not a long queue: that is its
// best case. The figures of a busy machine are not a benchmark, and are compared in the long
// form only.
func TestItemsThroughAQueueBesideCurators(t *testing.T) {
	inst := require(t)
	r := &queueRace{t: t, e: three.Get(t)}
	tr := &troupe{inst, inst.compileJava(t), strings.Join(r.e.Addrs(), ","), usualTimeout}
	r.java = tr.java(t, "curator")
	r.java.await(t, "opened")
	c, err := coord.Open(t.Context(), zookeeper.New(r.e.Addrs(), &zookeeper.Options{SessionTimeout: usualTimeout}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.c = c
	raw, _, err := zk.Connect(r.e.Addrs(), usualTimeout, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	r.raw = raw
	if _, err := raw.Create("/raw", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	defer raw.Delete("/raw", -1) // for another run on the shared servers

	n, rounds := 64, 1 // only shows that it works; the long form measures
	if long() {
		n, rounds = 1_000, 5
		r.round("warm", n/2) // warms up the just-in-time compiler
		r.paces = nil
	}
	for i := range rounds {
		r.round(fmt.Sprint(i), n)
	}
	for _, p := range r.paces {
		t.Logf("figure: %s, three servers: %.0f items/s, %.2f requests an item (medians of %d rounds of %d; %.0f to %.0f items/s)",
			p.way, p.rate(), median(p.requests), rounds, n, slices.Min(p.rates), slices.Max(p.rates))
	}
	puts := r.of(putMany).rate() / r.of(putOne).rate()
	one, eight := r.of(takeMany).rate()/r.of(curator).rate(), r.of(takeBeside).rate()/r.of(curatorEight).rate()
	// Eight threads of Curator race for the head, so one thread can be faster.
	best := r.of(takeBeside).rate() / max(r.of(curator).rate(), r.of(curatorEight).rate())
	t.Logf("figure: PutAll puts %.1f times the items of single Puts", puts)
	t.Logf("figure: Take and Ack with prefetch beside offer and take of Curator's SimpleDistributedQueue: %.1f times one at a time, %.1f times with 8 Acks and 8 threads, %.1f times with 8 Acks beside the faster of Curator's",
		one, eight, best)
	wide, all := r.of(cycleWide).rate()/r.of(curator).rate(), r.of(cycleAll).rate()/r.of(curator).rate()
	t.Logf("figure: PutAll, Take and Ack by batches beside offer and take of Curator's SimpleDistributedQueue: %.1f times with 64 Acks at a time, %.1f times with AckAll", wide, all)
	if long() && (puts < 10 || best < 2) {
		t.Errorf("%.1f and %.1f times, want 10 and 2", puts, best)
	}
}

func (r *queueRace) of(way string) *pace {
	for _, p := range r.paces {
		if p.way == way {
			return p
		}
	}
	p := &pace{way: way}
	r.paces = append(r.paces, p)
	return p
}

// round moves n items in each of the ways.
func (r *queueRace) round(name string, n int) {
	t := r.t
	payload := strings.Repeat(".", 200)
	opts := &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 64}
	q := coord.NewQueue(r.c, "/queues/"+name, opts)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r.measure(rawPairs, n, func() {
		for range n {
			path, err := r.raw.Create("/raw/i-", []byte(payload), zk.FlagSequence, zk.WorldACL(zk.PermAll))
			check(err)
			check(r.raw.Delete(path, -1))
		}
	})
	r.measure(putOne, n, func() {
		for range n {
			_, err := q.Put(t.Context(), payload)
			check(err)
		}
	})
	r.measure(takeMany, n, func() { r.drain(q, n, 1) })
	r.measure(cycle, n, func() {
		for range n {
			_, err := q.Put(t.Context(), payload)
			check(err)
			it, err := q.Take(t.Context())
			check(err)
			check(it.Ack())
		}
	})
	values := make([]string, 4*n)
	for i := range values {
		values[i] = payload
	}
	r.measure(putMany, len(values), func() {
		_, err := q.PutAll(t.Context(), values...)
		check(err)
	})
	r.measure(takeBeside, len(values), func() { r.drain(q, len(values), 8) })
	putAll := func() {
		_, err := q.PutAll(t.Context(), values...)
		check(err)
	}
	r.measure(cycleWide, len(values), func() {
		putAll()
		r.measure(takeWide, len(values), func() { r.drain(q, len(values), 64) })
	})
	r.measure(cycleAll, len(values), func() {
		putAll()
		deep := coord.NewQueue(r.c, "/queues/"+name, &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 128})
		r.measure(takeAll, len(values), func() {
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { r.drainAll(deep, len(values)/2) })
			}
			wg.Wait()
		})
	})
	curators := func(path string, threads, n int) {
		t.Helper()
		r.java.tell(t, "queue", path, fmt.Sprint(threads), fmt.Sprint(n), fmt.Sprint(len(payload)))
		if got := r.java.await(t, "queued").words[1]; got != fmt.Sprint(n) {
			t.Fatalf("Curator took %s items of %d", got, n)
		}
	}
	r.measure(curator, n, func() { curators("/curators/one-"+name, 1, n) })
	r.measure(curatorEight, n, func() { curators("/curators/eight-"+name, 8, n) })
	if left, err := q.Len(t.Context()); err != nil || left != 0 {
		t.Fatalf("%d items are left: %v", left, err)
	}
}

// drain takes n items in one loop and acknowledges them, with so many Acks at a time.
func (r *queueRace) drain(q *coord.Queue[string], n, atOnce int) {
	r.t.Helper()
	var wg sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for it, err := range q.All(r.t.Context()) {
		if err != nil {
			r.t.Fatal(err)
		}
		n--
		room <- struct{}{}
		ack := func() {
			defer func() { <-room }()
			if err := it.Ack(); err != nil {
				r.t.Error(err)
			}
		}
		if atOnce == 1 {
			ack()
		} else {
			wg.Go(ack)
		}
		if n == 0 {
			break
		}
	}
	wg.Wait()
}

// drainAll takes n items in one loop and acknowledges 128 of them at a time.
func (r *queueRace) drainAll(q *coord.Queue[string], n int) {
	var done []*coord.Item[string]
	for it, err := range q.All(r.t.Context()) {
		if err != nil {
			r.t.Error(err)
			return
		}
		n--
		if done = append(done, it); len(done) < 128 && n > 0 {
			continue
		}
		if err := q.AckAll(done...); err != nil {
			r.t.Error(err)
			return
		}
		if done = done[:0]; n == 0 {
			return
		}
	}
}

func (r *queueRace) measure(way string, n int, f func()) {
	r.t.Helper()
	before := received(r.t, r.e)
	began := time.Now()
	f()
	took := time.Since(began)
	p := r.of(way)
	p.rates = append(p.rates, float64(n)/took.Seconds())
	p.requests = append(p.requests, float64(received(r.t, r.e)-before)/float64(n))
}
