package coord

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// fits reports whether data can be written, in the largest commit that a write
// needs.
func (n *cell) fits(data []byte) error {
	if kind, ok := layout.ParseMark(data); ok {
		return fmt.Errorf("%w: it would look like the directory of a %s", ErrInvalid, kind)
	}
	err := n.c.rules().Limits().Refuse([]backend.Op{
		backend.Delete(n.path.full, 0),
		backend.Create(n.path.full, data, backend.Persistent),
		n.c.proof(),
	})
	return errors.Unwrap(err)
}

// set writes data, whatever the value is. At the first use by this client it examines the
// node first, because another recipe may use it. If the node was never written, set writes
// under the version that it has examined, because another recipe may write its mark there.
func (n *cell) set(ctx context.Context, s *session, data []byte) (content, error) {
	for {
		_, known := n.c.known(n.ground())
		f, err := s.footing(ctx, n.ground())
		if err == nil {
			version := int32(backend.AnyVersion)
			if !known && f.czxid != 0 {
				version = f.version
			}
			var results []backend.Result
			var zxid int64
			results, zxid, err = s.commitOnce(ctx, backend.SetData(n.path.full, data, version))
			if err == nil {
				return n.wasSet(ctx, s, f, results, zxid)
			}
		}
		missing := isNotFound(err)
		if missing || isUncertain(err) || answers(err, backend.ErrBadVersion) {
			n.c.unlearn(n.path.full) // it is missing, or another than the one that was examined
		}
		if !missing && !answers(err, backend.ErrBadVersion) {
			return content{}, err
		}
		if missing {
			if st, err := n.create(ctx, s, data); !answers(err, ErrConflict) {
				return st, err
			}
		}
		// This server's answer may be stale.
		if err := s.b.Sync(ctx, n.path.full); err != nil {
			return content{}, err
		}
	}
}

// wasSet returns the content after a write of set. f is what was found before the write.
// If the node was deleted and created again since then, and another recipe uses it, wasSet
// undoes the write and returns a KindError.
func (n *cell) wasSet(ctx context.Context, s *session, f footing, results []backend.Result, zxid int64) (content, error) {
	var stat backend.Stat
	if results != nil {
		stat = results[0].Stat
	} else {
		var err error
		stat, err = s.b.Exists(ctx, n.path.full, nil)
		if err != nil || stat.Mzxid != zxid {
			return content{created: -1, version: -1, changed: zxid}, nil
		}
	}
	x := content{created: stat.Czxid, version: stat.Version, changed: zxid}
	if f.czxid == 0 || f.czxid == stat.Czxid {
		return x, nil
	}
	n.c.unlearn(n.path.full) // the node was created again since it was examined
	err := n.takeBack(ctx, s, stat)
	if isUncertain(err) {
		// The write is undone even if the call ends before.
		s.c.goCleanUp(func(ctx context.Context, u *cleanUp) {
			s.c.overSessions(ctx, func(s *session) {
				s.retry(ctx, u, "examine", n.path.full, func(ctx context.Context) error {
					err := n.takeBack(ctx, s, stat)
					if isUncertain(err) {
						return err
					}
					return nil
				})
			})
		})
	}
	return x, err
}

// takeBack undoes a write that gave the node stat, if another recipe has nodes below it: it
// empties the node and returns a KindError. The other recipe writes its mark again at its
// next use of the node.
func (n *cell) takeBack(ctx context.Context, s *session, stat backend.Stat) error {
	names, now, err := s.b.Children(ctx, n.path.full, nil)
	if isNotFound(err) || answers(err, backend.ErrDenied) || err == nil && now.Czxid != stat.Czxid {
		return nil
	}
	if err != nil {
		return backend.Uncertain(err)
	}
	found, err := s.among(ctx, n.ground(), names)
	switch {
	case err != nil:
		return backend.Uncertain(err)
	case found == "":
		return nil
	}
	err = s.commitAgain(ctx, backend.SetData(n.path.full, nil, stat.Version))
	if err != nil && !isNotFound(err) && !answers(err, backend.ErrBadVersion) && !answers(err, backend.ErrDenied) {
		return backend.Uncertain(err)
	}
	return &KindError{Path: n.path.full, Want: string(n.recipe), Found: string(found)}
}

