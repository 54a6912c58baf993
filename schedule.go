package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/schedule"
	"github.com/go-coord/coord/trace"
)

// A Timetable says when the runs of a Schedule are planned. Next returns the first planned time
// after t, or the zero time if there is none. It must be a pure function: all processes compute the
// same times. It must return soon: until then the leader claims nothing, and Run does not end. A cron expression of github.com/robfig/cron/v3 or github.com/netresearch/go-cron is a
// Timetable; [Every] makes one for an interval.
//
// Planned times are moments, in whole milliseconds, and not readings of a clock on a wall. So the
// Timetable decides what a change of summer time does to a run: see [OncePerReading].
type Timetable interface {
	Next(t time.Time) time.Time
}

// Every returns the Timetable with a planned time at each multiple of d, counted from Monday, the first of
// January of the year 1, UTC. The minimum is a millisecond; Schedule.Run refuses a shorter interval with ErrInvalid.
func Every(d time.Duration) Timetable { return schedule.Every(d) }

// OncePerReading returns a Timetable without the planned times of t that show a second time, in the time zone
// at, what the clocks have shown before: those in the hour that is repeated at the end of summer time. A run that
// is planned for 02:30 is then planned once in that night. Without it, most parsers of cron expressions plan
// it twice. Do not use it for a run that is planned for each hour or minute.
//
// At the beginning of summer time an hour is left out. Most parsers plan no run of 02:30 on that day.
// That of github.com/netresearch/go-cron plans it one hour later, at 03:30.
func OncePerReading(t Timetable, at *time.Location) Timetable { return schedule.OncePerReading(t, at) }

// Missed says what happens to planned times that have passed without a run, because no process ran the
// Schedule, or because the run before them took too long.
type Missed int8

const (
	// MissedSkip leaves them out. The latest of them still runs if it has passed for less than
	// ScheduleOptions.Grace.
	MissedSkip Missed = iota
	// MissedOnce runs the latest of them, and leaves the others out.
	MissedOnce
	// MissedAll runs the latest ScheduleOptions.MissedLimit of them, the oldest first.
	MissedAll
)

// String returns the policy in lower case.
func (m Missed) String() string {
	switch m {
	case MissedSkip:
		return "skip"
	case MissedOnce:
		return "once"
	case MissedAll:
		return "all"
	}
	return "unknown"
}

// ScheduleOptions may be nil. All processes of a schedule should have the same options.
type ScheduleOptions struct {
	// ID names the process in the history, and as a candidate for leadership. It is text of at most 200 bytes, and need not be unique.
	ID string

	// Missed says what happens to planned times that have passed without a run. The default is MissedSkip.
	Missed Missed

	// MissedLimit is the number of planned times that MissedAll runs. The default is 10, the maximum 1000.
	MissedLimit int

	// Grace is how late the first attempt of a run may begin under MissedSkip. It bridges the time until another process leads:
	// choose it greater than the session timeout. The default is one minute.
	Grace time.Duration

	// Overlap is the number of runs that may last at the same time, 100 at most. The default is 1: as long as a run
	// lasts, no other one begins, and planned times that pass meanwhile are missed.
	Overlap int

	// Attempts is how often a planned time is claimed at most, if the holder of the claim dies, loses
	// its session or stops before the function has returned. The default is 1: no planned time is
	// claimed again. The maximum is 1000. A function that returns an error has failed, and is not called again.
	Attempts int

	// History is the number of ended runs that are kept. The default is 20, the maximum 100.
	History int
}

