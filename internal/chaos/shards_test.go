//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

const (
	shardsPath = "/shards"
	shardCount = 8
	shardForce = time.Second // ShardsOptions.ForceAfter in half of the memberships
)

// sharing is a client's part in the shards: a membership after the other, and the work on the
// shards that these own.
type sharing struct {
	x     *client
	rand  *rand.Rand
	owned map[int]*coord.Shard // guarded by mu
	freed map[int]int64        // when the client last gave a shard up; guarded by mu
	mu    sync.Mutex
}

func newSharing(x *client) *sharing {
	return &sharing{
		x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, 200)),
		owned: make(map[int]*coord.Shard), freed: make(map[int]int64),
	}
}

// keep takes part until ctx ends. While the client need not finish, it leaves now and then.
func (d *sharing) keep(ctx context.Context) {
	for ctx.Err() == nil {
		stays := 2*time.Second + time.Duration(d.rand.Int64N(int64(4*time.Second)))
		o := &coord.ShardsOptions{Data: []byte(d.x.spec.Name)}
		// The processes in every other place have one ID, so that each takes over the shards of
		// the process that was killed there. The others are new members each time.
		if place := d.x.spec.Index; place%2 == 0 {
			o.ID = fmt.Sprint("place", place)
		}
		if d.rand.IntN(2) == 0 {
			o.ForceAfter = shardForce
		}
		d.takePart(ctx, o, stays)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// takePart is one membership.
func (d *sharing) takePart(ctx context.Context, o *coord.ShardsOptions, stays time.Duration) {
	ctx, leave := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer leave()
	over := time.AfterFunc(stays, func() {
		if !d.x.finish.Load() {
			leave()
		}
	})
	defer over.Stop()
	joined := d.x.rec.now()
	for sh, err := range coord.NewShards(d.x.c, shardsPath, shardCount, o).All(ctx) {
		if err != nil {
			d.x.rec.say(event{Kind: "told", Work: "shards", Op: "all", Err: err.Error(), Odd: !errors.Is(err, coord.ErrClosed) && !errors.Is(err, coord.ErrNoSpace)})
			return
		}
		d.mu.Lock()
		since := max(joined, d.freed[sh.Index])
		d.owned[sh.Index] = sh
		d.mu.Unlock()
		w := &worker{x: d.x, rand: rand.New(rand.NewPCG(d.rand.Uint64(), 0))}
		working.Go(func() {
			defer w.close()
			d.own(ctx, w, sh, since)
		})
	}
}

// own writes to a shard until the hold has ended, the shard is to move, or the owner gives it up
// by itself. The first write after that does not depend on whether the hold still stands. Some
// owners that are asked to give their shard up take longer than ForceAfter.
func (d *sharing) own(ctx context.Context, w *worker, sh *coord.Shard, since int64) {
	const work = "shards"
	id, register := sh.Path(), fmt.Sprint(work, "-", sh.Index)
	e := event{Work: work, Op: "acquire", Num: int64(sh.Index), Since: since}
	_, _ = w.one(ctx, e, limit, func(_ context.Context, e *event) error {
		e.ID, e.Token, e.Session = id, sh.Token(), sh.Session()
		return nil
	})
	d.x.watch(work, sh.Hold, id)
	asked, enough := sh.Revoked(), time.After(100*time.Millisecond+time.Duration(w.rand.Int64N(int64(time.Second))))
	for over := false; !over; {
		w.write(register, sh.Hold)
		select {
		case <-time.After(50*time.Millisecond + time.Duration(w.rand.Int64N(int64(50*time.Millisecond)))):
		case <-enough:
			enough, over = nil, asked == nil || !d.x.finish.Load()
		case <-asked:
			asked, enough = nil, time.After(2*shardForce)
			over = d.x.finish.Load() || w.rand.IntN(4) > 0
		case <-sh.Done():
			if over = true; w.rand.IntN(3) == 0 {
				w.pause(ctx, shardForce) // the next owner writes meanwhile
			}
		}
	}
	w.write(register, sh.Hold)
	d.mu.Lock()
	if d.owned[sh.Index] == sh {
		delete(d.owned, sh.Index)
	}
	d.freed[sh.Index] = d.x.rec.now()
	d.mu.Unlock()
	w.release(ctx, work, sh.Hold, id)
}

// report returns the tokens of the shards that the client owns and is not asked to give up.
func (d *sharing) report() map[int]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	tokens := make(map[int]int64)
	for i, sh := range d.owned {
		if _, asked := sh.Revocation(); !asked && sh.Err() == nil {
			tokens[i] = sh.Token()
		}
	}
	return tokens
}

// checkShards compares the shards that the clients own with the owners by the service. When the
// members do not change any more, each shard has one owner, and the clients own equally many.
func checkShards(owned map[string]map[int]int64, owners []coord.Contender) (wrong []string) {
	errorf := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i, o := range owners {
		var by []string
		for name, tokens := range owned {
			if token, ok := tokens[i]; ok {
				by = append(by, name)
				if token != o.Token {
					errorf("shard %d: %s owns it with the token %#x, and the service has %#x", i, name, token, o.Token)
				}
			}
		}
		if o.Token == 0 || len(by) != 1 {
			errorf("shard %d: the owners are %q, and the service has %+v", i, by, o)
		}
	}
	least, most := len(owners)/len(owned), (len(owners)+len(owned)-1)/len(owned)
	for name, tokens := range owned {
		if len(tokens) < least || len(tokens) > most {
			errorf("%s owns the shards %v, of %d among %d clients", name, slices.Sorted(maps.Keys(tokens)), len(owners), len(owned))
		}
	}
	return wrong
}

func TestTheCheckOfTheShardsFindsAMissingOwner(t *testing.T) {
	owners := []coord.Contender{{Token: 5}, {Token: 6}, {Token: 7}}
	good := func() map[string]map[int]int64 {
		return map[string]map[int]int64{"p": {0: 5, 2: 7}, "q": {1: 6}}
	}
	verdict(t, checkShards(good(), owners), "")
	for _, tc := range []struct {
		name   string
		change func(owned map[string]map[int]int64, owners []coord.Contender)
		want   string
	}{
		{"no client owns it", func(owned map[string]map[int]int64, _ []coord.Contender) { delete(owned["p"], 0) }, "shard 0: the owners are []"},
		{"two own it", func(owned map[string]map[int]int64, _ []coord.Contender) { owned["q"][0] = 5 }, `shard 0: the owners are`},
		{"by an old hold", func(owned map[string]map[int]int64, _ []coord.Contender) { owned["q"][1] = 4 }, "the service has 0x6"},
		{"not by the service", func(_ map[string]map[int]int64, owners []coord.Contender) { owners[1] = coord.Contender{} }, "shard 1: the owners are"},
		{"one owns all", func(owned map[string]map[int]int64, _ []coord.Contender) {
			delete(owned["q"], 1)
			owned["p"][1] = 6
		}, "p owns the shards [0 1 2]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			owned, all := good(), slices.Clone(owners)
			tc.change(owned, all)
			verdict(t, checkShards(owned, all), tc.want)
		})
	}
}

func TestShardsOfARunHaveOneOwnerEach(t *testing.T) {
	var wrong []string
	processes := onMemory(t, func(ctx context.Context, x *client) {
		x.shards = newSharing(x)
		x.shards.keep(ctx)
	}, func(ctx context.Context, all []*client) {
		owners, err := coord.NewShards(all[0].c, shardsPath, shardCount, nil).Owners(ctx)
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		owned := make(map[string]map[int]int64)
		for _, x := range all {
			owned[x.spec.Name] = x.shards.report()
		}
		wrong = append(wrong, checkShards(owned, owners)...)
	})
	verdict(t, wrong, "")
	checkLocksOnMemory(t, processes, "shards", 200)
}
