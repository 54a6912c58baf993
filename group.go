package coord

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// GroupOptions may be nil.
type GroupOptions[T any] struct {
	// Codec turns the members' values into the data of their nodes. The zero
	// Codec is JSON. All who use one group should use one codec.
	Codec Codec[T]

	// TakeOver makes Join take an id over from whoever has it. Without it who
	// has an id keeps it, and a newcomer is refused with ErrDuplicate.
	TakeOver bool
}

// A Group is who is there: members that each have an id and a value, for as long
// as they live. It is group membership, as the ZooKeeper recipe guide has it (a
// child of the group's node is a member), and with it naming (an id is registered
// to an address and looked up) and the choice of a service instance (Picker).
//
// A member is there from the return of Join until it leaves, its client is
// closed, or the service has not heard of it for the session timeout. A short
// break of contact shows to nobody. A member that lost its session joins again by
// itself, which shows as a new incarnation: the same id with another Token.
//
// Layout: path is a directory (a container, made on first use, with what is
// missing above it). Each incarnation is an ephemeral sequential node of its own
// in it, named _c_<uuid>-member-<id>-<number>; its data is what the codec makes of
// the value. A name is never used again, so nothing that is repeated late can hit
// a later incarnation. Children with other names are ignored. Where several nodes have one id, the one with the lowest number is the member
// until it is gone: while a newcomer finds that the id is taken, and while one
// incarnation follows another. So everybody sees each id at most once, and a
// takeover or a new incarnation as one change. The numbers of one directory last
// for some two billion joins; beyond them Join returns ErrLimit until the
// directory has been empty once.
//
// Reads are sequentially consistent: who looks up what somebody else has just
// registered may be too early.
//
// A Group is safe for concurrent use. All Watches and Pickers of one Group share
// what they read from the service, so use one Group for one path. It holds no
// resources of its own; there is nothing to close.
type Group[T any] struct {
	c       *Client
	path    recipePath
	codec   Codec[T]
	replace bool

	mu     sync.Mutex
	live   *view[T]           // what Watches and Pickers share, while there is one of them
	ghosts map[string][]ghost // by id, see bury
}

// NewGroup returns the group at path. It does no I/O; the first call reports a
// bad path.
func NewGroup[T any](c *Client, path string, o *GroupOptions[T]) *Group[T] {
	g := &Group[T]{c: c, path: c.recipePath(path)}
	if o != nil {
		g.codec, g.replace = o.Codec, o.TakeOver
	}
	g.codec = g.codec.orJSON()
	return g
}

// A Member is one incarnation of a member as it was read. What Value refers to is
// shared with other readers and is not to be changed.
type Member[T any] struct {
	ID      string
	Value   T
	Token   int64     // which incarnation: it grows from one to the next of an id (the czxid of its node)
	Session int64     // that the node belongs to
	Since   time.Time // of this incarnation, by the service's clock
	Path    string    // of its node: absolute, the namespace included
	// Err is set where the Value could not be read: ErrDecode, the codec does not
	// understand it; ErrDenied, no permission. The member is there all the same.
	Err error
}

// Members returns all members, sorted by ID. Those that go while they are read
// are left out. A group that nobody has joined yet is empty.
func (g *Group[T]) Members(ctx context.Context) ([]Member[T], error) {
	if err := g.path.check("members"); err != nil {
		return nil, err
	}
	list, err := onSession(ctx, g.c, func(s *session) ([]Member[T], error) {
		return g.readMembers(ctx, s, func(memberNode) bool { return true })
	})
	if err != nil {
		return nil, opError("members", g.path.full, err)
	}
	return list, nil
}

