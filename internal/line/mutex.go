package line

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// mutex is the lock of a Mutex.
type mutex struct {
	c     *core.Client
	path  nodepath.Path
	data  []byte // of the node
	hasID bool
	keep  time.Duration
	bad   error // of the options
	whole kinds.RecipeDir
}

// NewLock returns the lock of a Mutex with these options.
func NewLock(c *core.Client, path, id string, data []byte, keep time.Duration) *Lock {
	return newMutex(c, path, id, data, keep, kinds.RecipeDir{})
}

// NewPart returns a lock that is a part of the recipe whole.
func NewPart(c *core.Client, path string, whole kinds.RecipeDir) *Lock {
	return newMutex(c, path, "", nil, 0, whole)
}

func newMutex(c *core.Client, path, id string, data []byte, keep time.Duration, whole kinds.RecipeDir) *Lock {
	m := &mutex{c: c, path: c.Path(path), keep: keep, hasID: id != "", whole: whole}
	m.data, m.bad = contender.Encode(id, keep, slices.Clone(data))
	if keep < 0 {
		m.bad = fmt.Errorf("%w: negative Keep", backend.ErrInvalid)
	}
	return &Lock{m.c, m.path, m}
}

// line returns the engine of the lock. Its rules are in line.go; it waits in wait.go.
func (m *mutex) line() *Line {
	return &Line{c: m.c, dir: m.path.Full(), kinds: layout.LockLine, whole: m.whole}
}

func (m *mutex) lock(ctx context.Context, try bool) (*core.Hold, error) {
	r := m.newRequest()
	if try {
		r.op, r.try = "trylock", true
	}
	if err := m.begin(ctx, r); err != nil {
		return nil, err
	}
	if try && m.c.HasLeftovers(m.path.Full()) { // a release in the background can have the local turn
		if err := m.c.AwaitCleanUps(ctx, m.path.Full(), ""); err != nil {
			return nil, errs.Op(r.op, m.path.Full(), err)
		}
	}
	if err := m.takeTurn(ctx, r); err != nil {
		return nil, err
	}
	return m.acquire(ctx, r)
}

func (m *mutex) newRequest() *request {
	return &request{op: "lock", kind: layout.LockInfix, data: m.data}
}

func (m *mutex) begin(ctx context.Context, r *request) error {
	if err := m.path.Check(r.op); err != nil {
		return err
	}
	path := m.path.Full()
	if m.bad != nil {
		return errs.Op(r.op, path, m.bad)
	}
	if err := m.c.ContextError(ctx); err != nil {
		return errs.Op(r.op, path, err)
	}
	if err := m.line().heldUnder(ctx, r); err != nil {
		return errs.Op(r.op, path, err)
	}
	r.span = m.c.NewSpan("mutex", path, r.op)
	r.Lookup = contender.NewLookup(m.hasID)
	r.keep = m.keep
	return nil
}

// takeTurn waits for the caller's turn among the callers of the client. With the turn, the
// request may get a reserved node.
func (m *mutex) takeTurn(ctx context.Context, r *request) error {
	path := m.path.Full()
	q, w, err := linesOf(m.c).join(*m.line(), r)
	if err != nil {
		return errs.Op(r.op, path, err)
	}
	if w != nil {
		r.span.Waiting(ctx, "", -1)
		if err := q.wait(ctx, w); err != nil {
			q.l.beginLookup(ctx, r, m.c.Present(), "", err)()
			err = errs.Op(r.op, path, r.Explain(err))
			r.span.Over(ctx, err)
			return err
		}
		r.reserved = w.reserved
	}
	r.owner = q
	return nil
}

// acquire acquires the lock for a caller that has the turn. If it fails, it passes the turn
// on.
func (m *mutex) acquire(ctx context.Context, r *request) (*core.Hold, error) {
	q := r.owner.(*localQueue)
	if r.reserved.state == reservedKept {
		k := r.reserved.kept
		r.reserved = reservedNode{}
		if h := q.resume(ctx, r, k); h != nil {
			return h, nil
		}
	}
	h, err := q.l.acquire(ctx, r)
	if err != nil {
		q.advance()
		return nil, err
	}
	return h, nil
}
