package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
)

// Revocation is a request to give a lock up: the recipe of the revocable shared
// lock of the ZooKeeper recipe guide. It is written into the holder's node, so it
// is bound to that holder and dies with his node; no successor ever sees it.
type Revocation struct {
	By     string    // who asks, as he says
	Reason string    // why
	At     time.Time // when, by the clock of who asks
	Force  bool      // the node will be deleted if the holder does not release
}

// RevokeOptions may be nil.
type RevokeOptions struct {
	By     string // who asks, for the holder to read; may be empty
	Reason string // why, likewise

	// Force is how long the holder has to consent, once he was asked. After that
	// his node is deleted: his hold ends, with ErrRevoked if he has read the
	// request by then and else with ErrDeleted, his guard fails, and the next in
	// line is granted, perhaps before he is told. Zero means to wait for consent
	// until ctx ends.
	Force time.Duration
}

// What others write to ask for a lock.
const (
	recipeRequest  = "unlock"     // the recipe guide
	curatorRequest = "__REVOKE__" // Curator's Revoker
)

// envelope is what stands in a holder's node after a request of ours: the request
// and the holder's own data.
type envelope struct {
	Request *requestJSON `json:"coord-revoke"`
	Data    []byte       `json:"data,omitempty"`
}

type requestJSON struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	At     int64  `json:"at"` // milliseconds since 1970
	Force  bool   `json:"force,omitempty"`
}

var envelopeStart = []byte(`{"coord-revoke":`)

// openEnvelope takes a request out of a node's data. The second result is the
// contender's own data, if it can still be told.
func openEnvelope(data []byte) (*Revocation, []byte) {
	switch string(data) {
	case recipeRequest, curatorRequest:
		return &Revocation{}, nil
	}
	if !bytes.HasPrefix(data, envelopeStart) {
		return nil, data
	}
	var e envelope
	if json.Unmarshal(data, &e) != nil || e.Request == nil {
		return nil, data // somebody's own data that happens to begin so
	}
	r := e.Request.revocation()
	return &r, e.Data
}

func (q *requestJSON) revocation() Revocation {
	return Revocation{By: q.By, Reason: q.Reason, At: time.UnixMilli(q.At), Force: q.Force}
}

// checkData refuses data of a contender that would be read as a request to give
// the lock up.
func checkData(data []byte) error {
	if r, _ := openEnvelope(data); r != nil {
		return fmt.Errorf("%w: Data reads as a request to give the lock up", ErrInvalid)
	}
	return nil
}

// Revoked returns a channel that is closed when somebody asks for the hold to be
// given up. The holder consents by Release; nothing happens if he does not,
// unless the request says so. A request is read some time after it was made, and
// at the earliest some 20 ms after an uncontended grant.
func (h *Hold) Revoked() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.revoked == nil {
		h.revoked = make(chan struct{})
		if h.request != nil {
			close(h.revoked)
		}
	}
	return h.revoked
}

// Revocation returns the latest request to give the hold up, if there is one. A
// request that another client wrote as the recipe or Curator has it says neither
// who nor why.
func (h *Hold) Revocation() (Revocation, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.request == nil {
		return Revocation{}, false
	}
	return *h.request, true
}

// look takes note of a request in the data of the hold's node.
func (h *Hold) look(data []byte) {
	r, _ := openEnvelope(data)
	if r == nil {
		return
	}
	h.mu.Lock()
	first := h.request == nil
	if !first && h.request.Force {
		r.Force = true // another request does not take back the force of an earlier one
	}
	h.request = r
	if first && h.revoked != nil {
		close(h.revoked)
	}
	path := h.path
	h.mu.Unlock()
	if first && h.trail != nil {
		h.trail.tell(context.Background(), RevocationRead{Where: h.trail.at(path), Revocation: *r})
	}
}

// Revoke asks whoever has the lock at this moment to give it up, and returns when
// he has, by consent, by force or otherwise; nobody having it is no error, unless
// another kind of recipe has the path (ErrKind). It does not take the lock. If ctx ends
// first the request stands all the same.
//
// Into the node of a client of another make the request is written as Curator's
// Revoker writes it, without By and Reason. Such a holder that is not revocable
// never consents, and one whose node is deleted by force may not notice.
func (m *Mutex) Revoke(ctx context.Context, o *RevokeOptions) error {
	return m.line().revoke(ctx, &m.path, o)
}

// Revoke asks all who have the lock at this moment, the writer or the readers, as
// Mutex.Revoke does.
func (rw *RWMutex) Revoke(ctx context.Context, o *RevokeOptions) error {
	return rw.line().revoke(ctx, &rw.path, o)
}

