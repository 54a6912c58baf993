package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// GroupOptions may be nil.
type GroupOptions[T any] struct {
	// Codec turns the members' values into the data of their nodes and back. The
	// zero Codec is JSON. All clients of one group should use one codec.
	Codec Codec[T]

	// TakeOver makes Join take the id over from a member that has it. Without
	// TakeOver a member keeps its id, and Join returns ErrDuplicate.
	TakeOver bool
}

// A Group is a set of live members, each with an id and a value: the group membership of
// the ZooKeeper recipe guide. It also serves as a naming service (an id is registered with
// an address and looked up) and for the choice of a service instance ([Picker]).
//
// A member is present from the return of Join until it leaves, its client is closed, or the
// service has not heard from it for the session timeout. A short loss of contact is not
// visible to others. A member that lost its session joins again by itself, which is visible
// as a new incarnation: the same id with another Token.
//
// Every reader sees each id at most once, and a takeover or a new incarnation as one
// change: if several nodes have the same id, the node with the lowest number is the member
// until it is gone. Reads are sequentially consistent, not linearizable: a read may miss a
// member that another client has just registered.
//
// The numbers of one directory last for some two billion joins. Beyond that Join returns
// ErrLimit until the directory has been empty once.
//
// A Group is safe for concurrent use and needs no closing. All Watches and Pickers of one
// Group share their reads from the service, so use one Group for one path. layout.md
// describes the nodes.
type Group[T any] struct {
	c       *core.Client
	path    core.Path
	codec   Codec[T]
	replace bool

	mu     sync.Mutex
	live   *view[T]           // shared by Watches and Pickers; nil while there are none
	ghosts map[string][]ghost // by id, see bury
}

// NewGroup returns the group at path. It does no I/O; the first call reports a bad
// path.
func NewGroup[T any](c *Client, path string, o *GroupOptions[T]) *Group[T] {
	g := &Group[T]{c: c.core(), path: c.core().Path(path)}
	if o != nil {
		g.codec, g.replace = o.Codec, o.TakeOver
	}
	g.codec = g.codec.orJSON()
	return g
}

func (g *Group[T]) recipeDir() core.RecipeDir {
	return core.NewRecipeDir(g.path.Full(), layout.KindGroup)
}

// A Member is one incarnation of a member as it was read. Memory that Value refers
// to is shared with other readers and must not be changed.
type Member[T any] struct {
	ID      string
	Value   T
	Token   int64     // identifies the incarnation; grows with each incarnation of an id (the czxid of its node)
	Session int64     // the session that owns the node
	Since   time.Time // when this incarnation began, by the service's clock
	Path    string    // of its node: absolute, with the namespace
	// Err is set if the Value could not be read: ErrDecode, the codec cannot decode
	// it; ErrDenied, no permission. The member is present all the same.
	Err error
}

// Members returns all members, sorted by ID. It leaves out members that go while
// they are read. A group that no member has joined yet is empty.
func (g *Group[T]) Members(ctx context.Context) ([]Member[T], error) {
	if err := g.path.Check("members"); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, g.c, func(s *core.Session) ([]Member[T], error) {
		return g.readMembers(ctx, s, func(layout.MemberNode) bool { return true })
	})
	if err != nil {
		return nil, core.OpError("members", g.path.Full(), err)
	}
	return list, nil
}

