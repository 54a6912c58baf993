package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/layout"
)

type counted struct {
	Every
	calls int
}

func (c *counted) Next(t time.Time) time.Time {
	c.calls++
	return c.Every.Next(t)
}

func TestLatest_CostsFewCalls(t *testing.T) {
	tt := &counted{Every: Every(time.Second)}
	const year = 365 * 24 * 3600 * 1000
	for _, tc := range []struct{ after, until, want int64 }{
		{0, 40*year + 999, 40 * year}, {0, 999, 0}, {0, 1000, 1000}, {999, 1000, 1000}, {1000, 1000, 0}, {1000, 1999, 0}, {2000, 1000, 0},
	} {
		tt.calls = 0
		if got, err := latest(tt, tc.after, tc.until); got != tc.want || err != nil || tt.calls > 64 {
			t.Errorf("latest in (%d, %d]: %d, %v, after %d calls; want %d", tc.after, tc.until, got, err, tt.calls, tc.want)
		}
	}
}

func TestLatest_IsTheLastOfAll(t *testing.T) {
	var times []int64 // of an irregular Timetable
	for at := int64(1); at < 100_000; at += 1 + rand.Int64N(3000) {
		times = append(times, at)
	}
	tt := list(times)
	for range 2000 {
		after, until := rand.Int64N(110_000), rand.Int64N(110_000)
		want := int64(0)
		for _, at := range times {
			if at > after && at <= until {
				want = at
			}
		}
		if got, err := latest(tt, after, until); got != want || err != nil {
			t.Fatalf("latest in (%d, %d]: %d, %v, want %d of %v", after, until, got, err, want, times)
		}
	}
}

// list is a Timetable of given times, in milliseconds.
type list []int64

func (l list) Next(t time.Time) time.Time {
	i, _ := slices.BinarySearch(l, t.UnixMilli()+1)
	if i == len(l) {
		return time.Time{}
	}
	return time.UnixMilli(l[i])
}

// Leaders with clocks that are wrong by up to an hour, or by years, follow one another. No planned time is claimed twice,
// and a leader whose clock is right claims each planned time of its term that was not claimed before.
func TestPlan_NoPlannedTimeIsClaimedTwiceWhateverTheClocks(t *testing.T) {
	const minute = int64(time.Minute / time.Millisecond)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := &Schedule{tt: Every(time.Minute), o: Config{
			Missed: Missed(random.IntN(3)), MissedLimit: 1 + random.IntN(5), Grace: time.Duration(random.IntN(120)) * time.Second, Overlap: 1, Attempts: 1, History: 5,
		}}
		var st layout.ScheduleState
		claimed := make(map[int64]bool)
		real := 1000 * minute
		for term := range 12 {
			skew := random.Int64N(120*minute) - 60*minute
			right := random.IntN(2) == 0
			switch {
			case right:
				skew = 0
			case random.IntN(4) == 0:
				skew = 1_000_000 * minute
			}
			origin, until := real+skew, real+random.Int64N(30*minute)
			if st.Since == 0 {
				st.Since = origin
			}
			began := real
			for real < until {
				x, err := s.plan(&st, real+skew, origin, nil)
				if err != nil {
					t.Fatal(err)
				}
				if x.kind == stepWait {
					if x.wake == 0 {
						t.Fatalf("seed %d, term %d: no time to wake at", seed, term)
					}
					real = max(real+1, min(until, x.wake-skew))
					continue
				}
				if claimed[x.planned] {
					t.Fatalf("seed %d, term %d: %d is claimed again", seed, term, x.planned/minute)
				}
				claimed[x.planned] = true
				next := x.state.Clone()
				if !next.Claim(x.planned, x.follows) {
					t.Fatalf("seed %d, term %d: plan chose %d, which the state refuses: %v", seed, term, x.planned/minute, st.Claimed)
				}
				next.Since = min(next.Since, x.planned)
				data, err := next.Encode()
				if err != nil {
					t.Fatal(err)
				}
				if st, err = layout.ParseScheduleState(data); err != nil {
					t.Fatalf("%s: %v", data, err)
				}
			}
			for at := began/minute*minute + minute; right && at < until; at += minute {
				if !claimed[at] && at > began {
					t.Fatalf("seed %d, term %d: %d was left out; ranges %s", seed, term, at/minute, fmt.Sprint(st.Claimed))
				}
			}
			real += random.Int64N(10 * minute)
		}
	}
}

// A Timetable changes between two calls, which it must not, or returns the last time that Go has, for never. No planned time is
// claimed that the state could not hold, and the leader never waits for a time that is negative.
func TestPlan_ATimetableThatContradictsItselfClaimsNothing(t *testing.T) {
	const minute = int64(time.Minute / time.Millisecond)
	for name, tt := range map[string]func() Timetable{
		"it changes":    func() Timetable { return &changing{Every(time.Minute)} },
		"the last time": func() Timetable { return last{} },
	} {
		for _, missed := range []Missed{Skip, Once, All} {
			s := &Schedule{tt: tt(), o: Config{Missed: missed, MissedLimit: 3, Overlap: 1, Attempts: 1, History: 5}}
			st := layout.ScheduleState{Since: 1000 * minute}
			x, err := s.plan(&st, 1005*minute, 1000*minute, nil)
			if err != nil || x.kind != stepWait || x.wake < 0 {
				t.Errorf("%s, policy %d: %+v, %v", name, missed, x, err)
			}
		}
	}
}

// changing is a Timetable that has no more planned times after its first call.
type changing struct{ Timetable }

func (c *changing) Next(t time.Time) (n time.Time) {
	if c.Timetable != nil {
		n = c.Timetable.Next(t)
	}
	c.Timetable = nil
	return n
}

type last struct{}

func (last) Next(time.Time) time.Time { return time.Unix(1<<63-62135596801, 999999999) }

func TestOncePerReading_LeavesOutOnlyTheRepeatedHour(t *testing.T) {
	for _, tc := range []struct {
		zone     string
		from     time.Time
		repeated time.Duration
	}{
		{"Europe/Berlin", time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC), time.Hour},
		{"America/New_York", time.Date(2026, 10, 31, 12, 0, 0, 0, time.UTC), time.Hour},
		{"Australia/Lord_Howe", time.Date(2026, 4, 4, 0, 0, 0, 0, time.UTC), 30 * time.Minute},
		{"Europe/Berlin", time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), 0},
		{"UTC", time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), 0},
	} {
		zone, err := time.LoadLocation(tc.zone)
		if err != nil {
			t.Fatal(err)
		}
		tt := OncePerReading(Every(10*time.Minute), zone)
		n, seen, end := 0, make(map[string]bool), tc.from.Add(24*time.Hour)
		for at := tt.Next(tc.from); !at.After(end); at = tt.Next(at) {
			reading := at.In(zone).Format("02 15:04")
			if seen[reading] {
				t.Errorf("%s: %s is shown twice", tc.zone, reading)
			}
			seen[reading] = true
			n++
		}
		if want := int((24*time.Hour - tc.repeated) / (10 * time.Minute)); n != want {
			t.Errorf("%s: %d planned times, want %d", tc.zone, n, want)
		}
	}
}
