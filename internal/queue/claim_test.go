package queue

import "testing"

// Every event in every state of a claim: it leads to the state of the table, or it panics.
func TestQueue_AClaimMovesByItsTable(t *testing.T) {
	states := []string{claimHeld: "held", claimEnding: "ending", claimInsisting: "insisting", claimEnded: "ended", claimLost: "lost"}
	events := []string{claimRelease: "release", claimLose: "lose", claimSettle: "settle", claimInsist: "insist"}
	move := func(from, event int) (to string) {
		defer func() {
			if recover() != nil {
				to = "panic"
			}
		}()
		cl := &Claim{state: claimState(from)}
		cl.move(claimEvent(event))
		return states[cl.state]
	}
	moves := map[string]map[string]string{
		"held":      {"release": "ending", "lose": "lost"},
		"ending":    {"settle": "ended", "insist": "insisting"},
		"insisting": {"settle": "ended"},
	}
	for i, from := range states {
		for j, e := range events {
			want := moves[from][e]
			if want == "" {
				want = "panic"
			}
			if to := move(i, j); to != want {
				t.Errorf("%s: %s leads to %s, want %s", from, e, to, want)
			}
		}
	}
}
