package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// fits reports whether data can be written, in the largest commit that a write
// needs.
func (n *cell) fits(data []byte) error {
	if kind, ok := layout.ParseMark(data); ok {
		return fmt.Errorf("%w: the data is reserved, it marks the directory of a %s", ErrInvalid, kind)
	}
	replace := []backend.Op{backend.Delete(n.path.Full(), 0), backend.Create(n.path.Full(), data, backend.Persistent), n.c.Proof()}
	set := append(n.writing(core.DirState{Pin: core.PinNeeded}, data, 0), n.c.Proof())
	limits := n.c.Rules().Limits()
	return errors.Unwrap(cmp.Or(limits.Refuse(replace), limits.Refuse(set)))
}

// set writes data, whatever the value is. At the first use by this client it examines the
// node first, because another recipe may use it. If the node is a directory, set writes
// under the version that it has examined, because another recipe may write its mark there.
func (n *cell) set(ctx context.Context, s *core.Session, data []byte) (content, error) {
	for {
		_, known := n.c.KnownState(n.recipeDir())
		f, err := s.DirState(ctx, n.recipeDir())
		if err == nil {
			version := int32(backend.AnyVersion)
			if f.Directory || !known && f.Czxid != 0 {
				version = f.Version
			}
			var results []backend.Result
			var zxid int64
			results, zxid, err = n.write(ctx, s, f, data, version)
			if err == nil {
				return n.wasSet(ctx, s, f, results, zxid)
			}
		}
		missing := core.IsNotFound(err)
		if missing || core.IsUncertain(err) || core.Answers(err, backend.ErrBadVersion) {
			n.c.ForgetState(n.path.Full()) // it is missing, or another than the one that was examined
		}
		if !missing && !core.Answers(err, backend.ErrBadVersion) {
			return content{}, err
		}
		if missing {
			if st, err := n.create(ctx, s, data); !core.Answers(err, ErrConflict) {
				return st, err
			}
		}
		// This server's answer may be stale.
		if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
			return content{}, err
		}
	}
}

// writing returns the operations of write, the write of the data first.
func (n *cell) writing(f core.DirState, data []byte, version int32) []backend.Op {
	return append([]backend.Op{backend.SetData(n.path.Full(), data, version)}, f.PinOps(n.path.Full())...)
}

// write writes data under a version. f is what was found there. If the node was, or may have
// been, made as a directory, the same commit ensures that it has a pin: a container that is
// collected takes its data along.
func (n *cell) write(ctx context.Context, s *core.Session, f core.DirState, data []byte, version int32) ([]backend.Result, int64, error) {
	for {
		results, zxid, err := s.CommitOnce(ctx, n.writing(f, data, version)...)
		switch {
		case err == nil:
			if (f.Directory || f.Pin == core.PinNeeded) && results != nil {
				now := core.DirState{Kind: n.recipe, Czxid: results[0].Stat.Czxid, Version: backend.AnyVersion}
				if f.Pin != core.NoPin {
					now.Pin = core.Pinned
				}
				s.SetState(n.path.Full(), now)
			}
			return results, zxid, nil
		case !core.AtPin(err, n.path.Full()):
			return nil, 0, err
		case f.Pin == core.PinNeeded && core.Answers(err, backend.ErrExists):
			f.Pin = core.Pinned
		case f.Pin == core.PinNeeded && !f.Directory && core.Answers(err, backend.ErrDenied):
			f.Pin = core.NoPin // this client may write a value here, and nothing below it
		case f.Pin == core.Pinned && core.IsNotFound(err) && version != backend.AnyVersion:
			f.Pin = core.PinNeeded // an outsider has deleted the pin
		case f.Pin == core.Pinned && core.IsNotFound(err):
			// The value was deleted since this client has examined the node, which can be the
			// directory of another recipe now.
			return nil, 0, fmt.Errorf("%w: the value was deleted meanwhile", backend.ErrBadVersion)
		default:
			return nil, 0, err
		}
	}
}

