//go:build linux

package faulttest

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// leaderPause is the duration of a leader's pause: less than the syncLimit of these tests (10
// ticks, 5 s), so its followers keep it and answer pings meanwhile, and more than short
// session timeouts.
const leaderPause = 3500 * time.Millisecond

func pause(t *testing.T, s *zktest.Server) {
	t.Helper()
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
}

// settle waits until all servers have reported to the leader the sessions that they have
// seen, which they do twice in a tick. Otherwise a server to which an actor was connected
// earlier can report it after a pause, and the leader counts from then.
func settle(holder *actor) {
	holder.t.Helper()
	began, pings := time.Now(), holder.pings.Load()
	eventually(holder.t, "pings are answered for a tick", func() bool {
		return holder.pings.Load() > pings && time.Since(began) > tick
	})
}

func resume(t *testing.T, s *zktest.Server) {
	t.Helper()
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
}

// leaderPaused: the pause and the margin fit into the session timeout. Followers continue
// answering pings, writes wait, and no client loses anything.
func leaderPaused(t *testing.T, e servers) {
	const timeout = mostTimeout
	s := newStage(t, e)
	var back figures[time.Duration]
	var pings figures[int]
	n := rounds(2)
	holder := s.start("worker a", timeout, longMargin)
	waiter := s.start("worker b", timeout, longMargin)
	held := holder.hold()
	m := pace.Start(t, nil)
	for i := range n {
		place := waiter.wait()
		leader, followers := leaderOf(t, e.ZooKeeper), followersOf(t, e.ZooKeeper)
		pin(followers[0], holder)
		pin(followers[1], waiter)
		writer := newWriter(t, followers[i%2])
		control, err := backendAt([]string{followers[i%2].Addr()}, timeout, longMargin).Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mh, mw := holder.mark(), waiter.mark()
		ph, pw := holder.pings.Load(), waiter.pings.Load()

		pause(t, leader)
		written := writer.start()
		over := time.NewTimer(leaderPause)
		select {
		case <-over.C:
		case <-written:
			t.Errorf("round %d: a write succeeded without the leader: %v", i, writer.err)
		}
		pings.add(int(min(holder.pings.Load()-ph, waiter.pings.Load()-pw)))
		resumed := proc.Now()
		resume(t, leader)
		<-written
		l, lost := leaderOf(t, e.ZooKeeper), control.Err()
		control.Close()
		if l != leader || lost != nil {
			t.Logf("round %d is not judged: server %d leads after %d; a session like those of the clients: %v", i, l.ID(), leader.ID(), lost)
			return
		}
		back.add(holder.stands().At - resumed)
		if writer.err != nil {
			t.Errorf("round %d: the write that waited: %v", i, writer.err)
		}
		writer.close()
		holder.silent(mh, "done", "requeued")
		waiter.silent(mw, "done", "granted", "requeued")
		unpin(holder, waiter)
		_, granted := holder.passTo(waiter)
		if granted.Path != place.Path || granted.Token <= held.Token {
			t.Errorf("round %d: %v was granted after %v, waited at %s", i, granted, held, place.Path)
		}
		holder, waiter, held = waiter, holder, granted
	}
	if pings.min() == 0 {
		m.Judge(time.Second, 0, "an answer to a ping, one of which is due each second of a pause,")
	}
	t.Logf("figure: leader paused for %v of a syncLimit of %v, session timeout %v, margin %v: pings answered meanwhile %v; resumed to the holder's next answer %v; %d rounds",
		leaderPause, longSync*tick, timeout, longMargin, pings, back, n)
}

// A writer is a client in this process that writes once.
type writer struct {
	c    *coord.Client
	m    *coord.Mutex
	done chan struct{}
	err  error
}

