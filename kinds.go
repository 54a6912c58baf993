package coord

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
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
// which it collects with its data. The pin comes with the commit that sets it, and goes with
// the one that makes the node a directory again; a write at any version checks it. So nothing
// that was acknowledged stands in a container without a child.
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

// recipeDir is a path that a recipe uses.
type recipeDir struct {
	dir    string
	recipe layout.RecipeKind

	// If dir belongs to a recipe further up: its path, and its kind.
	top   string
	whole layout.RecipeKind
}

// part returns the recipe directory of a directory of the recipe at g. If g is zero, the
// directory is a recipe of its own.
func (g recipeDir) part(dir string, recipe layout.RecipeKind) recipeDir {
	return recipeDir{dir: dir, recipe: recipe, top: g.dir, whole: g.recipe}
}

// dirState is a client's knowledge of a recipe directory.
type dirState struct {
	kind    layout.RecipeKind
	mark    []byte // the data that a creation may write; nil: none
	version int32  // the version for that write: AnyVersion if the directory carries the mark
	czxid   int64  // 0: not known
	foreign bool   // the write overwrites foreign data

	// Of a Value, a Counter or a Barrier.
	directory bool // nothing is set: the node is a directory, see layout.IsDirectory
	pin       pinState
	plain     bool // nothing shows that the library has made the node as a directory

	// drift is the number of writes of the directory less the number of creations in
	// it; a creation raises both. It is as of the commit zxid.
	drift int64
	zxid  int64
}

// pinState says whether a Value, a Counter or a Barrier has a pin, see layout.Pin.
type pinState int8

const (
	noPin     pinState = iota // the node was created by a recipe of one node, so it is persistent
	pinNeeded                 // the node can be a container: who writes it creates a pin in the same commit
	pinned                    // there is a pin, and a write checks it
)

// pinOps returns the operations beside a write of the node at path.
func (f *dirState) pinOps(path string) []backend.Op {
	switch f.pin {
	case pinNeeded:
		return []backend.Op{backend.Create(path+"/"+layout.Pin, nil, backend.Persistent)}
	case pinned:
		return []backend.Op{backend.Check(path+"/"+layout.Pin, backend.AnyVersion)}
	}
	return nil
}

// atPin reports whether a commit failed because of the pin of the node at path.
func atPin(err error, path string) bool {
	var e *backend.Error
	return errors.As(err, &e) && e.Path == path+"/"+layout.Pin
}

// write returns the operation that ensures, beside a creation in dir, that it carries the
// mark.
func (f *dirState) write(dir string) backend.Op {
	if f.version == backend.AnyVersion {
		return backend.Carry(dir, f.mark)
	}
	return backend.SetData(dir, f.mark, f.version)
}

// overwrite prepares the next creation in a directory in use whose mark was replaced by foreign data, if the service has refused
// the Carry for that. A service that writes for a Carry overwrites the data; so does the next creation
// here, at the version that overwrite reads. Another mark, or another directory, is examined instead.
func (s *session) overwrite(ctx context.Context, g recipeDir, f dirState) {
	data, stat, err := s.b.Get(ctx, g.dir, nil)
	if err != nil {
		return // the next look at the directory reports it
	}
	if _, marked := layout.ParseMark(data); marked || f.czxid == 0 || stat.Czxid != f.czxid || stat.EphemeralOwner != 0 {
		return
	}
	f.version, f.zxid, f.foreign = stat.Version, stat.AsOf, true
	s.c.setState(g.dir, f)
}

// dirState returns the knowledge of g. If there is none, it reads the node. Its error is
// a KindError if another kind is there, or ErrNotFound if there is no node.
func (s *session) dirState(ctx context.Context, g recipeDir) (dirState, error) {
	if f, ok := s.c.knownState(g); ok {
		return f, nil
	}
	data, stat, err := s.b.Get(ctx, g.dir, nil)
	if answers(err, backend.ErrDenied) {
		if g.leaf() {
			return s.stateUnread(ctx, g)
		}
		f := dirState{kind: g.recipe}
		s.setState(g.dir, f)
		return f, nil
	}
	if err != nil {
		return dirState{}, err
	}
	return s.examine(ctx, g, data, stat)
}

