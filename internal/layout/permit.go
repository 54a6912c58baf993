package layout

import (
	"slices"
)

// OrderPermits returns the requests among the children, in the order of arrival.
func OrderPermits(names []string) []Permit {
	var queue []Permit
	for _, name := range names {
		if q, ok := ParsePermit(name); ok {
			queue = append(queue, q)
		}
	}
	slices.SortFunc(queue, func(a, b Permit) int { return BySeq(a.Seq, a.Name, b.Seq, b.Name) })
	return queue
}

// Weigh returns the sum of the weights.
func Weigh(queue []Permit) int64 {
	sum := int64(0)
	for _, q := range queue {
		sum += int64(q.Weight)
	}
	return sum
}
