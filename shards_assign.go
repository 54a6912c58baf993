package coord

import (
	"cmp"
	"hash/fnv"
	"math/bits"
	"slices"
	"strings"
)

// shardMember is a member among which shards are divided.
type shardMember struct {
	id     string
	weight int // at least 1
}

// assignShards divides n shards among the members and returns the index of the owner of each
// shard, or nil without members. It sorts the members by id; the ids are distinct. The result
// depends only on n and the set of members, on every platform, since every member computes it for
// itself: there is no arithmetic in floating point.
//
// It is weighted rendezvous hashing with a bound. Each pair of a shard and a member has a cost,
// which a hash draws such that the cheapest member of a shard is any of them with a probability in
// proportion to the weights. Of all pairs in the order of their costs, each is taken if its shard
// has no owner yet and its member has room. A member has room for its share, rounded down; and
// for one more if that share is not whole, until the shards that the rounding has left are all
// taken. So the load of each member is its share, rounded down or up.
//
// With the bound, a member that comes or goes moves other shards than its own too: if it takes what
// the hash draws, the loads of the others differ by the square root of what they have lost, and that
// has to be evened out. Measured over many sizes and weights, these moves are 0.6 √n in the mean and
// 1.8 √n at most; TestAMemberThatComesOrGoesMovesFewShards holds them to 2 √n + 2. The assignment of
// least total cost, which is far more work to compute, moves as many.
//
// No rule can replace √n by a constant if it knows only the members that are there, with even loads.
// Nor can one that knows the order in which they have joined, since the proof needs leaves alone. Let
// E be the most shards that a leave moves beside those of the member that leaves, n a multiple of
// six, and 2n+3 the number of possible ids. Take one id a. For each other id b let u(b) be the set
// of shards that a owns beside b alone: it has n/2 elements. For two others b and c, the shards of a
// in {a, b, c} are u(b) ∩ u(c), up to 2E: a shard in which they differ moves between a and b when c
// leaves, or between a and c when b leaves. So that intersection has n/3 elements, up to 2E. The
// matrix of the sizes of all these intersections has rank n at most, as the Gram matrix of vectors
// with n components. Without n/3 in each element, it has n/6 on its diagonal, at most 2E elsewhere,
// and rank n+1 at most. The rank of a symmetric matrix is at least the square of its trace divided by
// the sum of the squares of its elements, which for these 2n+2 rows gives E ≥ n/√(288(n+1)), about
// √n/17.
//
// A rule that keeps what each member holds, and moves only what is above a share, needs to know all
// holders. For 10,000 shards of 100 members it would save some 80 of the 180 moves of a join, some
// 500 requests. But if the members' nodes say what each of them holds, about a hundred of the nodes
// change in a join, and each of a hundred clients reads them: 10,000 reads. If one node has the
// whole assignment, members must agree on each version of it, also those that see the membership
// late, and each start of a member rewrites it. Above all, a member that comes back after its session
// has ended would not get its former shards.
func assignShards(n int, members []shardMember) []int32 {
	if len(members) == 0 {
		return nil
	}
	slices.SortFunc(members, func(a, b shardMember) int { return strings.Compare(a.id, b.id) })
	a := assignment{members: make([]assigned, len(members)), shards: make([]uint64, n), second: make([]bid, n), owner: make([]int32, n)}
	total := 0
	for _, m := range members {
		total += m.weight
	}
	a.spare = n
	for i, m := range members {
		x := &a.members[i]
		x.key = shardKey(m.id)
		x.inverse = weightUnit / uint64(m.weight)
		x.room = n * m.weight / total
		x.extra = n*m.weight%total > 0
		x.bids = make([]bid, 0, x.room+2)
		a.spare -= x.room
	}
	for s := range a.shards {
		a.shards[s] = mix(uint64(s) + 1)
	}
	// The pairs need not be sorted: each shard asks its cheapest member, and when a member, or the
	// spare room of all, is overfull, the most expensive pair that is in the way is given up, and
	// its shard asks the next member.
	for s := range a.shards {
		for b := (bid{shard: int32(s), member: -1}); b.shard >= 0; {
			b = a.accept(a.next(b))
		}
	}
	return a.owner
}

