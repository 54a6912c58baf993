package schedule

import (
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/serviceclock"
	"github.com/go-coord/coord/internal/usercode"
)

// A Timetable is coord.Timetable.
type Timetable interface {
	Next(t time.Time) time.Time
}

// Every is the Timetable of an interval.
type Every time.Duration

const shortest = Every(time.Millisecond) // of the intervals

// Next returns the first multiple of the interval after t.
func (e Every) Next(t time.Time) time.Time {
	if e < shortest {
		return t // refused by next
	}
	return t.Round(0).Truncate(time.Duration(e)).Add(time.Duration(e))
}

// OncePerReading is coord.OncePerReading.
func OncePerReading(t Timetable, at *time.Location) Timetable { return &oncePerReading{t, at} }

type oncePerReading struct {
	Timetable
	at *time.Location
}

// Next leaves out the times in an hour that is repeated. Those are the times after the clocks were set back, for as
// long as they were set back.
func (o *oncePerReading) Next(t time.Time) time.Time {
	for {
		n := o.Timetable.Next(t)
		if n.IsZero() || !n.After(t) {
			return n
		}
		local := n.In(o.at)
		begin, _ := local.ZoneBounds()
		if begin.IsZero() {
			return n
		}
		_, before := begin.Add(-time.Nanosecond).Zone()
		_, now := local.Zone()
		if repeated := time.Duration(before-now) * time.Second; local.Sub(begin) >= repeated {
			return n
		}
		t = n
	}
}

// next returns the first planned time after t, in milliseconds since 1970, or 0 if there is none before the year 10000.
func next(tt Timetable, t int64) (int64, error) {
	if e, ok := tt.(Every); ok && e < shortest {
		return 0, fmt.Errorf("%w: Every(%v) as the Timetable, want at least %v", backend.ErrInvalid, time.Duration(e), time.Duration(shortest))
	}
	from := time.UnixMilli(t)
	n := tt.Next(from)
	if n.IsZero() || n.After(time.UnixMilli(layout.MaxDeadline)) {
		return 0, nil
	}
	if !n.After(from) {
		return 0, fmt.Errorf("%w: the Timetable returned %v as the planned time after %v", backend.ErrInvalid, n, from)
	}
	return serviceclock.Milliseconds(n), nil
}

// latest returns the latest planned time in (after, until], or 0 if there is none. It calls Next some 40 times, however
// many planned times there are: Next(t) does not decrease when t grows.
func latest(tt Timetable, after, until int64) (int64, error) {
	var failed error
	passed := func(t int64) bool {
		n, err := next(tt, t)
		if err != nil && failed == nil {
			failed = err
		}
		return n > 0 && n <= until
	}
	if until <= after || !passed(after) {
		return 0, failed
	}
	// A planned time has passed after low, and none after high.
	low, high := after, until
	for high-low > 1 {
		if mid := low + (high-low)/2; passed(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	if failed != nil {
		return 0, failed
	}
	return next(tt, low)
}

// useTimetable calls f, which calls the Timetable, a method of the program.
func (s *Schedule) useTimetable(f func() error) error {
	err := s.c.Call("Next of a Timetable", []any{"path", s.path.Full()}, f)
	if usercode.As(err) != nil {
		return fmt.Errorf("%w: Timetable: %w", backend.ErrInvalid, err)
	}
	return err
}
