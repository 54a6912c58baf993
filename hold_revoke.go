package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-coord/coord/trace"
)

// Revocation is a request to give a lock up: the recipe of the revocable shared lock of
// the ZooKeeper recipe guide. It is written into the holder's node, so it is bound to
// that holder and is deleted with that node; no successor ever sees it.
type Revocation struct {
	By     string    // the requester, in its own words
	Reason string    // the reason
	At     time.Time // the time of the request, by the requester's clock
	Force  bool      // the node will be deleted if the holder does not release
}

// Requests in the formats of other implementations.
const (
	recipeRequest  = "unlock"     // the recipe guide
	curatorRequest = "__REVOKE__" // Curator's Revoker
)

// envelope is the data of a holder's node after a request of this package: the request
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

// openEnvelope reads a request from a node's data. The second result is the contender's
// own data, if it is still available.
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
		return nil, data // a contender's own data that happens to begin so
	}
	r := e.Request.revocation()
	return &r, e.Data
}

func (q *requestJSON) revocation() Revocation {
	return Revocation{By: q.By, Reason: q.Reason, At: time.UnixMilli(q.At), Force: q.Force}
}

// checkData refuses a contender's data that would be read as a request to give the lock
// up.
func checkData(data []byte) error {
	if r, _ := openEnvelope(data); r != nil {
		return fmt.Errorf("%w: Data reads as a request to give the lock up", ErrInvalid)
	}
	return nil
}

// Revoked returns a channel that is closed when a client requests the holder to give
// the hold up. The holder consents by calling Release. Without consent nothing happens,
// unless the request says so. A request is read some time after it was made, and at the
// earliest some 20 ms after an uncontended grant.
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

// Revocation returns the latest request to give the hold up, if there is one. A request
// in the format of the recipe guide or of Curator has neither requester nor reason.
func (h *Hold) Revocation() (Revocation, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.request == nil {
		return Revocation{}, false
	}
	return *h.request, true
}

// look records a request in the data of the hold's node.
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
		h.trail.tell(context.Background(), trace.RevocationRead{Subject: h.trail.at(path), By: r.By, Reason: r.Reason, Force: r.Force})
	}
}