// stateUnread is examine for a Value that the client may write and not read. What can be a directory
// counts as one: it is written together with a pin, or not at all. It is not remembered, since a
// node in its place could not be examined.
func (s *session) stateUnread(ctx context.Context, g recipeDir) (dirState, error) {
	stat, err := s.b.Exists(ctx, g.dir, nil)
	if err != nil {
		return dirState{}, err
	}
	f := dirState{kind: g.recipe, czxid: stat.Czxid, version: stat.Version}
	if s.b.Features().Has(backend.Containers) && (usedAsDir(stat) || layout.IsDirectory(nil, stat) && stat.DataLength == 0) {
		f.directory, f.pin = true, pinNeeded
	}
	return f, nil
}

// leaf reports whether the recipe at g is one node with data of the user.
func (g recipeDir) leaf() bool { return g.recipe == layout.KindValue || g.recipe == layout.KindCounter }

// usedAsDir reports whether a node can be a container with data: it is one, or has had a child. A
// node that was created as a Value has had none. Nor has a container before its first child, which its
// maker creates next: if a client that remembers a Value there writes into it in between, and dies before
// it makes the pin, the node is taken for one that was created as a Value.
func usedAsDir(stat backend.Stat) bool {
	return stat.Container || stat.Cversion != 0 || stat.NumChildren > 0
}

// examine decides whether the node read at g is a place for its kind.
func (s *session) examine(ctx context.Context, g recipeDir, data []byte, stat backend.Stat) (dirState, error) {
	f := dirState{
		kind: g.recipe, czxid: stat.Czxid, version: stat.Version, zxid: stat.AsOf,
		// Cversion is twice the creations, less the children. Without it the drift is too
		// high, and foreign writes are not noticed.
		drift: int64(stat.Version) - (int64(stat.Cversion)+int64(stat.NumChildren))/2,
	}
	refuse := func(found layout.RecipeKind) (dirState, error) {
		s.c.forgetState(g.dir)
		return dirState{}, &KindError{Path: g.dir, Want: string(g.recipe), Found: string(found)}
	}
	leaf := g.leaf()
	f.directory = layout.IsDirectory(data, stat)
	found, marked := layout.ParseMark(data)
	if marked && !(f.directory && (leaf || found == layout.KindDirectory)) {
		if !g.recipe.Admits(found) {
			return refuse(found)
		}
		if found == g.recipe {
			f.mark, f.version = data, backend.AnyVersion
		}
		s.setState(g.dir, f)
		return f, nil
	}
	var names []string
	if stat.NumChildren > 0 {
		var err error
		names, _, err = s.b.Children(ctx, g.dir, nil)
		if err != nil && !answers(err, backend.ErrDenied) {
			return dirState{}, err
		}
		found, err := s.otherKind(ctx, g, names)
		if err != nil {
			return dirState{}, err
		}
		if found != "" {
			return refuse(found)
		}
	}
	hasPin := slices.Contains(names, layout.Pin)
	fresh := stat.Cversion == 0 && stat.NumChildren == 0
	if len(data) > 0 && !leaf && !f.directory && !layout.IsAddress(data) && (fresh || hasPin || g.recipe == layout.KindBarrier) {
		if _, err := parseCount(data); err == nil {
			return refuse(layout.KindCounter)
		}
		return refuse(layout.KindValue)
	}
	if layout.IsEmptyValue(stat) && !leaf {
		return refuse(layout.KindValue)
	}
	switch {
	case !leaf && (f.directory || len(data) == 0 && stat.EphemeralOwner == 0):
		f.mark = g.recipe.Mark()
	case leaf && !f.directory:
		f.version = backend.AnyVersion // no other recipe writes its mark there
	}
	switch {
	case hasPin:
		f.pin = pinned
	case s.b.Features().Has(backend.Containers) && (f.directory || usedAsDir(stat)):
		// A value that was written over an unpinned directory, by an earlier version, say, has had
		// children. One that was created as a value does not need the pin.
		f.pin = pinNeeded
	}
	f.plain = !marked && !stat.Container && (fresh || !f.directory)
	s.setState(g.dir, f)
	return f, nil
}

