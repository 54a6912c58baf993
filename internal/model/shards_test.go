//go:build !race

package model

import (
	"errors"
	"fmt"
	"testing"
)

// The exhaustive model of the moves of shards, see the type run in internal/shards/member.go. A few
// members come, leave, die, come again under their ids, and lose their sessions; each sees the list
// of the members late. For each shard there is a line, of which the model of the line is the
// subject: here the first node of the queue is granted, and requests arrive late, but once. (A
// request or reply that is lost is sent again, or looked for, so to others it is late.)
//
// The guarantees: two members whose sessions last never own one shard; when nothing is under way
// any more, each shard is owned by the member to which the members as they are assign it, and no
// other node is left; a member gives nothing up because it is missing in a list; and the members
// come to rest by themselves.

const (
	shardMembers = 3
	shardShards  = 2
)

// shardRules are the rules that the variants break.
type shardRules struct {
	noLine      bool // a member owns what the assignment says, without the lock
	keepsMoved  bool // an owner does not give up a shard that is assigned to another
	asksOnce    bool // a shard that has ended is not asked for again
	keepsAsking bool // an acquisition that is not wanted any more is not given up
	keepsGrant  bool // a grant that comes after the acquisition was given up is not released
	leavesHolds bool // a member that leaves does not release what it has
	formerStays bool // a member that comes again under its id does not remove the nodes of its former process
	noForce     bool // an owner that does not finish is not forced
	forceLocal  bool // a forced end does not remove the node
	actsBlind   bool // a member that is missing in the list takes itself for one that owns nothing
	staleList   bool // a member that has lost its session goes by the last list for ever
}

// shardPC is the position of a member with regard to a shard.
type shardPC int8

const (
	shardNone  shardPC = iota
	shardAsks          // the creation of its node is under way
	shardStops         // likewise, and the acquisition was given up
	shardWaits         // its node is in the queue
	shardQuits         // the removal of its node is under way; it is not granted
	shardOwns          // granted
	shardMoves         // asked to give it up
	shardGives         // released: the removal of its node is under way
	shardEnded         // in the variant asksOnce
)

// shardMode is the state of the process of a member.
type shardMode int8

const (
	shardAway    shardMode = iota // not there yet
	shardUp                       // a member, or about to be
	shardLeaving                  // has left the group, or is about to; gives up its shards
	shardDead
	shardGone
)

// shardState is a state. A node in a queue is 1 and the number of its member, and of a former
// process or session of the member shardMembers more.
type shardState struct {
	truth uint8 // the nodes of members, dead ones included
	mode  [shardMembers]shardMode
	view  [shardMembers]uint8 // the latest list in which the member was; 0: none
	lost  [shardMembers]bool  // its session has ended, and it does not know
	pc    [shardMembers][shardShards]shardPC
	queue [shardShards][2 * shardMembers]int8

	comes, leaves, deaths, restarts, losses, deletes, absences, stubborn int8 // that are left
}

type shardAction struct {
	what  string
	who   int
	shard int
	free  bool // it happens without a decision or a fault
}

func (a shardAction) String() string {
	return fmt.Sprintf("%s: member %d, shard %d", a.what, a.who, a.shard)
}

var (
	errShardTwo      = errors.New("two members own one shard")
	errShardNoOwner  = errors.New("at rest a shard is not owned by its member")
	errShardLeftover = errors.New("at rest a node is left behind")
	errShardAbsent   = errors.New("a member gives up a shard because it is missing in the list")
)

type shardModel struct {
	rules shardRules
	scope shardState
}

// shardOwner is the assignment.
func shardOwner(shard int, members uint8) int {
	n := 0
	for i := range shardMembers {
		n += int(members >> i & 1)
	}
	if n == 0 {
		return -1
	}
	k := shard % n
	for i := range shardMembers {
		if members>>i&1 == 1 {
			if k == 0 {
				return i
			}
			k--
		}
	}
	return -1
}

func (s *shardState) remove(shard int, node int8) {
	q := &s.queue[shard]
	for i := range q {
		if q[i] == node {
			copy(q[i:], q[i+1:])
			q[len(q)-1] = 0
			return
		}
	}
}

func (s *shardState) has(shard int, node int8) bool {
	for _, x := range s.queue[shard] {
		if x == node {
			return true
		}
	}
	return false
}

func (s *shardState) add(shard int, node int8) {
	for i, x := range s.queue[shard] {
		if x == 0 {
			s.queue[shard][i] = node
			return
		}
	}
}

func (m *shardModel) wants(s *shardState, i, shard int) bool {
	return s.mode[i] == shardUp && s.view[i] != 0 && shardOwner(shard, s.view[i]) == i
}

