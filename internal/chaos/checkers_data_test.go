//go:build linux

package chaos

import (
	"slices"
	"testing"

	"github.com/go-coord/coord"
)

// made returns calls of a process of their own.
func made(calls ...call) (list []*call) {
	p := &process{name: "p"}
	for i := range calls {
		c := &calls[i]
		c.process = p
		if c.from == 0 {
			c.from, c.to = int64(10*i+1), int64(10*i+5)
		}
		if c.outcome == "" {
			c.outcome = "ok"
		}
		list = append(list, c)
	}
	return list
}

func TestTheCheckOfTheQueueAccountsForAllItems(t *testing.T) {
	put := func(v string) call { return call{event: event{Op: "put", Value: v}} }
	take := func(v, mark string, token, attempt int64) call {
		return call{event: event{Op: "take", Value: v, Old: mark, Token: token, Num: attempt}}
	}
	end := func(op, v, mark, outcome, settled string) call {
		return call{event: event{Op: op, Value: v, Old: mark}, outcome: outcome, settled: settled}
	}
	gone := map[string]item{"a": {created: 1, deleted: 1}}
	for _, tc := range []struct {
		name  string
		puts  []call
		takes []call
		ends  []call
		items map[string]item
		want  string
	}{
		{"all well", []call{put("a")}, []call{take("a", "m1", 5, 1)}, []call{end("ack", "a", "m1", "ok", "")}, gone, ""},
		{"again after a nack", []call{put("a")}, []call{take("a", "m1", 5, 1), take("a", "m2", 6, 2)}, []call{end("nack", "a", "m1", "ok", ""), end("ack", "a", "m2", "ok", "")}, gone, ""},
		{"an uncertain ack that was applied", []call{put("a")}, []call{take("a", "m1", 5, 1)}, []call{end("ack", "a", "m1", "unknown", "applied")}, gone, ""},
		{"an uncertain ack that was not applied", []call{put("a")}, []call{take("a", "m1", 5, 1)}, []call{end("ack", "a", "m1", "unknown", "not applied")}, gone, "removed without an acknowledgement"},
		{"lost before it was taken", []call{put("a")}, nil, nil, gone, "removed without an acknowledgement"},
		{"lost after a nack", []call{put("a")}, []call{take("a", "m1", 5, 1)}, []call{end("nack", "a", "m1", "ok", "")}, gone, "removed without an acknowledgement"},
		{"never there", []call{put("a")}, nil, nil, nil, "put but never in the queue"},
		{"still in the queue", []call{put("a")}, nil, nil, map[string]item{"a": {created: 1}}, "still in the queue"},
		{"after an ack that was ok", []call{put("a")}, []call{take("a", "m1", 5, 1), take("a", "m2", 6, 2)}, []call{end("ack", "a", "m1", "ok", ""), end("ack", "a", "m2", "no", "")}, gone, "delivered again after it was acknowledged"},
		{"the same attempt again", []call{put("a")}, []call{take("a", "m1", 5, 2), take("a", "m2", 6, 1)}, []call{end("ack", "a", "m2", "ok", "")}, gone, "the attempts do not grow"},
		{"one claim twice", []call{put("a")}, []call{take("a", "m1", 5, 1), take("a", "m2", 5, 2)}, []call{end("ack", "a", "m2", "ok", "")}, gone, "the attempts do not grow"},
		{"from nowhere", nil, nil, nil, gone, "from nowhere"},
		{"taken but never put", nil, []call{take("b", "m1", 5, 1)}, nil, nil, "taken but never put"},
		{"put twice", []call{put("a")}, []call{take("a", "m1", 5, 1)}, []call{end("ack", "a", "m1", "ok", "")}, map[string]item{"a": {created: 2, deleted: 2}}, "put 2 times"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			verdict(t, checkQueue(made(tc.puts...), made(tc.takes...), made(tc.ends...), tc.items), tc.want)
		})
	}
}

func TestTheCheckOfTheRegisterFindsHistoriesThatAreNotLinearizable(t *testing.T) {
	at := func(c call, from, to int64) call { c.from, c.to = from, to; return c }
	set := func(v string, zxid int64) call {
		return call{event: event{Op: "set", Value: v, Token: zxid}, zxid: zxid}
	}
	get := func(v string, zxid int64) call { return call{event: event{Op: "get", Value: v, Token: zxid}} }
	cas := func(old, v string, zxid int64) call {
		return call{event: event{Op: "cas", Old: old, Value: v, Token: zxid}, zxid: zxid}
	}
	conflict := call{event: event{Op: "cas", Old: "a", Value: "z", Err: "coord: changed by another client"}, outcome: "no"}
	open := func(c call, settled string) call {
		c.outcome, c.settled, c.from, c.to = "unknown", settled, c.zxid*10, forever
		return c
	}
	for _, tc := range []struct {
		name  string
		calls []call
		want  string
	}{
		{"all well", []call{get("", 0), set("a", 1), get("a", 1), cas("a", "b", 2), get("b", 2), conflict}, ""},
		{"a stale read", []call{set("a", 1), set("b", 2), get("a", 1)}, "not linearizable"},
		{"a read beside the write", []call{set("a", 1), at(set("b", 2), 11, 50), at(get("a", 1), 20, 30)}, ""},
		{"a lost update", []call{set("a", 1), cas("a", "b", 2), cas("a", "c", 3)}, "not linearizable"},
		{"a conflict with the expected value", []call{set("a", 1), conflict}, "not linearizable"},
		{"a value that was never written", []call{get("x", 9)}, "not linearizable"},
		{"an uncertain write that was applied", []call{open(set("a", 1), "applied"), at(get("a", 1), 30, 40)}, ""},
		{"an uncertain write that was not", []call{open(set("a", 1), "not applied"), at(get("a", 1), 30, 40)}, "not linearizable"},
		{"an uncertain write, by the logs before one that has returned", []call{open(set("a", 1), "applied"), at(set("b", 2), 20, 30), at(set("c", 3), 32, 35), at(get("a", 1), 40, 50)}, "not linearizable"},
	} {
		t.Run(tc.name, func(t *testing.T) { verdict(t, checkRegister(made(tc.calls...)), tc.want) })
	}

	synced := get("a", 1)
	synced.Op = "syncget"
	if n := len(staleReads(made(set("a", 1), set("b", 2), synced))); n != 1 {
		t.Errorf("%d stale reads, want 1", n)
	}
	if n := len(staleReads(made(set("a", 1), synced, set("b", 2)))); n != 0 {
		t.Errorf("%d stale reads, want none", n)
	}
	in := func(session int64, c call) call { c.Session = session; return c }
	verdict(t, checkSessions(made(in(7, get("b", 2)), in(8, get("a", 1)))), "")
	verdict(t, checkSessions(made(in(7, get("b", 2)), in(7, get("a", 1)))), "older than an earlier result")
}

