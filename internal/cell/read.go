package cell

import (
	"context"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/follow"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
)

// Get returns the content of the node, or ErrNotFound if there is no value.
func (n *Node) Get(ctx context.Context) (Content, error) {
	if err := n.Check("get"); err != nil {
		return Content{}, err
	}
	x, err := core.OnSession(ctx, n.c, func(s *core.Session) (Content, error) { return n.read(ctx, s) })
	if err == nil && x.Czxid == 0 {
		err = backend.ErrNotFound
	}
	if err != nil {
		return Content{}, errs.Op("get", n.path.Full(), err)
	}
	return x, nil
}

// read reads the node. A missing node is no error.
func (n *Node) read(ctx context.Context, s *core.Session) (Content, error) {
	data, stat, err := s.Backend().Get(ctx, n.path.Full(), nil)
	var x Content
	if err == nil {
		x, err = n.contentOf(ctx, s, data, stat)
	}
	if errs.IsNotFound(err) {
		return Content{}, nil
	}
	return x, err
}

// readAndWatch reads the node with a watch that stays armed. If the node is missing, the
// watch is for its creation.
func (n *Node) readAndWatch(ctx context.Context, g *follow.Loop) (Content, error) {
	var x Content
	_, err := follow.ReadOrAwait(ctx, g.S, g.Ws, n.path.Full(), func(w *backend.Watch) error {
		data, stat, err := g.S.Backend().Get(ctx, n.path.Full(), w)
		x = Content{}
		if err == nil {
			x, err = n.contentOf(ctx, g.S, data, stat)
		}
		return err
	})
	return x, err
}

// contentOf returns the content of a node from its data and Stat.
func (n *Node) contentOf(ctx context.Context, s *core.Session, data []byte, stat backend.Stat) (Content, error) {
	f, err := n.checkKind(ctx, s, data, stat)
	switch {
	case err != nil:
		return Content{}, err
	case f.Directory:
		return Content{at: f}, nil
	}
	return Content{Data: data, Czxid: stat.Czxid, Version: stat.Version, Mzxid: stat.Mzxid, at: f}, nil
}

// checkKind returns the state of the node, or a KindError if its content belongs to another recipe.
// It costs no request unless the node has children, which are listed once.
func (n *Node) checkKind(ctx context.Context, s *core.Session, data []byte, stat backend.Stat) (kinds.DirState, error) {
	directory := layout.IsDirectory(data, stat)
	if _, marked := layout.ParseMark(data); !marked || directory {
		if f, ok := n.c.Kinds().Known(n.recipeDir()); ok && f.Czxid == stat.Czxid && f.Directory == directory && (!directory || f.Version == stat.Version) {
			return f, nil
		}
	}
	return s.Examine(ctx, n.recipeDir(), data, stat)
}

// expect returns the content of the node if it is still want, and else ErrConflict. Its reads may
// lag behind the read that returned want, so it syncs before it reports a conflict.
func (n *Node) expect(ctx context.Context, s *core.Session, want Content) (Content, error) {
	for synced := false; ; synced = true {
		var now Content
		var err error
		f, known := n.c.Kinds().Known(n.recipeDir())
		if want.Czxid == 0 {
			want.Version = 0
		}
		if want.Czxid == 0 || !known || f.Czxid != want.Czxid || f.Directory {
			// Only the data tells a value from a directory. A node that another client, or an
			// earlier session, has read can need a pin. A directory can have become a value.
			now, err = n.read(ctx, s)
		} else {
			var stat backend.Stat
			stat, err = s.Backend().Exists(ctx, n.path.Full(), nil)
			now = Content{Czxid: stat.Czxid, Version: stat.Version, at: f}
		}
		if err != nil && !errs.IsNotFound(err) {
			return Content{}, err
		}
		switch {
		case now.Czxid == want.Czxid && now.Version == want.Version && (now.Czxid != 0 || synced):
			return now, nil
		case !synced:
		case now.Czxid != 0:
			return Content{}, fmt.Errorf("%w: the version is not the expected one", errs.ErrConflict)
		default:
			return Content{}, errDeleted
		}
		if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
			return Content{}, err
		}
	}
}
