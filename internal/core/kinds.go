package core

import (
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// overwrite prepares the next creation in a directory whose mark another program has replaced by foreign
// data, so that the service has refused the Carry of a creation. The next creation overwrites the data, at
// the version that overwrite reads; a service whose Carry writes the mark would have overwritten it too. If
// the directory has a mark, or is another one than the known one, overwrite does nothing, and the next
// creation examines the directory.
func (s *Session) overwrite(ctx context.Context, g kinds.RecipeDir, f kinds.DirState) {
	data, stat, err := s.b.Get(ctx, g.Dir, nil)
	if err != nil {
		return // the next read of the directory reports the error
	}
	if _, marked := layout.ParseMark(data); marked || f.Czxid == 0 || stat.Czxid != f.Czxid || stat.EphemeralOwner != 0 {
		return
	}
	s.c.kinds.Overwrite(s.nth, g, f, stat)
}

// DirState returns the state of g. If the client does not know it, DirState reads the node. The error is
// a KindError if another kind has the path, or ErrNotFound if there is no node.
func (s *Session) DirState(ctx context.Context, g kinds.RecipeDir) (kinds.DirState, error) {
	if f, ok := s.c.kinds.Known(g); ok {
		return f, nil
	}
	data, stat, err := s.b.Get(ctx, g.Dir, nil)
	if errs.Answers(err, backend.ErrDenied) {
		if g.Leaf() {
			return s.stateUnread(ctx, g)
		}
		f := kinds.DirState{Kind: g.Recipe}
		s.SetState(g.Dir, f)
		return f, nil
	}
	if err != nil {
		return kinds.DirState{}, err
	}
	return s.Examine(ctx, g, data, stat)
}

// stateUnread is Examine for a Value or Counter that the client may not read. A node that can be a directory
// counts as a directory: the client writes it together with a pin, or not at all. The state is not
// recorded, since the client could not examine another node that is created in its place.
func (s *Session) stateUnread(ctx context.Context, g kinds.RecipeDir) (kinds.DirState, error) {
	stat, err := s.b.Exists(ctx, g.Dir, nil)
	if err != nil {
		return kinds.DirState{}, err
	}
	f := kinds.DirState{Kind: g.Recipe, Czxid: stat.Czxid, Version: stat.Version}
	if s.b.Features().Has(backend.Containers) && (layout.UsedAsDir(stat) || layout.IsDirectory(nil, stat) && stat.DataLength == 0) {
		f.Directory, f.Pin = true, layout.PinNeeded
	}
	return f, nil
}

// Examine decides whether a recipe of the kind of g can use the node at g, which was read with data and
// stat. If so, it records the state and returns it; otherwise the error is a KindError.
func (s *Session) Examine(ctx context.Context, g kinds.RecipeDir, data []byte, stat backend.Stat) (kinds.DirState, error) {
	f := kinds.Found(g, stat)
	refuse := func(found layout.RecipeKind) (kinds.DirState, error) {
		s.c.kinds.Forget(g.Dir)
		return kinds.DirState{}, s.c.KindError(g.Dir, g.Recipe, string(found))
	}
	leaf := g.Leaf()
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
			return kinds.DirState{}, err
		}
		found, err := s.OtherKind(ctx, g, names)
		if err != nil {
			return kinds.DirState{}, err
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
		// A value that was written over an unpinned directory, for example by an earlier version, has had
		// children. A node that was created as a value does not need the pin.
		f.Pin = layout.PinNeeded
	}
	f.Plain = !marked && !stat.Container && (fresh || !f.Directory)
	s.SetState(g.Dir, f)
	return f, nil
}

// OtherKind returns the kind of another recipe that has nodes at g, or "". names are the
// children of g. A recipe of several nodes is recognized by its parts even if some of
// them do not exist.
func (s *Session) OtherKind(ctx context.Context, g kinds.RecipeDir, names []string) (layout.RecipeKind, error) {
	if found := g.Recipe.Among(names); found != "" {
		return found, nil
	}
	return s.otherKindInParts(ctx, g, names)
}

