package line

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// RWMutex is the engine of an RWMutex: the sides of the writers and of the readers.
type RWMutex struct {
	Write, Read *Lock
	*shared
}

// shared is the lock of an RWMutex, for writers.
type shared struct {
	c     *core.Client
	path  nodepath.Path
	data  []byte // of the node
	hasID bool
	bad   error // of the options
}

// readSide is the lock of an RWMutex, for readers.
type readSide struct{ *shared }

// NewRWMutex returns the engine of an RWMutex with these options.
func NewRWMutex(c *core.Client, path, id string, data []byte) *RWMutex {
	rw := &shared{c: c, path: c.Path(path), hasID: id != ""}
	rw.data, rw.bad = contender.Encode(id, 0, slices.Clone(data))
	return &RWMutex{Write: &Lock{c, rw.path, rw}, Read: &Lock{c, rw.path, readSide{rw}}, shared: rw}
}

// line returns the engine of the lock. Its rules, also those of readers and writers,
// are in line.go; it waits in wait.go.
func (rw *shared) line() *Line { return &Line{c: rw.c, dir: rw.path.Full(), kinds: layout.SharedLine} }

func (rw *shared) lock(ctx context.Context, try bool) (*core.Hold, error) {
	r := rw.newRequest()
	if try {
		r.op, r.try = "trylock", true
	}
	return rw.lockFor(ctx, r)
}

func (s readSide) lock(ctx context.Context, try bool) (*core.Hold, error) {
	r := s.newRequest()
	if try {
		r.op, r.try = "tryrlock", true
	}
	return s.lockFor(ctx, r)
}

func (rw *shared) lockFor(ctx context.Context, r *request) (*core.Hold, error) {
	if err := rw.begin(ctx, r); err != nil {
		return nil, err
	}
	return rw.acquire(ctx, r)
}

func (rw *shared) newRequest() *request {
	return &request{op: "lock", kind: layout.WriteInfix, data: rw.data}
}

func (s readSide) newRequest() *request {
	return &request{op: "rlock", kind: layout.ReadInfix, data: s.data}
}

func (rw *shared) begin(ctx context.Context, r *request) error {
	if err := rw.path.Check(r.op); err != nil {
		return err
	}
	if err := rw.bad; err != nil {
		return errs.Op(r.op, rw.path.Full(), err)
	}
	if err := backend.ContextError(ctx); err != nil {
		return errs.Op(r.op, rw.path.Full(), err)
	}
	l := rw.line()
	if err := l.heldUnder(ctx, r); err != nil {
		return errs.Op(r.op, rw.path.Full(), err)
	}
	r.Lookup = contender.NewLookup(rw.hasID)
	r.span = rw.c.NewSpan("rwmutex", rw.path.Full(), r.op)
	r.owner = l
	return nil
}

// takeTurn returns at once: each caller has a node of its own.
func (rw *shared) takeTurn(context.Context, *request) error { return nil }

func (rw *shared) acquire(ctx context.Context, r *request) (*core.Hold, error) {
	return r.owner.(*Line).acquire(ctx, r)
}

// Downgrade is RWMutex.Downgrade of package coord. h may be nil.
func (rw *RWMutex) Downgrade(ctx context.Context, h *core.Hold) error {
	core.NeedContext(ctx)
	if err := rw.path.Check("downgrade"); err != nil {
		return err
	}
	if h == nil || h.On() == nil {
		return errs.Op("downgrade", rw.path.Full(), fmt.Errorf("%w: the hold is nil or not from a lock", backend.ErrInvalid))
	}
	if err := backend.ContextError(ctx); err != nil {
		return errs.Op("downgrade", rw.path.Full(), err)
	}
	from, err := h.Move(ctx, rw.data, func(path string, moving bool) (string, error) { return rw.asReader(h, path, moving) })
	return errs.Op("downgrade", cmp.Or(from, rw.path.Full()), err)
}

// asReader returns the path of the reader's node that replaces the writer's node at path, the node of h.
func (rw *RWMutex) asReader(h *core.Hold, path string, moving bool) (string, error) {
	l := rw.line()
	name, ok := strings.CutPrefix(path, l.dir+"/")
	if q, known := l.kinds.Parse(name); h.On().Client() != rw.c || !ok || strings.Contains(name, "/") || !known || q.Shared || moving {
		return "", fmt.Errorf("%w: %s is not a writer's hold of this lock", backend.ErrInvalid, path)
	}
	i := strings.LastIndex(path, layout.WriteInfix)
	return path[:i] + layout.ReadInfix + path[i+len(layout.WriteInfix):], nil
}
