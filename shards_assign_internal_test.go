package coord

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// greedyShards is what assignShards says that it computes, in its own words: all pairs in the order
// of their costs.
func greedyShards(n int, members []shardMember) []int32 {
	slices.SortFunc(members, func(a, b shardMember) int { return cmp.Compare(a.id, b.id) })
	a := assignment{shards: make([]uint64, n)}
	total := 0
	for _, m := range members {
		total += m.weight
	}
	spare := n
	for _, m := range members {
		x := assigned{key: shardKey(m.id), inverse: weightUnit / uint64(m.weight), room: n * m.weight / total, extra: n*m.weight%total > 0}
		spare -= x.room
		a.members = append(a.members, x)
	}
	var pairs []bid
	for s := range n {
		for i, m := range a.members {
			pairs = append(pairs, bid{negLog(mix(mix(uint64(s)+1)^m.key)) * m.inverse, int32(s), int32(i)})
		}
	}
	slices.SortFunc(pairs, bid.order)
	owner := slices.Repeat([]int32{-1}, n)
	load := make([]int, len(members))
	for _, p := range pairs {
		m := a.members[p.member]
		switch l := load[p.member]; {
		case owner[p.shard] >= 0, l > m.room, l == m.room && (!m.extra || spare == 0):
			continue
		case l == m.room:
			spare--
		}
		load[p.member]++
		owner[p.shard] = p.member
	}
	return owner
}

// eachDraw calls f with the draws of many seeds.
func eachDraw(t *testing.T, f func(t *testing.T, r *rand.Rand)) {
	for seed := range uint64(300) {
		f(t, rand.New(rand.NewPCG(seed, 1)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// drawMembers draws up to most members, in no order.
func drawMembers(r *rand.Rand, most, weights int) []shardMember {
	members := make([]shardMember, 1+r.IntN(most))
	for i := range members {
		members[i] = shardMember{fmt.Sprintf("%x-%d", r.Uint32()>>r.IntN(32), i), 1 + r.IntN(weights)}
	}
	return members
}

func loadsOf(owner []int32, members int) []int {
	loads := make([]int, members)
	for _, i := range owner {
		loads[i]++
	}
	return loads
}

func TestShardsAreAssignedInTheOrderOfTheCosts(t *testing.T) {
	t.Parallel()
	eachDraw(t, func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(200)
		members := drawMembers(r, 12, 4)
		want := greedyShards(n, slices.Clone(members))
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if got := assignShards(n, members); !slices.Equal(got, want) {
			t.Fatalf("%d shards, %v:\n%v, want\n%v", n, members, got, want)
		}
	})
}

func TestTheLoadIsTheShareRoundedDownOrUp(t *testing.T) {
	t.Parallel()
	eachDraw(t, func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(2000)
		members := drawMembers(r, 40, []int{1, 3, 100}[r.IntN(3)])
		total := 0
		for _, m := range members {
			total += m.weight
		}
		for i, load := range loadsOf(assignShards(n, members), len(members)) {
			if low, high := n*members[i].weight/total, (n*members[i].weight+total-1)/total; load < low || load > high {
				t.Fatalf("%d shards, weight %d of %d: %d shards, want %d or %d", n, members[i].weight, total, load, low, high)
			}
		}
	})
}

// movedShards compares two assignments by the ids of the owners.
func movedShards(a []int32, of []shardMember, b []int32, to []shardMember) int {
	moved := 0
	for s := range a {
		if of[a[s]].id != to[b[s]].id {
			moved++
		}
	}
	return moved
}

// mostMoves is the bound that the manual promises for a member that comes or goes: its share by
// weight among all members including it, and 2√n + 2.
func mostMoves(n, weight, total int) int {
	return (n*weight+total-1)/total + int(2*math.Sqrt(float64(n))) + 2
}

// A walk through random joins and leaves of members with random weights.
func TestAMemberThatComesOrGoesMovesFewShards(t *testing.T) {
	t.Parallel()
	var worst float64 // moves beside the share, in units of √n
	changes := 0
	eachDraw(t, func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN([]int{30, 300, 3000}[r.IntN(3)])
		weights := []int{1, 1, 3, 100}[r.IntN(4)]
		members := drawMembers(r, []int{5, 40, 200}[r.IntN(3)], weights)
		owner := assignShards(n, members)
		for step := range 4 {
			change, next := shardMember{}, slices.Clone(members)
			what := "joins"
			if at := r.IntN(len(members)); r.IntN(2) == 0 && len(members) > 1 {
				change, what = members[at], "leaves"
				next = slices.Delete(next, at, at+1)
			} else {
				change = shardMember{fmt.Sprintf("%x+%d", r.Uint32(), step), 1 + r.IntN(weights)}
				next = append(next, change)
			}
			total := 0
			for _, m := range next {
				total += m.weight
			}
			if what == "leaves" {
				total += change.weight
			}
			after := assignShards(n, next)
			moved, most := movedShards(owner, members, after, next), mostMoves(n, change.weight, total)
			if moved > most {
				t.Fatalf("%d of %d shards move when a member of weight %d of %d %s, want at most %d", moved, n, change.weight, total, what, most)
			}
			worst = max(worst, (float64(moved)-float64(n*change.weight)/float64(total))/math.Sqrt(float64(n)))
			changes++
			members, owner = next, after
		}
	})
	t.Logf("figure: %d joins and leaves: at most %.2f √n shards move beside the share of the member", changes, worst)
}

// The figures of the manual, and the largest sizes.
func TestMovesOfShards(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{64, 3}, {64, 10}, {1000, 3}, {1000, 10}, {1000, 100}, {10_000, 3}, {10_000, 10}, {10_000, 100}} {
		n, m := size[0], size[1]
		most, sum, rounds := 0, 0, 5
		for round := range rounds {
			var members []shardMember
			for i := range m + 1 {
				members = append(members, shardMember{fmt.Sprintf("worker-%d-%d", round, i), 1})
			}
			fewer := slices.Clone(members[:m])
			moved := movedShards(assignShards(n, fewer), fewer, assignShards(n, members), members)
			most, sum = max(most, moved), sum+moved
			if most := mostMoves(n, 1, m+1); moved > most {
				t.Errorf("%d of %d shards move between %d members and %d, want at most %d", moved, n, m, m+1, most)
			}
		}
		t.Logf("figure: %d shards, %d members and one more: %d move in the mean, at most %d; a share is %d", n, m, sum/rounds, most, (n+m)/(m+1))
	}
}

// The assignment is a promise between versions and platforms.
func TestTheAssignmentIsFixed(t *testing.T) {
	t.Parallel()
	got := assignShards(24, []shardMember{{"a", 1}, {"b", 1}, {"c", 2}})
	want := []int32{2, 0, 0, 0, 0, 0, 2, 2, 2, 0, 2, 2, 2, 1, 1, 2, 1, 2, 2, 1, 1, 2, 1, 2}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v: members of two versions would not agree", got, want)
	}
}

func BenchmarkAssignShards(b *testing.B) {
	for _, size := range [][2]int{{64, 10}, {1000, 10}, {10_000, 10}, {10_000, 100}} {
		var members []shardMember
		for i := range size[1] {
			members = append(members, shardMember{fmt.Sprint("worker-", i), 1})
		}
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			for b.Loop() {
				assignShards(size[0], members)
			}
		})
	}
}
