package core

import (
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// One path, one recipe.
//
// Every kind of recipe has a name. The directory that a recipe creates carries it as
// its data, the mark: "coord recipe: mutex". A client reads the node at a path at its
// first use, again when the directory has been missing, and again before it makes a
// missing part of its recipe there, such as the directory of the requests for permits.
// It refuses the path with a KindError, before it writes, if it finds
//
//   - the mark of another kind;
//   - the nodes of another kind: see layout.KindOfName for the names in one directory, and
//     layouts and parts there for the recipes of several nodes;
//   - data that is no mark in a node that never had a child: a Value or a Counter;
//   - no data in a node that never had a child and was written since its creation: a
//     Value of no bytes. No other recipe writes empty data; a Value that is created
//     empty is written twice.
//
// A directory above recipes carries the mark "coord recipe: directory": it is free for every
// recipe, and no Value, Counter or Barrier is set there. A Value, Counter or Barrier that is set in a
// directory has a pin, see layout.Pin, since ZooKeeper does not tell whether a node is a container,
// which it collects with its data. The commit that sets the recipe creates the pin, and it is deleted by
// the commit that makes the node a directory again; a write at any version checks it. So no
// acknowledged data is in a container without a child, which the service may collect. The comment of
// layout.UsedAsDir describes the one exception.
//
// Directories without a mark come from Curator, from kazoo and from versions of this
// library that wrote none. If such a directory has no data, the first creation of a
// node in it writes the mark at the version that was read, so if two kinds come at
// once, the second one fails and looks again. If it has data and had children before,
// it is used, and its data is left alone. Curator, kazoo and those versions ignore the
// data of a directory.
//
// The mark also keeps an uncontended acquisition at one round trip: the commit that
// creates the node says that the directory carries the mark, and every service then tells
// the number of siblings, see backend.Carry. It says so only of a node that was found to
// carry the mark. A service that writes nothing then refuses the commit if the node has
// other data, and the client looks again. ZooKeeper's backend writes the mark once more, at
// any version, since each contender raises the version. So data can be lost if something
// other than a recipe of this package writes it over the mark of a directory in use: the
// next creation of each client that has looked before replaces it. That client detects the
// loss: each creation raises the version of the directory by one and its number of
// creations by one, while a foreign write raises only the version. It logs the loss and does not write there any more. (A
// creation by a client of another implementation can hide such a write, since it raises
// only the number of creations.) Likewise a directory that is deleted, and created
// again as something else, is overwritten once by a client that knew it before. From
// the Stat that client learns that the directory is another one. It lists the
// directory, and if nodes of another kind are in it, it removes its node and its mark,
// and refuses. Until it has done so it does not count the directory as known, and
// whatever ends the call, it does so in the background. If there are no such nodes, as
// in a lock without holders, it has taken the path over; a Value that was created there
// is then refused at its next read.
//
// Exclusion does not depend on the mark. A contender that is not alone in the directory
// of a line lists it before it is granted, and withdraws if a contender of another kind
// came before it, or if a recipe of several nodes has nodes there. So of two kinds on one
// path only the first one is granted, also if the mark is missing, denied or overwritten.

// RecipeDir is a path that a recipe uses.
type RecipeDir struct {
	Dir    string
	Recipe layout.RecipeKind

	// If dir belongs to a recipe further up: its path, and its kind.
	top   string
	whole layout.RecipeKind
}

// NewRecipeDir returns the directory of a recipe that is no part of another one.
func NewRecipeDir(dir string, recipe layout.RecipeKind) RecipeDir {
	return RecipeDir{Dir: dir, Recipe: recipe}
}

// Part returns the recipe directory of a directory of the recipe at g. If g is zero, the
// directory is a recipe of its own.
func (g RecipeDir) Part(dir string, recipe layout.RecipeKind) RecipeDir {
	return RecipeDir{Dir: dir, Recipe: recipe, top: g.Dir, whole: g.Recipe}
}

// DirState is a client's knowledge of a recipe directory.
type DirState struct {
	Kind    layout.RecipeKind
	Mark    []byte // the data that a creation may write; nil: none
	Version int32  // the version for that write: AnyVersion if the directory carries the mark
	Czxid   int64  // 0: not known
	foreign bool   // the write overwrites foreign data

	// Of a Value, a Counter or a Barrier.
	Directory bool // nothing is set: the node is a directory, see layout.IsDirectory
	Pin       layout.PinState
	Plain     bool // nothing shows that the library has made the node as a directory

	// drift is the number of writes of the directory less the number of creations in
	// it; a creation raises both. It is as of the commit zxid.
	drift int64
	zxid  int64
}

// write returns the operation that ensures, beside a creation in dir, that it carries the
// mark.
func (f *DirState) write(dir string) backend.Op {
	if f.Version == backend.AnyVersion {
		return backend.Carry(dir, f.Mark)
	}
	return backend.SetData(dir, f.Mark, f.Version)
}

// overwrite prepares the next creation in a directory in use whose mark was replaced by foreign data, if the service has refused
// the Carry for that. A service that writes for a Carry overwrites the data; so does the next creation
// here, at the version that overwrite reads. Another mark, or another directory, is examined instead.
func (s *Session) overwrite(ctx context.Context, g RecipeDir, f DirState) {
	data, stat, err := s.b.Get(ctx, g.Dir, nil)
	if err != nil {
		return // the next look at the directory reports it
	}
	if _, marked := layout.ParseMark(data); marked || f.Czxid == 0 || stat.Czxid != f.Czxid || stat.EphemeralOwner != 0 {
		return
	}
	f.Version, f.zxid, f.foreign = stat.Version, stat.AsOf, true
	s.c.setState(g.Dir, f)
}

// DirState returns the knowledge of g. If there is none, it reads the node. Its error is
// a KindError if another kind is there, or ErrNotFound if there is no node.
func (s *Session) DirState(ctx context.Context, g RecipeDir) (DirState, error) {
	if f, ok := s.c.KnownState(g); ok {
		return f, nil
	}
	data, stat, err := s.b.Get(ctx, g.Dir, nil)
	if errs.Answers(err, backend.ErrDenied) {
		if g.leaf() {
			return s.stateUnread(ctx, g)
		}
		f := DirState{Kind: g.Recipe}
		s.SetState(g.Dir, f)
		return f, nil
	}
	if err != nil {
		return DirState{}, err
	}
	return s.Examine(ctx, g, data, stat)
}

// stateUnread is Examine for a Value that the client may write and not read. What can be a directory
// counts as one: it is written together with a pin, or not at all. It is not remembered, since a
// node in its place could not be examined.
func (s *Session) stateUnread(ctx context.Context, g RecipeDir) (DirState, error) {
	stat, err := s.b.Exists(ctx, g.Dir, nil)
	if err != nil {
		return DirState{}, err
	}
	f := DirState{Kind: g.Recipe, Czxid: stat.Czxid, Version: stat.Version}
	if s.b.Features().Has(backend.Containers) && (layout.UsedAsDir(stat) || layout.IsDirectory(nil, stat) && stat.DataLength == 0) {
		f.Directory, f.Pin = true, layout.PinNeeded
	}
	return f, nil
}

// leaf reports whether the recipe at g is one node with data of the user.
func (g RecipeDir) leaf() bool { return g.Recipe == layout.KindValue || g.Recipe == layout.KindCounter }

// Examine decides whether the node read at g is a place for its kind.
func (s *Session) Examine(ctx context.Context, g RecipeDir, data []byte, stat backend.Stat) (DirState, error) {
	f := DirState{
		Kind: g.Recipe, Czxid: stat.Czxid, Version: stat.Version, zxid: stat.AsOf,
		// Cversion is twice the creations, less the children. Without it the drift is too
		// high, and foreign writes are not noticed.
		drift: int64(stat.Version) - (int64(stat.Cversion)+int64(stat.NumChildren))/2,
	}
	refuse := func(found layout.RecipeKind) (DirState, error) {
		s.c.ForgetState(g.Dir)
		return DirState{}, s.c.KindError(g.Dir, g.Recipe, string(found))
	}
	leaf := g.leaf()
	f.Directory = layout.IsDirectory(data, stat)
	found, marked := layout.ParseMark(data)
	if marked && !(f.Directory && (leaf || found == layout.KindDirectory)) {
		if !g.Recipe.Admits(found) {
			return refuse(found)
		}
		if found == g.Recipe {
			f.Mark, f.Version = data, backend.AnyVersion
		}
		s.SetState(g.Dir, f)
		return f, nil
	}
	var names []string
	if stat.NumChildren > 0 {
		var err error
		names, _, err = s.b.Children(ctx, g.Dir, nil)
		if err != nil && !errs.Answers(err, backend.ErrDenied) {
			return DirState{}, err
		}
		found, err := s.OtherKind(ctx, g, names)
		if err != nil {
			return DirState{}, err
		}
		if found != "" {
			return refuse(found)
		}
	}
	hasPin := slices.Contains(names, layout.Pin)
	fresh := stat.Cversion == 0 && stat.NumChildren == 0
	if len(data) > 0 && !leaf && !f.Directory && !layout.IsAddress(data) && (fresh || hasPin || g.Recipe == layout.KindBarrier) {
		if _, ok := layout.ParseCount(data); ok {
			return refuse(layout.KindCounter)
		}
		return refuse(layout.KindValue)
	}
	if layout.IsEmptyValue(stat) && !leaf {
		return refuse(layout.KindValue)
	}
	switch {
	case !leaf && (f.Directory || len(data) == 0 && stat.EphemeralOwner == 0):
		f.Mark = g.Recipe.Mark()
	case leaf && !f.Directory:
		f.Version = backend.AnyVersion // no other recipe writes its mark there
	}
	switch {
	case hasPin:
		f.Pin = layout.Pinned
	case s.b.Features().Has(backend.Containers) && (f.Directory || layout.UsedAsDir(stat)):
		// A value that was written over an unpinned directory, by an earlier version, say, has had
		// children. One that was created as a value does not need the pin.
		f.Pin = layout.PinNeeded
	}
	f.Plain = !marked && !stat.Container && (fresh || !f.Directory)
	s.SetState(g.Dir, f)
	return f, nil
}

// OtherKind returns the kind of another recipe that has nodes at g, or "". names are the
// children of g. A recipe of several nodes is recognized by its parts even if some of
// them do not exist.
func (s *Session) OtherKind(ctx context.Context, g RecipeDir, names []string) (layout.RecipeKind, error) {
	if found := g.Recipe.Among(names); found != "" {
		return found, nil
	}
	return s.otherKindInParts(ctx, g, names)
}

// otherKindInParts is RecipeKind.Among for the nodes in the parts of recipes of several nodes. It costs no
// request unless the name of such a part is among names.
func (s *Session) otherKindInParts(ctx context.Context, g RecipeDir, names []string) (layout.RecipeKind, error) {
	for _, part := range g.Recipe.Parts(names) {
		below, _, err := s.b.Children(ctx, g.Dir+"/"+part.Name, nil)
		if err != nil && !errs.IsNotFound(err) && !errs.Answers(err, backend.ErrDenied) {
			return "", err
		}
		if found := part.Kind(below); found != "" {
			return found, nil
		}
	}
	return "", nil
}

// ConfirmKind returns a KindError if a recipe of several nodes has the path g, at which the
// node at path was created. The client has found the mark of its own kind there: another
// client wrote it over that of the other kind, as described above, and has not removed it
// yet, or has died. So it does that too. names are the children of g.
func (s *Session) ConfirmKind(ctx context.Context, g RecipeDir, path string, names []string) error {
	found, err := s.otherKindInParts(ctx, g, names)
	if found != "" {
		_, err = s.examineAnew(ctx, g, path, 0)
	}
	return err
}

// ClaimKind ensures, at the first use, that g is of its kind and carries its mark, for
// recipes that create no sequential nodes there.
func (s *Session) ClaimKind(ctx context.Context, g RecipeDir) error {
	for {
		f, err := s.DirState(ctx, g)
		switch {
		case errs.IsNotFound(err):
			if err := s.MakeDir(ctx, g); err != nil {
				return err
			}
			continue
		case err != nil || f.Mark == nil || f.Version == backend.AnyVersion:
			return err
		}
		_, err = s.b.Commit(ctx, backend.SetData(g.Dir, f.Mark, f.Version))
		switch {
		case err == nil:
			f.Version = backend.AnyVersion
			s.SetState(g.Dir, f)
			return nil
		case errs.Answers(err, backend.ErrDenied):
			s.c.leaveData(g)
			return nil
		case errs.MayRepeat(ctx, err), errs.IsNotFound(err), errors.Is(err, backend.ErrBadVersion):
			s.c.ForgetState(g.Dir)
		default:
			return s.NotSent(ctx, err)
		}
	}
}

// ClaimKindAnew is ClaimKind after g, or a part of the recipe in it, was found to be missing.
func (s *Session) ClaimKindAnew(ctx context.Context, g RecipeDir) error {
	s.c.ForgetState(g.Dir)
	return s.ClaimKind(ctx, g)
}

// claimKindAbove is claimKindAnew before the client makes part, a directory of the recipe at
// g. The path may have been deleted and created again by another recipe since the
// client's last look. A part that is further down needs no look: its parent is a part of
// this recipe too, and exists.
func (s *Session) claimKindAbove(ctx context.Context, part string, g RecipeDir) error {
	if nodepath.Parent(part) != g.Dir {
		return nil
	}
	return s.ClaimKindAnew(ctx, g)
}

// CheckKind is ClaimKind for calls that create nothing: a missing node is no error.
func (s *Session) CheckKind(ctx context.Context, g RecipeDir) error {
	_, err := s.DirState(ctx, g)
	if errs.IsNotFound(err) {
		return nil
	}
	return err
}

// KnownState returns the client's knowledge of g. It ignores knowledge of another kind
// there, since the directory can have been replaced.
func (c *Client) KnownState(g RecipeDir) (DirState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.dirs[g.Dir]
	return f, ok && f.Kind == g.Recipe
}

func (c *Client) setState(dir string, f DirState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	MakeRoom(c.dirs)
	c.dirs[dir] = f
}

// SetState is Client.setState with what a session has found. After the session it is of no use: the service can
// have been restored from a backup, and its numbers be those of another history.
func (s *Session) SetState(dir string, f DirState) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.current.Load() == s {
		MakeRoom(s.c.dirs)
		s.c.dirs[dir] = f
	}
}

