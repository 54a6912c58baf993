package layout

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

// RecipeKind is the name of a kind of recipe, or of a directory within one.
type RecipeKind string

const (
	KindMutex         RecipeKind = "mutex"
	KindRWMutex       RecipeKind = "rwmutex"
	KindElection      RecipeKind = "election"
	KindSemaphore     RecipeKind = "semaphore"
	KindGroup         RecipeKind = "group"
	KindBarrier       RecipeKind = "barrier"
	KindDoubleBarrier RecipeKind = "doublebarrier"
	KindQueue         RecipeKind = "queue"
	KindPriorityQueue RecipeKind = "priorityqueue"
	KindDelayQueue    RecipeKind = "delayqueue"
	KindTwoPhase      RecipeKind = "twophase"
	KindShards        RecipeKind = "shards"
	KindSchedule      RecipeKind = "schedule"
	KindValue         RecipeKind = "value"   // its mark is of a persistent node with nodes below it from which a value was deleted
	KindCounter       RecipeKind = "counter" // has no mark

	KindDirectory RecipeKind = "directory" // above recipes; no Value, Counter or Barrier is set there

	// Directories within a recipe.
	KindRequests RecipeKind = "part of a semaphore"
	KindMembers  RecipeKind = "part of a doublebarrier"
	KindWaiters  RecipeKind = "part of a queue"

	// Nodes within a recipe that do not show which recipe has a path.
	KindReady  RecipeKind = "announcement of a leader"
	KindInbox  RecipeKind = "branch of a transaction"
	KindBucket RecipeKind = "bucket of a queue"
	KindItem   RecipeKind = "part of an item of a queue"
	KindRecord RecipeKind = "part of the record of a transaction"

	// Kinds of other implementations.
	KindKazooLock        RecipeKind = "lock or election of kazoo"
	KindCuratorSemaphore RecipeKind = "semaphore of Curator"
	KindCuratorLeases    RecipeKind = "part of a semaphore of Curator"
)

// Admits reports whether a recipe of kind k can share a path with the kind found.
func (k RecipeKind) Admits(found RecipeKind) bool {
	switch {
	case found == k:
		return true
	case found == KindKazooLock: // kazoo's names do not distinguish the two
		return k == KindMutex || k == KindElection
	case k == KindValue || k == KindCounter: // a number can be both
		return found == KindValue || found == KindCounter
	}
	return false
}

// markPrefix begins the data of a recipe's directory; the kind follows.
const markPrefix = "coord recipe: "

func (k RecipeKind) Mark() []byte { return []byte(markPrefix + string(k)) }

// ParseMark reads a mark, also of a kind that this version does not know.
func ParseMark(data []byte) (RecipeKind, bool) {
	rest, ok := bytes.CutPrefix(data, []byte(markPrefix))
	if !ok || len(rest) == 0 || len(rest) > 64 {
		return "", false
	}
	for _, c := range rest {
		if c != ' ' && (c < 'a' || c > 'z') {
			return "", false
		}
	}
	return RecipeKind(rest), true
}

// Pin is the name of a persistent node without data below a Value, a Counter or a Barrier that was set in a
// directory. The directory can be a container, which ZooKeeper's Stats do not show: the pin keeps
// it, with its data, for as long as something is set there. Recipes, caches and reports ignore it,
// and no path of a recipe has this name in it.
const Pin = "_coord-pin"

// HasPin reports whether a path has the name of a pin in it.
func HasPin(path string) bool { return strings.Contains(path+"/", "/"+Pin+"/") }

// IsDirectory reports whether a node is a directory in which no Value, Counter or Barrier is set:
// it carries the mark of that, or has no bytes and was never written. (Directories of earlier
// versions, of kazoo and of Curator have no bytes. A Value of no bytes was written.)
func IsDirectory(data []byte, stat backend.Stat) bool {
	if stat.EphemeralOwner != 0 {
		return false
	}
	kind, _ := ParseMark(data)
	return kind == KindDirectory || kind == KindValue || len(data) == 0 && stat.Version == 0
}

// IsBareBarrier reports whether a node is a barrier of kazoo: it has no bytes, was never written,
// and never had a child. Only Pzxid tells the last, so where a service has none, there is no such
// barrier; kazoo has no such service.
func IsBareBarrier(data []byte, stat backend.Stat) bool {
	return len(data) == 0 && stat.Version == 0 && stat.NumChildren == 0 && stat.Cversion == 0 && stat.Pzxid == stat.Czxid && !stat.Container
}

// numbered are the kinds whose names end with an infix and the number. No infix ends
// with another, so at most one fits a name.
var numbered = []struct {
	infix string
	kind  RecipeKind
	guid  bool // the name begins with a GUID
}{
	{LatchInfix, KindElection, false}, {ReadInfix, KindRWMutex, false}, {WriteInfix, KindRWMutex, false},
	{LockInfix, KindMutex, false}, {KazooInfix, KindKazooLock, false}, {ReadyInfix, KindReady, true},
	{BarrierMemberInfix, KindMembers, true}, {BarrierExtraInfix, KindMembers, true}, {WaiterInfix, KindWaiters, true},
	{RoomInfix, KindWaiters, true},
	{"lease-", KindCuratorLeases, true},
}

