package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// maxGrounds bounds the number of directories that a client remembers.
const maxDirs = 4096

// makeRoom forgets one directory, any of them, if the maximum is reached. A client that
// uses a few more paths in turn would know none of them if makeRoom forgot all at once.
func makeRoom[V any](m map[string]V) {
	for dir := range m {
		if len(m) >= maxDirs {
			delete(m, dir)
		}
		return
	}
}

// spec describes a node to create: a sequential ephemeral child of dir, with a GUID of
// its own in the name.
type spec struct {
	recipeDir
	kind   string // what the sequence number follows in the name, such as "lock-"
	prefix string // the path of the node without its number
	data   []byte
	made   bool     // an earlier attempt with this prefix may have created it: look first
	left   *cleanUp // removes what a creation that failed may have left
	// counted: clients count the node as long as it exists, whether or not its call still
	// waits. What a lost session has left is removed over the next one.
	counted bool
	// check is a condition of the creation, unless its Kind is zero. If the condition
	// does not hold, the node is created without it, and check is cleared. (If the
	// siblings of the created node are not known, check says nothing.)
	check backend.Op
}

func newSpec(c *Client, g recipeDir, kind string, data []byte) spec {
	var buf [128]byte
	b := append(buf[:0], g.dir...)
	b = append(b, '/')
	b = append(b, layout.GUIDPrefix...)
	b = c.appendGUID(b, g.dir)
	b = append(b, '-')
	b = append(b, kind...)
	return spec{recipeDir: g, kind: kind, prefix: string(b), data: data}
}

// create creates the node of sp exactly once, or none that lasts: when it returns an
// error, a node that may have been created is removed in the background, or goes with
// its session (see spec.counted).
//
// After a creation with an unknown outcome, create looks for the GUID, after a Sync,
// since the server may lag (ZooKeeper's recipe guide; see Curator-45 and -79 for the
// effects of not looking).
func (s *session) create(ctx context.Context, sp *spec) (node, error) {
	pause := pauses{c: s.c}
	for {
		if sp.made {
			n, found, err := s.adopt(ctx, sp)
			if err != nil {
				s.removeAttempt(sp)
				return node{}, err
			}
			s.resolved(ctx, sp.prefix, found)
			sp.made = false
			if found {
				// The Stat that shows whether the directory is the known one was lost.
				if f, ok := s.c.knownState(sp.recipeDir); !ok || f.mark != nil {
					if _, err := s.examineAnew(ctx, sp.recipeDir, n.path, 0); err != nil {
						s.removeCreated(sp, n.path)
						return node{}, err
					}
				}
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
				s.removeAttempt(sp)
				return node{}, err
			}
			if pause.n == 3 {
				s.c.log.Warn("coord: no reply to several attempts to create a node, retrying", "path", sp.prefix, "error", err)
			}
			pause.wait(ctx.Done(), s.b.Done())
		case isNotFound(err):
			// The directory never existed, or was a container and was reaped, or was
			// replaced at the end of its numbers. Another kind of recipe can have been
			// created in its place.
			s.c.forgetState(sp.dir)
			if err := s.makeDir(ctx, sp.recipeDir); err != nil {
				return node{}, err
			}
		default:
			return node{}, err
		}
	}
}

// resolved reports that the unknown outcome of a request was determined.
func (s *session) resolved(ctx context.Context, path string, applied bool) {
	s.c.log.Warn("coord: the reply to a commit was lost, its outcome was determined by reading", "path", path, "applied", applied)
	emit(ctx, s.c, trace.OutcomeResolved{Subject: trace.Subject{Node: path}, Applied: applied})
}

// createOnce sends one request to create the node.
//
// If the directory carries the mark of the recipe, the same commit says so. Then every
// service tells the czxid of the new node and the number of its siblings, so an
// uncontended acquisition costs one round trip. Other directories have foreign data, or
// that operation is denied. Then the caller reads what the service does not tell. See
// kinds.go.
func (s *session) createOnce(ctx context.Context, sp *spec) (node, error) {
	op := backend.Create(sp.prefix, sp.data, backend.EphemeralSequential)
	f, err := s.dirState(ctx, sp.recipeDir)
	if err != nil {
		return node{}, err
	}
	if f.mark != nil {
		ops := [3]backend.Op{op, f.write(sp.dir), sp.check}
		n := len(ops)
		if sp.check.Kind == 0 {
			n--
		}
		began := s.send()
		res, err := s.b.Commit(ctx, ops[:n]...)
		if err == nil {
			s.sent(began, &res[1].Stat)
			return s.made(ctx, sp, res[0], &res[1].Stat)
		}
		var e *backend.Error
		switch {
		case isUncertain(err) || !errors.As(err, &e):
			return node{}, err
		case e.Index == 2:
			sp.check = backend.Op{}
			return s.createOnce(ctx, sp)
		case e.Index == 1 && errors.Is(err, backend.ErrBadVersion):
			s.c.forgetState(sp.dir) // another client wrote a mark, or data, first
			if f.version == backend.AnyVersion {
				s.overwrite(ctx, sp.recipeDir, f)
			}
			return s.createOnce(ctx, sp)
		case e.Index != 1 || !errors.Is(err, backend.ErrDenied):
			return node{}, err
		}
		s.c.leaveData(sp.recipeDir)
	}
	res, err := s.b.Commit(ctx, op)
	if err != nil {
		return node{}, err
	}
	return s.made(ctx, sp, res[0], nil)
}