// wasSet returns the content of the node after a write by set. f is the state of the node that the client found before. If the
// node was deleted and created again since then, see settle.
func (n *cell) wasSet(ctx context.Context, s *core.Session, f core.DirState, results []backend.Result, zxid int64) (content, error) {
	x := content{created: -1, version: -1, changed: zxid}
	var stat backend.Stat
	if results != nil {
		stat = results[0].Stat
	} else {
		var err error
		stat, err = s.Backend().Exists(ctx, n.path.Full(), nil)
		switch {
		case err == nil && stat.Czxid <= zxid:
		case f.Pin == core.NoPin && f.Czxid != 0 && s.Backend().Features().Has(backend.Containers):
			// The data may have gone into a container.
			return content{}, backend.Uncertain(cmp.Or(err, errNotExamined))
		default:
			return x, nil
		}
	}
	rewritten := results == nil && stat.Mzxid != zxid
	if !rewritten {
		x = content{created: stat.Czxid, version: stat.Version, changed: zxid}
	}
	if f.Czxid == 0 || f.Czxid == stat.Czxid {
		return x, nil
	}
	return x, n.settle(ctx, s, written{stat, f.Pin, rewritten})
}

// written is a write that has gone to another node than the one that was examined before.
type written struct {
	stat      backend.Stat  // after the write
	pin       core.PinState // what the write has ensured
	rewritten bool          // the data was replaced since, before stat was read
}

// errNotExamined: a write has gone to a node that was deleted before it was examined, by a client
// or, since it was a container, by the service.
var errNotExamined = errors.New("the written node was deleted before the client could check which recipe uses it")

// errOpen: takeBack has to be repeated.
var errOpen = errors.New("the client has not yet checked which recipe uses the written node")

// settle undoes a write that has gone to the node of another recipe, and returns a KindError.
// Another node gets a pin if the write has not ensured that it has one, since it can be a
// container. If neither is possible, the error matches ErrUncertain: the write was applied, and may
// not last.
func (n *cell) settle(ctx context.Context, s *core.Session, w written) error {
	n.c.ForgetState(n.path.Full()) // the node was created again since it was examined
	err := n.takeBack(ctx, s, w)
	if errors.Is(err, errOpen) {
		// The write is undone, or gets its pin, even if the call ends before.
		s.Client().GoCleanUp(func(ctx context.Context, u *core.CleanUp) {
			s.Client().OverSessions(ctx, func(s *core.Session) {
				s.Retry(ctx, u, "examine", n.path.Full(), func(ctx context.Context) error {
					err := n.takeBack(ctx, s, w)
					if errors.Is(err, errOpen) {
						return err
					}
					return nil
				})
			})
		})
	}
	return err
}

// takeBack undoes a write if another recipe has nodes below its node: it makes the node a directory
// again and returns a KindError. The other recipe writes its mark at its next use of the node.
// Otherwise takeBack creates the pin that the write has not created or checked.
func (n *cell) takeBack(ctx context.Context, s *core.Session, w written) error {
	open := func(err error) error { return backend.Uncertain(fmt.Errorf("%w: %w", errOpen, err)) }
	names, now, err := s.Backend().Children(ctx, n.path.Full(), nil)
	switch {
	case core.IsNotFound(err) || err == nil && now.Czxid != w.stat.Czxid:
		return n.vanished(s, w)
	case core.Answers(err, backend.ErrDenied):
		return n.pinLater(ctx, s, w, open)
	case err != nil:
		return open(err)
	}
	found, err := s.OtherKind(ctx, n.recipeDir(), names)
	switch {
	case err != nil:
		return open(err)
	case found == "":
		return n.pinLater(ctx, s, w, open)
	}
	refusal := s.Client().KindError(n.path.Full(), n.recipe, string(found))
	if w.rewritten {
		return refusal // there is nothing to undo
	}
	write, unpin := backend.SetData(n.path.Full(), layout.KindDirectory.Mark(), w.stat.Version), backend.Delete(n.path.Full()+"/"+layout.Pin, backend.AnyVersion)
	if slices.Contains(names, layout.Pin) { // it would keep the directory for ever
		err = s.CommitAgain(ctx, write, unpin)
		for core.Answers(err, backend.ErrBadVersion) {
			var data []byte
			data, now, err = s.Backend().Get(ctx, n.path.Full(), nil)
			if _, marked := layout.ParseMark(data); err == nil && marked && now.Czxid == w.stat.Czxid {
				err = s.CommitAgain(ctx, backend.Check(n.path.Full(), now.Version), unpin) // the other recipe has written its mark
			}
		}
	}
	if !slices.Contains(names, layout.Pin) || core.IsNotFound(err) && core.AtPin(err, n.path.Full()) {
		err = s.CommitAgain(ctx, write) // without a pin, or the pin was deleted since the list
	}
	if err != nil && !core.IsNotFound(err) && !core.Answers(err, backend.ErrBadVersion) && !core.Answers(err, backend.ErrDenied) {
		return open(err)
	}
	return refusal
}

