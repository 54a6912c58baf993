package schedule

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/serviceclock"
	"github.com/go-coord/coord/internal/tracing"
	"github.com/go-coord/coord/internal/usercode"
	"github.com/go-coord/coord/trace"
)

// mostError bounds the text of an error in a record.
const mostError = 200

// claim is the claim of this process on a planned time. It is the owner of its hold.
type claim struct {
	r        *runner
	s        *core.Session
	hold     *core.Hold
	record   layout.ScheduleRun // as it was claimed
	previous Record

	mu      sync.Mutex
	outcome trace.RunOutcome // of the function; until it has returned, abandoned
	text    string           // of its error
	began   time.Time        // when the function was called; zero: it was not
	took    time.Duration
}

// claim claims the planned time of x, and calls the function on a goroutine of its own. The error is ErrAgain
// unless the claim failed. now is the time at which x was planned.
func (l *leader) claim(ctx context.Context, was *stored, x *step, now int64) error {
	s := l.runner.s
	st := x.state.Clone()
	if x.fresh {
		if !st.Claim(x.planned, x.follows) {
			return errs.ErrAgain // plan does not choose such a time
		}
		st.Since = min(st.Since, x.planned) // it may come from a clock that is ahead
	}
	cl := &claim{r: l.runner, s: l.s, previous: s.previous(&st), outcome: abandoned, record: layout.ScheduleRun{
		Planned: x.planned, Asked: x.asked, Attempt: x.attempt, Missed: x.missed, ID: s.o.ID, Began: now,
		Node: layout.RunName(x.planned, x.attempt, s.c.NewGUID(s.path.Full())),
	}}
	path := s.path.Full() + "/" + cl.record.Node
	st.Runs = append(st.Runs, cl.record)
	write, err := s.write(was, &st)
	if err != nil {
		return err
	}
	// Not cancellable, so that the client always learns whether it made the claim.
	results, proof, err := l.s.CommitProof(context.WithoutCancel(ctx),
		backend.Check(l.term.Path(), backend.AnyVersion), write, backend.Create(path, nil, backend.Ephemeral))
	if err != nil {
		if backend.IsUncertain(err) && !errs.IsOver(err) {
			// An outsider has deleted the proof of the commit. Without its node the run is abandoned.
			l.s.CleanUp("remove", path, func(ctx context.Context) error { return l.s.Remove(ctx, path) })
		}
		return l.explain(ctx, err)
	}
	l.learned(results, 1, st)
	s.tell(ctx, was, &st)
	cl.hold = core.NewHold(l.s, path, proof.Mzxid, s.c.NewSpan(string(layout.KindSchedule), s.path.Full(), "run"), cl)
	if err := cl.hold.Stand(nil); err != nil {
		return err // the session is over, and the node goes with it
	}
	l.mu.Lock()
	l.live[cl] = true
	l.mu.Unlock()
	l.calls.Go(cl.run)
	return errs.ErrAgain
}

// learned notes the state that a commit of this runner has written. i is the index of the write among its operations. The
// next commit is then made without a read.
func (r *runner) learned(results []backend.Result, i int, st layout.ScheduleState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = nil
	if results != nil {
		r.known = &stored{st, true, results[i].Stat.Version}
	}
}

// run calls the function when the planned time has come, and ends the claim.
func (cl *claim) run() {
	r, c := cl.r, cl.r.s.c
	defer func() {
		r.mu.Lock()
		delete(r.live, cl)
		r.mu.Unlock()
		r.change()
	}()
	cl.hold.WhenEnded(func(err error) {
		if errors.Is(err, errs.ErrLost) { // the end of a Release wakes the leader below
			r.change()
		}
	})
	ctx := cl.hold.Context(r.ctx)
	if !cl.awaitDue(ctx) {
		cl.end(returned, "")
		return
	}
	cl.begin()
	cl.hold.ReportGrant(ctx, nil)
	var text string
	err := c.Call("the function of a schedule", []any{"path", r.s.path.Full(), "planned", time.UnixMilli(cl.record.Planned)}, func() error {
		err := r.f(ctx, cl.hold, r.s.record(&cl.record), cl.previous)
		if err != nil {
			text = err.Error() // a method of the program
		}
		return err
	})
	switch {
	case err == nil:
		cl.end(done, "")
	case usercode.As(err) != nil: // a panic, or the end of the goroutine
		cl.end(failed, err.Error())
	case r.ctx.Err() != nil:
		cl.end(abandoned, text)
	default:
		cl.end(failed, text)
	}
}