// creation returns the operations that make the node with data, and the resulting
// version. A node without bytes is written once more in the same commit: its
// version distinguishes it from a directory that no recipe has used yet, see
// examine.
func (n *cell) creation(data []byte) (ops []backend.Op, version int32) {
	ops = []backend.Op{backend.Create(n.path.full, data, backend.Persistent)}
	if len(data) == 0 {
		return append(ops, backend.SetData(n.path.full, nil, 0)), 1
	}
	return ops, 0
}

// create makes the node and its missing ancestors, or returns ErrConflict.
func (n *cell) create(ctx context.Context, s *session, data []byte) (content, error) {
	ops, version := n.creation(data)
	for {
		_, zxid, err := s.commitOnce(ctx, ops...)
		switch {
		case err == nil:
			n.c.learn(n.path.full, footing{kind: n.recipe, czxid: zxid})
			return content{created: zxid, version: version, changed: zxid}, nil
		case answers(err, backend.ErrExists):
			return content{}, fmt.Errorf("%w: the value exists already", ErrConflict)
		case !isNotFound(err):
			return content{}, err
		}
		dir := n.path.full[:strings.LastIndexByte(n.path.full, '/')]
		if dir == "" {
			return content{}, err // the root always exists
		}
		if err := s.ensure(ctx, dir); err != nil {
			return content{}, err
		}
	}
}

// replace writes data in place of old, which was read just before, or returns
// ErrConflict. With ErrConflict the content is not zero if the data was written all
// the same: to a node that was made since and has the same version.
func (n *cell) replace(ctx context.Context, s *session, old content, data []byte) (content, error) {
	path := n.path.full
	if old.created == 0 {
		return n.create(ctx, s, data)
	}
	switch {
	case old.version < 0:
		return content{}, errVersions // -1 would mean any version
	case old.version == math.MaxInt32:
		// There is no version after this one. A new node begins with its first
		// version.
		ops, version := n.creation(data)
		_, zxid, err := s.commitOnce(ctx, append([]backend.Op{backend.Delete(path, old.version)}, ops...)...)
		if err != nil {
			return content{}, conflict(err)
		}
		return content{created: zxid, version: version, changed: zxid}, nil
	}
	results, zxid, err := s.commitOnce(ctx, backend.SetData(path, data, old.version))
	if err != nil {
		return content{}, conflict(err)
	}
	st := content{created: old.created, version: old.version + 1, changed: zxid}
	if results != nil {
		st.created = results[0].Stat.Czxid
	} else if stat, err := s.b.Exists(ctx, path, nil); err == nil && stat.Czxid < zxid {
		st.created = stat.Czxid // it has existed since before this commit
	}
	if st.created != old.created {
		return st, fmt.Errorf("%w: deleted and made again just before it was written", ErrConflict)
	}
	return st, nil
}

// conflict returns the error for a commit under a version.
func conflict(err error) error {
	switch {
	case answers(err, backend.ErrBadVersion):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case isNotFound(err):
		return errVanished
	}
	return err
}

// remove deletes the node if it is still old.
func (n *cell) remove(ctx context.Context, s *session, old content) error {
	err := n.expect(ctx, s, old)
	switch {
	case err != nil || old.created == 0:
		return err
	case old.version < 0:
		return errVersions
	}
	// Exactly once: a repetition could delete a later node of the same version.
	_, _, err = s.commitOnce(ctx, backend.Delete(n.path.full, old.version))
	return conflict(err)
}

