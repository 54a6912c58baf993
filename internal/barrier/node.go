package barrier

import (
	"context"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// A Barrier is set while its node exists and is no directory. Set creates the node with the mark of the
// recipe, persistent or ephemeral. The service removes an ephemeral node with the session of its setter.
type Barrier struct {
	c         *core.Client
	path      nodepath.Path
	ephemeral bool
	setIn     sync.Map // of int64: with ephemeral, the sessions in which this client has, or may have, set the barrier
}

// New returns the barrier at path. With ephemeral, Set ties it to the session of the client.
func New(c *core.Client, path string, ephemeral bool) Barrier {
	return Barrier{c: c, path: c.Path(path), ephemeral: ephemeral}
}

// check returns the error that op reports for a bad path, or for a ctx that has ended.
func (b *Barrier) check(ctx context.Context, op string) error {
	if err := b.path.Check(op); err != nil {
		return err
	}
	return errs.Op(op, b.path.Full(), backend.ContextError(ctx))
}

// subject returns the subject of an event of a call.
func (b *Barrier) subject(op string) trace.Subject {
	return trace.Subject{Recipe: "barrier", Path: b.path.Full(), Op: op, Node: b.path.Full()}
}

// found is what a read has found at the path of a barrier.
type found struct {
	stat  backend.Stat
	set   bool // false: the node is a directory, in which no barrier is set
	state kinds.DirState
}

// look reads the node of the barrier. It returns an error if the node belongs to
// another recipe. seen is the czxid of a node that an earlier call has found to be a
// barrier: that node is not examined again, whatever data was written to it since, unless
// the barrier was removed from it.
func (b *Barrier) look(ctx context.Context, s *core.Session, w *backend.Watch, seen int64) (found, error) {
	data, stat, err := s.Backend().Get(ctx, b.path.Full(), w)
	at := found{stat: stat, set: !layout.IsDirectory(data, stat) || layout.IsBareBarrier(data, stat)}
	if err != nil || stat.Czxid == seen && at.set {
		return at, err
	}
	at.state, err = s.Examine(ctx, kinds.NewRecipeDir(b.path.Full(), layout.KindBarrier), data, stat)
	return at, err
}
