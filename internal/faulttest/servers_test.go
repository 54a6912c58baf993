//go:build linux

package faulttest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// The session timeout of the tests that kill servers: the largest by default. A client that
// pings every quarter of its lease (8 s with the margin of 2 s) has at least 6 s left for an
// election, which takes one or two on an idle machine.
const (
	killTimeout = mostTimeout
	mostOutage  = (killTimeout - shortMargin) * 3 / 4
)

// outage returns how long no server has answered after the death of a server, or false if the
// control, a session like those of the clients, did not survive it.
func outage(t *testing.T, control backend.Session, began time.Duration) (time.Duration, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := control.Sync(ctx, "/")
	if err != nil && !errors.Is(err, backend.ErrSessionLost) {
		t.Fatal(err)
	}
	return proc.Now() - began, err == nil
}

func leaderOf(t *testing.T, e *zktest.Ensemble) *zktest.Server {
	t.Helper()
	return inTime(t, e.Leader)
}

// followersOf returns all servers but the leader once they follow it.
func followersOf(t *testing.T, e *zktest.Ensemble) (followers []*zktest.Server) {
	t.Helper()
	for _, s := range (servers{ensemble.Servers{ZooKeeper: e}}).followers(t) {
		followers = append(followers, s.(*zktest.Server))
	}
	return followers
}

// survive plays rounds in which a server is killed. before prepares a round and returns the
// server. No client may lose anything, and when the server is back the lock is handed over. If the
// machine is so slow that an election takes longer than a session lasts, the rounds end there.
func survive(t *testing.T, e servers, what string, n int, before func(round int, holder, waiter *actor) ensemble.Server) {
	s := newStage(t, e)
	var back, handOver figures[time.Duration]
	violations := 0
	holder := s.start("worker a", killTimeout, shortMargin)
	waiter := s.start("worker b", killTimeout, shortMargin)
	held := holder.hold()
	control, err := backendAt(e.Addrs(), killTimeout, shortMargin).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	for i := range n {
		mh, mw := holder.mark(), waiter.mark()
		place := waiter.wait()
		victim := before(i, holder, waiter)
		holder.write("accepted")
		killed := proc.Now()
		victim.Kill()
		if took, alive := outage(t, control, killed); took > mostOutage || !alive {
			t.Logf("round %d is not judged: no server answered for %v, and a session lasts for %v", i, took, mostOutage)
			restart(t, victim)
			return
		}
		back.add(holder.stands().At - killed)
		restart(t, victim)
		// The reply comes after all events that this server had to send to the holder.
		holder.stands()
		failed := t.Failed()
		holder.silent(mh, "done", "requeued")
		waiter.silent(mw, "done", "granted", "requeued")
		took, granted := holder.passTo(waiter)
		handOver.add(took)
		if granted.Path != place.Path || granted.Token <= held.Token || t.Failed() && !failed {
			violations++
			t.Errorf("round %d: %v was granted after %v, waited at %s", i, granted, held, place.Path)
		}
		holder, waiter, held = waiter, holder, granted
	}
	if _, refused, overlaps := s.resource.counts(); refused != 0 || overlaps != 0 {
		t.Errorf("%d writes refused, %d overlaps, want none", refused, overlaps)
	}
	t.Logf("figure: %s killed to the holder's next answer, session timeout %v: %v; %d rounds, %d violations; hand-over afterwards %v",
		what, killTimeout, back, n, violations, handOver)
}

// leaderKilled: an election keeps all sessions, and so all holds.
func leaderKilled(t *testing.T, e servers) {
	survive(t, e, "leader", rounds(2), func(round int, holder, waiter *actor) ensemble.Server {
		leader := e.leader(t)
		if round%2 == 0 {
			pin(leader, holder)
			unpin(holder)
		} else {
			pin(leader, waiter)
			unpin(waiter)
		}
		return leader
	})
}

// followerKilled: both clients lose their connection and find another server.
func followerKilled(t *testing.T, e servers) {
	survive(t, e, "the clients' follower", rounds(2), func(round int, holder, waiter *actor) ensemble.Server {
		follower := e.followers(t)[round%2]
		pin(follower, holder, waiter)
		unpin(holder, waiter)
		return follower
	})
}