// otherKindInParts is RecipeKind.Among for the nodes in the parts of recipes of several nodes. It costs no
// request unless the name of such a part is among names.
func (s *Session) otherKindInParts(ctx context.Context, g kinds.RecipeDir, names []string) (layout.RecipeKind, error) {
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
// node at path was created. In this case another client wrote the mark of this kind over the mark of
// that recipe, as package kinds describes, and has not removed it yet, or has died. So ConfirmKind removes
// the mark and the node. names are the children of g.
func (s *Session) ConfirmKind(ctx context.Context, g kinds.RecipeDir, path string, names []string) error {
	found, err := s.otherKindInParts(ctx, g, names)
	if found != "" {
		_, err = s.examineAnew(ctx, g, path, 0)
	}
	return err
}

// ClaimKind ensures, at the first use, that g is of its kind and carries its mark, for
// recipes that create no sequential nodes there.
func (s *Session) ClaimKind(ctx context.Context, g kinds.RecipeDir) error {
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
			s.c.kinds.LeaveData(s.nth, g)
			return nil
		case errs.MayRepeat(ctx, err), errs.IsNotFound(err), errors.Is(err, backend.ErrBadVersion):
			s.c.kinds.Forget(g.Dir)
		default:
			return s.NotSent(ctx, err)
		}
	}
}

// ClaimKindAnew is ClaimKind after g, or a part of the recipe in it, was found to be missing.
func (s *Session) ClaimKindAnew(ctx context.Context, g kinds.RecipeDir) error {
	s.c.kinds.Forget(g.Dir)
	return s.ClaimKind(ctx, g)
}

// claimKindAbove is called before the client creates part, a directory of the recipe at g. If part is a
// child of g.Dir, it calls ClaimKindAnew: the path may have been deleted, and created again by another
// recipe, since the client's last look. A part further down needs no look: its parent is a part of this
// recipe too, and exists.
func (s *Session) claimKindAbove(ctx context.Context, part string, g kinds.RecipeDir) error {
	if nodepath.Parent(part) != g.Dir {
		return nil
	}
	return s.ClaimKindAnew(ctx, g)
}

// CheckKind is ClaimKind for calls that create nothing: a missing node is no error.
func (s *Session) CheckKind(ctx context.Context, g kinds.RecipeDir) error {
	_, err := s.DirState(ctx, g)
	if errs.IsNotFound(err) {
		return nil
	}
	return err
}

// SetState records the state of the directory that the session has found, unless the session is over.
func (s *Session) SetState(dir string, f kinds.DirState) { s.c.kinds.Set(s.nth, dir, f) }

// beginSession makes s the session of the client, and forgets the directories that earlier sessions have found.
func (c *Client) beginSession(s *Session) {
	c.kinds.Begin(s.nth)
	c.current.Store(s)
}

// Kinds returns the client's knowledge of recipe directories.
func (c *Client) Kinds() *kinds.Table { return &c.kinds }

// wrote is Table.Wrote for the session. It logs a foreign write.
func (s *Session) wrote(g kinds.RecipeDir, seq int64, dir backend.Stat) (now kinds.DirState, anew bool) {
	now, anew, foreign := s.c.kinds.Wrote(s.nth, g, seq, dir)
	if foreign {
		s.c.log.Warn("coord: another program changed the data of a recipe's directory, restoring it once and ignoring later changes", "path", g.Dir, "recipe", string(g.Recipe))
	}
	return now, anew
}

// examineAnew returns a KindError if nodes of another kind are at g, where a client
// that knew an earlier directory created the node at path and wrote a mark. czxid is the
// czxid of the directory, or 0 if it is not known. If the call ends before the directory is
// examined and a wrong mark removed, the client continues in the background, over the next
// sessions: the mark would keep the other kind out. listed reports whether the
// directory still had the node at path when it was examined.
func (s *Session) examineAnew(ctx context.Context, g kinds.RecipeDir, path string, czxid int64) (listed bool, err error) {
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

// undoMark looks for nodes of another kind at g, and returns that kind, or "". If it finds such nodes, it
// removes the node at path and writes the mark of a directory over the mark of this kind. From then on
// the nodes show the kind of the directory, and the next use of the other recipe writes its mark. The
// commits are conditional, so they can be repeated. If undoMark finds no such nodes, listed reports
// whether the listing has the node at path.
func (s *Session) undoMark(ctx context.Context, g kinds.RecipeDir, path string, czxid int64) (found layout.RecipeKind, listed bool, err error) {
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
	s.c.kinds.Forget(g.Dir)
	return found, false, nil
}

// KindError returns the error for a path that another kind of recipe uses. It matches ErrKind.
func (c *Client) KindError(path string, want layout.RecipeKind, found string) error {
	return c.newKindError(path, string(want), found)
}
