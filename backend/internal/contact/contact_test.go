package contact

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
	l.Renew(at(1*s, -100*s)) // the wall clock was set back
	if left := l.Left(at(4*s, -97*s)); left != 7*s {
		t.Errorf("renewed after the wall clock was set back: %v left", left)
	}
	l.Renew(at(1*s/2, 50*s)) // overtaken, and the wall clock had been ahead
	if left := l.Left(at(4*s, -97*s)); left != 7*s {
		t.Errorf("renewed by an answer that was overtaken: %v left", left)
	}
	l.Renew(at(3*s, 3*s))
	l.Renew(at(2*s, 2*s)) // an answer that was overtaken
	if left := l.Left(at(4*s, 4*s)); left != 9*s {
		t.Errorf("renewed: %v left", left)
	}
}

// next returns what a round tries, in order, and the pause before it.
func (s *Servers) next() (pause time.Duration, order []string) {
	pause = s.round()
	left := s.Targets()
	for len(left) > 0 {
		t := s.take(left)
		left = slices.DeleteFunc(left, func(other Target) bool { return other == t })
		order = append(order, t.Server)
	}
	return pause, order
}

func TestServersAreTriedInTurnWithPausesBetweenRounds(t *testing.T) {
	h := NewServers([]string{"a", "b", "c"}, nil, 10*time.Second)
	_, first := h.next()
	for round := 1; round < 12; round++ {
		pause, order := h.next()
		if !slices.Equal(order, first) || slices.Max(order) != "c" || slices.Min(order) != "a" {
			t.Errorf("round %d: %v after %v", round, order, first)
		}
		if most := min(FirstPause<<(round-1), time.Second); pause > most || pause < most/2 {
			t.Errorf("round %d: a pause of %v, at most %v", round, pause, most)
		}
	}
	// The server that had contact comes last, and one that failed behind it.
	h.Failed(Target{first[0], first[0]})
	h.take([]Target{{first[1], first[1]}})
	h.Answered(Target{first[1], first[1]})
	if pause, order := h.next(); pause != 0 || !slices.Equal(order, []string{first[2], first[1], first[0]}) {
		t.Errorf("after contact: %v of %v, a pause of %v", order, first, pause)
	}
}

func TestContactThatNeverLastsIsRetriedMoreAndMoreSlowly(t *testing.T) {
	for _, servers := range [][]string{{"a"}, {"a", "b", "c"}} {
		h := NewServers(servers, nil, 30*time.Second)
		if h.Spell() != 3*time.Second {
			t.Errorf("contact must last for %v", h.Spell())
		}
		again := func(most time.Duration) {
			t.Helper()
			if p := h.round(); p > most || p < most/2 {
				t.Errorf("%v: a pause of %v, at most %v", servers, p, most)
			}
		}
		for range 2 {
			h.Answered(Target{})
			again(0) // one blip is nothing
			for i := range 12 {
				h.Answered(Target{})
				again(min(FirstPause<<i, MostPause))
			}
			h.Answered(Target{})
			h.Lasted()
			again(0)
			h.Answered(Target{})
			h.Lasted()
		}
	}
}

