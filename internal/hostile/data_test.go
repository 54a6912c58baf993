package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// strangeData is what other programs may have written where a recipe reads.
func strangeData() map[string][]byte {
	return map[string][]byte{
		"nothing":              nil,
		"half of an object":    []byte("{"),
		"null":                 []byte("null"),
		"a list":               []byte("[1,2,3]"),
		"an empty request":     []byte(`{"coord-revoke":null}`),
		"another version":      []byte(`{"coord-revoke":{"v":2,"at":"yesterday"},"data":7}`),
		"a late request":       []byte(`{"coord-revoke":{"at":9223372036854775807}}`),
		"a candidate":          []byte(`{"coord-candidate":{"id":7}}`),
		"no candidate":         []byte(`{"coord-candidate":null}`),
		"bytes":                {0, 1, 0xff, 0xfe, '\n', 0x80},
		"a number":             []byte("-99999999999999999999999999"),
		"a number with a sign": []byte("+3"),
		"deep":                 bytes.Repeat([]byte("["), 200_000),
		"deep in an envelope":  append([]byte(`{"coord-revoke":`), bytes.Repeat([]byte(`{"a":`), 100_000)...),
		"huge":                 bytes.Repeat([]byte("h"), 900_000),
	}
}

// eachStrange calls f with each in turn, in a fixed order.
func eachStrange(f func(what string, data []byte)) {
	all := strangeData()
	var names []string
	for what := range all {
		names = append(names, what)
	}
	slices.Sort(names)
	for _, what := range names {
		f(what, all[what])
	}
}

// Foreign data in a directory that has had children is left alone. (A node that never had any
// is a value; see TestKind/OnePathOneRecipe.)
func TestDataOfADirectoryIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		if y.dirs == nil {
			continue
		}
		t.Run(y.recipe, func(t *testing.T) {
			coordtest.OnEach(t, func(w *coordtest.World) {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				s := w.Session("x")
				for i, data := range []string{"{", strings.Repeat("h", 900_000)} {
					for _, dir := range y.dirs {
						w.Used("/r" + dir)
						if _, err := s.Commit(ctx, backend.SetData(w.Path("/r"+dir), []byte(data), backend.AnyVersion)); err != nil {
							w.T.Fatal(err)
						}
					}
					// Clients look at a directory once: these new ones see the present data.
					x := &useRun{w: w, a: w.Open(fmt.Sprint("a", i), nil), b: w.Open(fmt.Sprint("b", i), nil), path: "/r", payload: "v"}
					for range 2 {
						if err := y.run(ctx, x); err != nil {
							w.T.Fatalf("%.10q: %v", data, err)
						}
					}
					for _, dir := range y.dirs {
						got, _, err := s.Get(ctx, w.Path("/r"+dir), nil)
						if strings.HasPrefix(dir, "/items") {
							continue // a queue counts by the versions of these, and writes nothing into them
						}
						if err != nil || string(got) != data {
							w.T.Errorf("the data of %q has become %.10q, %v", dir, got, err)
						}
					}
				}
			})
		})
	}
}

