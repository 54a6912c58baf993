package coord

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/line"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/queuestat"
)

// ShardsOptions may be nil.
type ShardsOptions struct {
	// ID names the member. It must be unique among the members, and an id of a Group: at most
	// 200 bytes, without a slash. A process that uses the same ID after each restart has the
	// same shards as before. If it comes back before the service has ended the session of its
	// former process, no shard moves to another member, and it takes its shards at once: it
	// removes the nodes of the former process, whose holds are lost if it still runs. Without an
	// ID each call of All or Run draws one.
	ID string

	// Weight is the share of the member in proportion to the weights of the others, from 1 to
	// 1000. Zero means 1.
	Weight int

	// Data is stored in the node of each shard that the member owns or waits for, for Owners.
	// It can be the address under which the owner serves. Keep it small.
	Data []byte

	// ForceAfter is the time that the owner of a shard has to release it when the shard has to
	// move, or when the loop of All ends. After that time the hold ends with ErrRevoked, and the
	// next member is granted. Zero means to wait for the Release.
	ForceAfter time.Duration

	// Restart tells Run what to do when the function of a shard has failed: it returns the pause
	// before the function is called again. failures is the number of successive failed calls,
	// this one included; a call that lasts longer than a second resets it. err is the error of
	// the function, also after a panic. If Restart returns a negative time, Run ends: the member
	// leaves, and Run returns err. If the shard has to move, or is lost, only a negative time has
	// an effect. If Restart is nil, or panics, the pause is 0 after the first failure, 10 ms after
	// the second, and then doubles up to a second, less a random part of at most half. Restart
	// runs on goroutines of its own, so it must be safe for concurrent use.
	Restart func(failures int, err error) time.Duration
}

// Shards divides a fixed number of pieces of work, the shards, among processes: partitions
// of a stream, tenants, buckets of timers. Each shard has one owner, and a change of the
// processes moves few shards. A process is a member while it runs All or Run.
//
// Every member computes the same assignment from the ids and weights of the members. The
// assignment only decides which member requests a shard; the owner is the holder of the
// shard's lock. So two members never own one shard, as with a Mutex: a Shard is a Hold with a
// token and a guard. A member gets its share by weight, rounded down or up. If one of m
// members joins or leaves, its share of n/m shards moves, and about √n/2 other shards, at most
// 2√n + 2 in all measured cases. A member that returns gets its former shards again. When
// members no longer change and every moving shard is released, each shard has its owner
// after a few round trips.
//
// When a shard has to move, its owner is asked to give it up (Hold.Revoked; in Run, the
// context of the function ends) and releases it. The successor is granted one round trip
// later. The shards of a dead member move when the service has ended its session. A shorter
// loss of contact moves nothing, nor does a restart under the same ID within that time. If
// a member's ctx ends or its client closes, the others get its shards at once.
//
// All members must have the same number of shards; another number is refused with
// ErrInvalid. Change the number only when every Run has returned and every shard of every
// All is released.
//
// A Shards is safe for concurrent use and needs no closing. Each call of All or Run is a
// member. The assignment is described at internal/assign, the nodes in layout.md.
type Shards struct {
	c     *core.Client
	path  core.Path
	n     int
	o     ShardsOptions
	group *Group[layout.ShardMember]
	bad   error // of the options
}

// NewShards returns the n shards at path, at most 65,536. It does no I/O; a bad path, number or
// option is reported by the first call.
func NewShards(c *Client, path string, n int, o *ShardsOptions) *Shards {
	s := &Shards{c: c.core(), path: c.core().Path(path), n: n}
	if o != nil {
		s.o = *o
	}
	s.o.Data = slices.Clone(s.o.Data)
	if s.o.Weight == 0 {
		s.o.Weight = 1
	}
	switch {
	case n < 1 || n > layout.MaxShards:
		s.bad = fmt.Errorf("%w: %d shards, want 1 to %d", ErrInvalid, n, layout.MaxShards)
	case s.o.Weight < 0 || s.o.Weight > layout.MaxWeight:
		s.bad = fmt.Errorf("%w: weight %d, want 1 to %d", ErrInvalid, s.o.Weight, layout.MaxWeight)
	case s.o.ForceAfter < 0:
		s.bad = fmt.Errorf("%w: negative ForceAfter", ErrInvalid)
	}
	s.group = NewGroup(c, path+"/"+layout.WorkersName, &GroupOptions[layout.ShardMember]{
		Codec:    Codec[layout.ShardMember]{Encode: layout.ShardMember.Encode, Decode: layout.ParseShardMember},
		TakeOver: s.o.ID != "",
	})
	return s
}

// A Shard is a shard that this process owns. Release gives it back; if it is still assigned to
// the member, the member acquires it again. Revoked reports that the shard has to move. A Shard
// is safe for concurrent use.
type Shard struct {
	*Hold
	Index int // from 0 to n-1
}

func (s *Shards) recipeDir() core.RecipeDir {
	return core.NewRecipeDir(s.path.Full(), layout.KindShards)
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
	return core.OpError(op, s.path.Full(), err)
}

// Owners returns the owner of each shard, in the order of their numbers: the first contender for
// its lock. The Token of a Contender is zero if the shard has no owner. The shards are read one
// after the other, so the result is not a snapshot, but no part of it is older than the call. It
// costs one read for each shard, and another for each that has an owner; if the service has batches,
// many of them are one request. It is for operators, and for callers that look an owner up now and
// then.
func (s *Shards) Owners(ctx context.Context) ([]Contender, error) {
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
		return s.owners(ctx, ss)
	})
	return contendersOf(list, core.OpError(op, s.path.Full(), err))
}

// owners reads the first contender of each shard: first all queues, and then their heads.
func (s *Shards) owners(ctx context.Context, ss *core.Session) ([]line.Contender, error) {
	lines, dirs := make([]*line.Line, s.n), make([]string, s.n)
	for i := range lines {
		lines[i] = s.line(i)
		dirs[i] = lines[i].Dir()
	}
	queues, err := queuestat.Lists(ctx, ss.Backend(), dirs...)
	if err != nil {
		return nil, err
	}
	var heads []string
	var of []int
	for i, q := range queues {
		if q.Err != nil && !core.IsNotFound(q.Err) {
			return nil, q.Err
		}
		if queue := lines[i].Kinds().Order(q.Names); len(queue) > 0 {
			heads, of = append(heads, dirs[i]+"/"+queue[0].Name), append(of, i)
		}
	}
	list := make([]line.Contender, s.n)
	if len(heads) == 0 {
		return list, nil
	}
	got, err := ss.GetAll(ctx, heads)
	if err != nil {
		return nil, err
	}
	return list, core.ReadAll(ctx, len(heads), func(ctx context.Context, k int) (err error) {
		i := of[k]
		switch {
		case core.IsNotFound(got[k].Err): // released since the list
			list[i], err = ownerOf(ctx, lines[i], ss)
		case got[k].Err != nil:
			err = got[k].Err
		default:
			list[i] = line.NewContender(heads[k], got[k].Data, got[k].Stat, false)
		}
		return err
	})
}

// ownerOf reads the first contender of a line.
func ownerOf(ctx context.Context, l *line.Line, s *core.Session) (line.Contender, error) {
	names, _, err := s.Backend().Children(ctx, l.Dir(), nil)
	if err != nil && !core.IsNotFound(err) {
		return line.Contender{}, err
	}
	for _, q := range l.Kinds().Order(names) {
		x, err := line.ReadContender(ctx, s, l, q)
		if !core.IsNotFound(err) {
			return x, err
		}
	}
	return line.Contender{}, nil
}
