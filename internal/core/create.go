package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// Spec describes a node to create: a sequential ephemeral child of dir, with a GUID of
// its own in the name.
type Spec struct {
	kinds.RecipeDir
	Kind   string // the part of the name before the sequence number, such as "lock-"
	Prefix string // the path of the node without its number
	Data   []byte
	Made   bool     // an earlier attempt with this prefix may have created it: look first
	Left   *CleanUp // of a creation that failed: it removes the nodes that the creation may have left
	// Counted: clients count the node as long as it exists, whether or not its call still
	// waits. If the session is lost, the client removes the node over the next session.
	Counted bool
	// Check is a condition of the creation, unless its Kind is zero. If the condition
	// does not hold, the node is created without it, and Check is cleared. (If the
	// siblings of the created node are not known, Check says nothing.)
	Check backend.Op
}

// NewSpec returns the description of a node in g, with a new GUID.
func NewSpec(c *Client, g kinds.RecipeDir, kind string, data []byte) Spec {
	var buf [128]byte
	b := append(buf[:0], g.Dir...)
	b = append(b, '/')
	b = append(b, layout.GUIDPrefix...)
	b = c.appendGUID(b, g.Dir)
	b = append(b, '-')
	b = append(b, kind...)
	return Spec{RecipeDir: g, Kind: kind, Prefix: string(b), Data: data}
}

// Create creates the node of sp exactly once, or none that lasts: when it returns an
// error, a node that may have been created is removed in the background, or goes with
// its session (see Spec.Counted).
//
// After a creation with an unknown outcome, Create looks for the GUID, after a Sync,
// since the server may lag (ZooKeeper's recipe guide; see Curator-45 and -79 for the
// effects of not looking).
func (s *Session) Create(ctx context.Context, sp *Spec) (Node, error) {
	pause := NewPauses(s.c)
	for {
		if sp.Made {
			n, found, err := s.adopt(ctx, sp)
			if err != nil {
				s.removeAttempt(sp)
				return Node{}, err
			}
			s.resolved(ctx, sp.Prefix, found)
			sp.Made = false
			if found {
				// The Stat that shows whether the directory is the known one was lost.
				if f, ok := s.c.kinds.Known(sp.RecipeDir); !ok || f.Mark != nil {
					if _, err := s.examineAnew(ctx, sp.RecipeDir, n.Path, 0); err != nil {
						s.removeCreated(sp, n.Path)
						return Node{}, err
					}
				}
				return n, nil
			}
		}
		n, err := s.createOnce(ctx, sp)
		switch {
		case err == nil:
			return n, nil
		case backend.IsUncertain(err):
			sp.Made = true
			if ctx.Err() != nil || errs.IsOver(err) {
				s.removeAttempt(sp)
				return Node{}, err
			}
			if pause.Count() == 3 {
				s.c.log.Warn("coord: no reply to several attempts to create a node, retrying", "path", sp.Prefix, "error", err)
			}
			pause.Wait(ctx.Done(), s.b.Done())
		case errs.IsNotFound(err):
			// The directory never existed, or was a container and was reaped, or was
			// replaced at the end of its numbers. Another kind of recipe can have been
			// created in its place.
			s.c.kinds.Forget(sp.Dir)
			if err := s.MakeDir(ctx, sp.RecipeDir); err != nil {
				return Node{}, err
			}
		default:
			return Node{}, err
		}
	}
}

// resolved reports that the unknown outcome of a request was determined.
func (s *Session) resolved(ctx context.Context, path string, applied bool) {
	s.c.log.Warn("coord: the reply to a commit was lost, its outcome was determined by reading", "path", path, "applied", applied)
	Emit(ctx, s.c, trace.OutcomeResolved{Subject: trace.Subject{Node: path}, Applied: applied})
}

