package coord

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/shards"
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
// a member's ctx ends or its client closes, the others get its shards at once. While the
// service has no space (ErrNoSpace), a member waits for its shards.
//
// All members must have the same number of shards; another number is refused with
// ErrInvalid. Change the number only when every Run has returned and every shard of every
// All is released.
//
// A Shards is safe for concurrent use and needs no closing. Each call of All or Run is a
// member. The assignment is described at internal/assign, the nodes in layout.md.
type Shards struct {
	s       *shards.Shards
	restart func(failures int, err error) time.Duration
}

// NewShards returns the n shards at path, at most 65,536. It does no I/O; a bad path, number or
// option is reported by the first call.
func NewShards(c *Client, path string, n int, o *ShardsOptions) *Shards {
	if o == nil {
		o = new(ShardsOptions)
	}
	config := shards.Config{ID: o.ID, Weight: o.Weight, Data: o.Data, ForceAfter: o.ForceAfter}
	return &Shards{shards.New(c.core(), path, n, config), o.Restart}
}

// A Shard is a shard that this process owns. Release gives it back; if it is still assigned to
// the member, the member acquires it again. Revoked reports that the shard has to move. A Shard
// is safe for concurrent use.
type Shard struct {
	*Hold
	Index int // from 0 to n-1
}

func shardOf(h *core.Hold, index int) *Shard { return &Shard{&Hold{h}, index} }

// All makes the caller a member and yields each shard that it acquires, until ctx ends or the
// body breaks off. The body must release a shard, itself or later by another goroutine, when
// Revoked is closed and the work is finished. A shard that is released while it is still
// assigned to the member is acquired and yielded again. The body should not block for long: a
// shard that waits to be yielded is owned, and nothing works on it.
//
// When the loop ends, the member leaves and gives back the shards that were not yielded;
// without contact that takes at most as long as the session can last. The owner is asked to
// release the other shards, as when they move, and ForceAfter ends their holds, also after the
// loop. To stop at once, close the client. A lost session ends all holds but not the loop: shards are
// yielded again.
//
// If ctx ends, the loop just ends. Otherwise the last pair is nil and the error: ErrClosed;
// ErrDenied; ErrBadPath; ErrInvalid for options or another number of shards; ErrDuplicate for
// an ID in use; ErrDecode for data of a member; those of Mutex.Lock.
func (s *Shards) All(ctx context.Context) iter.Seq2[*Shard, error] {
	return shards.All(ctx, s.s, "all", shardOf)
}

// Run makes the caller a member and calls f for each shard that it acquires, each in a
// goroutine of its own. It returns when ctx ends or on a failure, after all calls have
// returned.
//
// The context of f ends when the shard has to move, when its hold is lost, and when ctx ends;
// context.Cause says why (*[HandOverError], ErrLost, or the cause of ctx). f must return
// then. The hold lasts until f returns, so f can write with
// sh.Context(context.WithoutCancel(ctx)). ForceAfter ends the hold earlier, but not the call:
// the call can still run when f is called again.
//
// If f returns nil earlier, Run keeps the shard without a further call. If f fails, panics or
// ends its goroutine, Run logs it and calls f again after the pause of ShardsOptions.Restart.
// After the end of ctx the result is nil, or the latest 16 errors that f returned after its
// context had ended; the context's own error does not count. Otherwise the result has an
// error of All, or the one with which Restart ended Run. ErrInvalid: f is nil.
func (s *Shards) Run(ctx context.Context, f func(ctx context.Context, sh *Shard) error) error {
	work := shards.Work{
		Restart:  s.restart,
		HandOver: func(index int, r core.Revocation) error { return &HandOverError{index, Revocation(r)} },
	}
	if f != nil {
		work.Begin = func(h *core.Hold, index int) func(context.Context) error {
			sh := shardOf(h, index)
			return func(ctx context.Context) error { return f(ctx, sh) }
		}
	}
	return s.s.Run(ctx, work)
}

// A HandOverError is the cause with which the context of a function of Run ends because the member is
// asked to give the shard up. The hold has not ended. The Revocation names the requester and the
// reason: the member to which the shard moves, or a Revoke of its Mutex.
type HandOverError struct {
	Shard int // its Index
	Revocation
}

// Error names the shard, and by whom and why it was asked for.
func (e *HandOverError) Error() string {
	text := fmt.Sprintf("shard %d must be released", e.Shard)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.By != "" {
		text += fmt.Sprintf(" (requested by %q)", e.By)
	}
	return text
}

// Owners returns the owner of each shard, in the order of their numbers: the first contender for
// its lock. The Token of a Contender is zero if the shard has no owner. The shards are read one
// after the other, so the result is not a snapshot, but no part of it is older than the call. It
// costs one read for each shard, and another for each that has an owner; if the service has batches,
// many of them are one request. It is for operators, and for callers that look an owner up now and
// then.
func (s *Shards) Owners(ctx context.Context) ([]Contender, error) {
	return contendersOf(s.s.Owners(ctx))
}
