package layout

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
)

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

// PresentMembers selects, for each id, the node that is the member. The result is
// sorted by id.
func PresentMembers(names []string) []MemberNode {
	first := make(map[string]MemberNode, len(names))
	for _, name := range names {
		n, ok := ParseMember(name)
		if !ok {
			continue
		}
		if other, taken := first[n.ID]; !taken || n.Older(other) {
			first[n.ID] = n
		}
	}
	return slices.SortedFunc(maps.Values(first), func(a, b MemberNode) int { return strings.Compare(a.ID, b.ID) })
}
