package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-coord/coord/internal/layout"
)

// Shards is the members of a coord.Shards, and which of them owns which shard.
type Shards struct {
	N       int           `json:"n"`       // the number of shards, as the members say; 0: there is none
	Owned   int           `json:"owned"`   // shards that have an owner
	Waiting int           `json:"waiting"` // shards for which a member waits that is not the owner: they move
	Members []ShardMember `json:"members"` // in order of their ids

	// Shards lists the shards that have an owner or a waiter, in the order of their numbers.
	Shards []Shard `json:"shards"`
}

// A ShardMember is a member of a coord.Shards. Its Data is that of its options.
type ShardMember struct {
	Member
	Weight int   `json:"weight"`
	Shards []int `json:"shards"` // that it owns, of those that were read
}

// A Shard is one of the pieces of work. Its Node is that of the lock of the owner.
type Shard struct {
	Node
	Index      int         `json:"index"`
	ID         string      `json:"id"` // of the owner
	Token      int64       `json:"token,omitempty"`
	Waiting    int         `json:"waiting,omitempty"`
	Revocation *Revocation `json:"revocation,omitempty"`
}

// shards describes the nodes of a coord.Shards.
func (x *inspector) shards(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.fixed[layout.WorkersName] || !k.fixed[layout.ShardsName] {
		return nil
	}
	k.claim(layout.WorkersName, layout.ShardsName)
	in := &Shards{Members: []ShardMember{}, Shards: []Shard{}}
	if err := x.shardMembers(ctx, in); err != nil {
		return err
	}
	dir := x.dir + "/" + layout.ShardsName
	names, _, err := x.list(ctx, dir)
	if err != nil {
		return err
	}
	var indexes []int
	for _, name := range names {
		if i, ok := layout.ParseShard(name); ok {
			indexes = append(indexes, i)
		}
	}
	slices.Sort(indexes)
	paths := make([]string, len(indexes))
	for j, i := range indexes {
		paths[j] = dir + "/" + layout.ShardName(i)
	}
	lists, err := x.lists(ctx, paths)
	if err != nil {
		return err
	}
	var wants []want
	for j, l := range lists {
		queue := layout.LockLine.Order(l.names)
		if len(queue) == 0 {
			continue
		}
		in.Owned++
		if len(queue) > 1 {
			in.Waiting++
		}
		in.Shards = append(in.Shards, Shard{Index: indexes[j], Node: Node{Name: queue[0].Name}, Waiting: len(queue) - 1})
		wants = append(wants, want{paths[j] + "/" + queue[0].Name, true})
	}
	got, err := x.getAll(ctx, wants...)
	if err != nil {
		return err
	}
	for j := range in.Shards {
		x.shardOwner(&in.Shards[j], got[j])
	}
	in.Shards = slices.DeleteFunc(in.Shards, func(s Shard) bool { return s.Name == "" })
	for i := range in.Members {
		m := &in.Members[i]
		for _, s := range in.Shards {
			if s.ID == m.ID {
				m.Shards = append(m.Shards, s.Index)
			}
		}
	}
	x.in.Shards = in
	add("shards", in.summary())
	return nil
}

// shardMembers reads the members.
func (x *inspector) shardMembers(ctx context.Context, in *Shards) error {
	dir := x.dir + "/" + layout.WorkersName
	names, _, err := x.list(ctx, dir)
	if err != nil {
		return err
	}
	present := func(names []string) (list []string) {
		for _, n := range layout.PresentMembers(names) {
			list = append(list, n.Name)
		}
		return list
	}
	standing, all, err := x.getStanding(ctx, dir, names, true, present)
	if err != nil {
		return err
	}
	for _, name := range standing {
		r := all[name]
		if r.skip {
			continue
		}
		n, _ := layout.ParseMember(name)
		m := ShardMember{Member: Member{Node: x.node(name, r), ID: n.ID, Token: r.stat.Czxid}, Shards: []int{}}
		if v, err := layout.ParseShardMember(r.data); err == nil {
			in.N, m.Weight = max(in.N, v.Shards), v.Weight
			m.Size, m.Data = len(v.Data), x.keep(v.Data)
		} else if r.unread == "" {
			x.in.note("the data of the member %s is not that of a member", printable(n.ID))
		}
		in.Members = append(in.Members, m)
	}
	return nil
}

// shardOwner describes the owner of a shard, of which r was read. An owner that has gone since has
// no name.
func (x *inspector) shardOwner(s *Shard, r seen) {
	if r.gone {
		s.Node = Node{}
		return
	}
	s.Node = x.node(s.Name, r)
	s.Token = r.stat.Czxid
	asked, own := layout.OpenEnvelope(r.data)
	if asked != nil {
		s.Revocation = &Revocation{By: asked.By, Reason: asked.Reason, Force: asked.Force}
		if !asked.At.IsZero() {
			s.Revocation.At = asked.At.UTC()
		}
	}
	id, data := layout.OpenContender(own)
	s.ID, s.Size, s.Data = id, len(data), x.keep(data)
}

func (in *Shards) summary() string {
	text := fmt.Sprintf("%s own %d of %d shards", plural(len(in.Members), "member"), in.Owned, in.N)
	switch {
	case in.N == 0:
		text = fmt.Sprintf("no member, %s owned", plural(in.Owned, "shard"))
	case len(in.Members) == 1:
		text = fmt.Sprintf("1 member owns %d of %d shards", in.Owned, in.N)
	}
	if in.Waiting > 0 {
		text += fmt.Sprintf(", %d move", in.Waiting)
	}
	return text
}

// shards writes the members, and the shards that are not owned by one of them alone.
func (p *page) shards(in *Shards) {
	if in == nil {
		return
	}
	rows := [][]string{{"id", "weight", "owns", "shards", "token", "session", "joined", "bytes", "data"}}
	members := make(map[string]bool)
	for _, m := range in.Members {
		members[m.ID] = true
		rows = append(rows, slices.Concat(
			[]string{printable(m.ID), strconv.Itoa(m.Weight), strconv.Itoa(len(m.Shards)), ranges(m.Shards), token(m.Token)}, m.who(), m.what()))
	}
	p.table(rows...)
	rows = [][]string{{"shard", "owner", "token", "session", "since", "waiting", "asked"}}
	for _, s := range in.Shards {
		if s.Waiting == 0 && s.Revocation == nil && members[s.ID] {
			continue
		}
		asked := ""
		if s.Revocation != nil {
			asked = "to give it up" + s.Revocation.text()
		}
		rows = append(rows, slices.Concat([]string{strconv.Itoa(s.Index), printable(s.ID), token(s.Token)}, s.who(), []string{strconv.Itoa(s.Waiting), asked}))
	}
	const most = 50
	if rest := len(rows) - 1 - most; rest > 0 {
		p.table(rows[:most+1]...)
		p.line("  … and %d more that move", rest)
		return
	}
	p.table(rows...)
}

// ranges writes numbers in order, those that follow each other as a range.
func ranges(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		first := i
		for i++; i < len(list) && list[i] == list[i-1]+1; i++ {
		}
		text := strconv.Itoa(list[first])
		if i-first > 1 {
			text += "-" + strconv.Itoa(list[i-1])
		}
		parts = append(parts, text)
	}
	return shorten(strings.Join(parts, ","))
}