// dirStateInTxn is what a write of a transaction has to know. That of a Value reads the node each
// time, since it may have to create it; that of a plain node only at the first use.
func (n *cell) dirStateInTxn(ctx context.Context, s *core.Session, value bool) (core.DirState, error) {
	if value {
		st, err := n.read(ctx, s)
		if err == nil && !st.at.Directory && st.created == 0 {
			err = backend.ErrNotFound
		}
		return st.at, err
	}
	f, err := s.DirState(ctx, n.recipeDir())
	if f.Plain && f.Pin == core.PinNeeded {
		f.Pin, f.Directory = core.NoPin, false
	}
	return f, err
}

// setInTxn examines the node with stat after the transaction of all, which has set it, see settle. A
// node that is gone without a trace has been deleted.
func (n *cell) setInTxn(ctx context.Context, s *core.Session, all []backend.Op, stat backend.Stat, zxid int64) error {
	w := written{stat: stat, rewritten: stat.Mzxid != zxid}
	for _, op := range all {
		switch {
		case op.Path == n.path.Full()+"/"+layout.Pin:
			w.pin = core.Pinned
		case op.Path == n.path.Full() && (op.Kind == backend.OpCreate || op.Kind == backend.OpDelete):
			return nil
		}
	}
	f, known := n.c.KnownState(n.recipeDir())
	switch {
	case stat.Czxid == 0 || stat.Czxid > zxid:
		return n.vanished(s, w)
	case !known || f.Czxid != stat.Czxid || w.pin == core.NoPin && stat.Container:
		return n.settle(ctx, s, w)
	case f.Directory: // it is a value now
		s.SetState(n.path.Full(), core.DirState{Kind: n.recipe, Czxid: stat.Czxid, Version: backend.AnyVersion, Pin: w.pin})
	}
	return nil
}

// vanished returns the error of a write whose node is gone. Without a pin it can have been a
// container that the service has removed, with what was written.
func (n *cell) vanished(s *core.Session, w written) error {
	if w.pin != core.NoPin || !s.Backend().Features().Has(backend.Containers) {
		return nil
	}
	return backend.Uncertain(errNotExamined)
}

// pinLater creates the pin of the node that w has written, unless the value was deleted since. A
// later write of another client may rely on what this one has written without a pin, so the pin is
// needed also if the data has changed.
func (n *cell) pinLater(ctx context.Context, s *core.Session, w written, open func(error) error) error {
	if w.pin != core.NoPin || !s.Backend().Features().Has(backend.Containers) {
		return nil
	}
	need, stat := core.DirState{Pin: core.PinNeeded}, w.stat
	for {
		err := s.CommitAgain(ctx, append([]backend.Op{backend.Check(n.path.Full(), stat.Version)}, need.PinOps(n.path.Full())...)...)
		switch {
		case err == nil, core.Answers(err, backend.ErrExists):
			return nil
		case core.IsNotFound(err):
			return n.vanished(s, w)
		case core.Answers(err, backend.ErrDenied):
			if core.UsedAsDir(stat) {
				return backend.Uncertain(err)
			}
			return nil // it was created as a value
		case !core.Answers(err, backend.ErrBadVersion):
			return open(err)
		}
		if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
			return open(err)
		}
		data, now, err := s.Backend().Get(ctx, n.path.Full(), nil)
		switch {
		case core.IsNotFound(err), err == nil && now.Czxid != stat.Czxid:
			return n.vanished(s, w)
		case err == nil && layout.IsDirectory(data, now):
			return nil
		case core.Answers(err, backend.ErrDenied):
			return backend.Uncertain(err)
		case err != nil:
			return open(err)
		}
		stat = now
	}
}