func TestAddressesAreCompleted(t *testing.T) {
	for in, want := range map[string]string{
		"a": "a:2181", "a:1": "a:1", "10.0.0.1": "10.0.0.1:2181", "::1": "[::1]:2181", "fe80::1%eth0": "[fe80::1%eth0]:2181", "[fe80::1%eth0]": "[fe80::1%eth0]:2181", "[fe80::1%eth0]:3": "[fe80::1%eth0]:3", "[::1]": "[::1]:2181", "[::1]:3": "[::1]:3",
	} {
		if got, err := Addresses([]string{in, in}, "2181", "server"); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, bad := range [][]string{nil, {""}, {"a:b:c"}, {"a:0"}, {"a:99999"}, {"a b"}, {"a,"}, {"a", "b/c"}, {"fe80::1%"}, {"http://a"}} {
		if _, err := Addresses(bad, "2181", "server"); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAddresses_AConnectionStringOfOtherClients(t *testing.T) {
	got, err := Addresses([]string{"zk1:2181, zk2:2182/", " zk3"}, "2181", "server")
	if want := []string{"zk1:2181", "zk2:2182", "zk3:2181"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for server, want := range map[string]string{
		"zk1:2181,zk2:2181/app/x": `write "zk2:2181", and the path as Namespace "/app/x" of coord.Options`,
		"zookeeper://zk1:2181":    `write "zk1:2181", without zookeeper://`,
		"zk1:2181,":               `an empty server in ["zk1:2181,"]`,
		"zk1:none":                `server "zk1:none": write host or host:port`,
	} {
		if _, err := Addresses([]string{server}, "2181", "server"); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", server, err)
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
	o := NewOutage(NewServers([]string{"a", "b"}, nil, time.Second))
	now := Instant{}
	a, b := Target{"a", "a"}, Target{"b", "b"}
	o.Trying(a, now)
	o.Failed(a, fmt.Errorf("no connection: %w", context.DeadlineExceeded))
	if r := o.Report(now); r == nil || r.All || r.Attempts != 1 {
		t.Errorf("the report of the first failure: %+v", r)
	}
	o.Trying(b, now)
	waiting := o.Error(nil, Instant{Mono: 2 * time.Second})
	if want := "b: no connection within 2s"; !strings.Contains(waiting.Error(), want) {
		t.Errorf("%q does not contain %q", waiting, want)
	}
	o.Accepted(b)
	waiting = o.Error(context.DeadlineExceeded, Instant{Mono: 2 * time.Second})
	if want := "b: it accepts connections, and gave no answer within 2s"; !strings.Contains(waiting.Error(), want) || !errors.Is(waiting, backend.ErrNoContact) {
		t.Errorf("%q does not contain %q", waiting, want)
	}
	o.Failed(b, backend.ErrDenied)
	report := o.Report(now)
	if report == nil || !report.All || report.Attempts != 2 {
		t.Fatalf("the report %+v", report)
	}
	if r := o.Report(now); r != nil {
		t.Errorf("a report too many: %+v", r)
	}
	err := o.Error(context.Canceled, now)
	if !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrDenied) ||
		!errors.Is(err, backend.ErrNoContact) || errors.Is(o.Error(backend.ErrDenied, now), backend.ErrNoContact) {
		t.Errorf("%v matches wrong errors", err)
	}
	var cut *backend.NoContactError
	if errors.As(o.Error(backend.ErrDenied, now), &cut) || !errors.As(o.Error(context.Canceled, Instant{Mono: 3 * time.Second}), &cut) ||
		!errors.Is(cut, context.Canceled) || cut.For != 3*time.Second {
		t.Fatalf("as a NoContactError: %+v", cut)
	}
	for _, server := range []string{"a: no connection", "b: permission denied"} {
		if !strings.Contains(err.Error(), server) || !strings.Contains(cut.Why, server) {
			t.Errorf("%q or %q does not name %q", err, cut.Why, server)
		}
	}
	o.Over()
	if err := o.Error(nil, now); !strings.Contains(err.Error(), "no answer yet") {
		t.Errorf("after the outage: %v", err)
	}
}

func TestPauses_ALateLookIsTold(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name       string
		mono, wall time.Duration // since the latest look, which was to come again after a second
		late       time.Duration // 0: nothing is told
		asleep     bool
	}{
		{"in time", s, s, 0, false},
		{"a little late", 3 * s, 3 * s, 0, false},
		{"a third of the timeout", 4 * s, 4 * s, 0, false},
		{"more", 4*s + 1, 4*s + 1, 3*s + 1, false},
		{"beyond the timeout", 60 * s, 60 * s, 59 * s, false},
		{"the machine was suspended", s, 60 * s, 59 * s, true},
		{"the wall clock was set back", 9 * s, -100 * s, 8 * s, false},
	} {
		var p Pauses
		told := 0
		p.Look(Instant{Mono: 100 * s, Wall: 1000 * s}) // nothing is due, and nothing told
		p.Next(Instant{}, s, 12*s)
		p.Tell(func(late time.Duration, asleep bool) {
			if told++; late != test.late || asleep != test.asleep {
				t.Errorf("%s: %v, asleep: %t; want %v, %t", test.name, late, asleep, test.late, test.asleep)
			}
		})
		for range 2 {
			p.Look(Instant{Mono: test.mono, Wall: test.wall})
		}
		if (told == 1) != (test.late > 0) || told > 1 {
			t.Errorf("%s: told %d times", test.name, told)
		}
	}
}
