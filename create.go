package coord

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// maxGrounds bounds what a client remembers of directories.
const maxGrounds = 4096

// makeRoom forgets one directory, any of them, when as many are remembered as may be. To
// forget all at once would have a client that uses a few more paths in turn know none.
func makeRoom[V any](m map[string]V) {
	for dir := range m {
		if len(m) >= maxGrounds {
			delete(m, dir)
		}
		return
	}
}

// spec says which node to create: a sequential ephemeral child of dir, named by
// a GUID of its own.
type spec struct {
	ground
	kind   string // what the sequence number follows, such as "lock-"
	prefix string // the path of the node without its number
	data   []byte
	made   bool // an earlier attempt with this prefix may have made it: look first
	// check is a condition that the creation is to be under, if its Kind is not
	// zero. It stands afterwards if the node was made under it and its siblings
	// are known; where it does not hold the node is made without it.
	check backend.Op
}

func newSpec(c *Client, g ground, kind string, data []byte) spec {
	var buf [128]byte
	b := append(buf[:0], g.dir...)
	b = append(b, '/')
	b = append(b, guidPrefix...)
	b = c.appendGUID(b, g.dir)
	b = append(b, '-')
	b = append(b, kind...)
	return spec{ground: g, kind: kind, prefix: string(b), data: data}
}

// create makes the node of sp, exactly one of them, or none that lasts: when it
// returns an error, whatever may have been made is removed in the background,
// or goes with its session.
//
// A creation whose outcome is unknown is found by its GUID, after a Sync, since
// the server we read from may lag (ZooKeeper's recipe guide; Curator-45, -79 for
// what happens to those who do not look).
func (s *session) create(ctx context.Context, sp *spec) (node, error) {
	pause := pauses{c: s.c}
	for {
		if sp.made {
			n, found, err := s.adopt(ctx, sp)
			if err != nil {
				s.disown(*sp).wait(s, sp.dir)
				return node{}, err
			}
			s.resolved(ctx, sp.prefix, found)
			sp.made = false
			if found {
				return n, nil
			}
		}
		n, err := s.createOnce(ctx, sp)
		switch {
		case err == nil:
			return n, nil
		case isUncertain(err):
			sp.made = true
			if ctx.Err() != nil || isOver(err) {
				s.disown(*sp).wait(s, sp.dir)
				return node{}, err
			}
			if pause.n == 3 {
				s.c.log.Warn("coord: the outcome of a creation is unknown again and again", "path", sp.prefix, "error", err)
			}
			pause.wait(ctx.Done(), s.b.Done())
		case isNotFound(err):
			// The directory was never there, or was a container and has been
			// reaped, or was replaced at the end of its numbers. Others can have
			// made something else in its place.
			s.c.unlearn(sp.dir)
			if err := s.makeDir(ctx, sp.ground); err != nil {
				return node{}, err
			}
		default:
			return node{}, err
		}
	}
}

// resolved tells that the unknown outcome of a request was found out.
func (s *session) resolved(ctx context.Context, path string, applied bool) {
	s.c.log.Warn("coord: a reply was lost, the outcome found out", "path", path, "applied", applied)
	tell(ctx, s.c, trace.OutcomeResolved{Subject: trace.Subject{Node: path}, Applied: applied})
}

// createOnce sends one request to create the node.
//
// Where the directory bears the mark of the recipe, the same commit writes the mark
// once more: the Stat that comes back carries the czxid of the new node and the
// number of children right after it, so an uncontended acquisition costs one round
// trip. Elsewhere that would overwrite what others stored there, or is denied; the
// caller reads then. See kinds.go.
func (s *session) createOnce(ctx context.Context, sp *spec) (node, error) {
	op := backend.Create(sp.prefix, sp.data, backend.EphemeralSequential)
	f, err := s.footing(ctx, sp.ground)
	if err != nil {
		return node{}, err
	}
	if f.mark != nil {
		ops := [3]backend.Op{op, backend.SetData(sp.dir, f.mark, f.version), sp.check}
		n := len(ops)
		if sp.check.Kind == 0 {
			n--
		}
		res, err := s.b.Commit(ctx, ops[:n]...)
		if err == nil {
			return s.made(ctx, sp, res[0].Path, res[1].Stat)
		}
		var e *backend.Error
		switch {
		case isUncertain(err) || !errors.As(err, &e):
			return node{}, err
		case e.Index == 2:
			sp.check = backend.Op{}
			return s.createOnce(ctx, sp)
		case e.Index == 1 && errors.Is(err, backend.ErrBadVersion):
			s.c.unlearn(sp.dir) // another was first to write a mark, or data
			return s.createOnce(ctx, sp)
		case e.Index != 1 || !errors.Is(err, backend.ErrDenied):
			return node{}, err
		}
		s.c.leaveAlone(sp.ground)
	}
	res, err := s.b.Commit(ctx, op)
	if err != nil {
		return node{}, err
	}
	return s.made(ctx, sp, res[0].Path, backend.Stat{NumChildren: -1})
}

// made is the node that a commit made, if its directory's Stat came with it.
func (s *session) made(ctx context.Context, sp *spec, path string, dir backend.Stat) (node, error) {
	seq, ok := parseSeq(base(path), sp.kind)
	if !ok {
		// The service counts in a way that is not ZooKeeper's.
		s.removeLater(path)
		return node{}, &backend.Error{Op: "create", Path: path, Err: ErrUnsupported}
	}
	if dir.NumChildren >= 0 && s.c.wrote(sp.ground, seq, dir) {
		if err := s.examineAnew(ctx, sp.ground, path, dir); err != nil {
			s.giveUp(path)
			return node{}, err
		}
	}
	return node{path: path, seq: seq, czxid: dir.Mzxid, siblings: dir.NumChildren}, nil
}