// made returns the node that a commit created; dir is its directory's Stat, or nil if
// the commit did not write the mark.
func (s *session) made(ctx context.Context, sp *spec, res backend.Result, dir *backend.Stat) (node, error) {
	path, siblings := res.Path, res.Siblings
	seq, ok := layout.ParseSeq(base(path), sp.kind)
	if !ok {
		// This is no sequence number.
		s.removeLater(path)
		return node{}, &backend.Error{Op: "create", Path: path, Err: ErrUnsupported}
	}
	if dir != nil {
		if now, anew := s.wrote(sp.recipeDir, seq, *dir); anew {
			listed, err := s.examineAnew(ctx, sp.recipeDir, path, dir.Czxid)
			if err != nil {
				s.removeCreated(sp, path)
				return node{}, err
			}
			s.confirm(sp.recipeDir, now)
			if !listed {
				// The node was deleted meanwhile, or the listing was denied, so the number is
				// no reason to count the node as alone.
				siblings = 0
			}
		}
	}
	return node{path: path, seq: seq, czxid: res.Czxid, siblings: siblings}, nil
}

// adopt finds the node that an earlier attempt with the prefix of sp may have created
// in this session. There can be two, if a first attempt was not found and was applied
// later: adopt keeps the lowest.
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
			continue // another session created it, and it goes with that session (Curator-498)
		}
		seq, _ := layout.ParseSeq(base(p), sp.kind)
		n := node{path: p, seq: seq, czxid: stat.Czxid}
		switch {
		case !found:
			kept, found = n, true
		case n.seq < kept.seq:
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

// names reports whether a node of this name was created for sp.
func (sp *spec) names(name string) bool {
	if !strings.HasPrefix(name, base(sp.prefix)) {
		return false
	}
	_, ok := layout.ParseSeq(name, sp.kind)
	return ok
}

// removeCreated removes a node of sp that create has made and does not return, see giveUp.
func (s *session) removeCreated(sp *spec, path string) {
	if sp.counted {
		s.removeAttempt(sp)
		return
	}
	sp.left = s.removeAndWait(path)
}

// removeAttempt removes the nodes that attempts to create sp may have made, and waits for that,
// see cleanUp.wait.
func (s *session) removeAttempt(sp *spec) {
	sp.left = s.removeAttemptsLater(*sp)
	sp.left.wait(s, sp.dir)
}

// removeAttemptsLater removes in the background the nodes that attempts to create, all in one
// directory, may have made. It looks at least twice, and until it finds none. Nodes that
// are counted it removes over the next session if this one is lost: the service may not
// know of the loss yet.
func (s *session) removeAttemptsLater(specs ...spec) *cleanUp {
	if s.c.isClosing() {
		return nil // it goes with the session
	}
	prefix := specs[0].prefix
	return s.c.goCleanUp(func(ctx context.Context, u *cleanUp) {
		ok := true
		for looks, found := 0, true; ok && (looks < 2 || found); looks++ {
			ok = s.retry(ctx, u, "remove", prefix, func(ctx context.Context) error {
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
		}
		if ok || !specs[0].counted {
			return
		}
		s.c.overSessions(ctx, func(next *session) {
			next.retry(ctx, u, "remove", prefix, func(ctx context.Context) error {
				paths, err := next.find(ctx, specs)
				for _, p := range paths {
					err = errors.Join(err, next.removeOf(ctx, s.b.ID(), p))
				}
				return err
			})
		})
	}).madeFor(prefix)
}

// removeOf removes the node at path if the session with the ID owner created it, and
// spares a later node of the same name: a call that goes on over sessions keeps its GUID.
// The caller has made sure that the server has caught up.
func (s *session) removeOf(ctx context.Context, owner int64, path string) error {
	stat, err := s.b.Exists(ctx, path, nil)
	if isNotFound(err) || err == nil && stat.EphemeralOwner != owner {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(ctx, path)
}

// makeDir creates the directory of a recipe, with its mark, and its missing parents. It
// is no error if the directory exists.
func (s *session) makeDir(ctx context.Context, g recipeDir) error {
	above := func(dir string) error { return s.ensure(ctx, dir) }
	if g.whole != "" {
		whole := recipeDir{dir: g.top, recipe: g.whole}
		if err := s.claimKindAbove(ctx, g.dir, whole); err != nil {
			return err
		}
		above = func(dir string) error { return s.makePart(ctx, dir, whole) }
	}
	mark := g.recipe.Mark()
	made, err := s.createDir(ctx, backend.Create(g.dir, mark, backend.Container), above)
	if made {
		s.setState(g.dir, dirState{kind: g.recipe, mark: mark, version: backend.AnyVersion})
	}
	return s.notSent(ctx, err)
}

// makePart creates a directory, without a mark, of the recipe at g, and its missing
// parents. The directory has the permissions of the recipe's other nodes.
func (s *session) makePart(ctx context.Context, dir string, g recipeDir) error {
	if dir == g.dir {
		return s.claimKindAnew(ctx, g)
	}
	if err := s.claimKindAbove(ctx, dir, g); err != nil {
		return err
	}
	_, err := s.createDir(ctx, backend.Create(dir, nil, backend.Container), func(dir string) error { return s.makePart(ctx, dir, g) })
	return s.notSent(ctx, err)
}

// ensure creates a directory above recipes, and its missing parents. The directory
// belongs to no recipe, so clients with other credentials may create nodes in it. Its mark
// says that no Value, Counter or Barrier is set there.
func (s *session) ensure(ctx context.Context, dir string) error {
	op := backend.Create(dir, layout.KindDirectory.Mark(), backend.Container)
	op.Shared = true
	_, err := s.createDir(ctx, op, func(dir string) error { return s.ensure(ctx, dir) })
	return s.notSent(ctx, err)
}

// createDir creates a directory. It is a container where the service has containers, so
// that an unused directory is removed by the service. above creates the parent if that
// is missing. It reports false if the directory existed, or may have existed.
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

// makeNode creates a node that may exist already. above creates its missing parent. It
// reports false if the node existed, or may have existed.
func (s *session) makeNode(ctx context.Context, op backend.Op, above func(dir string) error) (made bool, err error) {
	// A directory that may not be read counts as one that is there.
	pause := pauses{c: s.c}
	for {
		err := s.commitAgain(ctx, op)
		switch {
		case err == nil:
			return true, nil
		case answers(err, backend.ErrExists):
			return false, nil
		case !isNotFound(err):
			return false, belowEphemeral(err, op.Path)
		}
		i := strings.LastIndexByte(op.Path, '/')
		if i <= 0 {
			return false, err
		}
		if err := above(op.Path[:i]); err != nil {
			return false, err
		}
		pause.wait(ctx.Done(), s.b.Done())
	}
}

// belowEphemeral returns the error of a creation at path. If the parent is an ephemeral node, such
// as an ephemeral Barrier, the error matches ErrKind beside ErrNoChildren: the path above is used as
// something that cannot have nodes below it.
func belowEphemeral(err error, path string) error {
	if !answers(err, backend.ErrNoChildren) {
		return err
	}
	return fmt.Errorf("%w: %w", &KindError{Path: parent(path), Want: string(layout.KindDirectory), Found: "ephemeral node"}, err)
}

// node is a sequential ephemeral node of this client.
type node struct {
	path     string
	seq      int64
	czxid    int64 // 0: not known yet
	siblings int32 // number of children of the directory right after the creation, own included; 0: not known
}

// newGUID returns 122 random bits as a UUID of version 8 (RFC 9562: custom format).
// Curator's are of version 4, so a name identifies its implementation. A GUID must be
// unique, not secret. what is the purpose, see Client.random.
func (c *Client) newGUID(what string) string {
	var b [layout.GUIDLen]byte
	return string(c.appendGUID(b[:0], what))
}

func (c *Client) appendGUID(b []byte, what string) []byte {
	const hex = "0123456789abcdef"
	for i := range 2 {
		v := c.random(what)
		if i == 0 {
			v = v&^0xf000 | 0x8000 // the version
		} else {
			v = v&^(3<<62) | 2<<62 // the variant
		}
		for j := range 16 {
			switch i*16 + j {
			case 8, 12, 16, 20:
				b = append(b, '-')
			}
			b = append(b, hex[v>>60])
			v <<= 4
		}
	}
	return b
}

// creates reports whether one of ops creates the node at path.
func creates(ops []backend.Op, path string) bool {
	return slices.ContainsFunc(ops, func(o backend.Op) bool { return o.Kind == backend.OpCreate && o.Path == path })
}

// base returns the last segment of a path.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// parent returns the path of the parent directory of a node.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
