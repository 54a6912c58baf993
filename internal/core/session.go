package core

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/backoff"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/parallel"
	"github.com/go-coord/coord/internal/serviceclock"
	"github.com/go-coord/coord/trace"
)

// Session is one session of the backend, with its holds.
type Session struct {
	c *Client
	b backend.Session

	nth int64 // 1, 2… in the life of the client

	mu      sync.Mutex
	err     error              // why the session is over, for its holds
	holds   map[*Hold]struct{} // the holds that stand
	single  toArm              // holds whose watches are armed one by one
	claims  toArm              // holds whose watches are armed together
	entries []*journalEntry    // free journal nodes, see commit.go

	allowed map[string]struct{} // directories in which the permissions are sufficient, see IsAllowed

	clock *serviceclock.Clock

	touch   sync.Mutex     // guards contact, held while the backend's Status is read
	contact *ContactPeriod // the latest, nil before the first
}

// ContactPeriod is a period in which a session has contact without a break. A watch that
// was armed in it, and has not fired, has missed nothing until it is over.
type ContactPeriod struct {
	changed <-chan struct{} // of the backend's Status: closed at the break
	ended   atomic.Int64    // when the break was noticed, by Client.Elapsed, plus 1; 0 while the contact period lasts
}

func (t *ContactPeriod) end(now int64) { t.ended.CompareAndSwap(0, now+1) }

// Over reports whether the contact period is over, and since when.
func (t *ContactPeriod) Over() (at int64, over bool) {
	ended := t.ended.Load()
	return ended - 1, ended != 0
}

// Status returns the phase and the present contact period. A contact period that begins without
// contact is over at once. Status ends the previous contact period, so that follow and a caller that reads
// right after a reconnection agree that it is over, whichever of them calls Status first.
func (s *Session) Status() (backend.Phase, *ContactPeriod) {
	s.touch.Lock()
	defer s.touch.Unlock()
	phase, changed := s.b.Status()
	if s.contact != nil && s.contact.changed == changed {
		return phase, s.contact
	}
	now := s.c.Elapsed()
	if s.contact != nil {
		s.contact.end(now)
		now, _ = s.contact.Over() // the loss of a session without contact does not begin another outage
	}
	s.contact = &ContactPeriod{changed: changed}
	if phase != backend.PhaseConnected {
		s.contact.end(now)
	}
	return phase, s.contact
}

// endContact ends the contact period of a session that is over, or about to be closed.
func (s *Session) endContact() {
	_, t := s.Status()
	t.end(s.c.Elapsed())
}

func newSession(c *Client, b backend.Session) *Session {
	s := &Session{
		c: c, b: b, nth: c.opened.Add(1), holds: make(map[*Hold]struct{}),
		clock: serviceclock.New(b.Features().Has(backend.Clock), c),
	}
	if p, ok := b.(pauseTeller); ok {
		p.TellPauses(s.paused)
	}
	return s
}

// pauseTeller is implemented by sessions of backends with a clock for their lease. They call f when the
// process did not run for more than a third of the session timeout. asleep says that only the wall clock
// shows it.
type pauseTeller interface {
	TellPauses(f func(late time.Duration, asleep bool))
}

// paused reports a pause of the process: it explains losses and delays for which no service is to blame.
// Neither the log nor the trace blocks.
func (s *Session) paused(late time.Duration, asleep bool) {
	what := "coord: this process was paused"
	if asleep {
		what = "coord: this machine was suspended, or its clock was set forward"
	}
	s.c.log.Warn(what, "for", late.Round(100*time.Millisecond), "session", layout.SessionText(s.b.ID()), "timeout", s.b.Timeout())
	Emit(context.Background(), s.c, trace.ProcessPaused{For: late})
}