// adopt finds the node that an earlier attempt with the prefix of sp may have
// made in this session. There can be two, if a first attempt was found missing
// and came after all: the lowest is kept.
func (s *session) adopt(ctx context.Context, sp *spec) (node, bool, error) {
	paths, err := s.find(ctx, []spec{*sp})
	if err != nil {
		return node{}, false, err
	}
	var kept node
	found := false
	for _, p := range paths {
		stat, err := s.b.Exists(ctx, p, nil)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return node{}, false, err
		}
		if stat.EphemeralOwner != s.b.ID() {
			continue // it goes with the session that made it; it is not ours (Curator-498)
		}
		seq, _ := parseSeq(base(p), sp.kind)
		n := node{path: p, seq: seq, czxid: stat.Czxid, siblings: -1}
		switch {
		case !found:
			kept, found = n, true
		case before(n.seq, kept.seq):
			s.removeLater(kept.path)
			kept = n
		default:
			s.removeLater(p)
		}
	}
	return kept, found, nil
}

// find lists the nodes with the prefixes of specs, which are of one directory.
func (s *session) find(ctx context.Context, specs []spec) ([]string, error) {
	dir := specs[0].dir
	names, err := s.list(ctx, dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		if slices.ContainsFunc(specs, func(sp spec) bool { return sp.names(name) }) {
			paths = append(paths, dir+"/"+name)
		}
	}
	return paths, nil
}

// names reports whether a node of this name was made for sp.
func (sp *spec) names(name string) bool {
	if !strings.HasPrefix(name, base(sp.prefix)) {
		return false
	}
	_, ok := parseSeq(name, sp.kind)
	return ok
}

// disown removes in the background what attempts to create, all in one directory,
// may have made. It looks twice at least, and until it finds nothing.
func (s *session) disown(specs ...spec) *cleanUp {
	if s.c.isClosing() {
		return nil // it goes with the session
	}
	return s.c.goCleanUp(func(ctx context.Context, u *cleanUp) {
		for looks, found := 0, true; looks < 2 || found; looks++ {
			ok := s.retry(ctx, u, "remove", specs[0].prefix, func(ctx context.Context) error {
				paths, err := s.find(ctx, specs)
				if err != nil {
					return err
				}
				found = len(paths) > 0
				for _, p := range paths {
					if err := s.remove(ctx, p); err != nil {
						return err
					}
				}
				return nil
			})
			if !ok {
				return
			}
		}
	})
}

// makeDir makes the directory of a recipe, with its mark, and what is missing above
// it. That there is one is no error.
func (s *session) makeDir(ctx context.Context, g ground) error {
	mark := g.recipe.mark()
	made, err := s.createDir(ctx, backend.Create(g.dir, mark, backend.Container), func(dir string) error {
		if g.whole != "" {
			return s.makePart(ctx, dir, ground{dir: g.top, recipe: g.whole})
		}
		return s.ensure(ctx, dir)
	})
	if made {
		s.c.learn(g.dir, footing{kind: g.recipe, mark: mark, version: backend.AnyVersion})
	}
	return s.notSent(ctx, err)
}

// makePart makes a directory of the recipe at g that bears no mark, and what is
// missing above it. It has the permissions of the recipe's other nodes.
func (s *session) makePart(ctx context.Context, dir string, g ground) error {
	if dir == g.dir {
		return s.occupyAnew(ctx, g)
	}
	_, err := s.createDir(ctx, backend.Create(dir, nil, backend.Container), func(dir string) error { return s.makePart(ctx, dir, g) })
	return s.notSent(ctx, err)
}

// ensure creates a directory above recipes, and its missing parents. The directory
// belongs to no recipe, so clients with other credentials may create nodes in it.
func (s *session) ensure(ctx context.Context, dir string) error {
	op := backend.Create(dir, nil, backend.Container)
	op.Shared = true
	_, err := s.createDir(ctx, op, func(dir string) error { return s.ensure(ctx, dir) })
	return s.notSent(ctx, err)
}

// createDir creates a directory, as a container where the service has them, so that
// what is not used any more goes by itself. above makes what it is missing in. It
// reports false if the directory was there, or may have been.
func (s *session) createDir(ctx context.Context, op backend.Op, above func(dir string) error) (made bool, err error) {
	if !s.b.Features().Has(backend.Containers) {
		op.Mode = backend.Persistent
	}
	made, err = s.makeNode(ctx, op, above)
	if errors.Is(err, backend.ErrUnsupported) && op.Mode == backend.Container {
		op.Mode = backend.Persistent
		made, err = s.makeNode(ctx, op, above)
	}
	return made, err
}

// makeNode creates a node that may be there already. above makes the directory that it is
// missing in. It reports false if the node was there, or may have been.
func (s *session) makeNode(ctx context.Context, op backend.Op, above func(dir string) error) (made bool, err error) {
	for {
		err := s.commitAgain(ctx, op)
		switch {
		case err == nil:
			return true, nil
		case answers(err, backend.ErrExists):
			return false, nil
		case !isNotFound(err):
			return false, err
		}
		i := strings.LastIndexByte(op.Path, '/')
		if i <= 0 {
			return false, err
		}
		if err := above(op.Path[:i]); err != nil {
			return false, err
		}
	}
}