// A Schedule calls a function at planned times, once in a cluster: each planned time is claimed by
// one of the processes that call Run. It is for what cron does on one machine.
//
// The processes elect a leader, which waits for the next planned time. It claims the planned time by a commit
// that is refused if its term has ended, or if the planned time was claimed before. Then it calls the function,
// and records the outcome in the commit that ends the claim. So a run costs two commits, however many
// processes there are, and a process that waits costs nothing.
//
// # States of a planned time
//
//	open      -> running    the leader's commit creates the node of the claim and records it
//	running   -> done       the function has returned nil. The commit deletes the node and records the outcome
//	running   -> failed     the function has returned an error, panicked or ended its goroutine. The same commit
//	running   -> returned   Run ended before the function was called. The same commit
//	running   -> abandoned  the function returned an error after the ctx of Run had ended, or called Release. The
//	                        same commit. Or: the node is gone, because the holder died, lost its session or was
//	                        deleted. The leader's next commit records that
//	abandoned -> running    with the next attempt, if Attempts allows, and not before the planned time
//	returned  -> running    with the same attempt
//	open      -> missed     a later planned time is claimed. Nothing is recorded of it
//
// All of this is in the data of one node, which every commit changes at the version that it has read. So
// a planned time is claimed once, whatever clocks show and whichever processes take themselves for the leader:
//
//   - If the reply to a commit is lost, the client determines whether it was applied, as for all commits that
//     must not apply twice. It never calls the function for a claim that it does not know to have made.
//   - If the session expires, the claim ends with it: the Run is lost, the context of the function ends,
//     and its result is not recorded.
//   - A process that was paused finds its claim lost when it resumes. Until it looks, the function can act in
//     parallel with another attempt, or with the next run: as with a Mutex, let the resource refuse an old Token, or
//     write in a transaction under the Guard.
//   - Times are those of the service's clock, except on etcd, which has none: there each process goes by
//     its own clock. A process whose clock is ahead runs planned times early. They are not run again
//     by the others, which run all planned times that it has left out. So it blocks nothing.
//   - If the service was restored to an older state, the claims since then are forgotten.
//     These planned times count as missed.
//
// Planned times count from the first Run that led, by its clock, or from an earlier RunNow or Pause. A new Timetable counts from
// the latest claim: those of its planned times that have passed since then are missed, also if the Timetable before did not have them.
//
// On a service with a clock the function is not called before the planned time. It can be called later, by up to 0.04 % of the
// time since the session has written last, 100 ms at most, and by the time of the claim's requests, since two clocks can differ in
// speed. For the same reason the claim can be made before the planned time.
//
// A Schedule is safe for concurrent use and needs no closing. Each call of Run is a candidate. The nodes are
// described in layout.md.
type Schedule struct{ s *schedule.Schedule }

// NewSchedule returns the schedule at path. It does no I/O; a bad path or option is reported by the first call. t may
// be nil for a Schedule that does not call Run.
func NewSchedule(c *Client, path string, t Timetable, o *ScheduleOptions) *Schedule {
	var opts ScheduleOptions
	if o != nil {
		opts = *o
	}
	return &Schedule{schedule.New(c.core(), path, t, schedule.Config{
		ID: opts.ID, Missed: schedule.Missed(opts.Missed), MissedLimit: opts.MissedLimit, Grace: opts.Grace,
		Overlap: opts.Overlap, Attempts: opts.Attempts, History: opts.History,
	})}
}

// A Run is the claim on a planned time, for which the function of Schedule.Run is called. As a Hold it has a token that
// grows from one claim to the next, and a guard for transactions. Release gives the claim up before the function has
// returned; the planned time is then abandoned. A Run is safe for concurrent use.
type Run struct {
	*Hold
	Planned  time.Time // if Asked, the time of RunNow
	Attempt  int       // counted from 1
	Asked    bool      // by RunNow, and not by the Timetable
	Previous RunRecord // the run that ended last; zero if there is none
}

// A RunRecord is the record of a run. Its Outcome is empty while the run lasts.
type RunRecord struct {
	Planned time.Time
	Attempt int
	Asked   bool
	ID      string // of the process, see ScheduleOptions
	Path    string // of the node of the claim
	Began   time.Time
	Took    time.Duration
	Outcome trace.RunOutcome
	Error   string // of the function, 200 bytes at most
}