func (l *line) revoke(ctx context.Context, path *recipePath, o *RevokeOptions) error {
	if err := path.check("revoke"); err != nil {
		return err
	}
	var opts RevokeOptions
	if o != nil {
		opts = *o
	}
	if opts.Force < 0 {
		return opError("revoke", path.full, fmt.Errorf("%w: negative Force", ErrInvalid))
	}
	if !utf8.ValidString(opts.By) || !utf8.ValidString(opts.Reason) {
		return opError("revoke", path.full, fmt.Errorf("%w: By and Reason are text", ErrInvalid))
	}
	holders, err := l.holders(ctx)
	if err != nil {
		return opError("revoke", path.full, err)
	}
	q := requestJSON{By: opts.By, Reason: opts.Reason, At: time.Now().UnixMilli(), Force: opts.Force > 0}
	for _, h := range holders {
		if err := l.ask(ctx, h, &q, false); err != nil {
			return opError("revoke", h, err)
		}
	}
	// The time to consent begins when all have been asked.
	var deadline <-chan time.Time
	if opts.Force > 0 {
		t := time.NewTimer(opts.Force)
		defer t.Stop()
		deadline = t.C
	}
	forced := false
	for i := 0; i < len(holders); i++ {
		h := holders[i]
		for !forced {
			gone, err := l.awaitGone(ctx, h, deadline)
			if err != nil {
				return opError("revoke", h, err)
			}
			if gone {
				break
			}
			forced = true
		}
		if forced {
			if err := l.ask(ctx, h, &q, true); err != nil {
				return opError("revoke", h, err)
			}
		}
		// A writer that has downgraded still has the lock, on a reader's node
		// that knows nothing of the request.
		if at := strings.LastIndex(h, writeKind); l.kinds == sharedLine && at >= 0 {
			twin := h[:at] + readKind + h[at+len(writeKind):]
			if err := l.ask(ctx, twin, &q, false); err != nil {
				return opError("revoke", twin, err)
			}
			holders = append(holders, twin)
		}
	}
	return nil
}

// holders returns the paths of those whose turn it is.
func (l *line) holders(ctx context.Context) ([]string, error) {
	return onSession(ctx, l.c, func(s *session) ([]string, error) {
		names, err := s.list(ctx, l.dir)
		if err != nil {
			return nil, err
		}
		var paths []string
		queue := l.order(names)
		for i, q := range queue {
			if blocker(queue, i) >= 0 {
				break
			}
			paths = append(paths, l.dir+"/"+q.name)
		}
		if paths == nil {
			return nil, s.meet(ctx, l.ground()) // perhaps the holder is another recipe's
		}
		return paths, nil
	})
}

// ask writes the request into the node at path, and with force deletes it. It
// does so under the version that it has read: data that changed meanwhile is read
// again. A node that is gone is what was asked for. (A name is never used again,
// so the request cannot meet a successor.)
func (l *line) ask(ctx context.Context, path string, q *requestJSON, force bool) error {
	pause := pauses{c: l.c}
	_, err := onSession(ctx, l.c, func(s *session) (struct{}, error) {
		for {
			data, stat, err := s.b.Get(ctx, path, nil)
			if isNotFound(err) {
				return struct{}{}, nil
			}
			if err != nil {
				return struct{}{}, err
			}
			old, own := openEnvelope(data)
			mine := *q
			mine.Force = q.Force || old != nil && old.Force
			text, err := json.Marshal(envelope{Request: &mine, Data: own})
			if err != nil {
				return struct{}{}, err
			}
			if len(text) > backend.MaxRequest/2 {
				// The request matters more than what the contender says of himself.
				if text, err = json.Marshal(envelope{Request: &mine}); err != nil {
					return struct{}{}, err
				}
			}
			if !isOurs(base(path)) {
				text = []byte(curatorRequest) // all that a holder of Curator's understands
			}
			op := backend.SetData(path, text, stat.Version)
			if force {
				op = backend.Delete(path, stat.Version)
			}
			_, err = s.b.Commit(ctx, op)
			switch {
			case err == nil:
				tell(ctx, l.c, RevocationSent{Where: l.where("revoke", path), Revocation: mine.revocation(), Forced: force})
				return struct{}{}, nil
			case isNotFound(err):
				return struct{}{}, nil
			case errors.Is(err, backend.ErrBadVersion):
			case !mayRepeat(ctx, err):
				return struct{}{}, err
			default:
				pause.wait(ctx.Done(), s.b.Done())
			}
		}
	})
	return err
}

// awaitGone waits until the node at path is gone. It reports false when the
// deadline came first.
func (l *line) awaitGone(ctx context.Context, path string, deadline <-chan time.Time) (bool, error) {
	return onSession(ctx, l.c, func(s *session) (bool, error) { return s.awaitDeletion(ctx, path, deadline) })
}
