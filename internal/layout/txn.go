package layout

import (
	"strings"
)

// ParseBranch parses the name of a branch. All other names in an inbox are foreign.
func ParseBranch(name string) (id, mark string, ok bool) {
	i := len(name) - GUIDLen - 1
	if i < 1 || name[i] != '~' || !IsGUID(name[i+1:]) || !Speakable(name) {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// LivePrefix begins the names of the live nodes of a record.
const LivePrefix = "live-"

// Clip shortens a reason to a length that fits a node.
func Clip(reason string) string {
	const most = 1000
	if len(reason) > most {
		reason = reason[:most]
	}
	return strings.ToValidUTF8(reason, "?")
}

func IsLive(name string) bool { return strings.HasPrefix(name, LivePrefix) && Speakable(name) }

// The contents of a branch in which the site has voted.
const (
	BranchYes = "yes"
	BranchNo  = "no"
)
