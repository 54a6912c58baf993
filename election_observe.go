package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// A Candidate is somebody in line for leadership.
type Candidate struct {
	ID      string
	Data    []byte
	Path    string    // of its node, absolute
	Token   int64     // what the Token of its term is, or will be
	Session int64     // that owns the node
	Since   time.Time // when it came, by the service's clock

	// Ready: it leads and has called Announce, with Announcement.
	Ready        bool
	Announcement []byte

	announced int64 // the zxid of the latest announcement
}

// Leader is who leads, or that nobody does.
type Leader struct {
	Candidate

	// Err is set only in the last element that WatchLeader sends, if it cannot go on.
	Err error
}

// Vacant reports that nobody leads.
func (l Leader) Vacant() bool { return l.Token == 0 && l.Err == nil }

// candidateJSON is what a candidate says of itself.
type candidateJSON struct {
	ID   string `json:"id"`
	Data []byte `json:"data,omitempty"`
}

type candidateEnvelope struct {
	Candidate *candidateJSON `json:"coord-candidate"`
}

var candidateStart = []byte(`{"coord-candidate":`)

// encode returns the plain ID, as Curator has it, if there is no more to say and
// it cannot be mistaken.
func (j *candidateJSON) encode() ([]byte, error) {
	plain := []byte(j.ID)
	if len(j.Data) == 0 && !bytes.HasPrefix(plain, candidateStart) && checkData(plain) == nil {
		return plain, nil
	}
	return json.Marshal(candidateEnvelope{j})
}

// openCandidate reads what a candidate says of itself. Everything that is not
// ours is an ID.
func openCandidate(data []byte) candidateJSON {
	var e candidateEnvelope
	if bytes.HasPrefix(data, candidateStart) && json.Unmarshal(data, &e) == nil && e.Candidate != nil {
		return *e.Candidate
	}
	return candidateJSON{ID: string(data)}
}

func newCandidate(path string, data []byte, stat backend.Stat) Candidate {
	_, own := openEnvelope(data)
	j := openCandidate(own)
	return Candidate{
		ID: j.ID, Data: j.Data, Path: path,
		Token: stat.Czxid, Session: stat.EphemeralOwner, Since: time.UnixMilli(stat.Ctime),
	}
}

// Leader asks who leads: who is first in line. He may not know it yet, or be about
// to leave. The zero Leader, which is Vacant, means nobody. It is a picture of a
// moment that has passed, but not older than the call, on an ensemble too. It costs
// three requests, four with an announcement.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	const op = "leader"
	if err := e.path.check(op); err != nil {
		return Leader{}, err
	}
	l, err := onSession(ctx, e.c, func(s *session) (Leader, error) {
		if err := s.b.Sync(ctx, e.path.full); err != nil {
			return Leader{}, err
		}
		return e.readLeader(ctx, s, nil)
	})
	return l, opError(op, e.path.full, err)
}

// WatchLeader returns a channel with the present leader, and then every change:
// another leader, nobody, an announcement. It is latest-wins: a slow reader misses
// what lies between, never the newest. It goes on over lost sessions, and is
// closed when ctx ends. If it fails for good the last element has Err set. It
// costs nothing while nothing changes; candidates that come and go behind the
// leader do not wake it.
//
// While the client has no contact the latest element stands; WatchState tells of that.
func (e *Election) WatchLeader(ctx context.Context) <-chan Leader {
	var last Leader
	told := false
	failed := func(err error) Leader { return Leader{Err: err} }
	return observe(ctx, e.c, "observe", &e.path, failed, func(ctx context.Context, v *vigil, out signal[Leader]) error {
		if v.first {
			if err := v.s.b.Sync(ctx, e.path.full); err != nil {
				return err
			}
		}
		v.renew() // of the leader and his announcement, one has fired and the other has not
		l, err := e.readLeader(ctx, v.s, v.ws)
		if err != nil {
			return err
		}
		if told && l.Token == last.Token && l.announced == last.announced {
			return nil
		}
		last, told = l, true
		out.put(l)
		return nil
	})
}

// readLeader reads who leads. With a set of watches, they tell of the next change
// of the answer: on the leader's node and his announcement if there is a leader,
// else on the directory, or on its creation.
func (e *Election) readLeader(ctx context.Context, s *session, ws *backend.WatchSet) (Leader, error) {
	dir := e.path.full
	var dirWatch *backend.Watch
	for {
		names, _, err := s.b.Children(ctx, dir, dirWatch)
		if isNotFound(err) {
			dirWatch.Stop()
			dirWatch = nil
			if ws == nil {
				return Leader{}, nil
			}
			w := ws.New()
			if _, err = s.b.Exists(ctx, dir, w); isNotFound(err) {
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
		queue := e.line().order(names)
		if len(queue) == 0 {
			if ws == nil || dirWatch != nil {
				return Leader{}, nil
			}
			dirWatch = ws.New()
			continue // again with a watch; with candidates there, none is wanted
		}
		dirWatch.Stop()
		dirWatch = nil
		x, err := s.readCandidate(ctx, dir+"/"+queue[0].name, names, ws)
		if !isNotFound(err) {
			return Leader{Candidate: x}, err
		}
		// Gone since the list was read; the next list does not show it.
	}
}

// readCandidate reads the candidate at path, and his announcement. With a set of
// watches both are watched, the announcement also for its coming; else it is
// looked for if the list of names has it.
func (s *session) readCandidate(ctx context.Context, path string, names []string, ws *backend.WatchSet) (Candidate, error) {
	w := ws.New()
	data, stat, err := s.b.Get(ctx, path, w)
	if err != nil {
		w.Stop()
		return Candidate{}, err
	}
	x := newCandidate(path, data, stat)
	ready := readyPath(path)
	listed := slices.Contains(names, base(ready))
	for ready != "" && (listed || ws != nil) {
		if listed {
			v := ws.New()
			data, stat, err := s.b.Get(ctx, ready, v)
			if err == nil {
				x.Ready, x.Announcement, x.announced = true, data, stat.Mzxid
				break
			}
			v.Stop()
			if !isNotFound(err) {
				w.Stop()
				return Candidate{}, err
			}
		}
		if ws == nil {
			break
		}
		v := ws.New()
		_, err := s.b.Exists(ctx, ready, v)
		if isNotFound(err) {
			break // v tells when it comes
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

// Contenders lists who leads and who waits to lead, in order. It is a picture of a
// moment, as Leader's. It costs two requests and one more for each candidate.
func (e *Election) Contenders(ctx context.Context) ([]Candidate, error) {
	const op = "contenders"
	if err := e.path.check(op); err != nil {
		return nil, err
	}
	list, err := onSession(ctx, e.c, func(s *session) ([]Candidate, error) {
		names, err := s.list(ctx, e.path.full)
		if err != nil {
			return nil, err
		}
		var list []Candidate
		for _, q := range e.line().order(names) {
			x, err := s.readCandidate(ctx, e.path.full+"/"+q.name, names, nil)
			if isNotFound(err) {
				continue // gone since
			}
			if err != nil {
				return nil, err
			}
			list = append(list, x)
		}
		return list, nil
	})
	if err != nil {
		return nil, opError(op, e.path.full, err)
	}
	return list, nil
}

// String is for logs.
func (l Leader) String() string {
	switch {
	case l.Err != nil:
		return l.Err.Error()
	case l.Vacant():
		return "nobody"
	}
	return fmt.Sprintf("%q (token %d, ready %t)", l.ID, l.Token, l.Ready)
}
