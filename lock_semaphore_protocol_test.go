//go:build !race

package coord_test

import "testing"

// semScenes are the weights in order of arrival, and the limits one after the
// other.
func semScenes(all bool) []semModel {
	scenes := []semModel{{limits: []int8{2}, weights: []int8{1, 1, 1, 1}}, {limits: []int8{3}, weights: []int8{2, 2, 1, 1}}}
	for _, limits := range [][]int8{{2}, {1, 2}, {2, 1}, {3, 2}, {2, 3, 2}, {3, 2, 3}} {
		for _, weights := range [][]int8{{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {1, 1, 2}} {
			scenes = append(scenes, semModel{limits: limits, weights: weights, giveUps: 1, reconnects: 1})
			if all && len(limits) < 3 {
				scenes = append(scenes, semModel{limits: limits, weights: append(weights, 1), giveUps: 1, reconnects: 1})
			}
		}
	}
	return scenes
}

func TestTheSemaphoresProtocolLosesNoWakeUp(t *testing.T) {
	t.Parallel()
	states, rest, granted := 0, 0, 0
	for _, m := range semScenes(long()) {
		m.run()
		if m.bad != "" {
			t.Fatalf("weights %v, limits %v: %s", m.weights, m.limits, m.bad)
		}
		states += len(m.seen)
		rest += m.rest
		granted += m.granted
	}
	t.Logf("figure: model of the semaphore: %d scenes, %d states, %d at rest, %d grants", len(semScenes(long())), states, rest, granted)
	if rest == 0 || granted == 0 {
		t.Error("the model did nothing")
	}
}

// Each rule of the protocol is needed, and the model sees that.
func TestTheSemaphoresModelCatchesEachMutant(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]semRules{
		"a late grant makes no mark":                        {noMark: true},
		"a grant at once never makes a mark":                {bornAlways: true},
		"a grant under a changed limit makes no mark":       {bornAnyLimit: true},
		"a node without a mark is a waiter's":               {relyOnAll: true},
		"the limit is read before the line":                 {limitFirst: true},
		"a limit that changed meanwhile counts":             {staleLimit: true},
		"who cannot rely on the one before watches nothing": {noDirectory: true},
		"who is alone does not look at the limit":           {heavyAlone: true},
		"who wants one does not look at the line":           {oneBeside: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range semScenes(false) {
				m.rules = rules
				m.run()
				if m.bad != "" {
					t.Logf("weights %v, limits %v: %.60s", m.weights, m.limits, m.bad)
					return
				}
			}
			t.Error("the model found nothing wrong")
		})
	}
}