// createOnce sends one request to create the node.
//
// If the directory carries the mark of the recipe, the same commit carries the mark (backend.Carry).
// Then the reply of every service has the czxid of the new node and the number of its siblings, so an
// uncontended acquisition costs one round trip. If the directory has foreign data, or the service denies
// that operation, the caller reads what the reply lacks. See package kinds.
func (s *Session) createOnce(ctx context.Context, sp *Spec) (Node, error) {
	op := backend.Create(sp.Prefix, sp.Data, backend.EphemeralSequential)
	f, err := s.DirState(ctx, sp.RecipeDir)
	if err != nil {
		return Node{}, err
	}
	if f.Mark != nil {
		ops := [3]backend.Op{op, f.Write(sp.Dir), sp.Check}
		n := len(ops)
		if sp.Check.Kind == 0 {
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
		case backend.IsUncertain(err) || !errors.As(err, &e):
			return Node{}, err
		case e.Index == 2:
			sp.Check = backend.Op{}
			return s.createOnce(ctx, sp)
		case e.Index == 1 && errors.Is(err, backend.ErrBadVersion):
			s.c.kinds.Forget(sp.Dir) // another client wrote a mark, or data, first
			if f.Version == backend.AnyVersion {
				s.overwrite(ctx, sp.RecipeDir, f)
			}
			return s.createOnce(ctx, sp)
		case e.Index != 1 || !errors.Is(err, backend.ErrDenied):
			return Node{}, err
		}
		s.c.kinds.LeaveData(s.nth, sp.RecipeDir)
	}
	res, err := s.b.Commit(ctx, op)
	if err != nil {
		return Node{}, err
	}
	return s.made(ctx, sp, res[0], nil)
}

// made returns the node that a commit created. res is the result of the creation, and dir the directory's
// Stat, or nil if the commit did not carry the mark.
func (s *Session) made(ctx context.Context, sp *Spec, res backend.Result, dir *backend.Stat) (Node, error) {
	path, siblings := res.Path, res.Siblings
	seq, ok := layout.ParseSeq(nodepath.Base(path), sp.Kind)
	if !ok {
		// This is no sequence number.
		s.RemoveLater(path)
		return Node{}, &backend.Error{Op: "create", Path: path, Err: backend.ErrUnsupported}
	}
	if dir != nil {
		if now, anew := s.wrote(sp.RecipeDir, seq, *dir); anew {
			listed, err := s.examineAnew(ctx, sp.RecipeDir, path, dir.Czxid)
			if err != nil {
				s.removeCreated(sp, path)
				return Node{}, err
			}
			s.c.kinds.Confirm(s.nth, sp.RecipeDir, now)
			if !listed {
				// The node was deleted meanwhile, or the listing was denied, so the number is
				// no reason to count the node as alone.
				siblings = 0
			}
		}
	}
	return Node{Path: path, Seq: seq, Czxid: res.Czxid, Siblings: siblings}, nil
}

// adopt finds the node that an earlier attempt with the prefix of sp may have created
// in this session. There can be two, if a first attempt was not found and was applied
// later: adopt keeps the lowest.
func (s *Session) adopt(ctx context.Context, sp *Spec) (Node, bool, error) {
	paths, err := s.find(ctx, []Spec{*sp})
	if err != nil {
		return Node{}, false, err
	}
	var kept Node
	found := false
	for _, p := range paths {
		stat, err := s.b.Exists(ctx, p, nil)
		if errs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return Node{}, false, err
		}
		if stat.EphemeralOwner != s.b.ID() {
			continue // another session created it, and it goes with that session (Curator-498)
		}
		seq, _ := layout.ParseSeq(nodepath.Base(p), sp.Kind)
		n := Node{Path: p, Seq: seq, Czxid: stat.Czxid}
		switch {
		case !found:
			kept, found = n, true
		case n.Seq < kept.Seq:
			s.RemoveLater(kept.Path)
			kept = n
		default:
			s.RemoveLater(p)
		}
	}
	return kept, found, nil
}