// beginSession makes s the session of the client, and forgets what earlier sessions have found.
func (c *Client) beginSession(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.dirs)
	c.current.Store(s)
}

// ForgetState drops what the client knows of dir.
func (c *Client) ForgetState(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.dirs, dir)
}

// leaveData records that the data of g must not be written.
func (c *Client) leaveData(g RecipeDir) {
	f, _ := c.KnownState(g)
	c.setState(g.Dir, DirState{Kind: g.Recipe, Czxid: f.Czxid})
}

// wrote records the Stat of a write of the mark together with the creation of the node
// with number seq, and detects an earlier foreign write. It reports true if the
// directory must be examined: the known one was deleted and created again, so the mark
// may have overwritten that of another kind, or the client has dropped its knowledge
// meanwhile. It records nothing then; confirm does after the examination, unless
// now is zero.
func (s *Session) wrote(g RecipeDir, seq int64, dir backend.Stat) (now DirState, anew bool) {
	c := s.c
	now = DirState{
		Kind: g.Recipe, Version: backend.AnyVersion, Czxid: dir.Czxid,
		drift: int64(dir.Version) - seq - 1, zxid: dir.Mzxid,
	}
	c.mu.Lock()
	was, ok := c.dirs[g.Dir]
	switch {
	case !ok || was.Kind != now.Kind || c.current.Load() != s:
		c.mu.Unlock()
		// The path was refused, forgotten, or used as another kind before the reply arrived.
		// A call that has learned the directory since knows more than this reply.
		return DirState{}, true
	case was.zxid >= now.zxid || was.Mark == nil:
		c.mu.Unlock()
		return now, false // a late reply
	}
	foreign := was.Czxid == now.Czxid && (now.drift > was.drift || was.foreign)
	if !foreign {
		now.Mark = was.Mark
	}
	// Of a directory that this client created, the czxid can be unknown. If the node is
	// alone in it, it has no nodes of another kind.
	if anew = was.Czxid != now.Czxid && (was.Czxid != 0 || dir.NumChildren != 1); !anew {
		c.dirs[g.Dir] = now
	}
	c.mu.Unlock()
	if foreign {
		c.log.Warn("coord: another program changed the data of a recipe's directory, restoring it once and ignoring later changes", "path", g.Dir, "recipe", string(g.Recipe))
	}
	return now, anew
}

