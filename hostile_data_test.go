package coord_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
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

// What stands in a directory that has had children is nobody's business, and stays. (A
// node that never had any is a value; see TestOnePathOneRecipe.)
func TestDataOfADirectoryIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		if y.dirs == nil {
			continue
		}
		t.Run(y.recipe, func(t *testing.T) {
			onEach(t, func(w *world) {
				ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
				defer cancel()
				s := w.session("x")
				for i, data := range []string{"{", strings.Repeat("h", 900_000)} {
					for _, dir := range y.dirs {
						w.used("/r" + dir)
						if _, err := s.Commit(ctx, backend.SetData(w.path("/r"+dir), []byte(data), backend.AnyVersion)); err != nil {
							w.t.Fatal(err)
						}
					}
					// Clients look at a directory once: these see what is there now.
					x := &useRun{w: w, a: w.open(fmt.Sprint("a", i), nil), b: w.open(fmt.Sprint("b", i), nil), path: "/r", payload: "v"}
					for range 2 {
						if err := y.run(ctx, x); err != nil {
							w.t.Fatalf("%.10q: %v", data, err)
						}
					}
					for _, dir := range y.dirs {
						got, _, err := s.Get(ctx, w.path("/r"+dir), nil)
						if strings.HasPrefix(dir, "/items") {
							continue // a queue counts by the versions of these, and writes nothing into them
						}
						if err != nil || string(got) != data {
							w.t.Errorf("the data of %q has become %.10q, %v", dir, got, err)
						}
					}
				}
			})
		})
	}
}

// Whatever is written into the node of a holder, he keeps the lock, and is asked for it
// only by what is a request.
func TestStrangeDataInTheNodeOfAHolder(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		s := w.session("x")
		var calls atomic.Int64
		m := coord.NewMutex(w.counting("a", &calls), "/l", nil)
		waiter := coord.NewMutex(w.open("b", nil), "/l", nil)
		h := mustLock(w.t, m)
		defer h.Release()
		l := w.waiting(ctx, waiter)
		n := 0
		eachStrange(func(what string, data []byte) {
			n++
			stat, err := s.Exists(ctx, h.Path(), nil)
			if err != nil {
				w.t.Fatal(err)
			}
			if _, err := s.Commit(ctx, backend.SetData(h.Path(), data, stat.Version)); err != nil {
				w.t.Fatal(err)
			}
			list, err := m.Contenders(ctx)
			if err != nil || len(list) != 2 || list[0].Path != h.Path() {
				w.t.Errorf("%s: %d contenders, %v", what, len(list), err)
			}
			if err := h.Verify(ctx); err != nil {
				w.t.Errorf("%s: %v", what, err)
			}
		})
		w.settle()
		l.pending()
		if r, asked := h.Revocation(); asked && r.By+r.Reason != "" {
			w.t.Errorf("asked by %+v", r)
		}
		if calls.Load() > int64(40*n) {
			w.t.Errorf("%d requests", calls.Load())
		}
		// A real one is understood all the same, and force takes the node away.
		if err := waiter.Revoke(ctx, &coord.RevokeOptions{By: "b", Force: time.Millisecond}); err != nil {
			w.t.Fatal(err)
		}
		<-h.Done()
		mustRelease(w.t, l.hold())
		w.empty("/l")
	})
}

func TestStrangeDataOfCandidates(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := w.session("x")
		e := coord.NewElection(w.open("a", nil), "/e", &coord.ElectionOptions{ID: "a"})
		seen := e.Observe(ctx)
		next(w.t, seen)
		w.ensured("/e")
		eachStrange(func(what string, data []byte) {
			latch := w.path("/e/x-latch-0000000000")
			if _, err := s.Commit(ctx, backend.Create(latch, data, backend.Ephemeral)); err != nil {
				w.t.Fatal(err)
			}
			if _, err := s.Commit(ctx, backend.Create(w.path("/e/x-ready-0000000000"), data, backend.Ephemeral)); err != nil {
				w.t.Fatal(err)
			}
			l, err := e.Leader(ctx)
			if err != nil || l.Path != latch || !l.Ready || !bytes.Equal(l.Announcement, data) {
				w.t.Errorf("%s: path %s ready %v announcement of %d bytes, %v", what, l.Path, l.Ready, len(l.Announcement), err)
			}
			if len(l.String()) > 8*len(data)+200 {
				w.t.Errorf("%s: String has %d bytes", what, len(l.String()))
			}
			if list, err := e.Contenders(ctx); err != nil || len(list) != 1 {
				w.t.Errorf("%s: %d contenders, %v", what, len(list), err)
			}
			for l := range seen {
				if l.Err != nil {
					w.t.Fatalf("%s: observe: %v", what, l.Err)
				}
				if l.Path == latch && l.Ready {
					break
				}
			}
			if _, err := s.Commit(ctx, backend.Delete(w.path("/e/x-ready-0000000000"), -1), backend.Delete(latch, -1)); err != nil {
				w.t.Fatal(err)
			}
			for l := range seen {
				if l.Err != nil {
					w.t.Fatalf("%s: observe: %v", what, l.Err)
				}
				if l.Vacant() {
					break
				}
			}
		})
		term := mustLead(w.t, e)
		term.Release()
		w.empty("/e")
	})
}

// What cannot be read is told of with ErrDecode, or ErrInvalid for a setting, and once
// it is mended all works again.
func TestStrangeDataOfValuesCountersAndLimits(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := w.session("x")
		var calls atomic.Int64
		c := w.counting("a", &calls)
		for _, path := range []string{"/v", "/n", "/s/limit"} {
			w.ensured(path)
		}
		v := coord.NewValue[struct{ N int8 }](c, "/v", nil)
		n := coord.NewCounter(c, "/n", nil)
		sem := coord.NewSemaphore(c, "/s", 2, nil)
		watch := v.Watch(ctx)
		eachStrange(func(what string, data []byte) {
			for _, path := range []string{"/v", "/n", "/s/limit"} {
				if _, err := s.Commit(ctx, backend.SetData(w.path(path), data, backend.AnyVersion)); err != nil {
					w.t.Fatal(err)
				}
			}
			told := func(name string, err error, want error) {
				w.t.Helper()
				if !errors.Is(err, want) {
					w.t.Errorf("%s: %s: %v, want %v", what, name, err, want)
				} else if len(err.Error()) > 400 {
					w.t.Errorf("%s: %s: an error of %d bytes", what, name, len(err.Error()))
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
			if _, err := s.Commit(ctx, backend.SetData(w.path(path), []byte(data), backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
		}
		for e := range watch {
			if e.Err != nil && !errors.Is(e.Err, coord.ErrDecode) {
				w.t.Fatal(e.Err)
			}
			if e.Value.N == 7 {
				break
			}
		}
		if got, err := n.Add(ctx, 1); err != nil || got != 6 {
			w.t.Errorf("counter %d, %v", got, err)
		}
		mustRelease(w.t, acquire(w.t, sem, 2))
		if n := calls.Load(); n > 600 {
			w.t.Errorf("%d requests", n)
		}
		w.empty("/s/requests")
	})
}
