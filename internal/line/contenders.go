package line

import (
	"context"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/parallel"
	"github.com/go-coord/coord/internal/queuestat"
)

// Contender is coord.Contender.
type Contender struct {
	Path    string
	Token   int64
	Session int64
	Since   time.Time
	ID      string
	Data    []byte
}

func (l *Line) contenders(ctx context.Context) ([]Contender, error) {
	return core.OnSession(ctx, l.c, func(s *core.Session) ([]Contender, error) { return readContenders(ctx, s, l) })
}

func readContenders(ctx context.Context, s *core.Session, l *Line) ([]Contender, error) {
	names, err := s.List(ctx, l.dir)
	if err != nil {
		return nil, err
	}
	var list []Contender
	for _, q := range l.kinds.Order(names) {
		x, err := readContender(ctx, s, l, q)
		if errs.IsNotFound(err) {
			continue // deleted since the listing
		}
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// readContender reads the node of a contender.
func readContender(ctx context.Context, s *core.Session, l *Line, q layout.Position) (Contender, error) {
	p := l.dir + "/" + q.Name
	data, stat, err := s.Backend().Get(ctx, p, nil)
	if err != nil {
		return Contender{}, err
	}
	return newContender(p, data, stat, q.Shared), nil
}

// newContender returns the contender whose node at path was read.
func newContender(path string, data []byte, stat backend.Stat, shared bool) Contender {
	_, own := layout.OpenEnvelope(data)
	x := Contender{
		Path: path, Token: stat.Czxid, Session: stat.EphemeralOwner,
		Since: time.UnixMilli(stat.Ctime),
	}
	x.ID, x.Data = layout.OpenContender(own)
	if shared {
		x.Token = 0
	}
	return x
}

// Owners returns the first contender of each line, zero for a line without contenders. It reads all lines,
// and then their first contenders; if the service has batches, one request reads many of them.
func Owners(ctx context.Context, s *core.Session, lines []*Line) ([]Contender, error) {
	dirs := make([]string, len(lines))
	for i, l := range lines {
		dirs[i] = l.dir
	}
	queues, err := queuestat.Lists(ctx, s.Backend(), dirs...)
	if err != nil {
		return nil, err
	}
	var heads []string
	var of []int
	for i, q := range queues {
		if q.Err != nil && !errs.IsNotFound(q.Err) {
			return nil, q.Err
		}
		if queue := lines[i].kinds.Order(q.Names); len(queue) > 0 {
			heads, of = append(heads, dirs[i]+"/"+queue[0].Name), append(of, i)
		}
	}
	list := make([]Contender, len(lines))
	if len(heads) == 0 {
		return list, nil
	}
	got, err := s.GetAll(ctx, heads)
	if err != nil {
		return nil, err
	}
	return list, parallel.Read(ctx, len(heads), func(ctx context.Context, k int) (err error) {
		i := of[k]
		switch {
		case errs.IsNotFound(got[k].Err): // released since the list
			list[i], err = lines[i].first(ctx, s)
		case got[k].Err != nil:
			err = got[k].Err
		default:
			list[i] = newContender(heads[k], got[k].Data, got[k].Stat, false)
		}
		return err
	})
}

// first reads the first contender.
func (l *Line) first(ctx context.Context, s *core.Session) (Contender, error) {
	names, _, err := s.Backend().Children(ctx, l.dir, nil)
	if err != nil && !errs.IsNotFound(err) {
		return Contender{}, err
	}
	for _, q := range l.kinds.Order(names) {
		x, err := readContender(ctx, s, l, q)
		if !errs.IsNotFound(err) {
			return x, err
		}
	}
	return Contender{}, nil
}

// RemoveFormer removes, for op, the nodes of contenders with this id that an earlier session has created.
func (l *Line) RemoveFormer(ctx context.Context, op string, session int64, id string) error {
	_, err := core.OnSession(ctx, l.c, func(s *core.Session) (struct{}, error) {
		list, err := readContenders(ctx, s, l)
		for _, other := range list {
			if err == nil && other.Session == session && other.ID == id {
				err = s.Remove(ctx, other.Path)
			}
		}
		return struct{}{}, err
	})
	return errs.Op(op, l.dir, err)
}
