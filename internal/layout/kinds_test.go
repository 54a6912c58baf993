package layout_test

import (
	"testing"

	"github.com/go-coord/coord/internal/layout"
)

func TestParse_ReadsTheKindOfAName(t *testing.T) {
	const guid = "_c_" + fuzzID + "-"
	for _, x := range []struct {
		name string
		kind layout.RecipeKind
		seq  int64
		at   layout.RecipeKind // of KindOfName
	}{
		{guid + "lock-0000000001", layout.KindMutex, 1, layout.KindMutex},
		{"lock--2147483648", layout.KindMutex, 2147483648, ""},
		{guid + "latch-0000000002", layout.KindElection, 2, layout.KindElection},
		{"x__READ__0000000003", layout.KindRWMutex, 3, layout.KindRWMutex},
		{"x__lock__0000000004", layout.KindKazooLock, 4, layout.KindKazooLock},
		{guid + "ready-0000000005", layout.KindReady, 5, ""},
		{"ready-0000000005", "", 0, ""},
		{guid + "permit-3-0000000006", layout.KindRequests, 6, layout.KindRequests},
		{guid + "member-0000000007", layout.KindMembers, 7, layout.KindMembers},
		{guid + "guest-0000000007", layout.KindMembers, 7, layout.KindMembers},
		{guid + "take-0000000008", layout.KindWaiters, 8, layout.KindWaiters},
		{guid + "lease-0000000009", layout.KindCuratorLeases, 9, layout.KindCuratorLeases},
		{layout.BranchName("t", fuzzID), layout.KindInbox, 0, ""},
		{layout.BucketPath("", -1, 5)[1:], layout.KindBucket, 0, ""},
		{layout.ItemStem(fuzzID, 0) + "0000000001", layout.KindItem, 0, ""},
		{layout.StatePrefix + fuzzID, layout.KindItem, 0, ""},
		{layout.OpenName(fuzzID), layout.KindRecord, 0, ""},
		{layout.LiveName(fuzzID), layout.KindRecord, 0, ""},
		{layout.VoteName(1, "a"), layout.KindRecord, 0, ""},
		{layout.DecisionName(1), layout.KindRecord, 0, ""},
		{"README", "", 0, ""},
		// The id of a member can look like any other name.
		{guid + "member-a-0000000001", layout.KindGroup, 1, layout.KindGroup},
		{guid + "member-lock--0000000002", layout.KindGroup, 2, layout.KindGroup},
		{guid + "member-__lock__-0000000003", layout.KindGroup, 3, layout.KindGroup},
		{guid + "member-x-member--0000000004", layout.KindGroup, 4, layout.KindGroup},
	} {
		if kind, seq := layout.Parse(x.name); kind != x.kind || seq != x.seq {
			t.Errorf("%s: kind %q, number %d, want %q, %d", x.name, kind, seq, x.kind, x.seq)
		}
		if at, _ := layout.KindOfName(x.name); at != x.at {
			t.Errorf("%s shows the recipe %q, want %q", x.name, at, x.at)
		}
	}
}
