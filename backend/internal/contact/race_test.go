package contact

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakes are servers for a Race. A server is silent unless answers has it: an error to fail with at once,
// or the time after its request at which it answers.
type fakes struct {
	t       *testing.T
	answers map[string]any
	servers *Servers

	mu      sync.Mutex
	began   []string // the attempts, each with its time since the start
	dropped []string
	open    int
	start   time.Time
}

func newFakes(t *testing.T, answers map[string]any, lookup Lookup, servers ...string) *fakes {
	return &fakes{t: t, answers: answers, servers: NewServers(servers, lookup, 10*time.Second), start: time.Now()}
}

func (f *fakes) race(newest bool) *Race[string] {
	return &Race[string]{
		Servers: f.servers,
		Times:   func(int) (time.Duration, time.Duration) { return 5 * time.Second, 5 * time.Second },
		Newest:  newest,
		Begun: func(t Target) {
			f.began = append(f.began, fmt.Sprintf("%s@%v", t.Address, time.Since(f.start)))
		},
		Failed: func(Target, error) error { return nil },
		Drop: func(c string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.dropped = append(f.dropped, c)
			f.open--
		},
		Go: func(f func()) { go f() },
		Try: func(ctx context.Context, a *Attempt) (string, error) {
			f.mu.Lock()
			answer := f.answers[a.Address]
			f.mu.Unlock()
			if err, ok := answer.(error); ok {
				return "", err
			}
			delay, ok := answer.(time.Duration)
			if answer == nil { // a black hole
				<-ctx.Done()
				return "", ctx.Err()
			}
			if !a.Ask() {
				return "", ErrBeaten
			}
			if !ok { // it accepts, and never answers
				<-ctx.Done()
				return "", ctx.Err()
			}
			select {
			case <-time.After(delay):
				f.mu.Lock()
				defer f.mu.Unlock()
				f.open++
				return a.Address, nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		},
	}
}

// order makes the servers be tried in this order.
func (f *fakes) order(addresses ...string) *fakes {
	for i, a := range addresses {
		for t, h := range f.servers.history {
			if t.Address == a {
				h.rank = uint64(i)
			}
		}
	}
	return f
}

func (f *fakes) run(newest bool, want string, after time.Duration, began ...string) {
	f.t.Helper()
	f.start, f.began = time.Now(), nil
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	got, _, err := f.race(newest).Run(ctx)
	if took := time.Since(f.start); err != nil || got != want || took != after {
		f.t.Errorf("%s after %v, %v; want %s after %v", got, took, err, want, after)
	}
	if began != nil && !slices.Equal(f.began, began) {
		f.t.Errorf("the attempts: %v, want %v", f.began, began)
	}
}

// end checks that every connection but the winner was dropped.
func (f *fakes) end(dropped ...string) {
	f.t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.dropped)
	if f.open != 1 || !slices.Equal(f.dropped, dropped) {
		f.t.Errorf("%d connections are open, and dropped are %v, want %v", f.open, f.dropped, dropped)
	}
}

const (
	msec    = time.Millisecond
	accepts = "accepts, and never answers"
)

func TestRace_ABlackHoleDelaysTheNextAttemptByAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, map[string]any{"c": msec}, nil, "a", "b", "c").order("a", "b", "c")
		f.run(true, "c", 501*msec, "a@0s", "b@250ms", "c@500ms")
		// What was silent then comes last from now on.
		f.servers.Answered(Target{"c", "c"})
		f.servers.Lasted()
		f.answers["c"] = errors.New("refused")
		f.answers["b"] = 2 * msec
		f.open--
		f.run(true, "b", 250*msec+2*msec, "c@0s", "a@0s", "b@250ms")
		f.end()
	})
}

func TestRace_AServerThatAcceptsIsGivenASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, map[string]any{"a": accepts, "b": msec}, nil, "a", "b").order("a", "b")
		f.run(true, "b", 1001*msec, "a@0s", "b@1s")
		f.end()
	})
}

