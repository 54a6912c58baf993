package coord

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

const fuzzID = "01234567-89ab-8def-8123-456789abcdef"

// Whatever a node is called: what is taken for a node of a recipe can be spoken to, and
// its name says what was read out of it.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"_c_" + fuzzID + "-lock-0000000001", "x__lock__2147483647", "_c_" + fuzzID + "-__READ__-000000001", "__WRIT__-2147483648",
		"_c_" + fuzzID + "-latch-0000000000", "_c_" + fuzzID + "-ready-0000000000", "_c_" + fuzzID + "-permit-2147483647-0000000000",
		"_c_" + fuzzID + "-member-a-0000000001", "_c_" + fuzzID + "-member--0000000001", "_c_" + fuzzID + "-guest-0000000001",
		"b-0-0", "b--9223372036854775808-9007199254740992", "i-" + fuzzID + "-0-0000000000", "m-" + fuzzID + "-" + fuzzID,
		"s-" + fuzzID, "d-" + fuzzID + "-9223372036854775807", "_c_" + fuzzID + "-take-0000000001", "tx~" + fuzzID, "live-" + fuzzID,
		"_c_01234567-89ab-8def-8\u202e-456789abcdef-lock-0000000000", "lock-\xff0000000000", "lock-000000000\x00", "..", "", "%s%d",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.Contains(name, "/") {
			return // no child is called so
		}
		addressable := backend.CheckPath("/"+name) == nil
		taken := func(what string, want string) {
			t.Helper()
			if !addressable {
				t.Errorf("%q is taken for %s, and cannot be addressed", name, what)
			}
			if !strings.HasSuffix(name, want) {
				t.Errorf("%q is taken for %s %q", name, what, want)
			}
		}
		for what, kinds := range map[string]lineKinds{"a lock": lockLine, "a reader or writer": sharedLine, "a candidate": latchLine} {
			if q, ok := kinds.parse(name); ok {
				taken(what, fmt.Sprintf("%010d", q.seq))
				if q.name != name || q.shared && kinds != sharedLine {
					t.Errorf("%q: %+v", name, q)
				}
			}
			l := &line{kinds: kinds}
			queue := l.order([]string{name, name, "README"})
			for i := range queue {
				if j := blocker(queue, i); j >= i || j < -1 {
					t.Errorf("%q: %d waits for %d", name, i, j)
				}
			}
		}
		if q, ok := parsePermit(name); ok {
			taken("a permit", fmt.Sprintf("%s%d-%010d", permitKind, q.weight, q.seq))
			if q.weight < 1 {
				t.Errorf("%q weighs %d", name, q.weight)
			}
		}
		if sum := weigh(orderPermits([]string{name, name, name})); sum < 0 {
			t.Errorf("%q: the sum of the weights is %d", name, sum)
		}
		if n, ok := parseMember(name); ok {
			taken("a member", fmt.Sprintf("%s%s-%010d", memberKind, n.id, n.seq))
			if n.id == "" || n.seq < 0 || n.seq >= seqHard {
				t.Errorf("%q: %+v", name, n)
			}
		}
		if n := len(presentMembers([]string{name, name})); n > 1 {
			t.Errorf("%q is %d members", name, n)
		}
		if id, mark, ok := parseBallot(name); ok {
			taken("a ballot", id+"~"+mark)
			if name != id+"~"+mark || id == "" {
				t.Errorf("%q: id %q, mark %q", name, id, mark)
			}
		}
		if isLive(name) {
			taken("a live node", "")
		}
		for _, kind := range []string{itemKind, markKind, putOffKind} {
			if id, rest, ok := cutID(name, kind); ok {
				taken("a part of an item", kind+id+"-"+rest)
			}
		}
		if isState(name) {
			taken("a state", "")
		}
		r := sortMembers([]string{name}, []string{name, "README"})
		if len(r.living)+len(r.waiting)+r.extra > 1 || len(r.waiting) > 0 {
			t.Errorf("%q: %+v", name, r)
		}
		for _, m := range r.living {
			taken("one in a double barrier", "")
			byNumber(m, name)
		}
		if p := readyPath("/e/" + name); p != "" && (!strings.HasPrefix(p, "/e/") || !strings.Contains(p, readyKind)) {
			t.Errorf("%q announces at %q", name, p)
		}
		_ = isOurs(name) // it must not panic
		if (checkMemberID(name) == nil) != (name != "" && len(name) <= maxMemberID && backend.CheckPath("/"+memberKind+name+"-") == nil) {
			t.Errorf("%q as an id: %v", name, checkMemberID(name))
		}
		if checkID("ID", name) == nil && !addressable {
			t.Errorf("%q is an ID, and cannot be addressed", name)
		}
	})
}