// creation returns the operations that make the node with data, and the resulting
// version. A node without bytes is written once more in the same commit: its
// version distinguishes it from a directory that no recipe has used yet, see
// examine.
func (n *cell) creation(data []byte) (ops []backend.Op, version int32) {
	ops = []backend.Op{backend.Create(n.path.Full(), data, backend.Persistent)}
	if len(data) == 0 {
		return append(ops, backend.SetData(n.path.Full(), nil, 0)), 1
	}
	return ops, 0
}

// create makes the node and its missing ancestors, or sets the value in the directory that is
// there. It returns ErrConflict if there is a value.
func (n *cell) create(ctx context.Context, s *core.Session, data []byte) (content, error) {
	ops, version := n.creation(data)
	for {
		_, zxid, err := s.CommitOnce(ctx, ops...)
		switch {
		case err == nil:
			s.SetState(n.path.Full(), core.DirState{Kind: n.recipe, Czxid: zxid, Version: backend.AnyVersion})
			return content{created: zxid, version: version, changed: zxid}, nil
		case core.Answers(err, backend.ErrExists):
			// A read can lag behind this answer.
			if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
				return content{}, err
			}
			old, err := n.read(ctx, s)
			switch {
			case err != nil:
				return content{}, err
			case old.created != 0:
				return content{}, fmt.Errorf("%w: the value already exists", ErrConflict)
			case !old.at.Directory:
				continue // deleted since
			}
			st, err := n.fill(ctx, s, old, data)
			if core.Answers(err, ErrConflict) {
				continue // read again whether it is a value now
			}
			return st, err
		case !core.IsNotFound(err):
			return content{}, s.BelowEphemeral(err, n.path.Full())
		}
		dir := core.Parent(n.path.Full())
		if dir == "" {
			return content{}, err // the root always exists
		}
		if err := s.Ensure(ctx, dir); err != nil {
			return content{}, err
		}
	}
}

// fill sets the value in the directory that old has found, or returns ErrConflict.
func (n *cell) fill(ctx context.Context, s *core.Session, old content, data []byte) (content, error) {
	f := old.at
	results, zxid, err := n.write(ctx, s, f, data, f.Version)
	if err != nil {
		n.c.ForgetState(n.path.Full())
		return content{}, conflict(err)
	}
	return content{created: n.writtenIn(ctx, s, f.Czxid, results, zxid), version: f.Version + 1, changed: zxid}, nil
}

// writtenIn returns the czxid of the node to which the commit zxid has written, which was that of
// the node was when it was read.
func (n *cell) writtenIn(ctx context.Context, s *core.Session, was int64, results []backend.Result, zxid int64) int64 {
	if results != nil {
		return results[0].Stat.Czxid
	}
	if stat, err := s.Backend().Exists(ctx, n.path.Full(), nil); err == nil && stat.Czxid < zxid {
		return stat.Czxid // it has existed since before this commit
	}
	return was
}

// replace writes data in place of old, which was read just before, or returns
// ErrConflict. With ErrConflict the content is not zero if the data was written all
// the same: to a node that was made since and has the same version.
func (n *cell) replace(ctx context.Context, s *core.Session, old content, data []byte) (content, error) {
	path := n.path.Full()
	switch {
	case old.at.Directory:
		return n.fill(ctx, s, old, data)
	case old.created == 0:
		return n.create(ctx, s, data)
	case old.version < 0:
		return content{}, errVersions // -1 would mean any version
	}
	f := old.at
	if old.version == math.MaxInt32 {
		// There is no version after this one. A new node begins with its first
		// version.
		create, version := n.creation(data)
		ops := []backend.Op{backend.Delete(path, old.version)}
		if f.Pin == core.Pinned {
			ops = deletePinned(path, old.version)
		}
		_, zxid, err := s.CommitOnce(ctx, append(ops, create...)...)
		if err != nil {
			return content{}, conflict(err)
		}
		n.c.ForgetState(path)
		return content{created: zxid, version: version, changed: zxid}, nil
	}
	results, zxid, err := n.write(ctx, s, f, data, old.version)
	if err != nil {
		return content{}, conflict(err)
	}
	st := content{created: n.writtenIn(ctx, s, old.created, results, zxid), version: old.version + 1, changed: zxid}
	if st.created != old.created {
		w := written{stat: backend.Stat{Czxid: st.created, Version: st.version}, pin: f.Pin}
		if results != nil {
			w.stat = results[0].Stat
		}
		err := n.settle(ctx, s, w)
		if errors.Is(err, ErrKind) {
			return content{}, err // undone
		}
		return st, cmp.Or(err, fmt.Errorf("%w: the node was deleted and created again just before the write", ErrConflict))
	}
	return st, nil
}

