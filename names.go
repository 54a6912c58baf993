package coord

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

// lineKinds determines which names are contenders in a line.
type lineKinds int8

const (
	lockLine   lineKinds = iota // exclusive holders
	sharedLine                  // readers and writers
	latchLine                   // candidates
)

// The infix before the number in the names of nodes: Curator's, and kazoo's.
const (
	lockKind      = "lock-"
	latchKind     = "latch-"
	kazooLockKind = "__lock__" // of kazoo's Election too
	readKind      = "__READ__"
	writeKind     = "__WRIT__"
)

// position is one contender's node in the order of the line.
type position struct {
	name   string
	seq    int32
	shared bool // a reader
}

// is reports whether p is the node q, or the node that a downgrade of q has created.
func (q position) is(p position) bool {
	id := len(guidPrefix) + guidLen
	return p.seq == q.seq && len(p.name) == len(q.name) && len(q.name) > id && p.name[:id] == q.name[:id]
}

// parse parses the name of a contender. Every other name in the directory is foreign,
// and not in the queue.
func (k lineKinds) parse(name string) (position, bool) {
	if k == sharedLine {
		if seq, ok := parseSeq(name, readKind); ok {
			return position{name, seq, true}, true
		}
		seq, ok := parseSeq(name, writeKind)
		return position{name, seq, false}, ok
	}
	kind := lockKind
	if k == latchLine {
		kind = latchKind
	}
	seq, ok := parseSeq(name, kind)
	if !ok {
		seq, ok = parseSeq(name, kazooLockKind)
	}
	return position{name, seq, false}, ok
}

// ZooKeeper numbers the children of a node with an int32 that never goes back. At
// 2^31-1 it begins to repeat the number, and then two contenders both find themselves
// first: exclusion breaks. (ZOOKEEPER-4372; two clients of go-zookeeper were made to
// hold one lock that way.) So a directory is replaced before that: a new one begins at
// zero, and tokens go on growing, since they are czxids.
//
//   - From seqSoft on, a holder that releases with no contender behind it deletes the
//     directory together with its own node. The next contender creates a new one.
//   - From seqClose on, which is reached only if the queue was never empty, a new
//     contender withdraws and waits until the queue has drained. Then the first
//     contender to find it empty deletes the directory, and all go to the new one.
//   - From seqHard on, contenders get ErrLimit. Only clients that do not keep these
//     rules get a directory there.
const (
	seqSoft  = 2_000_000_000
	seqClose = 2_100_000_000
	seqHard  = 2_147_000_000
)

// permitKind is the infix before the weight in the name of a request.
const permitKind = "permit-"

// permit is a request in the queue of a semaphore.
type permit struct {
	name   string
	seq    int32
	weight int
}

// parsePermit parses the name of a request. Every other name in the directory is
// foreign.
func parsePermit(name string) (permit, bool) {
	i := strings.LastIndex(name, permitKind)
	if i < 0 {
		return permit{}, false
	}
	weight, number, ok := strings.Cut(name[i+len(permitKind):], "-")
	if !ok || weight == "" || weight[0] < '1' || weight[0] > '9' {
		return permit{}, false
	}
	n, err := strconv.ParseInt(weight, 10, 32)
	if err != nil {
		return permit{}, false
	}
	seq, ok := parseDigits(number)
	return permit{name, seq, int(n)}, ok && speakable(name)
}

const (
	memberKind = "member-"

	// maxMemberID is the maximum length of an id in bytes. A whole name stays within
	// the maximum of a file name, which other backends could need.
	maxMemberID = 200
)

// memberNode is a member's node, parsed from its name.
type memberNode struct {
	name string
	id   string
	seq  int32
}

// older reports whether n was created before m.
func (n memberNode) older(m memberNode) bool { return bySeq(n.seq, n.name, m.seq, m.name) < 0 }

// parseMember parses the name of a member's node. It takes the number from the end, so
// an id may have any form. Numbers that no member has are foreign: with negative
// numbers, an id that ends with a dash would be ambiguous.
func parseMember(name string) (memberNode, bool) {
	const digits = 10
	rest, ok := strings.CutPrefix(name, guidPrefix)
	if !ok || len(rest) < guidLen || backend.CheckPath("/"+name) != nil || !isGUID(rest[:guidLen]) {
		return memberNode{}, false
	}
	rest, ok = strings.CutPrefix(rest[guidLen:], "-"+memberKind)
	i := len(rest) - digits
	if !ok || i < 2 || rest[i-1] != '-' {
		return memberNode{}, false
	}
	seq, ok := parseDigits(rest[i:])
	if !ok || seq < 0 || seq >= seqHard {
		return memberNode{}, false
	}
	return memberNode{name: name, id: rest[:i-1], seq: seq}, true
}

// isGUID reports whether s, of length guidLen, has the form of a GUID.
func isGUID(s string) bool {
	for i := range guidLen {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return false
			}
		}
	}
	return true
}

// The kinds of nodes in the directory of members. Names are never used again, and a
// wrap of the numbers affects only the order of the members, so the directory needs no
// ceiling.
const (
	entrantKind = "member-"
	extraKind   = "guest-"
)

// The first characters of the names of a queue.
const (
	bucketKind = "b-"
	itemKind   = "i-"
	stateKind  = "s-"
	markKind   = "m-"
	putOffKind = "d-"
	waiterKind = "take-"

	tallyName = "tally" // beside the buckets, see tally
)

func parseCount(data []byte) (int64, error) {
	text := strings.TrimSpace(string(data))
	if text == "" {
		return 0, nil
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: the counter holds %d bytes that are not an int64", ErrDecode, len(data))
	}
	return v, nil
}
