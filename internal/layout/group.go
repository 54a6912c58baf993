package layout

import (
	"maps"
	"slices"
	"strings"
)

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