// Run makes the process a candidate, and calls f for each planned time that it claims while it leads, each call on a goroutine of its
// own. It returns when ctx ends, or on a failure, after all calls of f have returned.
//
// The context of f ends when the claim is lost, and when ctx ends. f must return then. If it returns an error after
// ctx has ended, or does not return before the session ends, another process may call f again: see Attempts. If f panics or
// ends its goroutine, the client logs that, and the run has failed.
//
// A lost session does not end Run: the process is a candidate again when its calls of f have returned, so f does
// not run beside a call that has lost its claim in the same process. If the service has no space, Run waits. A
// leader that is asked to give up its term (Hold.Revoked) does so at once; the runs of the process continue.
//
// After the end of ctx the result is nil. Otherwise it is ErrClosed; ErrDenied; ErrBadPath; ErrKind; ErrDecode if the data of the schedule
// cannot be decoded; ErrInvalid for options, if f or the Timetable is nil, or if the Timetable panics or returns a time that is not
// after its argument.
func (s *Schedule) Run(ctx context.Context, f func(ctx context.Context, r *Run) error) error {
	if f == nil {
		return s.s.Run(ctx, nil)
	}
	return s.s.Run(ctx, func(ctx context.Context, h *core.Hold, x schedule.Record, previous schedule.Record) error {
		return f(ctx, &Run{&Hold{h}, x.Planned, x.Attempt, x.Asked, RunRecord(previous)})
	})
}

// RunNow asks the leader to call the function once, as soon as Overlap allows, also while the schedule is paused. It
// returns the time that the Run will have as Planned; the function does not wait for that time. RunNow does not wait for the run. If
// no process leads, the next leader begins it.
//
// If ctx ends, or the session is lost, while the outcome is unknown, the error matches ErrUncertain, and the time is returned too:
// State shows whether a run was asked for. ErrLimit: 100 runs were asked for and did not begin yet. Other errors: the context's;
// ErrInvalid for options; ErrDecode; ErrKind, ErrNoSpace, ErrDenied, ErrClosed, ErrBadPath.
func (s *Schedule) RunNow(ctx context.Context) (time.Time, error) { return s.s.RunNow(ctx) }

// Pause keeps the leader from claiming planned times, also for another attempt, until Resume. Runs that last go on. It is no error if the
// schedule is paused already. After ErrUncertain call it again. The errors are those of RunNow, without ErrLimit.
func (s *Schedule) Pause(ctx context.Context) error { return s.s.Pause(ctx) }

// Resume ends a Pause. The planned times that have passed until then are left out, and do not count as missed, also those
// that were missed before the Pause. An attempt that was put off is made. It is no error if the schedule is not paused. The errors are
// those of Pause.
func (s *Schedule) Resume(ctx context.Context) error { return s.s.Resume(ctx) }

// A ScheduleState is the state of a Schedule.
type ScheduleState struct {
	Paused bool
	Asked  []time.Time // by RunNow, and not claimed yet
	Runs   []RunRecord // those that last, and those that have ended last, in the order of their claims
	Last   time.Time   // the latest planned time that was claimed; zero: none
	Next   time.Time   // the first planned time after that of the latest claim, and after the time of the call; zero while paused, and without a Timetable
}

// State returns the state. It is a snapshot of a past moment, but not older than the call. The zero ScheduleState
// means that no process has run the schedule. If the Timetable fails as described at Run, the error is ErrInvalid, and only
// Next is missing. Other errors: the context's; ErrDecode, ErrKind, ErrDenied, ErrClosed, ErrBadPath. State costs two requests.
func (s *Schedule) State(ctx context.Context) (ScheduleState, error) {
	st, err := s.s.State(ctx)
	return ScheduleState{
		Paused: st.Paused, Asked: st.Asked, Last: st.Last, Next: st.Next,
		Runs: faces(st.Runs, func(x schedule.Record) RunRecord { return RunRecord(x) }),
	}, err
}
