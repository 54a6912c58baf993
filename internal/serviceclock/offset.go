package serviceclock

import "time"

// An offset is an interval that contains the difference between the clock of the service and the local
// clock: service - local. All times are in nanoseconds. The
// local clock is the monotonic clock of the process, which cannot be set. The service's clock is a
// wall clock, counted from 1970.
//
// A sample is a write of this process. The service stamped it between its sending and its answer,
// and shows the stamp in whole milliseconds, rounded down. So if it was sent at t0 and answered at
// t1 by the local clock, and is stamped m, the difference was in [m - t1, m + 1 ms - t0] at the
// moment of the stamp. The offset is the intersection of the intervals of several samples. The interval of a
// sample widens with its age, since the clocks do not run equally fast: see drift.
//
// If the intersection is empty, the service's clock was set, or is another one. Then
// only the newest sample counts, by the position of its commit in the history of the service. A
// step of the service's clock by less than the width of a sample can go unnoticed; the interval
// is then wrong by that step at most, and only until a sample does not fit. So a commit that must not be made
// before a time is also judged by its own stamp, see Clock.Precedes. If the interval said that the time had
// come when the commit was sent, and the stamp is before that time, the commit is a sample that does not fit.
//
// The zero value has no samples.
type offset struct {
	known  bool
	at     int64 // the local time of the bounds: when the latest sample was answered
	zxid   int64 // of the newest sample
	lo, hi int64
}

// sample is a write whose stamp is known.
type sample struct {
	sent, answered int64 // local times
	stamp          int64 // by the service's clock, in milliseconds since 1970
	zxid           int64
}

const (
	// drift is by how much the two clocks may differ in speed: 1/drift, which is 200 ppm. It is
	// more than what crystals differ by, and less than the 500 ppm by which NTP may correct a
	// clock that is wrong.
	drift = 5000

	// freshFor is how long an offset serves without another sample. Its bounds widen by 50 ms in
	// that time.
	freshFor = int64(50 * time.Millisecond * drift)

	// maxStamp bounds the stamps, so that nothing overflows: it is in the year 2223.
	maxStamp = int64(8e12)
)

// drifted returns how much the clocks can diverge in the time age, which may be negative.
func drifted(age int64) int64 {
	if age < 0 {
		age = -age
	}
	return age/drift + 1
}

// add takes a sample into account. It reports false if the stamp is no time.
func (o *offset) add(s sample) bool {
	if s.stamp <= 0 || s.stamp > maxStamp {
		return false
	}
	const ms = int64(time.Millisecond)
	alone := offset{
		known: true, at: s.answered, zxid: s.zxid,
		lo: s.stamp*ms - s.answered,
		hi: (s.stamp+1)*ms - s.sent + drifted(s.answered-s.sent), // the bound at s.answered, if it was stamped when it was sent
	}
	if !o.known {
		*o = alone
		return true
	}
	both := offset{known: true, at: max(o.at, alone.at), zxid: max(o.zxid, alone.zxid)}
	lo, hi := o.bounds(both.at)
	both.lo, both.hi = alone.bounds(both.at)
	both.lo, both.hi = max(both.lo, lo), min(both.hi, hi)
	switch {
	case both.lo <= both.hi:
		*o = both
	case alone.zxid > o.zxid:
		*o = alone
	}
	return true
}

// bounds returns the interval at a local time.
func (o *offset) bounds(local int64) (lo, hi int64) {
	d := drifted(local - o.at)
	return o.lo - d, o.hi + d
}

// service returns bounds of the time that the service's clock shows at a local time.
func (o *offset) service(local int64) (least, most int64) {
	lo, hi := o.bounds(local)
	return local + lo, local + hi
}

// stale reports whether at a local time the offset is too old to be narrow.
func (o *offset) stale(local int64) bool { return local-o.at > freshFor }

// until returns the local time at which the service's clock has certainly reached the time due. If
// the offset is stale by then, until returns the first time at which it is stale and the service's clock may
// have reached due: a new sample then shows whether it has.
func (o *offset) until(due int64) (local int64) {
	rest := due - o.lo - o.at // for drifted, this much more
	certain := o.at + max(rest+rest/(drift-1)+3, 0)
	if !o.stale(certain) {
		return certain
	}
	rest = due - o.hi - o.at
	return max(o.at+rest-rest/(drift+1), o.at+freshFor) + 1
}
