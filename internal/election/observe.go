package election

import (
	"context"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/follow"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// A Candidate is coord.Candidate. The zero Candidate means that no candidate leads.
type Candidate struct {
	ID           string
	Data         []byte
	Path         string
	Token        int64
	Session      int64
	Since        time.Time
	Ready        bool
	Announcement []byte
}

func newCandidate(path string, data []byte, stat backend.Stat) Candidate {
	_, own := layout.OpenEnvelope(data)
	j := layout.OpenCandidate(own)
	return Candidate{
		ID: j.ID, Data: j.Data, Path: path,
		Token: stat.Czxid, Session: stat.EphemeralOwner, Since: time.UnixMilli(stat.Ctime),
	}
}

// leader is the leader that a read has found. The zero leader is none.
type leader struct {
	Candidate
	announced int64 // the zxid of the latest announcement
}

// Leader returns the candidate that leads, or the zero Candidate.
func (e *Election) Leader(ctx context.Context) (Candidate, error) {
	const op = "leader"
	if err := e.path.Check(op); err != nil {
		return Candidate{}, err
	}
	l, err := core.OnSession(ctx, e.c, func(s *core.Session) (leader, error) {
		if err := s.Backend().Sync(ctx, e.path.Full()); err != nil {
			return leader{}, err
		}
		return e.readLeader(ctx, s, nil)
	})
	return l.Candidate, errs.Op(op, e.path.Full(), err)
}

// Watch returns a latest-wins channel with the leader and then every change, until ctx ends. as converts
// an element: the leader, or the reason why the watch has ended.
func Watch[T any](ctx context.Context, e *Election, as func(Candidate, error) T) <-chan T {
	var last leader
	sent := false // last is the latest element
	failed := func(err error) T { return as(Candidate{}, err) }
	return follow.Observe(ctx, e.c, "observe", &e.path, failed, nil, func(ctx context.Context, v *follow.Loop, out latest.Signal[T]) error {
		if v.First {
			if err := v.S.Backend().Sync(ctx, e.path.Full()); err != nil {
				return err
			}
		}
		v.Renew() // of the watches on the leader and its announcement, one has fired and the other has not
		l, err := e.readLeader(ctx, v.S, v.Ws)
		if err != nil {
			return err
		}
		if sent && l.Token == last.Token && l.announced == last.announced {
			return nil
		}
		last, sent = l, true
		out.Put(as(l.Candidate, nil))
		return nil
	})
}

// readLeader reads the leader. With a set of watches, it arms watches for the next
// change of the answer: on the leader's node and its announcement if there is a
// leader, else on the directory, or on its creation.
func (e *Election) readLeader(ctx context.Context, s *core.Session, ws *backend.WatchSet) (leader, error) {
	dir := e.path.Full()
	var dirWatch *backend.Watch
	for {
		names, _, err := s.Backend().Children(ctx, dir, dirWatch)
		if errs.IsNotFound(err) {
			dirWatch.Stop()
			dirWatch = nil
			if ws == nil {
				return leader{}, nil
			}
			w := ws.New()
			if _, err = s.Backend().Exists(ctx, dir, w); errs.IsNotFound(err) {
				return leader{}, nil
			}
			w.Stop()
			if err != nil {
				return leader{}, err
			}
			continue
		}
		if err != nil {
			return leader{}, err
		}
		queue := layout.LatchLine.Order(names)
		if len(queue) == 0 {
			if ws == nil || dirWatch != nil {
				return leader{}, nil
			}
			dirWatch = ws.New()
			continue // again with a watch; if there are candidates then, none is needed
		}
		dirWatch.Stop()
		dirWatch = nil
		x, err := readCandidate(ctx, s, dir+"/"+queue[0].Name, names, ws)
		if !errs.IsNotFound(err) {
			return x, err
		}
		// The node was deleted after the list was read; the next list does not name
		// it.
	}
}

// readCandidate reads the candidate at path and its announcement. With a set of
// watches it watches both, and the announcement also for its creation. Without one it
// reads the announcement only if names lists it.
func readCandidate(ctx context.Context, s *core.Session, path string, names []string, ws *backend.WatchSet) (leader, error) {
	w := ws.New()
	data, stat, err := s.Backend().Get(ctx, path, w)
	if err != nil {
		w.Stop()
		return leader{}, err
	}
	x := leader{Candidate: newCandidate(path, data, stat)}
	ready := layout.ReadyPath(path)
	listed := slices.Contains(names, nodepath.Base(ready))
	for ready != "" && (listed || ws != nil) {
		if listed {
			v := ws.New()
			data, stat, err := s.Backend().Get(ctx, ready, v)
			if err == nil {
				x.Ready, x.Announcement, x.announced = true, data, stat.Mzxid
				break
			}
			v.Stop()
			if !errs.IsNotFound(err) {
				w.Stop()
				return leader{}, err
			}
		}
		if ws == nil {
			break
		}
		v := ws.New()
		_, err := s.Backend().Exists(ctx, ready, v)
		if errs.IsNotFound(err) {
			break // v fires when it is created
		}
		v.Stop()
		if err != nil {
			w.Stop()
			return leader{}, err
		}
		listed = true
	}
	return x, nil
}

// Contenders lists the leader and the candidates that wait, in order.
func (e *Election) Contenders(ctx context.Context) ([]Candidate, error) {
	const op = "contenders"
	if err := e.path.Check(op); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, e.c, func(s *core.Session) ([]Candidate, error) {
		names, err := s.List(ctx, e.path.Full())
		if err != nil {
			return nil, err
		}
		var paths []string // each candidate, and behind it its announcement if there is one
		for _, q := range layout.LatchLine.Order(names) {
			path := e.path.Full() + "/" + q.Name
			paths = append(paths, path)
			if ready := layout.ReadyPath(path); ready != "" && slices.Contains(names, nodepath.Base(ready)) {
				paths = append(paths, ready)
			}
		}
		read, err := s.GetAll(ctx, paths)
		if err != nil {
			return nil, err
		}
		var list []Candidate
		for i, r := range read {
			of := len(list) - 1
			announcement := i > 0 && paths[i] == layout.ReadyPath(paths[i-1])
			switch {
			case errs.IsNotFound(r.Err): // gone since
			case announcement && (of < 0 || list[of].Path != paths[i-1]): // of a candidate that is gone
			case r.Err != nil:
				return nil, r.Err
			case announcement:
				list[of].Ready, list[of].Announcement = true, r.Data
			default:
				list = append(list, newCandidate(paths[i], r.Data, r.Stat))
			}
		}
		return list, nil
	})
	if err != nil {
		return nil, errs.Op(op, e.path.Full(), err)
	}
	return list, nil
}
