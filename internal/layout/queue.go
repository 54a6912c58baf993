package layout

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The first characters of the names of a queue.
const (
	BucketPrefix  = "b-"
	ItemPrefix    = "i-"
	StatePrefix   = "s-"
	MarkPrefix    = "m-"
	PutOffPrefix  = "d-"
	ReasonPrefix  = "r-"
	OptionsPrefix = "o-"
	WaiterInfix   = "take-"
	RoomInfix     = "put-" // of a client that waits for room
	SlotPrefix    = "slot-"

	// Beside the buckets, see rules.go of internal/queue.
	TallyName = "tally" // its version continues that of the directory
	InName    = "in"    // its data counts the items that were put, if there is a limit
	OutName   = "out"   // its version counts the items that were deleted since
)

// SlotName returns the name of a slot: a node with a fixed name, beside the waiters.
func SlotName(i int) string { return SlotPrefix + strconv.Itoa(i) }

// ParseSlot returns the number of the slot that has such a name.
func ParseSlot(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, SlotPrefix)
	if !ok || len(rest) > 4 {
		return 0, false
	}
	i, err := strconv.Atoi(rest)
	return i, err == nil && i >= 0 && name == SlotName(i)
}

// CountsQueue reports whether name, beside the buckets, is that of a node that counts.
func CountsQueue(name string) bool { return name == TallyName || name == InName || name == OutName }

// MaxNumber is the highest number of a bucket. A higher one is an outsider's and is
// ignored.
const MaxNumber = 1 << 53

// Bucket is a bucket, parsed from its name.
type Bucket struct {
	Key, N int64
	Path   string
}

// DelayGrain is the span of the due times that share a key of a DelayQueue, in
// milliseconds.
const DelayGrain = int64(time.Minute / time.Millisecond)

// BucketPath returns the path of a bucket in the directory items.
func BucketPath(items string, key, n int64) string {
	return items + "/" + BucketPrefix + strconv.FormatInt(key, 10) + "-" + strconv.FormatInt(n, 10)
}

// Buckets returns the buckets in the directory items in the order in which they are
// read. It ignores foreign names.
func Buckets(items string, names []string) []Bucket {
	all := make([]Bucket, 0, len(names))
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, BucketPrefix)
		i := strings.LastIndexByte(rest, '-')
		if !ok || i < 1 {
			continue
		}
		key, err1 := strconv.ParseInt(rest[:i], 10, 64)
		n, err2 := strconv.ParseInt(rest[i+1:], 10, 64)
		b := Bucket{key, n, items + "/" + name}
		if err1 != nil || err2 != nil || n > MaxNumber || b.Path != BucketPath(items, key, n) {
			continue
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b Bucket) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.N, b.N))
	})
	return all
}

// QueueEntry is an item in a bucket, with everything that the list of the bucket
// shows about it.
type QueueEntry struct {
	Bucket  string // path
	Seen    int64  // the position of the list, backend.Stat.AsOf
	ID      string
	Name    string
	Due     int64 // milliseconds since 1970; 0: at once
	Seq     int64
	State   bool    // it was claimed before
	Marked  bool    // it is claimed now
	Off     int64   // the time until which it is put off
	PutOff  string  // the name of the node that puts it off
	Reason  bool    // a node says why it is in this queue of dead letters
	Options bool    // a node has its ItemOptions
	Tag     ItemKey // a node shows its key
	Trace   string  // a node shows the traceparent of its producer
}

func (e *QueueEntry) Path() string    { return e.Bucket + "/" + e.Name }
func (e *QueueEntry) StateAt() string { return e.Bucket + "/" + StatePrefix + e.ID }

// ReasonAt returns the path of the node that says why the item is a dead letter.
func (e *QueueEntry) ReasonAt() string { return e.Bucket + "/" + ReasonPrefix + e.ID }

// PutOffAt returns the path of the node that puts the item off.
func (e *QueueEntry) PutOffAt() string { return e.Bucket + "/" + e.PutOff }

// OptionsAt returns the path of the node with the options of the item.
func (e *QueueEntry) OptionsAt() string { return e.Bucket + "/" + OptionsPrefix + e.ID }

// TagAt returns the path of the node that shows the key of the item.
func (e *QueueEntry) TagAt() string { return e.Bucket + "/" + TagName(e.ID, e.Tag) }

// KeyAt returns the paths of the nodes of the item's key outside of the bucket: "" if it has none. It has no until if the
// key is in use only as long as the item is in the queue.
func (e *QueueEntry) KeyAt() (holder, until string) {
	if e.Tag.Hash == "" {
		return "", ""
	}
	items := e.Bucket[:max(strings.LastIndexByte(e.Bucket, '/'), 0)]
	dir := e.Tag.In(items[:max(strings.LastIndexByte(items, '/'), 0)] + "/" + KeysName)
	if e.Tag.Until > 0 {
		until = dir + "/" + e.Tag.UntilName(e.ID)
	}
	return dir + "/" + e.Tag.HolderName(), until
}

// Notes returns the paths of the nodes that are deleted with the item, but do not prevent its deletion if they are gone
// or cannot be deleted: its reason, its options, its trace context and the tag of its key, and behind the tag the other nodes of the key.
// With free the key is free afterwards, whatever its time.
func (e *QueueEntry) Notes(free bool) (paths []string) {
	if e.Reason {
		paths = append(paths, e.ReasonAt())
	}
	if e.Options {
		paths = append(paths, e.OptionsAt())
	}
	if e.Trace != "" {
		paths = append(paths, e.Bucket+"/"+TraceName(e.ID, e.Trace))
	}
	holder, until := e.KeyAt()
	if holder == "" {
		return paths
	}
	paths = append(paths, e.TagAt())
	if until == "" || free {
		paths = append(paths, holder)
	}
	if until != "" && free {
		paths = append(paths, until)
	}
	return paths
}