// otherKind returns the kind of another recipe that has nodes at g, or "". names are the
// children of g. A recipe of several nodes is recognized by its parts even if some of
// them do not exist.
func (s *session) otherKind(ctx context.Context, g recipeDir, names []string) (layout.RecipeKind, error) {
	if found := g.recipe.Among(names); found != "" {
		return found, nil
	}
	return s.otherKindInParts(ctx, g, names)
}

// otherKindInParts is among for the nodes in the parts of recipes of several nodes. It costs no
// request unless the name of such a part is among names.
func (s *session) otherKindInParts(ctx context.Context, g recipeDir, names []string) (layout.RecipeKind, error) {
	for _, part := range g.recipe.Parts(names) {
		below, _, err := s.b.Children(ctx, g.dir+"/"+part.Name, nil)
		if err != nil && !isNotFound(err) && !answers(err, backend.ErrDenied) {
			return "", err
		}
		if found := part.Kind(below); found != "" {
			return found, nil
		}
	}
	return "", nil
}

// confirmKind returns a KindError if a recipe of several nodes has the path g, at which the
// node at path was created. The client has found the mark of its own kind there: another
// client wrote it over that of the other kind, as described above, and has not removed it
// yet, or has died. So it does that too. names are the children of g.
func (s *session) confirmKind(ctx context.Context, g recipeDir, path string, names []string) error {
	found, err := s.otherKindInParts(ctx, g, names)
	if found != "" {
		_, err = s.examineAnew(ctx, g, path, 0)
	}
	return err
}

// claimKind ensures, at the first use, that g is of its kind and carries its mark, for
// recipes that create no sequential nodes there.
func (s *session) claimKind(ctx context.Context, g recipeDir) error {
	for {
		f, err := s.dirState(ctx, g)
		switch {
		case isNotFound(err):
			if err := s.makeDir(ctx, g); err != nil {
				return err
			}
			continue
		case err != nil || f.mark == nil || f.version == backend.AnyVersion:
			return err
		}
		_, err = s.b.Commit(ctx, backend.SetData(g.dir, f.mark, f.version))
		switch {
		case err == nil:
			f.version = backend.AnyVersion
			s.setState(g.dir, f)
			return nil
		case answers(err, backend.ErrDenied):
			s.c.leaveData(g)
			return nil
		case mayRepeat(ctx, err), isNotFound(err), errors.Is(err, backend.ErrBadVersion):
			s.c.forgetState(g.dir)
		default:
			return s.notSent(ctx, err)
		}
	}
}

// claimKindAnew is claimKind after g, or a part of the recipe in it, was found to be missing.
func (s *session) claimKindAnew(ctx context.Context, g recipeDir) error {
	s.c.forgetState(g.dir)
	return s.claimKind(ctx, g)
}

// claimKindAbove is claimKindAnew before the client makes part, a directory of the recipe at
// g. The path may have been deleted and created again by another recipe since the
// client's last look. A part that is further down needs no look: its parent is a part of
// this recipe too, and exists.
func (s *session) claimKindAbove(ctx context.Context, part string, g recipeDir) error {
	if parent(part) != g.dir {
		return nil
	}
	return s.claimKindAnew(ctx, g)
}

// checkKind is claimKind for calls that create nothing: a missing node is no error.
func (s *session) checkKind(ctx context.Context, g recipeDir) error {
	_, err := s.dirState(ctx, g)
	if isNotFound(err) {
		return nil
	}
	return err
}