// next is Model.Next.
func (m *shardModel) next(s shardState, step func(shardAction, shardState)) error {
	free := 0
	do := func(what string, i, shard int, decided bool, change func(o *shardState)) {
		o := s
		change(&o)
		if !decided {
			free++
		}
		step(shardAction{what, i, shard, !decided}, o)
	}
	for i := range shardMembers {
		bit := uint8(1) << i
		switch s.mode[i] {
		case shardAway:
			if s.comes > 0 {
				do("comes", i, -1, true, func(o *shardState) { o.comes--; o.mode[i] = shardUp; o.truth |= bit })
			}
		case shardDead:
			do("its session expires", i, -1, true, func(o *shardState) {
				o.truth &^= bit
				o.mode[i] = shardGone
				for k := range shardShards {
					o.remove(k, int8(1+i+shardMembers))
				}
			})
			if s.restarts > 0 {
				do("comes again", i, -1, true, func(o *shardState) { o.restarts--; o.mode[i] = shardUp; o.truth |= bit; o.view[i] = 0 })
			}
		case shardUp, shardLeaving:
			m.member(s, i, do)
		}
		if s.mode[i] == shardUp || s.mode[i] == shardLeaving || s.mode[i] == shardGone {
			// The former session of a member that has come again.
			former := int8(1 + i + shardMembers)
			if s.has(0, former) || s.has(1, former) {
				do("its former session expires", i, -1, true, func(o *shardState) {
					for k := range shardShards {
						o.remove(k, former)
					}
				})
			}
		}
	}
	for k := range shardShards {
		owners := 0
		for i := range shardMembers {
			if s.mode[i] == shardUp && s.pc[i][k] == shardMoves && s.view[i]>>i&1 == 0 {
				return fmt.Errorf("%w: %d", errShardAbsent, k)
			}
			if pc := s.pc[i][k]; (pc == shardOwns || pc == shardMoves) && !s.lost[i] {
				owners++
			}
		}
		if owners > 1 {
			return fmt.Errorf("%w: %d", errShardTwo, k)
		}
	}
	if free == 0 {
		return m.atRest(&s)
	}
	return nil
}

// member makes the steps of a member whose process runs.
func (m *shardModel) member(s shardState, i int, do func(string, int, int, bool, func(*shardState))) {
	bit, own := uint8(1)<<i, int8(1+i)
	if s.lost[i] {
		do("learns that its session is lost", i, -1, false, func(o *shardState) {
			o.lost[i] = false
			for k := range shardShards {
				o.pc[i][k] = shardNone
				if m.rules.asksOnce && s.pc[i][k] != shardNone {
					o.pc[i][k] = shardEnded
				}
			}
		})
		return
	}
	up := s.mode[i] == shardUp
	if up && s.truth&bit == 0 {
		do("joins again", i, -1, false, func(o *shardState) { o.truth |= bit })
	}
	if up && s.view[i] != s.truth && (s.truth&bit != 0 || m.rules.actsBlind) && !(m.rules.staleList && s.view[i] != 0 && s.losses < m.scope.losses) {
		do("sees the members", i, -1, false, func(o *shardState) { o.view[i] = s.truth })
	}
	if up && s.leaves > 0 && s.view[i] != 0 {
		do("leaves", i, -1, true, func(o *shardState) { o.leaves--; o.mode[i] = shardLeaving; o.truth &^= bit })
	}
	if s.deaths > 0 && up {
		do("dies", i, -1, true, func(o *shardState) {
			o.deaths--
			o.mode[i] = shardDead
			o.view[i] = 0
			for k := range shardShards {
				o.pc[i][k] = shardNone
				for j, x := range o.queue[k] {
					if x == own {
						o.queue[k][j] = own + shardMembers
					}
				}
			}
		})
	}
	if s.losses > 0 && up && s.truth&bit != 0 {
		do("loses its session", i, -1, true, func(o *shardState) {
			o.losses--
			o.truth &^= bit
			o.lost[i] = true
			for k := range shardShards {
				o.remove(k, own)
			}
		})
	}
	if s.absences > 0 && up && s.truth&bit != 0 {
		do("an outsider deletes its node", i, -1, true, func(o *shardState) { o.absences--; o.truth &^= bit })
	}
	idle := true
	for k := range shardShards {
		pc, wants := s.pc[i][k], m.wants(&s, i, k)
		set := func(to shardPC) func(*shardState) { return func(o *shardState) { o.pc[i][k] = to } }
		end := func(o *shardState) {
			o.remove(k, own)
			o.pc[i][k] = shardNone
			if m.rules.asksOnce {
				o.pc[i][k] = shardEnded
			}
		}
		idle = idle && (pc == shardNone || pc == shardEnded)
		switch pc {
		case shardNone:
			if wants && m.rules.noLine {
				do("takes", i, k, false, set(shardOwns))
			} else if wants {
				do("asks", i, k, false, func(o *shardState) {
					o.pc[i][k] = shardAsks
					if !m.rules.formerStays {
						o.remove(k, own+shardMembers)
					}
				})
			}
		case shardAsks, shardStops:
			do("its node is created", i, k, false, func(o *shardState) {
				o.add(k, own)
				o.pc[i][k] = shardWaits
				if pc == shardStops {
					o.pc[i][k] = shardQuits
				}
			})
			if pc == shardAsks && !wants && !m.rules.keepsAsking {
				do("gives up", i, k, false, set(shardStops))
			}
		case shardWaits:
			if s.queue[k][0] == own {
				do("is granted", i, k, false, set(shardOwns))
			}
			if !wants && !m.rules.keepsAsking {
				do("gives up", i, k, false, set(shardQuits))
			}
		case shardQuits:
			if m.rules.keepsGrant && s.queue[k][0] == own {
				do("is granted all the same", i, k, false, set(shardEnded)) // the node stays
			}
			do("its node is removed", i, k, false, end)
		case shardOwns:
			if !wants && !m.rules.keepsMoved && !(m.rules.leavesHolds && s.mode[i] == shardLeaving) {
				do("is asked to move it", i, k, false, set(shardMoves))
			}
			if s.deletes > 0 && s.has(k, own) {
				do("an outsider deletes its lock", i, k, true, func(o *shardState) { o.deletes--; end(o) })
			}
		case shardMoves:
			if s.stubborn == 0 {
				do("finishes", i, k, false, set(shardGives))
			} else if !m.rules.noForce {
				do("is forced", i, k, false, func(o *shardState) {
					o.pc[i][k] = shardGives
					if m.rules.forceLocal {
						o.pc[i][k] = shardNone
					}
				})
			}
		case shardGives:
			do("its node is removed", i, k, false, end)
		}
	}
	if s.mode[i] == shardLeaving && idle {
		do("is gone", i, -1, false, func(o *shardState) { o.mode[i] = shardGone; o.view[i] = 0; o.pc[i] = [shardShards]shardPC{} })
	}
}

