package assign

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// greedy computes the result of Shards from its definition: it accepts all pairs in the order of
// their costs.
func greedy(n int, members []Member) []int32 {
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	a := assignment{shards: make([]uint64, n)}
	total := 0
	for _, m := range members {
		total += m.Weight
	}
	spare := n
	for _, m := range members {
		x := memberState{key: hashOf(m.ID), inverse: weightUnit / uint64(m.Weight), room: n * m.Weight / total, extra: n*m.Weight%total > 0}
		spare -= x.room
		a.members = append(a.members, x)
	}
	var pairs []pair
	for s := range n {
		for i, m := range a.members {
			pairs = append(pairs, pair{negLog(splitmix(splitmix(uint64(s)+1)^m.key)) * m.inverse, int32(s), int32(i)})
		}
	}
	slices.SortFunc(pairs, pair.compare)
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
func drawMembers(r *rand.Rand, most, weights int) []Member {
	members := make([]Member, 1+r.IntN(most))
	for i := range members {
		members[i] = Member{fmt.Sprintf("%x-%d", r.Uint32()>>r.IntN(32), i), 1 + r.IntN(weights)}
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

func TestShards_AssignedInTheOrderOfTheCosts(t *testing.T) {
	t.Parallel()
	eachDraw(t, func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(200)
		members := drawMembers(r, 12, 4)
		want := greedy(n, slices.Clone(members))
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if got := Shards(n, members); !slices.Equal(got, want) {
			t.Fatalf("%d shards, %v:\n%v, want\n%v", n, members, got, want)
		}
	})
}

func TestShards_TheLoadIsTheShareRoundedDownOrUp(t *testing.T) {
	t.Parallel()
	eachDraw(t, func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(2000)
		members := drawMembers(r, 40, []int{1, 3, 100}[r.IntN(3)])
		total := 0
		for _, m := range members {
			total += m.Weight
		}
		for i, load := range loadsOf(Shards(n, members), len(members)) {
			if low, high := n*members[i].Weight/total, (n*members[i].Weight+total-1)/total; load < low || load > high {
				t.Fatalf("%d shards, weight %d of %d: %d shards, want %d or %d", n, members[i].Weight, total, load, low, high)
			}
		}
	})
}

// movedShards compares two assignments by the ids of the owners.
func movedShards(a []int32, of []Member, b []int32, to []Member) int {
	moved := 0
	for s := range a {
		if of[a[s]].ID != to[b[s]].ID {
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
func TestShards_AMemberThatComesOrGoesMovesFew(t *testing.T) {
	t.Parallel()
	var worst float64 // moves beside the share, in units of √n
	changes := 0
	eachDraw(t, func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN([]int{30, 300, 3000}[r.IntN(3)])
		weights := []int{1, 1, 3, 100}[r.IntN(4)]
		members := drawMembers(r, []int{5, 40, 200}[r.IntN(3)], weights)
		owner := Shards(n, members)
		for step := range 4 {
			change, next := Member{}, slices.Clone(members)
			what := "joins"
			if at := r.IntN(len(members)); r.IntN(2) == 0 && len(members) > 1 {
				change, what = members[at], "leaves"
				next = slices.Delete(next, at, at+1)
			} else {
				change = Member{fmt.Sprintf("%x+%d", r.Uint32(), step), 1 + r.IntN(weights)}
				next = append(next, change)
			}
			total := 0
			for _, m := range next {
				total += m.Weight
			}
			if what == "leaves" {
				total += change.Weight
			}
			after := Shards(n, next)
			moved, most := movedShards(owner, members, after, next), mostMoves(n, change.Weight, total)
			if moved > most {
				t.Fatalf("%d of %d shards move when a member of weight %d of %d %s, want at most %d", moved, n, change.Weight, total, what, most)
			}
			worst = max(worst, (float64(moved)-float64(n*change.Weight)/float64(total))/math.Sqrt(float64(n)))
			changes++
			members, owner = next, after
		}
	})
	t.Logf("figure: %d joins and leaves: at most %.2f √n shards move beside the share of the member", changes, worst)
}

// The figures of the manual, and the largest sizes.
func TestShards_Moves(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{64, 3}, {64, 10}, {1000, 3}, {1000, 10}, {1000, 100}, {10_000, 3}, {10_000, 10}, {10_000, 100}} {
		n, m := size[0], size[1]
		most, sum, rounds := 0, 0, 5
		for round := range rounds {
			var members []Member
			for i := range m + 1 {
				members = append(members, Member{fmt.Sprintf("worker-%d-%d", round, i), 1})
			}
			fewer := slices.Clone(members[:m])
			moved := movedShards(Shards(n, fewer), fewer, Shards(n, members), members)
			most, sum = max(most, moved), sum+moved
			if most := mostMoves(n, 1, m+1); moved > most {
				t.Errorf("%d of %d shards move between %d members and %d, want at most %d", moved, n, m, m+1, most)
			}
		}
		t.Logf("figure: %d shards, %d members and one more: %d move in the mean, at most %d; a share is %d", n, m, sum/rounds, most, (n+m)/(m+1))
	}
}

// The assignment is a promise between versions and platforms.
func TestShards_TheAssignmentIsFixed(t *testing.T) {
	t.Parallel()
	got := Shards(24, []Member{{"a", 1}, {"b", 1}, {"c", 2}})
	want := []int32{2, 0, 0, 0, 0, 0, 2, 2, 2, 0, 2, 2, 2, 1, 1, 2, 1, 2, 2, 1, 1, 2, 1, 2}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v: members of two versions would not agree", got, want)
	}
}

func BenchmarkShards(b *testing.B) {
	for _, size := range [][2]int{{64, 10}, {1000, 10}, {10_000, 10}, {10_000, 100}} {
		var members []Member
		for i := range size[1] {
			members = append(members, Member{fmt.Sprint("worker-", i), 1})
		}
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			for b.Loop() {
				Shards(size[0], members)
			}
		})
	}
}
