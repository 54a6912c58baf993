//go:build !race

package coord_test

import "testing"

// pactScenes: one transaction and many crashes; one whose dead proposer's record
// lands when a retry is done with; and two, one after the other with the same id.
func pactScenes(rules pactRules) []pactModel {
	scenes := []pactModel{
		{most: 1, start: pactState{crashes: 4}},
		{most: 1, start: pactState{crashes: 1, late: true}},
		{most: 2, start: pactState{crashes: 1}},
	}
	if long() {
		scenes[0].start.crashes = 8
		scenes[1].start.crashes, scenes[2].start.crashes = 2, 2
	}
	for i := range scenes {
		scenes[i].rules = rules
	}
	return scenes
}

func TestTheTwoPhaseCommitInEveryOrderOfSteps(t *testing.T) {
	t.Parallel()
	states, rest, done := 0, 0, make(map[string]int)
	for _, m := range pactScenes(pactRules{}) {
		m.run()
		if m.bad != "" {
			t.Fatal(m.bad)
		}
		t.Logf("%d states, %d at rest, %v", len(m.seen), m.rest, m.done)
		states += len(m.seen)
		rest += m.rest
		for what, n := range m.done {
			done[what] += n
		}
	}
	t.Logf("figure: model of the two-phase commit: %d states, %d at rest, %v", states, rest, done)
	for _, what := range []string{"yes", "no", "commit", "abort", "acknowledged", "collected", "late record", "crash", "abort for a site that is gone", "removed"} {
		if done[what] == 0 {
			t.Errorf("%q never happened", what)
		}
	}
	if rest == 0 {
		t.Error("nothing ever ends")
	}
}

// Each rule of the protocol is needed, and the model sees that.
func TestTheModelOfTheTwoPhaseCommitCatchesEachMutant(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]pactRules{
		"a site that sees no vote of its own aborts alone": {abortsAlone: true},
		"a vote names no transaction":                      {noIdentity: true},
		"the decision is overwritten":                      {overwritten: true},
		"whoever sees all votes commits":                   {anyoneCommits: true},
		"the record goes before it is acknowledged":        {collectEarly: true},
		"an acknowledgement minds no version":              {anyBallot: true},
		"a vote that is under way counts":                  {uncheckedVote: true},
		"the end of a site's presence is the decision":     {deathDecides: true},
		"a removed site leaves its vote":                   {removesBallot: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range pactScenes(rules) {
				m.run()
				if m.bad != "" {
					t.Logf("after %d states: %.70s", len(m.seen), m.bad)
					return
				}
			}
			t.Error("the model found nothing wrong")
		})
	}
}
