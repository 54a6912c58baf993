package coordtest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/coordtest"
)

// The tests in this file are those of a user: each has a small service and a fault that it must
// survive, and runs in memory and on ZooKeeper.

// work calls task under a lock, again and again, until ctx ends.
func work(ctx context.Context, c *coord.Client, task func(ctx context.Context)) {
	lock := coord.NewMutex(c, "/locks/work", nil)
	for ctx.Err() == nil {
		_ = lock.Do(ctx, func(ctx context.Context, _ *coord.Hold) error { // the next turn tries again
			task(ctx)
			return nil
		})
	}
}

func TestAWorkerStopsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	coordtest.Each(t, &coordtest.Options{SessionTimeout: 6 * time.Second}, func(t *testing.T, s *coordtest.Service) {
		events := make(chan string, 10)
		start := func(name string) {
			c := s.Client(name, nil)
			go work(t.Context(), c, func(ctx context.Context) {
				events <- name + " works"
				<-ctx.Done()
				events <- name + " stops"
			})
		}
		start("a")
		if got := <-events; got != "a works" {
			t.Fatal(got)
		}
		start("b")
		s.Link("a").Blackhole(true)
		for _, want := range []string{"a stops", "b works"} { // in this order
			if got := <-events; got != want {
				t.Fatalf("%s, want: %s", got, want)
			}
		}
	})
}

// runDaily runs a job unless it has been run on that day.
func runDaily(ctx context.Context, c *coord.Client, day string, job func()) error {
	return coord.NewMutex(c, "/jobs/lock", nil).Do(ctx, func(ctx context.Context, h *coord.Hold) error {
		latest := coord.NewValue[string](c, "/jobs/latest", nil)
		v, err := latest.Get(ctx)
		if err == nil && v.Value == day {
			return nil
		}
		if err != nil && !errors.Is(err, coord.ErrNotFound) {
			return err
		}
		job()
		_, err = coord.NewTxn(c).Under(h.Guard()).Add(latest.SetOp(day)).Commit(ctx)
		return err
	})
}

func TestAJobRunsOnceAlthoughTheReplyOfItsCommitIsLost(t *testing.T) {
	t.Parallel()
	coordtest.Each(t, nil, func(t *testing.T, s *coordtest.Service) {
		runs := 0
		lost := s.Link("a").DropReply(1, "/jobs/latest")
		for _, name := range []string{"a", "b", "a"} {
			if err := runDaily(t.Context(), s.Client(name, nil), "monday", func() { runs++ }); err != nil {
				t.Fatal(err)
			}
		}
		<-lost.Done()
		if runs != 1 {
			t.Errorf("the job ran %d times", runs)
		}
	})
}

// An account refuses writes with a token that is older than one that it has seen.
type account struct {
	mu    sync.Mutex
	token int64
	log   []string
}

func (a *account) write(token int64, text string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.token {
		return errors.New("the token is old")
	}
	a.token, a.log = token, append(a.log, text)
	return nil
}

func TestADeposedLeaderWritesNothing(t *testing.T) {
	t.Parallel()
	coordtest.Each(t, &coordtest.Options{SessionTimeout: 3 * time.Second}, func(t *testing.T, s *coordtest.Service) {
		var books account
		lead := func(name string) *coord.Term {
			term, err := coord.NewElection(s.Client(name, nil), "/leader", &coord.ElectionOptions{ID: name}).Campaign(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return term
		}
		a := lead("a")
		if err := books.write(a.Token(), "of a"); err != nil {
			t.Fatal(err)
		}
		s.Link("a").Blackhole(true) // a does not learn that its session has ended
		s.Link("a").Expire()
		b := lead("b")
		if err := books.write(b.Token(), "of b"); err != nil {
			t.Fatal(err)
		}
		if err := books.write(a.Token(), "of a again"); err == nil {
			t.Errorf("a deposed leader has written: %q", books.log)
		}
		<-a.Done() // its lease has passed, at the latest
	})
}

// follow applies each configuration until ctx ends.
func follow(ctx context.Context, c *coord.Client, apply func(level string)) {
	for v := range coord.NewValue[string](c, "/config/level", nil).Watch(ctx) {
		if v.Err == nil {
			apply(v.Value)
		}
	}
}

func TestAChangeOfTheConfigurationReachesTheService(t *testing.T) {
	t.Parallel()
	coordtest.Each(t, nil, func(t *testing.T, s *coordtest.Service) {
		level := coord.NewValue[string](s.Client("admin", nil), "/config/level", nil)
		applied := make(chan string, 10)
		go follow(t.Context(), s.Client("service", nil), func(level string) { applied <- level })
		change := func(to string) {
			if _, err := level.Set(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			for got := range applied {
				if got == to { // latest-wins: others can be skipped
					return
				}
			}
		}
		change("info")
		s.Link("service").Cut()
		change("debug")
		s.Link("service").Expire()
		change("warn")
	})
}
