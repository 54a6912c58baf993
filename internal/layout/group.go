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
	Seq  int64
}

// Older reports whether n was created before m.
func (n MemberNode) Older(m MemberNode) bool { return BySeq(n.Seq, n.Name, m.Seq, m.Name) < 0 }

// ParseMember parses the name of a member's node. It takes the number from the end, so
// an id may have any form. Negative numbers, which no member keeps, are foreign: an id
// that ends with a dash would be ambiguous.
func ParseMember(name string) (MemberNode, bool) {
	rest, ok := strings.CutPrefix(name, GUIDPrefix)
	if !ok || len(rest) < GUIDLen || backend.CheckPath("/"+name) != nil || !IsGUID(rest[:GUIDLen]) {
		return MemberNode{}, false
	}
	rest, ok = strings.CutPrefix(rest[GUIDLen:], "-"+MemberInfix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || i < 1 {
		return MemberNode{}, false
	}
	seq, ok := ParseDigits(rest[i+1:])
	if !ok {
		return MemberNode{}, false
	}
	return MemberNode{Name: name, ID: rest[:i], Seq: seq}, true
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
