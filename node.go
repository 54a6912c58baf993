package coord

import (
	"strings"

	"github.com/go-coord/coord/internal/layout"
)

// node is a sequential ephemeral node of this client.
type node struct {
	path     string
	seq      int32
	czxid    int64 // 0: not known yet
	siblings int32 // number of children of the directory right after the creation, own included; -1: not known
}

// newGUID returns 122 random bits as a UUID of version 8 (RFC 9562: custom format).
// Curator's are of version 4, so a name identifies its implementation. A GUID must be
// unique, not secret. what is the purpose, see Client.random.
func (c *Client) newGUID(what string) string {
	var b [layout.GUIDLen]byte
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

// base returns the last segment of a path.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// parent returns the path of the parent directory of a node.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
