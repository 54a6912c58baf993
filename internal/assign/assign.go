// Package assign divides shards among members. Every member computes the same assignment for itself.
package assign

import (
	"cmp"
	"hash/fnv"
	"math/bits"
	"slices"
	"strings"
)

// A Member is one of the members to which Shards assigns shards.
type Member struct {
	ID     string
	Weight int // at least 1
}

// Shards assigns n shards to the members and returns the index of the owner of each
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
// 1.8 √n at most; TestShards_AMemberThatComesOrGoesMovesFew holds them to 2 √n + 2. The assignment of
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
func Shards(n int, members []Member) []int32 {
	if len(members) == 0 {
		return nil
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	a := assignment{members: make([]memberState, len(members)), shards: make([]uint64, n), runnerUp: make([]pair, n), owner: make([]int32, n)}
	total := 0
	for _, m := range members {
		total += m.Weight
	}
	a.spare = n
	for i, m := range members {
		x := &a.members[i]
		x.key = hashOf(m.ID)
		x.inverse = weightUnit / uint64(m.Weight)
		x.room = n * m.Weight / total
		x.extra = n*m.Weight%total > 0
		x.pairs = make([]pair, 0, x.room+2)
		a.spare -= x.room
	}
	for s := range a.shards {
		a.shards[s] = splitmix(uint64(s) + 1)
	}
	// The pairs need not be sorted. Each shard is offered to its cheapest member. If the member, or
	// the spare room of all members, is then overfull, the most expensive pair in the way is
	// rejected, and its shard is offered to the next member.
	for s := range a.shards {
		for p := (pair{shard: int32(s), member: -1}); p.shard >= 0; {
			p = a.offer(a.next(p))
		}
	}
	return a.owner
}

// hashOf returns the hash of the id of a member.
func hashOf(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return splitmix(h.Sum64())
}

// weightUnit is divided by weights. Costs, below 65 << costBits, times weightUnit fit 64 bits.
const (
	costBits   = 32
	weightUnit = 1 << 24
)

// assignment is the state of one call of Shards.
type assignment struct {
	members  []memberState
	shards   []uint64 // the hash of each shard
	runnerUp []pair   // of each shard, the pair that follows the result of the latest next
	owner    []int32
	spare    int // shards that no member has room for but as an extra one
}

// memberState is a member with the shards that it has.
type memberState struct {
	key     uint64
	inverse uint64 // of the weight
	room    int
	extra   bool   // it may have one more than room
	pairs   []pair // a heap, the most expensive pair first
}

// pair is a shard with a member that can own it.
type pair struct {
	cost   uint64
	shard  int32
	member int32
}

// compare orders the pairs by cost. Pairs of equal cost are ordered by shard, then by member.
func (p pair) compare(q pair) int {
	return cmp.Or(cmp.Compare(p.cost, q.cost), cmp.Compare(p.shard, q.shard), cmp.Compare(p.member, q.member))
}

// next returns the cheapest pair of the shard of p after p.
func (a *assignment) next(p pair) pair {
	best := pair{cost: 1<<64 - 1, shard: p.shard, member: -1}
	second := best
	if s := a.runnerUp[p.shard]; s.member >= 0 && s.compare(p) > 0 && p.member >= 0 {
		return s
	}
	h := a.shards[p.shard]
	for i := range a.members {
		m := &a.members[i]
		cost := negLog(splitmix(h^m.key)) * m.inverse
		if cost < second.cost && (cost > p.cost || cost == p.cost && int32(i) > p.member) {
			second.cost, second.member = cost, int32(i)
			if cost < best.cost {
				best, second = second, best
			}
		}
	}
	a.runnerUp[p.shard] = second // of the pairs after p
	return best
}

// offer accepts a pair. It returns the pair that is rejected for it, or a pair with shard -1.
func (a *assignment) offer(p pair) (rejected pair) {
	m := &a.members[p.member]
	m.push(p)
	a.owner[p.shard] = p.member
	load := len(m.pairs)
	switch {
	case load <= m.room:
		return pair{shard: -1}
	case !m.extra || load > m.room+1:
		return m.pop()
	case a.spare > 0:
		a.spare--
		return pair{shard: -1}
	}
	worst := m
	for i := range a.members {
		x := &a.members[i]
		if len(x.pairs) == x.room+1 && x.pairs[0].compare(worst.pairs[0]) > 0 {
			worst = x
		}
	}
	return worst.pop()
}

func (m *memberState) push(p pair) {
	m.pairs = append(m.pairs, p)
	for i := len(m.pairs) - 1; i > 0; {
		up := (i - 1) / 2
		if m.pairs[i].compare(m.pairs[up]) <= 0 {
			break
		}
		m.pairs[i], m.pairs[up] = m.pairs[up], m.pairs[i]
		i = up
	}
}

func (m *memberState) pop() pair {
	top := m.pairs[0]
	last := len(m.pairs) - 1
	m.pairs[0] = m.pairs[last]
	m.pairs = m.pairs[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return top
		}
		if down+1 < last && m.pairs[down+1].compare(m.pairs[down]) > 0 {
			down++
		}
		if m.pairs[down].compare(m.pairs[i]) <= 0 {
			return top
		}
		m.pairs[i], m.pairs[down] = m.pairs[down], m.pairs[i]
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

// splitmix is the finalizer of splitmix64: a bijection that changes half of the bits for each bit.
func splitmix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
