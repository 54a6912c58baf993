package layout

import (
	"strings"
)

// ReadyInfix has the place in the name of an announcement's node that LatchInfix has in
// the name of its leader's. The GUID and the number are the leader's, so the
// announcement is found by the leader's name, and is never taken for a successor's.
//
// The announcement has a node of its own, as in the recipe guide. A write into the
// leader's node would be cheaper, but a candidate of Curator watches the data of its
// predecessor's node, and the write would use that one watch up: the candidate would
// not see the leader go.
const ReadyInfix = "ready-"

// ReadyPath returns the path of the announcement of the leader at path, or "" if the
// leader's library has no announcements.
func ReadyPath(path string) string {
	i := strings.LastIndex(path, LatchInfix)
	if i < 0 {
		return ""
	}
	return path[:i] + ReadyInfix + path[i+len(LatchInfix):]
}
