package layout

import (
	"bytes"
	"encoding/json"
	"time"
)

// Revocation is a request to give a lock up, as it stands in the holder's node.
type Revocation struct {
	By     string    // the requester, in its own words
	Reason string    // the reason
	At     time.Time // the time of the request, by the requester's clock
	Force  bool      // the node will be deleted if the holder does not release
}

// Requests in the formats of other implementations.
const (
	recipeRequest  = "unlock"     // the recipe guide
	CuratorRequest = "__REVOKE__" // Curator's Revoker
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

// Encode returns the data of a holder's node with the request r. own is the holder's own
// data.
func (r *Revocation) Encode(own []byte) ([]byte, error) {
	return json.Marshal(envelope{&requestJSON{r.By, r.Reason, r.At.UnixMilli(), r.Force}, own})
}

// OpenEnvelope reads a request from a node's data. The second result is the contender's
// own data, if it is still available.
func OpenEnvelope(data []byte) (*Revocation, []byte) {
	switch string(data) {
	case recipeRequest, CuratorRequest:
		return &Revocation{}, nil
	}
	if !bytes.HasPrefix(data, envelopeStart) {
		return nil, data
	}
	var e envelope
	if json.Unmarshal(data, &e) != nil || e.Request == nil {
		return nil, data // a contender's own data that happens to begin so
	}
	q := e.Request
	return &Revocation{q.By, q.Reason, time.UnixMilli(q.At), q.Force}, e.Data
}

// IsRequest reports whether data reads as a request to give the lock up.
func IsRequest(data []byte) bool {
	r, _ := OpenEnvelope(data)
	return r != nil
}

// contenderJSON is the stored form of the ID and the Data of a contender for a lock.
type contenderJSON struct {
	ID   string `json:"id"`
	Keep string `json:"keep,omitempty"` // a time.Duration
	Data []byte `json:"data,omitempty"`
}

type contenderEnvelope struct {
	Contender *contenderJSON `json:"coord-contender"`
}

var contenderStart = []byte(`{"coord-contender":`)

// EncodeContender returns the data of a contender's node. keep is the time for which its
// client may keep the node, or 0. The data is own unchanged if there is neither ID nor keep
// and own cannot be mistaken for an envelope of an ID. It can still read as a request.
func EncodeContender(id string, keep time.Duration, own []byte) ([]byte, error) {
	if id == "" && keep == 0 && !bytes.HasPrefix(own, contenderStart) {
		return own, nil
	}
	c := contenderJSON{ID: id, Data: own}
	if keep != 0 {
		c.Keep = keep.String()
	}
	return json.Marshal(contenderEnvelope{&c})
}

// OpenContender returns the ID and the Data of a contender from the data of its node,
// from which the envelope of a revocation request, if any, was removed. For a node of
// another implementation, Data is all of it.
func OpenContender(data []byte) (id string, own []byte) {
	if c := openContender(data); c != nil {
		return c.ID, c.Data
	}
	return "", data
}

// KeepOf returns the time for which the client of a contender may keep the node with such
// data, or 0.
func KeepOf(data []byte) time.Duration {
	if c := openContender(data); c != nil {
		if keep, err := time.ParseDuration(c.Keep); err == nil && keep > 0 {
			return keep
		}
	}
	return 0
}

func openContender(data []byte) *contenderJSON {
	var e contenderEnvelope
	if bytes.HasPrefix(data, contenderStart) && json.Unmarshal(data, &e) == nil {
		return e.Contender
	}
	return nil
}

// Candidate is what a candidate publishes about itself.
type Candidate struct {
	ID   string `json:"id"`
	Data []byte `json:"data,omitempty"`
}

type candidateEnvelope struct {
	Candidate *Candidate `json:"coord-candidate"`
}

var candidateStart = []byte(`{"coord-candidate":`)

// Encode returns the plain ID, as Curator stores it, if there is no Data and the ID
// cannot be mistaken for an envelope.
func (c *Candidate) Encode() ([]byte, error) {
	plain := []byte(c.ID)
	if len(c.Data) == 0 && !bytes.HasPrefix(plain, candidateStart) && !IsRequest(plain) {
		return plain, nil
	}
	return json.Marshal(candidateEnvelope{c})
}

// OpenCandidate decodes what a candidate publishes about itself. Data that is not
// such an envelope is an ID.
func OpenCandidate(data []byte) Candidate {
	var e candidateEnvelope
	if bytes.HasPrefix(data, candidateStart) && json.Unmarshal(data, &e) == nil && e.Candidate != nil {
		return *e.Candidate
	}
	return Candidate{ID: string(data)}
}
