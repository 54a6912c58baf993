package coord

import (
	"strings"

	"github.com/go-coord/coord/backend"
)

// node is a sequential ephemeral node of this client.
type node struct {
	path     string
	seq      int32
	czxid    int64 // 0: not known yet
	siblings int32 // number of children of the directory right after the creation, own included; -1: not known
}

// A GUID in the name makes a node findable when the reply to its creation was lost
// (ZooKeeper's recipe guide, "recoverable errors and the GUID"). Names have Curator's
// form, so that Curator's clients and this package queue together.
const (
	guidPrefix = "_c_"
	guidLen    = 36
)

// newGUID returns 122 random bits as a UUID of version 8 (RFC 9562: custom format).
// Curator's are of version 4, so a name identifies its implementation. A GUID must be
// unique, not secret. what is the purpose, see Client.random.
func (c *Client) newGUID(what string) string {
	var b [guidLen]byte
	return string(c.appendGUID(b[:0], what))
}

func (c *Client) appendGUID(b []byte, what string) []byte {
	const hex = "0123456789abcdef"
	for i := range 2 {
		v := c.random(what)
		if i == 0 {
			v = v&^0xf000 | 0x8000 // the version
		} else {
			v = v&^(3<<62) | 2<<62 // the variant
		}
		for j := range 16 {
			switch i*16 + j {
			case 8, 12, 16, 20:
				b = append(b, '-')
			}
			b = append(b, hex[v>>60])
			v <<= 4
		}
	}
	return b
}

// isOurs reports whether a node's name was made by newGUID.
func isOurs(name string) bool {
	const version = len(guidPrefix) + 14
	return len(name) > len(guidPrefix)+guidLen && strings.HasPrefix(name, guidPrefix) && name[version] == '8'
}

// parseSeq returns the sequence number of a node's name: the text after the last
// occurrence of kind, if it has the service's format. Every other name in a directory
// (a README, a name with too many digits) is foreign and not in the queue.
func parseSeq(name, kind string) (int32, bool) {
	i := strings.LastIndex(name, kind)
	if i < 0 {
		return 0, false
	}
	seq, ok := parseDigits(name[i+len(kind):])
	return seq, ok && speakable(name)
}

// speakable reports whether a path of this package can have a node of this name.
// Servers store more names than backend.CheckPath allows. No client of this package can
// read, watch or delete a node with such a name, so it is foreign, whatever its form.
func speakable(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < 0x20 || c >= 0x7f {
			return backend.CheckPath("/"+name) == nil
		}
	}
	return true // "." and ".." are no names, and no server stores them
}

// parseDigits parses a number as ZooKeeper writes an int32 with format %010d: ten
// characters with leading zeros, sign included, or eleven for the most negative
// numbers.
func parseDigits(s string) (int32, bool) {
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

// before reports whether sequence number a was assigned before b. It is aware of the
// wrap at 2^31-1, which pipelined creations can pass: numbers in one queue are never
// 2^31 apart.
func before(a, b int32) bool { return a-b < 0 }

// bySeq compares two nodes of a directory by the order of creation, as before does.
// Nodes with the same number are ordered by name, so that all clients agree even past
// the end of the numbers.
func bySeq(i int32, a string, j int32, b string) int {
	switch {
	case i == j:
		return strings.Compare(a, b)
	case before(i, j):
		return -1
	}
	return 1
}

// base returns the last segment of a path.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// parent returns the path of the parent directory of a node.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