// newWriter returns a writer that is connected to s and waits for it for a long time.
func newWriter(t *testing.T, s *zktest.Server) *writer {
	t.Helper()
	c, err := coord.Open(t.Context(), zookeeper.New([]string{s.Addr()}, &zookeeper.Options{
		SessionTimeout: mostTimeout, LossMargin: tick,
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	w := &writer{c: c, m: coord.NewMutex(c, "/locks/writer", nil), done: make(chan struct{})}
	// From now on a lock is one request, which is a write.
	h, err := w.m.Lock(t.Context())
	if err == nil {
		err = h.Release()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *writer) start() <-chan struct{} {
	go func() {
		defer close(w.done)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		var h *coord.Hold
		if h, w.err = w.m.Lock(ctx); w.err == nil {
			w.err = h.Release()
		}
	}()
	return w.done
}

func (w *writer) close() { w.c.Close() }

// leaderPausedTooLong: the holder's session is over when the leader resumes, because the
// leader has not heard of it for longer than its timeout. Meanwhile the holder's follower has
// answered its pings, and the default margin is smaller than that time. So the holder can be
// notified after the next grant. The fence protects the resource.
//
// The leader expires sessions as soon as it runs. On a busy machine a follower can be faster
// to report that the session is alive. Then no client loses anything, and the round does not
// count. A round in which the follower was too slow to answer, so that the holder is notified
// during the pause, does not count either: nothing was late.
func leaderPausedTooLong(t *testing.T, e servers) {
	const timeout = 2 * time.Second
	s := newStage(t, e)
	var gap figures[time.Duration]
	late, saved, early, ended, n := 0, 0, 0, 0, rounds(2)
	holder := s.start("worker a", timeout, 0)
	other := s.start("worker b", mostTimeout, longMargin)
	for i := 0; i < n+saved+early && saved+early < n+4; i++ {
		holder.hold()
		other.wait()
		leader, followers := leaderOf(t, e.ZooKeeper), followersOf(t, e.ZooKeeper)
		pin(followers[i%2], holder)
		pin(followers[i/2%2], other)
		held := holder.ask("verify", "verified")
		if held.Text != "ok" {
			t.Logf("round %d is not judged: the machine has lost a session of %v before the pause: %s", i, timeout, held.Text)
			early++
			other.await("granted")
			unpin(holder, other)
			other.ask("release", "released")
			continue
		}
		holder.write("accepted")
		settle(holder)
		mh, mo := holder.mark(), other.mark()
		pause(t, leader)
		<-time.After(leaderPause)
		if holder.hasSaid(mh, "done") {
			early++
		}
		resume(t, leader)
		done, lost := holder.within(2*timeout, "done")
		if !lost {
			saved++
			other.silent(mo, "granted", "done")
			unpin(holder, other)
			holder.passTo(other)
			other.ask("release", "released")
			continue
		}
		ended++
		granted := other.await("granted")
		gap.add(done.At - granted.At)
		if done.At > granted.At {
			late++
		}
		if granted.Token <= held.Token || !isLoss(done) {
			t.Errorf("round %d: done with token %#x (%s), the other granted %#x", i, held.Token, done.Text, granted.Token)
		}
		other.write("accepted")
		holder.write("refused")
		unpin(holder, other)
		other.ask("release", "released")
	}
	_, refused, overlaps := s.resource.counts()
	if refused != ended || overlaps != ended {
		t.Errorf("%d writes refused, %d overlaps without the fence, want %d", refused, overlaps, ended)
	}
	t.Logf("figure: leader paused for %v, session timeout %v, default margin: Done after the next grant in %d of %d rounds, by %v; %d late writes refused, %d overlaps without the fence; %d rounds more in which the session lived on, %d of them all in which it ended during the pause",
		leaderPause, timeout, late, ended, gap, refused, overlaps, saved, early)
}

// marginCovers is the worst case for the margin: while the leader is paused, the holder's
// follower answers its pings, and dies before it can report them to the leader. The leader
// counts the session from before the pause, the holder from its last ping. Two holders get
// the same fault, one with the documented margin, one with almost none. The second must be
// notified too late, or the test has tested nothing.
//
// If the follower's last report is under way when the leader is stopped, the leader reads it
// afterwards and counts from then. Such a round does not test the margin, so more rounds
// follow until one does.
func marginCovers(t *testing.T, e servers) {
	const timeout = mostTimeout
	const noMargin = tick / 2
	type pair struct {
		stage         *stage
		holder, other *actor
		gap           figures[time.Duration] // from Done to the next grant
		late          int
	}
	var pairs []*pair
	for _, margin := range []time.Duration{longMargin, noMargin} {
		s := newStage(t, e)
		pairs = append(pairs, &pair{
			stage:  s,
			holder: s.start("holder with margin "+margin.String(), timeout, margin),
			other:  s.start("other", timeout, longMargin),
		})
	}
	n := 0
	for ; n < rounds(2) || pairs[1].late == 0 && n < rounds(2)+4; n++ {
		leader, followers := leaderOf(t, e.ZooKeeper), followersOf(t, e.ZooKeeper)
		doomed, stays := followers[n%2], followers[1-n%2]
		for _, p := range pairs {
			p.holder.hold()
			p.other.wait()
			pin(doomed, p.holder)
			pin(stays, p.other)
			p.holder.stands()
			p.holder.write("accepted")
		}
		settle(pairs[0].holder)
		pause(t, leader)
		<-time.After(leaderPause)
		for _, p := range pairs {
			p.holder.blackhole(true)
		}
		doomed.Kill()
		resume(t, leader)
		for _, p := range pairs {
			done, granted := p.holder.await("done"), p.other.await("granted")
			p.gap.add(granted.At - done.At)
			if done.At >= granted.At {
				p.late++
			}
			if granted.Token <= done.Token || !isLoss(done) {
				t.Errorf("round %d: done with token %#x (%s), the other granted %#x", n, done.Token, done.Text, granted.Token)
			}
			p.other.write("accepted")
			p.holder.write("refused")
		}
		restart(t, doomed)
		for _, p := range pairs {
			p.holder.blackhole(false)
			unpin(p.holder, p.other)
			p.other.ask("release", "released")
		}
	}
	for _, p := range pairs {
		if _, refused, overlaps := p.stage.resource.counts(); refused != n || overlaps != n {
			t.Errorf("%s: %d writes refused, %d overlaps without the fence, want %d", p.holder.name, refused, overlaps, n)
		}
		t.Logf("figure: leader paused for %v, then the holder's follower killed, session timeout %v, %s: next grant after Done by %v; Done last in %d of %d rounds",
			leaderPause, timeout, p.holder.name, p.gap, p.late, n)
	}
	if late := pairs[0].late; late != 0 {
		t.Errorf("with a margin of %v Done came last in %d rounds", longMargin, late)
	}
	if pairs[1].late == 0 {
		t.Errorf("with a margin of %v Done came first in every round: the scenario does not test the margin", noMargin)
	}
}