// atRest checks a state in which nothing happens without a decision or a fault.
func (m *shardModel) atRest(s *shardState) error {
	for k := range shardShards {
		i := shardOwner(k, s.truth)
		if i >= 0 && s.mode[i] == shardUp && s.pc[i][k] != shardOwns {
			head := s.queue[k][0] - 1 - shardMembers
			// It waits until the service has ended the session of another dead process.
			if head < 0 || int(head) == i {
				return fmt.Errorf("%w: shard %d, member %d", errShardNoOwner, k, i)
			}
		}
		for j, x := range s.queue[k] {
			if x >= 1 && x <= shardMembers && int(x-1) != i {
				return fmt.Errorf("%w: shard %d, node %d of member %d", errShardLeftover, k, j, x-1)
			}
		}
	}
	return nil
}

func (m *shardModel) explore(t *testing.T) Result[shardAction] {
	t.Helper()
	return exploreAll(t, "of shards", Model[shardState, shardAction]{Start: m.scope, Next: m.next, Free: func(a shardAction) bool { return a.free }})
}

// Each scope is explored completely.
func TestShardsComeToTheirOwners(t *testing.T) {
	t.Parallel()
	for name, scope := range map[string]shardState{
		"two come and leave":    {comes: 2, leaves: 2},
		"three come":            {comes: 3},
		"a restart":             {comes: 2, deaths: 1, restarts: 1},
		"a death":               {comes: 2, deaths: 1, deletes: 1},
		"a lost session":        {comes: 2, losses: 1},
		"an absence":            {comes: 2, absences: 1, leaves: 1},
		"an owner that is slow": {comes: 2, leaves: 1, stubborn: 1},
	} {
		t.Run(name, func(t *testing.T) {
			mustHold(t, (&shardModel{scope: scope}).explore(t))
		})
	}
}

// Each rule is needed: without it a guarantee is violated in the way that the trace shows.
func TestShardsWithoutOneOfTheirRules(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name  string
		rules shardRules
		scope shardState
		fault error
	}{
		{"the assignment alone", shardRules{noLine: true}, shardState{comes: 2}, errShardTwo},
		{"an owner keeps what moves", shardRules{keepsMoved: true}, shardState{comes: 2}, errShardNoOwner},
		{"a shard is asked for once", shardRules{asksOnce: true}, shardState{comes: 1, losses: 1}, errShardNoOwner},
		{"an acquisition is not given up", shardRules{keepsAsking: true}, shardState{comes: 2, leaves: 1}, errShardLeftover},
		{"a late grant is kept", shardRules{keepsGrant: true}, shardState{comes: 2}, errShardNoOwner},
		{"a member leaves with its shards", shardRules{leavesHolds: true}, shardState{comes: 2, leaves: 1}, errShardLeftover},
		{"the nodes of the former process stay", shardRules{formerStays: true}, shardState{comes: 1, deaths: 1, restarts: 1}, errShardNoOwner},
		{"no force", shardRules{noForce: true}, shardState{comes: 2, stubborn: 1}, errShardNoOwner},
		{"force without the node", shardRules{forceLocal: true}, shardState{comes: 2, stubborn: 1}, errShardNoOwner},
		{"a member that is missing in the list", shardRules{actsBlind: true}, shardState{comes: 2, absences: 1}, errShardAbsent},
		{"a list of before the loss", shardRules{staleList: true}, shardState{comes: 2, losses: 1}, errShardNoOwner},
	} {
		t.Run(v.name, func(t *testing.T) {
			mustViolate(t, (&shardModel{rules: v.rules, scope: v.scope}).explore(t), v.fault, 0)
		})
	}
}
