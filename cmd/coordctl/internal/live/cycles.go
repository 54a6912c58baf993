package live

import (
	"maps"
	"slices"
)

const mostCycles = 10

// A Wait is one step of a cycle: a client that waits at a path for another one.
type Wait struct {
	Label string `json:"label"`
	Path  string `json:"path"` // of the recipe
	For   string `json:"for"`
}

// cycles returns the cycles of sessions that wait for each other. A session that waits for itself
// is none: several goroutines of one client may share it.
func cycles(rows []*Row) [][]Wait {
	// By the sessions. A session can have another label at each path.
	next := make(map[string]map[string]Wait)
	for _, r := range rows {
		for _, p := range slices.Concat(r.Holders, r.Waiters) {
			for i, other := range p.behind {
				if p.Session == "" || other == "" || other == p.Session {
					continue
				}
				if next[p.Session] == nil {
					next[p.Session] = make(map[string]Wait)
				}
				if _, ok := next[p.Session][other]; !ok {
					next[p.Session][other] = Wait{p.Label, r.Path, p.WaitsFor[i]}
				}
			}
		}
	}
	var found [][]Wait
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
					var cycle []Wait
					sessions := path[slices.Index(path, other):]
					for i, s := range sessions {
						cycle = append(cycle, next[s][sessions[(i+1)%len(sessions)]])
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
