package coord

import (
	"context"
	"time"
)

// A Contender is somebody in line for a lock. The first of them has it.
type Contender struct {
	Path    string    // of its node, absolute
	Token   int64     // what Hold.Token is, or will be; zero for a reader, also one that was the writer
	Session int64     // that owns the node
	Since   time.Time // when it came, by the service's clock
	Data    []byte
}

func (l *line) contenders(ctx context.Context) ([]Contender, error) {
	return onSession(ctx, l.c, func(s *session) ([]Contender, error) { return s.contenders(ctx, l) })
}

func (s *session) contenders(ctx context.Context, l *line) ([]Contender, error) {
	names, err := s.list(ctx, l.dir)
	if err != nil {
		return nil, err
	}
	var list []Contender
	for _, q := range l.order(names) {
		p := l.dir + "/" + q.name
		data, stat, err := s.b.Get(ctx, p, nil)
		if isNotFound(err) {
			continue // gone since
		}
		if err != nil {
			return nil, err
		}
		_, own := openEnvelope(data)
		x := Contender{
			Path: p, Token: stat.Czxid, Session: stat.EphemeralOwner,
			Since: time.UnixMilli(stat.Ctime), Data: own,
		}
		if q.shared {
			x.Token = 0
		}
		list = append(list, x)
	}
	return list, nil
}