func TestRace_AFailureLetsTheNextAttemptBeginAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		no := errors.New("refused")
		f := newFakes(t, map[string]any{"a": no, "b": no, "c": msec}, nil, "a", "b", "c").order("a", "b", "c")
		f.run(true, "c", msec, "a@0s", "b@0s", "c@0s")
		f.end()
	})
}

// A lone server never gets the first request, as if its listen queue had been full.
func TestRace_ALoneServerIsAskedAgainBesideTheFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, map[string]any{"a": accepts}, nil, "a")
		time.AfterFunc(900*msec, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.answers["a"] = msec
		})
		r := f.race(true)
		_, _, err := r.Run(t.Context())
		if took := time.Since(f.start); err != nil || took < time.Second || took > 1100*msec || len(f.began) != 2 {
			t.Errorf("after %v, %v: %v", took, err, f.began)
		}
		f.end()
	})
}

// Each answer of a lone server takes longer than the time after which the next attempt begins.
func TestRace_ASlowServerIsWaitedFor(t *testing.T) {
	for _, newest := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakes(t, map[string]any{"a": 1500 * msec}, nil, "a")
			got, _, err := f.race(newest).Run(t.Context())
			took := time.Since(f.start)
			if err != nil || got != "a" || len(f.began) != 2 {
				t.Errorf("after %v, %v: %v", took, err, f.began)
			}
			// The second request is sent a second and a pause after the first. Only the connection of the
			// second one is good, if the server keeps the latest one.
			if newest && (took < 2500*msec || took > 2550*msec) || !newest && took != 1500*msec {
				t.Errorf("newest %v: after %v", newest, took)
			}
			f.end("a")
		})
	}
}

// The answer to the latest request does not come: after a while the earlier one will do.
func TestRace_AnAnswerWaitsForTheLatestRequestOnlyAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, map[string]any{"a": 1500 * msec, "b": accepts}, nil, "a", "b").order("a", "b")
		f.run(true, "a", 2750*msec, "a@0s", "b@1s")
		f.end()
	})
	synctest.Test(t, func(t *testing.T) { // final answers do not wait
		f := newFakes(t, map[string]any{"a": 1500 * msec, "b": accepts}, nil, "a", "b").order("a", "b")
		r := f.race(true)
		r.Final = func(c string) bool { return c == "a" }
		if got, _, err := r.Run(t.Context()); got != "a" || err != nil || time.Since(f.start) != 1500*msec {
			t.Errorf("%s after %v, %v", got, time.Since(f.start), err)
		}
		f.end()
	})
	synctest.Test(t, func(t *testing.T) { // nor do answers to the latest request
		f := newFakes(t, map[string]any{"a": 3 * time.Second, "b": 10 * msec}, nil, "a", "b").order("a", "b")
		f.run(true, "b", 1010*msec, "a@0s", "b@1s")
		f.end()
	})
}

// Without Newest a request that was sent can have made something on the server. Its connection is not
// cut, so that it can be undone.
func TestRace_WhatWasAskedIsDroppedWhenItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, map[string]any{"a": 3 * time.Second, "b": 10 * msec}, nil, "a", "b").order("a", "b")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if got, _, err := f.race(false).Run(ctx); got != "b" || err != nil {
			t.Errorf("%s, %v", got, err)
		}
		f.end("a")
	})
}

func TestRace_NotMoreThanTwoAttemptsAtOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, map[string]any{"a": accepts}, nil, "a")
		var mu sync.Mutex
		now, most := 0, 0
		r := f.race(true)
		try := r.Try
		r.Try = func(ctx context.Context, a *Attempt) (string, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			defer func() {
				mu.Lock()
				now--
				mu.Unlock()
			}()
			return try(ctx, a)
		}
		var failures []string
		r.Failed = func(_ Target, err error) error {
			failures = append(failures, err.Error())
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := r.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if most > 3 || now != 0 { // an attempt that is replaced needs a moment to end
			t.Errorf("%d attempts at a time, %d at the end", most, now)
		}
		if len(f.began) < 12 || len(f.began) > 40 || len(failures) == 0 || !strings.HasPrefix(failures[0], "it accepts connections, and gave no answer within 2") {
			t.Errorf("%d attempts in a minute; failures %v", len(f.began), failures)
		}
	})
}

