package semaphore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// storedLimit is the limit of a semaphore as stored on the service.
type storedLimit struct {
	n       int
	changed int64 // the zxid of its latest change
	version int32 // of its node
}

// setting says when a SetLimit was applied. The zxids of two sessions are not compared: the service can have
// been restored from a backup between them.
type setting struct {
	session int64 // its number, see core.Session.Number
	zxid    int64
}

func (x setting) after(other setting) bool {
	return x.session > other.session || x.session == other.session && x.zxid > other.zxid
}

// SetLimit is Semaphore.SetLimit of package coord.
func (s *Semaphore) SetLimit(ctx context.Context, limit int) error {
	if err := s.check(ctx, "setlimit"); err != nil {
		return err
	}
	if err := checkLimit(int64(limit)); err != nil {
		return errs.Op("setlimit", s.path.Full(), err)
	}
	// Not repeated on another session: a later change by another client could be
	// undone.
	now, err := core.OnSessionOnce(ctx, s.c, func(ss *core.Session) (setting, error) {
		zxid, err := s.setLimit(ctx, ss, limit)
		return setting{ss.Number(), zxid}, err
	})
	if err != nil {
		return errs.Op("setlimit", s.path.Full(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.after(s.set) { // the replies of two calls may come in any order
		s.set = now
		s.want.Store(int64(limit))
	}
	return nil
}

// Limit is Semaphore.Limit of package coord.
func (s *Semaphore) Limit(ctx context.Context) (int, error) {
	if err := s.check(ctx, "limit"); err != nil {
		return 0, err
	}
	l, err := core.OnSession(ctx, s.c, func(ss *core.Session) (storedLimit, error) { return s.readLimit(ctx, ss, nil) })
	return l.n, errs.Op("limit", s.path.Full(), err)
}

// checkLimit returns ErrInvalid for a number that cannot be a limit.
func checkLimit(n int64) error {
	if !layout.IsLimit(n) {
		return fmt.Errorf("%w: limit %d, want 1 to %d", backend.ErrInvalid, n, layout.MaxPermits)
	}
	return nil
}

// readLimit reads the limit. The watch, if any, fires at the next change.
func (s *Semaphore) readLimit(ctx context.Context, ss *core.Session, w *backend.Watch) (storedLimit, error) {
	data, stat, err := ss.Backend().Get(ctx, s.limitPath, w)
	if err != nil {
		return storedLimit{}, err
	}
	n, ok := layout.ParseLimit(data)
	if !ok {
		w.Stop()
		return storedLimit{}, fmt.Errorf("%w: the limit at %s is not a number from 1 to %d (%d bytes)", backend.ErrInvalid, s.limitPath, layout.MaxPermits, len(data))
	}
	return storedLimit{n, stat.Mzxid, stat.Version}, nil
}

// makeLimit creates the node of the limit, if it does not exist.
func (s *Semaphore) makeLimit(ctx context.Context, ss *core.Session, limit int) error {
	if err := ss.ClaimKindAnew(ctx, s.recipeDir()); err != nil {
		return err
	}
	_, err := ss.MakeNode(ctx, backend.Create(s.limitPath, formatLimit(limit), backend.Persistent), func(string) error { return ss.ClaimKindAnew(ctx, s.recipeDir()) })
	return err
}

// setLimit changes the limit, and returns the zxid of the change.
func (s *Semaphore) setLimit(ctx context.Context, ss *core.Session, limit int) (int64, error) {
	if err := ss.ClaimKind(ctx, s.recipeDir()); err != nil {
		return 0, err
	}
	pause := core.NewPauses(ss.Client())
	for {
		// Exactly once: a repetition could undo a later change by another client.
		_, zxid, err := ss.CommitOnce(ctx, backend.SetData(s.limitPath, formatLimit(limit), backend.AnyVersion))
		if !errs.IsNotFound(err) {
			return zxid, err
		}
		if err := ss.ClaimKindAnew(ctx, s.recipeDir()); err != nil {
			return 0, err
		}
		_, zxid, err = ss.CommitOnce(ctx, backend.Create(s.limitPath, formatLimit(limit), backend.Persistent))
		if !errs.IsNotFound(err) && !errs.Answers(err, backend.ErrExists) { // another client has created it meanwhile
			return zxid, err
		}
		pause.Wait(ctx.Done(), ss.Backend().Done())
	}
}

func formatLimit(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

// limit reads the limit, and creates its node if there is none. The first time it also
// compares the limit with the one that the client expects. With watch it returns an
// armed watch.
func (a *acquisition) limit(ctx context.Context, s *core.Session, watch bool) (storedLimit, *backend.Watch, error) {
	sem := a.sem
	for {
		var w *backend.Watch
		if watch {
			w = backend.NewWatch()
		}
		l, err := sem.readLimit(ctx, s, w)
		if errs.IsNotFound(err) {
			// The first use of the semaphore, or an outsider deleted the node.
			n := int(sem.want.Load())
			if seen := sem.seen.Load(); seen != nil {
				n = seen.n
			}
			if err := sem.makeLimit(ctx, s, n); err != nil {
				return storedLimit{}, nil, err
			}
			continue
		}
		if err != nil {
			return storedLimit{}, nil, err
		}
		if want := int(sem.want.Load()); !a.agreed && !sem.adopt && l.n != want {
			w.Stop()
			sem.seen.Store(nil)
			return storedLimit{}, nil, fmt.Errorf("%w: the semaphore has %d permits, this client expects %d", errs.ErrLimit, l.n, want)
		}
		a.agreed = true
		if seen := sem.seen.Load(); seen == nil || *seen != l {
			sem.seen.Store(&l)
		}
		return l, w, nil
	}
}

// limitUnchanged returns the condition that the limit has not changed since the client has read it, provided
// that the client accepts that limit. Otherwise, or if the client has not read the limit, the Kind of the
// condition is zero. (The condition does not detect that the node was deleted and created again.)
func (s *Semaphore) limitUnchanged() backend.Op {
	seen := s.seen.Load()
	if seen == nil || seen.version < 0 || !s.adopt && int64(seen.n) != s.want.Load() {
		return backend.Op{}
	}
	return backend.Check(s.limitPath, seen.version)
}
