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
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// Config is the options of a lock.
type Config struct {
	Id    string
	Data  []byte
	Keep  time.Duration
	Whole core.RecipeDir // of the recipe that the lock is a part of, if any
}

// Mutex is the engine of a Mutex.
type Mutex struct {
	c     *core.Client
	path  nodepath.Path
	data  []byte // of the node
	hasID bool
	keep  time.Duration
	bad   error // of the options
	whole core.RecipeDir
}

func NewMutex(c *core.Client, path string, cfg Config) *Mutex {
	m := &Mutex{c: c, path: c.Path(path), keep: cfg.Keep, hasID: cfg.Id != "", whole: cfg.Whole}
	m.data, m.bad = contender.Encode(cfg.Id, cfg.Keep, slices.Clone(cfg.Data))
	if cfg.Keep < 0 {
		m.bad = fmt.Errorf("%w: negative Keep", backend.ErrInvalid)
	}
	return m
}

func (m *Mutex) Lock(ctx context.Context) (*core.Hold, error) { return m.lock(ctx, m.newRequest()) }

func (m *Mutex) TryLock(ctx context.Context) (*core.Hold, error) {
	return m.lock(ctx, &Request{Op: "trylock", Kind: layout.LockInfix, Data: m.data, try: true})
}

// FullPath returns the path of the lock, with the namespace.
func (m *Mutex) FullPath() string { return m.path.Full() }

// KeyOf returns the key of LockAll. face is the value of the program that stands for m.
func (m *Mutex) KeyOf(face any) Key { return Key{m.c, m.path, face, m} }

// line returns the engine of the lock. Its rules are in line.go; it waits in wait.go.
func (m *Mutex) line() *Line {
	return &Line{c: m.c, dir: m.path.Full(), kinds: layout.LockLine, whole: m.whole}
}

func (m *Mutex) lock(ctx context.Context, r *Request) (*core.Hold, error) {
	if err := m.begin(ctx, r); err != nil {
		return nil, err
	}
	if r.try && m.c.HasLeftovers(m.path.Full()) { // a release in the background has the local turn
		if err := m.c.AwaitCleanUps(ctx, m.path.Full(), ""); err != nil {
			return nil, errs.Op(r.Op, m.path.Full(), err)
		}
	}
	if err := m.takeTurn(ctx, r); err != nil {
		return nil, err
	}
	return m.acquire(ctx, r)
}

func (m *Mutex) newRequest() *Request {
	return &Request{Op: "lock", Kind: layout.LockInfix, Data: m.data}
}

func (m *Mutex) begin(ctx context.Context, r *Request) error {
	if err := m.path.Check(r.Op); err != nil {
		return err
	}
	path := m.path.Full()
	if m.bad != nil {
		return errs.Op(r.Op, path, m.bad)
	}
	if err := m.c.ContextError(ctx); err != nil {
		return errs.Op(r.Op, path, err)
	}
	if err := m.line().HeldUnder(ctx, r); err != nil {
		return errs.Op(r.Op, path, err)
	}
	r.Span = m.c.NewSpan("mutex", path, r.Op)
	r.Lookup = contender.NewLookup(m.hasID)
	r.keep = m.keep
	return nil
}

// takeTurn waits for the caller's turn among the callers of the client. With the turn, the
// request may get a reserved node.
func (m *Mutex) takeTurn(ctx context.Context, r *Request) error {
	path := m.path.Full()
	q, w, err := linesOf(m.c).join(*m.line(), r)
	if err != nil {
		return errs.Op(r.Op, path, err)
	}
	if w != nil {
		r.Span.Waiting(ctx, "", -1)
		if err := q.wait(ctx, w); err != nil {
			q.l.beginLookup(ctx, r, m.c.Present(), "", err)()
			err = errs.Op(r.Op, path, r.Explain(err))
			r.Span.Over(ctx, err)
			return err
		}
		r.reserved = w.reserved
	}
	r.Owner = q
	return nil
}

// acquire acquires the lock for a caller that has the turn. If it fails, it passes the turn
// on.
func (m *Mutex) acquire(ctx context.Context, r *Request) (*core.Hold, error) {
	q := r.Owner.(*localQueue)
	if r.reserved.state == reservedKept {
		k := r.reserved.kept
		r.reserved = reservedNode{}
		if h := q.resume(ctx, r, k); h != nil {
			return h, nil
		}
	}
	h, err := q.l.Acquire(ctx, r)
	if err != nil {
		q.advance()
		return nil, err
	}
	return h, nil
}

func (m *Mutex) Contenders(ctx context.Context) ([]Contender, error) {
	if err := m.path.Check("contenders"); err != nil {
		return nil, err
	}
	list, err := m.line().contenders(ctx)
	return list, errs.Op("contenders", m.path.Full(), err)
}

func (m *Mutex) Revoke(ctx context.Context, o *RevokeOptions) error {
	return m.line().Revoke(ctx, &m.path, o)
}