// Whatever lies in a bucket: each item is there once, in order, and what goes with it
// is its own.
func FuzzBucket(f *testing.F) {
	other := "f" + fuzzID[1:]
	for _, list := range [][]string{
		{"i-" + fuzzID + "-0-0000000000", "s-" + fuzzID, "m-" + fuzzID + "-" + other, "d-" + fuzzID + "-12"},
		{"i-" + fuzzID + "-0-0000000001", "i-" + fuzzID + "-0-0000000000", "i-" + other + "-9223372036854775807--2147483648"},
		{"s-" + other, "d-" + other + "-5", "b-0-0", "b-0-1", "b-0-00", "b--1-0", "b-9-9007199254740993"},
		{"d-" + fuzzID + "-1", "d-" + fuzzID + "-2", "i-" + fuzzID + "--1-0000000000", "s-" + fuzzID + "x"},
	} {
		f.Add(strings.Join(list, "\n"))
	}
	f.Fuzz(func(t *testing.T, list string) {
		names := strings.Split(list, "\n")
		names = slices.DeleteFunc(names, func(name string) bool { return name == "" || strings.Contains(name, "/") })
		slices.Sort(names)
		names = slices.Compact(names) // no two children are called the same
		c := parseBucket("/q/items/b-0-0", names, 7)
		seen := make(map[string]bool)
		for i, e := range c.items {
			if seen[e.id] {
				t.Errorf("item %s twice", e.id)
			}
			seen[e.id] = true
			if i > 0 && cmp.Or(cmp.Compare(c.items[i-1].due, e.due), cmp.Compare(c.items[i-1].seq, e.seq)) > 0 {
				t.Errorf("out of order: %+v, %+v", c.items[i-1], e)
			}
			for _, path := range []string{e.path(), e.stateAt(), e.bucket + "/" + e.putOff} {
				if e.putOff != "" && backend.CheckPath(path) != nil {
					t.Errorf("%q", path)
				}
			}
			if e.name != fmt.Sprintf("%s%010d", itemPrefix(e.id, e.due), e.seq) && !strings.Contains(e.name, "+") && !strings.Contains(e.name, "-0") {
				t.Errorf("%+v", e)
			}
			if e.state != slices.Contains(names, stateKind+e.id) {
				t.Errorf("%+v: state", e)
			}
			if e.putOff != "" && !slices.Contains(names, e.putOff) {
				t.Errorf("%+v: put off", e)
			}
		}
		for _, name := range c.litter {
			if !slices.Contains(names, name) || seen[name[2:2+guidLen]] {
				t.Errorf("%q is litter", name)
			}
		}
		v := sight{}
		v.add(c.items, 3, 1_000)
		if len(v.found) > 3 {
			t.Errorf("%d found", len(v.found))
		}
		q := &queue{items: "/q/items"}
		all := q.buckets(names)
		for i, b := range all {
			if b.path != q.bucketPath(b.key, b.n) || b.n < 0 || b.n > maxNumber || backend.CheckPath(b.path) != nil {
				t.Errorf("%+v", b)
			}
			if i > 0 && all[i-1] == b {
				t.Errorf("%+v twice", b)
			}
		}
	})
}
