package contact

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

func TestALeasePassesByEitherClock(t *testing.T) {
	const s = time.Second
	at := func(mono, wall time.Duration) Instant { return Instant{mono, 1000*s + wall} }
	l := Lease{From: at(0, 0), Length: 10 * s}
	for _, test := range []struct {
		name string
		now  Instant
		left time.Duration
	}{
		{"both go on", at(4*s, 4*s), 6 * s},
		{"the machine was suspended", at(1*s, 30*s), -20 * s},
		{"the wall clock was set back", at(4*s, -100*s), 6 * s},
		{"to the end", at(10*s, 10*s), 0},
	} {
		if left := l.Left(test.now); left != test.left {
			t.Errorf("%s: %v left, want %v", test.name, left, test.left)
		}
	}
	l.Renew(at(3*s, 3*s))
	l.Renew(at(2*s, 2*s)) // an answer that was overtaken
	if left := l.Left(at(4*s, 4*s)); left != 9*s {
		t.Errorf("renewed: %v left", left)
	}
}

func TestServersAreTriedInTurnWithPausesBetweenRounds(t *testing.T) {
	h := NewServers([]string{"a", "b", "c"}, 10*time.Second)
	seen := make(map[string]int)
	for round := range 12 {
		for i := range 3 {
			seen[h.Next()]++
			most := time.Duration(0)
			if round > 0 && i == 0 {
				most = min(FirstPause<<(round-1), time.Second)
			}
			if p := h.Pause(); p > most || p < most/2 {
				t.Errorf("round %d, server %d: a pause of %v, at most %v", round, i, p, most)
			}
		}
	}
	if seen["a"] != 12 || seen["b"] != 12 || seen["c"] != 12 {
		t.Errorf("tried: %v", seen)
	}
	h.Answered()
	if h.Next(); h.Pause() != 0 {
		t.Error("a pause before the first server is tried again")
	}
}

func TestContactThatNeverLastsIsRetriedMoreAndMoreSlowly(t *testing.T) {
	for _, servers := range [][]string{{"a"}, {"a", "b", "c"}} {
		h := NewServers(servers, 30*time.Second)
		if h.Spell() != 3*time.Second {
			t.Errorf("contact must last for %v", h.Spell())
		}
		again := func(most time.Duration) {
			t.Helper()
			h.Next()
			if p := h.Pause(); p > most || p < most/2 {
				t.Errorf("%v: a pause of %v, at most %v", servers, p, most)
			}
		}
		for range 2 {
			h.Next()
			h.Answered()
			again(0) // one blip is nothing
			for i := range 12 {
				h.Answered()
				again(min(FirstPause<<i, MostPause))
			}
			h.Answered()
			h.Lasted()
			again(0)
			h.Answered()
			h.Lasted()
		}
	}
}

func TestAddressesAreCompleted(t *testing.T) {
	for in, want := range map[string]string{
		"a": "a:2181", "a:1": "a:1", "10.0.0.1": "10.0.0.1:2181", "::1": "[::1]:2181", "[::1]": "[::1]:2181", "[::1]:3": "[::1]:3",
	} {
		if got, err := Addresses([]string{in, in}, "2181", "server"); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, bad := range [][]string{nil, {""}, {"a:b:c"}, {"a:0"}, {"a:99999"}, {"a,b"}, {"a", "b/c"}} {
		if _, err := Addresses(bad, "2181", "server"); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestTimesAreChecked(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		timeout, margin time.Duration
		lease           time.Duration // of a granted timeout of 12 s; 0: the times are invalid
	}{
		{0, 0, 8 * s}, {9 * s, 3 * s, 9 * s}, {10 * s, 0, 8 * s}, {time.Millisecond, 0, 8 * s},
		{-1, 0, 0}, {time.Microsecond, 0, 0}, {math.MaxInt64, 0, 0}, {s, s, 0}, {s, -1, 0}, {0, DefaultTimeout, 0},
	} {
		times, err := CheckTimes(test.timeout, test.margin, time.Hour)
		switch {
		case test.lease == 0 && !errors.Is(err, backend.ErrInvalid):
			t.Errorf("%v, %v: %v", test.timeout, test.margin, err)
		case test.lease > 0 && (err != nil || times.Lease(12*s) != test.lease):
			t.Errorf("%v, %v: %v, a lease of %v", test.timeout, test.margin, err, times.Lease(12*s))
		}
	}
}

func TestAnOutageNamesEachServerAndMatchesTheCauseOnly(t *testing.T) {
	o := NewOutage([]string{"a", "b"})
	now := Instant{}
	if o.Report(now) != nil {
		t.Error("a report before each server was tried")
	}
	o.Failed("a", fmt.Errorf("no connection: %w", context.DeadlineExceeded))
	o.Failed("b", backend.ErrDenied)
	report := o.Report(now)
	if report == nil || report.Attempts != 2 {
		t.Fatalf("the report %+v", report)
	}
	err := o.Error(context.Canceled)
	if !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrDenied) {
		t.Errorf("%v matches wrong errors", err)
	}
	for _, server := range []string{"a: no connection", "b: permission denied"} {
		if !strings.Contains(err.Error(), server) {
			t.Errorf("%q does not name %q", err, server)
		}
	}
	o.Over()
	if err := o.Error(nil); !strings.Contains(err.Error(), "no answer yet") {
		t.Errorf("after the outage: %v", err)
	}
}
