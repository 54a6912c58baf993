package coord

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestParseSeqReadsWhatTheServiceWrites(t *testing.T) {
	for _, n := range []int32{0, 1, 7, 1234567890, math.MaxInt32, -1, -5, -1234567890, math.MinInt32} {
		// Java's %010d.
		name := fmt.Sprintf("_c_x-lock-%010d", n)
		if got, ok := parseSeq(name, lockKind); !ok || got != n {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	for _, name := range []string{
		"", "lock-", "lock-1", "lock-000000000", "lock-00000000000", "lock-99999999999", "lock-9999999999", "lock-+000000001",
		"lock- 000000001", "lock-000000000x", "lock--0000000001", "lock--000000000", "x-0000000001", "README", "_c_s1", "-1",
	} {
		if got, ok := parseSeq(name, lockKind); ok {
			t.Errorf("%q is taken for number %d", name, got)
		}
	}
}

func FuzzParseSeq(f *testing.F) {
	for _, s := range []string{"_c_x-lock-0000000001", "lock--2147483648", "lock-2147483648", "lock-", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := parseSeq(name, lockKind)
		if ok && !strings.HasSuffix(name, fmt.Sprintf("lock-%010d", n)) {
			t.Errorf("%q is taken for %d", name, n)
		}
	})
}

func TestOrderIsAwareOfTheWrap(t *testing.T) {
	l := &line{kinds: lockLine}
	queue := l.order([]string{
		"b-lock--2147483648", "z-lock-2147483646", "README", "a-lock-2147483647", "c-lock--2147483647",
	})
	var got []int32
	for _, q := range queue {
		got = append(got, q.seq)
	}
	want := []int32{math.MaxInt32 - 1, math.MaxInt32, math.MinInt32, math.MinInt32 + 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if !before(1, 2) || before(2, 1) || before(1, 1) || !before(math.MaxInt32, math.MinInt32) {
		t.Error("before is wrong")
	}
}

func TestGUIDsAreUniqueAndWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		g := new(Client).newGUID("")
		if len(g) != guidLen || seen[g] {
			t.Fatalf("%q", g)
		}
		for i, r := range g {
			dash := i == 8 || i == 13 || i == 18 || i == 23
			if dash != (r == '-') || !dash && !strings.ContainsRune("0123456789abcdef", r) {
				t.Fatalf("%q", g)
			}
		}
		seen[g] = true
	}
}
