package schedule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// Function is the function of Run, with the hold and the record of its claim, and the record of the run that ended last.
type Function func(ctx context.Context, h *core.Hold, x, previous Record) error

// runner is one Run.
type runner struct {
	s       *Schedule
	f       Function
	ctx     context.Context // of Run, for the calls of f
	calls   sync.WaitGroup
	changed chan struct{} // has an element if a call has returned, or its claim has ended, since the leader looked

	mu    sync.Mutex
	known *stored         // after the latest commit of this runner, or nil
	live  map[*claim]bool // whose function has not returned
}

// Run is Schedule.Run of package coord.
func (s *Schedule) Run(ctx context.Context, f Function) error {
	const op = "run"
	core.NeedContext(ctx)
	if err := s.path.Check(op); err != nil {
		return err
	}
	err := s.bad
	switch {
	case f == nil:
		err = errs.ErrNoFunction
	case s.tt == nil && err == nil:
		err = fmt.Errorf("%w: the Timetable is nil", backend.ErrInvalid)
	}
	if err == nil { // before it leads, which can be days later
		err = s.useTimetable(func() error {
			_, err := next(s.tt, s.c.Wall().UnixMilli())
			return err
		})
	}
	if err != nil {
		return errs.Op(op, s.path.Full(), err)
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	r := &runner{s: s, f: f, ctx: work, changed: make(chan struct{}, 1), live: make(map[*claim]bool)}
	err = r.campaign(ctx)
	stop()
	r.calls.Wait()
	if err != nil && ctx.Err() != nil && !errs.IsClosed(err) {
		return nil
	}
	return errs.Op(op, s.path.Full(), err)
}

// campaign leads, again and again, until ctx ends or it fails.
func (r *runner) campaign(ctx context.Context) error {
	short := core.NewShortage(r.s.c, "run a schedule", r.s.path.Full())
	own := layout.Candidate{ID: r.s.o.ID}
	data, err := own.Encode()
	if err != nil {
		return err
	}
	for {
		if err := r.awaitLost(ctx); err != nil {
			return err
		}
		l := r.s.line()
		var h *core.Hold
		h, err = l.Campaign(ctx, "run", data, l, false)
		if err == nil {
			err = r.leadAndResign(ctx, h)
		}
		waited := short.Waited(ctx, err)
		switch {
		case ctx.Err() != nil:
			return backend.ContextError(ctx)
		case waited, err == nil, errs.IsOver(err) && !errs.IsClosed(err), errors.Is(err, errs.ErrLost):
		default:
			return err
		}
	}
}

// awaitLost waits for the calls whose claim was lost. As long as one of them runs, the process must not begin another.
func (r *runner) awaitLost(ctx context.Context) error {
	for {
		if _, lost := r.own(); !lost {
			return nil
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			return backend.ContextError(ctx)
		case <-r.s.c.Closing():
			return backend.ErrClosed
		}
	}
}

// change wakes the leader.
func (r *runner) change() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// leadAndResign leads under the term h, and releases it.
func (r *runner) leadAndResign(ctx context.Context, h *core.Hold) error {
	defer h.Release()
	l := &leader{runner: r, term: h, s: h.On()}
	return l.lead(h.Context(ctx))
}

// leader is a runner during a term.
type leader struct {
	*runner
	term   *core.Hold
	s      *core.Session
	since  int64 // Since of the latest state
	origin int64 // the time of the first look at that Since
}

// lead claims planned times until ctx ends, the term ends or is to end, or it fails.
func (l *leader) lead(ctx context.Context) error {
	if err := l.s.Backend().Sync(ctx, l.runner.s.statePath()); err != nil {
		return err
	}
	short := core.NewShortage(l.runner.s.c, "run a schedule", l.runner.s.path.Full())
	for {
		err := l.lookOnce(ctx)
		switch waited := short.Waited(ctx, err); {
		case waited && l.runner.s.c.IsClosing(): // which cuts the pauses short
			return backend.ErrClosed
		case !waited && err != nil && !errors.Is(err, errs.ErrAgain):
			return err
		}
		if over, err := l.over(ctx); over {
			return err
		}
	}
}

// over reports whether the runner must not lead on.
func (l *leader) over(ctx context.Context) (bool, error) {
	if err := l.term.Err(); err != nil {
		return true, err
	}
	if ctx.Err() != nil {
		return true, l.s.ContextError(ctx)
	}
	select {
	case <-l.term.Revoked():
		return true, nil
	default:
		_, lost := l.own()
		return lost, nil
	}
}

// lookOnce reads the state and makes one step. The error is ErrAgain if it has to be called again.
func (l *leader) lookOnce(ctx context.Context) error {
	ws := backend.NewWatchSet()
	defer ws.Stop()
	select {
	case <-l.changed: // this look shows it
	default:
	}
	own, _ := l.own() // before the read, which then shows the outcomes of the others
	was, err := l.runner.s.readOrAwait(ctx, l.s, ws)
	if err != nil {
		return err
	}
	gone, err := l.findGone(ctx, &was, own, ws)
	if err != nil {
		return err
	}
	moment := l.s.Clock().Now()
	if !moment.Known {
		if moment, err = l.s.Learn(ctx); err != nil {
			return err
		}
	}
	now := moment.Most / int64(time.Millisecond)
	st := was.ScheduleState
	if !was.exists {
		st.Since = now
	}
	if st.Since != l.since || l.origin > now {
		l.since, l.origin = st.Since, now
	}
	var x step
	if err := l.runner.s.useTimetable(func() (err error) {
		x, err = l.runner.s.plan(&st, now, l.origin, gone)
		return err
	}); err != nil {
		return err
	}
	if !was.exists && x.kind == stepWait {
		x.kind = stepNote // the state begins
	}
	switch x.kind {
	case stepClaim:
		return l.claim(ctx, &was, &x, now)
	case stepNote:
		return l.note(ctx, &was, &x.state)
	}
	return l.await(ctx, ws, x.wake, moment.Moved)
}

// await returns when there is a reason to look again.
func (l *leader) await(ctx context.Context, ws *backend.WatchSet, wake int64, moved <-chan struct{}) error {
	var due <-chan time.Time
	if wake > 0 {
		t := time.NewTimer(max(l.s.Clock().UntilDue(wake), time.Millisecond))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ws.Ready():
	case <-due:
	case <-moved:
	case <-l.changed:
	case <-l.term.Revoked():
	case <-l.term.Done():
	case <-ctx.Done():
	}
	return nil
}

// readOrAwait reads the state with a watch on it, or on its creation.
func (s *Schedule) readOrAwait(ctx context.Context, ss *core.Session, ws *backend.WatchSet) (stored, error) {
	w := ws.New()
	was, err := s.read(ctx, ss, w)
	if err != nil || !was.exists {
		w.Stop()
	}
	return was, err // the leader creates a missing node
}

// findGone returns the names of the claims that no longer exist, and watches the others. The commit of a
// claim creates its node, so a node that is missing was deleted. own has the claims of this
// runner: their end wakes the leader without a watch.
func (l *leader) findGone(ctx context.Context, was *stored, own map[string]bool, ws *backend.WatchSet) (map[string]bool, error) {
	gone := make(map[string]bool)
	for i := range was.Runs {
		r := &was.Runs[i]
		if !r.Lasts() || own[r.Node] {
			continue
		}
		w := ws.New()
		_, err := l.s.Backend().Exists(ctx, l.runner.s.path.Full()+"/"+r.Node, w)
		if errs.IsNotFound(err) {
			gone[r.Node] = true
		}
		if err != nil {
			w.Stop()
		}
		if err != nil && !errs.IsNotFound(err) {
			return nil, err
		}
	}
	return gone, nil
}

// own returns the names of the claims of this runner whose functions have not returned, or that end with an outcome. lost reports whether
// one of them was lost. If the leader looked for such a claim, it could claim the planned time again beside its function.
func (r *runner) own() (own map[string]bool, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own = make(map[string]bool)
	for cl := range r.live {
		own[cl.record.Node] = true
		lost = lost || errors.Is(cl.hold.Err(), errs.ErrLost)
	}
	return own, lost
}

// note writes the state, under the guard of the term.
func (l *leader) note(ctx context.Context, was *stored, st *layout.ScheduleState) error {
	write, err := l.runner.s.write(was, st)
	if err != nil {
		return err
	}
	if _, _, err := l.s.CommitOnce(ctx, backend.Check(l.term.Path(), backend.AnyVersion), write); err != nil {
		return l.explain(ctx, err)
	}
	l.runner.s.tell(ctx, was, st)
	return errs.ErrAgain
}

// explain returns the error of a step whose commit has failed: ErrAgain if another client has changed the state, or if
// the outcome is unknown. Then the next look shows it.
func (l *leader) explain(ctx context.Context, err error) error {
	unknown := backend.IsUncertain(err)
	switch {
	case unknown && !errs.MayRepeat(ctx, err), !unknown && !errs.Raced(err):
		return err
	case !unknown && errs.Blamed(err) == 0:
		l.term.NodeGone(ctx, l.term.Path())
		return errs.ErrAgain // over reports the end of the term
	}
	if err := l.s.Backend().Sync(ctx, l.runner.s.statePath()); err != nil {
		return err
	}
	return errs.ErrAgain
}

// tell reports the runs that st records as abandoned, and was does not.
func (s *Schedule) tell(ctx context.Context, was *stored, st *layout.ScheduleState) {
	for i := range was.Runs {
		if r := &was.Runs[i]; r.Lasts() {
			for j := range st.Runs {
				if now := &st.Runs[j]; now.Node == r.Node && now.Outcome == string(abandoned) {
					s.c.Log().Warn("coord: the claim of a run has ended before its function returned", "path", s.path.Full(), "planned", time.UnixMilli(r.Planned), "attempt", r.Attempt, "again", now.Again)
					core.Emit(ctx, s.c, trace.RunEnded{
						Subject: trace.Subject{Recipe: string(layout.KindSchedule), Path: s.path.Full(), Op: "run", Node: s.path.Full() + "/" + r.Node},
						Planned: time.UnixMilli(r.Planned), Attempt: r.Attempt, Outcome: abandoned, Took: time.Duration(now.Took) * time.Millisecond,
					})
				}
			}
		}
	}
}