// confirm records now, which wrote returned, after the examination of the directory.
func (s *Session) confirm(g RecipeDir, now DirState) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if was := c.dirs[g.Dir]; c.current.Load() == s && was.Kind == now.Kind && was.Mark != nil && was.zxid < now.zxid {
		c.dirs[g.Dir] = now
	}
}

// examineAnew returns a KindError if nodes of another kind are at g, where a client
// that knew an earlier directory created the node at path and wrote a mark. czxid is
// that of the directory, or 0 if it is not known. If the call ends before that is
// decided, and the mark removed, the client goes on in the background, over the next
// sessions: the mark would keep the other kind out. listed reports whether the
// directory, as it was examined, still had the node at path.
func (s *Session) examineAnew(ctx context.Context, g RecipeDir, path string, czxid int64) (listed bool, err error) {
	found, listed, err := s.undoMark(ctx, g, path, czxid)
	switch {
	case err != nil:
		s.c.GoCleanUp(func(ctx context.Context, u *CleanUp) {
			s.c.OverSessions(ctx, func(s *Session) {
				s.Retry(ctx, u, "examine", g.Dir, func(ctx context.Context) error {
					_, _, err := s.undoMark(ctx, g, path, czxid)
					return err
				})
			})
		}).Note(g.Dir)
		return false, err
	case found != "":
		return false, s.c.KindError(g.Dir, g.Recipe, string(found))
	}
	return listed, nil
}

