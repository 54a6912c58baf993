package shards

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/group"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
)

// Config is coord.ShardsOptions without Restart, which is in Work.
type Config struct {
	ID         string
	Weight     int
	Data       []byte
	ForceAfter time.Duration
}

// A Shards is the engine of coord.Shards. Its members are those of a group; every member computes the
// same assignment from the list of the members, and acquires the locks of the shards that are assigned to
// it. The lock of each shard is a line of contenders in a directory of its own.
type Shards struct {
	c     *core.Client
	path  nodepath.Path
	n     int
	o     Config
	group *group.Group
	bad   error // of the Config
}

// New returns the n shards at path. It does no I/O; a bad path, number or Config is reported by the
// first call.
func New(c *core.Client, path string, n int, o Config) *Shards {
	s := &Shards{c: c, path: c.Path(path), n: n, o: o}
	s.o.Data = slices.Clone(s.o.Data)
	if s.o.Weight == 0 {
		s.o.Weight = 1
	}
	switch {
	case n < 1 || n > layout.MaxShards:
		s.bad = fmt.Errorf("%w: %d shards, want 1 to %d", backend.ErrInvalid, n, layout.MaxShards)
	case s.o.Weight < 0 || s.o.Weight > layout.MaxWeight:
		s.bad = fmt.Errorf("%w: weight %d, want 1 to %d", backend.ErrInvalid, s.o.Weight, layout.MaxWeight)
	case s.o.ForceAfter < 0:
		s.bad = fmt.Errorf("%w: negative ForceAfter", backend.ErrInvalid)
	}
	decode := func(_ string, data []byte) (any, error) { return layout.ParseShardMember(data) }
	s.group = group.New(c, path+"/"+layout.WorkersName, decode, s.o.ID != "")
	return s
}

func (s *Shards) recipeDir() kinds.RecipeDir {
	return kinds.NewRecipeDir(s.path.Full(), layout.KindShards)
}

// line returns the engine of the lock of a shard.
func (s *Shards) line(i int) *line.Line {
	dir := s.path.Full() + "/" + layout.ShardsName + "/" + layout.ShardName(i)
	return line.New(s.c, dir, layout.LockLine, s.recipeDir())
}

// check returns the error for a bad path or option, or an ended ctx.
func (s *Shards) check(ctx context.Context, op string) error {
	if err := s.path.Check(op); err != nil {
		return err
	}
	err := s.bad
	if err == nil {
		err = backend.ContextError(ctx)
	}
	return errs.Op(op, s.path.Full(), err)
}

// Owners returns the first contender for the lock of each shard, in the order of their numbers. The
// contender is zero if there is none.
func (s *Shards) Owners(ctx context.Context) ([]line.Contender, error) {
	const op = "owners"
	if err := s.check(ctx, op); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, s.c, func(ss *core.Session) ([]line.Contender, error) {
		if err := ss.Backend().Sync(ctx, s.path.Full()); err != nil {
			return nil, err
		}
		if err := ss.CheckKind(ctx, s.recipeDir()); err != nil {
			return nil, err
		}
		lines := make([]*line.Line, s.n)
		for i := range lines {
			lines[i] = s.line(i)
		}
		return line.Owners(ctx, ss, lines)
	})
	return list, errs.Op(op, s.path.Full(), err)
}
