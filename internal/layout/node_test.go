package layout_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/go-coord/coord/internal/layout"
)

func TestParseSeq_ReadsWhatTheServiceWrites(t *testing.T) {
	for _, n := range []int32{0, 1, 7, 1234567890, math.MaxInt32, -1, -5, -1234567890, math.MinInt32} {
		// Java's %010d.
		name := fmt.Sprintf("_c_x-lock-%010d", n)
		want := int64(n)
		if n < 0 {
			want += 1 << 32 // past the overflow
		}
		if got, ok := layout.ParseSeq(name, layout.LockInfix); !ok || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
	for _, n := range []int64{math.MaxInt32 + 1, 9999999999, 10000000000, 99999999999, math.MaxInt64} {
		name := fmt.Sprintf("_c_x-lock-%010d", n)
		if got, ok := layout.ParseSeq(name, layout.LockInfix); !ok || got != n {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	for _, name := range []string{
		"", "lock-", "lock-1", "lock-000000000", "lock-00000000000", "lock-01234567890", "lock-9223372036854775808", "lock-99999999999999999999",
		"lock--2147483649", "lock--9999999999", "lock--10000000000", "lock-+000000001", "lock-+1000000000", "lock-1_00000000",
		"lock- 000000001", "lock-000000000x", "lock--0000000001", "lock--000000000", "x-0000000001", "README", "_c_s1", "-1",
	} {
		if got, ok := layout.ParseSeq(name, layout.LockInfix); ok {
			t.Errorf("%q is taken for number %d", name, got)
		}
	}
}

func TestOrder_IsAwareOfTheOverflow(t *testing.T) {
	queue := layout.LockLine.Order([]string{
		"b-lock--2147483648", "z-lock-2147483646", "README", "a-lock-2147483647", "c-lock--2147483647",
	})
	var got []int64
	for _, q := range queue {
		got = append(got, q.Seq)
	}
	want := []int64{math.MaxInt32 - 1, math.MaxInt32, math.MaxInt32 + 1, math.MaxInt32 + 2}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// Other services have more numbers than ZooKeeper: the number decides, not its digits.
func TestOrder_NumbersOfMoreThanTenDigits(t *testing.T) {
	names := []string{"a-lock-10000000000", "b-lock-9999999999", "c-lock-0000000001", "d-lock-9223372036854775807", "e-lock-10000000001"}
	var got []string
	for _, q := range layout.LockLine.Order(names) {
		got = append(got, q.Name[:1])
	}
	if fmt.Sprint(got) != "[c b a e d]" {
		t.Errorf("order %v", got)
	}
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = layout.ItemStem(fuzzID[:len(fuzzID)-1]+fmt.Sprint(i), 0) + name[strings.LastIndexByte(name, '-')+1:]
	}
	got = nil
	for _, e := range layout.ParseBucket("/b", items, 0).Items {
		got = append(got, string(names[e.ID[len(e.ID)-1]-'0'][0]))
	}
	if fmt.Sprint(got) != "[c b a e d]" {
		t.Errorf("items in order %v", got)
	}
	for i, want := range []string{"a", "a-1"} {
		n, ok := layout.ParseMember(fmt.Sprintf("%s%s-%s%s-12345678901", layout.GUIDPrefix, fuzzID, layout.MemberInfix, want))
		if !ok || n.ID != want || n.Seq != 12345678901 {
			t.Errorf("%d: %+v, %v", i, n, ok)
		}
	}
}
