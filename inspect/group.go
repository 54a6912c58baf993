package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/layout"
)

// A Group is the members of a group that are present.
type Group struct {
	Members []Member `json:"members"` // in order of their ids
	Count   int      `json:"count"`   // of members

	// Ghosts are further nodes with the id of a member that joined before them: that
	// of a newcomer that finds the id taken, or of the next incarnation of a member
	// whose session the service has not ended yet.
	Ghosts     []Member `json:"ghosts,omitempty"`
	GhostCount int      `json:"ghost_count,omitempty"`
}

// A Member is one incarnation of a member. Its Since is the time at which
// it joined.
type Member struct {
	Node
	ID    string `json:"id"`
	Token int64  `json:"token,omitempty"`
}

// group describes a group.
func (x *inspector) group(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.members {
		return nil
	}
	// Members first, then ghosts, so that the limit leaves out ghosts.
	order := func(names []string) (list []string) {
		members := layout.PresentMembers(names)
		isMember := make(map[string]bool, len(members))
		for _, n := range members {
			list, isMember[n.Name] = append(list, n.Name), true
		}
		for _, name := range names {
			if _, ok := layout.ParseMember(name); ok && !isMember[name] {
				list = append(list, name)
			}
		}
		return list
	}
	standing, all, err := x.getStanding(ctx, x.dir, k.all, x.small(), order)
	if err != nil {
		return err
	}
	in := &Group{Members: []Member{}}
	in.Count = len(layout.PresentMembers(standing))
	in.GhostCount = len(standing) - in.Count
	for i, name := range order(standing) {
		r := all[name]
		if r.skip {
			continue
		}
		n, _ := layout.ParseMember(name)
		m := Member{Node: x.node(name, r), ID: n.ID, Token: r.stat.Czxid}
		m.Data = x.keep(r.data)
		if i < in.Count {
			in.Members = append(in.Members, m)
		} else {
			in.Ghosts = append(in.Ghosts, m)
		}
	}
	x.in.Group = in
	summary := plural(in.Count, "member")
	if in.GhostCount > 0 {
		summary += ", " + plural(in.GhostCount, "ghost")
	}
	add("group", summary)
	return nil
}

// A Value is a value or a counter.
type Value struct {
	Czxid    int64     `json:"czxid"` // as in coord.Versioned
	Version  int32     `json:"version"`
	Mzxid    int64     `json:"mzxid"`
	Since    time.Time `json:"since"`    // when the node was created
	Modified time.Time `json:"modified"` // when it was last changed
	Session  string    `json:"session,omitempty"`
	Size     int       `json:"size"`             // in bytes
	Number   *int64    `json:"number,omitempty"` // of a counter, with Options.Data
	Data     []byte    `json:"data,omitempty"`   // with Options.Data
}

// A Barrier is a barrier that is set.
type Barrier struct {
	Since     time.Time `json:"since"`
	Ephemeral bool      `json:"ephemeral,omitempty"`
	Session   string    `json:"session,omitempty"` // the session that owns the node
}

// A DoubleBarrier is the state of a double barrier.
type DoubleBarrier struct {
	// Open reports that a round is in progress. Stale reports that all of its members
	// have gone; the next Enter removes it.
	Open  bool `json:"open"`
	Stale bool `json:"stale,omitempty"`

	// N is the number of members of the round in progress. Without a round it is 0:
	// only the clients that wait know it.
	N      int       `json:"n,omitempty"`
	Left   int       `json:"left,omitempty"`   // members of the round that have left or died
	Rounds int32     `json:"rounds"`           // changes of rounds since the directory was created
	Since  time.Time `json:"since,omitzero"`   // when the round opened
	Inside []Node    `json:"inside,omitempty"` // members of the round that are present

	// Waiting are the members that wait for a round to open, in order. Extra are
	// those that joined a round after it had opened.
	Waiting []Node `json:"waiting,omitempty"`
	Extra   []Node `json:"extra,omitempty"`

	InsideCount  int `json:"inside_count"`
	WaitingCount int `json:"waiting_count"`
	ExtraCount   int `json:"extra_count"`
}

