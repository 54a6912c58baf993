package layout

import (
	"slices"
)

// The kinds of nodes in the directory of members of a double barrier. Names are never used again, and a
// wrap of the numbers affects only the order of the members, so the directory needs no
// ceiling.
const (
	BarrierMemberInfix = "member-"
	BarrierExtraInfix  = "guest-"
)

// BarrierMembers is the members of a double barrier that are present.
type BarrierMembers struct {
	Inside  []string // of the round in progress, lowest first
	Waiting []string // in no round yet, lowest first
	Extra   int
}

// SortMembers sorts the children of the directory of members by kind. names lists the
// members of the round.
func SortMembers(names, list []string) BarrierMembers {
	var r BarrierMembers
	named := make(map[string]bool, len(names))
	for _, name := range names {
		named[name] = true
	}
	for _, name := range list {
		if !IsOurs(name) {
			continue
		}
		if _, ok := ParseSeq(name, BarrierExtraInfix); ok {
			r.Extra++
		} else if _, ok := ParseSeq(name, BarrierMemberInfix); !ok {
			continue
		} else if named[name] {
			r.Inside = append(r.Inside, name)
		} else {
			r.Waiting = append(r.Waiting, name)
		}
	}
	slices.SortFunc(r.Inside, ByNumber)
	slices.SortFunc(r.Waiting, ByNumber)
	// Of several nodes of one call, only the last belongs to a live session.
	seen := make(map[string]bool, len(r.Waiting))
	for i := len(r.Waiting) - 1; i >= 0; i-- {
		guid := r.Waiting[i][:len(GUIDPrefix)+GUIDLen]
		if seen[guid] {
			r.Waiting = slices.Delete(r.Waiting, i, i+1)
		}
		seen[guid] = true
	}
	return r
}

// ByNumber orders the names of members by arrival.
func ByNumber(a, b string) int {
	i, _ := ParseSeq(a, BarrierMemberInfix)
	j, _ := ParseSeq(b, BarrierMemberInfix)
	return BySeq(i, a, j, b)
}
