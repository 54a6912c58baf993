package schedule

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// Missed is coord.Missed.
type Missed int8

// The values are those of coord.Missed.
const (
	Skip Missed = iota
	Once
	All
)

// The outcomes of package trace that this package decides about.
const (
	done      = trace.RunDone
	failed    = trace.RunFailed
	returned  = trace.RunReturned
	abandoned = trace.RunAbandoned
)

// Bounds of the Config.
const (
	maxMissed   = 1000
	maxOverlap  = 100
	maxAttempts = 1000
)

// Config is coord.ScheduleOptions.
type Config struct {
	ID          string
	Missed      Missed
	MissedLimit int
	Grace       time.Duration
	Overlap     int
	Attempts    int
	History     int
}

// A Schedule is the engine of coord.Schedule.
type Schedule struct {
	c    *core.Client
	path nodepath.Path
	tt   Timetable // or nil
	o    Config
	bad  error // of the Config
}

// New returns the schedule at path. It does no I/O; a bad path or Config is reported by the first call.
func New(c *core.Client, path string, tt Timetable, o Config) *Schedule {
	s := &Schedule{c: c, path: c.Path(path), tt: tt, o: o}
	s.o.MissedLimit = cmp.Or(o.MissedLimit, 10)
	s.o.Grace = cmp.Or(o.Grace, time.Minute)
	s.o.Overlap = cmp.Or(o.Overlap, 1)
	s.o.Attempts = cmp.Or(o.Attempts, 1)
	s.o.History = cmp.Or(o.History, 20)
	refuse := func(format string, args ...any) {
		s.bad = fmt.Errorf("%w: "+format, append([]any{backend.ErrInvalid}, args...)...)
	}
	switch {
	case !utf8.ValidString(o.ID) || len(o.ID) > layout.MaxID:
		refuse("the ID is not valid UTF-8, or longer than %d bytes", layout.MaxID)
	case o.Missed < Skip || o.Missed > All:
		refuse("unknown policy %d for missed planned times", o.Missed)
	case s.o.MissedLimit < 1 || s.o.MissedLimit > maxMissed:
		refuse("MissedLimit %d, want 1 to %d", o.MissedLimit, maxMissed)
	case s.o.Grace < 0:
		refuse("negative Grace")
	case s.o.Overlap < 1 || s.o.Overlap > maxOverlap:
		refuse("Overlap %d, want 1 to %d", o.Overlap, maxOverlap)
	case s.o.Attempts < 1 || s.o.Attempts > maxAttempts:
		refuse("Attempts %d, want 1 to %d", o.Attempts, maxAttempts)
	case s.o.History < 1 || s.o.History > layout.MaxHistory:
		refuse("History %d, want 1 to %d", o.History, layout.MaxHistory)
	}
	return s
}

func (s *Schedule) recipeDir() kinds.RecipeDir {
	return kinds.NewRecipeDir(s.path.Full(), layout.KindSchedule)
}

func (s *Schedule) statePath() string { return s.path.Full() + "/" + layout.StateName }

// line returns the queue of the candidates for leadership.
func (s *Schedule) line() *line.Line {
	return line.New(s.c, s.path.Full()+"/"+layout.LeaderName, layout.LatchLine, s.recipeDir())
}

// check returns the error for a bad path or option, or an ended ctx.
func (s *Schedule) check(ctx context.Context, op string) error {
	core.NeedContext(ctx)
	if err := s.path.Check(op); err != nil {
		return err
	}
	err := s.bad
	if err == nil {
		err = backend.ContextError(ctx)
	}
	return errs.Op(op, s.path.Full(), err)
}

// stored is the state as it was read. If exists is false, there is no node, and the rest is zero.
type stored struct {
	layout.ScheduleState
	exists  bool
	version int32
}

// read reads the state, with a watch if w is not nil. The watch is armed also if there is no node.
func (s *Schedule) read(ctx context.Context, ss *core.Session, w *backend.Watch) (stored, error) {
	data, stat, err := ss.Backend().Get(ctx, s.statePath(), w)
	if errs.IsNotFound(err) {
		return stored{}, nil
	}
	if err != nil {
		return stored{}, err
	}
	st, err := layout.ParseScheduleState(data)
	return stored{st, true, stat.Version}, err
}

// write returns the operation that writes the state, provided that it is as it was read.
func (s *Schedule) write(was *stored, now *layout.ScheduleState) (backend.Op, error) {
	now.Trim(s.o.History)
	data, err := now.Encode()
	if err != nil {
		return backend.Op{}, err
	}
	if !was.exists {
		return backend.Create(s.statePath(), data, backend.Persistent), nil
	}
	return backend.SetData(s.statePath(), data, was.version), nil
}

// learn returns the time by the service's clock, in milliseconds since 1970: the latest that it may show.
func learn(ctx context.Context, ss *core.Session) (int64, error) {
	now, err := ss.Learn(ctx)
	return now.Most / int64(time.Millisecond), err
}

// update changes the state, exactly once. change reports whether there is anything to change; it can be called
// several times. now is the time in milliseconds since 1970.
func (s *Schedule) update(ctx context.Context, op string, change func(st *layout.ScheduleState, now int64) (bool, error)) error {
	if err := s.check(ctx, op); err != nil {
		return err
	}
	_, err := core.OnSessionOnce(ctx, s.c, func(ss *core.Session) (struct{}, error) {
		for {
			err := s.tryUpdate(ctx, ss, change)
			if !isRaced(err) {
				return struct{}{}, err
			}
		}
	})
	return errs.Op(op, s.path.Full(), err)
}

