package twophase

import (
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// A text that is accepted as an ID can be the name of a node.
func FuzzIDs(f *testing.F) {
	for _, name := range []string{
		"a", "tx~01234567-89ab-8def-8123-456789abcdef", strings.Repeat("a", layout.MaxID), strings.Repeat("a", layout.MaxID+1),
		"a\u202e", "a\xff", "a\x00", "..", ".", "", "%s%d",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.Contains(name, "/") {
			return // no child has such a name
		}
		if checkID(backend.CheckPath, "ID", name) == nil && backend.CheckPath("/"+name) != nil {
			t.Errorf("%q is an ID, and cannot be addressed", name)
		}
	})
}
