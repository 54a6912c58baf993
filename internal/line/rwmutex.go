package line

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// RWMutex is the engine of an RWMutex.
type RWMutex struct {
	c     *core.Client
	path  nodepath.Path
	data  []byte // of the node
	hasID bool
	bad   error // of the options
}

func NewRWMutex(c *core.Client, path string, cfg Config) *RWMutex {
	rw := &RWMutex{c: c, path: c.Path(path), hasID: cfg.Id != ""}
	rw.data, rw.bad = contender.Encode(cfg.Id, 0, slices.Clone(cfg.Data))
	return rw
}

func (rw *RWMutex) Lock(ctx context.Context) (*core.Hold, error) {
	return rw.lock(ctx, rw.newRequest())
}

func (rw *RWMutex) TryLock(ctx context.Context) (*core.Hold, error) {
	return rw.lock(ctx, &Request{Op: "trylock", Kind: layout.WriteInfix, try: true})
}

func (rw *RWMutex) RLock(ctx context.Context) (*core.Hold, error) {
	return rw.lock(ctx, &Request{Op: "rlock", Kind: layout.ReadInfix})
}

func (rw *RWMutex) TryRLock(ctx context.Context) (*core.Hold, error) {
	return rw.lock(ctx, &Request{Op: "tryrlock", Kind: layout.ReadInfix, try: true})
}

// FullPath returns the path of the lock, with the namespace.
func (rw *RWMutex) FullPath() string { return rw.path.Full() }

// Key and ReadKey return the keys of LockAll of the two sides. face is the value of the program that
// stands for the side.
func (rw *RWMutex) Key(face any) Key     { return Key{rw.c, rw.path, face, rw} }
func (rw *RWMutex) ReadKey(face any) Key { return Key{rw.c, rw.path, face, readSide{rw}} }

// readSide is the readers' side in a joint commit.
type readSide struct{ rw *RWMutex }

// line returns the engine of the lock. Its rules, those of readers and writers among them,
// are in line.go; it waits in wait.go.
func (rw *RWMutex) line() *Line { return &Line{c: rw.c, dir: rw.path.Full(), kinds: layout.SharedLine} }

func (rw *RWMutex) lock(ctx context.Context, r *Request) (*core.Hold, error) {
	if err := rw.begin(ctx, r); err != nil {
		return nil, err
	}
	return rw.acquire(ctx, r)
}

func (rw *RWMutex) newRequest() *Request {
	return &Request{Op: "lock", Kind: layout.WriteInfix, Data: rw.data}
}

func (rw *RWMutex) begin(ctx context.Context, r *Request) error {
	if err := rw.path.Check(r.Op); err != nil {
		return err
	}
	if err := rw.bad; err != nil {
		return errs.Op(r.Op, rw.path.Full(), err)
	}
	if err := backend.ContextError(ctx); err != nil {
		return errs.Op(r.Op, rw.path.Full(), err)
	}
	l := rw.line()
	if err := l.HeldUnder(ctx, r); err != nil {
		return errs.Op(r.Op, rw.path.Full(), err)
	}
	r.Data, r.Lookup = rw.data, contender.NewLookup(rw.hasID)
	r.Span = rw.c.NewSpan("rwmutex", rw.path.Full(), r.Op)
	r.Owner = l
	return nil
}

// takeTurn returns at once: each caller has a node of its own.
func (rw *RWMutex) takeTurn(context.Context, *Request) error { return nil }

func (rw *RWMutex) acquire(ctx context.Context, r *Request) (*core.Hold, error) {
	return r.Owner.(*Line).Acquire(ctx, r)
}