// conflict returns the error for a commit under a version.
func conflict(err error) error {
	switch {
	case core.Answers(err, backend.ErrBadVersion):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case core.IsNotFound(err):
		return errVanished
	}
	return err
}

// remove deletes the value if it is still old.
func (n *cell) remove(ctx context.Context, s *core.Session, old content) error {
	now, err := n.expect(ctx, s, old)
	switch {
	case err != nil || old.created == 0:
		return err
	case old.version < 0:
		return errVersions
	}
	err = unsetNode(ctx, s, n.path.Full(), old.version, now.at.Pin, layout.KindValue)
	n.c.ForgetState(n.path.Full())
	return conflict(err)
}

// unsetNode removes the Value, Counter or Barrier at path that has this version. If there are nodes
// below it, the node stays, as a directory: it gets a mark, and the pin goes, so that a container
// is collected when it is empty. Watches of the data fire either way. The mark of a persistent node
// is that of kept: clients that know the node as a Value without a pin write at any version, so
// the path must stay one of a Value.
//
// Each step is applied exactly once or not at all: a repetition could delete a later node of
// the same version.
func unsetNode(ctx context.Context, s *core.Session, path string, version int32, pin core.PinState, kept layout.RecipeKind) error {
	directory := func(kind layout.RecipeKind) backend.Op { return backend.SetData(path, kind.Mark(), version) }
	type step struct {
		ops   []backend.Op
		full  int // the next step if the node has other children
		unpin int // the next step if there is no pin
	}
	unpin := backend.Delete(path+"/"+layout.Pin, backend.AnyVersion)
	steps := []step{
		{ops: []backend.Op{backend.Delete(path, version)}, full: 1},
		{ops: deletePinned(path, version), full: 2, unpin: 3},
		{ops: []backend.Op{directory(layout.KindDirectory), unpin}, unpin: 3},
		{ops: []backend.Op{directory(kept)}},
	}
	i := 0
	if pin == core.Pinned {
		i = 1
	}
	for {
		step := steps[i]
		_, _, err := s.CommitOnce(ctx, step.ops...)
		switch {
		case step.full != 0 && core.Answers(err, backend.ErrNotEmpty):
			i = step.full
		case step.unpin != 0 && core.IsNotFound(err) && core.AtPin(err, path):
			i = step.unpin
		default:
			return err
		}
	}
}

// deletePinned returns the operations that delete the node at path with its pin.
func deletePinned(path string, version int32) []backend.Op {
	return []backend.Op{backend.Delete(path+"/"+layout.Pin, backend.AnyVersion), backend.Delete(path, version)}
}

