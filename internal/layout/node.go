// Package layout has the names of the nodes on the service, their order, and the marks of
// directories. What stands on a service was written by other versions of this library and
// by other implementations, so a change here is a change of the protocol.
package layout

import (
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

// IsOurs reports whether a node's name was made by newGUID.
func IsOurs(name string) bool {
	const version = len(GUIDPrefix) + 14
	return len(name) > len(GUIDPrefix)+GUIDLen && strings.HasPrefix(name, GUIDPrefix) && name[version] == '8'
}

// ParseSeq returns the sequence number of a node's name: the text after the last
// occurrence of kind, if it has the service's format. Every other name in a directory
// (a README, a name with too many digits) is foreign and not in the queue.
func ParseSeq(name, kind string) (int32, bool) {
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

// ParseDigits parses a number as ZooKeeper writes an int32 with format %010d: ten
// characters with leading zeros, sign included, or eleven for the most negative
// numbers.
func ParseDigits(s string) (int32, bool) {
	negative := len(s) > 0 && s[0] == '-'
	if len(s) != 10 && !(negative && len(s) == 11 && s[1] != '0') {
		return 0, false
	}
	digits := s
	if negative {
		digits = s[1:]
	}
	n := int64(0)
	for i := range len(digits) {
		d := digits[i]
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + int64(d-'0')
	}
	if negative {
		n = -n
	}
	if n != int64(int32(n)) || negative && n == 0 {
		return 0, false
	}
	return int32(n), true
}

// Before reports whether sequence number a was assigned before b. It is aware of the
// wrap at 2^31-1, which pipelined creations can pass: numbers in one queue are never
// 2^31 apart.
func Before(a, b int32) bool { return a-b < 0 }

// BySeq compares two nodes of a directory by the order of creation, as Before does.
// Nodes with the same number are ordered by name, so that all clients agree even past
// the end of the numbers.
func BySeq(i int32, a string, j int32, b string) int {
	switch {
	case i == j:
		return strings.Compare(a, b)
	case Before(i, j):
		return -1
	}
	return 1
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
