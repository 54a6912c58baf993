package coordtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// A check that has never found a violation is untested.
func TestFold_FindsWrongEvents(t *testing.T) {
	const created, changed, deleted = coord.NodeCreated, coord.NodeChanged, coord.NodeDeleted
	ev := func(kind coord.CacheEventKind, p string, czxid, mzxid int64) coord.CacheEvent {
		e := coord.CacheEvent{Kind: kind, Path: p}
		if kind != deleted {
			e.Node = coord.CachedNode{Data: fmt.Appendf(nil, "%s %d", p, mzxid), Stat: backend.Stat{Czxid: czxid, Mzxid: mzxid}}
		}
		return e
	}
	first := []coord.CacheEvent{ev(created, "/t", 1, 1), ev(created, "/t/a", 2, 5), ev(created, "/t/a/b", 3, 3)}
	another := ev(changed, "/t/a", 2, 6)
	another.Node.Stat.Version = 7 // which Judge does not like
	kept := ev(changed, "/t/a/b", 3, 3)
	kept.Kind = deleted
	for name, test := range map[string]struct {
		events []coord.CacheEvent
		want   string
		may    []Flash // with these it is right
	}{
		"all is well":                        {[]coord.CacheEvent{ev(changed, "/t/a", 2, 6), ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a", 0, 0), ev(created, "/t/a", 8, 9), ev(changed, "/t", 1, 9)}, "", nil},
		"a creation told twice":              {[]coord.CacheEvent{ev(created, "/t/a", 2, 5)}, "it is there", nil},
		"a deletion told twice":              {[]coord.CacheEvent{ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a/b", 0, 0)}, "there is none", nil},
		"a change told twice":                {[]coord.CacheEvent{ev(changed, "/t/a", 2, 5)}, "not later", nil},
		"a change of the past":               {[]coord.CacheEvent{ev(changed, "/t/a", 2, 4)}, "not later", nil},
		"a change of nothing":                {[]coord.CacheEvent{ev(changed, "/t/c", 4, 5)}, "there is none", nil},
		"a change of another node":           {[]coord.CacheEvent{ev(changed, "/t/a", 7, 7)}, "another node", nil},
		"a deletion above a node":            {[]coord.CacheEvent{ev(deleted, "/t/a", 0, 0)}, "children", nil},
		"a creation below nothing":           {[]coord.CacheEvent{ev(created, "/t/c/d", 7, 7)}, "no parent", nil},
		"a node that was deleted":            {[]coord.CacheEvent{ev(deleted, "/t/a/b", 0, 0), ev(created, "/t/a/b", 3, 3)}, "not later", []Flash{FlashAlways}},
		"a state that is judged wrong":       {[]coord.CacheEvent{another}, "judged", nil},
		"a deletion with a state":            {[]coord.CacheEvent{kept}, "it has the state", nil},
		"an event of no kind":                {[]coord.CacheEvent{{Path: "/t/a", Kind: -1}}, "no such kind", nil},
		"a node told again with its parent":  {[]coord.CacheEvent{ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a", 0, 0), ev(created, "/t/a", 7, 7), ev(created, "/t/a/b", 3, 3)}, "not later", []Flash{FlashAlways, FlashWithParent}},
		"the past of a node with its parent": {[]coord.CacheEvent{ev(changed, "/t/a/b", 3, 6), ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a", 0, 0), ev(created, "/t/a", 7, 7), ev(created, "/t/a/b", 3, 3)}, "not later", nil},
	} {
		for _, flash := range []Flash{FlashNever, FlashWithParent, FlashAlways} {
			want := test.want
			if slices.Contains(test.may, flash) {
				want = ""
			}
			for _, asked := range []bool{false, true} {
				f, older := NewFold("/t"), 0
				f.Flash = flash
				f.Judge = func(p string, is NodeState) string {
					if is.Version != 0 {
						return "judged"
					}
					return ""
				}
				want := want
				if asked {
					f.Older = func(string, NodeState, int64) { older++ }
					if want == "not later" {
						want = ""
					}
				}
				f.Apply(first)
				f.Apply(test.events)
				if _, wrong := f.Sum(); want == "" && len(wrong) > 0 || want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], want)) {
					t.Errorf("%s, flash %d: %q, want %q", name, flash, wrong, want)
				}
				if judged := asked && test.want == "not later" && !slices.Contains(test.may, flash); judged != (older == 1) {
					t.Errorf("%s, flash %d: Older was asked %d times", name, flash, older)
				}
			}
		}
	}
}

func TestDifference_FindsEachDifference(t *testing.T) {
	tree := map[string]NodeState{"/t": {1, 1, 0, 0, "x"}, "/t/a": {2, 5, 1, 0, "x"}}
	if d := Difference(tree, tree); d != "" {
		t.Error(d)
	}
	for name, copied := range map[string]map[string]NodeState{
		"a node too few":   {"/t": tree["/t"]},
		"a node too many":  {"/t": tree["/t"], "/t/a": tree["/t/a"], "/t/b": {3, 3, 0, 0, ""}},
		"old data":         {"/t": tree["/t"], "/t/a": {2, 4, 0, 0, "w"}},
		"another creation": {"/t": tree["/t"], "/t/a": {4, 5, 1, 0, "x"}},
	} {
		if Difference(copied, tree) == "" {
			t.Errorf("%s: no difference", name)
		}
	}
}
