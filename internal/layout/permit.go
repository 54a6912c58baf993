package layout

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// PermitInfix is the infix before the weight in the name of a request.
const PermitInfix = "permit-"

// Permit is a request in the queue of a semaphore.
type Permit struct {
	Name   string
	Seq    int64
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

// MaxPermits is the highest limit of a semaphore.
const MaxPermits = math.MaxInt32

// ParseLimit decodes the limit of a semaphore.
func ParseLimit(data []byte) (n int, ok bool) {
	// An operator's tool may leave spaces behind.
	limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || !IsLimit(limit) {
		return 0, false
	}
	return int(limit), true
}

// IsLimit reports whether n can be the limit of a semaphore.
func IsLimit(n int64) bool { return n >= 1 && n <= MaxPermits }