func (s *Schedule) tryUpdate(ctx context.Context, ss *core.Session, change func(st *layout.ScheduleState, now int64) (bool, error)) error {
	if err := ss.ClaimKind(ctx, s.recipeDir()); err != nil {
		return err
	}
	if err := ss.Backend().Sync(ctx, s.statePath()); err != nil {
		return err
	}
	was, err := s.read(ctx, ss, nil)
	if err != nil {
		return err
	}
	if !was.exists { // the path may have been deleted, and created again by another recipe
		if err := ss.ClaimKindAnew(ctx, s.recipeDir()); err != nil {
			return err
		}
	}
	now, err := learn(ctx, ss)
	if err != nil {
		return err
	}
	st := was.Clone()
	if !was.exists {
		st.Since = now
	}
	changed, err := change(&st, now)
	if err != nil || !changed {
		return err
	}
	write, err := s.write(&was, &st)
	if err != nil {
		return err
	}
	_, _, err = ss.CommitOnce(ctx, write)
	if errs.IsNotFound(err) {
		ss.Client().Kinds().Forget(s.path.Full()) // the path was deleted
	}
	return err
}

// isRaced reports whether a commit has failed because another client has changed the state.
func isRaced(err error) bool { return errs.Raced(err) && !backend.IsUncertain(err) }

// Pause is Schedule.Pause of package coord.
func (s *Schedule) Pause(ctx context.Context) error {
	return s.update(ctx, "pause", func(st *layout.ScheduleState, _ int64) (bool, error) {
		changed := !st.Paused
		st.Paused = true
		return changed, nil
	})
}

// Resume is Schedule.Resume of package coord.
func (s *Schedule) Resume(ctx context.Context) error {
	return s.update(ctx, "resume", func(st *layout.ScheduleState, now int64) (bool, error) {
		changed := st.Paused
		st.Paused, st.Since = false, now
		return changed, nil
	})
}

// RunNow is Schedule.RunNow of package coord.
func (s *Schedule) RunNow(ctx context.Context) (time.Time, error) {
	var at int64
	err := s.update(ctx, "runnow", func(st *layout.ScheduleState, now int64) (bool, error) {
		if len(st.Asked) >= layout.MaxAsked {
			return false, fmt.Errorf("%w: %d runs have been asked for, and did not begin yet", errs.ErrLimit, layout.MaxAsked)
		}
		at = now
		if n := len(st.Asked); n > 0 {
			at = max(at, st.Asked[n-1]+1)
		}
		for slices.ContainsFunc(st.Runs, func(r layout.ScheduleRun) bool { return r.Asked && r.Planned == at }) {
			at++
		}
		st.Asked = append(st.Asked, at)
		return true, nil
	})
	if err != nil && !backend.IsUncertain(err) {
		return time.Time{}, err
	}
	return time.UnixMilli(at), err
}

// State is coord.ScheduleState.
type State struct {
	Paused     bool
	Asked      []time.Time
	Runs       []Record
	Last, Next time.Time
}

// Record is coord.RunRecord.
type Record struct {
	Planned time.Time
	Attempt int
	Asked   bool
	ID      string
	Path    string
	Began   time.Time
	Took    time.Duration
	Outcome trace.RunOutcome
	Error   string
}

func (s *Schedule) record(r *layout.ScheduleRun) Record {
	return Record{
		Planned: time.UnixMilli(r.Planned), Attempt: r.Attempt, Asked: r.Asked, ID: r.ID, Path: s.path.Full() + "/" + r.Node,
		Began: time.UnixMilli(r.Began), Took: time.Duration(r.Took) * time.Millisecond, Outcome: trace.RunOutcome(r.Outcome), Error: r.Error,
	}
}

// previous returns the record of the run that ended last, or the zero Record.
func (s *Schedule) previous(st *layout.ScheduleState) Record {
	var last *layout.ScheduleRun
	for i := range st.Runs {
		if r := &st.Runs[i]; !r.Lasts() && r.Outcome != string(returned) && (last == nil || r.Ended > last.Ended) {
			last = r
		}
	}
	if last == nil {
		return Record{}
	}
	return s.record(last)
}

// State returns the state.
func (s *Schedule) State(ctx context.Context) (State, error) {
	const op = "state"
	if err := s.check(ctx, op); err != nil {
		return State{}, err
	}
	var now int64
	st, err := core.OnSession(ctx, s.c, func(ss *core.Session) (stored, error) {
		if err := ss.Backend().Sync(ctx, s.statePath()); err != nil {
			return stored{}, err
		}
		if err := ss.CheckKind(ctx, s.recipeDir()); err != nil {
			return stored{}, err
		}
		if now = ss.Clock().Now().Most / int64(time.Millisecond); now == 0 {
			now = s.c.Wall().UnixMilli()
		}
		return s.read(ctx, ss, nil)
	})
	if err != nil || !st.exists {
		return State{}, errs.Op(op, s.path.Full(), err)
	}
	x := State{Paused: st.Paused}
	for _, at := range st.Asked {
		x.Asked = append(x.Asked, time.UnixMilli(at))
	}
	for i := range st.Runs {
		x.Runs = append(x.Runs, s.record(&st.Runs[i]))
	}
	if n := len(st.Claimed); n > 0 {
		x.Last = time.UnixMilli(st.Claimed[n-1][1])
	}
	if s.tt != nil && !st.Paused {
		var first int64
		err = s.useTimetable(func() (err error) {
			first, err = s.nextOpen(&st.ScheduleState, max(now, s.base(&st.ScheduleState, now, now)))
			return err
		})
		if first > 0 {
			x.Next = time.UnixMilli(first)
		}
	}
	return x, errs.Op(op, s.path.Full(), err)
}