// knownState returns the client's knowledge of g. It ignores knowledge of another kind
// there, since the directory can have been replaced.
func (c *Client) knownState(g recipeDir) (dirState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.dirs[g.dir]
	return f, ok && f.kind == g.recipe
}

func (c *Client) setState(dir string, f dirState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	makeRoom(c.dirs)
	c.dirs[dir] = f
}

// setState is learn with what a session has found. After the session it is of no use: the service can
// have been restored from a backup, and its numbers be those of another history.
func (s *session) setState(dir string, f dirState) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.current.Load() == s {
		makeRoom(s.c.dirs)
		s.c.dirs[dir] = f
	}
}

// beginSession makes s the session of the client, and forgets what earlier sessions have found.
func (c *Client) beginSession(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.dirs)
	c.current.Store(s)
}

func (c *Client) forgetState(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.dirs, dir)
}

// leaveData records that the data of g must not be written.
func (c *Client) leaveData(g recipeDir) {
	f, _ := c.knownState(g)
	c.setState(g.dir, dirState{kind: g.recipe, czxid: f.czxid})
}

// wrote records the Stat of a write of the mark together with the creation of the node
// with number seq, and detects an earlier foreign write. It reports true if the
// directory must be examined: the known one was deleted and created again, so the mark
// may have overwritten that of another kind, or the client has dropped its knowledge
// meanwhile. It records nothing then; confirm does after the examination, unless
// now is zero.
func (s *session) wrote(g recipeDir, seq int64, dir backend.Stat) (now dirState, anew bool) {
	c := s.c
	now = dirState{
		kind: g.recipe, version: backend.AnyVersion, czxid: dir.Czxid,
		drift: int64(dir.Version) - seq - 1, zxid: dir.Mzxid,
	}
	c.mu.Lock()
	was, ok := c.dirs[g.dir]
	switch {
	case !ok || was.kind != now.kind || c.current.Load() != s:
		c.mu.Unlock()
		// The path was refused, forgotten, or used as another kind before the reply arrived.
		// A call that has learned the directory since knows more than this reply.
		return dirState{}, true
	case was.zxid >= now.zxid || was.mark == nil:
		c.mu.Unlock()
		return now, false // a late reply
	}
	foreign := was.czxid == now.czxid && (now.drift > was.drift || was.foreign)
	if !foreign {
		now.mark = was.mark
	}
	// Of a directory that this client created, the czxid can be unknown. If the node is
	// alone in it, it has no nodes of another kind.
	if anew = was.czxid != now.czxid && (was.czxid != 0 || dir.NumChildren != 1); !anew {
		c.dirs[g.dir] = now
	}
	c.mu.Unlock()
	if foreign {
		c.log.Warn("coord: another program changed the data of a recipe's directory, restoring it once and ignoring later changes", "path", g.dir, "recipe", string(g.recipe))
	}
	return now, anew
}

// confirm records now, which wrote returned, after the examination of the directory.
func (s *session) confirm(g recipeDir, now dirState) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if was := c.dirs[g.dir]; c.current.Load() == s && was.kind == now.kind && was.mark != nil && was.zxid < now.zxid {
		c.dirs[g.dir] = now
	}
}

// examineAnew returns a KindError if nodes of another kind are at g, where a client
// that knew an earlier directory created the node at path and wrote a mark. czxid is
// that of the directory, or 0 if it is not known. If the call ends before that is
// decided, and the mark removed, the client goes on in the background, over the next
// sessions: the mark would keep the other kind out. listed reports whether the
// directory, as it was examined, still had the node at path.
func (s *session) examineAnew(ctx context.Context, g recipeDir, path string, czxid int64) (listed bool, err error) {
	found, listed, err := s.undoMark(ctx, g, path, czxid)
	switch {
	case err != nil:
		s.c.goCleanUp(func(ctx context.Context, u *cleanUp) {
			s.c.overSessions(ctx, func(s *session) {
				s.retry(ctx, u, "examine", g.dir, func(ctx context.Context) error {
					_, _, err := s.undoMark(ctx, g, path, czxid)
					return err
				})
			})
		}).note(g.dir)
		return false, err
	case found != "":
		return false, &KindError{Path: g.dir, Want: string(g.recipe), Found: string(found)}
	}
	return listed, nil
}

