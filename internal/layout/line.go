package layout

import (
	"slices"
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

// Blocker returns the index of the contender that the one at i waits for, or -1 if the
// one at i is granted.
func Blocker(queue []Position, i int) int {
	if !queue[i].Shared {
		return i - 1
	}
	for i--; i >= 0 && queue[i].Shared; i-- {
	}
	return i
}
