package coord

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

// permits is the limit of a semaphore as stored on the service.
type permits struct {
	n       int
	changed int64 // the zxid of its latest change
	version int32 // of its node
}

// checkLimit returns ErrInvalid for a number that cannot be a limit.
func checkLimit(n int64) error {
	if n < 1 || n > maxPermits {
		return fmt.Errorf("%w: limit %d, want 1 to %d", ErrInvalid, n, maxPermits)
	}
	return nil
}

// readLimit reads the limit. The watch, if any, fires at the next change.
func (s *session) readLimit(ctx context.Context, path string, w *backend.Watch) (permits, error) {
	data, stat, err := s.b.Get(ctx, path, w)
	if err != nil {
		return permits{}, err
	}
	// An operator's tool may leave spaces behind.
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err == nil {
		err = checkLimit(n)
	}
	if err != nil {
		w.Stop()
		return permits{}, fmt.Errorf("%w: the limit at %s is not a number from 1 to %d (%d bytes)", ErrInvalid, path, maxPermits, len(data))
	}
	return permits{int(n), stat.Mzxid, stat.Version}, nil
}

// makeLimit creates the node of the limit, if it does not exist.
func (s *Semaphore) makeLimit(ctx context.Context, ss *session, limit int) error {
	_, err := ss.makeNode(ctx, backend.Create(s.limit, formatLimit(limit), backend.Persistent), func(string) error { return ss.occupyAnew(ctx, s.ground()) })
	return err
}

// setLimit changes the limit, and returns the zxid of the change.
func (s *Semaphore) setLimit(ctx context.Context, ss *session, limit int) (int64, error) {
	if err := ss.occupy(ctx, s.ground()); err != nil {
		return 0, err
	}
	for {
		// Exactly once: a repetition could undo a later change by another client.
		_, zxid, err := ss.commitOnce(ctx, backend.SetData(s.limit, formatLimit(limit), backend.AnyVersion))
		if !isNotFound(err) {
			return zxid, err
		}
		_, zxid, err = ss.commitOnce(ctx, backend.Create(s.limit, formatLimit(limit), backend.Persistent))
		switch {
		case answers(err, backend.ErrExists): // another client has created it meanwhile
		case isNotFound(err):
			if err := ss.occupyAnew(ctx, s.ground()); err != nil {
				return 0, err
			}
		default:
			return zxid, err
		}
	}
}

func formatLimit(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

// limit reads the limit, and creates its node if there is none. The first time it also
// compares the limit with the one that the client expects. With watch it returns an
// armed watch.
func (a *acquisition) limit(ctx context.Context, s *session, watch bool) (permits, *backend.Watch, error) {
	sem := a.sem
	for {
		var w *backend.Watch
		if watch {
			w = backend.NewWatch()
		}
		l, err := s.readLimit(ctx, sem.limit, w)
		if isNotFound(err) {
			// The first use of the semaphore, or an outsider deleted the node.
			n := int(sem.want.Load())
			if seen := sem.seen.Load(); seen != nil {
				n = seen.n
			}
			if err := sem.makeLimit(ctx, s, n); err != nil {
				return permits{}, nil, err
			}
			continue
		}
		if err != nil {
			return permits{}, nil, err
		}
		if want := int(sem.want.Load()); !a.agreed && !sem.adopt && l.n != want {
			w.Stop()
			sem.seen.Store(nil)
			return permits{}, nil, fmt.Errorf("%w: the semaphore has %d permits, this client expects %d", ErrLimit, l.n, want)
		}
		a.agreed = true
		if seen := sem.seen.Load(); seen == nil || *seen != l {
			sem.seen.Store(&l)
		}
		return l, w, nil
	}
}

// limitStands returns the condition that the limit is still the one that was last seen,
// and that this client accepts it. Its Kind is zero if there is none. (It does not
// detect that the node was deleted and created again.)
func (s *Semaphore) limitStands() backend.Op {
	seen := s.seen.Load()
	if seen == nil || seen.version < 0 || !s.adopt && int64(seen.n) != s.want.Load() {
		return backend.Op{}
	}
	return backend.Check(s.limit, seen.version)
}
