package layout

import (
	"math"
	"slices"
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
	Seq    int64
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
// zero, and tokens continue growing, since they are czxids.
//
//   - With LeftSoft numbers left, a holder that releases with no contender behind it deletes the
//     directory together with its own node. The next contender creates a new one.
//   - With LeftClose left, which is reached only if the queue was never empty, a new
//     contender withdraws and waits until the queue has drained. Then the first
//     contender to find it empty deletes the directory, and all go to the new one.
//   - With LeftHard left, contenders get ErrLimit. Only clients that do not keep these
//     rules get a directory there.
//
// Other services have more numbers, see backend.Limits.
const (
	LeftSoft  = math.MaxInt32 - 2_000_000_000
	LeftClose = math.MaxInt32 - 2_100_000_000
	LeftHard  = math.MaxInt32 - 2_147_000_000
)

// Recipe returns the kind of recipe whose contenders these are.
func (k LineKinds) Recipe() RecipeKind {
	return [...]RecipeKind{LockLine: KindMutex, SharedLine: KindRWMutex, LatchLine: KindElection}[k]
}

// Order returns the contenders among the children, in the order of arrival. It sorts by
// the number alone, never by the whole name.
func (k LineKinds) Order(names []string) []Position {
	var queue []Position
	for _, name := range names {
		if q, ok := k.Parse(name); ok {
			queue = append(queue, q)
		}
	}
	slices.SortFunc(queue, func(a, b Position) int { return BySeq(a.Seq, a.Name, b.Seq, b.Name) })
	return queue
}

// Blocker returns the index of the contender for which the contender at i waits, or -1 if the
// contender at i is granted.
func Blocker(queue []Position, i int) int {
	if !queue[i].Shared {
		return i - 1
	}
	for i--; i >= 0 && queue[i].Shared; i-- {
	}
	return i
}