// Member looks one member up. It returns ErrNotFound if no member has the id.
func (g *Group[T]) Member(ctx context.Context, id string) (Member[T], error) {
	var zero Member[T]
	err := g.path.Check("member")
	if err == nil {
		err = core.OpError("member", g.path.Full(), checkMemberID(g.c.Rules().CheckPath, id))
	}
	if err != nil {
		return zero, err
	}
	list, err := core.OnSession(ctx, g.c, func(s *core.Session) ([]Member[T], error) {
		return g.readMembers(ctx, s, func(n layout.MemberNode) bool { return n.ID == id })
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w: no member %q", ErrNotFound, id)
	}
	if err != nil {
		return zero, core.OpError("member", g.path.Full(), err)
	}
	return list[0], nil
}

// readMembers reads the members whose nodes want selects.
func (g *Group[T]) readMembers(ctx context.Context, s *core.Session, want func(layout.MemberNode) bool) ([]Member[T], error) {
	var names []string
	read := make(map[string]reading[T])
	for lists, vanished := 0, true; ; {
		// A vanished member may have been followed by a new incarnation.
		if vanished && lists < mostLists {
			var err error
			names, _, err = s.Backend().Children(ctx, g.path.Full(), nil)
			if err != nil && !core.IsNotFound(err) {
				return nil, err
			}
			lists++
		}
		var present, unread []layout.MemberNode
		for _, n := range layout.PresentMembers(names) {
			if !want(n) {
				continue
			}
			present = append(present, n)
			if _, ok := read[n.Name]; !ok {
				unread = append(unread, n)
			}
		}
		if len(unread) == 0 {
			list := make([]Member[T], 0, len(present))
			for _, n := range present {
				list = append(list, read[n.Name].member)
			}
			return list, nil
		}
		got, _, err := g.read(ctx, s, unread)
		if err != nil {
			return nil, err
		}
		gone := make(map[string]bool)
		for i, n := range unread {
			if got[i].gone {
				gone[n.Name] = true
			} else {
				read[n.Name] = got[i]
			}
		}
		vanished = len(gone) > 0
		names = slices.DeleteFunc(names, func(name string) bool { return gone[name] })
	}
}

// reading is the result of reading one node.
type reading[T any] struct {
	member Member[T]
	mzxid  int64          // of the latest change of the node
	denied bool           // the value may not be read
	w      *backend.Watch // armed, if one was wanted
	stale  bool           // it must be read again
	gone   bool           // there was no node
	err    error
}

// mostLists bounds how often one look lists again because a member vanished during
// the read. So the look ends however many members come and go.
const mostLists = 8

// read reads the nodes, and the data of the nodes at more, which are read after them.
func (g *Group[T]) read(ctx context.Context, s *core.Session, nodes []layout.MemberNode, more ...string) (got []reading[T], rest []backend.ReadResult, err error) {
	paths := make([]string, 0, len(nodes)+len(more))
	for _, n := range nodes {
		paths = append(paths, g.path.Full()+"/"+n.Name)
	}
	results, err := s.GetAll(ctx, append(paths, more...))
	if err != nil {
		return nil, nil, err
	}
	got = make([]reading[T], len(nodes))
	// A node that the client may not read costs one more request.
	err = core.ReadAll(ctx, len(nodes), func(ctx context.Context, i int) error {
		got[i] = g.reading(ctx, s, nodes[i], nil, nil, results[i])
		return got[i].err
	})
	return got, results[len(nodes):], err
}

// watch reads the nodes, each with a watch of the set.
func (g *Group[T]) watch(ctx context.Context, s *core.Session, nodes []layout.MemberNode, watches *backend.WatchSet) ([]reading[T], error) {
	got := make([]reading[T], len(nodes))
	err := core.ReadAll(ctx, len(nodes), func(ctx context.Context, i int) error {
		w := watches.New()
		data, stat, err := s.Backend().Get(ctx, g.path.Full()+"/"+nodes[i].Name, w)
		got[i] = g.reading(ctx, s, nodes[i], watches, w, backend.ReadResult{Data: data, Stat: stat, Err: err})
		return got[i].err
	})
	return got, err
}

// reading returns what the read of a node with the watch w shows.
func (g *Group[T]) reading(ctx context.Context, s *core.Session, n layout.MemberNode, watches *backend.WatchSet, w *backend.Watch, read backend.ReadResult) (r reading[T]) {
	path := g.path.Full() + "/" + n.Name
	r.w = w
	data, stat, err := read.Data, read.Stat, read.Err
	var denied error
	if errors.Is(err, backend.ErrDenied) {
		// The existence of a node needs no permission, and one unreadable member
		// must not hide the others.
		r.w.Stop()
		denied = err
		r.w = watches.New()
		stat, err = s.Backend().Exists(ctx, path, r.w)
	}
	switch {
	case core.IsNotFound(err):
		r.w.Stop()
		return reading[T]{gone: true}
	case err != nil:
		r.w.Stop()
		return reading[T]{err: err}
	}
	r.mzxid, r.denied = stat.Mzxid, denied != nil
	r.member = Member[T]{
		ID:      n.ID,
		Token:   stat.Czxid,
		Session: stat.EphemeralOwner,
		Since:   time.UnixMilli(stat.Ctime),
		Path:    path,
		Err:     denied,
	}
	if denied == nil {
		r.member.Value, err = g.codec.decodeApart(g.c, path, data)
		r.member.Err = core.OpError("member", path, err)
	}
	return r
}

// checkMemberID returns ErrInvalid or ErrBadPath if id cannot be the id of a
// member. checkPath are the rules of the service.
func checkMemberID(checkPath func(string) error, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: the member id is empty", ErrInvalid)
	case len(id) > layout.MaxMemberID:
		return fmt.Errorf("%w: the member id has %d bytes, limit %d", ErrInvalid, len(id), layout.MaxMemberID)
	case strings.Contains(id, "/"):
		return fmt.Errorf("%w: the member id contains a slash", ErrBadPath)
	}
	if err := checkPath("/" + layout.MemberInfix + id + "-"); err != nil {
		return fmt.Errorf("member id: %w", errors.Unwrap(err))
	}
	return nil
}
