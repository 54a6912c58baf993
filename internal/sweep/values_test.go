package sweep

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-coord/coord"
)

// value: the value is a list of words, each of which one update adds. So a write that is
// lost, or applied twice, is visible.
func value() *recipe {
	return &recipe{
		name: "value", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			of := func(p *player) *coord.Value[[]string] { return coord.NewValue[[]string](p.c, "/v", nil) }
			watch, stop := context.WithCancel(x.ctx)
			defer stop()
			seen := of(c).Watch(watch)
			var sure, maybe []string
			add := func(p *player, word string) bool {
				_, err := of(p).Update(x.ctx, func(old []string) ([]string, error) { return append(slices.Clone(old), word), nil })
				return p.ok("update "+word, err, coord.ErrUncertain)
			}
			note := func(word string, ok bool) {
				if ok {
					sure = append(sure, word)
				} else {
					maybe = append(maybe, word)
				}
			}
			v, err := of(a).Set(x.ctx, []string{"set"})
			note("set", a.ok("set", err, coord.ErrUncertain))
			if err == nil {
				_, err = of(a).CompareAndSet(x.ctx, v, []string{"set", "cas"})
				note("cas", a.ok("cas", err, coord.ErrUncertain))
				// A further update of the replaced version must be refused.
				if err == nil {
					if _, err = of(b).CompareAndSet(x.ctx, v, nil); !errors.Is(err, coord.ErrConflict) && x.going() {
						b.ok("cas of a replaced version", err, coord.ErrUncertain)
						if err == nil {
							x.violation("a value that was replaced was replaced again")
						}
					}
				}
			}
			x.rest()
			var ok [4]bool
			x.together(
				func() { ok[0], ok[1] = add(a, "a1"), add(a, "a2") },
				func() { ok[2], ok[3] = add(b, "b1"), add(b, "b2") },
			)
			for i, word := range []string{"a1", "a2", "b1", "b2"} {
				note(word, ok[i])
			}
			note("end", add(b, "end"))
			got, err := of(b).Get(x.ctx)
			if !b.ok("get", err) {
				return
			}
			for _, word := range sure {
				if n := times(got.Value, word); n != 1 {
					x.violation("%q occurs %d times in %v", word, n, got.Value)
				}
			}
			for _, word := range maybe {
				if n := times(got.Value, word); n > 1 {
					x.violation("%q occurs %d times in %v", word, n, got.Value)
				}
			}
			if len(got.Value) > len(sure)+len(maybe) {
				x.violation("words that were not written: %v", got.Value)
			}
			last := int64(0)
			for x.going() {
				w, more := await(x, "c sees "+strings.Join(got.Value, " "), seen)
				if !more {
					break
				}
				if w.Err != nil && !errors.Is(w.Err, coord.ErrNotFound) {
					x.violation("watch: %v", w.Err)
				}
				if w.Mzxid < last || w.Mzxid == last && last != 0 {
					x.violation("watch: change %d after %d", w.Mzxid, last)
				}
				last = w.Mzxid
				if w.Version == got.Version && w.Czxid == got.Czxid && slices.Equal(w.Value, got.Value) {
					break
				}
			}
			stop()
			for range seen {
			}
		},
		fresh: func(x *cell, p *player) {
			v := coord.NewValue[[]string](p.c, "/v", nil)
			_, err := v.Update(x.ctx, func(old []string) ([]string, error) { return append(slices.Clone(old), "fresh"), nil })
			p.ok("update", err)
			got, err := v.Get(x.ctx)
			if p.ok("get", err) && times(got.Value, "fresh") != 1 {
				x.violation("the value is %v", got.Value)
			}
		},
	}
}

func times(list []string, word string) (n int) {
	for _, w := range list {
		if w == word {
			n++
		}
	}
	return n
}

func counter() *recipe {
	return &recipe{
		name: "counter", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			// Each addition is a decimal digit of its own, so that the sum shows which
			// additions were applied, and how often.
			var sums, maybes [2]int64
			run := func(i int, p *player, first int64) {
				n := coord.NewCounter(p.c, "/n")
				for delta := first; delta < first*1000; delta *= 10 {
					if p == a && delta == first*10 {
						x.rest()
					}
					sum, err := n.Add(x.ctx, delta)
					if !p.ok("add", err, coord.ErrUncertain) {
						maybes[i] += delta
						continue
					}
					sums[i] += delta
					if sum/delta%10 != 1 {
						x.violation("%s added %d and has %d", p.name, delta, sum)
					}
				}
			}
			x.together(func() { run(0, a, 1) }, func() { run(1, b, 1000) })
			got, err := coord.NewCounter(b.c, "/n").Get(x.ctx)
			if !b.ok("get", err) {
				return
			}
			sure, maybe := sums[0]+sums[1], maybes[0]+maybes[1]
			for d := int64(1); d < 1_000_000; d *= 10 {
				n, must, may := got/d%10, sure/d%10, maybe/d%10
				if n < must || n > must+may {
					x.violation("the counter is %d: certainly added %d, perhaps %d", got, sure, maybe)
				}
			}
		},
		fresh: func(x *cell, p *player) {
			n := coord.NewCounter(p.c, "/n")
			before, err := n.Get(x.ctx)
			p.ok("get", err)
			after, err := n.Add(x.ctx, 7)
			if p.ok("add", err) && after != before+7 {
				x.violation("%d and 7 are %d", before, after)
			}
		},
	}
}
