//go:build linux

package faulttest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
)

// queueTimeout is the session timeout of consumers that are killed: their items return when
// it has passed.
const queueTimeout = 4 * time.Second

// TestItemsPassAQueueBetweenProcesses has producers and consumers, each in a process of its
// own, pass items through one queue on three servers. Every process reports each step before
// and after it, and all reports together must be consistent.
func TestItemsPassAQueueBetweenProcesses(t *testing.T) {
	ensemble.Require(t)
	e := startServers(t, shortSync)
	t.Run("without a fault no item is delivered twice", func(t *testing.T) { queueWithoutFaults(t, e) })
	t.Run("one consumer gets all items in order", func(t *testing.T) { queueInOrder(t, e) })
	t.Run("whatever dies, no item is lost, and none is delivered after its ack", func(t *testing.T) { queueWithFaults(t, e) })
}

// queueItems returns the number of items that pass through the queue.
func queueItems() int {
	if long() {
		return 20_000
	}
	return 500
}

// queueWithoutFaults checks for exactly-once delivery.
func queueWithoutFaults(t *testing.T, e servers) {
	w := newWorks(t, e)
	for _, prefetch := range []string{"0", "1", "8", "64"} {
		w.producer()
		w.consumers = append(w.consumers, w.consumer(mostTimeout, prefetch))
	}
	began := time.Now()
	parts, items := 1, 200
	if long() {
		parts, items = 20, 1_000
	}
	for range parts {
		w.produce(items)
		w.until("took", w.total())
	}
	p := w.conclude()
	took := time.Since(began)
	p.once()
	p.report(t)
	if w.expired > 0 {
		t.Errorf("%d sessions were lost", w.expired)
	}
	t.Logf("figure: a queue between 4 producer and 4 consumer processes, no faults: %v; %.0f items/s", p.counts(), float64(w.total())/took.Seconds())
}

// queueInOrder checks that earlier items come earlier, however often the consumer has to
// start again.
func queueInOrder(t *testing.T, e servers) {
	w := newWorks(t, e)
	for range 4 {
		w.producer()
	}
	a := w.consumer(mostTimeout, "16")
	w.consumers = append(w.consumers, a)
	steps, items := 4, 300
	if long() {
		steps, items = 20, queueItems()
	}
	for i := range steps {
		w.look()
		took := w.said["took"]
		n := share(items, steps, i)
		w.produce(n)
		w.until("took", took+1+rand.N(max(n/2, 1)))
		switch i {
		case 0: // a part without a fault
		case steps / 2:
			w.restart(e.followers(t)[rand.N(2)])
		default:
			w.expire(a)
		}
		w.until("produced", w.asked)
		w.until("took", w.total()-mostWaiting)
	}
	p := w.conclude()
	p.inOrder()
	p.report(t)
	if w.expired == 0 {
		t.Error("no session of the consumer was lost")
	}
	t.Logf("figure: a queue from 4 producer processes to one consumer, in order: %v; %d sessions of the consumer lost, %d server restarts",
		p.counts(), w.expired, len(w.restarts))
}

// mostWaiting is a rough limit for the items left over from earlier steps.
const mostWaiting = 100

// share returns the size of the i-th of so many parts of n.
func share(n, parts, i int) int { return n*(i+1)/parts - n*i/parts }

// queueWithFaults checks for at-least-once delivery under faults of consumers and servers.
func queueWithFaults(t *testing.T, e servers) {
	w := newWorks(t, e)
	for _, prefetch := range []string{"0", "1", "8", "64"} {
		w.producer()
		w.consumers = append(w.consumers, w.consumer(queueTimeout, prefetch))
	}
	steps := 6
	if long() {
		steps = 50
	}
	for i := range steps {
		w.look()
		took, putting := w.said["took"], w.said["putting"]
		n := share(queueItems()-lastItems, steps, i)
		w.produce(n)
		// Requests under way, or their replies, are lost.
		w.until("putting", putting+1+rand.N(max(n/8, 1)))
		w.cut(w.producers[i%len(w.producers)])
		w.cut(w.consumers[w.victim()])
		w.until("took", took+1+rand.N(max(n/2, 1)))
		victim := w.victim()
		switch {
		case i%(steps/2) == 2:
			server := e.leader(t)
			if len(w.restarts)%2 == 1 {
				server = e.followers(t)[rand.N(2)]
			}
			w.restart(server)
		case i%2 == 0:
			w.kill(victim)
		default:
			w.expire(w.consumers[victim])
		}
		w.until("produced", w.asked)
		w.until("took", w.total()-mostWaiting)
	}
	w.holds(0)
	back := w.comesBack()
	p := w.conclude()
	p.report(t)
	c := p.counts()
	if w.kills == 0 || w.expired == 0 || c.again == 0 || len(w.restarts) == 0 || w.cuts == 0 {
		t.Errorf("%d kills, %d sessions lost, %d items again, %d restarts, %d cuts, want some of each", w.kills, w.expired, c.again, len(w.restarts), w.cuts)
	}
	t.Logf("figure: a queue between 4 producer and 4 consumer processes: %v; %d consumers killed, %d sessions of consumers lost, %d connections cut, servers restarted %v",
		c, w.kills, w.expired, w.cuts, w.restarts)
	t.Logf("figure: kill -9 of a consumer to the delivery of its item to a waiting one, session timeout %v: %v", queueTimeout, back)
}

// lastItems is the number of items for comesBack.
const lastItems = 40

// comesBack kills a consumer that has an item, when all others wait and no items are put any
// more. It returns the time until another consumer gets the item.
func (w *works) comesBack() time.Duration {
	t := w.t
	t.Helper()
	keeper := w.consumers[0]
	others := w.consumers[1:]
	for _, a := range others {
		a.tell("finish")
		a.await("finished")
	}
	w.look()
	keeper.tell("keep")
	from := keeper.mark()
	w.produce(lastItems)
	var kept line
	eventually(t, "the consumer has one of the last items", func() bool {
		w.look()
		kept = w.latest[keeper]
		return kept.Kind == "took"
	})
	w.until("produced", w.asked)
	for _, a := range others {
		w.consume(a)
	}
	w.holds(1)
	eventually(t, "the others wait", func() bool {
		w.look()
		return !slices.ContainsFunc(others, func(a *actor) bool { return w.latest[a].Kind != "waiting" })
	})
	keeper.silent(from, "acking")
	control := newExpiry(t, w.e, queueTimeout)
	killed := proc.Now()
	keeper.Kill()
	control.Begin()
	w.kills++
	w.consumers = others
	var next line
	eventually(t, "the item of the killed consumer comes to another", func() bool {
		w.look()
		for _, a := range others {
			if l, ok := a.said("took", func(l line) bool { return l.Items[0].ID == kept.Items[0].ID && l.Token > kept.Token }); ok {
				next = l
			}
		}
		return next.Token != 0
	})
	took := next.At - killed
	control.Judge(took, "the delivery of its item after the kill")
	return took
}