// follow publishes the phases of a live session. It returns when the session is over or
// ctx ends. The goroutine that runs it ends the holds afterwards, so it must not wait
// for functions of the user's.
func (s *Session) follow(ctx context.Context) {
	for told := backend.PhaseConnected; ; {
		phase, t := s.Status()
		switch {
		case phase == backend.PhaseLost:
			return
		case phase == told:
		case phase == backend.PhaseSuspended:
			s.c.publish(state{phase: PhaseSuspended, session: s.b.ID()}, false)
		case phase == backend.PhaseConnected:
			s.c.publish(state{phase: PhaseConnected, session: s.b.ID()}, false)
		}
		told = phase
		select {
		case <-t.changed:
		case <-s.b.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// end marks the session as over and ends every hold of it. It first marks all holds,
// then cancels their contexts, and then reports the losses. It calls nothing of the user's.
func (s *Session) end(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	err = s.err
	holds := s.holds
	s.holds = nil
	s.single.granted, s.claims.granted = nil, nil
	s.mu.Unlock()
	endings := make([]ending, 0, len(holds))
	for h := range holds {
		if e, ok := h.fail(err); ok {
			endings = append(endings, e)
		}
	}
	s.endContact()
	for i := range endings {
		endings[i].removal.start()
	}
	for i := range endings {
		runEnds(endings[i].ends, endings[i].err)
	}
	for i := range endings {
		endings[i].tell()
	}
}

// standing returns the holds that stand.
func (s *Session) standing() []hook.Hold {
	if s.b.Err() != nil {
		return nil
	}
	s.mu.Lock()
	holds := slices.Collect(maps.Keys(s.holds))
	s.mu.Unlock()
	list := make([]hook.Hold, 0, len(holds))
	for _, h := range holds {
		if h.Err() == nil {
			list = append(list, hook.Hold{ID: h.span.ID(), Node: h.Path(), Token: h.token})
		}
	}
	return list
}

// endHold removes a hold that has ended from the holds that stand.
func (s *Session) endHold(h *Hold) {
	s.mu.Lock()
	delete(s.holds, h)
	s.mu.Unlock()
}

// LookAgain returns ErrAgain if the caller must read again after a commit that failed with err: a
// condition of the commit does not hold any more, or its outcome is unknown. It is for
// commits that cannot apply twice. path is the path that the caller reads next.
func (s *Session) LookAgain(ctx context.Context, path string, err error) error {
	switch {
	case errs.MayRepeat(ctx, err):
		pause := NewPauses(s.c)
		for {
			err := s.b.Sync(ctx, path)
			if err == nil {
				return errs.ErrAgain
			}
			if !errs.RefusesUser(err) { // else the outcome of the commit is still unknown
				return err
			}
			pause.Wait(ctx.Done(), s.b.Done())
		}
	case errs.IsNotFound(err), errs.Answers(err, backend.ErrBadVersion), errs.Answers(err, backend.ErrExists):
		return errs.ErrAgain
	}
	return err
}

// Remove deletes a node of this client whose name is never used again. It returns nil
// when the node is gone or goes with its session. Otherwise it returns when ctx ends or
// the service refuses. A retry never deletes a successor.
func (s *Session) Remove(ctx context.Context, path string) error {
	err := s.CommitAgain(ctx, backend.Delete(path, backend.AnyVersion))
	if errs.IsNotFound(err) || errs.IsOver(err) {
		return nil
	}
	return err
}

// CommitAgain repeats a commit while its outcome is unknown and the session and ctx
// last. It returns the error of the last attempt: ErrExists or ErrNotFound can be the
// effect of an earlier attempt. The operations must be idempotent, because their
// names are never used again or because of their conditions.
func (s *Session) CommitAgain(ctx context.Context, ops ...backend.Op) error {
	pause := NewPauses(s.c)
	unknown := false // the outcome of an attempt is unknown, and a refusal of the user does not change that
	for {
		_, err := s.b.Commit(ctx, ops...)
		unknown = unknown || backend.IsUncertain(err)
		if !errs.MayRepeat(ctx, err) && !(unknown && errs.RefusesUser(err)) {
			return err
		}
		pause.Wait(ctx.Done(), s.b.Done())
	}
}

// OnSession runs f on a live session, and again on the next one if that session is
// lost.
func OnSession[T any](ctx context.Context, c *Client, f func(*Session) (T, error)) (T, error) {
	for {
		s, err := c.Live(ctx)
		if err != nil {
			var zero T
			return zero, err
		}
		v, err := f(s)
		if errors.Is(err, backend.ErrSessionLost) {
			if ctx.Err() == nil {
				continue
			}
			if !backend.IsUncertain(err) {
				err = c.ContextError(ctx)
			}
		}
		return v, err
	}
}

// OverSessions runs f, for a clean-up, on one session after the other until the session is still
// alive when f returns. The nodes that f removes can belong to an earlier session, and a removal
// on a session that is lost proves nothing about them. OverSessions returns early if the client
// closes.
func (c *Client) OverSessions(ctx context.Context, f func(s *Session)) {
	OnSession(ctx, c, func(s *Session) (struct{}, error) {
		f(s)
		return struct{}{}, s.b.Err()
	})
}

// OnSessionOnce runs f as OnSession does, but does not repeat it if the outcome of a
// write on a lost session is unknown.
func OnSessionOnce[T any](ctx context.Context, c *Client, f func(*Session) (T, error)) (T, error) {
	var unknown error
	v, err := OnSession(ctx, c, func(s *Session) (T, error) {
		v, err := f(s)
		if backend.IsUncertain(err) {
			unknown = err
			return v, nil
		}
		return v, err
	})
	if err == nil {
		err = unknown
	}
	return v, err
}

// List lists a directory after a Sync, so the result is current also on an ensemble. It
// returns no names if the directory is missing.
func (s *Session) List(ctx context.Context, dir string) ([]string, error) {
	if err := s.b.Sync(ctx, dir); err != nil {
		return nil, err
	}
	names, _, err := s.b.Children(ctx, dir, nil)
	if errs.IsNotFound(err) {
		return nil, nil
	}
	return names, err
}

// WatchOwn reads a node of this session with a watch on it. It returns ErrGone if the
// node is missing, or if another session has created it.
func (s *Session) WatchOwn(ctx context.Context, path string) (w *backend.Watch, data []byte, czxid int64, err error) {
	w = backend.NewWatch()
	data, stat, err := s.b.Get(ctx, path, w)
	if errs.IsNotFound(err) || err == nil && stat.EphemeralOwner != s.b.ID() {
		err = errs.ErrGone
	}
	if err != nil {
		w.Stop()
		return nil, nil, 0, err
	}
	return w, data, stat.Czxid, nil
}

// WatchDeletion arms a watch on the ephemeral node at path that only the deletion of
// the node fires: a watch on its children, since an ephemeral node has none.
func (s *Session) WatchDeletion(ctx context.Context, path string) (*backend.Watch, backend.Stat, error) {
	w := backend.NewWatch()
	_, stat, err := s.b.Children(ctx, path, w)
	if err != nil {
		w.Stop()
		return nil, stat, err
	}
	return w, stat, nil
}

// AwaitDeletion waits until the ephemeral node at path is deleted. It reports false if
// the channel until, which may be nil, is ready first.
func (s *Session) AwaitDeletion(ctx context.Context, path string, until <-chan time.Time) (bool, error) {
	for {
		w, _, err := s.WatchDeletion(ctx, path)
		if errs.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		select {
		case <-w.Fired():
			if w.Kind() == backend.Deleted {
				return true, nil
			}
		case <-until:
			w.Stop()
			return false, nil
		case <-ctx.Done():
			w.Stop()
			return false, s.ContextError(ctx)
		}
	}
}

// IsAllowed reports whether this session is known to read nodes in dir.
func (s *Session) IsAllowed(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.allowed[dir]
	return ok
}

// SetAllowed notes that this session could read a node in dir.
func (s *Session) SetAllowed(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kinds.Remember(&s.allowed, dir, struct{}{})
}

// NewPauses returns the pauses between the attempts of one call of the client.
func NewPauses(c *Client) backoff.Pauses { return backoff.New(c) }

// GetAll returns the data of the nodes at paths, with batches in one request for many
// of them. Each result has its own error, ErrNotFound or ErrDenied.
func (s *Session) GetAll(ctx context.Context, paths []string) ([]backend.ReadResult, error) {
	if len(paths) > 1 && s.b.Features().Has(backend.Batches) {
		reads := make([]backend.Read, len(paths))
		for i, p := range paths {
			reads[i].Path = p
		}
		if got, err := s.b.ReadMany(ctx, reads...); !errors.Is(err, backend.ErrUnsupported) {
			return got, err
		}
	}
	got := make([]backend.ReadResult, len(paths))
	return got, parallel.Read(ctx, len(paths), func(ctx context.Context, i int) error {
		r := &got[i]
		r.Data, r.Stat, r.Err = s.b.Get(ctx, paths[i], nil)
		if errs.IsNotFound(r.Err) || errors.Is(r.Err, backend.ErrDenied) {
			return nil
		}
		return r.Err
	})
}

// Client returns the client of the session.
func (s *Session) Client() *Client { return s.c }

// Backend returns the session of the backend.
func (s *Session) Backend() backend.Session { return s.b }

// Number returns 1, 2… for the sessions of a client.
func (s *Session) Number() int64 { return s.nth }