// move carries out Downgrade.
func (rw *RWMutex) move(ctx context.Context, h *core.Hold) error {
	old, err := rw.beginMove(h)
	if err != nil {
		return errs.Op("downgrade", rw.path.Full(), err)
	}
	i := strings.LastIndex(old, layout.WriteInfix)
	next := old[:i] + layout.ReadInfix + old[i+len(layout.WriteInfix):]
	result := make(chan error, 1)
	move := func() {
		err := replaceNode(h.On(), old, next, rw.data)
		if err == nil {
			h.EndMove(next)
		} else {
			h.EndMove("")
		}
		switch {
		case errs.IsNotFound(err):
			h.NodeGone(context.Background(), old)
			err = h.Err()
		case errs.IsOver(err):
			h.Lose(err)
			err = h.Err()
		case err == nil:
			h.Emit(ctx, func(at trace.Subject, _ time.Duration) trace.Event {
				return trace.HoldDowngraded{Subject: at, Token: h.Token()}
			})
		}
		result <- err
	}
	if !rw.c.GoWork(move) {
		h.EndMove("")
		return errs.Op("downgrade", old, backend.ErrClosed)
	}
	select {
	case err := <-result:
		return errs.Op("downgrade", old, err)
	case <-ctx.Done():
		return errs.Op("downgrade", old, backend.Uncertain(backend.ContextError(ctx)))
	}
}

// beginMove marks a writer's hold as about to move to another node.
func (rw *RWMutex) beginMove(h *core.Hold) (old string, err error) {
	l := rw.line()
	return h.BeginMove(func(path string, moving bool) error {
		name, ok := strings.CutPrefix(path, l.dir+"/")
		if q, known := l.kinds.Parse(name); h.On().Client() != rw.c || !ok || strings.Contains(name, "/") || !known || q.Shared || moving {
			return fmt.Errorf("%w: %s is not a writer's hold of this lock", backend.ErrInvalid, path)
		}
		return nil
	})
}

// replaceNode deletes the node at old and creates one at next, in one commit. If the reply
// is lost, it determines the outcome. The error matches ErrNotFound if an outsider
// deleted old.
func replaceNode(s *core.Session, old, next string, data []byte) error {
	ctx := context.Background() // the session bounds it
	err := s.CommitAgain(ctx, backend.Create(next, data, backend.Ephemeral), backend.Delete(old, backend.AnyVersion))
	if errors.Is(err, backend.ErrExists) {
		return nil // created by an attempt whose reply was lost, since the name is this hold's alone
	}
	return err
}

func (r readSide) line() *Line { return r.rw.line() }

func (r readSide) newRequest() *Request {
	return &Request{Op: "rlock", Kind: layout.ReadInfix, Data: r.rw.data}
}

func (r readSide) begin(ctx context.Context, q *Request) error { return r.rw.begin(ctx, q) }

func (r readSide) takeTurn(ctx context.Context, q *Request) error { return r.rw.takeTurn(ctx, q) }

func (r readSide) acquire(ctx context.Context, q *Request) (*core.Hold, error) {
	return r.rw.acquire(ctx, q)
}

// Downgrade is RWMutex.Downgrade of package coord. h may be nil.
func (rw *RWMutex) Downgrade(ctx context.Context, h *core.Hold) error {
	core.NeedContext(ctx)
	if err := rw.path.Check("downgrade"); err != nil {
		return err
	}
	if h == nil || !h.WasGranted() {
		return errs.Op("downgrade", rw.path.Full(), fmt.Errorf("%w: the hold is nil or not from a lock", backend.ErrInvalid))
	}
	if err := backend.ContextError(ctx); err != nil {
		return errs.Op("downgrade", rw.path.Full(), err)
	}
	return rw.move(ctx, h)
}

func (rw *RWMutex) Contenders(ctx context.Context) ([]Contender, error) {
	if err := rw.path.Check("contenders"); err != nil {
		return nil, err
	}
	list, err := rw.line().contenders(ctx)
	return list, errs.Op("contenders", rw.path.Full(), err)
}

func (rw *RWMutex) Revoke(ctx context.Context, o *RevokeOptions) error {
	return rw.line().Revoke(ctx, &rw.path, o)
}