// undoMark returns the kind of nodes at g of another kind, or "". If there are any, it
// removes the node at path and writes the mark of a directory over that of this kind: then the
// other nodes identify the kind of the directory, and its next use writes the mark of
// that kind. Its commits are conditional, so they can be repeated. Without such nodes,
// listed reports whether the node at path is in the listing.
func (s *session) undoMark(ctx context.Context, g recipeDir, path string, czxid int64) (found layout.RecipeKind, listed bool, err error) {
	own := []backend.Op{backend.Delete(path, backend.AnyVersion)}
	pause := pauses{c: s.c}
	for {
		names, stat, err := s.b.Children(ctx, g.dir, nil)
		if czxid == 0 {
			czxid = stat.Czxid
		}
		if isNotFound(err) || answers(err, backend.ErrDenied) || err == nil && stat.Czxid != czxid {
			return found, false, nil
		}
		if err != nil {
			return "", false, err
		}
		if found, err = s.otherKind(ctx, g, names); err != nil {
			return "", false, err
		}
		if found == "" {
			return "", slices.Contains(names, base(path)), nil
		}
		data, stat, err := s.b.Get(ctx, g.dir, nil)
		if err != nil && !isNotFound(err) {
			return "", false, err
		}
		if kind, _ := layout.ParseMark(data); err != nil || stat.Czxid != czxid || kind != g.recipe {
			break // another client has written its mark, or replaced the directory
		}
		_, err = s.b.Commit(ctx, append(own, backend.SetData(g.dir, layout.KindDirectory.Mark(), stat.Version))...)
		switch {
		case err == nil:
		case isNotFound(err):
			own = nil // an attempt whose reply was lost has removed it, or another clean-up
			continue
		case answers(err, backend.ErrBadVersion):
			continue
		case mayRepeat(ctx, err):
			pause.wait(ctx.Done(), s.b.Done())
			continue
		case answers(err, backend.ErrDenied):
			s.c.log.Warn("coord: cannot remove this recipe's mark from the directory of another recipe", "path", g.dir, "recipe", string(g.recipe), "found", string(found), "error", err)
		default:
			return "", false, err
		}
		break
	}
	s.c.forgetState(g.dir)
	return found, false, nil
}

// KindError is the error for a path that another kind of recipe uses. It matches
// ErrKind. The call wrote nothing to the path; if a contender of another kind came
// first in a line, the contender of this call has removed its node.
//
// The directory of a recipe carries the name of its kind as data. If an outsider
// overwrites it while clients use the directory, the next creation of a node by one of
// them overwrites the outsider's data; that client logs this and then leaves the data
// alone. If a path was deleted, and created again as something else, a client that used
// it before writes to it once. If that client finds nodes of another recipe there, it
// undoes the write, and refuses.
type KindError struct {
	Path  string // absolute, the namespace included
	Want  string // the kind of the call, as inspect.Report names it
	Found string // the kind that uses the path; "counter" also for a Value that holds a whole number
}

// Error returns the reason without the path, which the wrapping error names.
func (e *KindError) Error() string {
	found := strconv.Quote(e.Found)
	if e.Found == string(layout.KindCounter) {
		found = `"counter", or as "value" of a whole number` // their nodes are alike
	}
	return ErrKind.Error() + ": in use as " + found + ", not as " + strconv.Quote(e.Want)
}

// Is reports whether target is ErrKind.
func (e *KindError) Is(target error) bool { return target == ErrKind }
