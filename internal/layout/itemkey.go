package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// The names of the nodes of keys. See K1 to K7 in rules.go of internal/queue.
const (
	TagPrefix    = "k-" // beside the item
	HolderPrefix = "h-" // in the directory of keys
	UntilPrefix  = "u-" // in the directory of keys

	KeysName = "keys"

	hashLen = 32
)

// An ItemKey is the key of an item, as the names of nodes show it. The zero ItemKey means that the item has no key.
type ItemKey struct {
	Hash string // of the key, hexadecimal

	// Until is the time until which the key stays in use, also without the item, in milliseconds since 1970. With 0
	// it stays in use as long as the item is in the queue.
	Until int64
}

// HashKey returns the first 128 bits of the SHA-256 hash of a key. To find two keys with the same hash takes some 2^64 attempts.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:hashLen/2])
}

// valid returns k if its parts are possible, else the zero ItemKey.
func (k ItemKey) valid() ItemKey {
	if len(k.Hash) != hashLen || strings.Trim(k.Hash, "0123456789abcdef") != "" || k.Until < 0 || k.Until > MaxNumber {
		return ItemKey{}
	}
	return k
}

func (k ItemKey) text() string { return k.Hash + "-" + strconv.FormatInt(k.Until, 10) }

// parseItemKey is the inverse of text.
func parseItemKey(text string) (ItemKey, bool) {
	hash, until, _ := strings.Cut(text, "-")
	n, err := strconv.ParseInt(until, 10, 64)
	k := ItemKey{hash, n}.valid()
	return k, err == nil && k.Hash != "" && k.text() == text
}

// TagName returns the name of the node beside an item that shows the item's key.
func TagName(id string, k ItemKey) string { return TagPrefix + id + "-" + k.text() }

// ParseTag is the inverse of TagName.
func ParseTag(name string) (id string, k ItemKey, ok bool) {
	id, rest, ok := CutID(name, TagPrefix)
	if ok {
		k, ok = parseItemKey(rest)
	}
	return id, k, ok
}

// In returns the directory of the nodes of the key in the directory keys of a queue.
func (k ItemKey) In(keys string) string { return keys + "/" + k.Hash[:2] }

// HolderName returns the name of the node that says which item has the key.
func (k ItemKey) HolderName() string { return HolderPrefix + k.Hash }

// UntilName returns the name of the node that shows until when the key of the item with this id stays in use.
func (k ItemKey) UntilName(id string) string { return UntilPrefix + k.text() + "-" + id }

// ParseUntil is the inverse of UntilName.
func ParseUntil(name string) (id string, k ItemKey, ok bool) {
	rest, ok := strings.CutPrefix(name, UntilPrefix)
	i := len(rest) - GUIDLen - 1
	if !ok || i < 0 || rest[i] != '-' || !Speakable(name) {
		return "", ItemKey{}, false
	}
	k, ok = parseItemKey(rest[:i])
	return rest[i+1:], k, ok
}

// A KeyHolder is the item that has a key. It is the data, in JSON, of the node h-<hash>. A reader ignores unknown
// fields.
type KeyHolder struct {
	ID     string `json:"id"`
	Bucket string `json:"bucket"` // the name of the bucket in which the item is, or was
	Until  int64  `json:"until,omitempty"`
}

func (h KeyHolder) Encode() []byte { return plainJSON(h) }

// ParseKeyHolder decodes the data of the node. It reports false if they name no item: an outsider can have written
// them.
func ParseKeyHolder(data []byte) (KeyHolder, bool) {
	var h KeyHolder
	if json.Unmarshal(data, &h) != nil || len(h.ID) != GUIDLen || strings.Contains(h.ID, "/") || !Speakable(h.ID) || len(Buckets("", []string{h.Bucket})) == 0 {
		return KeyHolder{}, false
	}
	h.Until = min(max(h.Until, 0), MaxNumber)
	return h, true
}
