// Package layout has the names of the nodes on the service, their order, and the marks of
// directories. The nodes on a service were written by other versions of this library and
// by other implementations, so a change here is a change of the protocol.
package layout

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

// A GUID in the name makes a node findable when the reply to its creation was lost
// (ZooKeeper's recipe guide, "recoverable errors and the GUID"). Names have Curator's
// form, so that Curator's clients and this package queue together.
const (
	GUIDPrefix = "_c_"
	GUIDLen    = 36
)

// IsOurs reports whether a node's name begins with a GUID of core.Client.NewGUID.
func IsOurs(name string) bool {
	const version = len(GUIDPrefix) + 14
	return len(name) > len(GUIDPrefix)+GUIDLen && strings.HasPrefix(name, GUIDPrefix) && name[version] == '8'
}

// ParseSeq returns the sequence number of a node's name: the text after the last
// occurrence of kind, if it has the service's format. Every other name in a directory
// (a README, a name with too few digits) is foreign and not in the queue.
func ParseSeq(name, kind string) (int64, bool) {
	i := strings.LastIndex(name, kind)
	if i < 0 {
		return 0, false
	}
	seq, ok := ParseDigits(name[i+len(kind):])
	return seq, ok && Speakable(name)
}

// Speakable reports whether a path of this package can have a node of this name.
// Servers store more names than backend.CheckPath allows. No client of this package can
// read, watch or delete a node with such a name, so it is foreign, whatever its form.
func Speakable(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < 0x20 || c >= 0x7f {
			return backend.CheckPath("/"+name) == nil
		}
	}
	return true // "." and ".." are no names, and no server stores them
}

// ParseDigits parses a sequence number: ten digits with leading zeros, or more digits
// without.
//
// ZooKeeper writes an int32 with the format %010d: ten characters, sign included, or
// eleven for the most negative numbers. Below zero are the numbers after 2^31-1, which
// pipelined creations can pass. ParseDigits returns what they would be without the
// overflow, 2^31 and more, so numbers are ordered as they were assigned.
func ParseDigits(s string) (int64, bool) {
	digits, negative := strings.CutPrefix(s, "-")
	switch {
	case len(s) == 10:
	case len(digits) < 10, len(digits) > 19, digits[0] == '0':
		return 0, false
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, false
	}
	if negative {
		if n < math.MinInt32 || n == 0 {
			return 0, false
		}
		n += 1 << 32
	}
	return n, true
}

// BySeq compares two nodes of a directory by the order of creation. Nodes with the same
// number are ordered by name, so that all clients agree even past the end of the
// numbers.
func BySeq(i int64, a string, j int64, b string) int {
	return cmp.Or(cmp.Compare(i, j), strings.Compare(a, b))
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