func TestTheCheckOfTheCounterFindsALostAddition(t *testing.T) {
	add := func(delta, after int64) call {
		return call{event: event{Op: "add", Token: delta, Num: after}, zxid: after}
	}
	get := func(n int64) call { return call{event: event{Op: "get", Num: n}} }
	verdict(t, checkCounter(made(add(3, 3), get(3), add(4, 7), get(7))), "")
	verdict(t, checkCounter(made(add(3, 3), add(4, 4), get(4))), "not linearizable")
	verdict(t, checkCounter(made(add(3, 3), add(4, 11))), "not linearizable")
	verdict(t, checkCounter(made(add(3, 3), add(4, 7), get(3))), "not linearizable")
}

func TestTheCheckOfTransactionsFindsTwoOutcomes(t *testing.T) {
	yes := func(id, site string) bool { return !(id == "no" && site == "s2") }
	proposed := func(id, outcome string) []event {
		return []event{
			{Kind: "begin", Work: "txn", Op: "propose", ID: id, Old: "s1 s2", N: 1},
			{Kind: "ok", Work: "txn", Op: "propose", ID: id, Old: "s1 s2", Value: outcome, N: 1},
		}
	}
	told := func(op, id, site string) event {
		return event{Kind: "told", Work: "txn", Op: op, ID: id, Value: site}
	}
	both := []event{told("prepare", "x", "s1"), told("prepare", "x", "s2"), told("commit", "x", "s1"), told("commit", "x", "s2")}
	doubt := slices.Clone(proposed("x", ""))
	doubt[1].Kind, doubt[1].Err = "unknown", coord.ErrInDoubt.Error()
	decided := func(id string, outcomes ...string) map[string][]attempt {
		return map[string][]attempt{id: {{outcomes: outcomes}}}
	}
	commit, abort := decided("x", "commit"), decided("x", "abort")
	// The first transaction with the ID has the zxid 0, and the second one the zxid 9.
	anew := map[string][]attempt{"x": {{outcomes: []string{"abort"}}, {zxid: 9, outcomes: []string{"abort"}}}}
	again := proposed("x", "abort")
	again[1].Token = 9
	for _, tc := range []struct {
		name    string
		events  []event
		decided map[string][]attempt
		want    string
	}{
		{"all commit", append(proposed("x", "commit"), both...), commit, ""},
		{"all abort", append(proposed("x", "abort"), told("abort", "x", "s1")), abort, ""},
		{"two decisions", proposed("x", "commit"), decided("x", "commit", "abort"), "was decided"},
		{"proposed anew after a recovery", append(slices.Clone(again), told("abort", "x", "s1"), told("recover", "x", "abort")), anew, ""},
		{"proposed anew without one", again, anew, "x was proposed anew"},
		{"proposed anew after the recovery of another", append(slices.Clone(again), told("recover", "y", "abort")), anew, "x was proposed anew"},
		{"one site aborts", append(append(proposed("x", "commit"), both[:3]...), told("abort", "x", "s2")), commit, "site s2 of x got abort, the decision is commit"},
		{"one site gets both outcomes", append(append(proposed("x", "commit"), both...), told("abort", "x", "s1")), commit, "got commit and abort"},
		{"the proposer gets the other outcome", append(proposed("x", "abort"), both...), commit, "the proposer of x got abort"},
		{"an outcome before the decision", proposed("x", "abort"), nil, "the decision is none"},
		{"recovery returns the other outcome", append(append(proposed("x", "commit"), both...), told("recover", "x", "abort")), commit, "recovery of x returned abort"},
		{"in doubt after a recovery", slices.Concat(doubt, both, []event{told("recover", "x", "commit")}), commit, ""},
		{"in doubt without one", slices.Concat(doubt, both), commit, "the record of x is deleted"},
		{"a site is left out", append(proposed("x", "commit"), both[:3]...), commit, "s2 never got the outcome"},
		{"a site was not asked", append(proposed("x", "commit"), both[1:]...), commit, "s1 was never asked"},
		{"against a vote", proposed("no", "commit"), decided("no", "commit"), "no commits although s2 voted no"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			verdict(t, checkTxns([]*process{history(t, "p", tc.events...)}, tc.decided, yes), tc.want)
		})
	}
}