// undoMark returns the kind of nodes at g of another kind, or "". If there are any, it
// removes the node at path and writes the mark of a directory over that of this kind: then the
// other nodes identify the kind of the directory, and its next use writes the mark of
// that kind. Its commits are conditional, so they can be repeated. Without such nodes,
// listed reports whether the node at path is in the listing.
func (s *Session) undoMark(ctx context.Context, g RecipeDir, path string, czxid int64) (found layout.RecipeKind, listed bool, err error) {
	own := []backend.Op{backend.Delete(path, backend.AnyVersion)}
	pause := NewPauses(s.c)
	for {
		names, stat, err := s.b.Children(ctx, g.Dir, nil)
		if czxid == 0 {
			czxid = stat.Czxid
		}
		if errs.IsNotFound(err) || errs.Answers(err, backend.ErrDenied) || err == nil && stat.Czxid != czxid {
			return found, false, nil
		}
		if err != nil {
			return "", false, err
		}
		if found, err = s.OtherKind(ctx, g, names); err != nil {
			return "", false, err
		}
		if found == "" {
			return "", slices.Contains(names, nodepath.Base(path)), nil
		}
		data, stat, err := s.b.Get(ctx, g.Dir, nil)
		if err != nil && !errs.IsNotFound(err) {
			return "", false, err
		}
		if kind, _ := layout.ParseMark(data); err != nil || stat.Czxid != czxid || kind != g.Recipe {
			break // another client has written its mark, or replaced the directory
		}
		_, err = s.b.Commit(ctx, append(own, backend.SetData(g.Dir, layout.KindDirectory.Mark(), stat.Version))...)
		switch {
		case err == nil:
		case errs.IsNotFound(err):
			own = nil // an attempt whose reply was lost has removed it, or another clean-up
			continue
		case errs.Answers(err, backend.ErrBadVersion):
			continue
		case errs.MayRepeat(ctx, err):
			pause.Wait(ctx.Done(), s.b.Done())
			continue
		case errs.Answers(err, backend.ErrDenied):
			s.c.log.Warn("coord: cannot remove this recipe's mark from the directory of another recipe", "path", g.Dir, "recipe", string(g.Recipe), "found", string(found), "error", err)
		default:
			return "", false, err
		}
		break
	}
	s.c.ForgetState(g.Dir)
	return found, false, nil
}

// KindError returns the error for a path that another kind of recipe uses. It matches ErrKind.
func (c *Client) KindError(path string, want layout.RecipeKind, found string) error {
	return c.newKindError(path, string(want), found)
}