// Names are looked up in each round. An address that is gone is not tried again, a lookup that fails
// or hangs leaves the addresses of before.
func TestRace_NamesAreLookedUpInEachRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addrs, fails, hangs := []string{"10.0.0.1", "10.0.0.2"}, false, false
		var lookups atomic.Int32
		lookup := func(ctx context.Context, host string) (all []netip.Addr, err error) {
			lookups.Add(1)
			switch {
			case host != "name.test":
				t.Errorf("lookup of %q", host)
			case hangs:
				<-ctx.Done()
				return nil, ctx.Err()
			case fails:
				return nil, errors.New("no name server")
			}
			for _, a := range addrs {
				all = append(all, netip.MustParseAddr(a))
			}
			return all, nil
		}
		f := newFakes(t, map[string]any{"10.0.0.1:1": msec}, lookup, "name.test:1")
		reach := func(want string, most time.Duration) {
			t.Helper()
			start := time.Now()
			f.began = nil
			got, at, err := f.race(true).Run(t.Context())
			if took := time.Since(start); err != nil || got != want || at.Server != "name.test:1" || at.String() != "name.test:1 ("+want+")" || took > most {
				t.Errorf("%s (%v) after %v, %v; want %s: %v", got, at, took, err, want, f.began)
			}
			f.servers.Answered(at)
			f.servers.Lasted()
			f.open--
		}
		reach("10.0.0.1:1", 251*msec)
		addrs = []string{"10.0.0.2", "10.0.0.3"}
		f.answers = map[string]any{"10.0.0.3:1": msec}
		reach("10.0.0.3:1", 251*msec)
		if slices.ContainsFunc(f.began, func(s string) bool { return strings.HasPrefix(s, "10.0.0.1:") }) {
			t.Errorf("an address that is gone is tried: %v", f.began)
		}
		fails = true
		reach("10.0.0.3:1", 251*msec)
		hangs = true
		reach("10.0.0.3:1", 502*msec+FirstPause)
		if n := lookups.Load(); n != 4 {
			t.Errorf("%d lookups", n)
		}
		f.open++
		f.end()
	})
}

// A name that cannot be found delays no other server, and is reported.
func TestRace_ALookupThatFailsOrHangs(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			lookup := func(ctx context.Context, host string) ([]netip.Addr, error) {
				if hangs {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, errors.New("no such host")
			}
			f := newFakes(t, map[string]any{"10.0.0.1:1": msec}, lookup, "name.test:1", "10.0.0.1:1")
			f.run(true, "10.0.0.1:1", msec, "10.0.0.1:1@0s")
			f.end()

			var failed []string
			f = newFakes(t, nil, lookup, "name.test:1")
			r := f.race(true)
			stop := errors.New("enough")
			r.Failed = func(at Target, err error) error {
				failed = append(failed, at.String()+": "+err.Error())
				if len(failed) == 3 {
					return stop
				}
				return nil
			}
			if _, _, err := r.Run(t.Context()); err != stop || !strings.HasPrefix(failed[0], "name.test:1: ") {
				t.Errorf("%v: %v", err, failed)
			}
		})
	}
}

func TestServers_LookupPutsOneAddressFirst(t *testing.T) {
	lookup := func(_ context.Context, host string) ([]netip.Addr, error) {
		if host == "gone" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}, nil
	}
	var got []string
	for _, target := range NewServers([]string{"9.0.0.1:1", "gone:1", "name:1"}, lookup, time.Second).Lookup(t.Context(), "10.0.0.2:1") {
		got = append(got, target.String())
	}
	if want := []string{"name:1 (10.0.0.2:1)", "9.0.0.1:1", "gone:1", "name:1 (10.0.0.1:1)"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
