//go:build !race

package model

import "testing"

// dbScenes are two of three members that make rounds, with faults at any step. The long form
// combines more faults.
func dbScenes(all bool) []dbState {
	scene := func(rounds, crashes, losses, cancels, replies int8) dbState {
		s := dbState{crashes: crashes, losses: losses, cancels: cancels, replies: replies}
		for i := range s.m {
			s.m[i] = dbMember{pc: dbCreate, rounds: rounds}
		}
		return s
	}
	scenes := []dbState{scene(2, 1, 0, 0, 0), scene(2, 0, 1, 0, 0), scene(2, 0, 0, 1, 0), scene(2, 0, 0, 0, 1), scene(1, 0, 1, 1, 0)}
	if all {
		scenes = append(scenes, scene(2, 2, 0, 0, 0), scene(2, 1, 1, 0, 0), scene(2, 1, 0, 1, 1), scene(2, 0, 1, 1, 1))
	}
	return scenes
}

func TestTheDoubleBarriersProtocol(t *testing.T) {
	t.Parallel()
	states, rest, passed, left := 0, 0, 0, 0
	for _, next := range []bool{false, true} {
		for i, s := range dbScenes(long()) {
			m := dbModel{n: 2, next: next}
			m.run(s)
			if m.bad != "" {
				t.Fatalf("next round %v, scene %d: %s", next, i, m.bad)
			}
			states += len(m.seen)
			rest += m.rest
			passed += m.passed
			left += m.left
		}
	}
	t.Logf("figure: model of the double barrier: %d states, %d at rest, %d steps into a round, %d out", states, rest, passed, left)
	if rest == 0 || passed == 0 || left == 0 {
		t.Error("the model did nothing")
	}
}

// Each rule of the protocol is needed, and the model detects its absence.
func TestTheDoubleBarriersModelCatchesEachMutant(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]dbRules{
		"the commit that opens does not check the members":   {noChecks: true},
		"a stale ready is deleted by its own version":        {ownVersion: true},
		"the last leaver leaves in two steps":                {twoSteps: true},
		"leave counts every child":                           {countAll: true},
		"ready lets every member in":                         {anyReady: true},
		"two nodes of one call count twice":                  {countTwice: true},
		"a member that joins keeps its node":                 {keepsNode: true},
		"an extra member watches only ready":                 {watchReady: true},
		"a stale ready is never removed":                     {neverClears: true},
		"Enter returns before its node is deleted":           {returnsSoon: true},
		"an Enter counts a node left by an earlier one":      {meetsGhost: true},
		"an Enter counts a node whose creation had no reply": {unheard: true},
	} {
		t.Run(name, func(t *testing.T) {
			states := 0
			for _, s := range dbScenes(false) {
				for _, next := range []bool{false, true} {
					m := dbModel{n: 2, next: next, rules: rules}
					m.run(s)
					states += len(m.seen)
					if m.bad != "" {
						t.Logf("after %d states: %.60s", states, m.bad)
						return
					}
				}
			}
			t.Errorf("the model found nothing wrong in %d states", states)
		})
	}
}