// doubleBarrier describes a double barrier.
func (x *inspector) doubleBarrier(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.fixed["members"] && !k.fixed["ready"] {
		return nil
	}
	dir := x.dir
	in := &DoubleBarrier{}
	names, czxid, err := x.round(ctx, k, in)
	if err != nil {
		return err
	}
	var list []string
	known := true // list names all members
	if k.fixed["members"] {
		if list, known, err = x.list(ctx, dir+"/members"); err != nil {
			return err
		}
	}
	// The name of the directory suffices only if its contents do not speak against
	// it.
	alone := len(list) == 0 && !in.Open
	ours := func(name string) bool {
		kind, _ := layout.Parse(name)
		return kind == layout.KindMembers && layout.IsOurs(name)
	}
	if !in.Open && (!k.fixed["members"] || len(list) > 0 && !slices.ContainsFunc(list, ours)) {
		return nil
	}
	k.claim("members", "ready")
	if alone {
		x.in.note("recognized by the name of its directory alone: it has no members")
	}
	kept := func(list []string) []string {
		r := layout.SortMembers(names, list)
		all := slices.Concat(r.Inside, r.Waiting)
		for _, name := range list {
			if _, ok := layout.ParseSeq(name, layout.BarrierExtraInfix); ok && layout.IsOurs(name) {
				all = append(all, name)
			}
		}
		return all
	}
	standing, all, err := x.getStanding(ctx, dir+"/members", list, x.small(), kept)
	if err != nil {
		return err
	}
	r := layout.SortMembers(names, standing)
	in.InsideCount, in.WaitingCount, in.ExtraCount = len(r.Inside), len(r.Waiting), r.Extra
	in.Left = in.N - in.InsideCount
	if in.Open && in.InsideCount == 0 && known && !x.in.Truncated {
		if err := x.emptyRound(ctx, in, czxid); err != nil {
			return err
		}
	}
	in.members(x, standing, all)
	root, err := x.get(ctx, x.in.Path, false)
	if err != nil {
		return err
	}
	in.Rounds = root.stat.Version
	x.in.DoubleBarrier = in
	add("doublebarrier", in.summary())
	return nil
}

// round reads the round in progress. It returns the names of the round's nodes, and
// the czxid of ready if a double barrier created ready, or 0.
func (x *inspector) round(ctx context.Context, k *nameKinds, in *DoubleBarrier) (names []string, czxid int64, err error) {
	if !k.fixed["ready"] {
		return nil, 0, nil
	}
	r, err := x.get(ctx, x.dir+"/ready", true)
	if err != nil {
		return nil, 0, err
	}
	names = strings.Fields(string(r.data))
	foreign := len(names) == 0 && r.unread == "" || slices.ContainsFunc(names, func(name string) bool {
		_, ok := layout.ParseSeq(name, layout.BarrierMemberInfix)
		return !ok
	})
	if r.stat.Czxid != 0 && !foreign {
		in.Open, in.N, in.Since = true, len(names), utc(r.stat.Ctime)
		czxid = r.stat.Czxid
	}
	if r.unread != "" {
		x.in.note("the round in progress cannot be read: %s", r.unread)
	}
	return names, czxid, nil
}

// emptyRound decides whether a round without members is stale or has ended: since
// ready was read, the last members can have left in order and removed ready.
func (x *inspector) emptyRound(ctx context.Context, in *DoubleBarrier, czxid int64) error {
	again, err := x.get(ctx, x.dir+"/ready", false)
	switch {
	case err != nil:
		return err
	case again.gone:
		in.Open, in.N, in.Left, in.Since = false, 0, 0, time.Time{}
	default:
		in.Stale = again.stat.Czxid == czxid
	}
	return nil
}

// members describes the nodes called standing, in that order. all has what was read
// of them.
func (in *DoubleBarrier) members(x *inspector, standing []string, all map[string]seen) {
	for i, name := range standing {
		r := all[name]
		if r.skip {
			continue
		}
		n := x.node(name, r)
		n.Data = x.keep(r.data)
		switch {
		case i < in.InsideCount:
			in.Inside = append(in.Inside, n)
		case i < in.InsideCount+in.WaitingCount:
			in.Waiting = append(in.Waiting, n)
		default:
			in.Extra = append(in.Extra, n)
		}
	}
}

func (in *DoubleBarrier) summary() string {
	var say []string
	switch {
	case in.Stale:
		say = append(say, fmt.Sprintf("a round of %d is stale: all its members have gone", in.N))
	case in.Open:
		say = append(say, fmt.Sprintf("a round of %d is in progress, %d inside", in.N, in.InsideCount))
	default:
		say = append(say, "no round is open")
	}
	switch in.WaitingCount {
	case 0:
	case 1:
		say = append(say, "1 waits for the next")
	default:
		say = append(say, fmt.Sprintf("%d wait for the next", in.WaitingCount))
	}
	if in.ExtraCount > 0 {
		say = append(say, fmt.Sprintf("%d joined late", in.ExtraCount))
	}
	return strings.Join(say, ", ")
}