// Parse returns the kind of recipe, or of the nodes within one, that has such a name, and
// the number in it. The kind is "" for a name that is of no kind. A member's id can look
// like any other name, so members come first.
func Parse(name string) (RecipeKind, int64) {
	if n, ok := ParseMember(name); ok {
		return KindGroup, n.Seq
	}
	guid := strings.HasPrefix(name, GUIDPrefix)
	for _, x := range numbered {
		if guid || !x.guid {
			if seq, ok := ParseSeq(name, x.infix); ok {
				return x.kind, seq
			}
		}
	}
	if _, _, ok := ParseBranch(name); ok {
		return KindInbox, 0
	}
	for _, prefix := range [...]string{ItemPrefix, MarkPrefix} {
		if _, _, ok := CutID(name, prefix); ok {
			return KindItem, 0
		}
	}
	if q, ok := ParsePermit(name); ok {
		return KindRequests, q.Seq
	}
	if _, ok := ParseSlot(name); ok {
		return KindWaiters, 0
	}
	switch {
	case len(Buckets("", []string{name})) == 1:
		return KindBucket, 0
	case IsState(name):
		return KindItem, 0
	case IsOfRecord(name):
		return KindRecord, 0
	}
	return "", 0
}

// KindOfName returns the kind of recipe of a path at which a node has such a name, and
// the number of the node, or "" for a name that does not show it. A name without a GUID
// shows it only for the kinds that other implementations create without one.
func KindOfName(name string) (RecipeKind, int64) {
	kind, seq := Parse(name)
	switch kind {
	case KindGroup, KindRWMutex, KindKazooLock:
		return kind, seq
	case KindMutex, KindElection, KindRequests, KindMembers, KindWaiters, KindCuratorLeases:
		if strings.HasPrefix(name, GUIDPrefix) {
			return kind, seq
		}
	}
	return "", 0
}

// layouts are the fixed names that identify a recipe of several nodes whose directory
// carries no mark: all of them exist.
var layouts = []struct {
	kind  RecipeKind
	names []string
}{
	{KindSemaphore, []string{"limit", "requests"}},
	{KindDoubleBarrier, []string{"members", "ready"}},
	{KindQueue, []string{"items", "waiters"}}, // of every kind of queue
	{KindTwoPhase, []string{"sites", "tx"}},
	{KindTwoPhase, []string{"sites", "serving"}},
	{KindShards, []string{WorkersName, ShardsName}},
	{KindSchedule, []string{StateName}},
	{KindCuratorSemaphore, []string{"leases", "locks"}},
}

// Among returns the kind of recipe that has nodes among names, other than the kinds
// that k admits, or "".
func (k RecipeKind) Among(names []string) RecipeKind {
	for _, name := range names {
		if found, _ := KindOfName(name); found != "" && !k.Admits(found) {
			return found
		}
	}
	for _, l := range layouts {
		missing := slices.ContainsFunc(l.names, func(name string) bool { return !slices.Contains(names, name) })
		if !missing && !k.Admits(l.kind) && !(l.kind == KindQueue && k.isQueue()) {
			return l.kind
		}
	}
	return ""
}

// Part is a directory of a recipe of several nodes, in which it has nodes that no other
// recipe has in a directory of that name.
type Part struct {
	Name  string
	whole RecipeKind
	nodes RecipeKind
}

var parts = []Part{
	{"requests", KindSemaphore, KindRequests},
	{"members", KindDoubleBarrier, KindMembers},
	{"items", KindQueue, KindBucket}, // of every kind of queue
	{"waiters", KindQueue, KindWaiters},
	{"producers", KindQueue, KindWaiters},
	{"leases", KindCuratorSemaphore, KindCuratorLeases},
}

// Parts returns the nodes among names, the children of a directory, that can be parts of
// a recipe other than the kinds that k admits.
func (k RecipeKind) Parts(names []string) []Part {
	var list []Part
	for _, p := range parts {
		if slices.Contains(names, p.Name) && !k.Admits(p.whole) && !(p.whole == KindQueue && k.isQueue()) {
			list = append(list, p)
		}
	}
	return list
}

// Kind returns the kind of the recipe to which the part belongs, or "" if none of names,
// its children, shows that.
func (p Part) Kind(names []string) RecipeKind {
	for _, name := range names {
		if kind, _ := Parse(name); kind == p.nodes {
			return p.whole
		}
	}
	return ""
}

func (k RecipeKind) isQueue() bool {
	return k == KindQueue || k == KindPriorityQueue || k == KindDelayQueue
}

// IsAddress reports whether data is Curator's default data of a node: the address of
// its host.
func IsAddress(data []byte) bool {
	text, _, _ := strings.Cut(string(data), "%") // a zone
	return len(data) <= 100 && strings.Trim(text, "0123456789abcdefABCDEF.:") == "" &&
		(strings.Count(text, ".") == 3 || strings.Count(text, ":") >= 2)
}

// IsEmptyValue reports whether a node is a Value of no bytes: it was written. A directory without
// bytes, of Curator's, kazoo's or an operator's, never was, and a directory of this package that
// was written carries a mark.
func IsEmptyValue(stat backend.Stat) bool {
	return stat.DataLength == 0 && stat.Version > 0 && stat.EphemeralOwner == 0
}

// ParseCount returns the number that the data of a counter means: decimal digits, spaces around them,
// or nothing for 0.
func ParseCount(data []byte) (int64, bool) {
	text := strings.TrimSpace(string(data))
	if text == "" {
		return 0, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}
