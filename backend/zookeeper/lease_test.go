package zookeeper

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

func TestALeasePassesByEitherClock(t *testing.T) {
	const s = time.Second
	at := func(mono, wall time.Duration) instant { return instant{mono, 1000*s + wall} }
	l := lease{from: at(0, 0), length: 10 * s}
	for _, test := range []struct {
		name string
		now  instant
		left time.Duration
	}{
		{"both go on", at(4*s, 4*s), 6 * s},
		{"the machine was suspended", at(1*s, 30*s), -20 * s},
		{"the wall clock was set back", at(4*s, -100*s), 6 * s},
		{"to the end", at(10*s, 10*s), 0},
	} {
		if left := l.left(test.now); left != test.left {
			t.Errorf("%s: %v left, want %v", test.name, left, test.left)
		}
	}
	l.renew(at(3*s, 3*s))
	l.renew(at(2*s, 2*s)) // an answer that was overtaken
	if left := l.left(at(4*s, 4*s)); left != 9*s {
		t.Errorf("renewed: %v left", left)
	}
}

func TestHostsAreTriedInTurnWithPausesBetweenRounds(t *testing.T) {
	h := newHosts([]string{"a", "b", "c"}, 10*time.Second)
	seen := make(map[string]int)
	for round := range 12 {
		for i := range 3 {
			server, retryStart := h.Next()
			if retryStart {
				t.Fatal("the zk client is made to sleep")
			}
			seen[server]++
			most := time.Duration(0)
			if round > 0 && i == 0 {
				most = min(firstPause<<(round-1), time.Second)
			}
			if p := h.pause(); p > most || p < most/2 {
				t.Errorf("round %d, server %d: a pause of %v, at most %v", round, i, p, most)
			}
		}
	}
	if seen["a"] != 12 || seen["b"] != 12 || seen["c"] != 12 {
		t.Errorf("tried: %v", seen)
	}
	h.Connected()
	if h.Next(); h.pause() == 0 {
		t.Error("a connection without an answer counts as good")
	}
	h.answered("")
	if h.Next(); h.pause() != 0 {
		t.Error("a pause before the first server is dialled again")
	}
}

func TestContactThatNeverLastsIsRetriedMoreAndMoreSlowly(t *testing.T) {
	for _, servers := range [][]string{{"a"}, {"a", "b", "c"}} {
		h := newHosts(servers, 30*time.Second)
		if h.spell != 3*time.Second {
			t.Errorf("contact must last for %v", h.spell)
		}
		again := func(most time.Duration) {
			t.Helper()
			h.Next()
			if p := h.pause(); p > most || p < most/2 {
				t.Errorf("%v: a pause of %v, at most %v", servers, p, most)
			}
		}
		for range 2 {
			h.Next()
			h.answered("")
			again(0) // one blip is nothing
			for i := range 12 {
				h.answered("")
				again(min(firstPause<<i, mostPause))
			}
			h.answered("")
			h.lasted()
			again(0)
			h.answered("")
			h.lasted()
		}
	}
}

func TestServersAreCompleted(t *testing.T) {
	for in, want := range map[string]string{
		"a": "a:2181", "a:1": "a:1", "10.0.0.1": "10.0.0.1:2181", "::1": "[::1]:2181", "[::1]": "[::1]:2181", "[::1]:3": "[::1]:3",
	} {
		if got, err := withPort(in); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	cfg, err := newConfig([]string{"b", "a:2181", "a", "b:1"}, nil)
	if err != nil || len(cfg.servers) != 3 {
		t.Errorf("%v, %v", cfg.servers, err)
	}
}

func TestAJumpOfTheWallClockIsNoticedByTheNextCall(t *testing.T) {
	e := startServer(t, welcoming)
	var jump atomic.Int64
	b := New([]string{e}, &Options{Without: optional}).(*service)
	b.cfg.clock = func() func() instant {
		read := clock()
		return func() instant {
			now := read()
			now.wall += time.Duration(jump.Load())
			return now
		}
	}
	open := func() backend.Session {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	for name, call := range map[string]func(s backend.Session) error{
		"Err":    func(s backend.Session) error { return s.Err() },
		"Get":    func(s backend.Session) error { _, _, err := s.Get(t.Context(), "/", nil); return err },
		"Commit": func(s backend.Session) error { _, err := s.Commit(t.Context(), backend.Delete("/a", 0)); return err },
		"Status": func(s backend.Session) error { s.Status(); return s.(*session).err },
	} {
		s := open()
		jump.Add(int64(5 * time.Second))
		if err := s.Err(); err != nil {
			t.Fatalf("after half the timeout: %v", err)
		}
		jump.Add(int64(5 * time.Second))
		err := call(s)
		if !errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrUncertain) {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-s.Done():
		default:
			t.Errorf("%s: Done is open", name)
		}
	}
}

func TestATimerNoticesTheEndOfTheLease(t *testing.T) {
	var conns atomic.Int32
	addr := startServer(t, func(conn net.Conn) {
		if conns.Add(1) == 1 { // another connect response would count as an answer
			welcome(conn, 400)
		}
		swallow(conn)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := time.Now()
	s, err := New([]string{addr}, &Options{Without: optional, LossMargin: 100 * time.Millisecond}).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	<-s.Done()
	if took := time.Since(start); took < 290*time.Millisecond || took > time.Second {
		t.Errorf("a lease of 300ms ended after %v", took)
	}
}
