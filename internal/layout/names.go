package layout

import (
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

// LineKinds determines which names are contenders in a line.
type LineKinds int8

const (
	LockLine   LineKinds = iota // exclusive holders
	SharedLine                  // readers and writers
	LatchLine                   // candidates
)

// The infix before the number in the names of nodes: Curator's, and kazoo's.
const (
	LockInfix  = "lock-"
	LatchInfix = "latch-"
	KazooInfix = "__lock__" // of kazoo's Election too
	ReadInfix  = "__READ__"
	WriteInfix = "__WRIT__"
)

// Position is one contender's node in the order of the line.
type Position struct {
	Name   string
	Seq    int32
	Shared bool // a reader
}

// Is reports whether p is the node q, or the node that a downgrade of q has created.
func (q Position) Is(p Position) bool {
	id := len(GUIDPrefix) + GUIDLen
	return p.Seq == q.Seq && len(p.Name) == len(q.Name) && len(q.Name) > id && p.Name[:id] == q.Name[:id]
}

// Parse parses the name of a contender. Every other name in the directory is foreign,
// and not in the queue.
func (k LineKinds) Parse(name string) (Position, bool) {
	if k == SharedLine {
		if seq, ok := ParseSeq(name, ReadInfix); ok {
			return Position{name, seq, true}, true
		}
		seq, ok := ParseSeq(name, WriteInfix)
		return Position{name, seq, false}, ok
	}
	kind := LockInfix
	if k == LatchLine {
		kind = LatchInfix
	}
	seq, ok := ParseSeq(name, kind)
	if !ok {
		seq, ok = ParseSeq(name, KazooInfix)
	}
	return Position{name, seq, false}, ok
}

// ZooKeeper numbers the children of a node with an int32 that never goes back. At
// 2^31-1 it begins to repeat the number, and then two contenders both find themselves
// first: exclusion breaks. (ZOOKEEPER-4372; two clients of go-zookeeper were made to
// hold one lock that way.) So a directory is replaced before that: a new one begins at
// zero, and tokens go on growing, since they are czxids.
//
//   - From SeqSoft on, a holder that releases with no contender behind it deletes the
//     directory together with its own node. The next contender creates a new one.
//   - From SeqClose on, which is reached only if the queue was never empty, a new
//     contender withdraws and waits until the queue has drained. Then the first
//     contender to find it empty deletes the directory, and all go to the new one.
//   - From SeqHard on, contenders get ErrLimit. Only clients that do not keep these
//     rules get a directory there.
const (
	SeqSoft  = 2_000_000_000
	SeqClose = 2_100_000_000
	SeqHard  = 2_147_000_000
)

// PermitInfix is the infix before the weight in the name of a request.
const PermitInfix = "permit-"

// Permit is a request in the queue of a semaphore.
type Permit struct {
	Name   string
	Seq    int32
	Weight int
}

// ParsePermit parses the name of a request. Every other name in the directory is
// foreign.
func ParsePermit(name string) (Permit, bool) {
	i := strings.LastIndex(name, PermitInfix)
	if i < 0 {
		return Permit{}, false
	}
	weight, number, ok := strings.Cut(name[i+len(PermitInfix):], "-")
	if !ok || weight == "" || weight[0] < '1' || weight[0] > '9' {
		return Permit{}, false
	}
	n, err := strconv.ParseInt(weight, 10, 32)
	if err != nil {
		return Permit{}, false
	}
	seq, ok := ParseDigits(number)
	return Permit{name, seq, int(n)}, ok && Speakable(name)
}

const (
	MemberInfix = "member-"

	// MaxMemberID is the maximum length of an id in bytes. A whole name stays within
	// the maximum of a file name, which other backends could need.
	MaxMemberID = 200
)

// MemberNode is a member's node, parsed from its name.
type MemberNode struct {
	Name string
	ID   string
	Seq  int32
}

// Older reports whether n was created before m.
func (n MemberNode) Older(m MemberNode) bool { return BySeq(n.Seq, n.Name, m.Seq, m.Name) < 0 }

// ParseMember parses the name of a member's node. It takes the number from the end, so
// an id may have any form. Numbers that no member has are foreign: with negative
// numbers, an id that ends with a dash would be ambiguous.
func ParseMember(name string) (MemberNode, bool) {
	const digits = 10
	rest, ok := strings.CutPrefix(name, GUIDPrefix)
	if !ok || len(rest) < GUIDLen || backend.CheckPath("/"+name) != nil || !IsGUID(rest[:GUIDLen]) {
		return MemberNode{}, false
	}
	rest, ok = strings.CutPrefix(rest[GUIDLen:], "-"+MemberInfix)
	i := len(rest) - digits
	if !ok || i < 2 || rest[i-1] != '-' {
		return MemberNode{}, false
	}
	seq, ok := ParseDigits(rest[i:])
	if !ok || seq < 0 || seq >= SeqHard {
		return MemberNode{}, false
	}
	return MemberNode{Name: name, ID: rest[:i-1], Seq: seq}, true
}

// IsGUID reports whether s, of length GUIDLen, has the form of a GUID.
func IsGUID(s string) bool {
	for i := range GUIDLen {
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
	EntrantInfix = "member-"
	ExtraInfix   = "guest-"
)

// The first characters of the names of a queue.
const (
	BucketPrefix = "b-"
	ItemPrefix   = "i-"
	StatePrefix  = "s-"
	MarkPrefix   = "m-"
	PutOffPrefix = "d-"
	WaiterInfix  = "take-"

	TallyName = "tally" // beside the buckets, see tally
)
