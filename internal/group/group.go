package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/parallel"
)

// A Group is the engine of coord.Group. Each member has one ephemeral sequential node, whose name has the
// id, and whose data are bytes of the codec.
//
//   - Of several nodes with one id, the node with the lowest number is the member until it is gone (see
//     layout.PresentMembers). So every reader sees each id at most once, and a takeover or a new
//     incarnation as one change.
//   - A newcomer creates its node first and then makes sure that the id belongs to it, see settle.
//   - Watches and Pickers share one view, see view.
//   - The data of a node is decoded once for each read of the node. Watches and Pickers share the value.
type Group struct {
	c        *core.Client
	path     nodepath.Path
	decode   func(path string, data []byte) (any, error)
	takeOver bool

	mu        sync.Mutex
	live      *view                 // shared by Watches and Pickers; nil while there are none
	leftovers map[string][]leftover // by id, see addLeftovers
}

// New returns the group at path. decode returns the value of the member whose node is at a path. It
// runs on goroutines of the client, so it must neither panic nor end its goroutine. With takeOver, Join
// takes the id over from a member that has it.
func New(c *core.Client, path string, decode func(path string, data []byte) (any, error), takeOver bool) *Group {
	return &Group{c: c, path: c.Path(path), decode: decode, takeOver: takeOver}
}

// FullPath returns the path of the group, with the namespace.
func (g *Group) FullPath() string { return g.path.Full() }

// CheckMember returns the error that op reports for a bad path, or for an id that no member can have.
func (g *Group) CheckMember(op, id string) error {
	if err := g.path.Check(op); err != nil {
		return err
	}
	return errs.Op(op, g.path.Full(), checkID(g.c.Rules().CheckPath, id))
}

func (g *Group) recipeDir() kinds.RecipeDir {
	return kinds.NewRecipeDir(g.path.Full(), layout.KindGroup)
}

// A Member is one incarnation of a member as it was read.
type Member struct {
	ID      string
	Value   any       // decoded; shared with other readers
	Token   int64     // the czxid of the node
	Session int64     // the owner of the node
	Since   time.Time // the creation of the node, by the service's clock
	Path    string    // of the node
	Err     error     // why there is no Value: ErrDecode, or ErrDenied
}

// Members returns all members, sorted by ID. It leaves out members that go while
// they are read. A group that no member has joined yet is empty.
func (g *Group) Members(ctx context.Context) ([]Member, error) {
	if err := g.path.Check("members"); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, g.c, func(s *core.Session) ([]Member, error) {
		return g.readMembers(ctx, s, func(layout.MemberNode) bool { return true })
	})
	if err != nil {
		return nil, errs.Op("members", g.path.Full(), err)
	}
	return list, nil
}

// Member looks one member up. It returns ErrNotFound if no member has the id.
func (g *Group) Member(ctx context.Context, id string) (Member, error) {
	if err := g.CheckMember("member", id); err != nil {
		return Member{}, err
	}
	list, err := core.OnSession(ctx, g.c, func(s *core.Session) ([]Member, error) {
		return g.readMembers(ctx, s, func(n layout.MemberNode) bool { return n.ID == id })
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w: no member %q", backend.ErrNotFound, id)
	}
	if err != nil {
		return Member{}, errs.Op("member", g.path.Full(), err)
	}
	return list[0], nil
}

// readMembers reads the members whose nodes want selects.
func (g *Group) readMembers(ctx context.Context, s *core.Session, want func(layout.MemberNode) bool) ([]Member, error) {
	var names []string
	read := make(map[string]reading)
	for lists, vanished := 0, true; ; {
		// A vanished member may have been followed by a new incarnation.
		if vanished && lists < mostLists {
			var err error
			names, _, err = s.Backend().Children(ctx, g.path.Full(), nil)
			if err != nil && !errs.IsNotFound(err) {
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
			list := make([]Member, 0, len(present))
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
type reading struct {
	member Member
	mzxid  int64          // of the latest change of the node
	denied bool           // the client may not read the data
	w      *backend.Watch // armed; nil for a read without a watch
	stale  bool           // the node must be read again
	gone   bool           // there was no node
	err    error
}

// mostLists bounds how often one read of all members lists the directory again because a member vanished
// meanwhile. So the read ends however many members come and go.
const mostLists = 8

// read reads the nodes, and the data of the nodes at more, which are read after them.
func (g *Group) read(ctx context.Context, s *core.Session, nodes []layout.MemberNode, more ...string) (got []reading, rest []backend.ReadResult, err error) {
	paths := make([]string, 0, len(nodes)+len(more))
	for _, n := range nodes {
		paths = append(paths, g.path.Full()+"/"+n.Name)
	}
	results, err := s.GetAll(ctx, append(paths, more...))
	if err != nil {
		return nil, nil, err
	}
	got = make([]reading, len(nodes))
	// A node that the client may not read costs one more request.
	err = parallel.Read(ctx, len(nodes), func(ctx context.Context, i int) error {
		got[i] = g.reading(ctx, s, nodes[i], nil, nil, results[i])
		return got[i].err
	})
	return got, results[len(nodes):], err
}

// watch reads the nodes, each with a watch of the set.
func (g *Group) watch(ctx context.Context, s *core.Session, nodes []layout.MemberNode, watches *backend.WatchSet) ([]reading, error) {
	got := make([]reading, len(nodes))
	err := parallel.Read(ctx, len(nodes), func(ctx context.Context, i int) error {
		w := watches.New()
		data, stat, err := s.Backend().Get(ctx, g.path.Full()+"/"+nodes[i].Name, w)
		got[i] = g.reading(ctx, s, nodes[i], watches, w, backend.ReadResult{Data: data, Stat: stat, Err: err})
		return got[i].err
	})
	return got, err
}

// reading returns the reading of a node from the result of its read with the watch w, which may be nil.
func (g *Group) reading(ctx context.Context, s *core.Session, n layout.MemberNode, watches *backend.WatchSet, w *backend.Watch, read backend.ReadResult) (r reading) {
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
	case errs.IsNotFound(err):
		r.w.Stop()
		return reading{gone: true}
	case err != nil:
		r.w.Stop()
		return reading{err: err}
	}
	r.mzxid, r.denied = stat.Mzxid, denied != nil
	r.member = Member{
		ID:      n.ID,
		Token:   stat.Czxid,
		Session: stat.EphemeralOwner,
		Since:   time.UnixMilli(stat.Ctime),
		Path:    path,
		Err:     denied,
	}
	if denied == nil {
		r.member.Value, err = g.decode(path, data)
		r.member.Err = errs.Op("member", path, err)
	}
	return r
}

// checkID returns ErrInvalid or ErrBadPath if id cannot be the id of a
// member. checkPath are the rules of the service.
func checkID(checkPath func(string) error, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: the member id is empty", backend.ErrInvalid)
	case len(id) > layout.MaxMemberID:
		return fmt.Errorf("%w: the member id has %d bytes, limit %d", backend.ErrInvalid, len(id), layout.MaxMemberID)
	case strings.Contains(id, "/"):
		return fmt.Errorf("%w: the member id contains a slash", backend.ErrBadPath)
	}
	if err := checkPath("/" + layout.MemberInfix + id + "-"); err != nil {
		return fmt.Errorf("member id: %w", errors.Unwrap(err))
	}
	return nil
}