// IsNote reports whether a path is one of those that Notes returns.
func IsNote(path string) bool {
	name := path[strings.LastIndexByte(path, '/')+1:]
	for _, prefix := range [...]string{ReasonPrefix, OptionsPrefix, TracePrefix, TagPrefix, HolderPrefix, UntilPrefix} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Key returns the key of the item's bucket.
func (e *QueueEntry) Key() int64 {
	i := strings.LastIndexByte(e.Bucket, '/')
	for _, b := range Buckets(e.Bucket[:max(i, 0)], []string{e.Bucket[i+1:]}) {
		return b.Key
	}
	return 0
}

// Ready returns the time from which the item can be taken.
func (e *QueueEntry) Ready() int64 { return max(e.Due, e.Off) }

// ItemStem returns the name of an item without its sequence number.
func ItemStem(id string, due int64) string {
	return ItemPrefix + id + "-" + strconv.FormatInt(due, 10) + "-"
}

// BucketContents is what a list of a bucket shows.
type BucketContents struct {
	Items  []QueueEntry // in order
	Litter []string     // nodes whose item is gone: deleted by an outsider, or with its producer's session
}

// ParseBucket parses the names in the bucket at path. seen is the position of the
// list.
func ParseBucket(path string, names []string, seen int64) BucketContents {
	var c BucketContents
	byID := make(map[string]int, len(names))
	for _, name := range names {
		if id, rest, ok := CutID(name, ItemPrefix); ok {
			// Both can have a sign: a due time before 1970, and a sequence number
			// after the overflow.
			sign := 0
			if strings.HasPrefix(rest, "-") {
				sign = 1
			}
			due, seq, ok := strings.Cut(rest[sign:], "-")
			at, err := strconv.ParseInt(rest[:sign]+due, 10, 64)
			n, isSeq := ParseDigits(seq)
			if ok && err == nil && isSeq {
				c.Items = append(c.Items, QueueEntry{Bucket: path, Seen: seen, ID: id, Name: name, Due: at, Seq: n})
				continue
			}
		}
	}
	slices.SortFunc(c.Items, func(a, b QueueEntry) int {
		return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Seq, b.Seq))
	})
	// An outsider can have copied an item. The first item with an id counts,
	// because the state and the mark belong to the id.
	c.Items = slices.DeleteFunc(c.Items, func(e QueueEntry) bool {
		if _, twice := byID[e.ID]; twice {
			return true
		}
		byID[e.ID] = len(byID)
		return false
	})
	marked := make(map[string]bool)
	for _, name := range names {
		if id, _, ok := CutID(name, MarkPrefix); ok {
			marked[id] = true
			if i, ok := byID[id]; ok {
				c.Items[i].Marked = true
			}
		}
	}
	for _, name := range names {
		if !IsState(name) {
			continue
		}
		id := name[2 : 2+GUIDLen]
		i, ok := byID[id]
		switch {
		case !ok && !marked[id]:
			c.Litter = append(c.Litter, name)
		case !ok:
		case name[:2] == StatePrefix:
			c.Items[i].State = true
		case name[:2] == ReasonPrefix:
			c.Items[i].Reason = true
		case name[:2] == OptionsPrefix:
			c.Items[i].Options = true
		case name[:2] == TagPrefix:
			_, c.Items[i].Tag, _ = ParseTag(name)
		case name[:2] == TracePrefix:
			_, c.Items[i].Trace, _ = ParseTrace(name)
		default:
			_, at, _ := CutID(name, PutOffPrefix)
			if t, err := strconv.ParseInt(at, 10, 64); err == nil {
				c.Items[i].Off, c.Items[i].PutOff = t, name
			}
		}
	}
	return c
}

// Attempts returns the data of the state of an item that was claimed n times. nacked: the last of
// these claims ended with a Nack, so it was not lost. Versions that do not know the sign read the
// same number.
func Attempts(n int, nacked bool) []byte {
	if nacked {
		return []byte("+" + strconv.Itoa(n))
	}
	return []byte(strconv.Itoa(n))
}

// ParseAttempts is the inverse of Attempts. Data that an outsider wrote counts as one claim.
func ParseAttempts(data []byte) (n int, nacked bool) {
	n, err := strconv.Atoi(string(data))
	if err != nil || n < 0 {
		return 1, false
	}
	return min(n, math.MaxInt32), data[0] == '+'
}

// IsState reports whether a name is that of a state node, of a node that puts an item
// off, of the reason of a dead letter, or of the options, the key or the trace context of an item.
func IsState(name string) bool {
	if len(name) == 2+GUIDLen && (name[:2] == StatePrefix || name[:2] == ReasonPrefix || name[:2] == OptionsPrefix) {
		return Speakable(name)
	}
	if _, _, ok := ParseTag(name); ok {
		return true
	}
	if _, _, ok := ParseTrace(name); ok {
		return true
	}
	_, at, ok := CutID(name, PutOffPrefix)
	if !ok {
		return false
	}
	_, err := strconv.ParseInt(at, 10, 64)
	return err == nil
}

// CutID splits a name into the id of the item and the rest.
func CutID(name, kind string) (id, rest string, ok bool) {
	if len(name) < len(kind)+GUIDLen+2 || name[:len(kind)] != kind || name[len(kind)+GUIDLen] != '-' || !Speakable(name) {
		return "", "", false
	}
	return name[len(kind) : len(kind)+GUIDLen], name[len(kind)+GUIDLen+1:], true
}
