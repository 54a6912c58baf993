package coord

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/follow"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/nodepath"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// A Candidate is a contender for leadership.
type Candidate struct {
	ID      string
	Data    []byte
	Path    string    // of its node, absolute
	Token   int64     // the Token of its term, present or future
	Session int64     // the session that owns the node
	Since   time.Time // when it arrived, by the service's clock

	// Ready reports that the candidate leads and has called Announce, with
	// Announcement.
	Ready        bool
	Announcement []byte

	announced int64 // the zxid of the latest announcement
}

// A Leader is the candidate that leads, or reports that no candidate leads; see Vacant.
type Leader struct {
	Candidate

	// Err is set only in the last element that WatchLeader sends, if WatchLeader
	// cannot go on.
	Err error
}

// Vacant reports that no candidate leads.
func (l Leader) Vacant() bool { return l.Token == 0 && l.Err == nil }

func newCandidate(path string, data []byte, stat backend.Stat) Candidate {
	_, own := layout.OpenEnvelope(data)
	j := layout.OpenCandidate(own)
	return Candidate{
		ID: j.ID, Data: j.Data, Path: path,
		Token: stat.Czxid, Session: stat.EphemeralOwner, Since: time.UnixMilli(stat.Ctime),
	}
}

// Leader returns the candidate that leads, which is the head of the queue. That
// candidate may not know yet that it leads, or may be about to leave. The zero
// Leader, which is Vacant, means that no candidate leads. The result is a snapshot of
// a past moment, but not older than the call, also on an ensemble. Leader costs three
// requests, four with an announcement.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	const op = "leader"
	if err := e.path.Check(op); err != nil {
		return Leader{}, err
	}
	l, err := core.OnSession(ctx, e.c, func(s *core.Session) (Leader, error) {
		if err := s.Backend().Sync(ctx, e.path.Full()); err != nil {
			return Leader{}, err
		}
		return e.readLeader(ctx, s, nil)
	})
	return l, errs.Op(op, e.path.Full(), err)
}

// WatchLeader returns a channel that delivers the current leader, and then every
// change: another leader, no leader, an announcement. The channel keeps the latest
// element only: a slow reader misses intermediate elements, never the newest.
// A lost session does not end it. The channel is closed when ctx ends. If
// WatchLeader fails permanently, the last element has Err set. It costs nothing while
// nothing changes; candidates that come and go behind the leader do not wake it.
//
// While the client has no contact, the latest element remains; WatchState reports the
// loss of contact.
func (e *Election) WatchLeader(ctx context.Context) <-chan Leader {
	var last Leader
	told := false
	failed := func(err error) Leader { return Leader{Err: err} }
	return follow.Observe(ctx, e.c, "observe", &e.path, failed, nil, func(ctx context.Context, v *follow.Loop, out latest.Signal[Leader]) error {
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
		if told && l.Token == last.Token && l.announced == last.announced {
			return nil
		}
		last, told = l, true
		out.Put(l)
		return nil
	})
}

// Leaders is WatchLeader as a loop: it yields the elements of WatchLeader until ctx ends, the
// watch fails for good, or the body breaks off. The end of the loop ends the watch, and waits
// for that.
func (e *Election) Leaders(ctx context.Context) iter.Seq[Leader] {
	return each(ctx, e.WatchLeader)
}

// readLeader reads the leader. With a set of watches, it arms watches for the next
// change of the answer: on the leader's node and its announcement if there is a
// leader, else on the directory, or on its creation.
func (e *Election) readLeader(ctx context.Context, s *core.Session, ws *backend.WatchSet) (Leader, error) {
	dir := e.path.Full()
	var dirWatch *backend.Watch
	for {
		names, _, err := s.Backend().Children(ctx, dir, dirWatch)
		if errs.IsNotFound(err) {
			dirWatch.Stop()
			dirWatch = nil
			if ws == nil {
				return Leader{}, nil
			}
			w := ws.New()
			if _, err = s.Backend().Exists(ctx, dir, w); errs.IsNotFound(err) {
				return Leader{}, nil
			}
			w.Stop()
			if err != nil {
				return Leader{}, err
			}
			continue
		}
		if err != nil {
			return Leader{}, err
		}
		queue := layout.LatchLine.Order(names)
		if len(queue) == 0 {
			if ws == nil || dirWatch != nil {
				return Leader{}, nil
			}
			dirWatch = ws.New()
			continue // again with a watch; if there are candidates then, none is needed
		}
		dirWatch.Stop()
		dirWatch = nil
		x, err := readCandidate(ctx, s, dir+"/"+queue[0].Name, names, ws)
		if !errs.IsNotFound(err) {
			return Leader{Candidate: x}, err
		}
		// The node was deleted after the list was read; the next list does not name
		// it.
	}
}

// readCandidate reads the candidate at path and its announcement. With a set of
// watches it watches both, and the announcement also for its creation. Without one it
// reads the announcement only if names lists it.
func readCandidate(ctx context.Context, s *core.Session, path string, names []string, ws *backend.WatchSet) (Candidate, error) {
	w := ws.New()
	data, stat, err := s.Backend().Get(ctx, path, w)
	if err != nil {
		w.Stop()
		return Candidate{}, err
	}
	x := newCandidate(path, data, stat)
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
				return Candidate{}, err
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
			return Candidate{}, err
		}
		listed = true
	}
	return x, nil
}

// Contenders lists the leader and the candidates that wait, in order. The result is a
// snapshot of a past moment, as for Leader. Contenders costs two requests, and one read
// for each candidate and for an announcement. If the service has batches, one request
// carries 128 of these reads.
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
				list[of].Ready, list[of].Announcement, list[of].announced = true, r.Data, r.Stat.Mzxid
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

// String returns a text for logs.
func (l Leader) String() string {
	switch {
	case l.Err != nil:
		return l.Err.Error()
	case l.Vacant():
		return "nobody"
	}
	return fmt.Sprintf("%q (token %d, ready %t)", l.ID, l.Token, l.Ready)
}
