package layout

import "encoding/json"

// ItemOptions are the options of one item. They are the data, in JSON, of the node o-<id> beside the item. An
// item without options has no such node.
//
// A reader ignores unknown fields. No client changes the node: a move to the dead letters copies its data into the
// DeadReason, and a Redrive back, both unchanged. So a field of a later version survives an earlier one.
type ItemOptions struct {
	MaxAttempts int `json:"maxAttempts,omitempty"` // replaces that of the queue; 0: none
}

// MaxItemOptions is the maximum number of bytes of the data that a client reads or copies.
const MaxItemOptions = 4096

// Encode returns the data of the node, or nil if there are no options.
func (o ItemOptions) Encode() []byte {
	if o == (ItemOptions{}) {
		return nil
	}
	return plainJSON(o)
}

// ParseItemOptions decodes the data of the node. It reports false, with zero options, if they are not an object of
// JSON, or too long: an outsider can have written them.
func ParseItemOptions(data []byte) (ItemOptions, bool) {
	var o ItemOptions
	var object map[string]json.RawMessage
	if len(data) > MaxItemOptions || json.Unmarshal(data, &object) != nil || object == nil || json.Unmarshal(data, &o) != nil {
		return ItemOptions{}, false
	}
	o.MaxAttempts = max(o.MaxAttempts, 0)
	return o, true
}
