package coord

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// queueBucket is a bucket, parsed from its name.
type queueBucket struct {
	key, n int64
	path   string
}

func (q *queue) bucketPath(key, n int64) string {
	return q.items + "/" + bucketKind + strconv.FormatInt(key, 10) + "-" + strconv.FormatInt(n, 10)
}

// buckets returns the buckets in the order in which they are read. It ignores
// foreign names.
func (q *queue) buckets(names []string) []queueBucket {
	all := make([]queueBucket, 0, len(names))
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, bucketKind)
		i := strings.LastIndexByte(rest, '-')
		if !ok || i < 1 {
			continue
		}
		key, err1 := strconv.ParseInt(rest[:i], 10, 64)
		n, err2 := strconv.ParseInt(rest[i+1:], 10, 64)
		b := queueBucket{key, n, q.items + "/" + name}
		if err1 != nil || err2 != nil || n > maxNumber || b.path != q.bucketPath(key, n) {
			continue
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b queueBucket) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.n, b.n))
	})
	return all
}

// queueEntry is an item in a bucket, with everything that the list of the bucket
// shows about it.
type queueEntry struct {
	bucket string // path
	seen   int64  // the bucket's Pzxid in the list: its latest change of children
	id     string
	name   string
	due    int64 // milliseconds since 1970; 0: at once
	seq    int32
	state  bool   // it was claimed before
	marked bool   // it is claimed now
	off    int64  // the time until which it is put off
	putOff string // the name of the node that puts it off
}

func (e *queueEntry) path() string    { return e.bucket + "/" + e.name }
func (e *queueEntry) stateAt() string { return e.bucket + "/" + stateKind + e.id }

// ready returns the time from which the item can be taken.
func (e *queueEntry) ready() int64 { return max(e.due, e.off) }

// itemPrefix returns the name of an item without its sequence number.
func itemPrefix(id string, due int64) string {
	return itemKind + id + "-" + strconv.FormatInt(due, 10) + "-"
}

// bucketContents is what a list of a bucket shows.
type bucketContents struct {
	items  []queueEntry // in order
	litter []string     // nodes whose item is gone: deleted by an outsider, or with its producer's session
}

// parseBucket parses the names in the bucket at path. seen is the Pzxid of the
// list.
func parseBucket(path string, names []string, seen int64) bucketContents {
	var c bucketContents
	byID := make(map[string]int, len(names))
	for _, name := range names {
		if id, rest, ok := cutID(name, itemKind); ok {
			// Both can be negative: a due time before 1970, and a sequence number
			// that has wrapped around.
			sign := 0
			if strings.HasPrefix(rest, "-") {
				sign = 1
			}
			due, seq, ok := strings.Cut(rest[sign:], "-")
			at, err := strconv.ParseInt(rest[:sign]+due, 10, 64)
			n, isSeq := parseDigits(seq)
			if ok && err == nil && isSeq {
				c.items = append(c.items, queueEntry{bucket: path, seen: seen, id: id, name: name, due: at, seq: n})
				continue
			}
		}
	}
	slices.SortFunc(c.items, func(a, b queueEntry) int {
		if d := cmp.Compare(a.due, b.due); d != 0 {
			return d
		}
		return int(int64(a.seq) - int64(b.seq))
	})
	// An outsider can have copied an item. The first item with an id counts,
	// because the state and the mark belong to the id.
	c.items = slices.DeleteFunc(c.items, func(e queueEntry) bool {
		if _, twice := byID[e.id]; twice {
			return true
		}
		byID[e.id] = len(byID)
		return false
	})
	marked := make(map[string]bool)
	for _, name := range names {
		if id, _, ok := cutID(name, markKind); ok {
			marked[id] = true
			if i, ok := byID[id]; ok {
				c.items[i].marked = true
			}
		}
	}
	for _, name := range names {
		if !isState(name) {
			continue
		}
		id := name[2 : 2+guidLen]
		i, ok := byID[id]
		switch {
		case !ok && !marked[id]:
			c.litter = append(c.litter, name)
		case !ok:
		case name[:2] == stateKind:
			c.items[i].state = true
		default:
			_, at, _ := cutID(name, putOffKind)
			if t, err := strconv.ParseInt(at, 10, 64); err == nil {
				c.items[i].off, c.items[i].putOff = t, name
			}
		}
	}
	return c
}

// isState reports whether a name is that of a state node or of a node that puts an
// item off.
func isState(name string) bool {
	if len(name) == 2+guidLen && name[:2] == stateKind {
		return speakable(name)
	}
	_, at, ok := cutID(name, putOffKind)
	if !ok {
		return false
	}
	_, err := strconv.ParseInt(at, 10, 64)
	return err == nil
}

// cutID splits a name into the id of the item and the rest.
func cutID(name, kind string) (id, rest string, ok bool) {
	if len(name) < len(kind)+guidLen+2 || name[:len(kind)] != kind || name[len(kind)+guidLen] != '-' || !speakable(name) {
		return "", "", false
	}
	return name[len(kind) : len(kind)+guidLen], name[len(kind)+guidLen+1:], true
}
