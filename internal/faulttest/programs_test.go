//go:build linux

package faulttest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/ensemble"
)

// TestPrograms runs small programs as users write them, in processes that are killed, stopped and
// paused, on three servers.
func TestPrograms(t *testing.T) {
	ensemble.Require(t)
	e := startServers(t, shortSync)
	together(t,
		subtest{"a leader that is killed in the middle of a job is followed by another", func(t *testing.T) { leaderKilledInAJob(t, e) }},
		subtest{"a service that is stopped gives its items back without an attempt", func(t *testing.T) { serviceStopped(t, e) }},
		subtest{"a run of a schedule whose process is killed is repeated by another", func(t *testing.T) { runnerKilled(t, e) }},
		subtest{"a run of a schedule whose process is paused is abandoned", func(t *testing.T) { runnerPaused(t, e) }},
		subtest{"the shards of a paused process move and come back", func(t *testing.T) { shardsOfAPausedProcess(t, e) }},
	)
}

// client opens a client that no fault affects.
func (s *stage) client() *coord.Client {
	s.t.Helper()
	c, err := coord.Open(s.t.Context(), backendAt(s.e.Addrs(), mostTimeout, 0), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// ran returns the steps of the actors that the service has taken, in the order of their commits.
func ran(actors ...*actor) (all []line) {
	for _, a := range actors {
		for _, l := range a.Reports() {
			if l.Kind == "ran" {
				all = append(all, l)
			}
		}
	}
	slices.SortFunc(all, func(a, b line) int { return cmp.Compare(a.Zxid, b.Zxid) })
	return all
}

// Each run of the job is counted once, also the one during which the leader dies, and the runs go
// on with the next leader.
func leaderKilledInAJob(t *testing.T, e servers) {
	s := newStage(t, e)
	var all []*actor
	replica := func() *actor {
		a := s.start(fmt.Sprint("replica ", len(all)), queueTimeout, shortMargin)
		a.tell("job " + s.lock)
		all = append(all, a)
		return a
	}
	leader := replica()
	leader.await("ran")
	kills := rounds(2)
	for range kills {
		next := replica()
		leader.await("running") // the commit of this run is under way, or will be
		leader.Kill()
		next.await("ran")
		leader = next
	}
	leader.await("ran")
	leader.Kill()
	runs, err := coord.NewValue[int](s.client(), s.lock+"/runs", nil).Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A leader that was killed can have made one run that it has not reported.
	steps, last, token := ran(all...), 0, int64(0)
	for _, l := range steps {
		run, err := strconv.Atoi(l.Text)
		if err != nil || run <= last || l.Token < token {
			t.Errorf("run %s of token %#x after run %d of token %#x", l.Text, l.Token, last, token)
		}
		last, token = run, l.Token
	}
	if missing := runs.Value - len(steps); missing < 0 || missing > kills+1 || len(steps) <= kills {
		t.Errorf("%d runs are counted and %d reported; %d leaders were killed", runs.Value, len(steps), kills+1)
	}
}

// With one attempt for each item, an item whose handler the deployment has stopped is no dead
// letter, and no attempt of it is counted.
func serviceStopped(t *testing.T, e servers) {
	s := newStage(t, e)
	queue := s.lock
	c := s.client()
	q := coord.NewQueue(c, queue, &coord.QueueOptions[string]{Codec: coord.Text(), MaxAttempts: 1})
	const n = 8 // three in handlers, two prefetched, three in the queue
	for i := range n {
		if _, err := q.Put(t.Context(), strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // deployments
		a := s.start("service", mostTimeout, 0)
		a.tell("jobs " + queue)
		for range 3 {
			if l := a.await("running"); l.Attempt != 1 {
				t.Errorf("attempt %d of %v", l.Attempt, l.Items)
			}
		}
		a.signal(syscall.SIGTERM)
		if l := a.await("served"); l.Text != "ok" {
			t.Errorf("the service ended with: %s", l.Text)
		}
		a.Kill()
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for i := range n {
		it, err := q.Take(ctx)
		if err != nil {
			t.Error(err)
			break // the dead letters tell where the item is
		}
		if it.Value != strconv.Itoa(i) || it.Attempt != 1 {
			t.Errorf("item %s in attempt %d, want %d in attempt 1", it.Value, it.Attempt, i)
		}
		if err := it.Ack(); err != nil {
			t.Error(err)
		}
	}
	for dead, err := range q.Dead(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("a dead letter: %+v", dead)
	}
}

// A process that is paused for longer than its session loses its shards to the other one. Its
// first writes after the pause are refused, and later it owns half of the shards again.
func shardsOfAPausedProcess(t *testing.T, e servers) {
	const n = 8
	s := newStage(t, e)
	path := s.lock
	c := s.client()
	txn := coord.NewTxn(c)
	for i := range n {
		txn.CreateAll(fmt.Sprintf("/data%s/%d", path, i), nil, backend.Persistent)
	}
	if _, err := txn.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b := s.start("a", queueTimeout, shortMargin), s.start("b", queueTimeout, shortMargin)
	shards := coord.NewShards(c, path, n, nil)
	owned := func(what string, ok func(ofA, ofB int) bool) {
		t.Helper()
		eventually(t, what, func() bool {
			owners, err := shards.Owners(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			by := make(map[string]int)
			for _, o := range owners {
				by[o.ID]++
			}
			return ok(by["a"], by["b"])
		})
	}
	a.tell(fmt.Sprintf("pieces %s %d", path, n))
	b.tell(fmt.Sprintf("pieces %s %d", path, n))
	half := func(ofA, ofB int) bool { return ofA == n/2 && ofB == n/2 }
	for range rounds(1) {
		owned("each owns half", half)
		mark := a.mark()
		a.signal(syscall.SIGSTOP)
		owned("b owns all", func(_, ofB int) bool { return ofB == n })
		a.signal(syscall.SIGCONT)
		owned("each owns half again", half)
		eventually(t, "a writes again", func() bool { return a.hasSaid(mark, "ran") })
	}
	tokens := make(map[string]int64) // by shard
	for _, l := range ran(a, b) {
		if l.Token < tokens[l.Text] {
			t.Errorf("shard %s: a write with token %#x after %#x", l.Text, l.Token, tokens[l.Text])
		}
		tokens[l.Text] = l.Token
	}
	if len(tokens) != n {
		t.Errorf("writes to %d shards, want %d", len(tokens), n)
	}
}