// update replaces the content with the result of fn, exactly once.
//
// A conflict is not a failure of the service: another client has succeeded. The
// pauses spare the service the requests of clients that would only conflict again.
func (n *cell) update(ctx context.Context, fn func(old content) ([]byte, error)) (content, error) {
	var refusal error // of fn; it ends the update, whatever it matches
	pause := pauses{c: n.c}
	st, err := onSessionOnce(ctx, n.c, func(s *session) (content, error) {
		old, err := n.read(ctx, s)
		for err == nil {
			var data []byte
			data, refusal = fn(old)
			if refusal == nil {
				var st content
				st, err = n.replace(ctx, s, old, data)
				if !answers(err, ErrConflict) || st.created != 0 {
					return st, err
				}
				pause.wait(ctx.Done(), s.b.Done())
			}
			// This server may still show the state that fn has just seen.
			if err = s.b.Sync(ctx, n.path.full); err != nil {
				break
			}
			seen := old
			old, err = n.read(ctx, s)
			if refusal != nil && old.same(seen) {
				break
			}
		}
		return content{}, err
	})
	switch {
	case refusal == nil:
	case err == nil:
		err = refusal
	default:
		err = errors.Join(refusal, err)
	}
	return st, err
}

// cell is a node that any number of clients read and write.
type cell struct {
	c      *Client
	path   recipePath
	recipe layout.RecipeKind
}

func (n *cell) ground() ground { return ground{dir: n.path.full, recipe: n.recipe} }

// meet refuses content that belongs to another recipe. It costs no request unless
// the node has children, which are listed once.
func (n *cell) meet(ctx context.Context, s *session, data []byte, stat backend.Stat) error {
	if _, marked := layout.ParseMark(data); !marked {
		if f, ok := n.c.known(n.ground()); ok && f.czxid == stat.Czxid {
			return nil
		}
	}
	_, err := s.examine(ctx, n.ground(), data, stat)
	return err
}

// content is the content of a cell at one time. created is 0 if there was no node.
type content struct {
	data    []byte
	created int64 // czxid
	version int32
	changed int64 // mzxid
}

func (x content) same(y content) bool { return x.created == y.created && x.changed == y.changed }

// read reads the cell. A missing node is no error.
func (n *cell) read(ctx context.Context, s *session) (content, error) {
	data, stat, err := s.b.Get(ctx, n.path.full, nil)
	if err == nil {
		err = n.meet(ctx, s, data, stat)
	}
	if isNotFound(err) {
		return content{}, nil
	}
	if err != nil {
		return content{}, err
	}
	return content{data, stat.Czxid, stat.Version, stat.Mzxid}, nil
}

// look reads the cell with a watch that stays armed. If the node is missing, the
// watch is for its creation.
func (n *cell) look(ctx context.Context, g *vigil) (content, error) {
	var x content
	_, err := g.s.readOrAwait(ctx, g.ws, n.path.full, func(w *backend.Watch) error {
		data, stat, err := g.s.b.Get(ctx, n.path.full, w)
		if err == nil {
			err = n.meet(ctx, g.s, data, stat)
		}
		if err == nil {
			x = content{data, stat.Czxid, stat.Version, stat.Mzxid}
		}
		return err
	})
	return x, err
}

// expect returns nil if the cell is still want, and else ErrConflict. Its reads may
// lag behind the read that returned want, so it syncs before it reports a conflict.
func (n *cell) expect(ctx context.Context, s *session, want content) error {
	for synced := false; ; synced = true {
		stat, err := s.b.Exists(ctx, n.path.full, nil)
		missing := isNotFound(err)
		if err != nil && !missing {
			return err
		}
		switch {
		case !missing && stat.Czxid == want.created && stat.Version == want.version:
			return nil
		case !synced:
		case !missing:
			return fmt.Errorf("%w: not the version that was expected", ErrConflict)
		case want.created != 0:
			return errVanished
		default:
			return nil
		}
		if err := s.b.Sync(ctx, n.path.full); err != nil {
			return err
		}
	}
}

// errVanished is the conflict of a value that was deleted.
var errVanished = fmt.Errorf("%w: %w", ErrConflict, ErrNotFound)

// errVersions: writes without a version have led beyond the largest int32.
var errVersions = fmt.Errorf("%w: the versions of the node are used up", ErrLimit)