// shardKey returns the hash of the id of a member.
func shardKey(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return mix(h.Sum64())
}

// weightUnit is divided by weights. Costs, below 65 << costBits, times weightUnit fit 64 bits.
const (
	costBits   = 32
	weightUnit = 1 << 24
)

// assignment is the state of one assignShards.
type assignment struct {
	members []assigned
	shards  []uint64 // the hash of each shard
	second  []bid    // the pair after the one that its latest look has found
	owner   []int32
	spare   int // shards that no member has room for but as an extra one
}

// assigned is a member with the shards that it has.
type assigned struct {
	key     uint64
	inverse uint64 // of the weight
	room    int
	extra   bool  // it may have one more than room
	bids    []bid // a heap, the most expensive pair first
}

// bid is a pair of a shard and a member.
type bid struct {
	cost   uint64
	shard  int32
	member int32
}

// order is the order of all pairs. That of the pairs of one shard is by member.
func (b bid) order(c bid) int {
	return cmp.Or(cmp.Compare(b.cost, c.cost), cmp.Compare(b.shard, c.shard), cmp.Compare(b.member, c.member))
}

// next returns the cheapest pair of the shard of b after b.
func (a *assignment) next(b bid) bid {
	best := bid{cost: 1<<64 - 1, shard: b.shard, member: -1}
	second := best
	if s := a.second[b.shard]; s.member >= 0 && s.order(b) > 0 && b.member >= 0 {
		return s
	}
	h := a.shards[b.shard]
	for i := range a.members {
		m := &a.members[i]
		cost := negLog(mix(h^m.key)) * m.inverse
		if cost < second.cost && (cost > b.cost || cost == b.cost && int32(i) > b.member) {
			second.cost, second.member = cost, int32(i)
			if cost < best.cost {
				best, second = second, best
			}
		}
	}
	a.second[b.shard] = second // of the pairs after b
	return best
}

// accept takes a pair, and returns one that was given up for it, or one of no shard.
func (a *assignment) accept(b bid) (out bid) {
	m := &a.members[b.member]
	m.push(b)
	a.owner[b.shard] = b.member
	load := len(m.bids)
	switch {
	case load <= m.room:
		return bid{shard: -1}
	case !m.extra || load > m.room+1:
		return m.pop()
	case a.spare > 0:
		a.spare--
		return bid{shard: -1}
	}
	worst := m
	for i := range a.members {
		x := &a.members[i]
		if len(x.bids) == x.room+1 && x.bids[0].order(worst.bids[0]) > 0 {
			worst = x
		}
	}
	return worst.pop()
}

func (m *assigned) push(b bid) {
	m.bids = append(m.bids, b)
	for i := len(m.bids) - 1; i > 0; {
		up := (i - 1) / 2
		if m.bids[i].order(m.bids[up]) <= 0 {
			break
		}
		m.bids[i], m.bids[up] = m.bids[up], m.bids[i]
		i = up
	}
}

func (m *assigned) pop() bid {
	top := m.bids[0]
	last := len(m.bids) - 1
	m.bids[0] = m.bids[last]
	m.bids = m.bids[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return top
		}
		if down+1 < last && m.bids[down+1].order(m.bids[down]) > 0 {
			down++
		}
		if m.bids[down].order(m.bids[i]) <= 0 {
			return top
		}
		m.bids[i], m.bids[down] = m.bids[down], m.bids[i]
		i = down
	}
}

// negLog returns the negative binary logarithm of x as a fraction of 2^64, with costBits bits
// behind the point. It is off by less than a hundredth, and never grows with x. The errors shift
// the odds a little, and not the loads.
func negLog(x uint64) uint64 {
	x |= 1
	zeros := bits.LeadingZeros64(x)
	f := x << (zeros + 1) >> (64 - costBits) // x = 2^(63-zeros) * (1+f)
	curve := f * (1<<costBits - f) >> costBits
	log := f + curve*11>>5 // of 1+f: f + f(1-f) * 0.344
	return uint64(zeros+1)<<costBits - log
}

// mix is the finalizer of splitmix64: a bijection that changes half of the bits for each bit.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
