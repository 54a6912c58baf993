package semaphore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// Config is the options of a semaphore.
type Config struct {
	ID         string
	Data       []byte
	AdoptLimit bool
}

// Semaphore is the engine of a Semaphore.
type Semaphore struct {
	c         *core.Client
	path      nodepath.Path
	requests  string // the directory of requests
	limitPath string // of the node of the limit
	data      []byte // of the node of a request
	hasID     bool
	bad       error // of the options
	adopt     bool
	want      atomic.Int64                // the limit that this client expects
	seen      atomic.Pointer[storedLimit] // the limit that was last found and accepted

	mu  sync.Mutex
	set setting // the SetLimit that has set want
}

// New returns the semaphore at path, which the caller expects to have limit permits.
func New(c *core.Client, path string, limit int, cfg Config) *Semaphore {
	s := &Semaphore{c: c, path: c.Path(path), adopt: cfg.AdoptLimit, hasID: cfg.ID != ""}
	s.requests = s.path.Full() + "/requests"
	s.limitPath = s.path.Full() + "/limit"
	s.want.Store(int64(limit))
	s.data, s.bad = contender.Encode(cfg.ID, 0, slices.Clone(cfg.Data))
	return s
}

// Where returns the client and the path of the semaphore.
func (s *Semaphore) Where() (*core.Client, nodepath.Path) { return s.c, s.path }

func (s *Semaphore) recipeDir() kinds.RecipeDir {
	return kinds.NewRecipeDir(s.path.Full(), layout.KindSemaphore)
}

// check returns the error for an invalid path or limit, or for an ended ctx.
func (s *Semaphore) check(ctx context.Context, op string) error {
	if err := s.path.Check(op); err != nil {
		return err
	}
	err := checkLimit(s.want.Load())
	if err == nil {
		err = backend.ContextError(ctx)
	}
	return errs.Op(op, s.path.Full(), err)
}

// Contender is SemaphoreContender of package coord.
type Contender struct {
	Path    string
	Weight  int
	Granted bool
	Session int64
	Since   time.Time
	ID      string
	Data    []byte
}

// Contenders is Semaphore.Contenders of package coord.
func (s *Semaphore) Contenders(ctx context.Context) ([]Contender, error) {
	if err := s.check(ctx, "contenders"); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, s.c, func(ss *core.Session) ([]Contender, error) { return s.readContenders(ctx, ss) })
	return list, errs.Op("contenders", s.path.Full(), err)
}

func (s *Semaphore) readContenders(ctx context.Context, ss *core.Session) ([]Contender, error) {
	names, err := ss.List(ctx, s.requests)
	if len(names) == 0 || err != nil {
		return nil, err
	}
	l, err := s.readLimit(ctx, ss, nil)
	if err != nil && !errs.IsNotFound(err) {
		return nil, err
	}
	var list []Contender
	granted, sum := 0, int64(0) // the length of the granted prefix of the list
	for _, q := range layout.OrderPermits(names) {
		sum += int64(q.Weight)
		path := s.requests + "/" + q.Name
		data, stat, err := ss.Backend().Get(ctx, path, nil)
		if errs.IsNotFound(err) {
			continue // deleted since the listing
		}
		if err != nil {
			return nil, err
		}
		x := Contender{
			Path: path, Weight: q.Weight, Session: stat.EphemeralOwner,
			Since: time.UnixMilli(stat.Ctime),
		}
		x.ID, x.Data = layout.OpenContender(data)
		list = append(list, x)
		if sum <= int64(l.n) || stat.Version > 0 {
			granted = len(list)
		}
	}
	for i := range granted {
		list[i].Granted = true
	}
	return list, nil
}

// owner is a Semaphore as the core.Owner of its holds.
type owner Semaphore

// RemoveNode deletes the node of a released hold, and the directory, as Line.RemoveNode of package line.
func (s *owner) RemoveNode(h *core.Hold) error {
	q, _ := layout.ParsePermit(nodepath.Base(h.Path()))
	if contender.IsHighNumber(h.On(), q.Seq) {
		_, err := h.RemoveWith(s.requests)
		return err
	}
	return h.Remove(nil)
}

// Leftovers returns no nodes: the node of a lost hold goes with its session, or was deleted.
func (s *owner) Leftovers(*core.Hold, error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	return
}

// Lost does nothing: the deletion of the node wakes the waiters.
func (s *owner) Lost(*core.Hold) {}

// checkNumber returns nil for a request whose number is valid. Otherwise it removes the
// node. The last contender to leave deletes the directory too, so that the numbers
// begin anew.
func (s *Semaphore) checkNumber(ctx context.Context, r *request) error {
	if contender.NumbersLeft(r.s, r.Seq) > layout.LeftClose {
		return nil
	}
	if err := contender.RemoveWithDir(ctx, r.s, r.Path, s.requests); err != nil {
		r.s.RemoveAndWait(r.Path)
		return err
	}
	switch _, err := r.s.Backend().Exists(ctx, s.requests, nil); {
	case errs.IsNotFound(err):
		return errs.ErrDrained
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: the sequence numbers of the directory are exhausted until all holders and waiters have left", errs.ErrLimit)
}
