package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/serviceclock"
)

// A look into a bucket finds no more items than it wants, whatever the bucket holds.
func FuzzSight(f *testing.F) {
	const id = "01234567-89ab-8def-8123-456789abcdef"
	item := func(n, due int) string { return fmt.Sprintf("i-%08d%s-%d-%010d", n, id[8:], due, n) }
	for _, list := range [][]string{
		{item(0, 0), item(1, 0), item(2, 0), item(3, 0), item(4, 0)},
		{item(0, 0), item(1, 999), item(2, 1_000), item(3, 1_001), item(4, 0)},
		{"i-" + id + "-0-0000000000", "s-" + id, "m-" + id + "-" + id, "d-" + id + "-12"},
	} {
		f.Add(strings.Join(list, "\n"))
	}
	f.Fuzz(func(t *testing.T, list string) {
		names := slices.DeleteFunc(strings.Split(list, "\n"), func(name string) bool { return name == "" || strings.Contains(name, "/") })
		slices.Sort(names)
		names = slices.Compact(names)                                            // no two children have the same name
		v := sight{now: serviceclock.Moment{Known: true, Least: 1e9, Most: 1e9}} // 1,000 ms
		v.add(layout.ParseBucket("/q/items/b-0-0", names, 7).Items, 3)
		if len(v.found) > 3 {
			t.Errorf("%d found", len(v.found))
		}
	})
}