// update replaces the content with the result of fn, exactly once.
//
// A conflict is not a failure of the service: another client has succeeded. The
// pauses spare the service the requests of clients that would only conflict again.
func (n *cell) update(ctx context.Context, fn func(old content) ([]byte, error)) (content, error) {
	var refusal error // of fn; it ends the update, whatever it matches
	pause := core.NewPauses(n.c)
	st, err := core.OnSessionOnce(ctx, n.c, func(s *core.Session) (content, error) {
		old, err := n.read(ctx, s)
		for err == nil {
			var data []byte
			data, refusal = fn(old)
			if refusal == nil {
				var st content
				st, err = n.replace(ctx, s, old, data)
				if !core.Answers(err, ErrConflict) || st.created != 0 {
					return st, err
				}
				pause.Wait(ctx.Done(), s.Backend().Done())
			}
			// This server may still show the state that fn has just seen.
			if err = s.Backend().Sync(ctx, n.path.Full()); err != nil {
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
	c      *core.Client
	path   core.Path
	recipe layout.RecipeKind
}

func (n *cell) recipeDir() core.RecipeDir { return core.NewRecipeDir(n.path.Full(), n.recipe) }

// CheckKind returns what is known of the node, and refuses content that belongs to another recipe.
// It costs no request unless the node has children, which are listed once.
func (n *cell) checkKind(ctx context.Context, s *core.Session, data []byte, stat backend.Stat) (core.DirState, error) {
	directory := layout.IsDirectory(data, stat)
	if _, marked := layout.ParseMark(data); !marked || directory {
		if f, ok := n.c.KnownState(n.recipeDir()); ok && f.Czxid == stat.Czxid && f.Directory == directory && (!directory || f.Version == stat.Version) {
			return f, nil
		}
	}
	return s.Examine(ctx, n.recipeDir(), data, stat)
}

// content is the content of a cell at one time. created is 0 if there is no value.
type content struct {
	data    []byte
	created int64 // czxid
	version int32
	changed int64 // mzxid

	at core.DirState // what the read has found: a directory instead of a value, say. Zero: not known
}

func (x content) same(y content) bool { return x.created == y.created && x.changed == y.changed }

// see returns the content of a node that was read.
func (n *cell) see(ctx context.Context, s *core.Session, data []byte, stat backend.Stat) (content, error) {
	f, err := n.checkKind(ctx, s, data, stat)
	switch {
	case err != nil:
		return content{}, err
	case f.Directory:
		return content{at: f}, nil
	}
	return content{data: data, created: stat.Czxid, version: stat.Version, changed: stat.Mzxid, at: f}, nil
}

// read reads the cell. A missing node is no error.
func (n *cell) read(ctx context.Context, s *core.Session) (content, error) {
	data, stat, err := s.Backend().Get(ctx, n.path.Full(), nil)
	var x content
	if err == nil {
		x, err = n.see(ctx, s, data, stat)
	}
	if core.IsNotFound(err) {
		return content{}, nil
	}
	return x, err
}

// look reads the cell with a watch that stays armed. If the node is missing, the
// watch is for its creation.
func (n *cell) look(ctx context.Context, g *core.WatchLoop) (content, error) {
	var x content
	_, err := g.S.ReadOrAwait(ctx, g.Ws, n.path.Full(), func(w *backend.Watch) error {
		data, stat, err := g.S.Backend().Get(ctx, n.path.Full(), w)
		x = content{}
		if err == nil {
			x, err = n.see(ctx, g.S, data, stat)
		}
		return err
	})
	return x, err
}

// expect returns the cell if it is still want, and else ErrConflict. Its reads may
// lag behind the read that returned want, so it syncs before it reports a conflict.
func (n *cell) expect(ctx context.Context, s *core.Session, want content) (content, error) {
	for synced := false; ; synced = true {
		var now content
		var err error
		f, known := n.c.KnownState(n.recipeDir())
		if want.created == 0 {
			want.version = 0
		}
		if want.created == 0 || !known || f.Czxid != want.created {
			// Only the data tells a value from a directory. A node that another client, or an
			// earlier session, has read can need a pin.
			now, err = n.read(ctx, s)
		} else {
			var stat backend.Stat
			stat, err = s.Backend().Exists(ctx, n.path.Full(), nil)
			now = content{created: stat.Czxid, version: stat.Version, at: f}
		}
		if err != nil && !core.IsNotFound(err) {
			return content{}, err
		}
		switch {
		case now.created == want.created && now.version == want.version && (now.created != 0 || synced):
			return now, nil
		case !synced:
		case now.created != 0:
			return content{}, fmt.Errorf("%w: the version is not the expected one", ErrConflict)
		default:
			return content{}, errVanished
		}
		if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
			return content{}, err
		}
	}
}

// errVanished is the conflict of a value that was deleted.
var errVanished = fmt.Errorf("%w: %w", ErrConflict, ErrNotFound)

var errVersions = core.ErrVersions