// Whatever is written into the node of a holder, the holder keeps the lock, and only a valid
// request asks for its release.
func TestStrangeDataInTheNodeOfAHolder(t *testing.T) {
	coordtest.OnEach(t, func(w *coordtest.World) {
		ctx := context.Background()
		s := w.Session("x")
		var calls atomic.Int64
		m := coord.NewMutex(w.Counting("a", &calls), "/l", nil)
		waiter := coord.NewMutex(w.Open("b", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		defer h.Release()
		l := w.Waiting(ctx, waiter)
		n := 0
		eachStrange(func(what string, data []byte) {
			n++
			stat, err := s.Exists(ctx, h.Path(), nil)
			if err != nil {
				w.T.Fatal(err)
			}
			if _, err := s.Commit(ctx, backend.SetData(h.Path(), data, stat.Version)); err != nil {
				w.T.Fatal(err)
			}
			list, err := m.Contenders(ctx)
			if err != nil || len(list) != 2 || list[0].Path != h.Path() {
				w.T.Errorf("%s: %d contenders, %v", what, len(list), err)
			}
			if err := h.Verify(ctx); err != nil {
				w.T.Errorf("%s: %v", what, err)
			}
		})
		w.Settle()
		l.Pending()
		if r, asked := h.Revocation(); asked && r.By+r.Reason != "" {
			w.T.Errorf("asked by %+v", r)
		}
		if calls.Load() > int64(40*n) {
			w.T.Errorf("%d requests", calls.Load())
		}
		// A real request is recognized nevertheless, and force deletes the node.
		if err := waiter.Revoke(ctx, &coord.RevokeOptions{By: "b", ForceAfter: time.Millisecond}); err != nil {
			w.T.Fatal(err)
		}
		<-h.Done()
		coordtest.MustRelease(w.T, l.Hold())
		w.Empty("/l")
	})
}

func TestStrangeDataOfCandidates(t *testing.T) {
	coordtest.OnEach(t, func(w *coordtest.World) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := w.Session("x")
		e := coord.NewElection(w.Open("a", nil), "/e", &coord.ElectionOptions{ID: "a"})
		seen := e.WatchLeader(ctx)
		<-seen
		w.Ensured("/e")
		eachStrange(func(what string, data []byte) {
			latch := w.Path("/e/x-latch-0000000000")
			if _, err := s.Commit(ctx, backend.Create(latch, data, backend.Ephemeral)); err != nil {
				w.T.Fatal(err)
			}
			if _, err := s.Commit(ctx, backend.Create(w.Path("/e/x-ready-0000000000"), data, backend.Ephemeral)); err != nil {
				w.T.Fatal(err)
			}
			l, err := e.Leader(ctx)
			if err != nil || l.Path != latch || !l.Ready || !bytes.Equal(l.Announcement, data) {
				w.T.Errorf("%s: path %s ready %v announcement of %d bytes, %v", what, l.Path, l.Ready, len(l.Announcement), err)
			}
			if len(l.String()) > 8*len(data)+200 {
				w.T.Errorf("%s: String has %d bytes", what, len(l.String()))
			}
			if list, err := e.Contenders(ctx); err != nil || len(list) != 1 {
				w.T.Errorf("%s: %d contenders, %v", what, len(list), err)
			}
			for l := range seen {
				if l.Err != nil {
					w.T.Fatalf("%s: observe: %v", what, l.Err)
				}
				if l.Path == latch && l.Ready {
					break
				}
			}
			if _, err := s.Commit(ctx, backend.Delete(w.Path("/e/x-ready-0000000000"), -1), backend.Delete(latch, -1)); err != nil {
				w.T.Fatal(err)
			}
			for l := range seen {
				if l.Err != nil {
					w.T.Fatalf("%s: observe: %v", what, l.Err)
				}
				if l.Vacant() {
					break
				}
			}
		})
		term, err := e.Campaign(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		term.Release()
		w.Empty("/e")
	})
}

// Data that cannot be decoded is reported with ErrDecode, or with ErrInvalid for a setting.
// Once it is repaired, everything works again.
func TestStrangeDataOfValuesCountersAndLimits(t *testing.T) {
	coordtest.OnEach(t, func(w *coordtest.World) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := w.Session("x")
		var calls atomic.Int64
		c := w.Counting("a", &calls)
		for _, path := range []string{"/v", "/n", "/s/limit"} {
			w.Ensured(path)
		}
		v := coord.NewValue[struct{ N int8 }](c, "/v", nil)
		n := coord.NewCounter(c, "/n")
		sem := coord.NewSemaphore(c, "/s", 2, nil)
		watch := v.Watch(ctx)
		eachStrange(func(what string, data []byte) {
			for _, path := range []string{"/v", "/n", "/s/limit"} {
				if _, err := s.Commit(ctx, backend.SetData(w.Path(path), data, backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
			told := func(name string, err error, want error) {
				w.T.Helper()
				if !errors.Is(err, want) {
					w.T.Errorf("%s: %s: %v, want %v", what, name, err, want)
				} else if len(err.Error()) > 400 {
					w.T.Errorf("%s: %s: an error of %d bytes", what, name, len(err.Error()))
				}
			}
			if what == "a number with a sign" {
				return // it is one
			}
			if !bytes.HasSuffix(data, []byte("}")) && what != "null" { // an object that merely has other fields is one
				_, err := v.Get(ctx)
				told("get", err, coord.ErrDecode)
				_, err = v.Update(ctx, func(v struct{ N int8 }) (struct{ N int8 }, error) { return v, nil })
				told("update", err, coord.ErrDecode)
			}
			if len(data) > 0 { // an empty counter is at zero
				_, err := n.Add(ctx, 1)
				told("add", err, coord.ErrDecode)
				_, err = n.Reserve(ctx, 1)
				told("reserve", err, coord.ErrDecode)
			}
			_, err := sem.Limit(ctx)
			told("limit", err, coord.ErrInvalid)
			_, err = sem.TryAcquire(ctx, 1)
			told("acquire", err, coord.ErrInvalid)
		})
		for path, data := range map[string]string{"/v": `{"N":7}`, "/n": "5", "/s/limit": "2"} {
			if _, err := s.Commit(ctx, backend.SetData(w.Path(path), []byte(data), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		for e := range watch {
			if e.Err != nil && !errors.Is(e.Err, coord.ErrDecode) {
				w.T.Fatal(e.Err)
			}
			if e.Value.N == 7 {
				break
			}
		}
		if got, err := n.Add(ctx, 1); err != nil || got != 6 {
			w.T.Errorf("counter %d, %v", got, err)
		}
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, sem.Locker(2)))
		if n := calls.Load(); n > 600 {
			w.T.Errorf("%d requests", n)
		}
		w.Empty("/s/requests")
	})
}

// Nodes of other programs among the records of transactions block nothing: List and Recover
// skip them, a site continues to serve, and a transaction commits.
func TestStrangeRecordsAmongTransactions(t *testing.T) {
	coordtest.OnEach(t, func(w *coordtest.World) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s := w.Session("x")
		var calls atomic.Int64
		x := &useRun{w: w, a: w.Counting("a", &calls), b: w.Counting("b", &calls), path: "/r", payload: "v"}
		cy := fullUseOf(w.T, "two-phase commit")
		if err := cy.run(ctx, x); err != nil {
			w.T.Fatal(err)
		}
		records := make(map[string][]byte)
		eachStrange(func(what string, data []byte) { records[strings.ReplaceAll(what, " ", "-")] = data })
		for what, rec := range map[string]map[string]any{
			"site-with-a-slash": {"mark": strangeID, "sites": []string{"../x"}, "deadline": 1},
			"site-of-nothing":   {"mark": strangeID, "sites": []string{""}, "deadline": 1},
			"site-refused":      {"mark": strangeID, "sites": []string{"a\u202eb"}, "deadline": 1},
			"mark-with-a-slash": {"mark": "../../x", "sites": []string{"s"}, "deadline": 1},
			"mark-refused":      {"mark": "\u202e", "sites": []string{"s"}, "deadline": 1},
			"many-sites":        {"mark": strangeID, "sites": strings.Split(strings.Repeat("s,", 5000), ","), "deadline": 1},
		} {
			records[what], _ = json.Marshal(rec)
		}
		for name, data := range records {
			if _, err := s.Commit(ctx, backend.Create(w.Path("/r/tx/"+name), data, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
			if _, err := s.Commit(ctx, backend.Create(w.Path("/r/sites/s/"+name+"~"+strangeID), data, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
		}
		co := coord.NewCoordinator[string](x.a, "/r", nil)
		if list, err := co.List(ctx); err != nil || len(list) != 0 {
			w.T.Errorf("list: %d, %v", len(list), err)
		}
		if list, err := co.Recover(ctx); err != nil || len(list) != 0 {
			w.T.Errorf("recover: %d, %v", len(list), err)
		}
		for name := range records {
			_, err := co.Status(ctx, name)
			coordtest.WantErr(w.T, err, coord.ErrDecode)
			if len(err.Error()) > 500 {
				w.T.Errorf("an error of %d bytes", len(err.Error()))
			}
		}
		calls.Store(0)
		if err := cy.run(ctx, x); err != nil {
			w.T.Errorf("a transaction among them: %v", err)
		}
		if n := calls.Load(); n > 3000 {
			w.T.Errorf("%d requests", n)
		}
	})
}

// Names of items with the largest and smallest numbers, and states that hold anything.
func TestStrangeItemsOfAQueue(t *testing.T) {
	t.Parallel()
	coordtest.OnMemory(t, func(w *coordtest.World) {
		ctx := context.Background()
		s := w.Session("x")
		var calls atomic.Int64
		hooks := &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }}
		q := coord.NewQueue(w.Open("a", hooks), "/q", &coord.QueueOptions[int]{MaxAttempts: 3})
		if _, err := q.Put(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		if _, err := q.Pop(ctx); err != nil {
			w.T.Fatal(err)
		}
		bucket := "/q/items/b-0-0"
		w.Ensured(bucket)
		id := func(n int) string { return fmt.Sprintf("01234567-89ab-8def-8123-%012d", n) }
		node := func(name string, data string) {
			w.T.Helper()
			if _, err := s.Commit(ctx, backend.Create(w.Path(bucket+"/"+name), []byte(data), backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
		}
		for i, due := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 53} {
			node(fmt.Sprintf("i-%s-%d-%010d", id(i), due, i), "1") // never
		}
		node(fmt.Sprintf("i-%s-0-2147483647", id(10)), "1")
		node(fmt.Sprintf("d-%s-%d", id(10), int64(math.MaxInt64)), "") // delayed forever
		node(fmt.Sprintf("i-%s-0--2147483648", id(11)), "11")
		node(fmt.Sprintf("d-%s-%d", id(11), int64(math.MinInt64)), "") // due long ago
		node(fmt.Sprintf("i-%s-0-0000000005", id(12)), "12")
		node("s-"+id(12), "-7")
		node(fmt.Sprintf("i-%s-0-0000000006", id(13)), "13")
		node("s-"+id(13), strings.Repeat("9", 1000))
		node(fmt.Sprintf("i-%s-0-0000000007", id(14)), "{not a number")
		node(fmt.Sprintf("i-%s-0-0000000008", id(15)), "15")
		node("s-"+id(15), "9223372036854775807") // claimed more often than may be
		got := make(map[int]bool)
		for range 3 {
			tctx, cancel := context.WithTimeout(ctx, time.Minute)
			it, err := q.Take(tctx)
			cancel()
			if err != nil {
				w.T.Fatal(err)
			}
			got[it.Value] = true
			if it.Attempt < 1 || it.Attempt > 3 {
				w.T.Errorf("item %d, attempt %d", it.Value, it.Attempt)
			}
			if err := it.Ack(); err != nil {
				w.T.Fatal(err)
			}
		}
		if !got[11] || !got[12] || !got[13] {
			w.T.Errorf("got %v", got)
		}
		_, err := q.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		calls.Store(0)
		tctx, cancel := context.WithTimeout(ctx, 24*time.Hour)
		defer cancel()
		_, err = q.Take(tctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if n := calls.Load(); n > 200 {
			w.T.Errorf("%d requests in a day of waiting for items that are never due", n)
		}
		if n := len(w.Children("/q/dead/items/b-0-0")); n < 2 {
			w.T.Errorf("%d dead letters, want those that cannot be decoded, or were claimed too often", n)
		}
	})
}

// A ready node that no member of the barrier has created, with strange data.
func TestStrangeRoundsOfADoubleBarrier(t *testing.T) {
	coordtest.OnEach(t, func(w *coordtest.World) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s := w.Session("x")
		var calls atomic.Int64
		x := &useRun{w: w, a: w.Counting("a", &calls), b: w.Counting("b", &calls), path: "/r", payload: "v"}
		cy := fullUseOf(w.T, "double barrier")
		if err := cy.run(ctx, x); err != nil {
			w.T.Fatal(err)
		}
		eachStrange(func(what string, data []byte) {
			w.Ensured("/r")
			if _, err := s.Commit(ctx, backend.Create(w.Path("/r/ready"), data, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
			calls.Store(0)
			if err := cy.run(ctx, x); err != nil {
				w.T.Errorf("%s: %v", what, err)
			}
			if n := calls.Load(); n > 200 {
				w.T.Errorf("%s: %d requests", what, n)
			}
			if _, err := s.Exists(ctx, w.Path("/r/ready"), nil); !errors.Is(err, backend.ErrNotFound) {
				w.T.Errorf("%s: the ready is still there, %v", what, err)
			}
		})
	})
}

// fullUseOf returns the full use of one recipe.
func fullUseOf(t *testing.T, recipe string) fullUse {
	t.Helper()
	for _, y := range fullUses() {
		if y.recipe == recipe {
			return y
		}
	}
	t.Fatalf("no full use of %s", recipe)
	return fullUse{}
}

const strangeID = "01234567-89ab-8def-8123-456789abcdef"

// nearly has near misses of the digits of a node's name.
var nearly = []string{
	"", "1", "000000001", "00000000001", "99999999999999999999", "000000000a", "+000000001", " 000000001", "000000001 ", "0x00000001",
	"-", "--00000001", "-000000000", "-02147483648", "9223372036854775808", "00000000-1", "1e00000001",
	"٠٠٠٠٠٠٠٠٠٠", "０００００００００１", "0000000001~", "0000000001.", strings.Repeat("9", 200),
}

// strangers returns names that belong to no directory. refused are those that no path of coord
// may have, though a server stores them.
func strangers(y fullUse) (names, refused []string) {
	names = []string{
		"README", "x", "_c_", "_c_s1", "_c_" + strangeID, "_c_" + strangeID + "-", "x-99999999999", "lock-", "~", "i-", "b--", "b-0",
		"b-0-01", "b-0--1", "b-x-0", "b-9223372036854775808-0", "b-0-9223372036854775808", "s-", "m-", "d-", "readiness", "live-",
		"ein Knoten", "узел", "節点", strings.Repeat("n", 200), "%s%d%v", `"{}'`, "$(x)",
	}
	for _, form := range y.forms {
		if strings.Contains(form, "%[1]s") {
			for _, digits := range nearly {
				if form == "b-0-%[1]s" && digits != "" && strings.Trim(digits[1:], "0123456789") == "" && digits[0] >= '1' && digits[0] <= '9' {
					continue // a number of a bucket
				}
				names = append(names, fmt.Sprintf(form+"%[3]s", digits, strangeID, ""))
			}
		}
		// The exact form, with the lowest number, and with a character that is refused.
		for _, r := range []string{"\u202e", "\u200b", "\u2028"} {
			spoilt := strangeID[:20] + r + strangeID[20+len(r):]
			name := fmt.Sprintf(form+"%[3]s", "0000000000", spoilt, "")
			if !strings.Contains(name, r) {
				name = r + name
			}
			refused = append(refused, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), refused
}

// plant creates persistent nodes with these names, as a client of another library does that
// does not know coord's rules.
func plant(w *coordtest.World, dir string, names []string, data []byte) {
	w.T.Helper()
	if w.Fake {
		s := w.Session("planter")
		for _, name := range names {
			if _, err := s.Commit(context.Background(), backend.Create(w.Path(dir+"/"+name), data, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
		}
		return
	}
	conn := w.Raw()
	for _, name := range names {
		if _, err := conn.Create(w.Path(dir+"/"+name), data, 0, zk.WorldACL(zk.PermAll)); err != nil {
			w.T.Fatalf("create %q: %v", name, err)
		}
	}
}

// weed deletes the planted nodes. All of them must still exist.
func weed(w *coordtest.World, dir string, names []string) {
	w.T.Helper()
	var s backend.Session
	var conn *zk.Conn
	if !w.Fake {
		conn = w.Raw()
	} else {
		s = w.Session("weeder")
	}
	for _, name := range names {
		var err error
		if !w.Fake {
			err = conn.Delete(w.Path(dir+"/"+name), -1)
		} else {
			_, err = s.Commit(context.Background(), backend.Delete(w.Path(dir+"/"+name), backend.AnyVersion))
		}
		if err != nil {
			w.T.Errorf("the foreign node %q in %s was touched: %v", name, dir, err)
		}
	}
}

// Foreign children are ignored and left alone, whatever their names are like.
func TestStrangeNeighboursAreIgnored(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		t.Run(y.recipe, func(t *testing.T) {
			coordtest.OnEach(t, func(w *coordtest.World) {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				var calls atomic.Int64
				x := &useRun{w: w, a: w.Counting("a", &calls), b: w.Counting("b", &calls), path: "/r", payload: "v"}
				run := func(when string) int64 {
					w.T.Helper()
					calls.Store(0)
					if err := y.run(ctx, x); err != nil {
						w.T.Fatalf("%s: %v", when, err)
					}
					return calls.Load()
				}
				run("before")
				alone := run("alone")
				names, refused := strangers(y)
				if !w.Fake {
					names = append(names, refused...)
				}
				for _, dir := range y.dirs {
					w.Ensured("/r" + dir)
					plant(w, "/r"+dir, names, []byte("{"))
				}
				among := run("among strangers")
				if among > 6*alone+300 {
					w.T.Errorf("%d requests among strangers, %d alone", among, alone)
				}
				again := run("among strangers again")
				w.T.Logf("figure: %s: %d requests alone, %d and %d among %d strangers in %d directories", y.recipe, alone, among, again, len(names), len(y.dirs))
				for _, dir := range slices.Backward(y.dirs) {
					weed(w, "/r"+dir, names)
				}
				run("afterwards")
			})
		})
	}
}
