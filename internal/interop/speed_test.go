//go:build linux

package interop

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

// Sixteen callers of one process contend for one lock, on an ensemble of three
// servers, ours and Curator's in turns. A figure of a busy machine and no
// benchmark; but inside a process ours needs one request a cycle, where Curator
// needs two writes and two reads, so it shows.
func TestCyclesInsideAProcessBesideCurators(t *testing.T) {
	inst := require(t)
	e := zktest.Run(t, &zktest.Options{Servers: 3})
	tr := &troupe{inst, inst.compileJava(t), strings.Join(e.Addrs(), ","), usualTimeout}
	java := tr.java(t, "curator")
	java.await(t, "opened")
	c, err := coord.Open(t.Context(), zookeeper.New(e.Addrs(), &zookeeper.Options{SessionTimeout: usualTimeout}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	const callers, rounds = 16, 5
	span := time.Second
	if long() {
		span = 5 * time.Second
	}
	ours := func(path string) int {
		m := coord.NewMutex(c, path, nil)
		var turns atomic.Int64
		var wg sync.WaitGroup
		end := time.Now().Add(span)
		for range callers {
			wg.Go(func() {
				for time.Now().Before(end) {
					h, err := m.Lock(context.Background())
					if err == nil {
						turns.Add(1)
						err = h.Release()
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return int(turns.Load())
	}
	curators := func(path string) int {
		java.tell(t, "spin", path, fmt.Sprint(callers), fmt.Sprint(span.Milliseconds()))
		n, err := strconv.Atoi(java.await(t, "spun").words[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	curators("/speed/warm") // its code is compiled as it runs
	var ratios []float64
	for i := range rounds {
		a, b := ours(fmt.Sprint("/speed/ours-", i)), curators(fmt.Sprint("/speed/curator-", i))
		ratios = append(ratios, float64(a)/float64(max(b, 1)))
		t.Logf("%d cycles of ours, %d of Curator's, in %v each", a, b, span)
	}
	slices.Sort(ratios)
	t.Logf("figure: 16 callers of one process on one lock, three servers: ours makes %.1f times the cycles of Curator's (median of %d; %.1f to %.1f)",
		ratios[rounds/2], rounds, ratios[0], ratios[rounds-1])
	if ratios[rounds/2] < 3 {
		t.Errorf("%.1f times Curator's cycles, want 3", ratios[rounds/2])
	}
}
