package group

import (
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// An id that is accepted can be a part of the name of a node.
func FuzzMemberIDs(f *testing.F) {
	const guid = "01234567-89ab-8def-8123-456789abcdef"
	for _, id := range []string{
		"a", "_c_" + guid + "-member-a-0000000001", strings.Repeat("a", layout.MaxMemberID), strings.Repeat("a", layout.MaxMemberID+1),
		strings.Repeat("0", layout.MaxMemberID-4) + "줌\xa5", "a\u202e", "a\xff", "a\x00", "\t\b\xe7\x9a0ٹ", "\x80\xff\xff\xff", "..", ".", "", "%s%d",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if strings.Contains(id, "/") {
			return // no child has such a name
		}
		err := checkID(backend.CheckPath, id)
		if (err == nil) != (id != "" && len(id) <= layout.MaxMemberID && backend.CheckPath("/"+layout.MemberInfix+id+"-") == nil) {
			t.Errorf("%q as an id: %v", id, err)
		}
	})
}
