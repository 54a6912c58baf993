package coord

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// queueBucket is a bucket as its name tells.
type queueBucket struct {
	key, n int64
	path   string
}

func (q *queue) bucketPath(key, n int64) string {
	return q.items + "/" + bucketKind + strconv.FormatInt(key, 10) + "-" + strconv.FormatInt(n, 10)
}

// buckets returns the buckets in the order in which they are read. Foreign names
// are left out.
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

// queueEntry is an item in a bucket, with all that the list of the bucket tells of it.
type queueEntry struct {
	bucket string // path
	seen   int64  // the latest change of the bucket's children that the list shows
	id     string
	name   string
	due    int64 // milliseconds since 1970, 0: at once
	seq    int32
	state  bool   // it was claimed before
	marked bool   // it is claimed
	off    int64  // it is put off until then
	putOff string // the name that says so
}

func (e *queueEntry) path() string    { return e.bucket + "/" + e.name }
func (e *queueEntry) stateAt() string { return e.bucket + "/" + stateKind + e.id }

// ready is when the item can be taken, as far as time is concerned.
func (e *queueEntry) ready() int64 { return max(e.due, e.off) }

// itemPrefix is the name of an item without its number.
func itemPrefix(id string, due int64) string {
	return itemKind + id + "-" + strconv.FormatInt(due, 10) + "-"
}

// bucketContents is what a list of a bucket tells.
type bucketContents struct {
	items  []queueEntry // in order
	litter []string     // what is left of items that an outsider deleted, or that went with their producer
}

// parseBucket reads the names in the bucket at path, whose latest change is seen.
func parseBucket(path string, names []string, seen int64) bucketContents {
	var c bucketContents
	byID := make(map[string]int, len(names))
	for _, name := range names {
		if id, rest, ok := cutID(name, itemKind); ok {
			// Both can be negative: a due time before 1970, and a number that has
			// gone round.
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
	// An outsider can have copied an item. The first one of an id counts: its state
	// and its mark belong to the id.
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

// isState reports whether a name is that of a state, or says that an item is put
// off.
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

// cutID splits a name into the id of the item and what follows it.
func cutID(name, kind string) (id, rest string, ok bool) {
	if len(name) < len(kind)+guidLen+2 || name[:len(kind)] != kind || name[len(kind)+guidLen] != '-' || !speakable(name) {
		return "", "", false
	}
	return name[len(kind) : len(kind)+guidLen], name[len(kind)+guidLen+1:], true
}
