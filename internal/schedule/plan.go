package schedule

import (
	"github.com/go-coord/coord/internal/layout"
)

// mostCounted bounds the number of missed planned times that are counted.
const mostCounted = 1000

// stepKind is the kind of a step of the leader.
type stepKind int8

const (
	stepWait  stepKind = iota // for a change, or for the time wake
	stepClaim                 // claim the planned time
	stepNote                  // only write the state, then wait
)

// step is what the leader does next.
type step struct {
	kind    stepKind
	state   layout.ScheduleState // to be written, without the new claim
	wake    int64                // of stepWait and stepNote: look again at this time; 0: only a change matters
	planned int64                // of stepClaim
	asked   bool
	attempt int
	fresh   bool  // it is claimed for the first time
	follows int64 // the planned time before it, or 0
	missed  int   // planned times that were left out before it and were not reported yet, mostCounted at most
}

// plan decides what the leader does next. now is the time, in milliseconds since 1970: the service's clock may have
// reached it. origin is the time at which the leader first saw the Since of the state. gone has the names of the claims that no longer exist.
func (s *Schedule) plan(read *layout.ScheduleState, now, origin int64, gone map[string]bool) (step, error) {
	x := step{state: read.Clone()}
	var err error
	switch lasting := s.noteGone(&x, now, gone); {
	case lasting >= s.o.Overlap:
	case x.claimAgain(now):
	case len(read.Asked) > 0:
		x.kind, x.planned, x.asked, x.attempt = stepClaim, read.Asked[0], true, 1
		x.state.Asked = x.state.Asked[1:]
	case !read.Paused:
		err = s.claimNext(&x, now, origin)
	}
	return x, err
}

// noteGone records the claims that no longer exist, and returns the number of runs that last.
func (s *Schedule) noteGone(x *step, now int64, gone map[string]bool) (lasting int) {
	for i := range x.state.Runs {
		r := &x.state.Runs[i]
		if r.Lasts() && gone[r.Node] {
			s.abandon(&x.state, r)
			r.Took = max(now-r.Began, 0)
			x.kind = stepNote
		}
		if r.Lasts() {
			lasting++
		}
	}
	return lasting
}

// claimAgain makes x the claim for another attempt, and reports whether one is due. If none is, x waits for the first.
func (x *step) claimAgain(now int64) bool {
	for i := range x.state.Runs {
		r := &x.state.Runs[i]
		switch {
		case !r.Again || x.state.Paused && !r.Asked:
		case r.Planned > now && !r.Asked:
			// The clock of the process that claimed it is ahead. A claim would keep others from running until then.
			x.wake = sooner(x.wake, r.Planned)
		default:
			r.Again = false
			x.kind, x.planned, x.asked, x.attempt = stepClaim, r.Planned, r.Asked, r.Attempt
			if r.Outcome == string(returned) {
				x.missed = r.Missed // the call of the function reports them
			} else {
				x.attempt++
			}
			return true
		}
	}
	return false
}

// claimNext makes x the first claim of a planned time, if one is due. If none is, x waits for the next one.
func (s *Schedule) claimNext(x *step, now, origin int64) error {
	base := s.base(&x.state, now, origin)
	first, err := s.nextOpen(&x.state, base)
	if err != nil || first == 0 || first > now {
		x.wake = sooner(x.wake, first)
		return err
	}
	planned, err := latest(s.tt, base, now)
	if err != nil {
		return err
	}
	switch {
	case planned == 0, s.o.Missed == Skip && now-planned > s.o.Grace.Milliseconds(): // 0: the Timetable has changed since first was computed
		after, err := s.nextOpen(&x.state, now)
		x.wake = sooner(x.wake, after)
		return err
	case s.o.Missed == All:
		for range s.o.MissedLimit - 1 {
			earlier, err := latest(s.tt, base, planned-1)
			if err != nil {
				return err
			}
			if earlier == 0 {
				break
			}
			planned = earlier
		}
	}
	for t := first; t < planned && x.missed < mostCounted; x.missed++ {
		if t, err = next(s.tt, t); err != nil {
			return err
		}
	}
	if x.missed == 0 {
		x.follows = base
	}
	x.kind, x.planned, x.attempt, x.fresh = stepClaim, planned, 1, true
	return nil
}

// sooner returns the earlier of two times. 0 means never.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// abandon records that the claim of a run has ended before its function returned.
func (s *Schedule) abandon(st *layout.ScheduleState, r *layout.ScheduleRun) {
	st.End(r, string(abandoned))
	r.Again = r.Attempt < s.o.Attempts
}

// base returns the time after which planned times are open. It is the latest that was claimed, or the time at
// which the schedule began or was resumed. Times after now come from a clock that was ahead: they are not claimed again, and do not
// count otherwise. In place of such a Since, which the next claim replaces, origin counts.
func (s *Schedule) base(st *layout.ScheduleState, now, origin int64) int64 {
	base := min(origin, now)
	if st.Since <= now {
		base = st.Since
	}
	for _, r := range st.Claimed {
		if r[0] <= now {
			base = max(base, r[1])
		}
	}
	return base
}

// nextOpen returns the first planned time after t that was not claimed, or 0.
func (s *Schedule) nextOpen(st *layout.ScheduleState, t int64) (int64, error) {
	n, err := next(s.tt, t)
	for _, r := range st.Claimed {
		if err == nil && r[0] <= n && n <= r[1] {
			n, err = next(s.tt, r[1])
		}
	}
	return n, err
}
