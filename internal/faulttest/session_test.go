//go:build linux

package faulttest

import (
	"context"
	"slices"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/trace"
)

// contender is a client in this process that acquires a lock.
type contender struct {
	tb       testing.TB
	link     *zkservice.Link // nil in a room
	way      *link           // nil outside of one
	c        *coord.Client
	m        coord.Locker
	waiting  chan string // paths of its nodes, as it begins to wait
	requeued chan error
	synced   chan trace.CacheSynced // the passes of a Cache that are complete
	granted  chan *coord.Hold
	over     chan struct{} // closed at the end of the test
}

const contested = "/locks/contested"

// newContender opens a client over a link of its own.
func newContender(tb testing.TB, s *zkservice.Service, name string) *contender {
	tb.Helper()
	l := s.ZooKeeper(name)
	x := openContender(tb, l, s.Root())
	x.link = l
	return x
}

// openContender opens a client, which the test closes.
func openContender(tb testing.TB, b backend.Backend, namespace string) *contender {
	tb.Helper()
	x := &contender{
		tb:       tb,
		waiting:  make(chan string, 16),
		requeued: make(chan error, 16),
		synced:   make(chan trace.CacheSynced, 16),
		granted:  make(chan *coord.Hold, 1),
		over:     make(chan struct{}),
	}
	c, err := coord.Open(context.Background(), b, &coord.Options{Namespace: namespace, Trace: x.trace})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		close(x.over)
		c.Close()
	})
	x.c, x.m = c, coord.NewMutex(c, contested, nil)
	return x
}

// trace passes on some events. Not every test receives them all.
func (x *contender) trace(_ context.Context, e trace.Event) {
	switch e := e.(type) {
	case trace.WaitBegan:
		pass(x, x.waiting, e.Node)
	case trace.WaiterRequeued:
		pass(x, x.requeued, e.Err)
	case trace.CacheSynced:
		pass(x, x.synced, e)
	}
}

func pass[T any](x *contender, to chan<- T, v T) {
	select {
	case to <- v:
	case <-x.over:
	}
}

// drain discards trace events of waits that have ended.
func (x *contender) drain() {
	for len(x.waiting) > 0 {
		<-x.waiting
	}
}

// prime makes the lock's directory known to the client, so that later calls have their usual
// cost.
func (x *contender) prime() {
	x.tb.Helper()
	x.release(x.lock())
}

func (x *contender) lock() *coord.Hold {
	x.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	h, err := x.m.Lock(ctx)
	if err != nil {
		x.tb.Fatal(err)
	}
	return h
}

func (x *contender) release(h *coord.Hold) {
	x.tb.Helper()
	if err := h.Release(); err != nil {
		x.tb.Fatal(err)
	}
}

// queue begins a Lock and returns the path of its node when it waits. The hold arrives on
// x.granted; nil is a failure that is reported already.
func (x *contender) queue() string {
	x.tb.Helper()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*limit)
		defer cancel()
		h, err := x.m.Lock(ctx)
		if err != nil {
			x.tb.Error(err)
		}
		x.granted <- h
	}()
	return receive(x.tb, x.waiting, "a place in the queue")
}

// hold waits for the Lock that queue began.
func (x *contender) hold() *coord.Hold {
	x.tb.Helper()
	h := receive(x.tb, x.granted, "the lock")
	if h == nil {
		x.tb.FailNow()
	}
	return h
}

func (x *contender) pending() {
	x.tb.Helper()
	select {
	case h := <-x.granted:
		x.tb.Fatalf("granted too early: %v", h)
	default:
	}
}

// waiterExpires: a waiter that loses its session joins at the tail by itself, and is granted
// in the new order.
func waiterExpires(t *testing.T, e servers) {
	s := newRoom(t, e, mostTimeout, 0)
	n := rounds(3)
	a, b, c := s.contender("a"), s.contender("b"), s.contender("c")
	for i := range n {
		held := a.lock()
		first := b.queue()
		second := c.queue()
		session, err := b.c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.way.expire(session.ID())
		receive(t, b.requeued, "the loss of the place")
		third := receive(t, b.waiting, "a new place in the queue")
		if third == first {
			t.Errorf("round %d: the place of a lost session is kept: %s", i, first)
		}
		line, err := coord.NewMutex(a.c, contested, nil).Contenders(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := paths(line), []string{held.Path(), second, third}; !slices.Equal(got, want) {
			t.Errorf("round %d: in the queue %v, want %v", i, got, want)
		}
		b.pending()
		c.pending()
		a.release(held)
		hc := c.hold()
		b.pending()
		c.release(hc)
		hb := b.hold()
		if !(held.Token() < hc.Token() && hc.Token() < hb.Token()) || hb.Path() != third || hb.Session() == session.ID() {
			t.Errorf("round %d: tokens %#x, %#x, %#x; the last at %s in session %#x, expired was %#x",
				i, held.Token(), hc.Token(), hb.Token(), hb.Path(), hb.Session(), session.ID())
		}
		b.release(hb)
	}
	t.Logf("figure: %d waiters lost their session, went to the tail and were granted in order", n)
}

func paths(line []coord.Contender) []string {
	var list []string
	for _, c := range line {
		list = append(list, c.Path)
	}
	return list
}

// waiterKeepsPlace: a waiter whose server is killed finds another one, and its node was never
// deleted.
func waiterKeepsPlace(t *testing.T, e servers) {
	s := newRoom(t, e, killTimeout, shortMargin)
	n := rounds(2)
	a, b, c := s.contender("a"), s.contender("b"), s.contender("c")
	for i := range n {
		victim := e.followers(t)[i%2]
		if i%3 == 2 {
			victim = e.leader(t)
		}
		at := slices.Index(e.All(), victim)
		b.moveTo(at)
		held := a.lock()
		first := b.queue()
		second := c.queue()
		victim.Kill()
		// A reply to b arrives from another server.
		b.way.lines[at].Refuse(true)
		b.verifyContact()
		restart(t, victim)
		b.way.lines[at].Refuse(false)
		b.pending()
		c.pending()
		a.release(held)
		hb := b.hold()
		c.pending()
		b.release(hb)
		hc := c.hold()
		if hb.Path() != first || hc.Path() != second || !(held.Token() < hb.Token() && hb.Token() < hc.Token()) {
			t.Errorf("round %d: granted %s %#x and %s %#x after %#x, want %s and %s",
				i, hb.Path(), hb.Token(), hc.Path(), hc.Token(), held.Token(), first, second)
		}
		c.release(hc)
		select {
		case err := <-b.requeued:
			t.Errorf("round %d: the waiter took a new place: %v", i, err)
		default:
		}
	}
	t.Logf("figure: %d waiters whose server was killed kept their place", n)
}

// moveTo makes the client connect to the server at this index.
func (x *contender) moveTo(at int) {
	x.tb.Helper()
	for i, p := range x.way.lines {
		p.Refuse(i != at)
	}
	for i, p := range x.way.lines {
		if i != at {
			p.Cut()
		}
	}
	x.verifyContact()
	for _, p := range x.way.lines {
		p.Refuse(false)
	}
}

// verifyContact returns when a server has answered.
func (x *contender) verifyContact() {
	x.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s, err := x.c.Session(ctx)
	if err == nil {
		err = s.Sync(ctx, "/")
	}
	if err != nil {
		x.tb.Fatal(err)
	}
}
