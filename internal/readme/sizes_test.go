package readme

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

// TestTheWatchesOfTheGuideToSizes compares the table of watches and nodes with what a server counts
// while two clients of each kind are there.
func TestTheWatchesOfTheGuideToSizes(t *testing.T) {
	rows := make(map[string][2]int)
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d) \| (\d) \|$`).FindAllStringSubmatch(readFile(t, filepath.Join(root, "docs", "sizing.md")), -1) {
		watches, _ := strconv.Atoi(row[2]) // digits
		nodes, _ := strconv.Atoi(row[3])
		rows[row[1]] = [2]int{watches, nodes}
	}
	server := zktest.Run(t, nil).Servers()[0]
	ctx := t.Context()
	open := func() *coord.Client {
		t.Helper()
		c, err := coord.Open(ctx, zookeeper.New([]string{server.Addr()}, nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	counts := func() (now [2]int) {
		t.Helper()
		m, err := server.Mntr(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range []string{"zk_watch_count", "zk_znode_count"} {
			if now[i], err = strconv.Atoi(m[key]); err != nil {
				t.Fatal(err)
			}
		}
		return now
	}
	// await returns when the server counts want. A count that is passed by is not noticed, but
	// one that is never reached is.
	await := func(what string, want [2]int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); counts() != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the server counts the watches and nodes %v, want %v", what, counts(), want)
			}
		}
	}

	c := open() // takes what the others wait for
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(coord.NewMutex(c, "/mutex", nil).Lock(ctx))
	must(coord.NewRWMutex(c, "/rwmutex", nil).Lock(ctx))
	must(coord.NewSemaphore(c, "/semaphore", 1, nil).Acquire(ctx, 1))
	must(coord.NewElection(c, "/election", nil).Campaign(ctx))
	must(nil, coord.NewBarrier(c, "/barrier", nil).Set(ctx))
	must(coord.NewValue[string](c, "/value", nil).Set(ctx, ""))
	for i := range 10 {
		must(coord.NewValue[string](c, fmt.Sprintf("/tree/%d", i), nil).Set(ctx, ""))
	}
	must(coord.NewGroup[string](c, "/group", nil).Join(ctx, "a", ""))
	// Each hold and the membership watch their own node, soon after the call has returned.
	base := [2]int{5 * rows["holds a `Mutex`"][0], counts()[1]}
	await("what the others wait for", base)

	for _, row := range []struct {
		what  string
		first [2]int // of the first client
		f     func(ctx context.Context, c *coord.Client, n int)
	}{
		{"waits for a `Mutex`", [2]int{2, 1}, func(ctx context.Context, c *coord.Client, _ int) { coord.NewMutex(c, "/mutex", nil).Lock(ctx) }},
		{"waits for an `RWMutex`", [2]int{2, 1}, func(ctx context.Context, c *coord.Client, _ int) { coord.NewRWMutex(c, "/rwmutex", nil).Lock(ctx) }},
		{"waits for a `Semaphore`", [2]int{3, 1}, func(ctx context.Context, c *coord.Client, _ int) {
			coord.NewSemaphore(c, "/semaphore", 1, nil).Acquire(ctx, 1)
		}},
		{"is a candidate of an `Election`", [2]int{2, 1}, func(ctx context.Context, c *coord.Client, _ int) {
			coord.NewElection(c, "/election", nil).Campaign(ctx)
		}},
		{"follows `Election.WatchLeader`", [2]int{2, 0}, func(ctx context.Context, c *coord.Client, _ int) {
			coord.NewElection(c, "/election", nil).WatchLeader(ctx)
		}},
		{"waits at a `Barrier`", [2]int{1, 0}, func(ctx context.Context, c *coord.Client, _ int) { coord.NewBarrier(c, "/barrier", nil).Wait(ctx) }},
		{"follows `Value.Watch`", [2]int{1, 0}, func(ctx context.Context, c *coord.Client, _ int) {
			coord.NewValue[string](c, "/value", nil).Watch(ctx)
		}},
		{"runs a `Cache` of any size", [2]int{2, 0}, func(ctx context.Context, c *coord.Client, _ int) { coord.NewCache(c, "/tree", nil).Run(ctx) }},
		{"is a member of a `Group`", [2]int{1, 1}, func(ctx context.Context, c *coord.Client, n int) {
			coord.NewGroup[string](c, "/group", nil).Join(ctx, fmt.Sprint(n), "")
		}},
		{"follows `Group.Watch`", [2]int{2, 0}, func(ctx context.Context, c *coord.Client, _ int) { coord.NewGroup[string](c, "/group", nil).Watch(ctx) }},
	} {
		each, ok := rows[row.what]
		if !ok {
			t.Errorf("the page has no row %q", row.what)
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		one, two := open(), open()
		go row.f(ctx, one, 1)
		await(row.what, [2]int{base[0] + row.first[0], base[1] + row.first[1]})
		go row.f(ctx, two, 2)
		await(row.what+", the second", [2]int{base[0] + row.first[0] + each[0], base[1] + row.first[1] + each[1]})
		cancel()
		one.Close()
		two.Close()
		await(row.what+", after the end", base)
	}
}
