package backendtest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/go-coord/coord/backend"
)

// onBatches returns a leaf that runs if the service has batches. Elsewhere it checks that
// ReadMany is refused.
func onBatches(name string, run func(s *scene)) leaf {
	return leaf{name, func(s *scene) {
		c := s.open("a")
		if c.Features().Has(backend.Batches) {
			run(s)
			return
		}
		results, err := c.ReadMany(s.ctx, backend.Read{Path: s.svc.Root()})
		s.refused(err, backend.ErrUnsupported, "read", s.svc.Root(), 0)
		if results != nil {
			s.Fatalf("results %v of a call that is not supported", results)
		}
	}}
}

// many reads many nodes.
func (c *client) many(reads ...backend.Read) []backend.ReadResult {
	c.s.Helper()
	results, err := c.ReadMany(c.s.ctx, reads...)
	if err != nil {
		c.s.Fatalf("read many: %v", err)
	}
	if len(results) != len(reads) {
		c.s.Fatalf("%d reads have %d results", len(reads), len(results))
	}
	return results
}

func manyLeaves() []leaf {
	return []leaf{
		onBatches("returns for each read what Get or Children returns", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "data", backend.Persistent)
			c.create("n/x", "", backend.Ephemeral)
			c.create("n/y", "", backend.Persistent)
			c.set(n, "new")
			var reads []backend.Read
			for _, p := range []string{n, s.path("missing"), n + "/x", s.svc.Root(), n, n + "/y", n + "/none/at/all"} {
				reads = append(reads, backend.Read{Path: p}, backend.Read{Path: p, Children: true})
			}
			slices.Reverse(reads)
			for i, result := range c.many(reads...) {
				r := reads[i]
				if r.Children {
					names, _, err := c.Children(s.ctx, r.Path, nil)
					slices.Sort(names)
					slices.Sort(result.Names)
					if fmt.Sprint(err) != fmt.Sprint(result.Err) || !slices.Equal(names, result.Names) || result.Data != nil || result.Stat != (backend.Stat{}) {
						s.Fatalf("children of %s: %+v, want %v, %v", r.Path, result, names, err)
					}
					if err != nil {
						s.refused(result.Err, backend.ErrNotFound, "children", r.Path, 0)
					}
					continue
				}
				data, stat, err := c.Get(s.ctx, r.Path, nil)
				if fmt.Sprint(err) != fmt.Sprint(result.Err) || !bytes.Equal(data, result.Data) || (data == nil) != (result.Data == nil) || state(stat) != state(result.Stat) || result.Names != nil {
					s.Fatalf("data of %s: %+v, want %q, %+v, %v", r.Path, result, data, stat, err)
				}
				if err != nil {
					s.refused(result.Err, backend.ErrNotFound, "get", r.Path, 0)
				}
			}
		}),
		onBatches("answers very many reads in their order", func(s *scene) {
			c := s.open("a")
			const n = 5000
			there := c.create("there", "v", backend.Persistent)
			reads := make([]backend.Read, n)
			for i := range reads {
				reads[i] = backend.Read{Path: there, Children: i%3 == 0}
				if i%7 == 0 {
					reads[i].Path = s.path(fmt.Sprint("missing-", i))
				}
			}
			for i, result := range c.many(reads...) {
				if (result.Err != nil) != (i%7 == 0) || i%7 != 0 && (string(result.Data) == "v") != (i%3 != 0) {
					s.Fatalf("read %d: %+v", i, result)
				}
				if i%7 == 0 {
					op := "get"
					if i%3 == 0 {
						op = "children"
					}
					s.refused(result.Err, backend.ErrNotFound, op, reads[i].Path, 0)
				}
			}
		}),
		onBatches("returns more than one reply can hold", func(s *scene) {
			c := s.open("a")
			data := string(bytes.Repeat([]byte("d"), backend.MaxRequest-3000))
			n := c.create("n", data, backend.Persistent)
			reads := make([]backend.Read, 80)
			for i := range reads {
				reads[i].Path = n
			}
			for i, result := range c.many(reads...) {
				if result.Err != nil || string(result.Data) != data {
					s.Fatalf("read %d: %d bytes, %v", i, len(result.Data), result.Err)
				}
			}
		}),
		onBatches("refuses invalid arguments", func(s *scene) {
			c := s.open("a")
			_, err := c.ReadMany(s.ctx)
			s.refused(err, backend.ErrInvalid, "read", "", 0)
			for _, bad := range []string{"", "n", "/n/", "/a//b", "/a\u200bb"} {
				for _, reads := range [][]backend.Read{{{Path: bad}}, {{Path: s.svc.Root()}, {Path: bad, Children: true}}} {
					results, err := c.ReadMany(s.ctx, reads...)
					s.refused(err, backend.ErrBadPath, "read", bad, 0)
					if results != nil {
						s.Fatalf("%v with an error", results)
					}
				}
			}
		}),
		onBatches("gives its data and names away", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "data", backend.Persistent)
			c.create("n/x", "", backend.Persistent)
			for range 2 {
				results := c.many(backend.Read{Path: n}, backend.Read{Path: n, Children: true}, backend.Read{Path: n})
				if string(results[0].Data) != "data" || results[1].Names[0] != "x" || string(results[2].Data) != "data" {
					s.Fatalf("read %+v", results)
				}
				clear(results[0].Data)
				clear(results[1].Names)
				if string(results[2].Data) != "data" {
					s.Fatal("two results share their data")
				}
			}
		}),
		onBatches("sees the session's own writes, and is never behind its reads", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "", backend.Persistent)
			for i := range 50 {
				writer := []*client{c, o}[i%2]
				want := strconv.Itoa(i)
				writer.set(n, want)
				if i%2 == 1 {
					c.sync()
				}
				if got := c.many(backend.Read{Path: n})[0]; string(got.Data) != want {
					s.Fatalf("read %q, want %q", got.Data, want)
				}
				if got, _ := c.get(n, nil); got != want {
					s.Fatalf("then read %q, want %q", got, want)
				}
			}
		}),
		onBatches("answers each read with a state at least as new as the one before", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			first, second := o.create("first", "0", backend.Persistent), o.create("second", "0", backend.Persistent)
			c.sync()
			const calls, rounds = 20, 8 // rounds of writes beside each call
			var group sync.WaitGroup
			defer group.Wait()
			begin := make(chan int)
			defer close(begin)
			group.Go(func() {
				for call := range begin {
					for i := range rounds {
						for _, n := range []string{first, second} {
							if _, err := o.Commit(s.ctx, backend.SetData(n, []byte(strconv.Itoa(call*rounds+i+1)), backend.AnyVersion)); err != nil {
								s.Errorf("write %d of call %d: %v", i, call, err)
							}
						}
					}
				}
			})
			number := func(r backend.ReadResult) int {
				n, err := strconv.Atoi(string(r.Data))
				if err != nil || r.Err != nil {
					s.Fatalf("read %q, %v", r.Data, r.Err)
				}
				return n
			}
			for call := range calls {
				begin <- call
				// first is written before second, and read after it.
				reads := make([]backend.Read, 300)
				for i := range reads {
					reads[i].Path = []string{second, first}[i%2]
				}
				at := 0
				for i, r := range c.many(reads...) {
					is := number(r)
					if is < at && i%2 == 1 || is < at-1 {
						s.Fatalf("read %d shows %d after %d", i, is, at)
					}
					at = max(at, is)
				}
			}
		}),
		onBatches("is repeated when its request or its reply is lost", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "v", backend.Persistent)
			c.create("n/x", "", backend.Ephemeral)
			for i := range 6 {
				f := faults()[i%2]
				f.drop(c.link)
				got := c.many(backend.Read{Path: n}, backend.Read{Path: n, Children: true}, backend.Read{Path: n + "/y"})
				if string(got[0].Data) != "v" || !slices.Equal(got[1].Names, []string{"x"}) {
					s.Fatalf("with a lost %s: %+v", f.name, got)
				}
				s.refused(got[2].Err, backend.ErrNotFound, "get", n+"/y", 0)
			}
		}),
		onBatches("shows no change before its event", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			for i := range 30 {
				w := backend.NewWatch()
				c.get(n, w)
				o.set(n, strconv.Itoa(i))
				c.sync()
				if got := c.many(backend.Read{Path: n})[0]; string(got.Data) != strconv.Itoa(i) || w.Kind() != backend.LookAgain {
					s.Fatalf("read %q, and the watch has kind %q", got.Data, w.Kind())
				}
			}
		}),
	}
}