// awaitDue waits until the planned time has come by the service's clock: the claim may have been made early. It does not
// wait for the time of RunNow, which can be that of a clock that is ahead. It reports false if ctx ends first.
func (cl *claim) awaitDue(ctx context.Context) bool {
	if cl.record.Asked {
		return ctx.Err() == nil
	}
	pause := core.NewPauses(cl.r.s.c)
	for ctx.Err() == nil {
		moment, err := cl.s.Clock().Now(), error(nil)
		if moment.Judge(cl.record.Planned) == serviceclock.InDoubt {
			if moment, err = cl.s.Learn(ctx); err != nil {
				pause.Wait(ctx.Done(), cl.s.Backend().Done())
				continue
			}
		}
		if moment.Judge(cl.record.Planned) == serviceclock.Reached {
			return true
		}
		t := time.NewTimer(max(cl.s.Clock().UntilDue(cl.record.Planned), time.Millisecond))
		select {
		case <-t.C:
		case <-moment.Moved:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return false
}

func (cl *claim) begin() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.began = time.Now()
}

// end ends the claim with an outcome, unless its hold has ended.
func (cl *claim) end(outcome trace.RunOutcome, text string) {
	cl.mu.Lock()
	cl.outcome, cl.text = outcome, text
	cl.mu.Unlock()
	err := cl.hold.Release()
	if err != nil && !errors.Is(err, errs.ErrLost) { // a loss is logged
		cl.r.s.c.Log().Error("coord: cannot record the outcome of a run", "path", cl.hold.Path(), "outcome", string(outcome), "error", err)
	}
}

// RemoveNode deletes the node of the claim and records the outcome, in one commit.
func (cl *claim) RemoveNode(h *core.Hold) error {
	s, path := cl.r.s, h.Path()
	ctx := context.Background() // the session bounds it
	cl.mu.Lock()
	if !cl.began.IsZero() {
		cl.took = time.Since(cl.began)
	}
	cl.mu.Unlock()
	cl.r.mu.Lock()
	was := cl.r.known
	cl.r.mu.Unlock()
	over := cl.s.Backend().Done()
	short, pause := core.NewShortage(s.c, "record the outcome of a run", path), core.NewPauses(s.c)
	short.Early = over
	for {
		noted, err := was != nil, error(nil) // was was not read
		if was == nil {
			var read stored
			if err = cl.s.Backend().Sync(ctx, s.statePath()); err == nil {
				read, err = s.read(ctx, cl.s, nil)
			}
			was = &read
		}
		if err == nil {
			err = cl.commitEnd(ctx, path, was)
		}
		unknown := backend.IsUncertain(err)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errs.ErrGone) && !noted:
			return h.Remove(nil) // an outsider has deleted the record
		case errs.IsOver(err):
			return &errs.Loss{Path: path, Cause: errs.Why(err)}
		case errs.Blamed(err) == 0 && !unknown:
			return &errs.Loss{Path: path, Cause: errs.ErrDeleted}
		case errors.Is(err, errs.ErrGone), errs.Raced(err) && !unknown:
			was = nil // another client has changed it
		case !unknown && cl.r.ctx.Err() == nil && !s.c.IsClosing() && short.Waited(cl.r.ctx, err):
			was = nil
		case !unknown && cl.r.ctx.Err() == nil && errs.RefusesUser(err):
			was = nil
			pause.SkipFirst()
			pause.Wait(cl.r.ctx.Done(), over)
		default:
			// Without its node the run is abandoned, unless the outcome was recorded.
			cl.s.RemoveLater(path)
			return errs.Op("release", path, err)
		}
	}
}

// commitEnd commits the end of the claim on the state was. The error is ErrGone if that state has no record of it.
func (cl *claim) commitEnd(ctx context.Context, path string, was *stored) error {
	s := cl.r.s
	st := was.Clone()
	i := slices.IndexFunc(st.Runs, func(r layout.ScheduleRun) bool { return r.Node == cl.record.Node && r.Lasts() })
	if i < 0 {
		return errs.ErrGone
	}
	r := &st.Runs[i]
	cl.mu.Lock()
	r.Took, r.Error = cl.took.Milliseconds(), clip(cl.text)
	switch cl.outcome {
	case abandoned:
		s.abandon(&st, r)
	case returned:
		st.End(r, string(returned))
		r.Again = true
	default:
		st.End(r, string(cl.outcome))
	}
	cl.mu.Unlock()
	write, err := s.write(was, &st)
	if err != nil {
		return err
	}
	results, _, err := cl.s.CommitOnce(ctx, backend.Delete(path, backend.AnyVersion), write)
	if err == nil {
		cl.r.learned(results, 1, st)
	}
	return err
}

// clip shortens the text of an error.
func clip(text string) string {
	if len(text) > mostError {
		text = text[:mostError]
	}
	return strings.ToValidUTF8(text, "?")
}

// Leftovers returns no nodes: the node of a lost claim goes with its session, or was deleted.
func (cl *claim) Leftovers(*core.Hold, error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	return
}

// Lost does nothing: the leader watches the node.
func (cl *claim) Lost(*core.Hold) {}

// Granted is the trace event for the call of the function.
func (cl *claim) Granted(at trace.Subject, token int64, _ time.Duration) trace.Event {
	at.Node = cl.r.s.path.Full() + "/" + cl.record.Node
	late := time.Duration(cl.s.Clock().Now().Most - cl.record.Planned*int64(time.Millisecond))
	return trace.RunBegan{
		Subject: at, Planned: time.UnixMilli(cl.record.Planned), Attempt: cl.record.Attempt, Asked: cl.record.Asked,
		Late: max(late, 0), Missed: cl.record.Missed, Token: token,
	}
}

// Settled is the trace event for the end of the claim.
func (cl *claim) Settled(at trace.Subject, lost bool, _ time.Duration, err error) trace.Event {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	at.Node = cl.r.s.path.Full() + "/" + cl.record.Node
	e := trace.RunEnded{
		Subject: at, Planned: time.UnixMilli(cl.record.Planned), Attempt: cl.record.Attempt, Outcome: cl.outcome, Took: cl.took, Err: err,
	}
	if lost || errors.Is(err, errs.ErrLost) {
		e.Outcome, e.Reason = trace.RunLost, tracing.ReasonOf(err)
	}
	return e
}
