//go:build linux

package faulttest

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// spans are times that do not overlap, in order, by the clock of proc.Now.
type spans []window[time.Duration]

// union returns the times that are in one of the spans at least, whatever their order is.
func union(all ...spans) (u spans) {
	every := slices.Concat(all...)
	slices.SortFunc(every, func(a, b window[time.Duration]) int { return cmp.Compare(a.from, b.from) })
	for _, w := range every {
		switch n := len(u); {
		case w.from >= w.to:
		case n > 0 && w.from <= u[n-1].to:
			u[n-1].to = max(u[n-1].to, w.to)
		default:
			u = append(u, w)
		}
	}
	return u
}

// and returns the times that are in both.
func (s spans) and(o spans) (both spans) {
	for i, j := 0, 0; i < len(s) && j < len(o); {
		if w := (window[time.Duration]{max(s[i].from, o[j].from), min(s[i].to, o[j].to)}); w.from < w.to {
			both = append(both, w)
		}
		if s[i].to < o[j].to {
			i++
		} else {
			j++
		}
	}
	return both
}

// minus returns the times of s that are not in o.
func (s spans) minus(o spans) (rest spans) {
	for _, w := range s {
		for _, x := range o {
			if x.to <= w.from || x.from >= w.to {
				continue
			}
			if w.from < x.from {
				rest = append(rest, window[time.Duration]{w.from, x.from})
			}
			w.from = x.to
		}
		if w.from < w.to {
			rest = append(rest, w)
		}
	}
	return rest
}

func (s spans) total() (d time.Duration) {
	for _, w := range s {
		d += w.to - w.from
	}
	return d
}

// idler is a consumer in one queue: the times in which it asked for an item, while its session
// lived and had contact, and the process was not paused.
type idler struct {
	name, lane string
	idle       spans
	starved    spans // in which its process did not run, though the test had not paused it
}

// available is an item and the times in which it could be taken.
type available struct {
	name, lane string
	ready      spans
}

// hindrances are what can explain that an item waits.
type hindrances struct {
	outages spans                      // in which no server answered
	silent  []spans                    // for each session of a consumer: see sessionLife
	absent  []spans                    // the same, and in which the process of the consumer did not run
	starved spans                      // in which the process of the test did not run, through which all connections go
	claims  map[string][]time.Duration // by lane: when an item was claimed, in order
}

// mostSilent is the number of consumers' sessions that may be silent and delay nothing: see Queue.
const mostSilent = 5

// wait is the longest time in which one item could be taken while one consumer was idle.
type wait struct {
	item, consumer string
	lane           string
	at             window[time.Duration]
	outage         time.Duration // part in which no server answered
	starved        time.Duration // other part in which the machine did not run the consumer, the test, or so many holders of slots that too few were left
	behind         time.Duration // other part in which more than mostSilent sessions were silent
	rest           time.Duration // what these do not explain
	still          time.Duration // the longest part of the rest in which no consumer claimed an item of the queue: the consumer has not lost a race
	silent         int           // the most silent sessions at a time
	silence        time.Duration // the longest silence of a session, before and after the wait too
}

func (w wait) length() time.Duration { return w.at.to - w.at.from }

func (w wait) String() string {
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%v (%s, while %s was idle): no server answered %v, it or its network did not run %v, more than %d sessions silent %v (%d at most), rest %v, in which no item was claimed for %v",
		ms(w.length()), w.item, w.consumer, ms(w.outage), ms(w.starved), mostSilent, ms(w.behind), w.silent, ms(w.rest), ms(w.still))
}

// longestWaits finds, for each idle time of each consumer, the item that could be taken for the
// longest part of it, if that is at least as long as least.
func longestWaits(idlers []idler, items []available, h hindrances, least time.Duration) (waits []wait) {
	type entry struct {
		name string
		window[time.Duration]
	}
	byLane := make(map[string][]entry)
	for _, it := range items {
		for _, r := range it.ready {
			if r.to-r.from >= least {
				byLane[it.lane] = append(byLane[it.lane], entry{it.name, r})
			}
		}
	}
	for _, c := range idlers {
		for _, idle := range c.idle {
			if idle.to-idle.from < least {
				continue
			}
			var longest wait
			for _, e := range byLane[c.lane] {
				at := window[time.Duration]{max(idle.from, e.from), min(idle.to, e.to)}
				if at.to-at.from >= least && at.to-at.from > longest.length() {
					longest = wait{item: e.name, consumer: c.name, lane: c.lane, at: at}
				}
			}
			if longest.item != "" {
				longest.explain(c, h)
				waits = append(waits, longest)
			}
		}
	}
	return waits
}

func (w *wait) explain(c idler, h hindrances) {
	all := spans{w.at}
	rest := all.minus(h.outages)
	w.outage = (all.total() - rest.total())
	n := rest.total()
	rest = rest.minus(union(c.starved, h.starved))
	crowded, most := h.crowded(w.at)
	w.silent = most
	for _, s := range h.silent {
		for _, x := range s {
			if x.from < w.at.to && x.to > w.at.from {
				w.silence = max(w.silence, x.to-x.from)
			}
		}
	}
	rest = rest.minus(over(mostSilent, h.absent).minus(crowded))
	w.starved = n - rest.total()
	w.behind = rest.and(crowded).total()
	rest = rest.minus(crowded)
	w.rest = rest.total()
	w.still = longestWithout(rest, h.claims[c.lane])
}

// longestWithout returns the longest part of the spans without any of the moments, which are in
// order.
func longestWithout(s spans, moments []time.Duration) (longest time.Duration) {
	for _, w := range s {
		i, _ := slices.BinarySearch(moments, w.from)
		for ; i < len(moments) && moments[i] < w.to; i++ {
			longest = max(longest, moments[i]-w.from)
			w.from = moments[i]
		}
		longest = max(longest, w.to-w.from)
	}
	return longest
}

// over returns the times that are in more than n of the spans.
func over(n int, all []spans) (times spans) {
	for _, s := range edges(all) {
		switch n -= s.by; {
		case n == -1 && s.by > 0:
			times = append(times, window[time.Duration]{from: s.at})
		case n == 0 && s.by < 0:
			times[len(times)-1].to = s.at
		}
	}
	return union(times)
}

// edge is a beginning (1) or an end (-1).
type edge struct {
	at time.Duration
	by int
}

// edges returns the beginnings and the ends of spans, in order.
func edges(all []spans) (edges []edge) {
	for _, s := range all {
		for _, w := range s {
			edges = append(edges, edge{w.from, 1}, edge{w.to, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	return edges
}

// crowded returns the times within a window from when more than mostSilent sessions were silent
// until none was, and the largest number of them. When the session of one of the holders of a slot
// has ended, the first waiter can still be another one of them.
func (h hindrances) crowded(at window[time.Duration]) (crowded spans, most int) {
	n, inside := 0, false
	for _, s := range edges(h.silent) {
		n += s.by
		switch {
		case s.at <= at.from:
			most = n
		case s.at < at.to:
			most = max(most, n)
		}
		switch {
		case n > mostSilent && !inside:
			inside = true
			crowded = append(crowded, window[time.Duration]{from: s.at})
		case n == 0 && inside:
			inside = false
			crowded[len(crowded)-1].to = s.at
		}
	}
	return crowded.and(spans{at}), most
}
