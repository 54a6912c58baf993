package layout

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// DeadReason says why an item is a dead letter. It is the data, in JSON, of the node
// r-<id> beside the item. A reader ignores unknown fields.
type DeadReason struct {
	Reason   string `json:"reason"`             // a word: a trace.Reason
	Error    string `json:"error,omitempty"`    // for people; it can quote data of the item
	Attempts int    `json:"attempts"`           // how often the item was taken
	Session  string `json:"session,omitempty"`  // of the last consumer, hexadecimal; empty: not known
	Queue    string `json:"queue"`              // the path of the queue that the item was in
	Priority int64  `json:"priority,omitempty"` // of an item of a PriorityQueue
	Due      int64  `json:"due,omitempty"`      // in the name that the item had in that queue

	// The data of the node with the options that the item had in that queue.
	Options json.RawMessage `json:"options,omitempty"`

	Key      string `json:"key,omitempty"`      // the hash of the key that the item had
	KeyUntil int64  `json:"keyUntil,omitempty"` // its time, see ItemKey

	Trace string `json:"trace,omitempty"` // the traceparent of its producer
}

// MaxReasonText is the maximum number of bytes of the text of an error in a DeadReason or a PutOff,
// as JSON.
const MaxReasonText = 1024

// Encode returns the data of the node, with the text of the error valid and cut at
// MaxReasonText.
func (r DeadReason) Encode() []byte {
	r.Error = boundedText(r.Error)
	r.Options = validOptions(r.Options)
	r.setKey(r.ItemKey())
	if !IsTraceParent(r.Trace) {
		r.Trace = ""
	}
	return plainJSON(r)
}

// PutOff is what the node d-<id>-<time> says beside its time, in JSON. Its data is empty if no cause is known. A
// reader ignores unknown fields.
type PutOff struct {
	Error string `json:"error,omitempty"` // why the latest attempt failed; as that of a DeadReason
}

// Encode returns the data of the node, with the text of the error valid and cut at MaxReasonText.
func (p PutOff) Encode() []byte {
	p.Error = boundedText(p.Error)
	return plainJSON(p)
}

// ParsePutOff decodes the data of the node. Data that an outsider wrote says nothing.
func ParsePutOff(data []byte) PutOff {
	var p PutOff
	if json.Unmarshal(data, &p) != nil {
		return PutOff{}
	}
	return p
}

// validOptions returns data if they are the options of an item, else nil.
func validOptions(data []byte) []byte {
	if _, ok := ParseItemOptions(data); !ok {
		return nil
	}
	return data
}

// boundedText returns the beginning of text, as valid UTF-8.
func boundedText(text string) string {
	const more = "…"
	end := ""
	if len(text) > MaxReasonText {
		text, end = cutText(text, MaxReasonText-len(more)-2), more
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	for len(plainJSON(text+end)) > MaxReasonText { // of control characters, which are long in JSON
		text, end = cutText(text, len(text)*7/8), more
	}
	return text + end
}

// cutText returns at most n bytes of text, and no part of a character.
func cutText(text string, n int) string {
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// plainJSON encodes a value that has a JSON. It does not escape the characters of HTML,
// because people read the data.
func plainJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(v) // no write to a buffer fails
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// ParseDeadReason decodes the data of the node. It reports false if they are not a reason:
// an outsider can have written them. Numbers that no client writes are replaced by the
// nearest ones.
func ParseDeadReason(data []byte) (DeadReason, bool) {
	var r DeadReason
	if json.Unmarshal(data, &r) != nil || r.Reason == "" {
		return DeadReason{}, false
	}
	r.Attempts = max(r.Attempts, 0)
	r.Due = min(max(r.Due, -MaxNumber), MaxNumber)
	r.Options = validOptions(r.Options)
	r.setKey(r.ItemKey())
	if !IsTraceParent(r.Trace) {
		r.Trace = ""
	}
	return r, true
}

// ItemKey returns the key that the item had.
func (r *DeadReason) ItemKey() ItemKey { return ItemKey{r.Key, r.KeyUntil}.valid() }

func (r *DeadReason) setKey(k ItemKey) { r.Key, r.KeyUntil = k.Hash, k.Until }

// SessionID returns the session, or 0 if it is not known.
func (r *DeadReason) SessionID() int64 {
	id, err := strconv.ParseUint(r.Session, 0, 64)
	if err != nil {
		return 0
	}
	return int64(id)
}

// DueAgain returns the due time in the name of the item when it is put back into its queue.
// It has passed, and no earlier name of the item in a queue of that kind has it, unless the
// queue never uses a number again.
func (r *DeadReason) DueAgain() int64 { return min(r.Due, 1) - 1 }

// SessionText formats the id of a session as ZooKeeper's own tools do.
func SessionText(id int64) string { return "0x" + strconv.FormatUint(uint64(id), 16) }
