package sweep

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

var recipes = []func() *recipe{
	mutexAlone, mutexHandOver, mutexGivenUp, mutexLocal, mutexKept, readersWriters, semaphore, lockAll, lockAllNested, revocation,
	election, value, counter, barrier, doubleBarrier, shards, schedule,
	func() *recipe { return group(0) }, func() *recipe { return group(backend.Trees | backend.Batches) },
	func() *recipe { return cache(0) }, func() *recipe { return cache(backend.Trees | backend.Batches) },
	queue, work, priorityQueue, delayQueue, putAll, maxLen, pop, redrive, outcomes, txn,
	func() *recipe { return twoPhase(false) }, func() *recipe { return twoPhase(true) },
}

// abreast is the number of concurrent cells. They spend most of their time waiting.
const abreast = 5

func TestEveryRecipeStandsAFaultAtEachOfItsRequests(t *testing.T) {
	f := newField(t)
	var all []*result
	for _, make := range recipes {
		r := make()
		t.Run(strings.ReplaceAll(r.name, ",", ""), func(t *testing.T) {
			all = append(all, f.sweep(t, r)...)
		})
	}
	t.Logf("figure: all recipes: %s", summary(all))
	for _, k := range faults {
		var most *result
		for _, res := range all {
			if res.fault == k && res.struck && (most == nil || res.stall > most.stall) {
				most = res
			}
		}
		if most != nil {
			t.Logf("figure: %s: longest time without progress %v", k, most.stall.Round(time.Millisecond))
		}
	}
}

// sweep runs the cells of a recipe.
func (f *field) sweep(t *testing.T, r *recipe) []*result {
	clean := f.play(r, spot{})
	report(t, r, clean)
	if t.Failed() {
		return nil
	}
	results := f.all(t, r, cells(r, clean.requests))
	struck := make(map[fault]int)
	for _, res := range results {
		if res.struck {
			struck[res.fault]++
		}
	}
	for _, k := range faults {
		// A request late in the scenario may not happen each time.
		for n := int64(1); n <= 3 && struck[k] == 0 && !t.Failed(); n++ {
			res := f.play(r, spot{"a", request, n, k})
			report(t, r, res)
			results = append(results, res)
			if res.struck {
				struck[k]++
			}
		}
		if struck[k] == 0 {
			t.Errorf("no fault of the kind %q has happened", k)
		}
	}
	var requests []string
	for _, p := range r.players {
		requests = append(requests, fmt.Sprintf("%s %d", p, clean.requests[p]))
	}
	t.Logf("figure: %s: requests %s; %s", r.name, strings.Join(requests, ", "), summary(results))
	return results
}

// cells lists the cells to run.
func cells(r *recipe, requests map[string]int64) []spot {
	var list, rare []spot
	for _, who := range r.players {
		for n := int64(1); n <= requests[who]; n++ {
			for _, what := range faults {
				list = append(list, spot{who, request, n, what})
			}
		}
		for _, what := range faults {
			rare = append(rare, spot{who, ping, 1, what})
		}
		for _, what := range []fault{requestLost, replyLost} {
			// The second connection follows a broken one.
			rare = append(rare, spot{who, connect, 1, what}, spot{who, connect, 2, what}, spot{who, closing, 1, what})
		}
	}
	if long() {
		return append(list, rare...)
	}
	// A sample: some cells of each fault, and one of the others.
	h := fnv.New64a()
	h.Write([]byte(r.name))
	rng := rand.New(rand.NewPCG(seed(), h.Sum64()))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	taken := make(map[fault]int)
	list = slices.DeleteFunc(list, func(s spot) bool {
		taken[s.fault]++
		return taken[s.fault] > sample
	})
	return append(list, rare[rng.IntN(len(rare))])
}

// sample is the number of cells of each recipe and fault in the short form.
const sample = 1

// seed returns COORD_SEED, or a constant.
func seed() uint64 {
	n, err := strconv.ParseUint(cmp.Or(os.Getenv("COORD_SEED"), "1"), 10, 64)
	if err != nil {
		panic("COORD_SEED: " + err.Error())
	}
	return n
}

// all runs cells, some concurrently.
func (f *field) all(t *testing.T, r *recipe, list []spot) []*result {
	results := make([]*result, len(list))
	next := make(chan int)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range abreast {
		wg.Go(func() {
			for i := range next {
				results[i] = f.play(r, list[i])
				report(t, r, results[i])
				if len(results[i].violations) > 0 {
					failed.Add(1)
				}
			}
		})
	}
	for i := range list {
		if failed.Load() >= enough {
			t.Errorf("%d cells of %d were skipped, after %d with violations", len(list)-i, len(list), failed.Load())
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return slices.DeleteFunc(results, func(r *result) bool { return r == nil })
}

// enough is the number of failed cells after which a recipe is given up.
const enough = 5

// report logs a cell.
func report(t *testing.T, r *recipe, res *result) {
	t.Helper()
	for _, v := range res.violations {
		t.Errorf("%s: %v (%s): %s\nsteps: %s", r.name, res.spot, res.what, v, strings.Join(res.steps, " | "))
	}
	for _, text := range res.late {
		t.Logf("%s: %v (%s): not judged: %s", r.name, res.spot, res.what, text)
	}
	if !long() && res.fault != noFault || testing.Verbose() && os.Getenv("COORD_CELLS") == "1" {
		t.Logf("cell %v (%s): %s", res.spot, cmp.Or(res.what, "never happened"), res.outcome())
	}
}

// outcome describes the end of a cell.
func (r *result) outcome() string {
	switch {
	case len(r.violations) > 0:
		return "violation"
	case len(r.ended) > 0:
		return strings.Join(slices.Sorted(maps.Keys(r.ended)), ", ")
	case r.next:
		return "finished on the next session"
	}
	return "finished at the first try"
}

// summary counts the outcomes of cells.
func summary(all []*result) string {
	var struck, first, next, ended, uncertain, expiries, losses, violations int
	var solved int64
	var stall, lost time.Duration
	errs := make(map[string]int)
	for _, r := range all {
		switch {
		case len(r.violations) > 0:
			violations++
		case !r.struck:
		case len(r.ended) > 0:
			ended++
		case r.next:
			next++
		default:
			first++
		}
		for e, n := range r.ended {
			errs[e] += n
		}
		if r.struck {
			struck++
		}
		uncertain += r.uncertain
		solved += r.solved
		expiries += r.expiries
		losses += r.losses
		if r.losses > 0 {
			lost = max(lost, r.stall)
		} else {
			stall = max(stall, r.stall)
		}
	}
	var list []string
	for _, e := range slices.Sorted(maps.Keys(errs)) {
		list = append(list, fmt.Sprintf("%s %d", e, errs[e]))
	}
	s := fmt.Sprintf("%d cells, %d faults happened, %d never happened; %d finished at the first try, %d on the next session, %d with errors (%s); %d uncertain outcomes reported, %d resolved; %d expiries; %d violations; longest stall %v",
		len(all), struck, len(all)-struck, first, next, ended, strings.Join(list, ", "), uncertain, solved, expiries, violations, stall.Round(time.Millisecond))
	if losses > 0 {
		s += fmt.Sprintf(", %v with one of %d sessions that a slow machine has lost", lost.Round(time.Millisecond), losses)
	}
	return s
}
