package live

import (
	"maps"
	"slices"
)

const mostCycles = 10

// cycles returns the cycles of sessions that wait for each other. A session that waits for itself
// is none: several goroutines of one client may share it.
func cycles(rows []*Row) [][]string {
	labels := make(map[string]string)
	next := make(map[string]map[string]bool)
	for _, r := range rows {
		for _, p := range slices.Concat(r.Holders, r.Waiters) {
			if labels[p.Session] == "" {
				labels[p.Session] = p.Label
			}
			for _, other := range p.behind {
				if p.Session == "" || other == "" || other == p.Session {
					continue
				}
				if next[p.Session] == nil {
					next[p.Session] = make(map[string]bool)
				}
				next[p.Session][other] = true
			}
		}
	}
	var found [][]string
	const (
		onPath = 1
		done   = 2
	)
	state := make(map[string]int)
	var path []string
	var visit func(s string)
	visit = func(s string) {
		state[s] = onPath
		path = append(path, s)
		for _, other := range slices.Sorted(maps.Keys(next[s])) {
			switch state[other] {
			case 0:
				visit(other)
			case onPath:
				if len(found) < mostCycles {
					var cycle []string
					for _, s := range path[slices.Index(path, other):] {
						cycle = append(cycle, labels[s])
					}
					found = append(found, cycle)
				}
			}
		}
		path = path[:len(path)-1]
		state[s] = done
	}
	for _, s := range slices.Sorted(maps.Keys(next)) {
		if state[s] == 0 {
			visit(s)
		}
	}
	return found
}