// Member looks one member up. It returns ErrNotFound if nobody has the id.
func (g *Group[T]) Member(ctx context.Context, id string) (Member[T], error) {
	var zero Member[T]
	err := g.path.check("member")
	if err == nil {
		err = opError("member", g.path.full, checkMemberID(id))
	}
	if err != nil {
		return zero, err
	}
	list, err := onSession(ctx, g.c, func(s *session) ([]Member[T], error) {
		return g.readMembers(ctx, s, func(n memberNode) bool { return n.id == id })
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w: no member %q", ErrNotFound, id)
	}
	if err != nil {
		return zero, opError("member", g.path.full, err)
	}
	return list[0], nil
}

// readMembers reads the members among those that want picks.
func (g *Group[T]) readMembers(ctx context.Context, s *session, want func(memberNode) bool) ([]Member[T], error) {
	var names []string
	read := make(map[string]reading[T])
	for lists, vanished := 0, true; ; {
		// Whoever vanished may have been followed by a new incarnation.
		if vanished && lists < mostLists {
			var err error
			names, _, err = s.b.Children(ctx, g.path.full, nil)
			if err != nil && !isNotFound(err) {
				return nil, err
			}
			lists++
		}
		var present, unread []memberNode
		for _, n := range presentMembers(names) {
			if !want(n) {
				continue
			}
			present = append(present, n)
			if _, ok := read[n.name]; !ok {
				unread = append(unread, n)
			}
		}
		if len(unread) == 0 {
			list := make([]Member[T], 0, len(present))
			for _, n := range present {
				list = append(list, read[n.name].member)
			}
			return list, nil
		}
		got, err := g.read(ctx, s, unread, nil)
		if err != nil {
			return nil, err
		}
		gone := make(map[string]bool)
		for i, n := range unread {
			if got[i].gone {
				gone[n.name] = true
			} else {
				read[n.name] = got[i]
			}
		}
		vanished = len(gone) > 0
		names = slices.DeleteFunc(names, func(name string) bool { return gone[name] })
	}
}

// reading is what one node held.
type reading[T any] struct {
	member Member[T]
	mzxid  int64          // of its latest change
	w      *backend.Watch // armed, if one was wanted
	gone   bool           // there was none
	err    error
}

// mostLists bounds how often one look lists again because somebody vanished while it
// read: it ends however many come and go.
const mostLists = 8

// read reads the nodes. Where watches is not nil it arms a watch of that set on
// each.
func (g *Group[T]) read(ctx context.Context, s *session, nodes []memberNode, watches *backend.WatchSet) ([]reading[T], error) {
	got := make([]reading[T], len(nodes))
	err := readAll(ctx, len(nodes), func(ctx context.Context, i int) error {
		got[i] = g.readOne(ctx, s, nodes[i], watches)
		return got[i].err
	})
	return got, err
}

func (g *Group[T]) readOne(ctx context.Context, s *session, n memberNode, watches *backend.WatchSet) (r reading[T]) {
	path := g.path.full + "/" + n.name
	r.w = watches.New()
	data, stat, err := s.b.Get(ctx, path, r.w)
	var denied error
	if errors.Is(err, backend.ErrDenied) {
		// That it is there may be known to all; one member must not blind
		// everybody for the others.
		r.w.Stop()
		denied = err
		r.w = watches.New()
		stat, err = s.b.Exists(ctx, path, r.w)
	}
	switch {
	case isNotFound(err):
		r.w.Stop()
		return reading[T]{gone: true}
	case err != nil:
		r.w.Stop()
		return reading[T]{err: err}
	}
	r.mzxid = stat.Mzxid
	r.member = Member[T]{
		ID:      n.id,
		Token:   stat.Czxid,
		Session: stat.EphemeralOwner,
		Since:   time.UnixMilli(stat.Ctime),
		Path:    path,
		Err:     denied,
	}
	if denied == nil {
		r.member.Value, err = g.codec.decode(data)
		r.member.Err = opError("member", path, err)
	}
	return r
}

// presentMembers picks of each id the node that is the member, sorted by id.
func presentMembers(names []string) []memberNode {
	first := make(map[string]memberNode, len(names))
	for _, name := range names {
		n, ok := parseMember(name)
		if !ok {
			continue
		}
		if other, taken := first[n.id]; !taken || n.older(other) {
			first[n.id] = n
		}
	}
	return slices.SortedFunc(maps.Values(first), func(a, b memberNode) int { return strings.Compare(a.id, b.id) })
}

// checkMemberID returns ErrInvalid or ErrBadPath for what cannot be an id.
func checkMemberID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: empty id", ErrInvalid)
	case len(id) > maxMemberID:
		return fmt.Errorf("%w: id of %d bytes, limit %d", ErrInvalid, len(id), maxMemberID)
	case strings.Contains(id, "/"):
		return fmt.Errorf("%w: id with a slash", ErrBadPath)
	}
	if err := backend.CheckPath("/" + memberKind + id + "-"); err != nil {
		return fmt.Errorf("id: %w", errors.Unwrap(err))
	}
	return nil
}