// find lists the directory of specs, which is the same for all of them, for nodes with their prefixes.
func (s *Session) find(ctx context.Context, specs []Spec) ([]string, error) {
	dir := specs[0].Dir
	names, err := s.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		if slices.ContainsFunc(specs, func(sp Spec) bool { return sp.names(name) }) {
			paths = append(paths, dir+"/"+name)
		}
	}
	return paths, nil
}

// names reports whether a node of this name was created for sp.
func (sp *Spec) names(name string) bool {
	if !strings.HasPrefix(name, nodepath.Base(sp.Prefix)) {
		return false
	}
	_, ok := layout.ParseSeq(name, sp.Kind)
	return ok
}

// removeCreated removes the node of sp at path, which Create does not return, see RemoveAndWait.
func (s *Session) removeCreated(sp *Spec, path string) {
	if sp.Counted {
		s.removeAttempt(sp)
		return
	}
	sp.Left = s.RemoveAndWait(path)
}

// removeAttempt removes the nodes that attempts to create sp may have made, and waits for that,
// see CleanUp.Wait.
func (s *Session) removeAttempt(sp *Spec) {
	sp.Left = s.RemoveAttemptsLater(*sp)
	sp.Left.Wait(s, sp.Dir)
}

// RemoveAttemptsLater removes in the background the nodes that may have been created for specs, all in
// one directory. It looks at least twice, and until it finds no node. If the session is lost, it
// removes counted nodes over the next session: the service may not know of the loss yet.
func (s *Session) RemoveAttemptsLater(specs ...Spec) *CleanUp {
	if s.c.IsClosing() {
		return nil // it goes with the session
	}
	prefix := specs[0].Prefix
	return s.c.GoCleanUp(func(ctx context.Context, u *CleanUp) {
		ok := true
		for looks, found := 0, true; ok && (looks < 2 || found); looks++ {
			ok = s.Retry(ctx, u, "remove", prefix, func(ctx context.Context) error {
				paths, err := s.find(ctx, specs)
				if err != nil {
					return err
				}
				found = len(paths) > 0
				for _, p := range paths {
					if err := s.Remove(ctx, p); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if ok || !specs[0].Counted {
			return
		}
		s.c.OverSessions(ctx, func(next *Session) {
			next.Retry(ctx, u, "remove", prefix, func(ctx context.Context) error {
				paths, err := next.find(ctx, specs)
				for _, p := range paths {
					err = errors.Join(err, next.RemoveOf(ctx, s.b.ID(), p))
				}
				return err
			})
		})
	}).MadeFor(prefix)
}

// RemoveOf removes the node at path if the session with the ID owner created it. It spares a later node of
// the same name, since a call that continues on another session keeps its GUID. The caller has sent a Sync
// before.
func (s *Session) RemoveOf(ctx context.Context, owner int64, path string) error {
	stat, err := s.b.Exists(ctx, path, nil)
	if errs.IsNotFound(err) || err == nil && stat.EphemeralOwner != owner {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Remove(ctx, path)
}

// MakeDir creates the directory of a recipe, with its mark, and its missing parents. It
// is no error if the directory exists.
func (s *Session) MakeDir(ctx context.Context, g kinds.RecipeDir) error {
	above := func(dir string) error { return s.Ensure(ctx, dir) }
	if whole, ok := g.Whole(); ok {
		if err := s.claimKindAbove(ctx, g.Dir, whole); err != nil {
			return err
		}
		above = func(dir string) error { return s.MakePart(ctx, dir, whole) }
	}
	mark := g.Recipe.Mark()
	made, err := s.createDir(ctx, backend.Create(g.Dir, mark, backend.Container), above)
	if made {
		s.SetState(g.Dir, kinds.DirState{Kind: g.Recipe, Mark: mark, Version: backend.AnyVersion})
	}
	return s.NotSent(ctx, err)
}

// MakePart creates a directory, without a mark, of the recipe at g, and its missing
// parents. The directory has the permissions of the recipe's other nodes.
func (s *Session) MakePart(ctx context.Context, dir string, g kinds.RecipeDir) error {
	if dir == g.Dir {
		return s.ClaimKindAnew(ctx, g)
	}
	if err := s.claimKindAbove(ctx, dir, g); err != nil {
		return err
	}
	_, err := s.createDir(ctx, backend.Create(dir, nil, backend.Container), func(dir string) error { return s.MakePart(ctx, dir, g) })
	return s.NotSent(ctx, err)
}

// Ensure creates a directory above recipes, and its missing parents. The directory
// belongs to no recipe, so clients with other credentials may create nodes in it. With its mark
// (layout.KindDirectory), no Value, Counter or Barrier is set there.
func (s *Session) Ensure(ctx context.Context, dir string) error {
	op := backend.Create(dir, layout.KindDirectory.Mark(), backend.Container)
	op.Shared = true
	_, err := s.createDir(ctx, op, func(dir string) error { return s.Ensure(ctx, dir) })
	return s.NotSent(ctx, err)
}

// createDir creates a directory. If the service has containers, the directory is a container, which the
// service removes when it is unused. above creates the parent if that is missing. createDir reports
// false if the directory existed, or may have existed.
func (s *Session) createDir(ctx context.Context, op backend.Op, above func(dir string) error) (made bool, err error) {
	if !s.b.Features().Has(backend.Containers) {
		op.Mode = backend.Persistent
	}
	made, err = s.MakeNode(ctx, op, above)
	if errors.Is(err, backend.ErrUnsupported) && op.Mode == backend.Container {
		op.Mode = backend.Persistent
		made, err = s.MakeNode(ctx, op, above)
	}
	return made, err
}

// MakeNode creates a node that may exist already. above creates its missing parent. It
// reports false if the node existed, or may have existed.
func (s *Session) MakeNode(ctx context.Context, op backend.Op, above func(dir string) error) (made bool, err error) {
	pause := NewPauses(s.c)
	for {
		err := s.CommitAgain(ctx, op)
		switch {
		case err == nil:
			return true, nil
		case errs.Answers(err, backend.ErrExists):
			return false, nil
		case !errs.IsNotFound(err):
			return false, s.BelowEphemeral(err, op.Path)
		}
		i := strings.LastIndexByte(op.Path, '/')
		if i <= 0 {
			return false, err
		}
		if err := above(op.Path[:i]); err != nil {
			return false, err
		}
		pause.Wait(ctx.Done(), s.b.Done())
	}
}

// BelowEphemeral returns the error of a creation at path. If the parent is an ephemeral node, such
// as an ephemeral Barrier, the error matches ErrKind beside ErrNoChildren: the path above is used as
// something that cannot have nodes below it.
func (s *Session) BelowEphemeral(err error, path string) error {
	if !errs.Answers(err, backend.ErrNoChildren) {
		return err
	}
	return fmt.Errorf("%w: %w", s.c.KindError(nodepath.Parent(path), layout.KindDirectory, "ephemeral node"), err)
}

// Node is a sequential ephemeral node of this client.
type Node struct {
	Path     string
	Seq      int64
	Czxid    int64 // 0: not known yet
	Siblings int32 // number of children of the directory right after the creation, own included; 0: not known
}

// NewGUID returns 122 random bits as a UUID of version 8 (RFC 9562: custom format).
// Curator's are of version 4, so a name identifies its implementation. A GUID must be
// unique, not secret. what is the purpose, see Client.Random.
func (c *Client) NewGUID(what string) string {
	var b [layout.GUIDLen]byte
	return string(c.appendGUID(b[:0], what))
}

func (c *Client) appendGUID(b []byte, what string) []byte {
	const hex = "0123456789abcdef"
	for i := range 2 {
		v := c.Random(what)
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
